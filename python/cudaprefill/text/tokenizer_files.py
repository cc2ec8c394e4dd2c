"""What a tokenizer is made of, taken from a Hugging Face folder or a GGUF file through transformers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

# How a byte-level vocabulary of a GGUF file splits text, by its tokenizer.ggml.pre. transformers sets the patterns it
# knows and leaves GPT-2's for everything else, which is right only for these:
GPT2_PATTERN = frozenset({"gpt-2", "mpt", "olmo", "jais", "trillion", "granite-docling"})
# and wrong for these, whose merges were learned with every digit split off before GPT-2's pattern.
SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})


@dataclass(frozen=True)
class TokenizerFiles:
    """Everything `Tokenizer` needs, as plain data."""

    backend: str  # the text of a tokenizer.json
    special_tokens: dict[str, str]  # "bos_token", "eos_token", ... -> how it is spelled; chat templates use these
    chat_template: str | None


def convert_tokenizer(path: str | os.PathLike[str]) -> TokenizerFiles:
    """Reads the tokenizer of a Hugging Face folder or a GGUF file. Takes seconds.

    Raises ValueError with the path and the reason where there is none or where it cannot be read rightly.
    """
    from transformers import AutoTokenizer  # imports torch, which loading from the cache need not

    path = Path(path)
    if not path.exists():
        raise ValueError(f"tokenizer: {str(path)!r} is neither a folder nor a GGUF file")
    source = {} if path.is_dir() else {"gguf_file": path.name}
    folder = path if path.is_dir() else path.parent
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **source
        )
    except Exception as error:
        raise ValueError(f"tokenizer: {str(path)!r} cannot be read: {error}") from error
    if not tokenizer.is_fast:
        raise ValueError(f"tokenizer: {str(path)!r} has none that the tokenizers library runs")
    if path.is_file():
        _mend_splitting(tokenizer.backend_tokenizer, path)
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    special_tokens = {
        name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)
    }
    return TokenizerFiles(tokenizer.backend_tokenizer.to_str(), special_tokens, template)


def _mend_splitting(backend: Any, path: Path) -> None:
    """Gives a byte-level tokenizer made from a GGUF file the splitting that the file names."""
    from cudaprefill.models.gguf import GgufFile

    metadata = GgufFile(path).metadata
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return
    pre = metadata.get("tokenizer.ggml.pre")
    if pre in SINGLE_DIGITS:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif pre not in GPT2_PATTERN and json.loads(backend.to_str())["pre_tokenizer"]["type"] == "ByteLevel":
        raise ValueError(f"tokenizer: {str(path)!r} has the unknown tokenizer.ggml.pre {pre!r}")
