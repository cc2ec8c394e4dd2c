"""The bytes that each token adds to a text: what a grammar sees of a vocabulary."""

from __future__ import annotations

import json

from cudaprefill.text.tokenizer import Tokenizer


def token_bytes(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """[vocab_size]: of each token within a text; empty for control tokens and for ids that the tokenizer lacks."""
    backend = tokenizer.backend
    added = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}
    bytes_of = _byte_level_bytes() if _has_byte_level_decoder(tokenizer) else None

    def of(token_id: int) -> bytes:
        token: str | None = backend.id_to_token(token_id)
        if token is None or token_id in tokenizer.control_token_ids:
            return b""
        if token_id in tokenizer.byte_token_ids:
            return bytes([int(token[3:5], 16)])  # <0x0A>
        if bytes_of is not None and token_id not in added and all(character in bytes_of for character in token):
            return bytes(bytes_of[character] for character in token)
        return tokenizer.token_text(token_id).encode()

    return [of(token_id) for token_id in range(vocab_size)]


def text_loses_first_space(tokenizer: Tokenizer, bytes_of_tokens: list[bytes]) -> bool:
    """Whether decoding takes a space off the front of a text, as tokenizers do that put one there."""
    for token_id, text in enumerate(bytes_of_tokens):
        if text.startswith(b" "):
            return not tokenizer.decode([token_id], skip_special_tokens=False).startswith(" ")
    return False


def _has_byte_level_decoder(tokenizer: Tokenizer) -> bool:
    decoder = json.loads(tokenizer.backend.to_str())["decoder"]
    steps = (decoder or {}).get("decoders", [decoder])
    return any(step is not None and step["type"] == "ByteLevel" for step in steps)


def _byte_level_bytes() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for: itself where it is printable, and the others,
    in order, are the characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
