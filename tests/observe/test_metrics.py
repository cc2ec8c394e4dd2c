"""Metrics against events whose figures can be added up by hand, and against a scheduler at work."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cudaprefill.observe.events import ChunkSpan, RequestEvent, RequestEventKind, StepEvent
from cudaprefill.observe.metrics import Metrics, one_two_five
from tests.scheduler.driver import Driver

Kind = RequestEventKind


def make_metrics(**settings: Any) -> Metrics:
    return Metrics("tiny", **{"max_model_len": 1024, "num_blocks": 64, **settings})


def samples(metrics: Metrics) -> dict[str, float]:
    """Name, and what labels say beyond model and engine, -> value, as a scraper reads them."""
    values = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key not in ("model_name", "engine")}
            values[sample.name + "".join(f"|{key}={value}" for key, value in sorted(labels.items()))] = sample.value
    return values


def mean(metrics: Metrics, name: str) -> float:
    values = samples(metrics)
    return values[f"{name}_sum"] / values[f"{name}_count"]


@dataclass
class Script:
    """Events of requests 1, 2, ... as an engine would tell them."""

    metrics: Metrics
    step: int = 0
    events: list[RequestEvent | StepEvent] = field(default_factory=list)

    def tell(self, kind: Kind, number: int, time: float, **fields: Any) -> None:
        self.events.append(RequestEvent(kind, f"request-{number}", time, self.step, number=number, **fields))

    def arrive(self, number: int, time: float, prompt: int = 10) -> None:
        self.tell(Kind.ARRIVED, number, time, num_prompt_tokens=prompt)
        self.tell(Kind.QUEUED, number, time)

    def prefill(self, number: int, time: float, prompt: int = 10, hit: int = 0) -> None:
        self.tell(Kind.SCHEDULED, number, time, hit_tokens=hit)
        self.tell(Kind.CHUNK, number, time, start=hit, length=prompt - hit, hit_tokens=hit)

    def end_step(self, time: float, decodes: tuple[int, ...] = (), chunks: int = 0, **fields: Any) -> None:
        """The event of a step that took the last 10 ms."""
        self.step += 1
        names = tuple(f"request-{number}" for number in decodes)
        spans = tuple(ChunkSpan(f"request-{number}", 0, 10, 0, True, number) for number in range(chunks))
        defaults: dict[str, Any] = {
            "num_tokens": len(decodes) + 10 * chunks,
            "num_waiting": 0,
            "waiting_for": "",
            "num_blocks_taken": 0,
            "num_blocks_freed": 0,
            "num_blocks_evicted": 0,
            "num_free_blocks": 60,
            "num_cached_blocks": 1,
            "num_used_blocks": 3,
        }
        self.events.append(
            StepEvent(
                number=self.step,
                start=time - 0.010,
                duration=0.010,
                token_budget=64,
                decode_ids=names,
                chunks=spans,
                preempted_ids=(),
                finished_ids=(),
                decode_numbers=decodes,
                **{**defaults, **fields},
            )
        )
        self.metrics.on_events(self.events)
        self.events = []


def test_the_phases_of_a_request_add_up_to_its_latency() -> None:
    script = Script(metrics := make_metrics())
    script.arrive(1, 100.0)
    script.prefill(1, 100.5)
    script.tell(Kind.FIRST_TOKEN, 1, 100.75)
    script.end_step(100.75, chunks=1)
    script.end_step(101.0, decodes=(1,))
    script.tell(Kind.FINISHED, 1, 101.25, reason="stop", num_output_tokens=3)
    script.end_step(101.25, decodes=(1,))
    phases = {
        name: mean(metrics, f"vllm:{name}_seconds")
        for name in (
            "time_to_first_token",
            "request_queue_time",
            "request_prefill_time",
            "request_decode_time",
            "request_inference_time",
            "e2e_request_latency",
            "inter_token_latency",
        )
    }
    assert phases == pytest.approx(
        {
            "time_to_first_token": 0.75,
            "request_queue_time": 0.5,
            "request_prefill_time": 0.25,
            "request_decode_time": 0.5,
            "request_inference_time": 0.75,
            "e2e_request_latency": 1.25,
            "inter_token_latency": 0.25,
        }
    )
    values = samples(metrics)
    assert values["vllm:inter_token_latency_seconds_count"] == 2
    assert values["vllm:generation_tokens_total"] == values["vllm:request_generation_tokens_sum"] == 3
    assert values["vllm:prompt_tokens_total"] == values["vllm:request_prompt_tokens_sum"] == 10
    assert values["vllm:request_success_total|finished_reason=stop"] == 1
    assert values["vllm:iteration_tokens_total_sum"] == 12


def test_the_ttft_of_a_request_that_had_to_wait_contains_the_wait() -> None:
    """Both arrive at 0; the first has the only seat for two seconds."""
    script = Script(metrics := make_metrics())
    script.arrive(1, 0.0)
    script.arrive(2, 0.0)
    script.prefill(1, 0.01)
    script.tell(Kind.FIRST_TOKEN, 1, 0.02)
    script.end_step(0.02, chunks=1, num_waiting=1, waiting_for="seats: needs 1, 0 free")
    script.tell(Kind.FINISHED, 1, 2.0, reason="length", num_output_tokens=2)
    script.end_step(2.0, decodes=(1,), num_waiting=1, waiting_for="seats: needs 1, 0 free")
    script.prefill(2, 2.0)
    script.tell(Kind.FIRST_TOKEN, 2, 2.5)
    script.end_step(2.5, chunks=1)
    values = samples(metrics)
    assert values["vllm:time_to_first_token_seconds_sum"] == pytest.approx(0.02 + 2.5)
    assert values["vllm:time_to_first_token_seconds_bucket|le=1.0"] == 1
    assert values["cudaprefill:waiting_steps_total|reason=seats"] == 2
    assert (values["vllm:num_requests_running"], values["vllm:num_requests_waiting"]) == (1, 0)


def test_a_preemption_resets_neither_ttft_nor_the_clock_of_the_next_token() -> None:
    script = Script(metrics := make_metrics())
    script.arrive(1, 0.0)
    script.prefill(1, 1.0)
    script.tell(Kind.FIRST_TOKEN, 1, 1.5)
    script.end_step(1.5, chunks=1)
    script.tell(Kind.PREEMPTED, 1, 2.0)
    script.end_step(2.0)
    assert samples(metrics)["vllm:num_requests_waiting"] == 1
    script.tell(Kind.SCHEDULED, 1, 4.0, hit_tokens=8)
    script.tell(Kind.CHUNK, 1, 4.5, start=8, length=3, hit_tokens=8)  # prompt and first token; gives the second
    script.end_step(4.5, chunks=1)
    script.tell(Kind.FINISHED, 1, 5.5, reason="length", num_output_tokens=3)
    script.end_step(5.5, decodes=(1,))
    values = samples(metrics)
    assert (values["vllm:time_to_first_token_seconds_count"], values["vllm:time_to_first_token_seconds_sum"]) == (
        1,
        1.5,
    )
    assert values["vllm:inter_token_latency_seconds_sum"] == pytest.approx(3.0 + 1.0)
    assert values["vllm:inter_token_latency_seconds_count"] == 2
    assert values["vllm:request_queue_time_seconds_sum"] == 1.0
    assert values["vllm:request_decode_time_seconds_sum"] == 4.0
    assert values["vllm:num_preemptions_total"] == 1
    assert values["vllm:generation_tokens_total"] == 3
    assert values["vllm:prompt_tokens_total"] == 10
    assert values["vllm:prefix_cache_queries_total"] == 10  # the second look-up is for the engine's own sake


@pytest.mark.parametrize("prefilled", [False, True])
def test_a_request_aborted_before_its_first_token_gives_no_sample_of_any_time(prefilled: bool) -> None:
    script = Script(metrics := make_metrics())
    script.arrive(1, 0.0)
    if prefilled:
        script.tell(Kind.SCHEDULED, 1, 1.0)
        script.tell(Kind.CHUNK, 1, 1.0, start=0, length=4)
    script.end_step(1.0)
    script.tell(Kind.FINISHED, 1, 3.0, reason="abort")
    script.end_step(4.0)
    values = samples(metrics)
    counts = {name: value for name, value in values.items() if name.endswith("_seconds_count")}
    assert {name: count for name, count in counts.items() if count} == {"cudaprefill:step_duration_seconds_count": 2}
    assert values["vllm:request_success_total|finished_reason=abort"] == 1
    assert values["vllm:generation_tokens_total"] == values["vllm:prompt_tokens_total"] == 0
    assert values["vllm:num_requests_running"] == values["vllm:num_requests_waiting"] == 0


def test_an_abort_between_two_steps_leaves_nothing_behind() -> None:
    script = Script(metrics := make_metrics())
    script.arrive(1, 0.0)
    script.prefill(1, 0.5)
    script.tell(Kind.FIRST_TOKEN, 1, 1.0)
    script.end_step(1.0, chunks=1)
    script.tell(Kind.FINISHED, 1, 1.5, reason="abort", num_output_tokens=1)
    metrics.on_events(script.events)
    assert list(metrics.requests) == []
    assert samples(metrics)["vllm:generation_tokens_total"] == 1


def test_a_failed_output_of_a_step_counts_no_token() -> None:
    script = Script(metrics := make_metrics())
    for number in (1, 2):
        script.arrive(number, 0.0)
        script.prefill(number, 0.5)
        script.tell(Kind.FIRST_TOKEN, number, 1.0)
    script.end_step(1.0, chunks=2)
    script.tell(Kind.FINISHED, 1, 2.0, reason="error", num_output_tokens=1)
    script.end_step(2.0, decodes=(1, 2))
    values = samples(metrics)
    assert values["vllm:generation_tokens_total"] == 3
    assert values["vllm:request_success_total|finished_reason=error"] == 1


def test_without_prefix_caching_there_are_no_prefix_cache_queries() -> None:
    script = Script(metrics := make_metrics(enable_prefix_caching=False))
    script.arrive(1, 0.0)
    script.prefill(1, 0.5)
    script.end_step(1.0)
    assert samples(metrics)["vllm:prefix_cache_queries_total"] == 0


def test_counters_go_on_when_the_engine_is_started_anew() -> None:
    script = Script(metrics := make_metrics())
    script.arrive(1, 0.0)
    script.prefill(1, 0.5)
    script.tell(Kind.FIRST_TOKEN, 1, 1.0)
    script.end_step(1.0, chunks=1)
    metrics.engine_restarted()
    values = samples(metrics)
    assert values["vllm:generation_tokens_total"] == values["cudaprefill:engine_restarts_total"] == 1
    assert values["vllm:num_requests_running"] == values["vllm:kv_cache_usage_perc"] == 0
    assert values["cudaprefill:blocks|state=free"] == 64


def run_driver(driver: Driver, metrics: Metrics) -> None:
    """Steps to the end, each lasting a second."""
    while (schedule := driver.scheduler.schedule()) is not None:
        start = driver.clock
        driver.clock += 1.0
        driver.finish_step(schedule)
        event = driver.scheduler.step_event(schedule, start, 1.0)
        metrics.on_events([*driver.events, event])
        driver.events.clear()
        metrics.on_events([])


def test_every_member_of_a_request_with_n_completions_counts() -> None:
    metrics = make_metrics()
    driver = Driver(num_blocks=64)
    driver.submit(list(range(20)), n=3, max_tokens=4, ignore_eos=True)
    run_driver(driver, metrics)
    values = samples(metrics)
    assert values["vllm:request_success_total|finished_reason=length"] == 3
    assert values["vllm:time_to_first_token_seconds_count"] == 3
    assert values["vllm:generation_tokens_total"] == 12
    assert values["vllm:prompt_tokens_total"] == 60
    assert values["vllm:prefix_cache_queries_total"] == 60
    assert values["cudaprefill:chunk_tokens_sum"] == 20  # computed once
    assert values["vllm:iteration_tokens_total_sum"] == 20 + 3 * 3


def test_with_one_seat_the_scheduler_lets_the_second_wait_and_its_ttft_says_so() -> None:
    metrics = make_metrics()
    driver = Driver(max_num_seqs=1)
    driver.submit([5] * 10, max_tokens=3, ignore_eos=True)
    driver.submit([6] * 10, max_tokens=1, ignore_eos=True)
    driver.submit([7] * 10, max_tokens=1, request_id="given up")
    driver.scheduler.abort("given up")
    run_driver(driver, metrics)
    values = samples(metrics)
    assert values["vllm:time_to_first_token_seconds_count"] == 2
    assert values["vllm:time_to_first_token_seconds_sum"] == 1.0 + 4.0
    assert values["vllm:request_queue_time_seconds_sum"] == 0.0 + 3.0
    assert values["vllm:request_success_total|finished_reason=abort"] == 1
    assert values["cudaprefill:waiting_steps_total|reason=seats"] == 3


@pytest.mark.parametrize("num_blocks", [64, 10], ids=["roomy", "preempting"])
def test_tokens_agree_with_those_that_the_scheduler_gave_out(num_blocks: int) -> None:
    metrics = make_metrics(num_blocks=num_blocks)
    driver = Driver(num_blocks=num_blocks, block_size=4, max_num_batched_tokens=16)
    for prompt in (list(range(9)), list(range(5)), list(range(14))):
        driver.submit(prompt, max_tokens=12, ignore_eos=True)
    run_driver(driver, metrics)
    values = samples(metrics)
    given = [tokens for tokens in driver.tokens.values() if tokens]
    assert values["vllm:generation_tokens_total"] == sum(map(len, given))
    assert values["vllm:inter_token_latency_seconds_count"] == sum(len(tokens) - 1 for tokens in given)
    assert values["vllm:request_generation_tokens_sum"] == sum(map(len, given))
    assert values["vllm:time_to_first_token_seconds_count"] == len(given)
    assert values["vllm:num_preemptions_total"] == sum(r.num_preemptions for r in driver.requests.values())
    assert (values["vllm:num_preemptions_total"] > 0) == (num_blocks == 10)
    assert values["cudaprefill:blocks|state=free"] == driver.pool.num_free
    assert values["cudaprefill:blocks|state=cached"] == driver.pool.num_cached
    assert values["cudaprefill:blocks_taken_total"] == driver.pool.num_taken
    assert values["cudaprefill:blocks_evicted_total"] == driver.pool.num_evicted


def test_bounds_of_token_counts_ascend_in_steps_of_one_two_five() -> None:
    assert one_two_five(1) == [1]
    assert one_two_five(60) == [1, 2, 5, 10, 20, 50]
    assert list(itertools.islice(reversed(one_two_five(8192)), 2)) == [5000, 2000]


def test_adapters_are_named_while_requests_wait_for_them_or_run_with_them() -> None:
    script = Script(make_metrics())
    name = "vllm:lora_requests_info"
    assert not any(sample.startswith(name) for sample in samples(script.metrics))
    for number, adapter in enumerate(("b", "a", "c", None), 1):
        script.tell(Kind.ARRIVED, number, 0.0, num_prompt_tokens=10, adapter=adapter)
    for number in (1, 2):
        script.prefill(number, 1.0)
    script.metrics.on_events(script.events)
    (told,) = [sample for sample in samples(script.metrics) if sample.startswith(name)]
    assert told == f"{name}|max_lora=0|running_lora_adapters=a,b|waiting_lora_adapters=c"
