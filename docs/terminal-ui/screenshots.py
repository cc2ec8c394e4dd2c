"""Takes the pictures of docs/terminal-ui.md: the desktop on a real server under a load, at three sizes.

python docs/terminal-ui/screenshots.py
"""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
from itertools import islice
from pathlib import Path

os.environ["TEXTUAL_COLOR_SYSTEM"] = "truecolor"

import cairosvg
from PIL import Image
from textual.pilot import Pilot

from cudaprefill.client.engine_view import EngineView
from cudaprefill.protocol.telemetry import SHARED
from cudaprefill_tui.app import CudaprefillApp, Setup
from cudaprefill_tui.conversations import ChatSettings
from cudaprefill_tui.load import WORDS, LoadPlan
from cudaprefill_tui.server_link import ServerLink
from cudaprefill_tui.server_process import ServerProcess
from cudaprefill_tui.session import Session

SIZES = {(120, 40): "desktop", (80, 24): "small", (200, 60): "wide"}
PROMPTS = ("What is the capital of France?", "Why is the sky blue? Answer in three sentences.")
LOAD = LoadPlan("document", users=2, document_words=900, max_tokens=60, pause=0.2)
READERS = 3  # of one text: their blocks are shared
TEXT = " ".join(WORDS * 8)
BUDGET, CAP = 256, 96  # so small that a long prompt takes many steps
PATIENCE = 120.0  # seconds for the load to look like one
COLOURS = 128
FONT = "DejaVu Sans Mono"  # wide enough a set of glyphs, and on most machines


async def main() -> None:
    server = ServerProcess(["--kv-cache-memory", "256MiB"])
    url = await server.start(lambda line, share: print(line))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            link = ServerLink(url)
            chat = ChatSettings(max_tokens=160)
            setup = Setup(Session([link], ServerLink), None, chat, Path(scratch) / "preferences.json")
            await take(CudaprefillApp(setup), link)
    finally:
        await server.stop()


async def take(app: CudaprefillApp, link: ServerLink) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(1.0)
        await link.change_settings(max_num_batched_tokens=BUDGET, long_prefill_token_threshold=CAP)
        conversation = app.desktop.chat.current
        for prompt in PROMPTS:
            conversation.composer.insert(prompt)
            await pilot.press("enter")
            while conversation.conversation.live_answer is not None:
                await pilot.pause(0.1)
        readers = [asyncio.create_task(read(link, number)) for number in range(READERS)]
        app.desktop.session.generator.start(LOAD)
        for size, name in SIZES.items():
            await pilot.resize_terminal(*size)
            await until_busy(link.view, pilot)
            save(app.export_screenshot(title="cudaprefill chat"), name, size[0] * (8 if size[0] < 150 else 6))
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def read(link: ServerLink, number: int) -> None:
    """Asks one question after the other about the same text."""
    while True:
        question = f"{TEXT}\n\nQuestion {number}: what is this text about?"
        async for _ in link.respond([{"role": "user", "content": question}], ChatSettings(max_tokens=80)):
            pass


async def until_busy(view: EngineView, pilot: Pilot[None]) -> None:
    """Chunks among decodes in the newest steps, blocks that are shared."""
    await pilot.pause(2.0)
    for _ in range(int(PATIENCE / 0.1)):
        newest = list(islice(reversed(view.steps), 6))
        mixed = sum(bool(step.record.chunks) and len(step.decodes) > 1 for step in newest)
        if mixed >= 3 and view.blocks.count(SHARED) >= READERS and not newest[0].record.num_waiting:
            break
        await pilot.pause(0.1)
    await pilot.pause(0.1)


def save(picture: str, name: str, width: int) -> None:
    """As a PNG with a palette: a terminal has few colours."""
    data = cairosvg.svg2png(bytestring=picture.replace("Fira Code", FONT).encode(), output_width=width)
    path = Path(__file__).with_name(f"{name}.png")
    Image.open(io.BytesIO(data)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path, path.stat().st_size)


if __name__ == "__main__":
    asyncio.run(main())
