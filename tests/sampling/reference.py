"""What sampling means, one row at a time in float64, written without a thought for speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from cudaprefill.engine.sampling_state import SamplingState
from cudaprefill.sampling_params import SamplingParams

Row = npt.NDArray[np.float64]


def modified(
    logits: npt.ArrayLike,
    params: SamplingParams,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    eos: Sequence[int] = (),
) -> Row:
    """Logits after min_tokens, logit_bias and the penalties."""
    row = np.array(logits, np.float64)
    if len(output) < params.min_tokens:
        for token in {*(() if params.ignore_eos else eos), *(params.stop_token_ids or ())}:
            row[token] = -np.inf
    for token, bias in (params.logit_bias or {}).items():
        row[token] += bias
    for token in {*prompt, *output}:
        row[token] = (
            row[token] / params.repetition_penalty if row[token] > 0 else row[token] * params.repetition_penalty
        )
    for token in set(output):
        row[token] -= params.frequency_penalty * list(output).count(token)
        row[token] -= params.presence_penalty
    return row


def scaled(row: Row, params: SamplingParams) -> Row:
    return (row - row.max()) / params.temperature


def kept(scaled: Row, params: SamplingParams) -> npt.NDArray[np.bool_]:
    """Which tokens the filters keep."""
    mass = np.exp(scaled)
    keep = mass >= params.min_p * mass.max()
    if 0 < params.top_k < len(scaled):
        keep &= scaled >= sorted(scaled, reverse=True)[params.top_k - 1]
    total = mass[keep].sum()
    more_likely = np.array([mass[keep & (scaled > value)].sum() for value in scaled])
    if params.top_p < 1.0:
        keep &= more_likely < params.top_p * total
    return keep


def probabilities(row: Row, params: SamplingParams) -> Row:
    """Of each token, after temperature and filters."""
    values = scaled(row, params)
    mass = np.where(kept(values, params), np.exp(values), 0.0)
    return mass / mass.sum()


class FedState(SamplingState):
    """Draws with given uniforms, one after the other, so that many draws can be made of one row at once."""

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], output: list[int], uniforms: Iterable[float]
    ) -> None:
        super().__init__(params, prompt, output)
        self._uniforms = iter(uniforms)

    def next_uniform(self) -> float:
        return next(self._uniforms)
