"""A client that does not read: its text is merged, its request is given up when too much waits, others go on."""

from __future__ import annotations

import socket as sockets
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from cudaprefill.text.tokenizer import Tokenizer
from cudaprefill.text.tokenizer_files import TokenizerFiles
from tests.engine.harness import CHAT_TEMPLATE, VOCAB_SIZE
from tests.server.chat_server import ChatServer, Socket, text_of
from tests.server.running import PATIENCE

TOKEN_BYTES = 40_000


def long_tokens() -> Tokenizer:
    """Each token is a long run of one letter, so that a few of them fill all buffers on the way."""
    letters = [chr(ord("A") + number) for number in range(VOCAB_SIZE)]
    vocab = {letter: number for number, letter in enumerate(letters)}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.Sequence(
        [decoders.Replace(letter, letter * TOKEN_BYTES) for letter in letters] + [decoders.Fuse()]
    )
    return Tokenizer(TokenizerFiles(backend.to_str(), {"eos_token": "A"}, CHAT_TEMPLATE))


class LongTokenServer(ChatServer):
    tokenizer = staticmethod(long_tokens)


def small_buffers(server: ChatServer) -> sockets.socket:
    """A connection that takes in little while nobody reads."""
    raw = sockets.socket()
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", server.port))
    raw.settimeout(PATIENCE)
    return raw


def test_a_reader_that_stops_reading_loses_its_request_and_is_told_why() -> None:
    asked: dict[str, Any] = {"max_output_tokens": 400, "ignore_eos": True, "stream_id": "x"}
    with (
        LongTokenServer() as server,
        small_buffers(server) as raw,
        Socket(server, sock=raw, max_queue=1) as slow,
        Socket(server) as reader,
    ):
        slow.create("BCD", **asked)
        server.wait_until(lambda: server.runner.fake.steps > 1)
        server.wait_until(lambda: not server.in_engine(lambda engine: engine.has_work()), "the request to be given up")
        assert server.runner.fake.steps < 400
        reader.create("BCD", **asked | {"max_output_tokens": 5})
        assert len(text_of(reader.until_end("x"))) == 5 * TOKEN_BYTES
        events = slow.until_end("x")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    assert (events[-1]["type"], last["error"]["code"]) == ("response.failed", "slow_reader")
    assert "wait unread" in last["error"]["message"]
    assert last["output"][0]["status"] == "incomplete"
    assert last["output"][0]["content"][0]["text"] == text_of(events)
