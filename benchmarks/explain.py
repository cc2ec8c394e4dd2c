"""Accounts of requests beside the clock of the client that waited for them.

    python benchmarks/explain.py [--rounds 3] [--json FILE]

A server in a process of its own, with few seats, a small budget and little KV memory, gets chats, completions and
responses over a websocket, some with a shared beginning. For each, this process takes the time from before its request
was sent until the read of the event with its first token returned, and asks the server for its account. What lies
outside of both is told beside it: how long the client itself waited for a core, with its bytes there already.

Both processes read one clock. Goal: the parts of an account add up to what the client saw, within 2 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
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
    waited: float  # seconds of it in which the client's thread could have run, and no core was free


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


def wait_for_cores() -> float:
    """Seconds that this thread has waited for a core, ever; 0.0 where the system does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


class HttpStream:
    """One request over a connection that is open already."""

    def __init__(self, kind: str, port: int, path: str, body: dict[str, Any]) -> None:
        self.kind = kind
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        content = json.dumps({"stream": True, **body}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        self._request = head.encode() + content

    def run(self) -> Seen:
        received, first, waited = b"", 0.0, 0.0
        before, start = wait_for_cores(), time.monotonic()
        self._connection.sendall(self._request)
        while b"data: [DONE]" not in received[-64:]:
            piece = self._connection.recv(1 << 16)
            now = time.monotonic()
            if not piece:
                raise RuntimeError(f"the server ended a stream after {received[-500:]!r}")
            received += piece
            if not first and b'"choices"' in received:
                first, waited = now, wait_for_cores() - before
        self._connection.close()
        event = received[received.index(b"data: {") + len(b"data: ") :].partition(b"\n")[0]
        return Seen(self.kind, json.loads(event)["id"], first - start, waited)


class Response:
    """One response over a websocket that is open already, without a thread between its socket and who waits."""

    kind = "response"

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._protocol = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}/v1/responses"), max_size=None)
        self._protocol.send_request(self._protocol.connect())
        self._send()
        while self._protocol.state is State.CONNECTING:
            self._protocol.receive_data(self._connection.recv(1 << 16))
        if self._protocol.handshake_exc is not None:
            raise self._protocol.handshake_exc
        self._protocol.events_received()
        self._request = json.dumps({"type": "response.create", **body}).encode()

    def run(self) -> Seen:
        first, waited, response_id, kind = 0.0, 0.0, "", ""
        before, start = wait_for_cores(), time.monotonic()
        self._protocol.send_text(self._request)
        self._send()
        while kind not in ("response.completed", "response.incomplete"):
            self._protocol.receive_data(self._connection.recv(1 << 16))
            now = time.monotonic()
            for frame in self._protocol.events_received():
                if not isinstance(frame, Frame) or frame.opcode is not Opcode.TEXT:
                    continue
                event = json.loads(frame.data)
                kind = event["type"]
                if kind in ("error", "response.failed"):
                    raise RuntimeError(f"the server ended a response with {event}")
                response_id = response_id or event["response"]["id"]
                if not first and kind == "response.output_text.delta":
                    first, waited = now, wait_for_cores() - before
            self._send()  # answers to pings
        self._connection.close()
        return Seen(self.kind, response_id, first - start, waited)

    def _send(self) -> None:
        for piece in self._protocol.data_to_send():
            self._connection.sendall(piece)


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
    head = f"{'client minus account, ms':26}{'min':>8}{'p50':>8}{'p90':>8}{'p99':>8}{'max':>8}"
    print(f"{head}   within 2 ms, and without the client's wait for a core")
    for name, belongs in groups.items():
        differences = np.array([each.difference for each in beside if belongs(each)])
        low, p50, p90, p99, high = 1e3 * np.quantile(differences, (0, 0.5, 0.9, 0.99, 1))
        waits = np.array([each.seen.waited for each in beside if belongs(each)])
        within = float(np.mean(np.abs(differences) <= GOAL))
        apart = float(np.mean(np.abs(differences - waits) <= GOAL))
        figures["by_kind"][name] = {
            "differences_ms": [round(float(value) * 1e3, 3) for value in differences],
            "client_waited_ms": [round(float(value) * 1e3, 3) for value in waits],
            "within_goal": within,
            "within_goal_apart_from_the_clients_wait": apart,
        }
        print(f"{name:26}{low:8.2f}{p50:8.2f}{p90:8.2f}{p99:8.2f}{high:8.2f}   {within:.1%}, {apart:.1%}")
    ttfts = [each.seen.ttft for each in beside]
    print(f"TTFT at the client from {min(ttfts) * 1e3:.0f} to {max(ttfts) * 1e3:.0f} ms")
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=27, help="of a round")
    parser.add_argument("--rate", type=float, default=1.5, help="requests a second")
    parser.add_argument("--threads", help="of the server's kernels (default: all cores)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    flags = parser.parse_args()
    with serving(*(("--threads", flags.threads) if flags.threads else ())) as url:
        beside = measure(url, flags)
        figures = report(beside)
    if flags.json:
        flags.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
