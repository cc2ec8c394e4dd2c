"""`/v1/completions` on the fake model: each token is one letter."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.engine.harness import expected, text_of
from tests.server.asking import ANSWER, COMPLETION_FIELDS, COMPLETIONS, PROMPT, TEXT
from tests.server.chat_server import CONTROL, ChatServer
from tests.server.running import MODEL, RunningServer, events

OTHER = [9, 9, 1]
OTHER_ANSWER = text_of(expected(OTHER))


def ask(server: RunningServer, **fields: Any) -> dict[str, Any]:
    with server.client() as client:
        response = client.post(COMPLETIONS, json={**COMPLETION_FIELDS, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def stream(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    with server.client() as client:
        return events(client.post(COMPLETIONS, json={**COMPLETION_FIELDS, "stream": True, **fields}))


def texts(answer: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


def streamed_texts(sent: list[dict[str, Any]]) -> list[str]:
    joined: dict[int, str] = {}
    for event in sent:
        for choice in event["choices"]:
            joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
    return [joined[index] for index in sorted(joined)]


def test_the_answer_has_openais_shape(server: RunningServer) -> None:
    answer = ask(server)
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 0
    assert answer == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [{"index": 0, "text": ANSWER, "logprobs": None, "finish_reason": "length", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 6,
            "completion_tokens": 8,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize(
    ("prompt", "answers"),
    [
        (TEXT, [ANSWER]),
        (PROMPT, [ANSWER]),
        ([TEXT], [ANSWER]),
        ([PROMPT], [ANSWER]),
        ([TEXT, text_of(OTHER), TEXT], [ANSWER, OTHER_ANSWER, ANSWER]),
        ([PROMPT, OTHER], [ANSWER, OTHER_ANSWER]),
        ([0], [text_of(expected([0]))]),
    ],
)
def test_every_form_of_prompt_whole_and_streamed(server: RunningServer, prompt: object, answers: list[str]) -> None:
    assert texts(ask(server, prompt=prompt)) == answers
    assert streamed_texts(stream(server, prompt=prompt)) == answers


def test_choices_of_several_prompts_are_in_the_order_of_the_prompts(server: RunningServer) -> None:
    answers = [ANSWER, ANSWER, OTHER_ANSWER, OTHER_ANSWER]
    answer = ask(server, prompt=[PROMPT, OTHER], n=2)
    assert texts(answer) == answers
    assert answer["usage"]["prompt_tokens"] == len(PROMPT) + len(OTHER)
    assert answer["usage"]["completion_tokens"] == 32
    assert streamed_texts(stream(server, prompt=[PROMPT, OTHER], n=2)) == answers


def test_an_echo_of_token_ids_shows_control_tokens() -> None:
    """Its logprobs show them, and `text_offset` counts them."""
    user, a, b = CONTROL.index("<user>"), len(CONTROL), len(CONTROL) + 1
    with ChatServer() as server, server.client() as client:
        answer = client.post(COMPLETIONS, json={"prompt": [user, a, b], "echo": True, "max_tokens": 3}).json()
    assert answer["choices"][0]["text"].startswith("<user>ab")


def test_an_echo_is_the_prompt_as_text_in_front(server: RunningServer) -> None:
    assert texts(ask(server, prompt=[PROMPT, OTHER], echo=True)) == [TEXT + ANSWER, text_of(OTHER) + OTHER_ANSWER]
    sent = stream(server, echo=True)
    assert sent[0]["choices"][0]["text"].startswith(TEXT)
    assert len(sent[0]["choices"][0]["text"]) > len(TEXT)
    assert streamed_texts(sent) == [TEXT + ANSWER]


def test_the_usage_of_a_stream_is_that_of_the_whole_answer(server: RunningServer) -> None:
    usage = ask(server, prompt=[PROMPT, OTHER])["usage"]
    *sent, last = stream(server, prompt=[PROMPT, OTHER], stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == ([], usage)
    assert {event["usage"] for event in sent} == {None}


def test_log_probabilities_with_their_places_in_the_text(server: RunningServer) -> None:
    logprobs = ask(server, logprobs=2)["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == ANSWER
    assert logprobs["text_offset"] == list(range(8))
    for token, logprob, best in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert len(best) == 2
        assert best[token] == logprob == max(best.values())
    pieces = [event["choices"][0]["logprobs"] for event in stream(server, logprobs=2)]
    for name, whole in logprobs.items():
        assert [item for piece in pieces for item in piece[name]] == whole


def test_log_probabilities_of_the_sampled_tokens_alone(server: RunningServer) -> None:
    logprobs = ask(server, logprobs=0)["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 8
    assert logprobs["top_logprobs"] == [None] * 8


def test_an_abort_by_id_ends_one_prompt_of_several() -> None:
    with RunningServer(pace=0.005) as server, server.client() as client:
        fields = {**COMPLETION_FIELDS, "stream": True, "prompt": [PROMPT, OTHER], "max_tokens": 100}
        with client.stream("POST", COMPLETIONS, json=fields) as response:
            lines = response.iter_lines()
            first = next(lines)
            request_id = first.split('"id": "')[1].split('"')[0]
            answer = server.client().post("/abort_requests", json={"request_ids": [f"{request_id}-1", "unknown"]})
            assert answer.json() == {"aborted": 1}
            rest = "\n".join(lines)
    assert rest.count('"finish_reason": "abort"') == 1
    assert rest.count('"finish_reason": "length"') == 1


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"prompt": ""}, "prompt", "no tokens"),
        ({"prompt": []}, "prompt", "must not be empty"),
        ({"prompt": [""]}, "prompt", "no tokens"),
        ({"prompt": [[]]}, "prompt", "no tokens"),
        ({"prompt": [TEXT, ""]}, "prompt", "prompt 1: the prompt has no tokens"),
        ({"prompt": 123}, "prompt", "must be text, token ids, or a list of either, got 123"),
        ({"prompt": [1, "a"]}, "prompt", "must be text, token ids, or a list of either"),
        ({"prompt": [[1], "a"]}, "prompt", "must be text, token ids, or a list of either"),
        ({"prompt": [1, True]}, "prompt", "prompt token 1 must be an integer, got True"),
        ({"prompt": [1.5]}, "prompt", "must be text, token ids, or a list of either"),
        ({"prompt": [[1, -1]]}, "prompt", "prompt token 1 is -1"),
        ({"prompt": [1, 50]}, "prompt", "prompt token 1 is 50, but the vocabulary has 50 tokens"),
        ({"prompt": [[1]] * 1025}, "prompt", "at most 1024 prompts, got 1025"),
        ({"prompt": TEXT * 100}, "prompt", "the prompt has 600 tokens .* max_model_len is 512"),
        ({"prompt": None}, "prompt", "prompt is missing"),
        ({"suffix": "end"}, "suffix", "does not insert"),
        ({"bad_words": ["no"]}, "bad_words", "is not supported"),
        ({"use_beam_search": True}, "use_beam_search", "is not supported"),
        ({"add_special_tokens": False}, "add_special_tokens", "is not supported"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "cannot be streamed"),
        ({"best_of": 2}, "best_of", "must be as n, which is 1, got 2"),
        ({"n": 17}, "n", "n is 17, but max_num_seqs is 16"),
        ({"stop": [""]}, "stop", "empty string"),
        ({"stop_token_ids": [50]}, "stop_token_ids", "names token 50"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "must be an integer"),
        ({"cache_salt": ""}, "cache_salt", "not empty"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    server: RunningServer, fields: dict[str, Any], param: str, reason: str
) -> None:
    with server.client() as client:
        response = client.post(COMPLETIONS, json={**COMPLETION_FIELDS, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert re.search(reason, error["message"]), error
