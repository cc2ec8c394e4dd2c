"""Settings for three kinds of work, as starting points: what counts is what the panes then show."""

from __future__ import annotations

from dataclasses import dataclass

from cudaprefill.presets import preset_settings
from cudaprefill.protocol.itl_target import ItlTarget
from cudaprefill.protocol.telemetry import EngineDescription, EngineSettings


@dataclass(frozen=True)
class Preset:
    """What `--preset` of the same name sets at the start, for an engine that runs: as far as it can be changed then."""

    name: str
    title: str
    purpose: str

    def settings(self, engine: EngineDescription) -> EngineSettings:
        """For one engine: every running request computes a token in every step, so the budget is at least that."""
        values = preset_settings(self.name, "cuda" if engine.device.startswith("cuda") else "cpu")
        return EngineSettings(
            max_num_batched_tokens=max(values["max_num_batched_tokens"], engine.max_num_seqs),
            long_prefill_token_threshold=values.get("long_prefill_token_threshold", 0),
            itl_target_ms=values.get("itl_target_ms", 0.0),
        )


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("rag", "RAG", "many questions over the same long texts"),
        Preset("code", "Code", "long prompts whose first token should come soon"),
        Preset("chat", "Chat", "many people read along: an even flow"),
    )
}


def target_text(target: ItlTarget | None) -> str:
    """As `--itl-target-ms` takes it."""
    return "auto" if target == "auto" else f"{target or 0:g}"


def flags(settings: EngineSettings) -> str:
    """The flags of `cudaprefill serve` that these settings stand for."""
    return (
        f"--max-num-batched-tokens {settings.max_num_batched_tokens}"
        f" --long-prefill-token-threshold {settings.long_prefill_token_threshold}"
        f" --itl-target-ms {target_text(settings.itl_target_ms)}"
    )
