"""Families whose layers differ, with the CUDA kernels behind the decoder: the logits of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cudaprefill.models import load_model
from tests.cuda.backends import GPU_BACKENDS, backend_of_ops
from tests.models.paged import PagedRunner
from tests.models.tiny import ROPE, random_tokens, reference_logits, save_tiny_model

FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 9},
    "gemma3_text": {"sliding_window": 9},
    "phi3": {"rope_parameters": {**ROPE["default"], "partial_rotary_factor": 0.75}},
    "mixtral": {},
    "qwen3_moe": {"norm_topk_prob": True},
}
PROMPT = random_tokens(21)


@pytest.mark.parametrize("backend", GPU_BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_in_chunks_and_decodes(tmp_path: Path, family: str, backend: str) -> None:
    reference = save_tiny_model(tmp_path, family, **FAMILIES[family])
    runner = PagedRunner(load_model(tmp_path))
    with backend_of_ops(backend):
        logits = [runner.step(chunks={"a": chunk})["a"] for chunk in (PROMPT[:11], PROMPT[11:18])]
        logits += [runner.step(decodes={"a": token})["a"] for token in PROMPT[18:]]
    torch.testing.assert_close(torch.cat(logits), reference_logits(reference, PROMPT), rtol=0, atol=1e-4)
