"""The transcript in docs/protocol.md is what the server says: each line that a client sends is replayed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cudaprefill.protocol.responses import CLIENT_MESSAGES, SERVER_MESSAGES, ResponseCreate
from tests.server.chat_server import TERMINAL, ChatServer, Socket

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"
CLOCKS = ("created_at", "completed_at", "queue_time", "prefill_time", "ttft", "mean_itl")


class Names:
    """Ids as a reader wants them: resp_1, resp_2, msg_1 ... in the order in which they come."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def shorten(self, text: str) -> str:
        return re.sub(r"\b(resp|msg)_[0-9a-f]{32}\b", self._name, text)

    def lengthen(self, text: str) -> str:
        for long, short in self._names.items():
            text = text.replace(f'"{short}"', f'"{long}"')
        return text

    def _name(self, match: re.Match[str]) -> str:
        kind = match[1]
        number = 1 + sum(name.startswith(kind) for name in self._names.values())
        return self._names.setdefault(match[0], f"{kind}_{number}")


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: 0 if name in CLOCKS else without_clocks(item) for name, item in value.items()}
    return [without_clocks(item) for item in value] if isinstance(value, list) else value


def replay(sent: list[str]) -> list[str]:
    """A transcript in which a client sends these lines, each when the one before was answered."""
    names, lines = Names(), []
    with ChatServer() as server, Socket(server) as socket:
        for line in sent:
            socket.send(names.lengthen(line))
            lines.append(f"> {line}")
            while True:
                message = socket.receive()
                text = json.dumps(without_clocks(message), ensure_ascii=False)
                lines.append(f"< {names.shorten(text)}")
                if message["type"] in TERMINAL:
                    break
    return lines


def merged(lines: list[str]) -> list[Any]:
    """Deltas that follow each other as one, for how many there are is chance; numbers of events as they are then."""
    messages: list[Any] = []
    for line in lines:
        if line.startswith("> "):
            messages.append(line)
            continue
        message = json.loads(line.removeprefix("< "))
        if message["type"] == "response.created":
            number = 0
        if messages and isinstance(messages[-1], dict) and message["type"] == "response.output_text.delta":
            last = messages[-1]
            if last["type"] == message["type"]:
                last["delta"] += message["delta"]
                continue
        if "sequence_number" in message:
            message["sequence_number"] = number
            number += 1
        messages.append(message)
    return messages


def documented() -> list[str]:
    (block,) = re.findall(r"```transcript\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return block.splitlines()


def test_the_documented_transcript_is_what_happens() -> None:
    lines = documented()
    sent = [line.removeprefix("> ") for line in lines if line.startswith("> ")]
    assert len(sent) > 4
    assert merged(replay(sent)) == merged(lines)


def test_every_message_of_the_protocol_is_documented() -> None:
    text = DOCUMENT.read_text()
    for kind in (*CLIENT_MESSAGES, *SERVER_MESSAGES):
        assert f"`{kind}`" in text, kind


def test_every_field_of_a_request_is_documented() -> None:
    text = DOCUMENT.read_text()
    for name in ResponseCreate.__dataclass_fields__:
        assert f"`{name}`" in text, name
