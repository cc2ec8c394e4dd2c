"""The commands as a person runs them, each in a process of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cudaprefill import EngineDeadError, QueueFullError
from cudaprefill.cli.main import main
from tests.adapters.by_hand import write_prompt_adapter

COMMAND = [sys.executable, "-m", "cudaprefill.cli.main"]
PATIENCE = 120  # seconds that a start may take on a busy machine
SMALL = ["--kv-cache-memory", "64MiB"]


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=PATIENCE)


def test_chat_answers_lines_of_standard_input_and_reports_figures_on_standard_error() -> None:
    done = run("chat", stdin="What is the capital of France?\nAnd of Italy?\n")
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert answers[0] == "The capital of France is Paris."
    assert "Rome" in answers[1]
    report = done.stderr.splitlines()[-1]
    figures = re.search(r"2 answers · \d+ tokens · TTFT p50 .* · ITL p50 .* · prefix hit (\d+) of (\d+)", report)
    assert figures, report
    assert int(figures[1]) >= 16  # the second turn finds the first one in the prefix cache


def test_generate_prints_text_or_json() -> None:
    done = run("generate", "--json", "--max-tokens", "4", "--n", "2", *SMALL, "The sky is", "2 + 2 =")
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["prompt"], second["prompt"]) == ("The sky is", "2 + 2 =")
    assert [len(output["token_ids"]) for output in first["outputs"]] == [4, 4]
    assert first["ttft_s"] > 0


def test_generate_with_an_adapter(tmp_path: Path) -> None:
    """Eight prompts more than fit into one batch of two: the later ones find its virtual tokens."""
    folder = write_prompt_adapter(tmp_path / "tuned", 64, hidden_size=576, num_layers=30)
    more = ["--max-num-seqs", "2", "--max-tokens", "1", *SMALL]
    done = run("generate", "--json", "--adapter", f"tuned={folder}", *more, *[f"{number} is" for number in range(10)])
    assert done.returncode == 0, done.stderr
    outputs = [json.loads(line) for line in done.stdout.splitlines()]
    assert {output["num_virtual_tokens"] for output in outputs} == {64}
    assert [output["num_cached_virtual_tokens"] for output in outputs][2:] == [64] * 8


def test_adapters_that_cannot_be_had_are_named() -> None:
    for flags, reason in (
        (["--adapter", "x"], "--adapter must be NAME=DIR, got 'x'"),
        (["--adapter", "x=a", "--adapter", "x=b"], "--adapter x is given twice: a and b"),
        (["--adapter", "x=/nowhere"], "adapter 'x': /nowhere is not a folder"),
    ):
        done = run("generate", *flags, *SMALL, "x")
        assert done.returncode == 1
        assert reason in done.stderr


def test_info_says_blocks_tokens_and_concurrency() -> None:
    done = run("info", "--json", "--max-model-len", "1K", *SMALL)
    info = json.loads(done.stdout)
    assert info["num_parameters"] == 134_515_008
    assert info["num_blocks"] == 64 * 2**20 // info["block_bytes"]
    assert info["max_model_len"] == 1024
    assert "blocks of 16" in run("info", *SMALL).stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--model", "/nowhere"], "/nowhere"),
        (["--max-model-len", "9000"], "max_model_len is 9000, but the model was made for 8192"),
        (["--kv-cache-memory", "1KiB"], "kv_cache_memory is 1.0 KiB, but one block takes"),
        (["--max-num-batched-tokens", "8", "--max-num-seqs", "9"], "max_num_batched_tokens"),
        (["--device", "cuda:0"], "CUDA"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(arguments: list[str], reason: str) -> None:
    if arguments[0] == "--device":
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("a GPU is here, so asking for it is no mistake")
    done = run("info", *arguments)
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_line_that_cannot_be_answered_is_told_and_the_next_one_is_answered() -> None:
    stdin = b"What is the capital of France?\nnot \xff UTF-8\n" + b"too long " * 200 + b"\r\nAnd of Italy?"
    done = subprocess.run(
        [*COMMAND, "chat", "--max-model-len", "128", "--max-tokens", "9", *SMALL], input=stdin, capture_output=True
    )
    assert done.returncode == 1
    assert done.stdout.count(b"\n") == 2
    assert b"lone surrogate" in done.stderr
    assert b"leaves no room for an output: max_model_len is 128" in done.stderr
    assert b"2 answers" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "output"),
    [("chat <&- >&-", b""), ("generate --max-tokens 1 --temperature 0 Caf\u00e9 2>&-", b"Caf?")],
)
def test_streams_that_are_closed_or_know_few_characters_do_no_harm(arguments: str, output: bytes) -> None:
    done = subprocess.run(
        " ".join([*COMMAND, *arguments.split(), *SMALL]),
        shell=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout[:4]) == (0, output), done.stderr
    assert b"Traceback" not in done.stderr


def listen_to_ctrl_c() -> None:
    """In the child: a shell that starts the tests in the background has it ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_a_command_in_one_line() -> None:
    process = subprocess.Popen(
        [*COMMAND, "generate", "--max-tokens", "1000", *SMALL, "Once upon a time"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen_to_ctrl_c,
    )
    assert process.stderr is not None
    assert any("requests of" in line for line in process.stderr)  # the start-up line
    process.send_signal(signal.SIGINT)
    told = process.stderr.read()
    assert process.wait(PATIENCE) == 130
    assert told.splitlines()[-1] == "cudaprefill: interrupted"
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (EngineDeadError("the engine has stopped: OSError('gone')"), 1, "the engine has stopped: OSError('gone')"),
        (QueueFullError("3 requests are waiting"), 1, "3 requests are waiting"),
    ],
)
def test_what_ends_a_command_from_outside_is_one_line(
    error: BaseException, status: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(flags: object) -> int:
        raise error

    monkeypatch.setattr("cudaprefill.cli.info.run", run)
    assert main(["info"]) == status
    assert capsys.readouterr().err.strip() == f"cudaprefill: {told}"


def test_help_does_not_wait_for_torch() -> None:
    script = "import sys; from cudaprefill.cli.main import build_parser; build_parser().format_help()"
    script += "; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "False"


class Terminal:
    """A chat on a pseudo-terminal."""

    def __init__(self) -> None:
        self._screen, child = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, "chat", *SMALL],
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            preexec_fn=listen_to_ctrl_c,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(child)
        self._unread = ""

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def wait_for(self, text: str) -> None:
        """Reads on until `text` has appeared; what comes before it is not looked at again."""
        deadline = time.monotonic() + PATIENCE
        while text not in self._unread:
            ready, _, _ = select.select([self._screen], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not appear in {self._unread[-1000:]!r}"
            self._unread += os.read(self._screen, 4096).decode(errors="replace")
        self._unread = self._unread.partition(text)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)


def test_on_a_terminal_chat_is_interactive_stops_on_ctrl_c_and_leaves_on_ctrl_d() -> None:
    terminal = Terminal()
    try:
        terminal.wait_for("> ")
        terminal.type("What is the capital of France?\n")
        terminal.wait_for("The capital of France is Paris.")
        terminal.wait_for("prompt tokens from the prefix cache")
        terminal.wait_for("> ")
        terminal.type("Count from one to one thousand in words.\n")
        terminal.wait_for("words.\r\n")
        terminal.wait_for(" ")
        os.killpg(terminal.process.pid, signal.SIGINT)
        terminal.wait_for("stopped")
        terminal.wait_for("> ")
        terminal.type("/nonsense\n")
        terminal.wait_for("unknown command /nonsense")
        terminal.wait_for("> ")
        terminal.type("\x04")
        terminal.wait_for("2 answers")
        assert terminal.process.wait(PATIENCE) == 0
    finally:
        terminal.close()
