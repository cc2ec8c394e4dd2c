"""Takes the pictures of docs/terminal-ui.md: the desktop on a real server under a load, at three sizes.

python docs/terminal-ui/screenshots.py
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import cairosvg

from cudaprefill_tui.app import CudaprefillApp, Setup
from cudaprefill_tui.conversations import ChatSettings
from cudaprefill_tui.load import LoadPlan
from cudaprefill_tui.server_link import ServerLink
from cudaprefill_tui.server_process import ServerProcess
from cudaprefill_tui.session import Session

SIZES = {(80, 24): "small", (120, 40): "desktop", (200, 60): "wide"}
PROMPT = "Write a short poem about rivers, then a Python function that adds two numbers."
LOAD = LoadPlan("document", users=3, document_words=900, max_tokens=40, pause=0.5)
SECONDS = 25.0  # under load before the first picture
FONT = "DejaVu Sans Mono"  # wide enough a set of glyphs, and on most machines


async def main() -> None:
    server = ServerProcess(["--kv-cache-memory", "128MiB"])
    url = await server.start(lambda line, share: print(line))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            chat = ChatSettings(max_tokens=160)
            setup = Setup(Session([ServerLink(url)], ServerLink), None, chat, Path(scratch) / "preferences.json")
            await take(CudaprefillApp(setup))
    finally:
        await server.stop()


async def take(app: CudaprefillApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(1.0)
        app.desktop.session.generator.start(LOAD)
        app.desktop.chat.current.composer.insert(PROMPT)
        await pilot.press("enter")
        await pilot.pause(SECONDS)
        for size, name in SIZES.items():
            await pilot.resize_terminal(*size)
            await pilot.pause(2.0)
            picture = app.export_screenshot(title="cudaprefill chat").replace("Fira Code", FONT)
            path = Path(__file__).with_name(f"{name}.png")
            cairosvg.svg2png(
                bytestring=picture.encode(), write_to=str(path), output_width=size[0] * (8 if size[0] < 150 else 6)
            )
            print(path, path.stat().st_size)


if __name__ == "__main__":
    asyncio.run(main())
