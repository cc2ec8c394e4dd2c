"""Tuning on the real model: what --itl-target-ms does beside fixed budgets, and how well a replay predicts.

    python benchmarks/tuning.py target  [--targets auto,120] [--budgets 64,128,256,512,2048]
    python benchmarks/tuning.py batch
    python benchmarks/tuning.py predict [--budgets 128,256,512] [--rate 0.6]
    python benchmarks/tuning.py prefix
    python benchmarks/tuning.py presets

target   Four chats stream while a prompt of 3,200 tokens arrives: the gaps between the chats' tokens until its first
         token, and its TTFT beside that of the same prompt alone.
batch    What the target of a CPU costs in throughput: requests that come all at once, and clients that ask again when
         they are answered, with "auto" and without a target by turns.
predict  Records a run at the first budget, replays it at each, runs each for real, and compares. The same with the
         arrivals closer together.
prefix   A question behind a long shared text, cold and cached.
presets  With the settings of each: the long prompt alone, the same beside four chats, and requests all at once.

The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cudaprefill import LLM, SamplingParams
from cudaprefill.config import parse_itl_target
from cudaprefill.engine.factory import TOKEN_BUDGET
from cudaprefill.observe.direct_hub import DirectHub
from cudaprefill.observe.trace import Trace, TraceHeader, TraceWriter, read_trace
from cudaprefill.outputs import RequestOutput
from cudaprefill.presets import PRESETS, preset_settings
from cudaprefill.protocol.itl_target import ItlTarget, itl_target_text
from cudaprefill.tune.figures import Figures, recorded_run, relative_errors
from cudaprefill.tune.replay import replay_often
from cudaprefill.tune.report import Row, table
from cudaprefill.tune.step_times import StepModel, step_times
from cudaprefill.tune.sweep import with_settings
from cudaprefill.tune.trace_workload import scheduler_config, trace_workload
from cudaprefill.tune.workload import SyntheticTraffic, Workload

LONG, CHATS, CHAT_PROMPT = 3200, 4, 64
VOCABULARY = 40_000  # token ids that every model at hand has
LARGEST_BUDGET = 4096  # that the engine is made for
DEFAULT_BUDGET = TOKEN_BUDGET["cpu"]
BATCH, BATCH_PROMPT, BATCH_TOKENS = 16, 390, 64


def prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(100, VOCABULARY, length).tolist()


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


# --- target ---


def undisturbed_ttft(llm: LLM, seed: int) -> float:
    (output,) = llm.generate([prompt(LONG, seed)], greedy(1))
    assert output.metrics is not None
    assert output.metrics.ttft is not None
    return output.metrics.ttft


def chats_and_a_long_prompt(llm: LLM, seed: int) -> tuple[list[float], float]:
    """The chats' gaps from the long prompt's arrival to its first token, and its TTFT."""
    streams = [llm.stream(prompt(CHAT_PROMPT, seed + number), greedy(4000)) for number in range(CHATS)]
    for stream in streams:
        next(stream)  # all chats are under way
    for _ in range(20):
        next(streams[0])
    (output,) = llm.generate([prompt(LONG, seed + CHATS)], greedy(1))
    for stream in streams:
        stream.abort()
    metrics = output.metrics
    assert metrics is not None
    assert metrics.ttft is not None
    assert metrics.first_token_time is not None
    gaps = []
    for chat in [stream.wait() for stream in streams]:
        gaps += _gaps_between(chat, metrics.arrival_time, metrics.first_token_time)
    return gaps, metrics.ttft


def _gaps_between(chat: RequestOutput, begin: float, end: float) -> list[float]:
    assert chat.metrics is not None
    assert chat.metrics.first_token_time is not None
    time, gaps = chat.metrics.first_token_time, []
    for gap in chat.metrics.itl:
        if begin < time + gap and time < end:
            gaps.append(gap)
        time += gap
    return gaps


def measure_target(flags: argparse.Namespace) -> dict[str, Any]:
    settings: list[dict[str, Any]] = [
        *({"max_num_batched_tokens": budget, "itl_target_ms": 0.0} for budget in flags.budgets),
        *({"max_num_batched_tokens": DEFAULT_BUDGET, "itl_target_ms": target} for target in flags.targets),
    ]
    figures: dict[str, Any] = {"settings": []}
    with LLM(max_num_batched_tokens=LARGEST_BUDGET, max_num_seqs=16) as llm:
        print(llm.info)
        undisturbed_ttft(llm, 1)
        for number, chosen in enumerate(settings):
            gaps: list[float] = []
            alone, ttfts = [], []
            for repeat in range(flags.repeats):
                seed = 1000 * (number + 1) + 100 * repeat
                llm.change_settings(max_num_batched_tokens=DEFAULT_BUDGET, itl_target_ms=0.0)
                alone.append(undisturbed_ttft(llm, seed + 50))
                llm.change_settings(**chosen)
                more, ttft = chats_and_a_long_prompt(llm, seed)
                gaps += more
                ttfts.append(ttft)
            row = {
                **chosen,
                "itl_p50_ms": float(np.percentile(gaps, 50)) * 1e3,
                "itl_p99_ms": float(np.percentile(gaps, 99)) * 1e3,
                "itl_max_ms": max(gaps) * 1e3,
                "ttft_s": statistics.median(ttfts),
                "alone_s": statistics.median(alone),
                "ratio": statistics.median(ttfts) / statistics.median(alone),
            }
            figures["settings"].append(row)
            target = itl_target_text(chosen["itl_target_ms"])
            name = f"target {target}" if chosen["itl_target_ms"] else f"budget {row['max_num_batched_tokens']}"
            print(
                f"{name:19} chats' ITL p50 {row['itl_p50_ms']:6.1f}, p99 {row['itl_p99_ms']:6.1f}, "
                f"max {row['itl_max_ms']:6.1f} ms; TTFT {row['ttft_s']:.2f} s, {row['ratio']:.2f} times as alone"
            )
    return figures


# --- batch ---


def at_once(llm: LLM, seed: int) -> float:
    """Seconds until the last of 16 requests has ended."""
    start = time.perf_counter()
    llm.generate([prompt(BATCH_PROMPT, seed + number) for number in range(BATCH)], greedy(BATCH_TOKENS))
    return time.perf_counter() - start


def in_turn(llm: LLM, seed: int) -> float:
    """Seconds until 8 clients, of which each asks again as soon as it is answered, have had 16 answers between them."""
    seeds = iter(range(seed, seed + BATCH))
    lock = threading.Lock()

    def ask() -> None:
        while True:
            with lock:
                mine = next(seeds, None)
            if mine is None:
                return
            llm.stream(prompt(BATCH_PROMPT, mine), greedy(BATCH_TOKENS)).wait()

    clients = [threading.Thread(target=ask) for _ in range(BATCH // 2)]
    start = time.perf_counter()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return time.perf_counter() - start


def measure_batch(flags: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with LLM(max_num_seqs=BATCH) as llm:
        print(llm.info)
        at_once(llm, 0)
        for name, run in (("all at once", at_once), ("8 clients in turn", in_turn)):
            seconds: dict[str, list[float]] = {"auto": [], "none": []}
            for repeat in range(flags.repeats):
                order: tuple[ItlTarget, ...] = ("auto", 0.0) if repeat % 2 else (0.0, "auto")
                for target in order:
                    llm.change_settings(itl_target_ms=target)
                    taken = run(llm, 1000 * (2 * repeat + (target == "auto") + 1))
                    seconds["auto" if target == "auto" else "none"].append(taken)
            ratios = [auto / none for auto, none in zip(seconds["auto"], seconds["none"], strict=True)]
            figures[name] = {"seconds": seconds, "ratios": ratios, "ratio": statistics.median(ratios)}
            print(
                f"{BATCH} x ({BATCH_PROMPT}, {BATCH_TOKENS}), {name:18} auto {statistics.median(seconds['auto']):.2f} "
                f"s, no target {statistics.median(seconds['none']):.2f} s: {figures[name]['ratio']:.3f} "
                f"(from {min(ratios):.3f} to {max(ratios):.3f})"
            )
    return figures


# --- predict ---


def run_for_real(llm: LLM, workload: Workload, path: Path, settings: dict[str, Any]) -> Trace:
    """Each request at its time, from a thread of its own; the trace of it."""
    llm.reset_prefix_cache()
    llm.change_settings(**settings)
    header = llm._engine.call(
        lambda engine: TraceHeader(
            "benchmark", asdict(llm.info), asdict(engine.scheduler.config), time.monotonic(), time.time()
        )
    ).result()
    writer = TraceWriter(path, header)

    def listen(hub: DirectHub | None) -> Callable[[Any], None]:
        def set_up(engine: Any) -> None:
            engine.scheduler.record_prefixes(hub is not None)
            engine.listen(hub)

        return set_up

    llm._engine.call(listen(DirectHub(writer.record))).result()
    threads = []
    begin = time.monotonic()
    for index, arrival in enumerate(workload):
        tokens = (arrival.token_ids(index)[: arrival.num_prompt_tokens] % VOCABULARY).tolist()
        time.sleep(max(0.0, begin + arrival.time - time.monotonic()))
        stream = llm.stream(tokens, greedy(arrival.num_output_tokens[0]))
        threads.append(threading.Thread(target=stream.wait))
        threads[-1].start()
    for thread in threads:
        thread.join()
    llm._engine.call(listen(None)).result()
    writer.close()
    return read_trace(path)


def measure_predict(flags: argparse.Namespace) -> dict[str, Any]:
    traffic = SyntheticTraffic(
        requests=flags.requests, rate=flags.rate, prompt=500, output=60, prefix=256, prefixes=4, seed=2 * flags.seed
    ).make()
    faster = SyntheticTraffic(
        requests=flags.requests,
        rate=flags.rate * 1.3,
        prompt=300,
        output=90,
        prefix=256,
        prefixes=4,
        seed=2 * flags.seed + 1,
    ).make()
    figures: dict[str, Any] = {"runs": []}
    with tempfile.TemporaryDirectory() as folder, LLM(max_num_batched_tokens=LARGEST_BUDGET, max_num_seqs=32) as llm:
        print(llm.info)
        first: dict[str, Any] = {"max_num_batched_tokens": flags.budgets[0], "itl_target_ms": 0.0}
        # As a server does: else the first run alone would wait for pages that the system has still to find.
        llm._engine.call(lambda engine: engine.model_runner.kv_cache.populate()).result()
        undisturbed_ttft(llm, 1)
        recorded = run_for_real(llm, traffic, Path(folder) / "recorded", first)
        model = StepModel(step_times(recorded.events))
        print(f"recorded {model.num_steps} steps, half of them within {model.median_error:.1%} of the model")
        for name, workload in (("the same traffic", traffic), ("faster, other lengths", faster)):
            for budget in flags.budgets:
                settings = {"max_num_batched_tokens": budget, "itl_target_ms": 0.0}
                real = run_for_real(llm, workload, Path(folder) / f"{name} {budget}", settings)
                measured = recorded_run(real.events).figures()
                # The recorded arrivals where they are the same, else those that were asked for.
                arrivals = trace_workload(recorded, "recorded") if workload is traffic else workload
                predicted = replay_often(arrivals, with_settings(scheduler_config(recorded), settings), model)
                figures["runs"].append(_compare(name, budget, predicted, measured))
    return figures


def _compare(name: str, budget: int, predicted: Figures, measured: Figures) -> dict[str, Any]:
    errors = relative_errors(predicted, measured)
    print(f"\n{name}, budget {budget}")
    print(table([Row({}, measured, "measured"), Row({}, predicted, "predicted")]))
    print("  ".join(f"{key.replace('_', ' ')} {error:+.1%}" for key, error in errors.items()))
    return {
        "traffic": name,
        "budget": budget,
        "measured": measured.as_dict(),
        "predicted": predicted.as_dict(),
        "errors": errors,
    }


# --- prefix ---


def measure_prefix(flags: argparse.Namespace) -> dict[str, Any]:
    cold, cached = [], []
    with LLM() as llm:
        print(llm.info)
        for repeat in range(flags.repeats + 1):
            text = prompt(2000, 77 + repeat)
            for times, question in ((cold, 1), (cached, 2)):
                (output,) = llm.generate([text + prompt(32, 1000 * repeat + question)], greedy(1))
                assert output.metrics is not None
                assert output.metrics.ttft is not None
                times.append(output.metrics.ttft)
    figures = {"cold_s": statistics.median(cold[1:]), "cached_s": statistics.median(cached[1:])}
    figures["ratio"] = figures["cached_s"] / figures["cold_s"]
    print(
        f"TTFT of 32 tokens behind 2,000: {figures['cold_s'] * 1e3:.0f} ms cold, {figures['cached_s'] * 1e3:.1f} ms "
        f"cached: {figures['ratio']:.3f}"
    )
    return figures


# --- presets ---


def measure_presets(flags: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with LLM(max_num_batched_tokens=LARGEST_BUDGET, max_num_seqs=BATCH) as llm:
        print(llm.info)
        undisturbed_ttft(llm, 1)
        for repeat in range(flags.repeats):
            for number, name in enumerate(PRESETS):
                settings = preset_settings(name, "cpu")
                llm.change_settings(
                    max_num_batched_tokens=settings["max_num_batched_tokens"], itl_target_ms=settings["itl_target_ms"]
                )
                seed = 1000 * (1 + number) + 100 * repeat
                row = figures.setdefault(name, {"alone_s": [], "ttft_s": [], "itl_ms": [], "batch_s": []})
                row["alone_s"].append(undisturbed_ttft(llm, seed + 50))
                gaps, ttft = chats_and_a_long_prompt(llm, seed)
                row["itl_ms"] += [gap * 1e3 for gap in gaps]
                row["ttft_s"].append(ttft)
                row["batch_s"].append(at_once(llm, seed + 60))
    for name, row in figures.items():
        print(
            f"{name:5} {LONG} tokens alone {statistics.median(row['alone_s']):.2f} s, beside four chats "
            f"{statistics.median(row['ttft_s']):.2f} s with their ITL p50 {np.percentile(row['itl_ms'], 50):.0f} ms, "
            f"p99 {np.percentile(row['itl_ms'], 99):.0f} ms; {BATCH} x ({BATCH_PROMPT}, {BATCH_TOKENS}) "
            f"{statistics.median(row['batch_s']):.2f} s"
        )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=("target", "batch", "predict", "prefix", "presets"))
    parser.add_argument(
        "--targets", type=lambda text: [*map(parse_itl_target, text.split(","))], default="auto,120", metavar="MS,..."
    )
    parser.add_argument("--budgets", type=lambda text: [int(item) for item in text.split(",")], metavar="N,...")
    parser.add_argument("--rate", type=float, default=0.6, help="requests a second of predict")
    parser.add_argument("--requests", type=int, default=60, help="of predict")
    parser.add_argument("--seed", type=int, default=0, help="of the traffic of predict")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    flags = parser.parse_args()
    if flags.budgets is None:
        flags.budgets = [64, 128, 256, 512, 2048] if flags.experiment == "target" else [256, 128, 1024]
    measure = {
        "target": measure_target,
        "batch": measure_batch,
        "predict": measure_predict,
        "prefix": measure_prefix,
        "presets": measure_presets,
    }[flags.experiment]
    figures = measure(flags)
    if flags.json:
        flags.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
