"""Logits of the real model on real text are those of transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel

from cudaprefill.models import default_model_path, load_model
from tests.models.paged import PagedRunner
from tests.models.tiny import reference_logits


@pytest.mark.slow
def test_the_default_model_gives_transformers_logits(reference: PreTrainedModel) -> None:
    path = default_model_path()
    decoder = load_model(path, linear_math="float32")
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    token_ids = tokenizer(
        "<|im_start|>user\nExplain why the sky is blue, and why sunsets are red, to a ten-year-old child.<|im_end|>\n"
        "<|im_start|>assistant\nThe sky is blue because of something called scattering."
    )["input_ids"]
    runner = PagedRunner(decoder)
    half = len(token_ids) // 2
    first = runner.step(chunks={"a": token_ids[:half]})["a"]
    rest = [runner.step(decodes={"a": token})["a"] for token in token_ids[half:]]
    torch.testing.assert_close(torch.cat([first, *rest]), reference_logits(reference, token_ids), rtol=0, atol=1e-3)
    assert decoder.config.eos_token_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
