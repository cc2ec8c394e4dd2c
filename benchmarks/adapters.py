"""What the prefix cache does for the virtual tokens of adapters: TTFT with and without their blocks.

    python -m benchmarks.adapters [--virtual-tokens 64] [--text-tokens 16] [--rounds 9] [--json FILE]

Adapters with random values, made for the packaged model, answer short texts that are new each time: of P-tuning
(embeddings, to be computed once) and of prefix tuning (keys and values, to be written once). In each round the cache is
emptied; then a text meets an adapter whose virtual tokens are not there, another text one whose are, and the first text
another adapter. Rounds take turns, so the load of the machine falls on all alike: compare them as ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.figures import Figure, write_figures
from cudaprefill import LLM, RequestOutput, SamplingParams
from cudaprefill.models import ModelConfig, default_model_path, read_model_config

ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
KINDS = {"P-tuning": "P_TUNING", "prefix tuning": "PREFIX_TUNING"}


def write_adapter(folder: Path, peft_type: str, model: ModelConfig, num_tokens: int, seed: int) -> None:
    """As PEFT saves it."""
    generator = torch.Generator().manual_seed(seed)
    of_token = model.hidden_size
    config: dict[str, object] = {"peft_type": peft_type, "task_type": "CAUSAL_LM", "num_virtual_tokens": num_tokens}
    if peft_type == "PREFIX_TUNING":
        of_token = model.num_layers * 2 * model.num_kv_heads * model.head_size
        config["num_attention_heads"] = model.num_kv_heads
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    rows = torch.randn(num_tokens, of_token, generator=generator) * 0.1
    save_file({"prompt_embeddings": rows}, folder / "adapter_model.safetensors")


def ask(llm: LLM, number: int, length: int, adapter: str | None) -> RequestOutput:
    text = [(number * 31 + place * 7) % 5000 + 100 for place in range(length)]
    (output,) = llm.generate({"prompt_token_ids": text}, ONE_TOKEN, adapter=adapter)
    return output


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--virtual-tokens", type=int, default=64)
    parser.add_argument("--text-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    flags = parser.parse_args()
    model = read_model_config(default_model_path())
    ttfts: dict[str, list[float]] = {}
    hits: dict[str, int] = {}

    def note(case: str, output: RequestOutput) -> None:
        assert output.metrics is not None
        assert output.metrics.ttft is not None
        ttfts.setdefault(case, []).append(output.metrics.ttft)
        hits[case] = output.metrics.num_cached_virtual_tokens

    with tempfile.TemporaryDirectory() as temporary, LLM() as llm:
        print(llm.info)
        for kind, peft_type in KINDS.items():
            for seed, name in enumerate((kind, f"another {kind}")):
                folder = Path(temporary) / name
                write_adapter(folder, peft_type, model, flags.virtual_tokens, seed)
                llm.load_adapter(name, folder)
        for number in range(0, -2 * (flags.rounds + 1), -2):  # the first round warms up
            if number == -2:
                ttfts.clear()
            for kind in KINDS:
                llm.reset_prefix_cache()
                note(f"{kind}, cold", ask(llm, number, flags.text_tokens, kind))
                note(f"{kind}, found", ask(llm, number - 1, flags.text_tokens, kind))
                note(f"{kind}, another adapter", ask(llm, number, flags.text_tokens, f"another {kind}"))
            note("no adapter", ask(llm, number, flags.text_tokens, None))
    print(f"{'':32}{'virtual tokens found':>22}{'TTFT ms':>10}{'of cold':>9}")
    for case, seconds in ttfts.items():
        ratio = ""
        if case != "no adapter":
            cold = ttfts[f"{case.split(',')[0]}, cold"]
            ratio = f"{statistics.median(each / other for each, other in zip(seconds, cold, strict=True)):9.2f}"
        found = "" if case == "no adapter" else f"{hits[case]} of {flags.virtual_tokens}"
        print(f"{case:32}{found:>22}{statistics.median(seconds) * 1e3:10.1f}{ratio}")
    if flags.json:
        figures = [Figure(f"TTFT, {case}", "s", seconds) for case, seconds in ttfts.items()]
        setting = {"virtual_tokens": flags.virtual_tokens, "text_tokens": flags.text_tokens}
        write_figures(flags.json, figures, setting)
    return 0


if __name__ == "__main__":
    sys.exit(main())
