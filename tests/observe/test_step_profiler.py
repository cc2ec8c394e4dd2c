"""The profiler of steps: its parts add up, it changes nothing, and it leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cudaprefill import ops
from cudaprefill.config import EngineConfig
from cudaprefill.engine.batch import Batch
from cudaprefill.engine.engine import Engine
from cudaprefill.engine.factory import EngineParts, build_engine
from cudaprefill.observe.step_profiler import OTHER, PARTS, StepProfiler
from cudaprefill.sampling_params import SamplingParams
from tests.engine.harness import make_engine, make_request
from tests.models.tiny import random_tokens, save_tiny_model
from tests.text.made_tokenizers import byte_level, write_folder


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineParts]:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, "llama")
    write_folder(folder, byte_level())
    return build_engine(EngineConfig(model=folder, device="cpu", max_num_batched_tokens=64, max_num_seqs=8))


def submit(parts: EngineParts, request_id: str, num_tokens: int, max_tokens: int) -> None:
    """A request that finds nothing in the prefix cache."""
    parts.engine.scheduler.reset_prefix_cache()
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    tokens = random_tokens(num_tokens, seed=len(request_id))
    parts.engine.submit(parts.input_processor.process_prompt(request_id, tokens, params)[0])


def run_to_end(engine: Engine) -> list[int]:
    tokens = []
    while engine.has_work():
        for delta in engine.step():
            tokens += delta.token_ids
    return tokens


def test_the_parts_of_each_step_add_up_to_it(parts: EngineParts) -> None:
    submit(parts, "a", 20, 4)
    submit(parts, "bb", 70, 3)
    with StepProfiler(parts.engine) as profiler:
        run_to_end(parts.engine)
    assert len(profiler.steps) >= 4
    for step in profiler.steps:
        assert set(step.parts) <= {*PARTS, OTHER}
        assert all(seconds >= 0 for seconds in step.parts.values())
        assert sum(step.parts.values()) == pytest.approx(step.seconds, abs=1e-9)


def test_a_step_tells_what_was_in_it(parts: EngineParts) -> None:
    submit(parts, "a", 20, 4)
    with StepProfiler(parts.engine) as profiler:
        parts.engine.step()
        submit(parts, "b", 30, 1)
        parts.engine.step()
        parts.engine.step()
    parts.engine.abort_all()
    shapes = [(step.num_decodes, step.decode_context, step.chunk_tokens) for step in profiler.steps]
    assert shapes == [(0, 0, 20), (1, 21, 30), (1, 22, 0)]
    prefill, mixed, decode = (step.parts for step in profiler.steps)
    assert "forward: attention of chunks" not in decode
    for each in (prefill, mixed):  # the last token of a prompt is all that the last layer computes of it
        assert {"forward: attention of single tokens", "forward: attention of chunks"} <= set(each)
    for each in (prefill, mixed, decode):
        assert {"schedule", "build", "forward: linear qkv", "forward: norms", "logits", "sample", "commit"} <= set(each)


def test_tokens_are_the_same_with_the_clocks_on_and_off(parts: EngineParts) -> None:
    submit(parts, "a", 40, 12)
    plain = run_to_end(parts.engine)
    submit(parts, "a", 40, 12)
    with StepProfiler(parts.engine, annotate=True):
        profiled = run_to_end(parts.engine)
    assert len(plain) == 12
    assert profiled == plain


def test_every_function_is_its_own_again_afterwards(parts: EngineParts) -> None:
    owners = (
        parts.engine,
        parts.engine.scheduler,
        parts.engine.model_runner,
        parts.engine.model_runner.model,
        parts.engine._outputs,
        Batch,
        ops,
    )
    before = [dict(vars(owner)) for owner in owners]
    with StepProfiler(parts.engine):
        assert [dict(vars(owner)) for owner in owners] != before
    after = [dict(vars(owner)) for owner in owners]
    for owner, old, new in zip(owners, before, after, strict=True):
        assert set(new) == set(old), owner
        for name in old:
            if callable(old[name]) or isinstance(old[name], classmethod):
                assert new[name] is old[name], (owner, name)


def test_a_step_without_work_is_none() -> None:
    engine = make_engine()
    with StepProfiler(engine) as profiler:
        assert engine.step() == []
    assert profiler.steps == []


def test_a_failed_step_is_not_told_and_the_next_one_is_whole() -> None:
    engine = make_engine()
    engine.submit(make_request("a", [1, 2, 3]))
    engine.model_runner.fails = RuntimeError("no forward pass")  # type: ignore[attr-defined]
    with StepProfiler(engine) as profiler:
        with pytest.raises(RuntimeError, match="no forward pass"):
            engine.step()
        engine.model_runner.fails = None  # type: ignore[attr-defined]
        engine.submit(make_request("b", [1, 2, 3]))
        engine.step()
    (step,) = profiler.steps
    assert sum(step.parts.values()) == pytest.approx(step.seconds, abs=1e-9)


def test_annotated_parts_are_named_in_a_trace_of_torch(parts: EngineParts, tmp_path: Path) -> None:
    submit(parts, "a", 20, 2)
    with torch.profiler.profile() as trace, StepProfiler(parts.engine, annotate=True):
        run_to_end(parts.engine)
    names = {event.key for event in trace.key_averages()}
    assert {"schedule", "forward: linear qkv", "logits", "sample"} <= names
