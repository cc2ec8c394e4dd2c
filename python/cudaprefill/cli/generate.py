"""`cudaprefill generate`: continues prompts."""

from __future__ import annotations

import argparse
import json
import sys

from cudaprefill.cli.engine_flags import chosen_adapter
from cudaprefill.cli.load import load_llm
from cudaprefill.cli.progress import Progress
from cudaprefill.outputs import RequestOutput
from cudaprefill.sampling_params import SamplingParams
from cudaprefill_tui.printable import shown


def run(flags: argparse.Namespace) -> int:
    prompts = flags.prompts or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not prompts:
        raise ValueError("no prompt: give one as an argument, or one a line on standard input")
    params = SamplingParams(
        n=flags.n,
        temperature=flags.temperature,
        top_p=flags.top_p,
        top_k=flags.top_k,
        seed=flags.seed,
        stop=flags.stop,
        max_tokens=flags.max_tokens,
    )
    adapter = chosen_adapter(flags)
    with load_llm(flags) as llm, Progress("generating") as progress:
        outputs = llm.generate(prompts, params, adapter=adapter, progress=progress)
    for output in outputs:
        print(json.dumps(_as_dict(output)) if flags.json else shown(_as_text(output), sys.stdout))
    return 0


def _as_text(request: RequestOutput) -> str:
    return "\n".join(f"{request.prompt}{output.text}" for output in request.outputs)


def _as_dict(request: RequestOutput) -> dict[str, object]:
    metrics = request.metrics
    return {
        "prompt": request.prompt,
        "prompt_token_ids": request.prompt_token_ids,
        "outputs": [
            {"text": output.text, "token_ids": output.token_ids, "finish_reason": output.finish_reason}
            for output in request.outputs
        ],
        "num_cached_tokens": metrics.num_cached_tokens if metrics else 0,
        "num_virtual_tokens": metrics.num_virtual_tokens if metrics else 0,
        "num_cached_virtual_tokens": metrics.num_cached_virtual_tokens if metrics else 0,
        "ttft_s": metrics.ttft if metrics else None,
        "mean_itl_s": metrics.mean_itl if metrics else None,
    }
