"""What LoRA costs: 16 requests over 8 adapters beside the same requests without.

    python -m benchmarks.lora [--stored float32] [--linear-math auto] [--json FILE]

Adapters of rank 16 on all seven linear layers of the default model, with random matrices in PEFT's format. Two loads,
each with and without adapters in turn: prompts of 390 tokens with 64 outputs, and short prompts, of which the steps
that only decode are compared. Goal: at most 1.25 of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.figures import Figure, write_figures
from cudaprefill.config import LINEAR_MATHS, EngineConfig
from cudaprefill.engine.factory import EngineParts, build_engine
from cudaprefill.models import default_model_path, read_model_config
from cudaprefill.models.config import ModelConfig
from cudaprefill.sampling_params import SamplingParams

NUM_ADAPTERS = 8
NUM_REQUESTS = 16
RANK = 16


def write_adapter(folder: Path, config: ModelConfig, rank: int, dtype: torch.dtype, seed: int) -> None:
    """A random adapter of all seven linear layers, as PEFT saves it."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_q_heads * config.head_size, config.num_kv_heads * config.head_size
    layers = {
        "self_attn.q_proj": (q_size, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, q_size),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    tensors = {}
    for layer in range(config.num_layers):
        for name, (num_outputs, num_inputs) in layers.items():
            stem = f"base_model.model.model.layers.{layer}.{name}"
            a = torch.randn(rank, num_inputs, generator=generator) / num_inputs**0.5
            tensors[f"{stem}.lora_A.weight"] = a.to(dtype)
            tensors[f"{stem}.lora_B.weight"] = (0.02 * torch.randn(num_outputs, rank, generator=generator)).to(dtype)
    targets = [name.rpartition(".")[2] for name in layers]
    values = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets, "bias": "none"}
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(values))
    save_file(tensors, folder / "adapter_model.safetensors")


@dataclass(frozen=True)
class Run:
    """Of one batch; seconds."""

    total: float
    decode_step: float  # the median of those that only decode all requests


def run(parts: EngineParts, prompts: list[list[int]], outputs: int, adapters: list[str]) -> Run:
    """All prompts at once; request i uses adapter i modulo their number, or none where there are none."""
    params = SamplingParams(temperature=0, max_tokens=outputs, ignore_eos=True, detokenize=False)
    engine, steps = parts.engine, []
    for number, prompt in enumerate(prompts):
        adapter = adapters[number % len(adapters)] if adapters else None
        request, _ = parts.input_processor.process_prompt(f"{number}", prompt, params, adapter=adapter)
        engine.submit(request)
    start = time.perf_counter()
    while engine.has_work():
        only_decodes = engine.scheduler.num_decoding == len(prompts)
        begin = time.perf_counter()
        engine.step()
        if only_decodes:
            steps.append(time.perf_counter() - begin)
    return Run(time.perf_counter() - start, statistics.median(steps))


def measure(
    parts: EngineParts, adapters: list[str], prompt_tokens: int, outputs: int, repeats: int
) -> tuple[list[Run], list[Run]]:
    """Runs without and with adapters, in turn."""
    vocab_size = parts.input_processor.vocab_size
    base: list[Run] = []
    lora: list[Run] = []
    for repeat in range(repeats):
        prompts = [[random.randrange(10, vocab_size) for _ in range(prompt_tokens)] for _ in range(NUM_REQUESTS)]
        for runs in (base, lora) if repeat % 2 else (lora, base):
            runs.append(run(parts, prompts, outputs, adapters if runs is lora else []))
    return base, lora


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--stored", default="float32", choices=["float32", "bfloat16"], help="precision of the adapters"
    )
    parser.add_argument("--linear-math", default="auto", choices=LINEAR_MATHS, help="of the model's weights")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    flags = parser.parse_args()
    config = read_model_config(default_model_path())
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        names = [f"adapter-{number}" for number in range(NUM_ADAPTERS)]
        for number, name in enumerate(names):
            write_adapter(Path(folder, name), config, RANK, getattr(torch, flags.stored), number)
        folders = {name: Path(folder, name) for name in names}
        parts = build_engine(EngineConfig(enable_prefix_caching=False, adapters=folders, linear_math=flags.linear_math))
    print(f"{parts.info}\n{NUM_ADAPTERS} adapters of rank {RANK} in {flags.stored}, load {os.getloadavg()[0]:.1f}")
    for what, prompt_tokens, outputs in (("390 + 64 tokens", 390, 64), ("decode steps", 8, 64)):
        base, lora = measure(parts, names, prompt_tokens, outputs, flags.repeats)
        of = (lambda each: each.total) if prompt_tokens > 100 else (lambda each: each.decode_step)
        before, after = [of(each) for each in base], [of(each) for each in lora]
        ratios = [with_lora / without for with_lora, without in zip(after, before, strict=True)]
        fastest = min(after) / min(before)
        print(
            f"{what:16} {min(before) * 1e3:8.1f} ms without, {min(after) * 1e3:8.1f} ms with adapters: "
            f"{statistics.median(ratios):.3f} median, {fastest:.3f} of the fastest (goal: at most 1.25)"
        )
        figures.append(Figure(f"{what}, LoRA over base", "x", ratios))
    print(f"load {os.getloadavg()[0]:.1f}")
    if flags.json:
        info = parts.info
        setting = {
            "kernels": info.kernels,
            "threads": info.threads,
            "weights": info.dtype,
            "linear_math": info.linear_math,
            "stored": flags.stored,
        }
        write_figures(flags.json, figures, setting)
    return 0


if __name__ == "__main__":
    sys.exit(main())
