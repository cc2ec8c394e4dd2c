"""`/v1/responses` with the real model, driven by the clients that people have: openai's, and `websockets` by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Literal

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

from cudaprefill.client import Client

QUESTION = "What is the capital of France? Answer in one word."


@pytest.fixture(scope="module")
def openai(server_url: str) -> OpenAI:
    return OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def answer(openai: OpenAI) -> str:
    response = openai.responses.create(model="smollm2", input=QUESTION, temperature=0, max_output_tokens=12)
    assert response.object == "response"
    assert "Paris" in response.output_text
    return response.output_text


def test_openais_client_streams_what_it_gets_at_once(openai: OpenAI, answer: str) -> None:
    with openai.responses.stream(model="smollm2", input=QUESTION, temperature=0, max_output_tokens=12) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == answer
    assert final.status in ("completed", "incomplete")
    assert final.usage is not None
    assert final.usage.total_tokens == final.usage.input_tokens + final.usage.output_tokens


def test_openais_client_holds_a_conversation_whose_kv_is_found_again(openai: OpenAI) -> None:
    first = openai.responses.create(
        model="smollm2", input="My name is Ada. Say hello.", temperature=0, max_output_tokens=12
    )
    second = openai.responses.create(
        model="smollm2",
        input=[{"role": "user", "content": [{"type": "input_text", "text": "What is my name?"}]}],
        previous_response_id=first.id,
        temperature=0,
        max_output_tokens=4,
    )
    assert first.usage is not None
    assert second.usage is not None
    known = first.usage.total_tokens - 1  # the last token's KV was never needed
    assert second.usage.input_tokens_details.cached_tokens == known // 16 * 16
    assert openai.responses.retrieve(second.id).output_text == second.output_text
    openai.responses.delete(first.id)
    with pytest.raises(BadRequestError) as refused:
        openai.responses.create(model="smollm2", input="And now?", previous_response_id=first.id)
    assert refused.value.code == "previous_response_not_found"
    with pytest.raises(NotFoundError):
        openai.responses.retrieve(first.id)


def test_openais_client_parses_an_answer_that_follows_a_schema(openai: OpenAI) -> None:
    class City(BaseModel):
        name: Literal["Paris", "London"]
        large: bool

    response = openai.responses.parse(
        model="smollm2", input="Describe Paris in JSON.", text_format=City, temperature=0, max_output_tokens=60
    )
    assert isinstance(response.output_parsed, City)
    assert response.status == "completed"


def test_the_command_line_of_websockets_reads_the_same_answer(server_url: str, answer: str) -> None:
    create = {"type": "response.create", "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
    url = server_url.replace("http", "ws") + "/v1/responses"
    with subprocess.Popen(
        [sys.executable, "-m", "websockets", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(create) + "\n")
        process.stdin.flush()
        seen, decoder = "", json.JSONDecoder()
        while "response.output_item.done" not in seen:
            seen += process.stdout.readline()
        process.stdin.close()
        process.stdout.read()
    messages = [decoder.raw_decode(piece)[0] for piece in seen.split("< ")[1:] if piece.startswith("{")]
    assert messages[0]["type"] == "response.created"
    deltas = [message["delta"] for message in messages if message["type"] == "response.output_text.delta"]
    assert "".join(deltas) == answer


def test_our_own_client_gets_the_same_answer(server_url: str, answer: str) -> None:
    with Client(server_url) as client, client.respond(QUESTION, temperature=0, max_output_tokens=12) as response:
        assert "".join(response) == answer
        assert response.result.metrics is not None
