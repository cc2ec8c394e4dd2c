"""What changes the logits of a row before anything is drawn: grammars, min_tokens, logit_bias and the penalties.

All but the first touch few logits of a row, so they are gathered into flat lists over the batch, changed and put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from cudaprefill.engine.device_tensor import device_tensor

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from cudaprefill.engine.sampling_state import SamplingState


class TokenCounts:
    """The distinct tokens of a prompt and its output, and how often the output has each.

    Kept as arrays that grow, so that a step adds its token and copies nothing.
    """

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        distinct = list(dict.fromkeys(prompt_token_ids))
        self._place = {token_id: place for place, token_id in enumerate(distinct)}
        capacity = max(64, 2 * len(distinct))
        self._token_ids = np.zeros(capacity, np.int64)
        self._token_ids[: len(distinct)] = distinct
        self._counts = np.zeros(capacity, np.float32)
        self._num_counted = 0  # output tokens counted so far

    def update(self, output_token_ids: Sequence[int]) -> None:
        """Counts what the output has got since the last call."""
        for position in range(self._num_counted, len(output_token_ids)):
            token_id = output_token_ids[position]
            place = self._place.setdefault(token_id, len(self._place))
            if place == len(self._token_ids):
                self._token_ids = np.concatenate([self._token_ids, np.zeros_like(self._token_ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._token_ids[place] = token_id
            self._counts[place] += 1.0
        self._num_counted = len(output_token_ids)

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """[number of distinct tokens]"""
        return self._token_ids[: len(self._place)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """[number of distinct tokens]: occurrences in the output, 0 for tokens of the prompt alone"""
        return self._counts[: len(self._place)]


def modify_logits(logits: Tensor, states: Sequence[SamplingState]) -> None:
    """Changes logits [R, V] in place, row i as states[i] asks.

    What its grammar and min_tokens forbid becomes -infinity; then come logit_bias and the penalties.

    A logit above 0 is divided by the repetition penalty, one below is multiplied, once for each distinct token of
    prompt and output; then come frequency_penalty times the count in the output, and presence_penalty once.
    """
    _mask_by_grammar(logits, states)
    _mask_stop_tokens(logits, states)
    _add_bias(logits, states)
    _penalize(logits, states)


def _mask_by_grammar(logits: Tensor, states: Sequence[SamplingState]) -> None:
    guided = [(row, state.matcher, state) for row, state in enumerate(states) if state.matcher is not None]
    if not guided:
        return
    words = np.stack([matcher.allowed(state.output_token_ids) for _, matcher, state in guided])
    bits = bits_on_host(words) if logits.device.type == "cpu" else bits_on_device(words, logits.device)
    forbidden = bits[:, : logits.shape[1]] == 0
    if len(guided) == len(states):
        logits.masked_fill_(forbidden, -torch.inf)
    else:
        rows = device_tensor([row for row, _, _ in guided], torch.int64, logits.device)
        logits[rows] = logits[rows].masked_fill_(forbidden, -torch.inf)


def bits_on_host(words: npt.NDArray[np.int32]) -> Tensor:
    """[R, W] -> [R, 32 W]: the bits of each word, the lowest first."""
    return torch.from_numpy(np.unpackbits(words.view(np.uint8), axis=1, bitorder="little"))


def bits_on_device(words: npt.NDArray[np.int32], device: torch.device) -> Tensor:
    """The same, unpacked on the device, to which only the words travel."""
    shifts = torch.arange(32, dtype=torch.int32, device=device)
    return (device_tensor(words, torch.int32, device)[:, :, None] >> shifts & 1).flatten(1)


def _mask_stop_tokens(logits: Tensor, states: Sequence[SamplingState]) -> None:
    masked = [state.masked_stop_tokens for state in states]
    if any(masked):
        places = _places([np.asarray(token_ids, np.int64) for token_ids in masked], logits)
        logits[places] = -torch.inf


def _add_bias(logits: Tensor, states: Sequence[SamplingState]) -> None:
    biases = [state.params.logit_bias or {} for state in states]
    if any(biases):
        places = _places([np.fromiter(bias, np.int64, len(bias)) for bias in biases], logits)
        values = np.fromiter((value for bias in biases for value in bias.values()), np.float32)
        logits[places] += device_tensor(values, torch.float32, logits.device)


def _penalize(logits: Tensor, states: Sequence[SamplingState]) -> None:
    counted = [(row, state.params, state.token_counts()) for row, state in enumerate(states) if state.penalized]
    if not counted:
        return
    token_ids: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(states)
    for row, _, tokens in counted:
        token_ids[row] = tokens.token_ids
    places = _places(token_ids, logits)
    lengths = [len(tokens.token_ids) for _, _, tokens in counted]
    penalties = np.array(
        [(params.repetition_penalty, params.frequency_penalty, params.presence_penalty) for _, params, _ in counted],
        np.float32,
    )
    repetition, frequency, presence = device_tensor(penalties.repeat(lengths, axis=0).T, torch.float32, logits.device)
    counts = device_tensor(np.concatenate([tokens.counts for _, _, tokens in counted]), torch.float32, logits.device)
    values = logits[places]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * counts + presence * (counts > 0)
    logits[places] = values


def _places(token_ids: Sequence[npt.NDArray[np.int64]], logits: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (row, token) of token_ids[i] in row i, one after the other."""
    rows = np.repeat(np.arange(len(token_ids)), [len(ids) for ids in token_ids])
    columns = np.concatenate(token_ids)
    return device_tensor(rows, torch.int64, logits.device), device_tensor(columns, torch.int64, logits.device)
