"""Adapters that PEFT has trained for a few steps on SmolLM2 give here what they give there."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai import OpenAI
from peft import PrefixTuningConfig, PromptEncoderConfig, get_peft_model
from torch import Tensor
from transformers import PreTrainedModel

from cudaprefill import LLM, SamplingParams, UnknownAdapterError
from cudaprefill.engine.request import Request
from cudaprefill.models import Decoder, default_model_path, load_model, read_model_config
from cudaprefill.text.tokenizer import Tokenizer
from tests.adapters.by_hand import write_prompt_adapter
from tests.adapters.peft_adapters import Reference
from tests.adapters.recording import RecordingEngine
from tests.real_model.serving import serving

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


def test_the_python_api(llm: LLM, tmp_path: Path) -> None:
    model = read_model_config(default_model_path())
    folder = write_prompt_adapter(tmp_path, 64, hidden_size=model.hidden_size, num_layers=model.num_layers)
    one = SamplingParams(temperature=0, max_tokens=1)
    llm.load_adapter("tuned", folder)
    try:
        assert llm.adapters == ["tuned"]
        found = []
        for ask in (llm.generate, llm.generate, llm.chat):
            prompt: Any = [{"role": "user", "content": QUESTION}] if ask == llm.chat else QUESTION
            (output,) = ask(prompt, one, adapter="tuned")
            assert output.metrics is not None
            found.append(output.metrics.num_cached_virtual_tokens)
        assert found == [0, 64, 64]
        stream = llm.stream(QUESTION, SamplingParams(max_tokens=20, ignore_eos=True), adapter="tuned")
        llm.unload_adapter("tuned")
        assert stream.wait().finished
    finally:
        with contextlib.suppress(UnknownAdapterError):
            llm.unload_adapter("tuned")
    with pytest.raises(UnknownAdapterError, match="no adapter 'tuned' is loaded"):
        llm.generate(QUESTION, one, adapter="tuned")
    rows = torch.zeros(3, model.hidden_size)
    (output,) = llm.generate({"prompt_embeds": rows, "prompt": QUESTION}, one)
    assert len(output.outputs[0].token_ids) == 1


def test_openais_client_of_a_server_with_adapters(tmp_path: Path) -> None:
    model = read_model_config(default_model_path())
    sizes = {"hidden_size": model.hidden_size, "num_layers": model.num_layers}
    for seed, name in enumerate(("tuned", "other")):
        write_prompt_adapter(tmp_path / name, 64, seed, **sizes)
    flags = ["--served-model-name", "smollm2", "--kv-cache-memory", "64MiB", "--allow-runtime-adapters", str(tmp_path)]
    with serving(*flags, "--adapter", f"tuned={tmp_path / 'tuned'}") as url:
        loaded = httpx.post(
            f"{url}/v1/load_lora_adapter", json={"lora_name": "other", "lora_path": "other"}, timeout=60
        )
        assert loaded.status_code == 200, loaded.text
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
        models = {each.id: each.model_dump() for each in client.models.list()}
        assert {name: models[name]["parent"] for name in models} == {
            "smollm2": None,
            "tuned": "smollm2",
            "other": "smollm2",
        }
        found = []
        for name in ("tuned", "tuned", "other", "other"):
            usage = client.completions.create(model=name, prompt=QUESTION, max_tokens=2, temperature=0).usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            assert usage.prompt_tokens < 16
            found.append(usage.prompt_tokens_details.model_dump()["cached_virtual_tokens"])
        assert found == [0, 64, 0, 64]


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
