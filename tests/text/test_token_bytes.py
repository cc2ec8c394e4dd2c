"""The bytes of tokens are those that decoding joins."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from cudaprefill.text.token_bytes import text_loses_first_space, token_bytes
from cudaprefill.text.tokenizer import Tokenizer
from tests.engine.harness import letters
from tests.text.made_tokenizers import byte_fallback, byte_level, files

TOKENIZERS = {
    "byte level": Tokenizer(files(byte_level())),
    "byte fallback": Tokenizer(files(byte_fallback())),
    "letters": letters(),
}
BYTES = {name: token_bytes(tokenizer, tokenizer.vocab_size) for name, tokenizer in TOKENIZERS.items()}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(), data=st.data())
def test_the_bytes_of_a_text_s_tokens_join_to_the_text(name: str, text: str, data: st.DataObject) -> None:
    tokenizer, tokens = TOKENIZERS[name], BYTES[name]
    written = tokenizer.encode(text, add_special_tokens=False, parse_control_tokens=False)
    drawn = data.draw(st.lists(st.sampled_from([i for i, part in enumerate(tokens) if part])))
    for token_ids in (written, drawn):
        joined = b"".join(tokens[token_id] for token_id in token_ids)
        try:
            expected = joined.decode()
        except UnicodeDecodeError:
            continue  # decoding replaces what is no character
        if text_loses_first_space(tokenizer, tokens):
            expected = expected.removeprefix(" ")
        assert tokenizer.decode(token_ids) == expected


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_control_tokens_and_ids_without_a_token_have_none(make: Callable[[], Backend]) -> None:
    tokenizer = Tokenizer(files(make()))
    tokens = token_bytes(tokenizer, tokenizer.vocab_size + 3)
    assert {i for i, part in enumerate(tokens) if not part} == {
        *tokenizer.control_token_ids,
        *range(tokenizer.vocab_size, tokenizer.vocab_size + 3),
    }


def test_a_tokenizer_that_puts_a_space_in_front_takes_it_off_again() -> None:
    loses = {name: text_loses_first_space(TOKENIZERS[name], BYTES[name]) for name in TOKENIZERS}
    assert loses == {"byte level": False, "byte fallback": True, "letters": False}
