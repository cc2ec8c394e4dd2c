"""Adapters as PEFT makes and saves them, and PEFT on transformers as the reference."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from torch import Tensor
from transformers import PreTrainedModel

_TASK = "CAUSAL_LM"
# Numbers of virtual tokens that end within a block and at its end.
CONFIGS: dict[str, Any] = {
    "prompt tuning": PromptTuningConfig(task_type=_TASK, num_virtual_tokens=20),
    "P-tuning, MLP": PromptEncoderConfig(task_type=_TASK, num_virtual_tokens=16, encoder_hidden_size=24),
    "P-tuning, LSTM": PromptEncoderConfig(
        task_type=_TASK, num_virtual_tokens=35, encoder_hidden_size=24, encoder_reparameterization_type="LSTM"
    ),
    "prefix tuning": PrefixTuningConfig(task_type=_TASK, num_virtual_tokens=20),
    "prefix tuning, projected": PrefixTuningConfig(
        task_type=_TASK, num_virtual_tokens=33, prefix_projection=True, encoder_hidden_size=24
    ),
}


def save_adapter(folder: Path, base: PreTrainedModel, config: Any, seed: int = 0) -> None:
    """An untrained adapter of `base`, in `folder` as PEFT saves it."""
    torch.manual_seed(seed)
    get_peft_model(copy.deepcopy(base), copy.deepcopy(config)).save_pretrained(folder)


class Reference:
    """A base model with one of PEFT's adapters, as PEFT loads it."""

    def __init__(self, base: PreTrainedModel, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that there is nothing to train
            self._model = PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        """Of each token of a text behind the adapter's virtual tokens, [len(token_ids), V]."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PEFT calls transformers in ways that are to go
            return self._model(torch.tensor([token_ids])).logits[0, -len(token_ids) :]
