"""Presets are flags: what they stand for is said, and what is given beside them wins."""

from __future__ import annotations

import argparse

import pytest

from cudaprefill.cli.engine_flags import add_engine_flags, engine_config, preset_line
from cudaprefill.config import EngineConfig
from cudaprefill.presets import PRESETS, preset_settings, with_preset


def config_of(*arguments: str) -> EngineConfig:
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    return engine_config(parser.parse_args(arguments))


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_as_the_flags_that_it_says(name: str, device: str) -> None:
    config = config_of("--preset", name)
    line = preset_line(config, device)
    assert line is not None
    said, _, flags = line.partition(" stands for ")
    assert said == f"--preset {name}"
    chosen, explicit = with_preset(config, device), config_of(*flags.split())
    for setting in preset_settings(name, device):
        assert getattr(chosen, setting) == getattr(explicit, setting)


def test_explicit_flags_win() -> None:
    config = config_of("--preset", "chat", "--max-num-batched-tokens", "777", "--no-enable-prefix-caching")
    chosen = with_preset(config, "cuda")
    assert (chosen.max_num_batched_tokens, chosen.enable_prefix_caching) == (777, False)
    assert chosen.itl_target_ms == 50.0
    assert with_preset(config_of("--preset", "chat", "--itl-target-ms", "0"), "cuda").itl_target_ms == 0.0


def test_code_has_the_largest_budget_and_chat_the_smallest() -> None:
    for device in ("cpu", "cuda"):
        budgets = {name: preset_settings(name, device)["max_num_batched_tokens"] for name in PRESETS}
        assert budgets["chat"] < budgets["rag"] < budgets["code"]


def test_without_a_preset_nothing_changes() -> None:
    config = config_of()
    assert preset_line(config, "cpu") is None
    assert with_preset(config, "cpu") is config


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(ValueError, match="preset must be one of rag, code, chat, got 'fast'"):
        EngineConfig(preset="fast")
