"""The real model: SmolLM2-135M-Instruct on the whole engine, and in transformers as the reference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from cudaprefill import LLM
from cudaprefill.models import default_model_path
from tests.real_model.serving import serving


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """In float32, as the reference."""
    with LLM(linear_math="float32") as llm:
        yield llm


@pytest.fixture(scope="session")
def reference() -> PreTrainedModel:
    """The same weights, read from the GGUF file and run by transformers in float32."""
    path = default_model_path()
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    # What from_pretrained(gguf_file=...) does, without the accelerate package that it asks for.
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """Of a server with the packaged model, called `smollm2`."""
    with serving("--served-model-name", "smollm2", "--kv-cache-memory", "256MiB", "--max-model-len", "2048") as url:
        yield url
