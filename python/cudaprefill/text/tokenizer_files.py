"""What a tokenizer is made of, taken from a Hugging Face folder or a GGUF file through transformers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DIGITS_THEN_GPT2 = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}

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
    backend: str = tokenizer.backend_tokenizer.to_str()
    special_tokens = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    if path.is_file():
        backend, special_tokens = _mend(backend, special_tokens, path)
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return TokenizerFiles(backend, special_tokens, template)


def _mend(backend: str, special_tokens: dict[str, str], path: Path) -> tuple[str, dict[str, str]]:
    """Makes of the conversion what the GGUF file says, where transformers adds to it or leaves out of it."""
    from cudaprefill.models.gguf import GgufFile

    metadata, content = GgufFile(path).metadata, json.loads(backend)
    # Default tokens of the class that transformers chose get ids behind the file's, for which the model has no row.
    known = set(metadata["tokenizer.ggml.tokens"])
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in known]
    if metadata["tokenizer.ggml.model"] == "gpt2":
        pre = metadata.get("tokenizer.ggml.pre")
        if pre in SINGLE_DIGITS:
            content["pre_tokenizer"] = _DIGITS_THEN_GPT2
        elif pre not in GPT2_PATTERN and content["pre_tokenizer"]["type"] == "ByteLevel":
            raise ValueError(f"tokenizer: {str(path)!r} has the unknown tokenizer.ggml.pre {pre!r}")
    return json.dumps(content), {name: token for name, token in special_tokens.items() if token in known}
