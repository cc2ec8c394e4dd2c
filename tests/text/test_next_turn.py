"""A chat that goes on keeps the very tokens it was computed with, and reads as the template would have it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudaprefill.text.tokenizer import Tokenizer
from tests.text import made_tokenizers

ROLES = ("user", "assistant")
# Opens an answer with its role, and closes it with EOS.
OPENS = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CONTENTS = st.lists(
    st.sampled_from(["he", "hello", " a", "  ", "<s>", "</s>", "</", "s>", "ll", "x"]), min_size=1, max_size=5
).map("".join)


def chat(contents: list[str]) -> list[dict[str, Any]]:
    return [{"role": ROLES[number % 2], "content": content} for number, content in enumerate(contents)]


def letter_by_letter(tokenizer: Tokenizer, text: str) -> list[int]:
    """Another spelling of a text than the tokenizer's own."""
    return [token for letter in text for token in tokenizer.encode(letter, add_special_tokens=False)]


@given(st.lists(CONTENTS, min_size=3, max_size=5).filter(lambda contents: len(contents) % 2 == 1))
def test_the_next_turn_begins_with_the_known_tokens_and_reads_the_same(contents: list[str]) -> None:
    tokenizer = Tokenizer(made_tokenizers.files(made_tokenizers.byte_level(), OPENS))
    messages, answer = chat(contents), len(contents) - 2
    messages[answer]["content"] = "hello hell"
    prompt = tokenizer.encode_chat(messages[:answer])
    known = prompt + letter_by_letter(tokenizer, "hello hell")
    following = tokenizer.encode_next_turn(messages, answer=answer, known_token_ids=known)
    assert following[: len(known)] == known
    usual = tokenizer.encode_chat(messages)
    assert following[len(known) :] == usual[len(usual) - (len(following) - len(known)) :]
    assert tokenizer.decode(following, skip_special_tokens=False) == tokenizer.decode(usual, skip_special_tokens=False)


@pytest.mark.parametrize(
    "template",
    [
        OPENS.replace("[assistant]{% endif", "[model]{% endif"),  # answers are opened in another way than written
        OPENS.replace("{{ eos_token }}", "\n"),  # no control token closes a message
        OPENS.replace("{{ m.content | trim }}", "{% if loop.last %}{{ m.content }}{% endif %}"),  # answers are left out
        OPENS.replace("{{ m.content | trim }}", "{{ m.content }}{{ m.content }}"),
    ],
)
def test_where_the_template_does_not_permit_it_the_chat_is_encoded_anew(template: str) -> None:
    tokenizer = Tokenizer(made_tokenizers.files(made_tokenizers.byte_level(), template))
    messages = chat(["he", "hello", "x"])
    known = [*tokenizer.encode_chat(messages[:1]), *letter_by_letter(tokenizer, "hello")]
    following = tokenizer.encode_next_turn(messages, answer=1, known_token_ids=known)
    assert following == tokenizer.encode_chat(messages)


# A variable that says how answers are opened, and one that says what stands in front of everything.
WITH_VARIABLES = "{% if brief %}[brief]{% endif %}" + OPENS.replace(
    "[assistant]{% endif", "[assistant]{% if enable_thinking is false %}(none){% endif %}{% endif"
)


@pytest.mark.parametrize(
    ("known_variables", "variables", "goes_on"),
    [
        ({}, {}, True),
        ({}, {"enable_thinking": True}, True),
        ({}, {"enable_thinking": False}, True),  # which opens the next answer, and writes earlier ones as ever
        ({"brief": True}, {"brief": True}, True),
        ({"enable_thinking": False}, {"enable_thinking": False}, False),  # it was opened in another way than written
        ({"enable_thinking": False}, {}, False),
        ({}, {"brief": True}, False),
        ({"brief": True}, {}, False),
    ],
)
def test_variables_of_the_template_that_write_the_past_anew_have_it_encoded_anew(
    known_variables: dict[str, Any], variables: dict[str, Any], goes_on: bool
) -> None:
    tokenizer = Tokenizer(made_tokenizers.files(made_tokenizers.byte_level(), WITH_VARIABLES))
    messages = chat(["he", "hello", "x"])
    known = [*tokenizer.encode_chat(messages[:1], **known_variables), *letter_by_letter(tokenizer, "hello")]
    following = tokenizer.encode_next_turn(
        messages, answer=1, known_token_ids=known, known_variables=known_variables, variables=variables
    )
    usual = tokenizer.encode_chat(messages, **variables)
    assert (following[: len(known)] == known) == goes_on
    assert goes_on or following == usual
    assert tokenizer.decode(following, skip_special_tokens=False) == tokenizer.decode(usual, skip_special_tokens=False)


def test_smollm2_goes_on_from_the_tokens_of_its_answer(smollm2: Tokenizer) -> None:
    messages = chat(["Name a colour.", "Blue, of course.", "Why?"])
    known = [*smollm2.encode_chat(messages[:1]), *letter_by_letter(smollm2, "Blue, of course.")]
    following = smollm2.encode_next_turn(messages, answer=1, known_token_ids=known)
    assert following[: len(known)] == known
    assert smollm2.decode(following[len(known) :], skip_special_tokens=False) == (
        "<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )
