"""Pieces of text join to the text of all tokens, whatever the tokens, and none is ever taken back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cudaprefill.text.detokenizer import Detokenizer
from cudaprefill.text.tokenizer import Tokenizer


def byte_ids(tokenizer: Tokenizer, text: bytes) -> list[int]:
    """One token a byte."""
    if tokenizer.byte_token_ids:
        return [tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in text]
    return [next(t for t in range(3, 300) if tokenizer.backend.id_to_token(t) == SPELLING[byte]) for byte in text]


# The character that stands for each byte in a byte-level vocabulary: itself where it is visible, else one above 255.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
SPELLING = {byte: chr(byte) for byte in _VISIBLE}
SPELLING |= {byte: chr(256 + n) for n, byte in enumerate(byte for byte in range(256) if byte not in _VISIBLE)}


def pieces(tokenizer: Tokenizer, token_ids: Sequence[int], skip: bool = True) -> list[str]:
    """What each token sends, and what comes at the end."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    sent = [detokenizer.push(token_id) for token_id in token_ids]
    return [*sent, detokenizer.finish()]


@given(st.lists(st.one_of(st.integers(0, 49151), st.integers(0, 400)), max_size=40), st.booleans())
def test_random_tokens_of_smollm2(smollm2: Tokenizer, token_ids: list[int], skip: bool) -> None:
    assert "".join(pieces(smollm2, token_ids, skip)) == smollm2.decode(token_ids, skip_special_tokens=skip)


@given(st.lists(st.integers(0, 265), max_size=40), st.booleans())
def test_random_tokens_of_a_byte_level_vocabulary(byte_level: Tokenizer, token_ids: list[int], skip: bool) -> None:
    assert "".join(pieces(byte_level, token_ids, skip)) == byte_level.decode(token_ids, skip_special_tokens=skip)


@given(st.lists(st.one_of(st.integers(0, 310), st.integers(255, 310)), max_size=40), st.booleans())
@example([259, 259, 289], True)
def test_random_tokens_of_a_byte_fallback_vocabulary(
    byte_fallback: Tokenizer, token_ids: list[int], skip: bool
) -> None:
    assert "".join(pieces(byte_fallback, token_ids, skip)) == byte_fallback.decode(token_ids, skip_special_tokens=skip)


@given(
    st.lists(st.sampled_from([b"\xf0\x9f\x99\x82", b"\xed\x95\x9c", b"\xe2\x82", b"\xff", b"\x80", b"a", b" "])),
    st.data(),
)
def test_characters_split_anywhere_into_bytes(
    byte_level: Tokenizer, byte_fallback: Tokenizer, parts: list[bytes], data: st.DataObject
) -> None:
    text = b"".join(parts)
    end = data.draw(st.integers(0, len(text)))
    for tokenizer in (byte_level, byte_fallback):
        token_ids = byte_ids(tokenizer, text[:end])
        assert "".join(pieces(tokenizer, token_ids)) == tokenizer.decode(token_ids)


def test_a_character_is_sent_with_its_last_byte(byte_level: Tokenizer) -> None:
    token_ids = byte_ids(byte_level, "a🙂b".encode())
    assert pieces(byte_level, token_ids) == ["a", "", "", "", "🙂", "b", ""]


def test_a_run_of_byte_tokens_is_sent_when_it_ends(byte_fallback: Tokenizer) -> None:
    letter = byte_fallback.backend.token_to_id("a")
    good, bad = byte_ids(byte_fallback, "€".encode()), byte_ids(byte_fallback, b"\xff")
    assert pieces(byte_fallback, [*good, letter]) == ["", "", "", "€a", ""]
    # One invalid byte changes the text of the whole run, so the valid ones in front of it must not have been sent.
    assert pieces(byte_fallback, [*good, *bad, letter]) == ["", "", "", "", "\ufffd" * 4 + "a", ""]


def test_korean_of_smollm2_comes_character_by_character(smollm2: Tokenizer) -> None:
    text = "안녕하세요, 세계!"
    token_ids = smollm2.encode(text)
    sent = pieces(smollm2, token_ids)
    assert len(token_ids) > len(text)
    assert "".join(sent) == text
    assert "\ufffd" not in "".join(sent)
    assert sent[-1] == ""


def test_an_output_that_ends_within_a_character_says_so(byte_level: Tokenizer) -> None:
    assert pieces(byte_level, byte_ids(byte_level, b"a\xf0\x9f")) == ["a", "", "", "\ufffd"]


def test_an_invalid_byte_is_sent_once_it_is_known_to_be_one(byte_level: Tokenizer) -> None:
    assert pieces(byte_level, byte_ids(byte_level, b"\xffa")) == ["", "\ufffda", ""]


@pytest.mark.parametrize("pattern", [b"\xff", b"\x80\xe2", b"\xf0\x9f\x99", b"\xe2\x82\xff"])
def test_endless_invalid_bytes_are_sent_with_a_bounded_delay(byte_level: Tokenizer, pattern: bytes) -> None:
    token_ids = byte_ids(byte_level, pattern * (600 // len(pattern)))
    sent = pieces(byte_level, token_ids)
    assert "".join(sent) == byte_level.decode(token_ids)
    for end in range(0, len(token_ids), 50):
        assert len(byte_level.decode(token_ids[:end])) - len("".join(sent[:end])) <= 16


def test_special_tokens_are_sent_only_where_they_are_wanted(smollm2: Tokenizer) -> None:
    token_ids = [1, *smollm2.encode("hi"), 2]
    assert "".join(pieces(smollm2, token_ids)) == "hi"
    assert pieces(smollm2, token_ids, skip=False) == ["<|im_start|>", "hi", "<|im_end|>", ""]


def test_tokens_without_text_between_the_bytes_of_a_character(byte_level: Tokenizer) -> None:
    """A skipped control token, and an id that the tokenizer does not know."""
    first, second, third = byte_ids(byte_level, "€".encode())
    assert pieces(byte_level, [first, 2, second, 99999, third]) == ["", "", "", "", "€", ""]


def test_nothing_in_nothing_out(smollm2: Tokenizer) -> None:
    assert pieces(smollm2, []) == [""]
