"""Servers on the fake model that have adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cudaprefill.adapters import AdapterRegistry
from tests.adapters.by_hand import TARGET, write_prompt_adapter
from tests.server.chat_server import ChatServer
from tests.server.running import RunningServer

NUM_VIRTUAL = 64


class AdapterServer(RunningServer):
    """Has the adapters `first` and `second`, of 64 virtual tokens each; more may be loaded from `folder`."""

    folder: Path

    def make_adapters(self) -> AdapterRegistry:
        registry = AdapterRegistry(TARGET)
        for name in ("first", "second"):
            registry.load(name, self.folder / name)
        return registry

    def _build(self) -> Any:
        for seed, name in enumerate(("first", "second", "third")):
            write_prompt_adapter(self.folder / name, NUM_VIRTUAL, seed)
        return super()._build()


class ChatAdapterServer(AdapterServer, ChatServer):
    def _build(self) -> Any:
        parts = super()._build()
        object.__setattr__(parts.input_processor, "adapters", self.make_adapters())
        return parts
