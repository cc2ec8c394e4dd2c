"""A server whose tokenizer has control tokens around messages, and a plain websocket to it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend
from websockets.sync.client import connect

from cudaprefill.engine.engine import Engine
from cudaprefill.engine.factory import EngineParts
from cudaprefill.engine.input_processor import InputProcessor
from cudaprefill.text.tokenizer import Tokenizer
from cudaprefill.text.tokenizer_files import TokenizerFiles
from tests.engine.harness import EOS, VOCAB_SIZE, make_engine, make_input_processor
from tests.server.running import PATIENCE, PacedRunner, RunningServer, _info

CONTROL = ["<end>", "<user>", "<assistant>", "<system>"]  # <end> is EOS
LETTERS = "abcdefghijklmnopqrstuvwxyz "
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking is false %}quick {% endif %}{% endif %}"
)
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


def chat_tokenizer() -> Tokenizer:
    """Letters and pairs of letters: most texts have several spellings, of which the tokenizer uses one.

    So what the fake model says is hardly ever spelled as the tokenizer would spell its text.
    """
    pairs = [(first, second) for first in "abcde" for second in "abcd"][: VOCAB_SIZE - len(CONTROL) - len(LETTERS)]
    tokens = [*CONTROL, *LETTERS, *(first + second for first, second in pairs)]
    backend = Backend(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=pairs))
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROL])
    backend.decoder = decoders.Fuse()
    return Tokenizer(TokenizerFiles(backend.to_str(), {"eos_token": "<end>"}, CHAT_TEMPLATE))


class ChatServer(RunningServer):
    """A RunningServer whose tokenizer chats."""

    tokenizer = staticmethod(chat_tokenizer)

    def _build(self) -> EngineParts:
        self.builds += 1
        tokenizer = self.tokenizer()
        made = make_engine(**self._engine_settings)
        self.engine = Engine(made.scheduler, made.model_runner, tokenizer, made.device)
        self.runner = PacedRunner(self.engine)
        self.runner.seconds = self._pace
        self.engine.model_runner = self.runner  # type: ignore[assignment]
        limits = make_input_processor().limits
        return EngineParts(
            self.engine, InputProcessor(tokenizer, (EOS,), VOCAB_SIZE, limits), tokenizer, _info(self.engine)
        )


class Socket:
    """A websocket to `/v1/responses` that speaks JSON."""

    def __init__(self, server: RunningServer, **options: Any) -> None:
        self._open = contextlib.ExitStack()
        url = f"ws://127.0.0.1:{server.port}/v1/responses"
        self.raw = self._open.enter_context(connect(url, max_size=None, **options))

    def send(self, message: dict[str, Any] | str | bytes) -> None:
        self.raw.send(json.dumps(message) if isinstance(message, dict) else message)

    def create(self, input: Any = "hello", **fields: Any) -> None:
        self.send({"type": "response.create", "input": input, "temperature": 0, **fields})

    def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.raw.recv(PATIENCE))
        return message

    def until(self, *kinds: str, stream_id: str | None = None) -> list[dict[str, Any]]:
        """The messages of one lane up to the first of one of these types; those of other lanes are thrown away."""
        messages = []
        while True:
            message = self.receive()
            if message.get("stream_id") != stream_id:
                continue
            messages.append(message)
            if message["type"] in kinds:
                return messages

    def until_end(self, stream_id: str | None = None) -> list[dict[str, Any]]:
        return self.until(*TERMINAL, stream_id=stream_id)

    def ask(self, input: Any = "hello", **fields: Any) -> dict[str, Any]:
        """The response, once it has ended."""
        self.create(input, **fields)
        last = self.until_end(fields.get("stream_id"))[-1]
        assert last["type"] != "error", last
        response: dict[str, Any] = last["response"]
        return response

    def refused(self, **fields: Any) -> dict[str, Any]:
        """The error that answers a request."""
        self.create(**fields)
        (message,) = self.until_end(fields.get("stream_id"))
        assert message["type"] == "error", message
        error: dict[str, Any] = message["error"]
        return {**error, "status": message["status"]}

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Socket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def text_of(messages: list[dict[str, Any]]) -> str:
    return "".join(message["delta"] for message in messages if message["type"] == "response.output_text.delta")


def chat_server(**options: Any) -> Iterator[ChatServer]:
    with ChatServer(**options) as server:
        yield server
