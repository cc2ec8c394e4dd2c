"""One tiny model, adapters of it, and what PEFT gives with each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cudaprefill.engine.request import Request
from cudaprefill.models import Decoder, load_model
from cudaprefill.sampling_params import SamplingParams
from tests.adapters.peft_adapters import Reference, save_adapter
from tests.adapters.recording import GREEDY, RecordingEngine
from tests.models.tiny import random_tokens, reference_logits, save_tiny_model

TEXT = [token % 100 for token in random_tokens(37)]
BASE = None


@dataclass
class Case:
    model: Decoder
    base: Any
    folders: dict[str, Path]
    references: dict[str, Reference]

    def engine(self, **settings: Any) -> RecordingEngine:
        """With all the adapters."""
        return RecordingEngine(self.model, **settings).load(self.folders)

    def expected(self, request: Request, token_ids: list[int]) -> Tensor:
        if request.adapter is None:
            return reference_logits(self.base, token_ids)
        return self.references[request.adapter.name].logits(token_ids)


def make_case(folder: Path, family: str, configs: Mapping[str, Any], **overrides: Any) -> Case:
    """`configs`: PEFT's, by the names of the adapters. `overrides`: of the model's config.json."""
    base = save_tiny_model(folder, family, **overrides)
    folders = {name: folder / name for name in configs}
    for name, config in configs.items():
        save_adapter(folders[name], base, config)
    return Case(load_model(folder), base, folders, {name: Reference(base, folders[name]) for name in configs})


def ask_all(engine: RecordingEngine, round_: int = 0, params: SamplingParams = GREEDY) -> dict[str | None, Request]:
    """One text for every adapter and none."""
    return {name: engine.ask(f"{round_} {name}", TEXT, name, params=params) for name in (BASE, *engine.adapters.names)}
