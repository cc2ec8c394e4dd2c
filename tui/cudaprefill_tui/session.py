"""The servers that are attached, which one is looked at, and the load on it."""

from __future__ import annotations

from collections.abc import Callable

from .conversations import ChatSettings
from .engine_link import AnswerStream, EngineLink
from .load import LoadGenerator, LoadRequest
from .playback import PlaybackLink

Connect = Callable[[str, str | None], EngineLink]  # URL, API key


class Session:
    """notice: what to tell while there is no server: how its start goes, or why it failed."""

    def __init__(self, links: list[EngineLink], connect: Connect, notice: str = "") -> None:
        self.links = links
        self.connect = connect
        self.notice = notice
        self.place = 0
        self.generator = LoadGenerator(self._send)
        self._load_link: EngineLink | None = None

    @property
    def is_playback(self) -> bool:
        return isinstance(self.link, PlaybackLink)

    @property
    def link(self) -> EngineLink | None:
        return self.links[self.place] if self.links else None

    def attach(self, url: str, api_key: str | None) -> EngineLink:
        """A link to a server, which becomes the one that is looked at. ValueError for what is no URL."""
        known = next((place for place, link in enumerate(self.links) if link.url == url), None)
        if known is None:
            self.links.append(self.connect(url, api_key))
            known = len(self.links) - 1
        self.place = known
        return self.links[known]

    async def detach(self, url: str) -> None:
        """Forgets a server, if it is known."""
        for link in [link for link in self.links if link.url == url]:
            self.links.remove(link)
            self.place = min(self.place, max(len(self.links) - 1, 0))
            if self._load_link is link:
                await self.generator.stop()
            await link.close()

    def next(self) -> None:
        if self.links:
            self.place = (self.place + 1) % len(self.links)

    def status(self) -> str:
        """smollm2-135m · cpu/avx512 · 127.0.0.1:8000 · ● live"""
        link = self.link
        if link is None:
            return self.notice
        engine = link.view.engine
        parts = [engine.model, f"{engine.device}/{engine.kernels}"] if engine is not None else []
        parts.append(link.name if len(self.links) == 1 else f"{link.name} ({self.place + 1} of {len(self.links)})")
        parts.append(link.state_words)
        return " · ".join(parts)

    def _send(self, request: LoadRequest) -> AnswerStream:
        """All requests of one load go to the server that was looked at when it started."""
        if not self.generator.is_running or self._load_link is None:
            self._load_link = self.link
        if self._load_link is None:
            raise ValueError("there is no server yet")
        settings = ChatSettings(max_tokens=request.max_tokens)
        return self._load_link.respond([{"role": "user", "content": request.prompt}], settings)

    async def close(self) -> None:
        await self.generator.stop()
        for link in self.links:
            await link.close()
