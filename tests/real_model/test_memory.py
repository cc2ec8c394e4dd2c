"""What the engine takes beside Python and its libraries; each figure is of a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cudaprefill.models import default_model_path
from cudaprefill.text.tokenizer import Tokenizer

MB = 10**6
KV_BYTES = 64 * 2**20
NOISE = 8 * MB  # between versions of the libraries, and what the heap keeps

STATUS = """
import json, sys

def status():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {name: 1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM", "RssAnon")}
"""

FIRST_TOKEN = f"""{STATUS}
from cudaprefill import LLM, SamplingParams

with LLM(kv_cache_memory={KV_BYTES}) as llm:
    llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=1))
    runner = llm._engine.call(lambda engine: engine.model_runner).result()
    model, kv_cache = runner.model, runner.kv_cache
    kv_cache.populate()
    taken = status()
    matrices = [each for layer in model.weights.layers for each in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    weights = sum(matrix.num_bytes for matrix in [model.weights.lm_head, *matrices])
print(json.dumps({{**taken, "weights": weights, "modules": list(sys.modules)}}))
"""

IMPORTS_ALONE = f"""{STATUS}
import contextlib, importlib

for module in json.load(sys.stdin):
    with contextlib.suppress(Exception):  # parts of libraries that are never imported by their name
        importlib.import_module(module)
print(json.dumps(status()))
"""


@pytest.fixture(scope="module")
def first_token() -> dict[str, int]:
    Tokenizer.load(default_model_path())  # so that the process finds a cache
    return run(FIRST_TOKEN)


def run(script: str, *modules: str) -> dict[str, int]:
    told = subprocess.run([sys.executable, "-c", script], input=json.dumps(modules), capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_at_most_that_of_the_kv_cache_and_thirteen_tenths_of_the_weights(first_token: dict[str, int]) -> None:
    """Anonymous memory: pages of the libraries' code come and go with the file that they are in."""
    modules: list[str] = first_token["modules"]  # type: ignore[assignment]
    taken = first_token["RssAnon"] - run(IMPORTS_ALONE, *modules)["RssAnon"]
    weights = first_token["weights"]
    assert 90 * MB < weights < 100 * MB
    assert weights + KV_BYTES < taken  # else it is not told
    assert taken < 1.3 * weights + KV_BYTES + NOISE


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_no_more_than_what_is_there_afterwards(first_token: dict[str, int]) -> None:
    """Of the file, a tensor at a time; of the weights on their way, a matrix."""
    assert first_token["VmHWM"] <= first_token["VmRSS"] + NOISE


def test_nothing_is_imported_that_a_start_from_caches_does_not_need(first_token: dict[str, int]) -> None:
    modules: list[str] = first_token["modules"]  # type: ignore[assignment]
    heavy = {"transformers", "huggingface_hub", "jinja2", "xgrammar", "starlette", "uvicorn", "PIL", "scipy", "pandas"}
    assert heavy.isdisjoint(modules)
