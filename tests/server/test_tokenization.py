"""`/tokenize` and `/detokenize`, with vLLM's fields."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.asking import PROMPT, TEXT
from tests.server.running import MODEL, RunningServer


def test_text_to_tokens_and_back(server: RunningServer) -> None:
    with server.client() as client:
        answer = client.post("/tokenize", json={"model": MODEL, "prompt": TEXT}).json()
        assert answer == {"count": len(PROMPT), "max_model_len": 512, "tokens": PROMPT, "token_strs": None}
        assert client.post("/detokenize", json={"model": MODEL, "tokens": PROMPT}).json() == {"prompt": TEXT}


def test_messages_through_the_chat_template(server: RunningServer) -> None:
    with server.client() as client:
        messages = [{"role": "user", "content": TEXT[:3]}, {"role": "user", "content": TEXT[3:]}]
        answer = client.post("/tokenize", json={"messages": messages, "return_token_strs": True}).json()
    assert (answer["tokens"], answer["token_strs"]) == (PROMPT, list(TEXT))


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "A", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 7}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "A", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens"),
        ("/detokenize", {"tokens": [50]}, "tokens"),
        ("/detokenize", {"tokens": "text"}, "tokens"),
    ],
)
def test_what_is_wrong_is_named(server: RunningServer, path: str, fields: dict[str, Any], param: str) -> None:
    with server.client() as client:
        response = client.post(path, json=fields)
    assert response.status_code == (404 if param == "model" else 400)
    assert response.json()["error"]["param"] == param
