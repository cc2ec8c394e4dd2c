"""Random and mutated frames: every one that is text gets an answer, nothing stays behind, and memory is flat."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cudaprefill.observe.explain import ExplainLog
from cudaprefill.protocol.responses import ResponseCreate
from tests.server.chat_server import TERMINAL, ChatServer, Socket

VALUES: list[Any] = [None, True, -1, 0, 2.5, 1e300, "", "a", "x" * 300, [], [1], {}, {"a": {"b": []}}, "resp_1", "\x00"]
FIELDS = [*ResponseCreate.__dataclass_fields__, "tools", "background", "response_id", "nothing"]


def frame(random: random.Random) -> str | bytes:
    """A good request with some of its fields replaced, and now and then some of its characters."""
    message: dict[str, Any] = {"type": "response.create", "input": "abc", "max_output_tokens": 2, "stream_id": "s"}
    if random.random() < 0.1:
        message = {"type": "response.cancel", "stream_id": "s"}
    for _ in range(random.randrange(4)):
        message[random.choice(FIELDS)] = random.choice(VALUES)
    if random.random() < 0.05:
        message["type"] = random.choice(VALUES)
    text = list(json.dumps(message))
    if random.random() < 0.5:
        for _ in range(random.randrange(1, 5)):
            place = random.randrange(len(text))
            text[place] = random.choice(["", "{", "}", "[", '"', "\\", "\\ud800", "NaN", "9" * 400, "\u2028", "é", " "])
    if random.random() < 0.02:
        return random.randbytes(random.randrange(50))
    return "".join(text)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def send_all(num_frames: int) -> tuple[int, int]:
    """Memory after a tenth of the frames and after all of them."""
    source = random.Random(7)
    memory = []
    with ChatServer(config={"max_stored_responses": 100}) as server, Socket(server) as bystander:
        socket = Socket(server)
        for number in range(num_frames):
            sent = frame(source)
            socket.send(sent)
            # A cancellation that finds something answers with the end of that alone.
            while socket.receive()["type"] not in TERMINAL:
                pass
            if number in (num_frames // 10, num_frames - 1):
                memory.append(resident_bytes())
        socket.close()
        assert bystander.ask("abc", max_output_tokens=3)["usage"]["input_tokens"] > 0
    return memory[0], memory[1]


def test_mutated_frames_are_all_answered_and_leave_nothing_behind() -> None:
    send_all(2_000)


@pytest.mark.slow
def test_a_hundred_thousand_mutated_frames_leave_memory_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    # Full after a tenth of the frames. With its usual 20,000 steps it grows as long as they come.
    monkeypatch.setattr("cudaprefill.server.explain.ExplainLog", partial(ExplainLog, max_steps=1_000, max_requests=100))
    early, late = send_all(100_000)
    assert late < early * 1.05
