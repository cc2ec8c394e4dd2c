"""From logits to tokens.

The order of operations is that of vLLM's sampler:

    1  log-probabilities, where asked for, of the model's own logits           logprobs.py
    2  what a grammar and min_tokens forbid; logit_bias and penalties          penalties.py
    3  greedy outputs take their best token
    4  temperature, min_p, top_k, top_p                                        filters.py
    5  one uniform number draws a token of what is left                        draw.py

No output costs more than it needs. Plain greedy ones share one search for the best token of every row; those whose
filters leave few tokens are drawn from their leading tokens, and only where these are too few from the whole row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cudaprefill.engine.device_tensor import device_tensor
from cudaprefill.engine.draw import MAX_LEADING_TOP_K, NOT_COVERED, NOT_FINITE, draw, draw_leading
from cudaprefill.engine.logprobs import token_logprobs
from cudaprefill.engine.passes import rows_per_pass
from cudaprefill.engine.penalties import modify_logits
from cudaprefill.engine.sampling_state import SamplingState
from cudaprefill.outputs import TokenLogprobs

# How an output's token is chosen.
_PLAIN, _BEST, _TOP_K, _TOP_P, _WHOLE = range(5)

_BLOCK = 128  # tokens among which the best is looked for at once

RowState = tuple[int, SamplingState]  # an output: its row of the logits and its state


@dataclass(slots=True)
class SamplerOutput:
    """Place i belongs to the i-th output that was sampled."""

    token_ids: list[int]  # -1 where `errors` has an entry
    logprobs: list[TokenLogprobs | None]  # None where not asked for
    errors: dict[int, str] = field(default_factory=dict)  # place -> why there is no token; the others are unharmed


class Sampler:
    """Chooses the next token of each output."""

    @torch.inference_mode()
    def sample(self, logits: Tensor, outputs: Sequence[RowState]) -> SamplerOutput:
        """One token for each output; those forked from one prompt share a row.

        logits: [R, V] float32, on any device; unchanged.
        A row whose best logit is NaN or infinite yields an error, for its own outputs alone.
        """
        if logits.ndim != 2 or logits.dtype != torch.float32:
            raise ValueError(f"logits must be [R, V] float32, got {list(logits.shape)} {logits.dtype}")
        token_ids = _choose_all(logits, outputs)
        uncovered = [place for place, token_id in enumerate(token_ids) if token_id == NOT_COVERED]
        if uncovered:
            whole = _collect(
                [_choose(_WHOLE, logits, part) for part in _passes([outputs[i] for i in uncovered], logits)]
            )
            for place, token_id in zip(uncovered, whole, strict=True):
                token_ids[place] = token_id
        result = SamplerOutput(token_ids, [None] * len(outputs))
        for place, token_id in enumerate(token_ids):
            if token_id == NOT_FINITE:
                result.errors[place] = _reason(logits, *outputs[place])
        _add_logprobs(result, logits, outputs)
        return result


def _choose_all(logits: Tensor, outputs: Sequence[RowState]) -> list[int]:
    """A token of each output, NOT_FINITE or NOT_COVERED; brought from the device in one piece."""
    places: dict[int, list[int]] = {}
    for place, (_, state) in enumerate(outputs):
        places.setdefault(_way(state), []).append(place)
    plain = places.pop(_PLAIN, [])
    parts = [_best_tokens(logits)] if plain else []
    order: list[int] = []
    for way, chosen in places.items():
        order += chosen
        parts += [_choose(way, logits, part) for part in _passes([outputs[place] for place in chosen], logits)]
    found = _collect(parts)
    token_ids = [NOT_FINITE] * len(outputs)
    for place in plain:
        token_ids[place] = found[outputs[place][0]]
    for place, token_id in zip(order, found[len(found) - len(order) :], strict=True):
        token_ids[place] = token_id
    return token_ids


def _way(state: SamplingState) -> int:
    params = state.params
    if state.greedy:
        return _BEST if state.modified else _PLAIN
    if params.top_k > 0:
        return _TOP_K if params.top_k <= MAX_LEADING_TOP_K else _WHOLE
    return _TOP_P if params.top_p < 1.0 and params.min_p == 0.0 else _WHOLE


def _choose(way: int, logits: Tensor, outputs: Sequence[RowState]) -> Tensor:
    """[len(outputs)] int64: tokens, NOT_FINITE or NOT_COVERED."""
    rows, states = [row for row, _ in outputs], [state for _, state in outputs]
    modified = any(state.modified for state in states)
    if modified or way == _WHOLE or rows != list(range(logits.shape[0])):
        logits = logits.index_select(0, device_tensor(rows, torch.int64, logits.device))
    finite = None
    if modified:
        finite = torch.isfinite(logits.amax(-1))  # before a NaN may be masked
        modify_logits(logits, states)
    if way == _BEST:
        token_ids = _best_tokens(logits)
    else:
        choose = draw if way == _WHOLE else draw_leading
        token_ids = choose(logits, [state.params for state in states], [state.next_uniform() for state in states])
    return token_ids if finite is None else torch.where(finite, token_ids, NOT_FINITE)


def _best_tokens(logits: Tensor) -> Tensor:
    """[R] int64: the best token of each row, the first where several are, or NOT_FINITE."""
    if logits.device.type == "cpu" and logits.shape[1] % _BLOCK == 0:
        # On a CPU torch compares one by one where it wants to know which, and whole vectors where it does not.
        blocks = logits.view(logits.shape[0], logits.shape[1] // _BLOCK, _BLOCK)
        best, block = blocks.amax(-1).max(-1)
        token_ids = block * _BLOCK + blocks[torch.arange(len(blocks)), block].max(-1).indices
    else:
        best, token_ids = logits.max(-1)
    return torch.where(torch.isfinite(best), token_ids, NOT_FINITE)


def _passes(outputs: Sequence[RowState], logits: Tensor) -> Iterator[Sequence[RowState]]:
    size = rows_per_pass(logits.shape[1], logits.device)
    for start in range(0, len(outputs), size):
        yield outputs[start : start + size]


def _collect(parts: Sequence[Tensor]) -> list[int]:
    token_ids: list[int] = torch.cat(list(parts)).tolist() if parts else []
    return token_ids


def _add_logprobs(result: SamplerOutput, logits: Tensor, outputs: Sequence[RowState]) -> None:
    asked = [
        place
        for place, (_, state) in enumerate(outputs)
        if state.params.logprobs is not None and place not in result.errors
    ]
    for part in _passes([outputs[place] for place in asked], logits):
        places, asked = asked[: len(part)], asked[len(part) :]
        rows = device_tensor([row for row, _ in part], torch.int64, logits.device)
        logprobs = token_logprobs(
            logits.index_select(0, rows),
            [result.token_ids[place] for place in places],
            [state.params.logprobs or 0 for _, state in part],
        )
        for place, of_token in zip(places, logprobs, strict=True):
            result.logprobs[place] = of_token


def _reason(logits: Tensor, row: int, state: SamplingState) -> str:
    """Why nothing can be drawn from a row."""
    values = logits[row]
    for name, wrong in (("NaN", values.isnan()), ("infinite", values == torch.inf)):
        count = int(wrong.sum())
        if count:
            first = int(wrong.int().argmax())
            return f"logits row {row}: {count} of {values.numel()} are {name}, the first is token {first}"
    if values.amax() == -torch.inf:
        return f"logits row {row}: all {values.numel()} are -infinity"
    if state.matcher is not None:
        return f"structured_outputs: {state.matcher.error or 'the model gives no allowed token a finite logit'}"
    return f"logits row {row}: min_tokens leaves none of {values.numel()} tokens to draw"
