"""The engine's equality tests with the emulated CUDA kernels under a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from cudaprefill.models import load_model
from tests.cuda.backends import backend_of_ops, emulation
from tests.engine.test_equality import PROMPTS, assert_equals_reference, run
from tests.models.tiny import save_tiny_model


@pytest.fixture(scope="module")
def model_and_reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple]:
    """A model that norms its q and k heads, so that every kernel has work."""
    folder: Path = tmp_path_factory.mktemp("qwen3")
    reference = save_tiny_model(folder, "qwen3")
    with backend_of_ops("emulated"):
        yield load_model(folder), reference


@pytest.fixture(autouse=True)
def kernels_run() -> Iterator[None]:
    """Fails a test in which the kernels were not what ran."""
    emulation().reset_counters()
    yield
    assert emulation().counters()["launches"] > 100


def test_one_shot(model_and_reference):
    model, reference = model_and_reference
    assert_equals_reference(reference, run(model, num_blocks=64, budget=512, caching=False))


@pytest.mark.parametrize("budget", [7, 17])
def test_chunked(model_and_reference, budget):
    model, reference = model_and_reference
    assert_equals_reference(reference, run(model, num_blocks=64, budget=budget, caching=False))


def test_cached(model_and_reference):
    model, reference = model_and_reference
    cached = run(model, num_blocks=64, budget=24, caching=True, rounds=2)
    assert_equals_reference(reference, cached)
    assert all(request.num_hit_tokens >= 32 for request in cached.requests[len(PROMPTS) :])


def test_preempted(model_and_reference):
    model, reference = model_and_reference
    preempted = run(model, num_blocks=12, budget=40, caching=True)
    assert_equals_reference(reference, preempted)
    assert sum(request.num_preemptions for request in preempted.requests) > 0
