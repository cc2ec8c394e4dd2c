"""Conversations: what is gone on from, whose KV is found again, and what is forgotten."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from cudaprefill.engine.request import Request
from tests.server.chat_server import ChatServer, Socket, chat_server, chat_tokenizer

BLOCK = 16
TURN: dict[str, Any] = {"max_output_tokens": 21, "ignore_eos": True}


@pytest.fixture
def server() -> Iterator[ChatServer]:
    yield from chat_server()


@pytest.fixture
def socket(server: ChatServer) -> Iterator[Socket]:
    with Socket(server) as socket:
        yield socket


@pytest.fixture
def requests(server: ChatServer) -> list[Request]:
    """All that the engine is asked from here on."""
    seen: list[Request] = []
    submit = server.engine.submit

    def spy(request: Request) -> None:
        seen.append(request)
        submit(request)

    server.engine.submit = spy  # type: ignore[method-assign]
    return seen


def tokens_of(request: Request) -> list[int]:
    return [*request.prompt_token_ids, *request.output_token_ids]


def test_each_turn_begins_with_the_very_tokens_of_the_turn_before(socket: Socket, requests: list[Request]) -> None:
    """Though the tokenizer would spell the answers in another way, and so would find little in the prefix cache."""
    tokenizer = chat_tokenizer()
    previous, cached = None, []
    for words in ("hello there", "and then", "at last", "once more"):
        response = socket.ask(words, previous_response_id=previous, **TURN)
        previous = response["id"]
        cached.append(response["usage"]["input_tokens_details"]["cached_tokens"])
    for before, after in itertools.pairwise(requests):
        known = tokens_of(before)
        assert list(after.prompt_token_ids[: len(known)]) == known
        assert tokenizer.encode(tokenizer.decode(known, skip_special_tokens=False)) != known
    # All KV but that of the last partial block is found; the last token of an answer has none.
    assert cached == [0, *((len(tokens_of(request)) - 1) // BLOCK * BLOCK for request in requests[:-1])]


def test_the_prompt_of_a_turn_is_what_the_template_makes_of_the_whole_chat(
    socket: Socket, requests: list[Request]
) -> None:
    first = socket.ask("hello", instructions="be brief", **TURN)
    socket.ask(
        [{"role": "user", "content": [{"type": "input_text", "text": "go"}, {"type": "input_text", "text": "on"}]}],
        instructions="be brief",
        previous_response_id=first["id"],
        **TURN,
    )
    tokenizer = chat_tokenizer()
    said = tokenizer.decode(requests[0].output_token_ids, skip_special_tokens=False)
    assert tokenizer.decode(requests[1].prompt_token_ids, skip_special_tokens=False) == (
        f"<system>be brief<end><user>hello<end><assistant>{said}<end><user>goon<end><assistant>"
    )


def test_an_answer_that_ended_by_itself_is_closed_once(socket: Socket, requests: list[Request]) -> None:
    for word in ("a", "b", "c", "d", "e", "f", "g", "h"):
        first = socket.ask(word)
        if first["status"] == "completed":
            break
    socket.ask("next", previous_response_id=first["id"], **TURN)
    first_tokens = tokens_of(requests[-2])
    assert list(requests[-1].prompt_token_ids[: len(first_tokens)]) == first_tokens
    assert requests[-1].prompt_token_ids[len(first_tokens)] == 1  # <user>, with no second <end>


def test_instructions_do_not_carry_over(socket: Socket, requests: list[Request]) -> None:
    first = socket.ask("hello", instructions="be brief", **TURN)
    second = socket.ask("again", previous_response_id=first["id"], **TURN)
    assert "instructions" not in second
    text = chat_tokenizer().decode(requests[1].prompt_token_ids, skip_special_tokens=False)
    assert text.startswith("<user>hello<end><assistant>")
    socket.ask("again", previous_response_id=first["id"], instructions="be long", **TURN)
    text = chat_tokenizer().decode(requests[2].prompt_token_ids, skip_special_tokens=False)
    assert text.startswith("<system>be long<end><user>hello<end>")


def test_variables_of_the_template_are_those_of_one_turn(socket: Socket, requests: list[Request]) -> None:
    """Tokens of the turn before are gone on from where the template still writes its answer as it was opened."""

    def prompt() -> str:
        return chat_tokenizer().decode(requests[-1].prompt_token_ids, skip_special_tokens=False)

    first = socket.ask("hello", **TURN, chat_template_kwargs={"enable_thinking": True})
    assert prompt() == "<user>hello<end><assistant>"
    quick = {"enable_thinking": False}
    second = socket.ask("again", previous_response_id=first["id"], chat_template_kwargs=quick, **TURN)
    assert prompt().endswith("<end><user>again<end><assistant>quick ")
    assert list(requests[1].prompt_token_ids[: len(tokens_of(requests[0]))]) == tokens_of(requests[0])
    # The chat has no "quick" in front of an answer that was given, so it is rendered anew.
    socket.ask("more", previous_response_id=second["id"], **TURN)
    said = second["output"][0]["content"][0]["text"]
    assert prompt().endswith(f"<user>again<end><assistant>{said}<end><user>more<end><assistant>")
    assert list(requests[2].prompt_token_ids[: len(tokens_of(requests[1]))]) != tokens_of(requests[1])


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"invented": 1}, "reads only enable_thinking"),
        ({"messages": []}, "reads only enable_thinking"),
        ({"enable_thinking": "false"}, "must be true or false"),
        ([1], "must be an object"),
    ],
)
def test_variables_that_cannot_be_set_are_refused_by_name(socket: Socket, variables: Any, reason: str) -> None:
    refusal = socket.refused(input="a", chat_template_kwargs=variables)
    assert (refusal["status"], refusal["param"]) == (400, "chat_template_kwargs")
    assert reason in refusal["message"]
    assert socket.ask("hello", **TURN)["output"]


def test_a_conversation_forks(socket: Socket) -> None:
    first = socket.ask("hello", **TURN)
    one = socket.ask("left", previous_response_id=first["id"], **TURN)
    other = socket.ask("right", previous_response_id=first["id"], **TURN)
    assert one["output"] != other["output"]
    again = socket.ask("left", previous_response_id=first["id"], **TURN)
    assert again["output"][0]["content"] == one["output"][0]["content"]


def test_an_answer_cut_by_a_stop_string_is_gone_on_from_by_its_text(socket: Socket, requests: list[Request]) -> None:
    whole = socket.ask("hello", **TURN)["output"][0]["content"][0]["text"]
    first = socket.ask("hello", **TURN, stop=whole[6:9])
    kept = first["output"][0]["content"][0]["text"]
    socket.ask("next", previous_response_id=first["id"], **TURN)
    text = chat_tokenizer().decode(requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert text == f"<user>hello<end><assistant>{kept}<end><user>next<end><assistant>"


def test_a_prepared_prompt_has_no_output_and_is_found_by_the_next_turn(socket: Socket, requests: list[Request]) -> None:
    warm = socket.ask("w" * 60, instructions="i" * 30, generate=False)
    assert warm["status"] == "completed"
    assert warm["output"] == []
    assert (warm["usage"]["input_tokens"], warm["usage"]["output_tokens"]) == (94, 0)
    turn = socket.ask("go", instructions="i" * 30, previous_response_id=warm["id"], **TURN)
    assert turn["usage"]["input_tokens_details"]["cached_tokens"] == 94 // BLOCK * BLOCK
    assert list(requests[1].prompt_token_ids[:94]) == list(requests[0].prompt_token_ids)


def test_instructions_alone_can_be_prepared_and_a_prepared_input_answered(socket: Socket) -> None:
    alone = socket.ask(None, instructions="be brief", generate=False)
    assert socket.ask("hello", instructions="be brief", previous_response_id=alone["id"], **TURN)["output"]
    asked = socket.ask("hello", generate=False)
    answer = socket.ask(None, previous_response_id=asked["id"], **TURN)
    assert answer["output"][0]["content"] == socket.ask("hello", **TURN)["output"][0]["content"]


def test_a_salt_keeps_conversations_apart(socket: Socket) -> None:
    socket.ask("z" * 100, cache_salt="mine", **TURN)
    other = socket.ask("z" * 100, cache_salt="yours", **TURN)
    assert other["usage"]["input_tokens_details"]["cached_tokens"] == 0
    same = socket.ask("z" * 100, cache_salt="mine", **TURN)
    assert same["usage"]["input_tokens_details"]["cached_tokens"] == 96


def test_a_cancelled_response_can_be_gone_on_from(server: ChatServer, socket: Socket) -> None:
    server.runner.seconds = 0.002
    socket.create(stream_id="x", ignore_eos=True)
    socket.until("response.output_text.delta", stream_id="x")
    socket.send({"type": "response.cancel", "stream_id": "x"})
    cancelled = socket.until_end("x")[-1]["response"]
    assert socket.ask("next", previous_response_id=cancelled["id"], **TURN)["status"] == "incomplete"


# --- What is kept ---


def test_an_unknown_previous_response_has_openais_code(socket: Socket) -> None:
    refusal = socket.refused(input="a", previous_response_id="resp_none")
    assert (refusal["status"], refusal["code"]) == (400, "previous_response_not_found")
    assert refusal["param"] == "previous_response_id"


def test_a_running_response_cannot_be_gone_on_from(server: ChatServer, socket: Socket) -> None:
    server.runner.gate.clear()
    socket.create(stream_id="x", **TURN)
    running = socket.until("response.in_progress", stream_id="x")[-1]["response"]["id"]
    refusal = socket.refused(input="a", previous_response_id=running)
    assert refusal["code"] == "previous_response_not_found"
    assert "is still running" in refusal["message"]
    server.runner.gate.set()


def test_what_is_not_to_be_stored_is_known_to_its_own_connection_alone(server: ChatServer, socket: Socket) -> None:
    first = socket.ask("hello", store=False, **TURN)
    with Socket(server) as other, server.client() as client:
        assert other.refused(input="a", previous_response_id=first["id"])["code"] == "previous_response_not_found"
        assert client.get(f"/v1/responses/{first['id']}").status_code == 404
    second = socket.ask("next", previous_response_id=first["id"], store=False, **TURN)
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > 0
    kept = socket.ask("next", previous_response_id=second["id"], **TURN)
    with Socket(server) as other:
        assert other.ask("more", previous_response_id=kept["id"], **TURN)["status"] == "incomplete"


def test_the_least_recently_used_response_is_forgotten_first() -> None:
    with ChatServer(config={"max_stored_responses": 2}) as server, Socket(server) as socket:
        first, second = (socket.ask(word, max_output_tokens=1)["id"] for word in ("a", "b"))
        socket.ask("uses the first", previous_response_id=first, max_output_tokens=1, store=False)
        third = socket.ask("c", max_output_tokens=1)["id"]
        assert socket.refused(input="x", previous_response_id=second)["code"] == "previous_response_not_found"
        for known in (first, third):
            assert socket.ask("x", previous_response_id=known, max_output_tokens=1, store=False)["output"]
