"""The sizes that the scheduler decides within."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from cudaprefill.config import check_count, check_itl_target
from cudaprefill.protocol.itl_target import ItlTarget
from cudaprefill.protocol.telemetry import EngineSettings


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Sizes of the pool and of a step. Raises ValueError naming the setting, its value and what is allowed."""

    num_blocks: int  # of the KV cache
    max_model_len: int  # prompt plus output of one request
    max_num_batched_tokens: int  # the token budget of one step
    max_num_seqs: int  # requests that run at once
    block_size: int = 16
    long_prefill_token_threshold: int = 0  # most tokens of one prompt while others want some; 0: half of what is left
    enable_prefix_caching: bool = True
    max_num_queued_reqs: int | None = None  # requests that may wait for a seat; None: no limit
    itl_target_ms: ItlTarget | None = None  # most milliseconds a step should last while requests decode; None: any
    token_budget_limit: int | None = None  # what max_num_batched_tokens may grow to while the engine runs; None: any

    def __post_init__(self) -> None:
        least = {
            "num_blocks": 1,
            "max_model_len": 2,
            "max_num_batched_tokens": 1,
            "max_num_seqs": 1,
            "block_size": 1,
            "long_prefill_token_threshold": 0,
            "max_num_queued_reqs": 0,
        }
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ValueError(f"{name} must be at least {minimum}, got {value}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): every running request computes a token in every step"
            )
        if self.token_budget_limit is not None and self.max_num_batched_tokens > self.token_budget_limit:
            raise ValueError(
                f"max_num_batched_tokens must be at most {self.token_budget_limit}, for which memory was set aside at "
                f"the start, got {self.max_num_batched_tokens}"
            )
        target = self.itl_target_ms
        if target not in (None, "auto") and (isinstance(target, str) or not 0.0 < target < math.inf):
            raise ValueError(f'itl_target_ms must be a positive number of milliseconds or "auto", got {target!r}')

    @property
    def num_slots(self) -> int:
        """Tokens that fit into the pool."""
        return self.num_blocks * self.block_size

    @property
    def most_requests(self) -> int | None:
        """That can run or wait at once; None: there is no limit."""
        return None if self.max_num_queued_reqs is None else self.max_num_seqs + self.max_num_queued_reqs

    def longest(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """The length at which a request ends, prompt included."""
        # Alone in the pool it can compute num_slots tokens; the one sampled last is never computed.
        length = min(self.max_model_len, self.num_slots + 1)
        return length if max_tokens is None else min(length, num_prompt_tokens + max_tokens)

    @property
    def settings(self) -> EngineSettings:
        return EngineSettings(
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            itl_target_ms=self.itl_target_ms,
        )

    def with_settings(
        self,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int | None = None,
        itl_target_ms: ItlTarget | None = None,
    ) -> SchedulerConfig:
        """With those changed that are given; an ITL target of 0 takes it away. Raises ValueError as the class does."""
        changes: dict[str, Any] = {}
        for name, count in (
            ("max_num_batched_tokens", max_num_batched_tokens),
            ("long_prefill_token_threshold", long_prefill_token_threshold),
        ):
            if count is not None:
                check_count(name, count)
                changes[name] = count
        if itl_target_ms is not None:
            changes["itl_target_ms"] = check_itl_target(itl_target_ms)
        return replace(self, **changes)

    def refuse_impossible(self, num_prompt_tokens: int, num_seats: int, num_virtual_tokens: int = 0) -> None:
        """Raises ValueError, with both numbers, for a request that can never run; `num_seats` is its n."""
        if num_prompt_tokens + num_virtual_tokens == 0:
            raise ValueError("the prompt has no tokens")
        has = f"the prompt has {num_prompt_tokens} tokens"
        if num_virtual_tokens:
            has += f" behind {num_virtual_tokens} virtual ones"
        length = num_prompt_tokens + num_virtual_tokens
        if length >= self.max_model_len:
            raise ValueError(f"{has} and leaves no room for an output: max_model_len is {self.max_model_len}")
        if length > self.num_slots:
            raise ValueError(
                f"{has}, but the KV cache holds {self.num_slots} ({self.num_blocks} blocks of {self.block_size})"
            )
        if num_seats > self.max_num_seqs:
            raise ValueError(f"n is {num_seats}, but max_num_seqs is {self.max_num_seqs}")
