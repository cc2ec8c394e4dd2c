"""A GGUF file as a folder of float32 safetensors, for engines that read nothing else."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from cudaprefill.models.gguf import GgufFile
from cudaprefill.models.gguf_config import parse_gguf_config
from cudaprefill.models.gguf_source import GgufSource
from cudaprefill.models.weights import expected_tensors
from cudaprefill.text.tokenizer_files import convert_tokenizer

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def safetensors_folder(path: Path, parent: Path) -> Path:
    """The folder with the model of `path`, made in `parent` unless it is there: its name tells the file's content.

    `path` itself where it is a folder already. Raises ValueError for what a config.json would not say.
    """
    if path.is_dir():
        return path
    folder = parent / f"{path.stem}-{file_hash(path)[:12]}"
    if not folder.exists():
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        _write(path, unfinished)
        unfinished.rename(folder)
    return folder


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _write(path: Path, folder: Path) -> None:
    from transformers import AutoConfig

    config = parse_gguf_config(GgufFile(path))
    source = GgufSource(GgufFile(path), config)
    tensors: dict[str, Tensor] = {}
    try:
        if source.rope_factors is not None:
            raise ValueError(f"{path.name} has RoPE factors as a tensor, which a config.json cannot hold")
        for name, shape in expected_tensors(config).items():
            tensors[name] = torch.empty(shape)
            source.copy_into(name, tensors[name])
    finally:
        source.close()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    keys: dict[str, Any] = AutoConfig.from_pretrained(path.parent, gguf_file=path.name).to_dict()
    keys.pop("quantization_config", None)
    keys |= {
        "architectures": [_ARCHITECTURES[config.family]],
        "dtype": "float32",
        "head_dim": config.head_size,
        "tie_word_embeddings": config.tied_embeddings,
        "eos_token_id": list(config.eos_token_ids),
    }
    (folder / "config.json").write_text(json.dumps(keys, indent=2) + "\n")
    files = convert_tokenizer(path)
    (folder / "tokenizer.json").write_text(files.backend)
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **files.special_tokens,
        "chat_template": files.chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2) + "\n")
