"""LoRA with the emulated CUDA kernels under a tiny model in float32, and beside captured graphs."""

from __future__ import annotations

import pytest

pytest.importorskip("peft")

from cudaprefill.engine.cuda_graphs import DecodeGraphRunner
from tests.adapters.case import Case, ask_all, make_case
from tests.adapters.lora_adapters import CONFIGS
from tests.adapters.recording import RecordingEngine, assert_equal_logits
from tests.cuda.backends import backend_of_ops
from tests.cuda.tape import Tape

NAMES = ("seven", "q and v", "many ranks")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("qwen3"), "qwen3", {name: CONFIGS[name] for name in NAMES})


def test_several_adapters_and_the_base_in_one_batch(case: Case) -> None:
    with backend_of_ops("emulated"):
        engine = case.engine(budget=48)
        ask_all(engine)
        engine.run()
    assert_equal_logits(engine, case.expected)


def with_graphs(case: Case) -> RecordingEngine:
    """An engine whose decode steps replay tapes, which know nothing of adapters."""
    engine = case.engine()
    runner = engine.model_runner
    engine.model_runner = DecodeGraphRunner(
        case.model, runner.kv_cache, engine.limits.max_num_seqs, engine.limits.max_model_len, Tape.capture
    )
    return engine


def test_steps_with_adapters_are_left_out_of_the_graphs(case: Case) -> None:
    engine = with_graphs(case)
    ask_all(engine)
    engine.run()
    engine.ask("base alone", [5, 6, 7])
    engine.run()
    assert_equal_logits(engine, case.expected)
