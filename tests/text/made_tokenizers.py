"""Small tokenizers of the two kinds that models have, and folders and files that hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from cudaprefill.text.tokenizer_files import TokenizerFiles

SPECIAL_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
# Writes BOS itself, as the templates of Llama and Mistral do, and closes each message with EOS.
TEMPLATE_WITH_BOS = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"


def byte_fallback() -> Tokenizer:
    """Of the sentencepiece kind: a mark for spaces, byte tokens for what the vocabulary lacks, BOS in front."""
    vocab = {token: number for number, token in enumerate(("<unk>", "<s>", "</s>"))}
    for token in [f"<0x{byte:02X}>" for byte in range(256)] + list("▁abcdefghijklmnopqrstuvwxyz,.!<>/[]"):
        vocab[token] = len(vocab)
    merges = [("▁", "a"), ("h", "e"), ("▁", "he"), ("l", "l"), ("▁", "▁")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def byte_level() -> Tokenizer:
    """Of the GPT-2 kind: every byte a token, a few merges, one added token that is not special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("h", "e"), ("Ġ", "he"), ("l", "l"), ("Ġ", "Ġ")]
    tokens = [*SPECIAL_TOKENS.values(), *alphabet, *(left + right for left, right in merges), "<think>"]
    backend = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS.values()])
    backend.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def files(backend: Tokenizer, chat_template: str | None = TEMPLATE_WITH_BOS) -> TokenizerFiles:
    return TokenizerFiles(backend.to_str(), SPECIAL_TOKENS, chat_template)


def write_folder(
    folder: Path, backend: Tokenizer, chat_template: str | None = TEMPLATE_WITH_BOS, **config: Any
) -> Path:
    """A Hugging Face folder."""
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL_TOKENS}
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_gguf(path: Path, pre: str | None, model: str = "gpt2") -> Path:
    """A GGUF file of nothing but a byte-level tokenizer."""
    vocab = sorted(byte_level().get_vocab().items(), key=lambda entry: entry[1])
    kind = {"<think>": gguf.TokenType.USER_DEFINED, **dict.fromkeys(SPECIAL_TOKENS.values(), gguf.TokenType.CONTROL)}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types([kind.get(token, gguf.TokenType.NORMAL) for token, _ in vocab])
    writer.add_token_merges(["Ġ a", "h e", "Ġ he", "l l", "Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE_WITH_BOS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
