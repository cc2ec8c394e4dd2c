"""How an engine comes together on a GPU, where there is none: on torch's meta device, whose tensors have no memory.

Every op runs as far as its checks and its shapes; what asks the device itself is a stand-in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from cudaprefill.config import EngineConfig
from cudaprefill.engine import factory
from cudaprefill.engine.batch import Batch
from cudaprefill.engine.cuda_graphs import DecodeGraphRunner, graph_sizes
from cudaprefill.engine.factory import EngineParts, build_engine
from cudaprefill.engine.model_runner import ModelRunner
from cudaprefill.engine.virtual_rows import with_virtual_rows
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.text.tokenizer import Tokenizer
from tests.adapters.by_hand import write_prefix_adapter, write_prompt_adapter
from tests.cuda.tape import Tape
from tests.engine.harness import letters
from tests.models.tiny import save_tiny_model

NUM_BLOCKS = 40
TOTAL = 2**30


class Recorder:
    """What was run and captured, with the number of rows of each forward pass."""

    def __init__(self) -> None:
        self.captured: list[int] = []
        self.measured: list[str] = []

    def capture(self, function: Callable[[], Tensor]) -> Tape:
        tape = Tape.capture(function)
        self.captured.append(tape.output.shape[0])
        return tape


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()

    def blocks(
        block_bytes: int,
        share: float,
        device: torch.device,
        run_largest_step: Callable[[], None],
        capture_graphs: Callable[[], object] | None,
    ) -> int:
        run_largest_step()
        recorder.measured.append("step")
        if capture_graphs is not None:
            capture_graphs()
            recorder.measured.append("graphs")
        return NUM_BLOCKS

    class Graphs:
        def __init__(self, device: torch.device) -> None:
            self.capture = recorder.capture

    monkeypatch.setattr(factory, "resolve_device", lambda name: torch.device("meta"))
    monkeypatch.setitem(factory.TOKEN_BUDGET, "meta", factory.TOKEN_BUDGET["cuda"])
    monkeypatch.setitem(factory.DEFAULT_ITL_TARGET, "meta", factory.DEFAULT_ITL_TARGET["cuda"])
    monkeypatch.setattr(factory, "blocks_for_gpu", blocks)
    monkeypatch.setattr(factory, "CudaGraphs", Graphs)
    monkeypatch.setattr(Tokenizer, "load", staticmethod(lambda path: letters()))
    return recorder


def build(folder: Path, **settings: object) -> EngineParts:
    save_tiny_model(folder, "qwen3")
    return build_engine(EngineConfig(model=folder, **settings))  # type: ignore[arg-type]


def test_graphs_are_captured_once_to_be_measured_and_once_to_be_kept(tmp_path: Path, recorder: Recorder) -> None:
    parts = build(tmp_path, max_num_seqs=11)
    assert recorder.measured == ["step", "graphs"]
    sizes = list(reversed(graph_sizes(11)))
    assert recorder.captured == sizes + sizes
    runner = parts.engine.model_runner
    assert isinstance(runner, DecodeGraphRunner)
    assert runner.kv_cache.data.device.type == "meta"
    assert runner.kv_cache.num_blocks == parts.info.num_blocks == NUM_BLOCKS
    assert parts.engine.scheduler.config.num_blocks == NUM_BLOCKS
    assert (parts.info.kernels, parts.info.max_num_batched_tokens) == ("cuda", 8192)


def test_eager_engines_neither_capture_nor_leave_room_for_graphs(tmp_path: Path, recorder: Recorder) -> None:
    parts = build(tmp_path, enforce_eager=True, max_num_batched_tokens=64)
    assert recorder.measured == ["step"]
    assert recorder.captured == []
    assert type(parts.engine.model_runner) is ModelRunner


def test_measured_graphs_are_as_large_as_the_kept_ones(tmp_path: Path, recorder: Recorder) -> None:
    """Their inputs are as wide as the longest context needs, though the KV cache that they see is one block."""
    widths: list[tuple[int, ...]] = []
    capture = recorder.capture

    def noting_inputs(function: Callable[[], Tensor]) -> Tape:
        widths.append(tuple(function.batch.block_table.shape))  # type: ignore[attr-defined]
        return capture(function)

    recorder.capture = noting_inputs  # type: ignore[method-assign]
    build(tmp_path, max_num_seqs=4)
    half = len(widths) // 2
    assert widths[:half] == widths[half:] == [(4, 16), (2, 16), (1, 16)]


def test_adapters_lie_on_the_device_and_fit_what_they_are_written_into(tmp_path: Path, recorder: Recorder) -> None:
    adapters = {"prompt": write_prompt_adapter(tmp_path / "p"), "prefix": write_prefix_adapter(tmp_path / "q")}
    parts = build(tmp_path, adapters=adapters, kv_cache_dtype="float16")
    scheduler, meta = parts.engine.scheduler, torch.device("meta")
    for name in adapters:
        request, _ = parts.input_processor.process_prompt(name, [1, 2, 3], SamplingParams(), adapter=name)
        scheduler.add(request)
    schedule = scheduler.schedule()
    assert schedule is not None
    on_host = vars(Batch.from_arrays(scheduler.build(schedule), torch.device("cpu")))
    moved = {name: each.to(meta) if isinstance(each, Tensor) else each for name, each in on_host.items()}
    batch = with_virtual_rows(Batch(**moved), schedule)
    assert batch.embedded is not None
    assert batch.embedded.values.shape == (20, 96)
    (given,) = batch.given_kv
    assert (given.keys_values.dtype, given.keys_values.device, len(given.slots)) == (torch.float16, meta, 20)
    assert parts.engine.model_runner.run(batch).shape == (2, parts.input_processor.vocab_size)
