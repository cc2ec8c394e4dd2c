"""Traces and explanations of whole engines: what is recorded is what clients were told."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from cudaprefill import LLM, AsyncEngine, SamplingParams
from cudaprefill.observe.events import RequestEventKind
from cudaprefill.observe.trace import read_trace
from cudaprefill.tune.figures import recorded_run
from tests.models.tiny import save_tiny_model

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SMALL: dict[str, Any] = {"kv_cache_memory": 2**20, "max_num_batched_tokens": 32, "max_num_seqs": 8}
PROMPTS = [[5 + place % 50 for place in range(length)] for length in (3, 40, 70)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer of letters."""
    folder = tmp_path_factory.mktemp("model")
    save_tiny_model(folder, "llama")
    vocab = {chr(ord("A") + token_id): token_id for token_id in range(50)}
    (folder / "tokenizer.json").write_text(Tokenizer(models.BPE(vocab=vocab, merges=[])).to_str())
    return folder


def test_the_trace_of_an_llm_has_the_ttfts_that_its_outputs_have(model: Path, tmp_path: Path) -> None:
    with LLM(model, trace=tmp_path / "trace", **SMALL) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
    trace = read_trace(tmp_path / "trace")
    assert (trace.num_dropped, trace.num_unreadable) == (0, 0)
    assert trace.header.scheduler["max_num_batched_tokens"] == 32
    arrived = {event.request_id: event.time for event in trace.request_events if event.kind is RequestEventKind.ARRIVED}
    for event in trace.request_events:
        if event.kind is RequestEventKind.FIRST_TOKEN:
            (output,) = [output for output in outputs if output.request_id == event.request_id]
            assert event.time - arrived[event.request_id] == pytest.approx(output.metrics.ttft, abs=2e-6)
    assert len(recorded_run(trace.events).itls) == 3 * 5


def test_an_explanation_adds_up_to_the_ttft_that_the_output_has(model: Path) -> None:
    with LLM(model, keep_requests=True, **SMALL) as llm:
        for output in llm.generate(PROMPTS, PARAMS):
            account = llm.explain(output.request_id, itl_limit=0.001)
            assert account.ttft == output.metrics.ttft
            told = sum(part.duration for part in account.parts if part.kind != "delivering")
            assert told == pytest.approx(account.ttft, abs=1e-9)
            assert account.prefix is not None
        with pytest.raises(KeyError, match="nobody"):
            llm.explain("nobody")


def test_without_keeping_requests_there_is_nothing_to_explain(model: Path) -> None:
    with LLM(model, **SMALL) as llm, pytest.raises(ValueError, match="keep_requests=True"):
        llm.explain("request-0")


def test_an_async_engine_is_traced_to_its_end(model: Path, tmp_path: Path) -> None:
    async def run() -> None:
        async with await AsyncEngine.load(model, trace=tmp_path / "trace", **SMALL) as engine:
            streams = [await engine.generate(prompt, PARAMS) for prompt in PROMPTS]
            await asyncio.gather(*(stream.wait() for stream in streams))

    asyncio.run(run())
    trace = read_trace(tmp_path / "trace")
    finished = [event for event in trace.request_events if event.kind is RequestEventKind.FINISHED]
    assert [event.num_output_tokens for event in finished] == [6, 6, 6]


def test_a_trace_that_cannot_be_written_is_an_error_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        LLM(tmp_path / "no model", trace=tmp_path / "nowhere" / "trace")
    assert error.value.errno == errno.ENOENT
    assert "nowhere" in str(error.value)


def test_a_disk_that_is_full_from_the_start_is_an_error_at_once(model: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        LLM(model, trace="/dev/full", **SMALL)


def test_a_trace_that_fails_later_leaves_the_engine_alone(model: Path, tmp_path: Path) -> None:
    with LLM(model, trace=tmp_path / "trace", **SMALL) as llm:
        llm._trace._file.close()
        llm._trace._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115  (closed by the trace)
        outputs = llm.generate(PROMPTS, PARAMS)
        assert [len(output.outputs[0].token_ids) for output in outputs] == [6, 6, 6]
    assert llm._trace.num_dropped > 0
    assert llm._trace.error.errno == errno.ENOSPC
