"""Equal work, equal result, with activations of 8 and 16 bits.

Products of weights give a row the same bits in any company, but attention of one query and of many do not add in the
same order. A difference in the last place may round an activation to the next of its values, so logits of the same
context agree to within a fraction of what the rounding itself changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from torch import Tensor

from cudaprefill import ops
from cudaprefill.engine.factory import resolve_kv_cache_dtype
from cudaprefill.models import Decoder, load_model
from tests.engine.test_equality import PROMPTS, Run, run
from tests.models.gguf_files import write_gguf
from tests.models.tiny import tiny_model


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("blocks") / "model.gguf"
    kinds = {"": gguf.GGMLQuantizationType.Q4_1, "attn_v": gguf.GGMLQuantizationType.Q8_0}
    write_gguf(path, tiny_model("llama", intermediate_size=128), kinds)
    return path


@pytest.fixture(scope="module", params=["int8", "int16"])
def model(request: pytest.FixtureRequest, file: Path) -> Decoder:
    return load_model(file, linear_math=request.param)


def by_context(run: Run) -> dict[tuple[int, ...], Tensor]:
    return dict(run.sampler.seen)


def largest_difference(one: Run, other: Run) -> float:
    """Between the logits of all contexts that both have met: the prompts at least."""
    ours, theirs = by_context(one), by_context(other)
    common = ours.keys() & theirs.keys()
    assert {tuple(prompt) for prompt in PROMPTS} <= common
    return max(float((ours[context] - theirs[context]).abs().max()) for context in common)


@pytest.fixture(scope="module")
def one_shot(model: Decoder) -> Run:
    return run(model, num_blocks=64, budget=512, caching=False)


@pytest.fixture(scope="module")
def rounding(file: Path, one_shot: Run) -> float:
    """What the rounding of activations changes in the logits."""
    exact = load_model(file, linear_math="float32")
    return largest_difference(one_shot, run(exact, num_blocks=64, budget=512, caching=False))


def test_the_cache_has_16_bits_where_activations_are_rounded(model: Decoder, file: Path) -> None:
    exact = load_model(file, linear_math="float32")
    of_int16 = torch.float32 if ops.cpu_isa() == "plain" else torch.float16
    assert resolve_kv_cache_dtype("auto", model) == {"int8": torch.bfloat16, "int16": of_int16}[model.linear_math]
    assert resolve_kv_cache_dtype("auto", exact) == torch.float32
    assert resolve_kv_cache_dtype("float32", model) == torch.float32
    assert resolve_kv_cache_dtype("float16", exact) == torch.float16


def test_the_rounding_shows_and_is_small(model: Decoder, one_shot: Run, rounding: float) -> None:
    spread = float(torch.stack([logits for _, logits in one_shot.sampler.seen]).std())
    assert 0 < rounding < spread * {"int8": 0.25, "int16": 0.002}[model.linear_math]


@pytest.mark.parametrize(
    "setting",
    [
        {"num_blocks": 64, "budget": 1, "caching": False},
        {"num_blocks": 64, "budget": 17, "caching": False},
        {"num_blocks": 64, "budget": 64, "caching": False},
        {"num_blocks": 64, "budget": 24, "caching": True, "rounds": 2},
    ],
    ids=["token by token", "chunks of 17", "chunks of 64", "cached"],
)
def test_no_schedule_changes_the_logits(
    model: Decoder, one_shot: Run, rounding: float, setting: dict[str, Any]
) -> None:
    assert largest_difference(run(model, **setting), one_shot) < rounding / 2


def test_preemption_does_not_change_the_logits(model: Decoder, one_shot: Run, rounding: float) -> None:
    preempted = run(model, num_blocks=12, budget=40, caching=True)
    assert sum(request.num_preemptions for request in preempted.requests) > 0
    assert largest_difference(preempted, one_shot) < rounding / 2
