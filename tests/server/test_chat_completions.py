"""`/v1/chat/completions` on the fake model: each token is one letter, so text shows what was computed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.asking import ANSWER, CHAT, CHAT_FIELDS, PROMPT, TEXT
from tests.server.running import MODEL, RunningServer, events

USAGE = {
    "prompt_tokens": len(PROMPT),
    "completion_tokens": 8,
    "total_tokens": len(PROMPT) + 8,
    "prompt_tokens_details": {"cached_tokens": 0},
}


def ask(server: RunningServer, **fields: Any) -> dict[str, Any]:
    with server.client() as client:
        response = client.post(CHAT, json={**CHAT_FIELDS, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def stream(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    with server.client() as client:
        response = client.post(CHAT, json={**CHAT_FIELDS, "stream": True, **fields})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events(response)


def test_the_answer_has_openais_shape(server: RunningServer) -> None:
    answer = ask(server)
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 0
    assert answer == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": ANSWER, "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ],
        "usage": USAGE,
    }


def test_streamed_text_is_that_of_the_whole_answer_and_the_first_event_has_role_and_token(
    server: RunningServer,
) -> None:
    sent = stream(server)
    deltas = [event["choices"][0]["delta"] for event in sent]
    assert deltas[0]["role"] == "assistant"
    assert deltas[0]["content"] != ""
    assert [delta for delta in deltas[1:] if "role" in delta] == []
    assert "".join(delta["content"] for delta in deltas) == ANSWER
    assert {event["object"] for event in sent} == {"chat.completion.chunk"}
    assert len({(event["id"], event["created"], event["model"]) for event in sent}) == 1
    assert [event["choices"][0]["finish_reason"] for event in sent[:-1]] == [None] * (len(sent) - 1)
    assert sent[-1]["choices"][0]["finish_reason"] == "length"
    assert all("usage" not in event for event in sent)


def test_usage_comes_last_and_with_no_choices_when_it_is_asked_for(server: RunningServer) -> None:
    *sent, last = stream(server, stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert {event["usage"] for event in sent} == {None}


def test_continuous_usage_counts_along(server: RunningServer) -> None:
    sent = stream(server, stream_options={"continuous_usage_stats": True})
    counts = [event["usage"]["completion_tokens"] for event in sent]
    assert counts == sorted(set(counts))
    assert counts[-1] == 8


def test_cached_tokens_of_a_prompt_seen_before(server: RunningServer) -> None:
    long = [{"role": "user", "content": TEXT * 10}]
    ask(server, messages=long)
    assert ask(server, messages=long)["usage"]["prompt_tokens_details"] == {"cached_tokens": 48}


def test_a_cache_salt_keeps_prefixes_apart(server: RunningServer) -> None:
    long = [{"role": "user", "content": TEXT * 10}]
    ask(server, messages=long)
    salted = ask(server, messages=long, cache_salt="mine")
    assert salted["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_several_choices_whole_and_streamed(server: RunningServer) -> None:
    assert [choice["message"]["content"] for choice in ask(server, n=3)["choices"]] == [ANSWER] * 3
    sent = stream(server, n=3)
    for index in range(3):
        deltas = [event["choices"][0]["delta"] for event in sent if event["choices"][0]["index"] == index]
        assert deltas[0]["role"] == "assistant"
        assert "".join(delta["content"] for delta in deltas) == ANSWER


def test_log_probabilities_of_each_token_and_of_the_best_ones(server: RunningServer) -> None:
    whole = ask(server, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in whole) == ANSWER
    for token in whole:
        assert token["bytes"] == list(token["token"].encode())
        assert token["top_logprobs"][0]["token"] == token["token"]
        assert len(token["top_logprobs"]) == 2
        assert 0 >= token["logprob"] == token["top_logprobs"][0]["logprob"] > token["top_logprobs"][1]["logprob"]
    sent = stream(server, logprobs=True, top_logprobs=2)
    assert [token for event in sent for token in event["choices"][0]["logprobs"]["content"]] == whole


def test_log_probabilities_without_the_best_ones(server: RunningServer) -> None:
    whole = ask(server, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [token["top_logprobs"] for token in whole] == [[]] * 8


@pytest.mark.parametrize("stop", [ANSWER[3:5], [ANSWER[3:5], "never"]])
def test_a_stop_string_ends_the_answer_before_it(server: RunningServer, stop: object) -> None:
    choice = ask(server, stop=stop)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER[:3], "stop")
    assert choice["stop_reason"] == ANSWER[3:5]
    sent = stream(server, stop=stop)
    assert "".join(event["choices"][0]["delta"]["content"] for event in sent) == ANSWER[:3]
    assert sent[-1]["choices"][0]["stop_reason"] == ANSWER[3:5]


def test_the_newer_name_of_max_tokens_goes_first(server: RunningServer) -> None:
    assert ask(server, max_tokens=8, max_completion_tokens=3)["usage"]["completion_tokens"] == 3


def test_without_max_tokens_the_answer_may_fill_the_context(server: RunningServer) -> None:
    answer = ask(server, max_tokens=None)
    assert (answer["usage"]["total_tokens"], answer["choices"][0]["finish_reason"]) == (512, "length")


def test_content_may_be_a_list_of_texts(server: RunningServer) -> None:
    parts = [{"type": "text", "text": TEXT}]
    assert ask(server, messages=[{"role": "user", "content": parts}])["choices"][0]["message"]["content"] == ANSWER


def test_fields_that_ask_for_nothing_and_unknown_ones_are_ignored(server: RunningServer) -> None:
    fields: dict[str, Any] = {
        "tools": [],
        "bad_words": [],
        "chat_template_kwargs": {},
        "add_generation_prompt": True,
        "add_special_tokens": False,
        "tool_choice": "auto",
        "modalities": ["text"],
        "response_format": {"type": "text"},
        "user": "somebody",
        "metadata": {"a": "b"},
        "store": False,
        "invented": [1],
        "seed": None,
        "stop": None,
    }
    assert ask(server, **fields)["choices"][0]["message"]["content"] == ANSWER


def test_variables_of_the_template_are_set(server: RunningServer) -> None:
    as_text = {"messages": [{"role": "user", "content": f"{TEXT}Z"}]}
    without = ask(server, chat_template_kwargs={"enable_thinking": False})
    assert without["choices"] == ask(server, **as_text)["choices"]
    assert without["usage"]["prompt_tokens"] == len(PROMPT) + 1
    assert ask(server, chat_template_kwargs={"enable_thinking": True})["choices"] == ask(server)["choices"]
    with server.client() as client:
        messages = CHAT_FIELDS["messages"]
        body = {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
        assert client.post("/tokenize", json=body).json()["count"] == len(PROMPT) + 1
        refused = client.post("/tokenize", json={**body, "chat_template_kwargs": {"invented": 1}})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template_kwargs")


def test_a_request_that_names_no_model_gets_the_one_there_is(server: RunningServer) -> None:
    assert ask(server, model=None)["model"] == MODEL


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "calls no tools"),
        ({"chat_template": "{{ messages }}"}, "chat_template", "is not supported"),
        ({"chat_template_kwargs": {"enable_thinking": "false"}}, "chat_template_kwargs", "must be true or false"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "reads only enable_thinking"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "dictionary"),
        ({"continue_final_message": True}, "continue_final_message", "is not supported"),
        ({"add_generation_prompt": False}, "add_generation_prompt", "is not supported"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids", "is not supported"),
        ({"functions": [{"name": "f"}]}, "functions", "calls no tools"),
        ({"tool_choice": "required"}, "tool_choice", "calls no tools"),
        ({"modalities": ["text", "audio"]}, "modalities", "no other"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "at most 20, got 21"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1, got 0"),
        ({"messages": []}, "messages", "must not be empty"),
        ({"messages": None}, "messages", "messages is missing"),
        ({"messages": [{"role": "user"}]}, "messages", "has no content"),
        ({"messages": [{"role": "cook", "content": "x"}]}, "messages", "role must be one of"),
        ({"messages": ["hello"]}, "messages", "dictionary"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]},
            "messages",
            "image_url",
        ),
        ({"response_format": {"type": "xml"}}, "response_format", "type must be text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "an object with a schema"),
        ({"structured_outputs": {"rhyme": "aabb"}}, "structured_outputs", "must have one of choice, grammar, json"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one of"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format", "give one of them"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options", "stream_options.include_usage"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    server: RunningServer, fields: dict[str, Any], param: str, reason: str
) -> None:
    with server.client() as client:
        response = client.post(CHAT, json={**CHAT_FIELDS, "stream": True, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert reason in error["message"]
