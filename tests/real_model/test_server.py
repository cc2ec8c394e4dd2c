"""`cudaprefill serve` with the real model, driven by OpenAI's own client."""

from __future__ import annotations

import json
import time

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.chat import ChatCompletionUserMessageParam

MODEL = "smollm2"
FRANCE: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
PATIENCE = 120.0  # seconds


@pytest.fixture(scope="module")
def openai(server_url: str) -> OpenAI:
    return OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


def test_a_chat_whole_and_streamed(openai: OpenAI) -> None:
    whole = openai.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0)
    text = whole.choices[0].message.content
    assert text == "The capital of France is Paris."
    assert whole.choices[0].finish_reason == "stop"
    stream = openai.chat.completions.create(
        model=MODEL, messages=FRANCE, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *events, last = stream
    assert "".join(event.choices[0].delta.content or "" for event in events) == text
    assert events[0].choices[0].delta.role == "assistant"
    assert events[0].choices[0].delta.content
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens // 16 * 16


def test_completions_of_text_and_of_token_ids(openai: OpenAI, server_url: str) -> None:
    tokens = httpx.post(f"{server_url}/tokenize", json={"prompt": "The sky is"}, timeout=PATIENCE).json()["tokens"]
    texts = openai.completions.create(model=MODEL, prompt=["The sky is", "Two and two"], temperature=0, max_tokens=6)
    ids = openai.completions.create(model=MODEL, prompt=tokens, temperature=0, max_tokens=6)
    stream = openai.completions.create(model=MODEL, prompt=[tokens], temperature=0, max_tokens=6, stream=True)
    assert [choice.index for choice in texts.choices] == [0, 1]
    assert texts.choices[0].text == ids.choices[0].text == "".join(event.choices[0].text for event in stream)


def test_an_echo_with_log_probabilities_joins_to_prompt_and_answer(openai: OpenAI) -> None:
    plain = openai.completions.create(model=MODEL, prompt="The sky is", temperature=0, max_tokens=3, logprobs=1)
    echoed = openai.completions.create(
        model=MODEL, prompt="The sky is", temperature=0, max_tokens=3, logprobs=1, echo=True
    )
    choice, logprobs = echoed.choices[0], echoed.choices[0].logprobs
    assert choice.text == "The sky is" + plain.choices[0].text
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.token_logprobs[0] is None
    assert plain.choices[0].logprobs is not None
    assert logprobs.token_logprobs[-3:] == pytest.approx(plain.choices[0].logprobs.token_logprobs, abs=1e-3)
    assert logprobs.top_logprobs is not None
    for place in range(1, len(logprobs.tokens)):
        best = logprobs.top_logprobs[place]
        assert best[logprobs.tokens[place]] == logprobs.token_logprobs[place]
        assert max(best.values()) >= best[logprobs.tokens[place]]


def test_an_answer_that_follows_a_schema(openai: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "old": {"type": "boolean"}},
        "required": ["city", "old"],
        "additionalProperties": False,
    }
    answer = openai.chat.completions.create(
        model=MODEL,
        messages=FRANCE,
        temperature=0,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}},
    )
    value = json.loads(answer.choices[0].message.content or "")
    assert value["city"] in ("Paris", "Rome")
    assert type(value["old"]) is bool
    chosen = openai.completions.create(
        model=MODEL,
        prompt="The capital of Italy is",
        temperature=0,
        extra_body={"structured_outputs": {"choice": ["Paris", "Rome"]}},
    )
    assert chosen.choices[0].text in ("Paris", "Rome")


def test_errors_are_those_that_the_client_knows(openai: OpenAI) -> None:
    with pytest.raises(NotFoundError) as unknown:
        openai.chat.completions.create(model="gpt-4", messages=FRANCE)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(BadRequestError) as wrong:
        openai.chat.completions.create(model=MODEL, messages=FRANCE, temperature=-1)
    assert wrong.value.param == "temperature"


def test_a_client_that_leaves_a_stream_frees_the_engine(openai: OpenAI, server_url: str) -> None:
    with openai.completions.create(
        model=MODEL, prompt="Once", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    give_up = time.monotonic() + PATIENCE
    while (
        'vllm:num_requests_running{engine="0",model_name="smollm2"} 0.0' not in httpx.get(f"{server_url}/metrics").text
    ):
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_models_and_engine(openai: OpenAI, server_url: str) -> None:
    assert [model.id for model in openai.models.list()] == [MODEL]
    assert openai.models.retrieve(MODEL).id == MODEL
    engine = httpx.get(f"{server_url}/v1/engine").json()
    assert engine["engine"]["family"] == "llama"
    assert engine["settings"]["max_num_batched_tokens"] == 512
