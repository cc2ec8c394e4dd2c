"""Prompt tuning and P-tuning: embeddings of virtual tokens in front of the prompt.

PEFT saves what its encoder gives, whatever kind that is, so both are one tensor of embeddings here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from cudaprefill.adapters.adapter import Adapter, AdapterTarget
from cudaprefill.adapters.config import AdapterFields
from cudaprefill.adapters.errors import AdapterError
from cudaprefill.adapters.files import TENSORS, content_hash, in_dtype
from cudaprefill.adapters.virtual_tokens import VirtualTokens
from cudaprefill.sampling_params import show

EMBEDDINGS = "prompt_embeddings"  # the one tensor of every kind of prompt learning

_KINDS = {"PROMPT_TUNING": "prompt tuning", "P_TUNING": "P-tuning"}
# Sizes, which are checked, and how the embeddings were begun or encoded, which is over when they are saved.
_KNOWN = {
    "num_virtual_tokens",
    "token_dim",
    "num_transformer_submodules",
    "num_attention_heads",
    "num_layers",
    "prompt_tuning_init",
    "prompt_tuning_init_text",
    "tokenizer_name_or_path",
    "tokenizer_kwargs",
    "encoder_reparameterization_type",
    "encoder_hidden_size",
    "encoder_num_layers",
    "encoder_dropout",
}


def load_prompt_adapter(
    name: str, folder: Path, fields: AdapterFields, tensors: Mapping[str, Tensor], target: AdapterTarget
) -> Adapter:
    """Raises AdapterError saying what is wrong."""
    hidden_size = target.model.hidden_size
    fields.know_only(_KNOWN)
    fields.only("num_transformer_submodules", 1)
    fields.fits("token_dim", hidden_size, "the hidden size")
    fields.fits("num_layers", target.model.num_layers, "the number of layers")
    embeddings = the_tensor(tensors, (num_virtual_tokens(fields, target), hidden_size))
    return Adapter(
        name,
        folder,
        _KINDS[fields.peft_type],
        content_hash({"peft_type": fields.peft_type}, tensors),
        VirtualTokens(embeddings=in_dtype(EMBEDDINGS, embeddings, target.activation_dtype).to(target.device)),
    )


def num_virtual_tokens(fields: AdapterFields, target: AdapterTarget) -> int:
    """Raises AdapterError for more than leave room for a prompt and an output."""
    count = fields.integer("num_virtual_tokens")
    if count + 2 > target.max_model_len:
        raise AdapterError(
            f"{count} virtual tokens leave no room for a prompt and an output: max_model_len is {target.max_model_len}"
        )
    return count


def the_tensor(tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """The one tensor of a kind of prompt learning. Raises AdapterError where it is missing, misshapen or not alone."""
    if EMBEDDINGS not in tensors:
        raise AdapterError(f"{TENSORS} holds no tensor {EMBEDDINGS!r}, only {show(sorted(tensors))}")
    if len(tensors) > 1:
        raise AdapterError(f"{TENSORS} holds unexpected tensors {show(sorted(tensors.keys() - {EMBEDDINGS}))}")
    tensor = tensors[EMBEDDINGS]
    if tuple(tensor.shape) != shape:
        raise AdapterError(f"tensor {EMBEDDINGS!r} must have the shape {shape}, got {tuple(tensor.shape)}")
    return tensor
