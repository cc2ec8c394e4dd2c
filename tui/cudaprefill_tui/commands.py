"""The command palette: the same table as the menus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Provider

from .keymap import Command, commands
from .screens.desktop_base import DesktopBase


class CommandProvider(Provider):
    async def discover(self) -> AsyncIterator[DiscoveryHit]:
        for command in self._commands():
            yield DiscoveryHit(self._title(command), partial(self._run, command), help=command.help)

    async def search(self, query: str) -> AsyncIterator[Hit]:
        matcher = self.matcher(query)
        for command in self._commands():
            title = self._title(command)
            score = max(matcher.match(title), 0.8 * matcher.match(command.help))
            if score > 0:
                yield Hit(score, matcher.highlight(title), partial(self._run, command), help=command.help)

    def _commands(self) -> list[Command]:
        screen = self.screen
        assert isinstance(screen, DesktopBase)
        return commands(screen.with_chat, screen.session.is_playback)

    @staticmethod
    def _title(command: Command) -> str:
        return f"{command.menu}: {command.title}"

    async def _run(self, command: Command) -> None:
        await self.screen.run_action(command.action)
