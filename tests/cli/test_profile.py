"""`cudaprefill profile` on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cudaprefill.cli.main import main
from cudaprefill.cli.profile import middle_half
from cudaprefill.observe.step_profiler import OP_PARTS, ProfiledStep
from tests.models.tiny import save_tiny_model
from tests.ops.op_calls import OPS
from tests.text.made_tokenizers import byte_level, write_folder


def made_model(folder: Path, family: str) -> str:
    save_tiny_model(folder, family)
    write_folder(folder, byte_level())
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return made_model(tmp_path_factory.mktemp("tiny"), "llama")


def flags(model: str, *more: str) -> list[str]:
    small = ["--streams", "3", "--context", "40", "--prefill-tokens", "30", "--steps", "4", "--kv-cache-memory", "4MiB"]
    return ["profile", "--model", model, "--device", "cpu", *small, *more]


def test_each_kind_of_step_is_profiled_as_asked(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(model, "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["engine"]["family"] == "llama"
    decodes, prefill, mixed = told["profiles"]
    assert decodes["shape"] == {"name": "decodes", "num_decodes": 3, "context": 40, "chunk_tokens": 0}
    assert prefill["shape"] == {"name": "prefill", "num_decodes": 0, "context": 0, "chunk_tokens": 30}
    assert mixed["shape"] == {"name": "mixed", "num_decodes": 3, "context": 40, "chunk_tokens": 30}
    for profile in told["profiles"]:
        assert profile["num_steps"] == 4
        assert sum(profile["parts"].values()) == pytest.approx(profile["seconds"])
        assert profile["seconds_without_clocks"] > 0
    assert "forward: attention of chunks" not in decodes["parts"]
    assert {"forward: attention of chunks"} <= set(prefill["parts"]) & set(mixed["parts"])


def test_experts_and_their_router_have_parts_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(made_model(tmp_path, "mixtral"), "--json")) == 0
    for profile in json.loads(capsys.readouterr().out)["profiles"]:
        parts = {name.removeprefix("forward: ") for name in profile["parts"]}
        assert {"experts", "linear router", "linear qkv", "linear o"} <= parts
        assert not {"gate, up and activation", "linear down"} & parts


def test_every_op_of_a_step_has_a_part() -> None:
    products = {"linear", "linear_blocks", "gated_linear", "gated_linear_blocks"}  # their parts are the matrices
    matrices_and_loading = products | {"dequantise_rows", "group_blocks"}
    assert set(OPS) - matrices_and_loading == set(OP_PARTS)


def test_the_table_has_a_line_a_part_with_its_share(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(model)) == 0
    tables = capsys.readouterr().out.split("\n\n")
    heads = [table.splitlines()[0] for table in tables]
    assert heads == [
        "decodes: 3 at a context of 40",
        "prefill: 30 tokens of a prompt",
        "mixed: 3 at a context of 40 and 30 tokens of a prompt",
    ]
    for table in tables:
        lines = {" ".join(line.split()[:-3]): float(line.split()[-1][:-1]) for line in table.splitlines()[1:-1]}
        inner = ("embedding", "linear", "norms", "rope", "attention", "gate, up", "block copies", "between")
        outer = [share for name, share in lines.items() if name != "the step" and not name.startswith(inner)]
        assert {"schedule", "build", "forward", "logits", "sample", "commit", "text", "other"} <= set(lines)
        assert sum(outer) == pytest.approx(100.0, abs=0.05 * len(outer))


def test_a_trace_of_torch_has_the_steps_and_their_parts(model: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert main(flags(model, "--torch-trace", str(path))) == 0
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert {"mixed: 3 at a context of 40 and 30 tokens of a prompt", "forward: linear down", "sample"} <= names


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--context", "250"], "context; the engine has 256"),
        (["--max-num-batched-tokens", "32", "--max-num-seqs", "4"], "step of 33 tokens does not fit into"),
        (["--max-num-seqs", "3"], "--streams 3 and a prompt exceed --max-num-seqs 3"),
        (["--kv-cache-memory", "128KiB"], "KV slots; the cache has"),
        (["--itl-target-ms", "0.001"], "3 decodes and 30 tokens of a prompt, the scheduler made one of 3 and 16"),
    ],
)
def test_steps_that_the_engine_cannot_take_are_refused(
    model: str, more: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags(model, *more)) == 1
    assert reason in capsys.readouterr().err


def test_the_middle_half_leaves_out_the_extremes() -> None:
    steps = [ProfiledStep(1, 10, 0, seconds, {}) for seconds in (9.0, 3.0, 1.0, 2.0, 4.0, 0.5, 5.0, 6.0)]
    assert [step.seconds for step in middle_half(steps)] == [2.0, 3.0, 4.0, 5.0]
    assert middle_half(steps[:1]) == steps[:1]
