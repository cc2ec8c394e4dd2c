"""The real model: SmolLM2-135M-Instruct on the whole engine, and in transformers as the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cudaprefill import LLM
from cudaprefill.models import default_model_path


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM() as llm:
        yield llm


@pytest.fixture(scope="session")
def reference() -> Any:
    """The same weights, read from the GGUF file and run by transformers in float32."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    path = default_model_path()
    return AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()
