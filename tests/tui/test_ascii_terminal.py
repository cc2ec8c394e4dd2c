"""Terminals that show only ASCII, or whose encoding holds little more, get something for every cell."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual._box_drawing import BOX_CHARACTERS
from textual.drivers.headless_driver import HeadlessDriver

from cudaprefill_tui.app import CudaprefillApp, Setup
from cudaprefill_tui.ascii_terminal import ascii_translator
from cudaprefill_tui.conversations import ChatSettings
from cudaprefill_tui.glyphs import ASCII, UNICODE, Glyphs
from cudaprefill_tui.session import Session
from tests.tui.fake_link import FakeLink


@given(st.text(), st.sampled_from(["ascii", "latin-1", "koi8-r", "utf-8"]))
def test_whatever_is_drawn_can_be_encoded_and_takes_the_same_cells(text: str, encoding: str) -> None:
    translated = ascii_translator(encoding)(text)
    translated.encode(encoding, "surrogatepass" if encoding == "utf-8" else "strict")
    assert cell_len(translated) == cell_len(text)


def test_letters_that_the_encoding_has_stay() -> None:
    assert ascii_translator("latin-1")("Gr\u00fc\u00dfe \u4f60") == "Gr\u00fc\u00dfe ??"
    assert ascii_translator("utf-8")("\u2502 \u4f60 \u2502") == "| \u4f60 |"


def test_every_sign_that_we_and_textual_draw_has_a_counterpart() -> None:
    drawn = "".join("".join(value) for value in dataclasses.asdict(UNICODE).values())
    translated = ascii_translator("ascii")(drawn + "".join(BOX_CHARACTERS.values()))
    assert translated.isascii()
    assert "?" not in translated


@pytest.mark.parametrize("glyphs", [ASCII, UNICODE])
def test_a_desktop_with_ascii_glyphs_sends_nothing_else(glyphs: Glyphs, tmp_path: Path) -> None:
    sent: list[str] = []

    class Terminal(HeadlessDriver):
        @property
        def is_headless(self) -> bool:
            return False  # else the application composes no output

        def write(self, data: str) -> None:
            sent.append(data)

    session = Session([FakeLink()], lambda url, key: FakeLink(url))

    async def main() -> None:
        app = CudaprefillApp(Setup(session, None, ChatSettings(), tmp_path / "x.json", glyphs))
        app.driver_class = Terminal
        async with app.run_test(headless=False, size=(120, 40)) as pilot:
            await pilot.press("f10")
            await pilot.pause(0.2)

    asyncio.run(main())
    text = "".join(sent)
    assert "Ask something" in text
    assert text.isascii() == (glyphs is ASCII)
