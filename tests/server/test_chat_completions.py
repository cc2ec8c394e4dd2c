"""`/v1/chat/completions` on the fake model: each token is one letter, so text shows what was computed."""

from __future__ import annotations

from typing import Any

from tests.engine.harness import expected, text_of
from tests.server.running import MODEL, RunningServer, events

CHAT = "/v1/chat/completions"
PROMPT = [7, 3, 9, 4, 11, 5]
MESSAGES = [{"role": "user", "content": text_of(PROMPT)}]  # the template hands contents on as they are
ASK: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 8, "ignore_eos": True}


def test_the_answer_has_openais_shape(server: RunningServer) -> None:
    with server.client() as client:
        answer = client.post(CHAT, json=ASK).json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 0
    assert answer == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text_of(expected(PROMPT)), "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 6,
            "completion_tokens": 8,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_streamed_text_is_that_of_the_whole_answer_and_the_first_event_has_role_and_token(
    server: RunningServer,
) -> None:
    with server.client() as client:
        response = client.post(CHAT, json={**ASK, "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    sent = events(response)
    deltas = [event["choices"][0]["delta"] for event in sent]
    assert deltas[0] == {"role": "assistant", "content": text_of(expected(PROMPT)[:1])}
    assert "".join(delta["content"] for delta in deltas) == text_of(expected(PROMPT))
    assert {event["object"] for event in sent} == {"chat.completion.chunk"}
    assert len({(event["id"], event["created"], event["model"]) for event in sent}) == 1
    assert [event["choices"][0]["finish_reason"] for event in sent] == [None] * 7 + ["length"]
    assert all("usage" not in event for event in sent)
