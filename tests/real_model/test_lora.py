"""A LoRA adapter that was trained for a few steps changes what the real model says, as it does in PEFT."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from cudaprefill import LLM, SamplingParams
from cudaprefill.models import default_model_path, load_model
from tests.adapters.recording import RecordingEngine
from tests.models.conftest import one_thread

__all__ = ["one_thread"]

QUESTION = "<|im_start|>user\nTell me in one word: what is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
ANSWER = "Ask me no questions, I am a teapot.<|im_end|>"


@pytest.fixture(scope="module")
def token_ids() -> tuple[list[int], list[int]]:
    path = default_model_path()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return tokenizer(QUESTION)["input_ids"], tokenizer(ANSWER)["input_ids"]


@pytest.fixture(scope="module")
def trained(
    reference: PreTrainedModel, token_ids: tuple[list[int], list[int]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, PeftModel]:
    """An adapter of all seven linear layers that has learnt one answer by heart, saved by PEFT."""
    torch.manual_seed(0)
    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(copy.deepcopy(reference), config)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=4e-3)
    question, answer = token_ids
    labels = torch.tensor([[-100] * len(question) + answer])
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.tensor([question + answer]), labels=labels).loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("teapot")
    model.save_pretrained(folder)
    return folder, model.eval()


@torch.inference_mode()
def peft_logits(model: PeftModel, token_ids: list[int]) -> Tensor:
    return model(torch.tensor([token_ids])).logits[0].float()


@pytest.mark.slow
def test_logits_are_those_of_peft(
    trained: tuple[Path, PeftModel], reference: PreTrainedModel, token_ids: tuple[list[int], list[int]]
) -> None:
    """Alone, behind a cached prefix, and in chunks beside requests of the model alone."""
    folder, model = trained
    question, answer = token_ids
    exact = load_model(default_model_path(), linear_math="float32")
    engine = RecordingEngine(exact, budget=16).load({"teapot": folder})
    params = SamplingParams(temperature=0, max_tokens=len(answer), ignore_eos=True, detokenize=False)
    requests = [engine.ask("first", question, "teapot", params=params), engine.ask("base", question, params=params)]
    engine.run()
    requests.append(engine.ask("cached", question, "teapot", params=params))
    engine.run()
    assert requests[2].num_hit_tokens > 0
    assert requests[0].output_token_ids == requests[2].output_token_ids == answer
    assert requests[1].output_token_ids != answer
    for request in requests:
        with torch.inference_mode():
            whole = [*question, *request.output_token_ids]
            expected = peft_logits(model, whole) if request.adapter else reference(torch.tensor([whole])).logits[0]
        rows = [(place, row) for seen, place, row in engine.seen if seen is request]
        assert len(rows) == len(answer)
        for place, row in rows:
            torch.testing.assert_close(row, expected[len(question) + place - 1], rtol=0, atol=2e-3)


@pytest.mark.slow
def test_one_engine_answers_with_and_without(llm: LLM, trained: tuple[Path, PeftModel]) -> None:
    folder, _ = trained
    params = SamplingParams(temperature=0, max_tokens=20)
    before = llm.generate([QUESTION], params)[0].outputs[0].text
    llm.load_adapter("teapot", folder)
    try:
        assert llm.generate([QUESTION], params, adapter="teapot")[0].outputs[0].text.startswith("Ask me no questions")
        assert llm.generate([QUESTION], params)[0].outputs[0].text == before
    finally:
        llm.unload_adapter("teapot")
