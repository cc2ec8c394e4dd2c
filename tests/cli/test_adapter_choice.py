"""Which adapter answers: one that the command loads itself, or one of a server's."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator

import pytest

from cudaprefill.cli.engine_flags import chosen_adapter, engine_arguments, engine_config
from cudaprefill.cli.main import build_parser, main
from cudaprefill.cli.remote_chat import open_backend
from cudaprefill_tui.conversations import ChatSettings
from cudaprefill_tui.engine_link import AnswerEnded, LinkError
from cudaprefill_tui.server_link import ServerLink
from tests.server.adapter_server import ChatAdapterServer

MESSAGES = [{"role": "user", "content": "hello there"}]


def chat_flags(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["chat", *arguments])


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ([], None),
        (["--adapter", "a=x"], "a"),
        (["--adapter", "a=x", "--adapter", "b=y"], None),
        (["--adapter", "a=x", "--adapter", "b=y", "--with-adapter", "b"], "b"),
    ],
)
def test_the_only_adapter_or_the_one_that_is_named(arguments: list[str], chosen: str | None) -> None:
    assert chosen_adapter(chat_flags(*arguments)) == chosen


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--with-adapter", "c"], "--with-adapter c is not one of --adapter, which names none"),
        (["--adapter", "a=x", "--adapter", "b=y", "--with-adapter", "c"], "which names only a, b"),
    ],
)
def test_an_adapter_that_is_not_loaded_is_refused_before_the_model_is(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", *arguments]) == 1
    assert reason in capsys.readouterr().err


def test_a_server_of_its_own_is_started_with_the_adapters() -> None:
    given = ["--adapter=a=x", "--adapter=b=y=z", "--dtype=bfloat16", "--no-enable-prefix-caching"]
    arguments = engine_arguments(chat_flags(*given))
    assert arguments == given
    serve = build_parser().parse_args(["serve", *arguments])
    assert engine_config(serve).adapters == {"a": "x", "b": "y=z"}


def test_engine_flags_beside_a_server_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", "http://127.0.0.1:1", "--adapter", "a=x", "--block-size", "32"]) == 1
    assert "--adapter=a=x --block-size=32: with --url the engine is the server's" in capsys.readouterr().err


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatAdapterServer]:
    server = ChatAdapterServer()
    server.folder = tmp_path_factory.mktemp("adapters")
    with server:
        yield server


def answer_with(server: ChatAdapterServer, *arguments: str) -> str:
    with open_backend(chat_flags("--url", server.url, "--max-tokens", "8", *arguments)) as backend:
        return "".join(backend.ask(MESSAGES))


def test_line_by_line_an_adapter_of_the_server_answers(server: ChatAdapterServer) -> None:
    assert answer_with(server, "--with-adapter", "first") != answer_with(server)
    with pytest.raises(OSError, match="nobody"):
        answer_with(server, "--with-adapter", "nobody")


def test_on_the_desktop_an_adapter_of_the_server_answers(server: ChatAdapterServer) -> None:
    async def answer(link: ServerLink, model: str | None) -> str:
        texts = ""
        async for event in link.respond(MESSAGES, ChatSettings(model=model, max_tokens=8)):
            if not isinstance(event, AnswerEnded):
                texts += event.text
        return texts

    async def talk() -> None:
        link = ServerLink(server.url)
        try:
            assert [await answer(link, model) for model in (None, "first")] == [
                answer_with(server),
                answer_with(server, "--with-adapter", "first"),
            ]
            with pytest.raises(LinkError, match="nobody"):
                await answer(link, "nobody")
        finally:
            await link.close()

    asyncio.run(talk())
