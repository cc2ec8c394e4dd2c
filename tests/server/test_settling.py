"""What a server leaves for when it answers already."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cudaprefill.server.run import settle


@pytest.fixture
def no_collections() -> Iterator[None]:
    """As while libraries and a model are loaded."""
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


def engine_whose_template(fails: Exception | None) -> Any:
    def encode_chat(messages: list[dict[str, str]]) -> list[int]:
        if fails is not None:
            raise fails
        return []

    return SimpleNamespace(tokenizer=SimpleNamespace(encode_chat=encode_chat))


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("fails", [None, ValueError("the model has no chat template")])
def test_garbage_is_looked_for_again_but_not_among_what_was_loaded(fails: Exception | None) -> None:
    asyncio.run(settle(engine_whose_template(fails)))
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000


@pytest.mark.usefixtures("no_collections")
def test_garbage_is_looked_for_again_whatever_happens_to_the_template() -> None:
    with pytest.raises(ImportError):
        asyncio.run(settle(engine_whose_template(ImportError("no template engine"))))
    assert gc.isenabled()
