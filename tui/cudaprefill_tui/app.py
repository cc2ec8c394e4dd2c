"""The application: themes, preferences, one desktop, and a server of its own where it was given none."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.binding import Binding

from . import themes
from .ascii_terminal import ascii_translator
from .conversations import ChatSettings
from .glyphs import ASCII, UNICODE, Glyphs
from .preferences import load_preferences, save_preferences
from .screens.desktop import DesktopScreen
from .server_process import ServerFailedError, ServerProcess
from .session import Session
from .sparse_output import SparseApp


@dataclass
class Setup:
    """What the command line says.

    session: with the links to the servers that were named. server: one to start, where none was.
    chat: what conversations start with, None for panes alone. glyphs: what the terminal can show.
    """

    session: Session
    server: ServerProcess | None
    chat: ChatSettings | None
    preferences_path: Path
    glyphs: Glyphs = UNICODE


SHORT_LIFE = 2.0  # seconds; a server that lives less is not started again


class CudaprefillApp(SparseApp[None]):
    TITLE = "cudaprefill"
    CSS_PATH = "styles/desktop.tcss"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar[Any] = set()  # the desktop has its own

    def __init__(self, setup: Setup) -> None:
        super().__init__(ascii_translator(sys.stdout.encoding) if setup.glyphs is ASCII else str)
        self.setup = setup
        self.preferences, self._complaint = load_preferences(setup.preferences_path)
        self.desktop = DesktopScreen(setup.session, setup.chat, self.preferences, setup.glyphs)

    def on_mount(self) -> None:
        for theme in themes.THEMES:
            self.register_theme(theme)
        self.theme = self.preferences.theme if self.preferences.theme in themes.TITLES else themes.DARK.name
        self.push_screen(self.desktop)
        if self._complaint:
            self.desktop.tell(f"starting with the default layout: {self._complaint}", failed=True)
        if self.setup.server is not None:
            self._start(self.setup.server)

    @work(group="server")
    async def _start(self, server: ServerProcess) -> None:
        """Keeps a server of its own going: one that ends is told of, and another one takes its place."""
        session = self.setup.session

        def notice(text: str) -> None:
            session.notice = text
            if self.desktop.is_mounted:
                self.desktop.tick()

        def report(line: str, share: float | None) -> None:
            if not session.links:
                notice(line if share is None else f"starting a server: {line}")

        notice("starting a server …")

        while True:
            try:
                url = await server.start(report)
            except (ServerFailedError, OSError) as error:
                notice(str(error))
                self.desktop.tell(str(error), failed=True)
                return
            began = time.monotonic()
            self.desktop.attach(url, None)
            end = await server.wait()
            notice(f"the server {end}")
            await self.desktop.detach(url)
            if time.monotonic() - began < SHORT_LIFE:
                self.desktop.tell(f"the server {end} after a short life: no other is started", failed=True)
                return
            self.desktop.tell(f"the server {end}; another one is being started", failed=True)

    def action_command_palette(self) -> None:
        """Not over dialogs: its commands are the desktop's."""
        if self.screen is self.desktop:
            super().action_command_palette()

    def get_key_display(self, binding: Binding) -> str:
        """F1, ^Q, ⏎"""
        display = super().get_key_display(binding)
        return display.upper() if display[:1] in ("f", "^") else display

    def copy_to_clipboard(self, text: str) -> None:
        """What text fields copy takes the same way as everything else."""
        self._clipboard = text
        self.desktop.copy(text, "selection")

    async def on_unmount(self) -> None:
        self.preferences.theme = self.theme
        self.desktop.desk.remember()
        save_preferences(self.setup.preferences_path, self.preferences)
        await self.setup.session.close()
