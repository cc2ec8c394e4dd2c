"""Tokens in, text out, as the sampling parameters ask."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudaprefill.sampling_params import SamplingParams
from cudaprefill.text.text_stream import TextStream
from cudaprefill.text.tokenizer import Tokenizer


def stream(tokenizer: Tokenizer, token_ids: list[int], **fields: Any) -> tuple[list[str], str | None]:
    """What each token sends, and what comes at the end; stops like the engine does."""
    text_stream = TextStream(tokenizer, SamplingParams(max_tokens=None, **fields))
    sent = []
    for token_id in token_ids:
        sent.append(text_stream.push(token_id))
        if text_stream.stop_string is not None:
            break
    return [*sent, text_stream.finish()], text_stream.stop_string


@given(
    st.text("abe hlo🙂한", max_size=30),
    st.lists(st.text("abe hlo🙂한", min_size=1, max_size=4), max_size=3),
    st.booleans(),
)
def test_the_text_ends_at_the_first_stop_string(
    byte_level: Tokenizer, byte_fallback: Tokenizer, text: str, stops: list[str], include: bool
) -> None:
    """Whichever tokens it is made of, those of single bytes included."""
    text = text.strip()
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    matched = [stop for stop in stops if text[: min(ends, default=0)].endswith(stop)]
    expected = text if not ends else text[: min(ends)]
    if ends and not include:
        expected = expected.removesuffix(max(matched, key=len))
    for tokenizer in (byte_level, byte_fallback):
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        sent, stop = stream(tokenizer, token_ids, stop=stops, include_stop_str_in_output=include)
        assert "".join(sent) == expected
        assert (stop is not None) == bool(ends)


def test_a_stop_string_over_several_tokens_is_never_seen(smollm2: Tokenizer) -> None:
    token_ids = smollm2.encode("one, two, three, four, five, six")
    sent, stop = stream(smollm2, token_ids, stop="four, five")
    assert ("".join(sent), stop) == ("one, two, three, ", "four, five")


@pytest.mark.parametrize(("min_tokens", "text"), [(0, ""), (1, ""), (2, "a"), (3, "aa"), (9, "aaaaa")])
def test_a_stop_string_counts_from_min_tokens_on(byte_level: Tokenizer, min_tokens: int, text: str) -> None:
    letter = byte_level.backend.token_to_id("a")
    assert "".join(stream(byte_level, [letter] * 5, stop="a", min_tokens=min_tokens)[0]) == text


def test_a_stop_string_that_begins_before_min_tokens_is_cut_off_whole(byte_level: Tokenizer) -> None:
    letters = [byte_level.backend.token_to_id(letter) for letter in "xabcd"]
    assert "".join(stream(byte_level, letters, stop="abc", min_tokens=4)[0]) == "x"


def test_a_stop_string_may_end_with_what_was_held_until_the_end(byte_fallback: Tokenizer) -> None:
    """The last tokens are bytes, which are not decided before nothing follows."""
    token_ids = byte_fallback.encode("a é", add_special_tokens=False)
    assert stream(byte_fallback, token_ids, stop="é") == (["a", " ", "", "", ""], "é")


def test_without_detokenizing_there_is_no_text(smollm2: Tokenizer) -> None:
    assert stream(smollm2, smollm2.encode("hello"), detokenize=False)[0] == ["", ""]


@pytest.mark.parametrize(("skip", "text"), [(True, "hi"), (False, "hi<|im_end|>")])
def test_control_tokens_are_shown_where_asked(smollm2: Tokenizer, skip: bool, text: str) -> None:
    assert "".join(stream(smollm2, [*smollm2.encode("hi"), 2], skip_special_tokens=skip)[0]) == text
