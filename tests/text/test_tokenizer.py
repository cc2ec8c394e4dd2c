"""Prompts become the token ids that the model was trained on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from cudaprefill.text.tokenizer import Tokenizer
from cudaprefill.text.tokenizer_files import convert_tokenizer
from tests.text import made_tokenizers

# SmolLM2 has no tokens for six control characters and for the bytes that begin the empty planes 4 to 11 of Unicode.
TEXT = st.text(
    alphabet=st.one_of(
        st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters="\x04\x06\x13\x14\x16\x1d"),
        st.sampled_from("0123456789  \n\t'.,abcXYZ½"),
    )
)


def test_smollm2_has_the_ids_of_its_model_card(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert (smollm2.bos_token_id, smollm2.eos_token_id) == (1, 2)
    assert smollm2.encode("<|im_start|><|im_end|>") == [1, 2]
    assert smollm2.control_token_ids == frozenset(range(17))
    assert smollm2.byte_token_ids == frozenset()


def test_smollm2_splits_numbers_into_digits(smollm2: Tokenizer) -> None:
    text = "2026-11-29 12345"
    ids = smollm2.encode(text)
    assert [smollm2.decode([token]) for token in ids] == list(text)
    assert ids == [34, 32, 34, 38, 29, 33, 33, 29, 34, 41, 216, 33, 34, 35, 36, 37]
    assert smollm2.decode(ids) == text


@given(TEXT)
@example("a   12")
@example("x²½Ⅷ٣7")
def test_no_token_of_smollm2_joins_a_digit_with_anything(smollm2: Tokenizer, text: str) -> None:
    """Spaces in front of a number stay together, because the digits were split off first."""
    split = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str(text)
    assert smollm2.encode(text, parse_control_tokens=False) == [
        token for piece, _ in split for token in smollm2.encode(piece, parse_control_tokens=False)
    ]


@given(TEXT)
def test_text_comes_back_from_its_ids(smollm2: Tokenizer, text: str) -> None:
    assert smollm2.decode(smollm2.encode(text), skip_special_tokens=False) == text


@given(text=TEXT)
@example(text="Hello, world!\n\n  It's <|im_end|> caf\u00e9 안녕 🙂")
def test_text_without_digits_is_encoded_as_transformers_does(
    smollm2: Tokenizer, smollm2_of_transformers: Any, text: str
) -> None:
    text = "".join(character for character in text if not character.isnumeric())
    assert smollm2.encode(text) == smollm2_of_transformers.encode(text)


def test_a_prompt_may_spell_control_tokens_unless_told_otherwise(smollm2: Tokenizer) -> None:
    text = "a<|im_end|>b"
    assert 2 in smollm2.encode(text)
    plain = smollm2.encode(text, parse_control_tokens=False)
    assert not smollm2.control_token_ids & set(plain)
    assert smollm2.decode(plain, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("a", ["<s>", "▁a"]), ("<s>a", ["<s>", "a"]), ("<s><s>a", ["<s>", "<s>", "a"]), ("", ["<s>"])],
)
def test_a_prompt_begins_with_one_bos_whether_it_spells_it_or_not(
    byte_fallback: Tokenizer, prompt: str, tokens: list[str]
) -> None:
    backend = byte_fallback.backend
    assert [backend.id_to_token(token) for token in byte_fallback.encode(prompt)] == tokens
    assert (
        byte_fallback.encode(prompt, add_special_tokens=False) == backend.encode(prompt, add_special_tokens=False).ids
    )


def test_a_tokenizer_that_adds_no_bos_leaves_those_of_the_prompt(byte_level: Tokenizer) -> None:
    assert byte_level.encode("<s><s>")[:2] == [1, 1]


@pytest.mark.parametrize("text", ["abc\ud800", "\udfff"])
def test_lone_surrogates_are_refused_with_their_place(smollm2: Tokenizer, text: str) -> None:
    with pytest.raises(ValueError, match=f"character {len(text) - 1} is a lone surrogate"):
        smollm2.encode(text)


def test_threads_share_a_tokenizer(smollm2: Tokenizer) -> None:
    texts = [f"number {number} <|im_end|>" for number in range(64)]
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda text: smollm2.encode(text, parse_control_tokens=False), texts))
    assert ids == [smollm2.encode(text, parse_control_tokens=False) for text in texts]


def test_ids_without_a_token_have_no_text(smollm2: Tokenizer) -> None:
    assert smollm2.decode([*smollm2.encode("ab"), 10**6]) == "ab"


@pytest.mark.parametrize(
    ("token", "text"), [("▁he", " he"), ("he", "he"), ("<0xE2>", "\ufffd"), ("</s>", "</s>"), ("▁▁", "  ")]
)
def test_a_single_token_shows_its_space(byte_fallback: Tokenizer, token: str, text: str) -> None:
    assert byte_fallback.token_text(byte_fallback.backend.token_to_id(token)) == text


@pytest.mark.parametrize("made", [made_tokenizers.byte_fallback, made_tokenizers.byte_level])
def test_a_folder_is_read_as_transformers_reads_it(tmp_path: Path, made: object) -> None:
    from transformers import AutoTokenizer

    folder = made_tokenizers.write_folder(tmp_path / "model", made())  # type: ignore[operator]
    expected = AutoTokenizer.from_pretrained(str(folder))
    tokenizer = Tokenizer.load(folder, tmp_path / "cache")
    for text in ("hello a, b", "", "<s>he</s> llo", "é🙂"):
        assert tokenizer.encode(text, add_special_tokens=False) == expected.encode(text, add_special_tokens=False)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.chat_template.source == made_tokenizers.TEMPLATE_WITH_BOS


def test_settings_for_training_are_not_applied_to_prompts(tmp_path: Path) -> None:
    backend = made_tokenizers.byte_fallback()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    tokenizer = Tokenizer(made_tokenizers.files(backend))
    assert len(tokenizer.encode("b" * 100)) == 102
    assert len(tokenizer.encode("b")) == 3


@pytest.mark.parametrize(("pre", "pieces"), [("smollm", ["  ", "1", "2", " ", "3"]), ("gpt-2", [" ", " 12", " 3"])])
def test_a_gguf_file_is_split_as_it_says(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    path = made_tokenizers.write_gguf(tmp_path / "model.gguf", pre)
    tokenizer = Tokenizer(convert_tokenizer(path))
    split = tokenizer.backend.pre_tokenizer.pre_tokenize_str("  12 3")
    assert [piece.replace("Ġ", " ") for piece, _ in split] == pieces
    assert tokenizer.encode("<think>a") == [1, tokenizer.backend.token_to_id("<think>"), *tokenizer.encode("a")[1:]]
    assert tokenizer.control_token_ids == {0, 1, 2}
    assert tokenizer.chat_template.source == made_tokenizers.TEMPLATE_WITH_BOS


@pytest.mark.parametrize("pre", ["from-the-future", None])
def test_a_gguf_file_of_unknown_splitting_is_refused_by_name(tmp_path: Path, pre: str | None) -> None:
    path = made_tokenizers.write_gguf(tmp_path / "model.gguf", pre)
    with pytest.raises(ValueError, match=rf"model\.gguf.* unknown tokenizer\.ggml\.pre {pre!r}"):
        convert_tokenizer(path)


def test_what_is_no_tokenizer_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    (tmp_path / "text.gguf").write_text("no GGUF")
    made_tokenizers.write_gguf(tmp_path / "strange.gguf", "gpt-2", model="strange")
    for name in ("missing", "empty", "broken", "text.gguf", "strange.gguf"):
        with pytest.raises(ValueError, match=f"tokenizer: .*{name}"):
            convert_tokenizer(tmp_path / name)
