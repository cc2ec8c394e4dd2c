"""Settings for three kinds of work, as starting points: what counts is what the panes then show."""

from __future__ import annotations

from dataclasses import dataclass

from cudaprefill.protocol.telemetry import EngineDescription, EngineSettings


@dataclass(frozen=True)
class Preset:
    """cpu, gpu: token budget, chunk cap (0: automatic) and ITL target in milliseconds (0: none) on such a device."""

    name: str
    title: str
    purpose: str
    cpu: tuple[int, int, float]
    gpu: tuple[int, int, float]

    def settings(self, engine: EngineDescription) -> EngineSettings:
        """For one engine: every running request computes a token in every step, so the budget is at least that."""
        budget, cap, target = self.gpu if engine.device.startswith("cuda") else self.cpu
        return EngineSettings(
            max_num_batched_tokens=max(budget, engine.max_num_seqs),
            long_prefill_token_threshold=cap,
            itl_target_ms=target,
        )


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("rag", "RAG", "long prompts, short answers: the first token soon", (1024, 0, 0), (8192, 0, 0)),
        Preset("code", "Code", "long prompts and long answers: a bit of both", (512, 256, 100), (4096, 1024, 50)),
        Preset("chat", "Chat", "short prompts, many streams: an even flow", (256, 64, 50), (2048, 512, 25)),
    )
}


def flags(settings: EngineSettings) -> str:
    """The flags of `cudaprefill serve` that these settings stand for."""
    return (
        f"--max-num-batched-tokens {settings.max_num_batched_tokens}"
        f" --long-prefill-token-threshold {settings.long_prefill_token_threshold}"
        f" --itl-target-ms {settings.itl_target_ms or 0:g}"
    )
