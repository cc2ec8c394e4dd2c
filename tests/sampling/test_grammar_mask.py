"""What a grammar forbids is never chosen, and the choice among the rest is that of any other masked row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudaprefill.engine.penalties import bits_on_device, bits_on_host
from cudaprefill.engine.sampler import Sampler
from cudaprefill.engine.sampling_state import SamplingState
from cudaprefill.sampling_params import SamplingParams
from tests.sampling.reference import FedState

VOCAB_SIZE = 77  # no multiple of the 32 bits of a word
KINDS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"top_p": 0.5},
    {"top_p": 1e-8},
    {"top_k": 5},
    {"top_k": 70},
    {"min_p": 0.2},
    {"temperature": 5.0, "repetition_penalty": 1.5, "logit_bias": {3: 100.0, 5: -100.0}},
    {"top_k": 3, "top_p": 0.9, "min_p": 0.01},
]


class Allows:
    """A matcher that allows the same tokens always."""

    def __init__(self, token_ids: Sequence[int], error: str | None = None) -> None:
        bits = np.zeros(96, np.uint8)
        bits[list(token_ids)] = 1
        self.token_ids = set(token_ids)
        self.mask = np.packbits(bits, bitorder="little").view(np.int32)
        self.error = error

    def allowed(self, output_token_ids: Sequence[int]) -> np.ndarray:
        return self.mask

    def allows_others(self, output_token_ids: Sequence[int], token_ids: Sequence[int]) -> bool:
        return bool(self.token_ids - set(token_ids))


def guided(state: SamplingState, token_ids: Sequence[int], error: str | None = None) -> SamplingState:
    state.matcher = Allows(token_ids, error)  # type: ignore[assignment]
    return state


def random_logits(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 4


@given(
    seed=st.integers(0, 2**32),
    allowed=st.lists(st.sets(st.integers(0, VOCAB_SIZE - 1), min_size=1), min_size=len(KINDS), max_size=len(KINDS)),
)
def test_the_choice_is_that_of_logits_masked_beforehand(seed: int, allowed: list[set[int]]) -> None:
    logits = random_logits(len(KINDS), seed)
    masked = torch.full_like(logits, -torch.inf)
    for row, token_ids in enumerate(allowed):
        masked[row, list(token_ids)] = logits[row, list(token_ids)]

    def state(row: int) -> SamplingState:
        return SamplingState(SamplingParams(seed=seed, **KINDS[row]), [1, 2], [3])

    rows = range(len(KINDS))
    output = Sampler().sample(logits, [(row, guided(state(row), list(allowed[row]))) for row in rows])
    assert not output.errors
    assert all(token_id in allowed[row] for row, token_id in enumerate(output.token_ids))
    assert output.token_ids == Sampler().sample(masked, [(row, state(row)) for row in rows]).token_ids


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=3, max_size=3), min_size=1, max_size=4))
def test_bits_are_the_same_wherever_they_are_unpacked(words: list[list[int]]) -> None:
    array = np.array(words, np.int32)
    expected = [[word >> bit & 1 for word in row for bit in range(32)] for row in words]
    assert bits_on_host(array).tolist() == expected
    assert bits_on_device(array, torch.device("cpu")).tolist() == expected


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_a_forbidden_token_is_never_drawn_in_many_draws(kind: int) -> None:
    allowed = [3, 5, 31, 32, 64, 76]
    uniforms = np.linspace(0, 1, 20_000, endpoint=False)
    states = [FedState(SamplingParams(**KINDS[kind]), [1, 2], [3], [u, u]) for u in uniforms]
    output = Sampler().sample(random_logits(1, kind), [(0, guided(state, allowed)) for state in states])
    assert set(output.token_ids) <= set(allowed)


def test_rows_without_a_grammar_choose_as_if_there_were_none() -> None:
    logits = random_logits(2 * len(KINDS), 0)
    states = [SamplingState(SamplingParams(seed=row, **kind), [1, 2], [3]) for row, kind in enumerate(KINDS)]
    alone = Sampler().sample(logits, list(enumerate(states))).token_ids
    beside = [
        (len(KINDS) + row, guided(SamplingState(SamplingParams(seed=row, **kind), [], []), [row]))
        for row, kind in enumerate(KINDS)
    ]
    together = Sampler().sample(logits, [*enumerate(states), *beside]).token_ids
    assert together == alone + list(range(len(KINDS)))


def test_min_tokens_holds_back_eos_only_while_the_grammar_allows_another_token() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[:, 2] = 9.0
    params = SamplingParams(temperature=0, min_tokens=4, max_tokens=8)
    states = [guided(SamplingState(params, [1], [3], [2]), allowed) for allowed in ([2, 7], [2])]
    assert Sampler().sample(logits, list(enumerate(states))).token_ids == [7, 2]


@pytest.mark.parametrize("kind", KINDS[:4])
def test_what_goes_wrong_with_a_grammar_is_its_own_output_s_error(kind: dict[str, float]) -> None:
    params = SamplingParams(seed=0, **kind)  # type: ignore[arg-type]
    states = [
        SamplingState(params, [], []),
        guided(SamplingState(params, [], []), [], error="it broke"),
        guided(SamplingState(params, [], []), [4]),
        guided(SamplingState(params, [], []), [6]),
    ]
    logits = random_logits(4, 1)
    logits[3, 6] = -torch.inf
    output = Sampler().sample(logits, list(enumerate(states)))
    assert output.errors == {
        1: "structured_outputs: it broke",
        3: "structured_outputs: the model gives no allowed token a finite logit",
    }
    assert output.token_ids[0] >= 0
    assert output.token_ids[2] == 4
