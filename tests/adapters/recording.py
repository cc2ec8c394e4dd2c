"""An engine with adapters that keeps every row of logits it sampled from, and whose it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cudaprefill.adapters import AdapterRegistry, AdapterTarget
from cudaprefill.engine.engine import Engine
from cudaprefill.engine.input_processor import InputProcessor, Prompt
from cudaprefill.engine.kv_cache import KVCache
from cudaprefill.engine.model_runner import ModelRunner
from cudaprefill.engine.request import Request
from cudaprefill.engine.schedule import Schedule
from cudaprefill.engine.scheduler import Scheduler
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.models import Decoder
from cudaprefill.sampling_params import SamplingParams
from tests.engine.harness import letters

TOLERANCE = 1e-4
NUM_TOKENS = 8
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False)


class RecordingEngine(Engine):
    """Runs a model over a KV cache that starts as NaN.

    seen: of each token that was sampled, its request, its place in the output and its logits.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        num_blocks: int = 64,
        budget: int = 512,
        caching: bool = True,
        kv_dtype: torch.dtype = torch.float32,
    ) -> None:
        config = model.config
        self.limits = SchedulerConfig(
            num_blocks=num_blocks,
            max_model_len=config.max_model_len,
            max_num_batched_tokens=budget,
            max_num_seqs=min(16, budget),
            enable_prefix_caching=caching,
        )
        shape = (config.num_layers, num_blocks, config.num_kv_heads, 16, config.head_size)
        kv_cache = KVCache(*shape, kv_dtype)
        kv_cache.data.fill_(torch.nan)
        device = torch.device("cpu")
        super().__init__(Scheduler(self.limits), ModelRunner(model, kv_cache), letters(), device)
        self.adapters = AdapterRegistry(
            AdapterTarget(
                config,
                device,
                model.activation_dtype,
                kv_dtype,
                config.max_model_len,
                int8=model.linear_math == "int8",
            )
        )
        # Of an engine with a huge pool: what this one cannot hold is left for its scheduler to refuse.
        processor = InputProcessor(
            letters(), (), config.vocab_size, replace(self.limits, num_blocks=10**6), self.adapters
        )
        self.process: Callable[..., tuple[Request, str | None]] = processor.process_prompt
        self.seen: list[tuple[Request, int, Tensor]] = []

    def load(self, folders: Mapping[str, Path]) -> RecordingEngine:
        for name, folder in folders.items():
            self.adapters.load(name, folder)
        return self

    def _sample(self, logits: Tensor, schedule: Schedule) -> Any:
        for request, row in zip(schedule.sampled, schedule.sample_rows.tolist(), strict=True):
            self.seen.append((request, request.num_output_tokens, logits[row].clone()))
        return super()._sample(logits, schedule)

    def ask(self, request_id: str, prompt: Prompt, adapter: str | None = None, **options: Any) -> Request:
        params = options.pop("params", GREEDY)
        request = self.process(request_id, prompt, params, adapter=adapter, **options)[0]
        self.submit(request)
        return request

    def run(self) -> None:
        while self.has_work():
            self.step()
            self.check()
        assert self.scheduler.pool.num_used == 0


def assert_equal_logits(
    engine: RecordingEngine, expected: Callable[[Request, list[int]], Tensor], tolerance: float = TOLERANCE
) -> None:
    """Every row of logits that was sampled from is the reference's. `expected`: those of all tokens of a text."""
    assert engine.seen
    whole: dict[Request, Tensor] = {}
    for request, place, row in engine.seen:
        if request not in whole:
            whole[request] = expected(request, [*request.prompt_token_ids, *request.output_token_ids])
        logits = whole[request][len(request.prompt_token_ids) + place - 1]
        difference = (row - logits).abs().max()
        assert difference < tolerance, f"{request.request_id} token {place} differs by {difference}"
