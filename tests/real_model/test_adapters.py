"""Adapters that PEFT has trained for a few steps on SmolLM2 give here what they give there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PrefixTuningConfig, PromptEncoderConfig, get_peft_model
from torch import Tensor
from transformers import PreTrainedModel

from cudaprefill.engine.request import Request
from cudaprefill.models import Decoder, default_model_path, load_model
from cudaprefill.text.tokenizer import Tokenizer
from tests.adapters.peft_adapters import Reference
from tests.adapters.recording import RecordingEngine

NUM_VIRTUAL, STEPS = 32, 3
SENTENCE = "My parcel is late. Thank you for your patience: we look into it at once."
QUESTION = "My parcel is late. Thank you for"
CONFIGS: dict[str, Any] = {
    "P-tuning": PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=NUM_VIRTUAL, encoder_hidden_size=128),
    "prefix tuning": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=NUM_VIRTUAL),
}


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return load_model(default_model_path(), dtype="float32", max_model_len=512)


def train(base: PreTrainedModel, config: Any, token_ids: list[int], folder: Path) -> list[float]:
    """The loss before each step."""
    torch.manual_seed(0)
    model = get_peft_model(base, config)  # of these kinds: it changes nothing in the base model
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    batch, losses = torch.tensor([token_ids]), []
    for _ in range(STEPS):
        loss = model(input_ids=batch, labels=batch).loss
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_trained_adapter(reference: PreTrainedModel, decoder: Decoder, kind: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(default_model_path())
    losses = train(reference, CONFIGS[kind], tokenizer.encode(SENTENCE), tmp_path)
    assert losses[-1] < losses[0]
    engine = RecordingEngine(decoder, budget=48).load({"trained": tmp_path})
    question = tokenizer.encode(QUESTION)
    first = engine.ask("first", question, "trained")
    plain = engine.ask("plain", question)
    engine.run()
    second = engine.ask("second", question, "trained")
    engine.run()
    assert (first.num_hit_tokens, plain.num_hit_tokens, second.num_hit_tokens) == (0, 0, NUM_VIRTUAL)
    assert second.output_token_ids == first.output_token_ids
    peft = Reference(reference, tmp_path)

    @torch.inference_mode()
    def expected(request: Request, token_ids: list[int]) -> Tensor:
        return reference(torch.tensor([token_ids])).logits[0] if request is plain else peft.logits(token_ids)

    for request in (first, plain):
        logits = expected(request, [*question, *request.output_token_ids])[len(question) - 1 : -1]
        told = torch.stack([row for whose, _, row in engine.seen if whose is request])
        torch.testing.assert_close(told, logits, rtol=0, atol=1e-3)
