"""What a conversation sends, takes back and exports."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudaprefill_tui.conversations import MAX_TITLE, AnswerCost, ChatSettings, Conversation, Turn
from cudaprefill_tui.export import as_markdown, suggested_name, write_export
from cudaprefill_tui.figures import describe_cost


def answered(conversation: Conversation, prompt: str, text: str) -> Turn:
    turn = conversation.ask(prompt)
    turn.answer.text, turn.answer.state = text, "done"
    return turn


def test_the_server_gets_all_turns_and_the_last_prompt() -> None:
    conversation = Conversation(1)
    answered(conversation, "one", "1")
    conversation.ask("two")
    assert conversation.messages() == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    ]


def test_a_prompt_that_nobody_answered_is_not_sent_again() -> None:
    conversation = Conversation(1)
    turn = conversation.ask("lost")
    turn.answer.state, turn.answer.error = "failed", "the server is gone"
    conversation.ask("again")
    assert [message["content"] for message in conversation.messages()] == ["again"]


def test_an_answer_that_was_stopped_stays_part_of_the_conversation() -> None:
    conversation = Conversation(1)
    turn = conversation.ask("one")
    turn.answer.text, turn.answer.state = "half an", "stopped"
    conversation.ask("go on")
    assert [message["content"] for message in conversation.messages()] == ["one", "half an", "go on"]


def test_nothing_is_asked_or_taken_back_while_an_answer_is_being_written() -> None:
    conversation = Conversation(1)
    conversation.ask("one")
    with pytest.raises(ValueError, match="still being written"):
        conversation.ask("two")
    with pytest.raises(ValueError, match="still being written"):
        conversation.take_back(0)


def test_taking_a_turn_back_takes_the_later_ones_too() -> None:
    conversation = Conversation(1)
    for prompt in ("one", "two", "three"):
        answered(conversation, prompt, prompt.upper())
    assert conversation.take_back(1) == "two"
    assert [turn.prompt for turn in conversation.turns] == ["one"]
    with pytest.raises(IndexError, match="turn 1 of a conversation of 1"):
        conversation.take_back(1)


@pytest.mark.parametrize("prompt", ["", "  \n\t "])
def test_an_empty_prompt_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        Conversation(1).ask(prompt)


@given(st.text(min_size=1))
def test_a_title_is_one_short_line(prompt: str) -> None:
    conversation = Conversation(3)
    if prompt.strip():
        conversation.ask(prompt)
    assert 0 < len(conversation.title) <= MAX_TITLE
    assert len(conversation.title.splitlines()) == 1


def test_a_cost_names_every_part_of_the_ttft() -> None:
    cost = AnswerCost(
        prompt_tokens=2310,
        cached_tokens=2048,
        output_tokens=117,
        chunks=4,
        queue=0.031,
        prefill=0.366,
        first_sample=0.015,
        ttft=0.412,
        mean_itl=0.0112,
    )
    assert describe_cost(cost) == (
        "TTFT 412 ms = queue 31.0 ms + prefill 366 ms (4 chunks, 2048 of 2310 tokens from the prefix cache)"
        " + first sample 15.0 ms · ITL 11.2 ms · 89 tok/s · 117 tokens"
    )


def test_a_cost_says_nothing_that_was_not_measured() -> None:
    assert describe_cost(AnswerCost(prompt_tokens=8)) == "no token (0 of 8 tokens from the prefix cache) · 0 tokens"
    assert describe_cost(AnswerCost(prompt_tokens=8, output_tokens=1, ttft=0.2)) == (
        "TTFT 200 ms (0 of 8 tokens from the prefix cache) · 1 token"
    )


def test_an_export_has_the_answers_as_they_came() -> None:
    conversation = Conversation(1, ChatSettings(system="be brief"))
    answered(conversation, "one\ntwo", "```python\nx[0]\n```").answer.cost = AnswerCost(output_tokens=3, ttft=0.1)
    failed = conversation.ask("three")
    failed.answer.state, failed.answer.error = "failed", "the server is gone"
    text = as_markdown(conversation, "tiny")
    assert "> be brief\n" in text
    assert "> one\n> two\n\n```python\nx[0]\n```\n\n*TTFT 100 ms" in text
    assert text.endswith("> three\n\n*the server is gone*\n")


def test_an_export_replaces_a_file_only_when_told_to(tmp_path: Path) -> None:
    path = tmp_path / "chat.md"
    write_export(path, "one")
    with pytest.raises(FileExistsError):
        write_export(path, "two")
    write_export(path, "two \ud800", overwrite=True)
    assert path.read_text() == "two ?"


@given(st.text(min_size=1))
def test_a_suggested_name_is_a_plain_file_name(prompt: str) -> None:
    conversation = Conversation(1)
    if prompt.strip():
        conversation.ask(prompt)
    name = suggested_name(conversation)
    assert name == Path(name).name
    assert not set(name) & set("/\0\\ '\"")
