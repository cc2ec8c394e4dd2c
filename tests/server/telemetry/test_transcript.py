"""The telemetry transcript in docs/protocol.md is what the server says."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

from cudaprefill.protocol import telemetry
from cudaprefill.protocol.telemetry import CLIENT_MESSAGES, SERVER_MESSAGES
from tests.server.running import PATIENCE, RunningServer

DOCUMENT = Path(__file__).parents[3] / "docs" / "protocol.md"
# What is of the moment, or of the release, stands in the document as 0.
OF_THE_MOMENT = {"time", "unix_time", "start", "duration", "arrived", "tokenized", "version", "id", "hash"}
LISTS = ("steps", "requests", "blocks")


def documented() -> list[str]:
    (block,) = re.findall(r"```telemetry-transcript\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return [line for line in block.splitlines() if line]


def plain(message: Any) -> Any:
    if isinstance(message, dict):
        # A chunk's `start` is a place in its prompt; a step's is a time.
        moments = OF_THE_MOMENT - ({"start"} if message.get("kind") == "chunk" else set())
        return {name: 0 if name in moments else plain(value) for name, value in message.items()}
    return [plain(item) for item in message] if isinstance(message, list) else message


def said(lines: list[str]) -> list[Any]:
    """Updates that follow each other as one: how many there are is chance. Numbers as they are then."""
    messages: list[Any] = []
    number = 0
    for line in lines:
        if not line.startswith("< "):
            messages.append(line)
            continue
        message = plain(json.loads(line.removeprefix("< ")))
        before = messages[-1] if messages else None
        if isinstance(before, dict) and before["type"] == message["type"] == "telemetry.update":
            for name, value in message.items():
                before[name] = before.get(name, []) + value if name in LISTS else value
            before["sequence_number"] = number - 1
            continue
        message["sequence_number"] = number
        number += 1
        messages.append(message)
    return messages


def replay(lines: list[str]) -> list[str]:
    """What happens when the transcript's client sends and does what it does there."""
    replayed: list[str] = []
    with (
        RunningServer() as server,
        server.client() as client,
        connect(server.url.replace("http", "ws") + "/v1/telemetry", compression=None) as connection,
    ):
        for line in (line for line in lines if not line.startswith("< ")):
            replayed.append(line)
            if line.startswith("> "):
                connection.send(line.removeprefix("> "))
            else:
                match = re.fullmatch(r"\* POST (\S+) (.*)", line)
                assert match is not None
                client.post(match[1], json=json.loads(match[2])).raise_for_status()
            answers = itertools.takewhile(lambda text: text.startswith("< "), lines[lines.index(line) + 1 :])
            expected = [kind(answer) for answer in answers]
            while not ends_as(replayed, line, expected):
                text = connection.recv(PATIENCE)
                assert isinstance(text, str)
                replayed.append(f"< {text}")
    return replayed


def kind(line: str) -> str:
    message_type: str = json.loads(line.removeprefix("< "))["type"]
    return message_type


def ends_as(replayed: list[str], since: str, expected: list[str]) -> bool:
    """Whether the kinds of answers to the line `since` are there; of what was done over HTTP, all there is to tell."""
    answers = replayed[len(replayed) - replayed[::-1].index(since) :]
    kinds = [kind(answer) for answer in answers]
    merged = [name for place, name in enumerate(kinds) if not place or kinds[place - 1] != name]
    told = "".join(answers)
    return merged == expected and (since.startswith("> ") or ('"steps"' in told and '"pool"' in told))


def test_the_documented_transcript_is_what_happens() -> None:
    lines = documented()
    assert sum(line.startswith("> ") for line in lines) > 4
    assert said(replay(lines)) == said(lines)


def test_every_message_and_every_field_is_documented() -> None:
    section = DOCUMENT.read_text().partition("\n## Telemetry\n")[2]
    for name in (*CLIENT_MESSAGES, *SERVER_MESSAGES):
        assert f"`{name}`" in section, name
    kinds = [*CLIENT_MESSAGES.values(), *SERVER_MESSAGES.values()]
    kinds += [telemetry.RequestRecord, telemetry.RequestChange, telemetry.StepRecord, telemetry.PoolTotals]
    fields = {field for kind in kinds for field in kind.__dataclass_fields__}
    assert {field for field in fields if f"`{field}`" not in section} == set()
