"""Accounts of requests beside the clock of the client that waited for them.

    python -m benchmarks.explain [--rounds 3] [--threads all,1] [--keep]

A server in a process of its own, with few seats, a small budget and little KV memory, gets chats, completions and
responses over a websocket, some with a shared beginning. For each, this process takes the time from before its request
was sent until the read of the event with its first token returned, and asks the server for its account. The system says
when it had these bytes ready for the client: from there to the read's return the client itself waits, for a core or for
another of its threads, and no server can know.

Both processes read one clock. Goal: the parts of an account add up to what the client saw, within 2 ms. --threads: of
the kernels, all cores or less of them, which leaves the client one for itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from benchmarks.tuning.result import Result

SERVE = "import sys; from cudaprefill.cli.main import main; sys.exit(main())"
# Four run at once, a prompt takes some steps, and decodes can take the blocks of a prompt under way.
FLAGS = ("--max-num-seqs", "4", "--max-num-batched-tokens", "128", "--kv-cache-memory", "48M")
WORDS = "time year people way day man thing woman life child world school state family student group country problem"
GOAL = 0.002  # seconds


@dataclass(frozen=True)
class Seen:
    kind: str
    request_id: str
    ttft: float  # seconds, by the client
    late: float  # seconds of it after the system had the first token ready to be read


@dataclass(frozen=True)
class Beside:
    """One request: the client's time, and the account's parts by kind."""

    seen: Seen
    parts: dict[str, float]
    hit_tokens: int
    preemptions: int  # before or after the first token

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def difference(self) -> float:
        return self.seen.ttft - self.total


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[str]:
    """The URL of a server that ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", "--port", "0", "--exit-with-stdin", *FLAGS, *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if " on http://" not in line:
            raise RuntimeError(f"the server said {line!r}")
        yield line.rpartition(" on ")[2].strip()
    finally:
        process.stdin.close()
        process.wait(60)


# --- The clients ---


SO_TIMESTAMPNS = 35  # of Linux, for which Python has no name


class Reader:
    """The reading end of a connection, with the system's word on when the bytes came."""

    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.time = 0.0  # when the last read returned, seconds of time.monotonic()
        self.late = 0.0  # how long before that its last bytes had come; 0.0 where the system does not say

    def read(self) -> bytes:
        """At least one byte, or b"" at the end."""
        data, notes, _, _ = self.connection.recvmsg(1 << 16, socket.CMSG_SPACE(16))
        self.time, now = time.monotonic(), time.time()
        self.late = 0.0
        for level, kind, value in notes:
            if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                seconds, nanoseconds = struct.unpack("qq", value)
                self.late = now - seconds - nanoseconds / 1e9
        return data


class HttpStream:
    """One request over a connection that is open already."""

    def __init__(self, kind: str, port: int, path: str, body: dict[str, Any]) -> None:
        self.kind = kind
        self._reader = Reader(port)
        content = json.dumps({"stream": True, **body}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        self._request = head.encode() + content

    def run(self) -> Seen:
        received, first, late = b"", 0.0, 0.0
        start = time.monotonic()
        self._reader.connection.sendall(self._request)
        while b"data: [DONE]" not in received[-64:]:
            piece = self._reader.read()
            if not piece:
                raise RuntimeError(f"the server ended a stream after {received[-500:]!r}")
            received += piece
            if not first and b'"choices"' in received:
                first, late = self._reader.time, self._reader.late
        self._reader.connection.close()
        event = received[received.index(b"data: {") + len(b"data: ") :].partition(b"\n")[0]
        return Seen(self.kind, json.loads(event)["id"], first - start, late)


class Response:
    """One response over a websocket that is open already, without a thread between its socket and who waits."""

    kind = "response"

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        self._reader = Reader(port)
        self._protocol = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}/v1/responses"), max_size=None)
        self._protocol.send_request(self._protocol.connect())
        self._send()
        while self._protocol.state is State.CONNECTING:
            self._protocol.receive_data(self._reader.read())
        if self._protocol.handshake_exc is not None:
            raise self._protocol.handshake_exc
        self._protocol.events_received()
        self._request = json.dumps({"type": "response.create", **body}).encode()

    def run(self) -> Seen:
        first, late, response_id, kind = 0.0, 0.0, "", ""
        start = time.monotonic()
        self._protocol.send_text(self._request)
        self._send()
        while kind not in ("response.completed", "response.incomplete"):
            self._protocol.receive_data(self._reader.read())
            for frame in self._protocol.events_received():
                if not isinstance(frame, Frame) or frame.opcode is not Opcode.TEXT:
                    continue
                event = json.loads(frame.data)
                kind = event["type"]
                if kind in ("error", "response.failed"):
                    raise RuntimeError(f"the server ended a response with {event}")
                response_id = response_id or event["response"]["id"]
                if not first and kind == "response.output_text.delta":
                    first, late = self._reader.time, self._reader.late
            self._send()  # answers to pings
        self._reader.connection.close()
        return Seen(self.kind, response_id, first - start, late)

    def _send(self) -> None:
        for piece in self._protocol.data_to_send():
            self._reader.connection.sendall(piece)


def requests(port: int, draws: random.Random, count: int) -> list[HttpStream | Response]:
    words = WORDS.split()
    shared = " ".join(draws.choices(words, k=300))
    made: list[HttpStream | Response] = []
    for number in range(count):
        text = " ".join(draws.choices(words, k=draws.choice((20, 150, 500))))
        if number % 3 == 0:
            text = f"{shared} {text}"
        tokens, kind = draws.choice((8, 40, 160)), ("chat", "completion", "response")[number // 3 % 3]
        sampling = {"temperature": 0, "ignore_eos": True}
        if kind == "chat":
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, **sampling}
            made.append(HttpStream(kind, port, "/v1/chat/completions", body))
        elif kind == "completion":
            made.append(HttpStream(kind, port, "/v1/completions", {"prompt": text, "max_tokens": tokens, **sampling}))
        else:
            made.append(Response(port, {"input": text, "max_output_tokens": tokens, **sampling}))
    return made


def ask_all(asked: list[HttpStream | Response], rate: float, draws: random.Random) -> list[Seen]:
    """One after the other, `rate` a second on average, each from a thread of its own."""
    seen: list[Seen] = []

    def run(request: HttpStream | Response) -> None:
        seen.append(request.run())

    threads = []
    for request in asked:
        threads.append(threading.Thread(target=run, args=(request,)))
        threads[-1].start()
        time.sleep(draws.expovariate(rate))
    for thread in threads:
        thread.join()
    if len(seen) < len(asked):
        raise RuntimeError(f"{len(asked) - len(seen)} of {len(asked)} requests failed")
    return seen


# --- The comparison ---


def measure(url: str, flags: argparse.Namespace) -> list[Beside]:
    draws = random.Random(flags.seed)
    port = int(url.rpartition(":")[2])
    beside: list[Beside] = []
    ask_all(requests(port, draws, 3), flags.rate, draws)  # the first of all pay for what is loaded late
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(flags.rounds):
            for seen in ask_all(requests(port, draws, flags.requests), flags.rate, draws):
                account = client.get(f"/v1/requests/{seen.request_id}/explain").raise_for_status().json()
                parts: Counter[str] = Counter()
                for part in account["parts"]:
                    parts[part["kind"]] += part["duration"]
                if parts["sending"] <= 0:
                    raise RuntimeError(f"the account of a {seen.kind} has no part for its sending: {account}")
                hits, preemptions = account["prefix"]["hit_tokens"], account["preemptions"]
                beside.append(Beside(seen, dict(parts), hits, preemptions))
    return beside


def report(beside: list[Beside]) -> dict[str, Any]:
    kinds = Counter(kind for each in beside for kind in each.parts)
    kinds["(prefix hits)"] = sum(each.hit_tokens > 0 for each in beside)
    kinds["(preemptions)"] = sum(each.preemptions > 0 for each in beside)
    print(f"{len(beside)} requests; with " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))
    figures: dict[str, Any] = {"requests": len(beside), "with": dict(kinds), "by_kind": {}}
    groups: dict[str, Callable[[Beside], bool]] = {"all": lambda each: True}
    for kind in sorted({each.seen.kind for each in beside}):
        groups[kind] = lambda each, kind=kind: each.seen.kind == kind
    for name, belongs in groups.items():
        differences = np.array([each.difference for each in beside if belongs(each)])
        late = np.array([each.seen.late for each in beside if belongs(each)])
        figures["by_kind"][name] = {
            "differences_ms": [round(float(value) * 1e3, 3) for value in differences],
            "client_late_ms": [round(float(value) * 1e3, 3) for value in late],
        }
        for what, values in (("until the client's read", differences), ("until it could read", differences - late)):
            low, p50, p90, p99, high = 1e3 * np.quantile(values, (0, 0.5, 0.9, 0.99, 1))
            within = float(np.mean(np.abs(values) <= GOAL))
            print(f"{name:12}{what:26}{low:8.2f}{p50:8.2f}{p90:8.2f}{p99:8.2f}{high:8.2f}   {within:.1%} within 2 ms")
    ttfts = [each.seen.ttft for each in beside]
    print(f"TTFT at the client from {min(ttfts) * 1e3:.0f} to {max(ttfts) * 1e3:.0f} ms")
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=27, help="of a round")
    parser.add_argument("--rate", type=float, default=1.5, help="requests a second")
    parser.add_argument("--threads", default="all,1", help="of the server's kernels, one run for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--keep", action="store_true", help="write them into the results and into docs/tuning.md")
    flags = parser.parse_args()
    result = Result.begin("benchmarks.explain")
    runs = []
    for threads in flags.threads.split(","):
        print(f"\nkernels with {threads} threads; client minus account in ms: min, p50, p90, p99, max")
        with serving(*(() if threads == "all" else ("--threads", threads))) as url:
            runs.append({"threads": threads, **report(measure(url, flags))})
    result.end({"goal_ms": GOAL * 1e3, "runs": runs}, flags.json, "explain" if flags.keep else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
