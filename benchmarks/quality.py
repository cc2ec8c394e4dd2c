"""What a format of weights or of the KV cache costs in quality: perplexity, and greedy agreement with float32.

    python -m benchmarks.quality [--windows 16] [--length 512] [--llama-python VENV/bin/python] [--keep]

The text is the Python manual's, which comes with every Python as `pydoc_data.topics`: windows of tokens, evenly spaced.
For each token but the first of a window: its log-probability, and the token that greedy decoding would take there.
Perplexity is exp of the mean of the first, negated; agreement is how often the second is float32's. llama.cpp, where
its Python is given, gets the same token ids of the same file.

--keep writes benchmarks/results/DATE-quality-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from pydoc_data.topics import topics

from benchmarks.figures import machine
from cudaprefill import LLM, SamplingParams
from cudaprefill.models import default_model_path
from cudaprefill.text.tokenizer import Tokenizer

RESULTS = Path(__file__).resolve().with_name("results")
LOGPROBS_SCRIPT = Path(__file__).resolve().with_name("peers") / "llama_cpp_logprobs.py"
# dtype, linear_math and kv_cache_dtype; the first is what the others are compared with
FORMATS = (
    ("float32", "auto", "auto"),
    ("auto", "float32", "auto"),
    ("auto", "int16", "float32"),
    ("auto", "int16", "auto"),
    ("auto", "int8", "auto"),
    ("bfloat16", "auto", "auto"),
    ("float32", "auto", "bfloat16"),
    ("float32", "auto", "fp8"),
)


@dataclass(frozen=True)
class Scores:
    """Of all tokens but the first of each window, one window after the other."""

    logprobs: list[float]
    best: list[int]


@dataclass(frozen=True)
class Quality:
    name: str
    perplexity: float
    agreement: float  # share of the tokens at which greedy decoding takes what it takes in float32


def manual_windows(tokenizer: Tokenizer, count: int, length: int) -> list[list[int]]:
    """Raises ValueError if the manual is too short for so many."""
    text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    tokens = tokenizer.encode(text, add_special_tokens=False, parse_control_tokens=False)
    if len(tokens) < count * length:
        raise ValueError(f"{count} windows of {length} tokens need {count * length}; the manual has {len(tokens)}")
    starts = [number * (len(tokens) - length) // max(1, count - 1) for number in range(count)]
    return [tokens[start : start + length] for start in starts]


def our_scores(
    model: Path, dtype: str, linear_math: str, kv_cache_dtype: str, windows: list[list[int]]
) -> tuple[str, Scores]:
    """The name of the format as the engine tells it, and its scores."""
    logprobs: list[float] = []
    best: list[int] = []
    with LLM(model, dtype=dtype, linear_math=linear_math, kv_cache_dtype=kv_cache_dtype) as llm:
        outputs = llm.generate(windows, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1))
        for output in outputs:
            assert output.prompt_logprobs is not None
            for token, told in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
                assert told is not None
                logprobs.append(told[token].logprob)
                best.append(next(other for other, logprob in told.items() if logprob.rank == 1))
        activations = "" if llm.info.linear_math == "float32" else f", {llm.info.linear_math} activations"
        cache = "" if llm.info.kv_cache_dtype == "float32" else f", {llm.info.kv_cache_dtype} KV"
        return f"{llm.info.dtype}{activations}{cache}", Scores(logprobs, best)


def llama_cpp_scores(python: str, model: Path, windows: list[list[int]]) -> Scores:
    """Raises CalledProcessError if that Python cannot do it."""
    threads = str(len(os.sched_getaffinity(0)))
    command = [python, str(LOGPROBS_SCRIPT), str(model), threads]
    answer = subprocess.run(command, input=json.dumps(windows), stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(answer.stdout)
    return Scores([p for window in told for p in window["logprobs"]], [b for window in told for b in window["best"]])


def quality(name: str, scores: Scores, reference: Scores) -> Quality:
    same = sum(own == other for own, other in zip(scores.best, reference.best, strict=True))
    mean = math.fsum(scores.logprobs) / len(scores.logprobs)
    return Quality(name, math.exp(-mean), same / len(scores.best))


def table(found: list[Quality]) -> str:
    lines = ["| weights | perplexity | greedy agreement with float32 |", "|---|---|---|"]
    lines += [f"| {each.name} | {each.perplexity:.3f} | {each.agreement:.2%} |" for each in found]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, help="a GGUF file or a folder (default: the packaged model)")
    add("--windows", type=int, default=16)
    add("--length", type=int, default=512, help="tokens of a window")
    add("--llama-python", default=os.environ.get("CUDAPREFILL_LLAMA_PYTHON"), metavar="PATH")
    add("--keep", action="store_true", help="write the figures into --results")
    add("--results", type=Path, default=RESULTS)
    flags = parser.parse_args()
    model = flags.model or default_model_path()
    windows = manual_windows(Tokenizer.load(model), flags.windows, flags.length)
    reference: Scores | None = None
    found: list[Quality] = []
    for dtype, linear_math, kv_cache_dtype in FORMATS:
        name, scores = our_scores(model, dtype, linear_math, kv_cache_dtype, windows)
        reference = reference or scores
        found.append(quality(f"cudaprefill, {name}", scores, reference))
        print(f"quality: {found[-1].name} done", file=sys.stderr, flush=True)
    if flags.llama_python and model.is_file():
        assert reference is not None
        found.append(quality("llama.cpp, as stored", llama_cpp_scores(flags.llama_python, model, windows), reference))
    text = f"Python {platform.python_version()}'s manual, {flags.windows} windows of {flags.length} tokens"
    print(f"{model.name} on {text}\n\n{table(found)}")
    if flags.keep:
        date = datetime.now(timezone.utc).date().isoformat()
        content = {
            "date": date,
            "machine": machine(),
            "model": model.name,
            "text": text,
            "formats": [asdict(each) for each in found],
        }
        (flags.results / f"{date}-quality-cpu.json").write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
