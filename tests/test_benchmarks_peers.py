"""The comparison with other engines: its client, its workloads, its servers and what it makes of the samples."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import threading
import time
import xml.etree.ElementTree
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import gguf
import httpx
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.peers import __main__ as command
from benchmarks.peers import convert, engines, page, run
from benchmarks.peers.client import Client, Stream
from benchmarks.peers.engines import Engine, RunningEngine, installed_version, our_engine
from benchmarks.peers.limits import Limits, limits_of
from benchmarks.peers.one_at_a_time_server import make_handler
from benchmarks.peers.result import EngineResult, Ratio, Result, figures_of, markdown, number, picture, quantile
from benchmarks.peers.run import has_turn
from benchmarks.peers.workloads import Samples, Sizes, Workload, fresh_tokens, workloads
from benchmarks.prefill_roofline import Part, Prompt, Roofline
from cudaprefill.text.tokenizer_files import TokenizerFiles
from tests.engine.harness import VOCAB_SIZE
from tests.models.gguf_files import write_gguf
from tests.models.tiny import random_tokens, reference_logits, save_tiny_model, tiny_model
from tests.server.running import PATIENCE, RunningServer
from tests.text.made_tokenizers import byte_level, write_folder

TINY = Sizes.tiny(VOCAB_SIZE)
SAMPLES = {
    *(f"prefill_{length}_tokens_s" for length in TINY.prefill),
    *("decode_itl_ms", "batch_wall_s", "chats_itl_ms", "chats_long_ttft_s", "prefix_cold_s", "prefix_hit_s"),
}

# --- Client ---


def test_times_of_a_stream_follow_from_its_events() -> None:
    stream = Stream(sent=10.0, events=[(11.0, 1), (12.0, 2), (15.0, 5), (15.5, 6)])
    assert stream.ttft == 1.0
    assert stream.num_tokens == 6
    assert stream.mean_itl == 4.5 / 5


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=20), st.floats(0, 100), st.floats(0, 100))
def test_gaps_are_those_that_overlap_the_span(gaps: list[float], begin: float, length: float) -> None:
    times = list(itertools.accumulate(gaps, initial=1.0))
    stream = Stream(events=[(moment, count + 1) for count, moment in enumerate(times)])
    end = begin + length
    assume(end > begin)
    overlapping = [b - a for a, b in itertools.pairwise(times) if min(b, end) > max(a, begin)]
    assert stream.gaps(begin, end) == overlapping


@contextmanager
def one_at_a_time(delay: float = 0.0) -> Iterator[tuple[str, list[int]]]:
    """The bare server on an engine that counts; its URL, and how many requests were in the engine at each token."""
    inside, seen = [0], []

    def generate(prompt: list[int]) -> Generator[int, None, None]:
        inside[0] += 1
        try:
            for token in itertools.count(len(prompt)):
                time.sleep(delay)
                seen.append(inside[0])
                yield token
        finally:
            inside[0] -= 1

    with served(make_handler(generate, "counting")) as url:
        yield url, seen


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server that answers with `handler`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()


def complete(url: str, requests: list[tuple[list[int], int]]) -> list[Stream]:
    async def run() -> list[Stream]:
        async with Client(url) as client:
            return await asyncio.gather(*(client.complete(prompt, count) for prompt, count in requests))

    return asyncio.run(run())


def test_the_client_reads_the_events_of_our_server() -> None:
    with RunningServer() as server:
        (stream,) = complete(server.url, [([1, 2, 3], 7)])
    assert stream.num_tokens == 7
    moments = [stream.sent, *(moment for moment, _ in stream.events)]
    assert moments == sorted(moments)


def test_the_bare_server_runs_one_request_after_the_other() -> None:
    with one_at_a_time(delay=0.001) as (url, seen):
        streams = complete(url, [([1, 2], 5), ([3], 4), ([4], 6)])
    assert [stream.num_tokens for stream in streams] == [5, 4, 6]
    assert seen == [1] * 15


def test_a_server_that_counts_other_tokens_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with one_at_a_time() as (url, _):
        real = httpx.AsyncClient.stream

        def shortened(client: httpx.AsyncClient, method: str, path: str, json: dict[str, object]) -> object:
            return real(client, method, path, json={**json, "prompt": [1]})

        monkeypatch.setattr(httpx.AsyncClient, "stream", shortened)
        with pytest.raises(RuntimeError, match="2 tokens were sent and 3 asked for; the server counts 1 and 3"):
            complete(url, [([1, 2], 3)])


@contextmanager
def answering(answer: Callable[[list[int]], str]) -> Iterator[str]:
    """A server that answers a prompt with the body that answer(prompt) is, and then closes the connection."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "model"}]}')

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer(request["prompt"]).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with served(Handler) as url:
        yield url


def event(tokens: int, *, choices: str = "[{}]") -> str:
    return f'data: {{"choices": {choices}, "usage": {{"prompt_tokens": 2, "completion_tokens": {tokens}}}}}\n\n'


WHOLE = event(1) + event(2) + event(3) + event(3, choices="[]") + "data: [DONE]\n\n"


def test_the_end_of_a_server_in_the_middle_of_a_stream_is_an_error_of_that_server_wherever_it_comes() -> None:
    async def run(url: str) -> list[Stream | BaseException]:
        results: list[Stream | BaseException] = []
        async with Client(url) as client:
            for length in range(len(WHOLE)):
                results += await asyncio.gather(client.complete([length, 0], 3), return_exceptions=True)
        return results

    with answering(lambda prompt: WHOLE[: prompt[0]]) as url:
        results = asyncio.run(run(url))
    for length, result in enumerate(results):
        has_all_tokens = WHOLE[:length].count("}}") >= 3
        if has_all_tokens and isinstance(result, Stream):
            assert [tokens for _, tokens in result.events] == [1, 2, 3]
        else:  # the next event, which brings no tokens, may be cut off
            assert isinstance(result, RuntimeError)
            assert "the server" in str(result)
    assert isinstance(results[-1], Stream)


def test_a_server_that_counts_at_the_end_alone_is_found_out() -> None:
    with (
        answering(lambda prompt: event(3, choices="[]")) as url,
        pytest.raises(RuntimeError, match=r"of 3 tokens the server counted 0 while it streamed"),
    ):
        complete(url, [([1, 2], 3)])


def test_an_error_of_the_server_is_told() -> None:
    with RunningServer() as server, pytest.raises(RuntimeError, match=r"answers 400: .*vocabulary"):
        complete(server.url, [([VOCAB_SIZE + 1], 3)])


# --- Workloads ---


def run_workload(url: str, workload: Workload, seed: int = 0, sizes: Sizes = TINY) -> Samples:
    async def run() -> Samples:
        async with Client(url) as client:
            return await workload.run(client, sizes, random.Random(seed))

    return asyncio.run(run())


def named(name: str) -> Workload:
    (workload,) = (each for each in workloads(TINY) if each.name == name)
    return workload


def test_every_workload_gives_samples_of_every_figure_and_leaves_nothing_running() -> None:
    with RunningServer(pace=0.001, num_blocks=128) as server:  # checks that it is idle at its end
        samples: Samples = {}
        for workload in workloads(TINY):
            samples |= run_workload(server.url, workload)
    assert all(value > 0 for values in samples.values() for value in values)
    assert samples.keys() == SAMPLES
    assert {figure.samples for figure in figures_of(samples)} == SAMPLES


def test_chats_tell_the_gaps_while_the_long_prompt_is_computed() -> None:
    """Each step takes 20 ms, and the prompt needs several; the gaps of each chat cover all the time it took."""
    sizes = replace(TINY, max_chat_tokens=400)
    with RunningServer(pace=0.02, num_blocks=128, budget=16) as server:
        samples = run_workload(server.url, named("chats"), sizes=sizes)
    gaps, (ttft,) = samples["chats_itl_ms"], samples["chats_long_ttft_s"]
    assert ttft >= 0.02 * sizes.long_prompt / 16
    assert sum(gaps) / 1e3 >= ttft * sizes.chats


def test_only_the_second_question_finds_its_text_in_the_cache() -> None:
    with RunningServer(num_blocks=128, budget=16) as server:
        for seed in (1, 2):
            run_workload(server.url, named("prefix"), seed)
        steps = server.runner.fake.steps
    cold = -(-(TINY.prefix + TINY.question) // 16)
    assert steps == 2 * (cold + 1)


def test_token_ids_are_fresh_within_a_round_and_the_same_for_every_engine() -> None:
    sizes = Sizes(49_152)
    draws = random.Random(5)
    first, second = fresh_tokens(400, sizes, draws), fresh_tokens(400, sizes, draws)
    assert first[:16] != second[:16]
    assert first == fresh_tokens(400, sizes, random.Random(5))
    assert all(100 <= token < 49_152 for token in first)


# --- The model for engines that do not read GGUF ---


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_transformers_computes_the_same_from_the_folder_as_from_the_model_behind_the_file(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family)
    write_gguf(tmp_path / "tiny.gguf", model)
    files = TokenizerFiles(byte_level().to_str(), {}, None)
    monkeypatch.setattr(convert, "convert_tokenizer", lambda path: files)
    folder = convert.safetensors_folder(tmp_path / "tiny.gguf", tmp_path / "made")
    converted = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = random_tokens(40)
    torch.testing.assert_close(reference_logits(converted, tokens), reference_logits(model, tokens))
    assert AutoTokenizer.from_pretrained(folder).encode("ab") == byte_level().encode("ab").ids

    monkeypatch.setattr(convert, "_write", None)  # it is there already
    assert convert.safetensors_folder(tmp_path / "tiny.gguf", tmp_path / "made") == folder
    assert convert.safetensors_folder(folder, tmp_path) == folder


def test_a_decode_step_reads_every_matrix_once(tmp_path: Path) -> None:
    model = tiny_model("llama", intermediate_size=128)
    write_gguf(tmp_path / "tiny.gguf", model, gguf.GGMLQuantizationType.Q8_0)
    limits = limits_of(tmp_path / "tiny.gguf", [10])
    elements = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    assert limits.decode_bytes == {"float32": 4 * elements, "as stored": elements * 34 // 32}


# --- Servers as processes ---

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *arguments): pass
print("a line of the log", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def bare_engine(script: str) -> Engine:
    return Engine("bare", "Bare", "1", [sys.executable, "-c", script])


def test_an_engine_answers_unless_it_is_frozen_and_ends_when_stopped(tmp_path: Path) -> None:
    running = RunningEngine(bare_engine(SERVER), tmp_path / "log")
    try:
        running.wait_until_ready()
        assert running.start_seconds > 0
        assert 1e6 < running.memory() < 1e9
        running.freeze()
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(running.url, timeout=0.2)
        running.thaw()
        assert httpx.get(running.url, timeout=PATIENCE).is_success
        running.freeze()
    finally:
        running.stop()  # a frozen one too
    with pytest.raises(httpx.ConnectError):
        httpx.get(running.url, timeout=PATIENCE)


def test_workers_of_an_engine_end_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    worker = (
        "import os, time, signal; signal.signal(15, signal.SIG_IGN); "
        f"open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    script = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {worker!r}])\n" + SERVER
    running = RunningEngine(bare_engine(script), tmp_path / "log")
    try:
        running.wait_until_ready()
        give_up = time.monotonic() + PATIENCE
        while not (pid_file.exists() and pid_file.read_text()):
            assert time.monotonic() < give_up
            time.sleep(0.01)
    finally:
        running.stop()
    give_up = time.monotonic() + PATIENCE
    while is_alive(int(pid_file.read_text())):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_processor_time_of_an_engine_is_that_of_its_processes(tmp_path: Path) -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass\n"
    running = RunningEngine(bare_engine(busy + SERVER), tmp_path / "log")
    try:
        running.wait_until_ready()
        assert 0.25 < running.cpu_seconds() < 60
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("used", "settled", "waited"),
    [
        ([3.0, 3.01], True, 1),  # of each second
        ([1.0, 1.9, 2.7, 2.71], True, 3),
        (list(range(100)), False, 15),
    ],
)
def test_an_engine_has_settled_when_it_uses_no_core_for_a_second(
    used: list[float], settled: bool, waited: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    running = RunningEngine(bare_engine(SERVER), tmp_path / "log")
    try:
        clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
        monkeypatch.setattr(engines, "time", clock)
        monkeypatch.setattr(running, "cpu_seconds", lambda: used[int(now[0])])
        assert running.settle() == settled
        assert now == [waited]
    finally:
        running.stop()


def test_slow_engines_have_a_turn_in_every_third_round_and_none_in_concurrent_workloads() -> None:
    slow, fast = replace(bare_engine(""), concurrent=False), bare_engine("")
    chats, others = named("chats"), [workload for workload in workloads(TINY) if not workload.concurrent]
    turns = [(number, turn) for number in range(5) for turn in range(3)]
    assert all(has_turn(fast, workload, *turn) for workload in workloads(TINY) for turn in turns)
    for workload in others:
        assert [turn for turn in turns if has_turn(slow, workload, *turn)] == [(0, 0), (3, 0)]
    assert not any(has_turn(slow, chats, *turn) for turn in turns)


def test_an_engine_that_does_not_start_says_why(tmp_path: Path) -> None:
    running = RunningEngine(bare_engine("raise SystemExit('no such model')"), tmp_path / "log")
    try:
        with pytest.raises(RuntimeError, match=r"bare is not ready .*\(status 1\):\nno such model"):
            running.wait_until_ready()
    finally:
        running.stop()


def test_a_peer_that_is_not_installed_has_no_version() -> None:
    assert installed_version(sys.executable, "surely-not-a-package") is None
    assert installed_version("/nowhere/python", "torch") is None
    assert installed_version(sys.executable, "surely-not-a-package", "torch")


def test_shown_commands_name_no_folder() -> None:
    shown = our_engine(Path("/some/where/model.gguf"), "1", "float32").shown_command
    assert os.sep not in shown
    assert "--model model.gguf" in shown
    assert "--dtype float32" in shown


# --- Results ---


def a_result(names: tuple[str, ...] = ("cudaprefill", "vllm")) -> Result:
    limits = Limits({"float32": 540_000_000}, {"1600": 4.3e11}, [200.0, 300.0, 250.0], [20.0, 21.0, 22.0])
    rounds: dict[str, list[Samples]] = {
        "cudaprefill": [{"prefill_1600_tokens_s": [1600.0], "chats_itl_ms": [5.0, 6.0, 300.0], "decode_itl_ms": [4.0]}]
        * 3,
        "vllm": [
            {"prefill_1600_tokens_s": [v], "chats_itl_ms": [900.0, 1000.0], "decode_itl_ms": [40.0]}
            for v in (700.0, 800.0, 5000.0)
        ],
    }
    engines = [EngineResult(name, f"The {name}", "1", "python", "", 2.0, rounds[name]) for name in names]
    machine = {"cpu": "A CPU", "threads": 2}
    return Result(
        "2026-01-02", machine, {"file": "m.gguf", "sha256": ""}, {}, limits, {"llama.cpp": "not there"}, engines
    )


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_quantiles_are_those_of_numpy(samples: list[float], share: float) -> None:
    assert quantile(share)(samples) == np.quantile(samples, share, method="inverted_cdf")


def test_a_figure_is_the_median_of_the_rounds_and_its_ratio_that_of_neighbours_to_vllm() -> None:
    result = a_result()
    ours, vllm = result.engines
    figures = {figure.title: figure for figure in result.figures}
    assert vllm.value(figures["prefill, 1,600 tokens"]) == 800.0
    assert result.ratio(ours, figures["prefill, 1,600 tokens"]) == Ratio([1600 / 700, 1600 / 800, 1600 / 5000])
    assert result.ratio(ours, figures["one stream, mean ITL"]) == Ratio([0.1, 0.1, 0.1])
    assert result.ratio(ours, figures["chats + long prompt: ITL p99"]) == Ratio([0.3, 0.3, 0.3])  # of each round's
    assert ours.value(figures["chats + long prompt: ITL p50"]) == 6.0  # of the gaps of all rounds
    assert ours.value(figures["chats + long prompt: ITL max"]) == 300.0


def test_turns_that_only_one_of_two_engines_had_make_no_pair() -> None:
    """The machine slows down by the half in the second round, and the slow engine has no turn in it."""
    result = a_result()
    ours, vllm = result.engines
    ours.rounds = [{"decode_itl_ms": [4.0]}, {}, {"decode_itl_ms": [8.0]}]
    vllm.rounds = [{"decode_itl_ms": [40.0, 41.0]}, {"decode_itl_ms": [80.0]}, {"decode_itl_ms": [80.0]}]
    (figure,) = result.figures
    assert result.ratio(ours, figure) == Ratio([0.1, 0.1])
    assert "| one stream, mean ITL (ms) | 6.00 (0.10x, 0.10 to 0.10) | 60.5 | 2 |" in markdown(result)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30))
def test_half_of_the_ratios_lie_between_the_two_that_are_told(samples: list[float]) -> None:
    ratio = Ratio(samples)
    low, high = ratio.middle_half
    assert low <= ratio.median <= high
    assert str(ratio).startswith(f"{ratio.median:.2f}x")
    assert sum(low <= sample <= high for sample in samples) >= len(samples) / 2


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = a_result()
    result.write(tmp_path / "result.json")
    assert Result.read(tmp_path / "result.json") == result


def test_the_table_has_figures_ratios_limits_and_who_is_absent() -> None:
    text = markdown(a_result())
    assert "| prefill, 1,600 tokens (tok/s) | 1,600 (2.00x, 0.32 to 2.29) | 800 | 3 |" in text
    assert "| one stream, mean ITL (ms) | 4.00 (0.10x, 0.10 to 0.10) | 40.0 | 3 |" in text
    assert "ITL of 25.7 ms" in text  # 540 MB at 21 GB/s
    assert "| 930 tok/s |" in text  # 1600 * 250e9 / 4.3e11
    assert "- llama.cpp: not measured, not there." in text


def test_a_figure_that_an_engine_lacks_is_a_dash() -> None:
    result = a_result()
    result.engines[0].rounds = [{"decode_itl_ms": [4.0]}]
    assert "| prefill, 1,600 tokens (tok/s) | - | 800 |  |" in markdown(result)


@given(st.floats(1e-6, 1e6))
def test_numbers_have_three_digits(value: float) -> None:
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


def test_the_picture_is_svg_with_a_bar_for_each_figure_of_each_engine() -> None:
    result = a_result()
    root = xml.etree.ElementTree.fromstring(picture(result))
    bars = [rect for rect in root.iter("{http://www.w3.org/2000/svg}rect") if len(rect)]
    assert len(bars) == len(result.figures) * 2
    speeds = sorted(bar[0].text or "" for bar in bars)
    assert "2.00x" in speeds
    assert "10.00x" in speeds


# --- Page ---


def test_goals_are_told_where_vllm_was_measured() -> None:
    result = a_result()
    quantised = replace(result.engines[0], name="cudaprefill-int8", title="The quantised one")
    text = page.goals(replace(result, engines=[*result.engines, quantised]))
    assert "| prefill, 1,600 tokens | The quantised one | least 2x | 2.00x, 0.32 to 2.29 | 3 | met |" in text
    assert "| one stream, mean ITL | The cudaprefill | most 0.35x | 0.10x, 0.10 to 0.10 | 3 | met |" in text
    assert "| chats + long prompt: ITL p99 | The cudaprefill | most 0.1x | 0.30x, 0.30 to 0.30 | 3 | missed |" in text
    assert "not measured" in page.goals(a_result(("cudaprefill",)))


def test_the_page_is_filled_from_the_newest_result(tmp_path: Path) -> None:
    empty = page.PAGE.read_text()
    assert "No result is kept yet" in page.filled(empty, page.PARTS, tmp_path)
    for date in ("2026-01-01", "2026-01-02"):
        a_result().write(tmp_path / f"{date}-peers-cpu.json")
    prompt = Prompt(100, [Part("linear o", 30e9, 0.1), Part("all else", 0.0, 0.1)])
    Roofline("2026-01-03", {"cpu": "A CPU"}, "settings", [6e11], [prompt]).write(
        tmp_path / "2026-01-03-roofline-cpu.json"
    )
    once = page.filled(empty, page.PARTS, tmp_path)
    assert "| linear o | 30 | 100 | 300 | 50% |" in once
    assert "From `benchmarks/results/2026-01-02-peers-cpu.json`" in once
    assert page.filled(once, page.PARTS, tmp_path) == once


def test_a_page_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one part between <!-- peers --> and <!-- /peers -->"):
        page.filled("no part", page.PARTS, tmp_path)


def test_the_committed_page_says_what_the_committed_results_say() -> None:
    text = page.PAGE.read_text()
    assert page.filled(text, page.PARTS, page.RESULTS) == text, "run python -m benchmarks.peers.page"


# --- The whole command, on a tiny model ---


@pytest.fixture
def run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command on a tiny model, without peers and without measuring the machine; the result that it wrote."""
    model = tmp_path / "model"
    model.mkdir()
    save_tiny_model(model, "llama")
    write_folder(model, byte_level())
    monkeypatch.setattr(run, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(run, "gemm_rate", lambda: 1e11)
    monkeypatch.setattr(engines, "SETTLE_PATIENCE", 0.0)
    for name in ("CUDAPREFILL_VLLM_PYTHON", "CUDAPREFILL_LLAMA_PYTHON"):
        monkeypatch.delenv(name, raising=False)

    def run_command(*flags: str) -> Result:
        folders = ["--folder", str(tmp_path / "logs"), "--results", str(tmp_path / "results")]
        monkeypatch.setattr(sys, "argv", ["peers", "--model", str(model), "--tiny", *folders, *flags])
        assert command.main() == 0
        (path,) = (tmp_path / "results").glob("*-peers-cpu.json")
        xml.etree.ElementTree.fromstring(path.with_suffix(".svg").read_text())
        return Result.read(path)

    return run_command


def test_the_command_measures_our_engine_and_names_the_absent(
    run_command: Callable[..., Result], capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_command("--only", "cudaprefill")
    assert [engine.name for engine in result.engines] == ["cudaprefill"]
    others = {"cudaprefill, float32 math", "cudaprefill, float32 weights", "cudaprefill, int8 activations"}
    assert result.absent.keys() == {"vLLM", "llama.cpp", "transformers", *others}
    assert all(samples.keys() == SAMPLES for samples in result.engines[0].rounds)
    assert all(len(result.engines[0].rounds[0][f"prefill_{length}_tokens_s"]) == 3 for length in TINY.prefill)
    assert result.engines[0].memory_bytes > 1e6
    assert markdown(result) in capsys.readouterr().out


def test_a_workload_that_there_is_not_is_refused(run_command: Callable[..., Result]) -> None:
    with pytest.raises(ValueError, match="--workloads names prefil; there are prefill, decode, batch, chats, prefix"):
        run_command("--workloads", "prefil")


def test_an_engine_that_there_is_not_is_refused(run_command: Callable[..., Result]) -> None:
    with pytest.raises(ValueError, match=r"--only names vlm; there are cudaprefill, .*, transformers"):
        run_command("--only", "cudaprefill,vlm")


def test_an_engine_that_fails_is_left_out_and_the_others_are_measured(
    run_command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = command.our_engine

    def engine(model: Path, version: str, **settings: str) -> Engine:
        return replace(bare_engine("raise SystemExit('no')"), name="bare") if settings else ours(model, version)

    monkeypatch.setattr(command, "our_engine", engine)
    result = run_command("--workloads", "prefill")
    assert [engine.name for engine in result.engines] == ["cudaprefill"]
    assert result.absent["Bare"].startswith("it failed: bare is not ready")
