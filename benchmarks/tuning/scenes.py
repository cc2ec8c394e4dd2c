"""What several experiments let happen: a long prompt alone and beside chats, and requests all at once or in turn."""

from __future__ import annotations

import threading
import time

import numpy as np

from cudaprefill import LLM, SamplingParams
from cudaprefill.engine.factory import TOKEN_BUDGET
from cudaprefill.outputs import RequestOutput

LONG, CHATS, CHAT_PROMPT = 3200, 4, 64
VOCABULARY = 40_000  # token ids that every model at hand has
LARGEST_BUDGET = 4096  # that an engine is made for whose budget is changed
DEFAULT_BUDGET = TOKEN_BUDGET["cpu"]
BATCH, BATCH_PROMPT, BATCH_TOKENS = 16, 390, 64


def prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(100, VOCABULARY, length).tolist()


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def ttft_alone(llm: LLM, tokens: list[int]) -> float:
    (output,) = llm.generate([tokens], greedy(1))
    assert output.metrics is not None
    assert output.metrics.ttft is not None
    return output.metrics.ttft


def undisturbed_ttft(llm: LLM, seed: int) -> float:
    return ttft_alone(llm, prompt(LONG, seed))


def chats_and_a_long_prompt(llm: LLM, seed: int) -> tuple[list[float], float]:
    """The chats' gaps from the long prompt's arrival to its first token, and its TTFT."""
    streams = [llm.stream(prompt(CHAT_PROMPT, seed + number), greedy(4000)) for number in range(CHATS)]
    for stream in streams:
        next(stream)  # all chats are under way
    for _ in range(20):
        next(streams[0])
    (output,) = llm.generate([prompt(LONG, seed + CHATS)], greedy(1))
    for stream in streams:
        stream.abort()
    metrics = output.metrics
    assert metrics is not None
    assert metrics.ttft is not None
    assert metrics.first_token_time is not None
    gaps = []
    for chat in [stream.wait() for stream in streams]:
        gaps += _gaps_between(chat, metrics.arrival_time, metrics.first_token_time)
    return gaps, metrics.ttft


def _gaps_between(chat: RequestOutput, begin: float, end: float) -> list[float]:
    assert chat.metrics is not None
    assert chat.metrics.first_token_time is not None
    time, gaps = chat.metrics.first_token_time, []
    for gap in chat.metrics.itl:
        if begin < time + gap and time < end:
            gaps.append(gap)
        time += gap
    return gaps


def at_once(llm: LLM, seed: int) -> float:
    """Seconds until the last of 16 requests has ended."""
    start = time.perf_counter()
    llm.generate([prompt(BATCH_PROMPT, seed + number) for number in range(BATCH)], greedy(BATCH_TOKENS))
    return time.perf_counter() - start


def in_turn(llm: LLM, seed: int) -> float:
    """Seconds until 8 clients, of which each asks again as soon as it is answered, have had 16 answers between them."""
    seeds = iter(range(seed, seed + BATCH))
    lock = threading.Lock()

    def ask() -> None:
        while True:
            with lock:
                mine = next(seeds, None)
            if mine is None:
                return
            llm.stream(prompt(BATCH_PROMPT, mine), greedy(BATCH_TOKENS)).wait()

    clients = [threading.Thread(target=ask) for _ in range(BATCH // 2)]
    start = time.perf_counter()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return time.perf_counter() - start
