"""Prometheus metrics, from events alone. docs/metrics.md says what each means."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent
from cudaprefill.observe.histogram import Histogram
from cudaprefill.observe.request_log import RequestLog
from cudaprefill.protocol.telemetry import RequestRecord

# vLLM's bounds, so that what asks for one of them finds it, and finer ones below: a queue of 3 ms and one of 200 ms are
# different things.
# fmt: off
_TTFT_SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0, 160.0, 640.0, 2560.0,
)
_ITL_SECONDS = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0,
    2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
_PHASE_SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
# fmt: on

FINISHED_REASONS = ("stop", "length", "abort", "error")
WAITING_REASONS = ("seats", "blocks", "budget")
BLOCK_STATES = ("free", "cached", "used")


class Metrics(Collector):
    """A listener of the engine's events and a collector of `registry`; both from one thread.

    A request with n completions counts as n, as each has a place in a batch, tokens and an end of its own.
    Requests that were aborted or failed are counted by reason, and give no times but those of the tokens they got.
    """

    def __init__(
        self, model_name: str, *, max_model_len: int, num_blocks: int, enable_prefix_caching: bool = True
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.requests = RequestLog()
        self._labels = {"model_name": model_name, "engine": "0"}
        self._enable_prefix_caching = enable_prefix_caching

        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self.num_preemptions = 0
        self.request_success = dict.fromkeys(FINISHED_REASONS, 0)
        self.time_to_first_token = Histogram(_TTFT_SECONDS)
        self.inter_token_latency = Histogram(_ITL_SECONDS)
        self.e2e_request_latency = Histogram(_PHASE_SECONDS)
        self.request_queue_time = Histogram(_PHASE_SECONDS)
        self.request_prefill_time = Histogram(_PHASE_SECONDS)
        self.request_decode_time = Histogram(_PHASE_SECONDS)
        self.request_inference_time = Histogram(_PHASE_SECONDS)
        self.iteration_tokens = Histogram(_STEP_TOKENS)
        self.request_prompt_tokens = Histogram(one_two_five(max_model_len))
        self.request_generation_tokens = Histogram(one_two_five(max_model_len))

        self.step_duration = Histogram(_PHASE_SECONDS)
        self.chunk_tokens = Histogram(_STEP_TOKENS)
        self.token_budget = 0
        self.blocks = dict(zip(BLOCK_STATES, (num_blocks, 0, 0), strict=True))
        self.blocks_taken = 0
        self.blocks_freed = 0
        self.blocks_evicted = 0
        self.waiting_steps = dict.fromkeys(WAITING_REASONS, 0)
        self.engine_restarts = 0
        self.telemetry_connections = 0
        self.telemetry_dropped_steps = 0
        self.telemetry_dropped_snapshots = 0
        self.registry.register(self)

    # --- Events come in ---

    def on_events(self, events: Sequence[RequestEvent | StepEvent]) -> None:
        for event in events:
            if isinstance(event, StepEvent):
                self._on_step(event)
            else:
                self._on_request(event)

    def engine_restarted(self) -> None:
        """What the engine before had is gone; counters go on."""
        self.engine_restarts += 1
        self.requests.clear()
        self.set_blocks(sum(self.blocks.values()), 0, 0)

    def set_blocks(self, free: int, cached: int, used: int) -> None:
        """For changes that no step tells, such as the end of the last request by an abort."""
        self.blocks = {"free": free, "cached": cached, "used": used}

    def _on_request(self, event: RequestEvent) -> None:
        record = self.requests.apply(event)
        if record is None:
            return
        if event.kind is RequestEventKind.SCHEDULED and record.preemptions == 0 and self._enable_prefix_caching:
            self.prefix_cache_queries += record.prompt_tokens
            self.prefix_cache_hits += event.hit_tokens
        elif event.kind is RequestEventKind.CHUNK:
            self.chunk_tokens.observe(event.length)
        elif event.kind is RequestEventKind.FIRST_TOKEN:
            self.prompt_tokens += record.prompt_tokens
            self.time_to_first_token.observe(event.time - record.arrived)
        elif event.kind is RequestEventKind.PREEMPTED:
            self.num_preemptions += 1
        elif event.kind is RequestEventKind.FINISHED:
            reason = event.reason if event.reason in self.request_success else "error"
            self.request_success[reason] += 1

    def _on_step(self, event: StepEvent) -> None:
        tokens = self.requests.apply_step(event)
        self.generation_tokens += tokens.num_tokens
        self.inter_token_latency.observe_many(tokens.itls)
        for record in tokens.ended:
            self._observe_ended(record)
        self.iteration_tokens.observe(event.num_tokens)
        self.step_duration.observe(event.duration)
        self.token_budget = event.token_budget
        self.blocks_taken += event.num_blocks_taken
        self.blocks_freed += event.num_blocks_freed
        self.blocks_evicted += event.num_blocks_evicted
        self.set_blocks(event.num_free_blocks, event.num_cached_blocks, event.num_used_blocks)
        reason = event.waiting_for.partition(":")[0]
        if reason in self.waiting_steps:
            self.waiting_steps[reason] += 1

    def _observe_ended(self, record: RequestRecord) -> None:
        scheduled, first, last = record.first_scheduled, record.first_token, record.last_token
        if scheduled is None or first is None or last is None:
            return  # it ended with another request, without a token of its own
        self.e2e_request_latency.observe(last - record.arrived)
        self.request_queue_time.observe(scheduled - record.arrived)
        self.request_prefill_time.observe(first - scheduled)
        self.request_decode_time.observe(last - first)
        self.request_inference_time.observe(last - scheduled)
        self.request_prompt_tokens.observe(record.prompt_tokens)
        self.request_generation_tokens.observe(record.output_tokens)

    # --- Prometheus asks ---

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_requests()
        yield from self._collect_times()
        yield from self._collect_engine()

    def _collect_requests(self) -> Iterator[Metric]:
        yield self._gauge("vllm:num_requests_running", "Requests that hold KV blocks.", self.requests.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Requests in the waiting queue.", self.requests.num_waiting)
        yield self._adapters()
        usage = self.blocks["used"] / max(1, sum(self.blocks.values()))
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", usage)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of requests that were prefilled.", self.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", self.generation_tokens)
        yield self._counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix index.", self.prefix_cache_queries
        )
        yield self._counter(
            "vllm:prefix_cache_hits", "Prompt tokens found in the prefix index.", self.prefix_cache_hits
        )
        yield self._counter("vllm:num_preemptions", "Times a request lost its blocks to others.", self.num_preemptions)
        yield self._counter_by(
            "vllm:request_success", "Requests that ended, by reason.", "finished_reason", self.request_success
        )
        yield self._histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a finished request.", self.request_prompt_tokens
        )
        yield self._histogram(
            "vllm:request_generation_tokens",
            "Tokens that a finished request generated.",
            self.request_generation_tokens,
        )

    def _collect_times(self) -> Iterator[Metric]:
        yield self._histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token.", self.time_to_first_token
        )
        yield self._histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of one request.", self.inter_token_latency
        )
        yield self._histogram(
            "vllm:e2e_request_latency_seconds", "From arrival to the last token of a request.", self.e2e_request_latency
        )
        yield self._histogram(
            "vllm:request_queue_time_seconds", "From arrival to the first chunk's step.", self.request_queue_time
        )
        yield self._histogram(
            "vllm:request_prefill_time_seconds", "From the first chunk's step to the first token.",
            self.request_prefill_time,
        )  # fmt: skip
        yield self._histogram(
            "vllm:request_decode_time_seconds", "From the first token to the last.", self.request_decode_time
        )
        yield self._histogram(
            "vllm:request_inference_time_seconds", "From the first chunk's step to the last token.",
            self.request_inference_time,
        )  # fmt: skip

    def _collect_engine(self) -> Iterator[Metric]:
        yield self._histogram("vllm:iteration_tokens_total", "Tokens computed in one step.", self.iteration_tokens)
        yield self._histogram("cudaprefill:step_duration_seconds", "Duration of one step.", self.step_duration)
        yield self._histogram("cudaprefill:chunk_tokens", "Tokens of one chunk of a prefill.", self.chunk_tokens)
        yield self._gauge("cudaprefill:token_budget", "Most tokens the last step could compute.", self.token_budget)
        blocks = GaugeMetricFamily("cudaprefill:blocks", "KV blocks by state.", labels=[*self._labels, "state"])
        for state, count in self.blocks.items():
            blocks.add_metric([*self._labels.values(), state], count)
        yield blocks
        yield self._counter("cudaprefill:blocks_taken", "Times a block came into use.", self.blocks_taken)
        yield self._counter("cudaprefill:blocks_freed", "Times a block went out of use.", self.blocks_freed)
        yield self._counter(
            "cudaprefill:blocks_evicted", "Times a cached block lost its prefix to another use.", self.blocks_evicted
        )
        yield self._counter_by(
            "cudaprefill:waiting_steps", "Steps after which the head of the queue still waited, by what it lacked.",
            "reason", self.waiting_steps,
        )  # fmt: skip
        yield self._counter("cudaprefill:engine_restarts", "Times the engine was started anew.", self.engine_restarts)
        yield self._gauge(
            "cudaprefill:telemetry_connections", "Open telemetry connections.", self.telemetry_connections
        )
        yield self._counter(
            "cudaprefill:telemetry_dropped_steps", "Steps that a telemetry reader was too slow for.",
            self.telemetry_dropped_steps,
        )  # fmt: skip
        yield self._counter(
            "cudaprefill:telemetry_dropped_snapshots",
            "Snapshots sent because a telemetry reader was too slow for the differences.",
            self.telemetry_dropped_snapshots,
        )

    def _adapters(self) -> Metric:
        """Which adapters requests wait for and run with, as vLLM tells it: in labels, with the time as the value."""
        labels = ["max_lora", "waiting_lora_adapters", "running_lora_adapters"]
        family = GaugeMetricFamily(
            "vllm:lora_requests_info", "Adapters of waiting and running requests.", labels=[*self._labels, *labels]
        )
        named = [record for record in self.requests if record.adapter is not None]
        if named:
            waiting = sorted({str(record.adapter) for record in named if record.state == "waiting"})
            running = sorted({str(record.adapter) for record in named if record.state != "waiting"})
            values = [*self._labels.values(), "0", ",".join(waiting), ",".join(running)]
            family.add_metric(values, time.time())
        return family

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter_by(self, name: str, documentation: str, label: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family

    def _histogram(self, name: str, documentation: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), histogram.cumulative(), histogram.sum)
        return family


def one_two_five(largest: int) -> list[int]:
    """1, 2, 5, 10, 20, ... up to `largest`."""
    steps = (mantissa * 10**power for power in range(len(str(largest))) for mantissa in (1, 2, 5))
    return [bound for bound in steps if bound <= largest]
