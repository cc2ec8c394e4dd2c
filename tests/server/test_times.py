"""The time to the first token counts from the receipt of the request, whatever it then waits for."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.server.asking import COMPLETION_FIELDS, COMPLETIONS
from tests.server.running import RunningServer

PAUSE = 0.1  # seconds


def metric(client: httpx.Client, name: str) -> float:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def test_waiting_for_a_seat_counts_and_who_leaves_before_a_token_gives_no_sample() -> None:
    with RunningServer(max_num_seqs=1) as server, server.client() as client, ThreadPoolExecutor() as threads:
        server.runner.gate.clear()
        answers = []
        for number in range(2):
            answers.append(threads.submit(server.client().post, COMPLETIONS, json=COMPLETION_FIELDS))
            server.wait_until(lambda: len(server.state.engine._streams) == number + 1)  # noqa: B023
        gone = server.post_raw(COMPLETIONS, COMPLETION_FIELDS)
        server.wait_until(lambda: len(server.state.engine._streams) == 3)
        gone.close()
        time.sleep(PAUSE)
        server.runner.gate.set()
        assert [answer.result().status_code for answer in answers] == [200, 200]
        server.wait_until_idle()
        assert metric(client, "vllm:time_to_first_token_seconds_count") == 2
        assert metric(client, "vllm:time_to_first_token_seconds_sum") >= 2 * PAUSE
        assert metric(client, "vllm:request_queue_time_seconds_sum") >= PAUSE
        assert metric(client, "vllm:generation_tokens_total") == 16


def test_tokenizing_counts() -> None:
    with RunningServer() as server, server.client() as client:
        tokenizer = server.state.engine.tokenizer
        encode = tokenizer.encode

        def slow_encode(text: str, **options: Any) -> list[int]:
            time.sleep(PAUSE)
            return encode(text, **options)

        tokenizer.encode = slow_encode  # type: ignore[method-assign]
        assert client.post(COMPLETIONS, json=COMPLETION_FIELDS).status_code == 200
        server.wait_until_idle()
        assert metric(client, "vllm:time_to_first_token_seconds_sum") >= PAUSE
