"""How far the bytes on the socket are behind the engine: many streams of one server, read by another process.

    python benchmarks/streams.py
    python benchmarks/streams.py --streams 1 --large-prompts 4

For every token: the time from its step's hand-over, in the engine's thread, to the moment at which the client's read
returned its event. With --large-prompts yet another process posts prompts of 1 MB of text, all at once, which are
tokenized and refused: the gaps between the tokens of a stream should hardly show it.

The server runs in this process as `cudaprefill serve` runs it; the processes read one clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import selectors
import socket
import sys
import time
from typing import Any

import numpy as np
import uvicorn

from cudaprefill.config import EngineConfig
from cudaprefill.engine.factory import build_engine
from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.server import run
from cudaprefill.server.config import ServerConfig
from cudaprefill.server.state import ServerState

LARGE_PROMPT = 1_000_000  # characters
WARM_UP = 8  # events of each stream that are not counted: prefills and first look-ups


class HandOvers:
    """When the engine's thread handed each token over, by request and in order."""

    def __init__(self, state: ServerState) -> None:
        self.times: dict[str, list[float]] = {}
        self.steps: list[float] = []
        engine = state.engine
        deliver = engine._mailbox

        def timed(deltas: list[OutputDelta]) -> None:
            now = time.monotonic()
            self.steps.append(now)
            for delta in deltas:
                self.times.setdefault(delta.request_id, []).extend([now] * len(delta.token_ids))
            deliver(deltas)

        engine._mailbox = timed  # type: ignore[method-assign]


def read_streams(port: int, num_streams: int, num_tokens: int) -> dict[str, list[float]]:
    """The client: when each event of each stream was read, by the request's id."""
    selector = selectors.DefaultSelector()
    received: dict[socket.socket, bytes] = {}
    times: dict[socket.socket, list[float]] = {}
    for number in range(num_streams):
        fields = {
            "prompt": f"{number}: Once upon a time there was a",
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"continuous_usage_stats": True},  # says how many tokens a merged event has
        }
        body = json.dumps(fields).encode()
        connection = socket.create_connection(("127.0.0.1", port))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
        received[connection], times[connection] = b"", []
    reads: dict[socket.socket, list[tuple[float, int]]] = {connection: [] for connection in received}
    while selector.get_map():
        for key, _ in selector.select():
            connection: Any = key.fileobj
            piece = connection.recv(1 << 16)
            received[connection] += piece
            reads[connection].append((time.monotonic(), len(received[connection])))
            if b"data: [DONE]" in received[connection][-64:] or not piece:
                selector.unregister(connection)
    return dict(_token_times(received[connection], reads[connection]) for connection in received)


def _token_times(received: bytes, reads: list[tuple[float, int]]) -> tuple[str, list[float]]:
    """The request's id, and for each of its tokens the time of the read that completed its event."""
    times: list[float] = []
    request_id, place, read = "", 0, 0
    while (place := received.find(b"data: {", place)) >= 0:
        end = received.index(b"\n\n", place) + 2
        event = json.loads(received[place + len("data: ") : end])
        request_id, place = event["id"], end
        while reads[read][1] < end:
            read += 1
        times += [reads[read][0]] * (event["usage"]["completion_tokens"] - len(times))
    return request_id, times


def post_large_prompts(port: int, num_prompts: int) -> None:
    """Another client: all prompts at once, until each was refused as too long."""
    text = " ".join(f"{number} bottles of beer on the wall" for number in range(50_000))[:LARGE_PROMPT]
    body = json.dumps({"prompt": text}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(num_prompts)]
    for connection in connections:
        connection.sendall(head.encode() + body)
    for connection in connections:
        answer = connection.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 400"), answer


async def measure(args: argparse.Namespace) -> None:
    sys.setswitchinterval(args.switch_interval)
    config = EngineConfig(model=args.model, threads=args.threads, max_num_seqs=args.streams)
    state = ServerState(ServerConfig(port=0), lambda: build_engine(config))
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(run.run(state, run.bound_socket("127.0.0.1", 0), stop, ready.set_result))
    await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
    port = ready.result().rpartition(":")[2]
    hand_overs = HandOvers(state)
    this = (sys.executable, __file__, "--port", port, "--streams", str(args.streams), "--tokens", str(args.tokens))
    client = await asyncio.create_subprocess_exec(*this, stdout=asyncio.subprocess.PIPE)
    if args.large_prompts:
        while len(hand_overs.steps) < 2 * WARM_UP:
            await asyncio.sleep(0.01)
        other = await asyncio.create_subprocess_exec(*this, "--large-prompts", str(args.large_prompts))
        await other.wait()
    output, _ = await client.communicate()
    stop.set()
    await serving
    report(hand_overs, json.loads(output))


def report(hand_overs: HandOvers, read: dict[str, list[float]]) -> None:
    lags, gaps = [], []
    for request_id, times in read.items():
        made = hand_overs.times[request_id]
        assert len(made) == len(times), f"{request_id}: {len(made)} tokens were made, {len(times)} were read"
        lags += [1e3 * (there - here) for here, there in zip(made[WARM_UP:], times[WARM_UP:], strict=True)]
        gaps += [*1e3 * np.diff(times[WARM_UP:])]
    print(f"{len(read)} streams, {len(lags)} tokens after the first {WARM_UP} of each; median, p99 and maximum in ms")
    for what, values in {
        "from the engine to the client's read": lags,
        "between two tokens, at the client": gaps,
        "between two steps, in the engine": 1e3 * np.diff(hand_overs.steps[WARM_UP:]),
    }.items():
        median, p99 = np.quantile(values, (0.5, 0.99))
        print(f"{what:36} {median:8.2f} {p99:8.2f} {max(values):8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="(default: the packaged model)")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    parser.add_argument("--threads", type=int, help="of the engine's kernels (default: all cores)")
    parser.add_argument("--switch-interval", type=float, default=run.SWITCH_INTERVAL, help="seconds, Python's")
    parser.add_argument("--large-prompts", type=int, default=0, metavar="N", help="that another client posts")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)  # in a client's process: where the server is
    args = parser.parse_args()
    if args.port and args.large_prompts:
        post_large_prompts(args.port, args.large_prompts)
        return
    if args.port:
        print(json.dumps(read_streams(args.port, args.streams, args.tokens)))
        return
    loop_factory = uvicorn.Config("", log_config=None).get_loop_factory()
    loop = loop_factory() if loop_factory else asyncio.new_event_loop()
    loop.run_until_complete(measure(args))
    loop.close()


if __name__ == "__main__":
    main()
