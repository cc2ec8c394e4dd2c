"""The engine pane shows the live settings, asks for others, and tells what a change did."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input, Static

from cudaprefill.client.engine_view import EngineView
from cudaprefill.protocol.telemetry import EngineSettings
from cudaprefill_tui.messages import SettingsWanted
from cudaprefill_tui.presets import PRESETS, flags
from cudaprefill_tui.widgets.engine_pane import EnginePane
from cudaprefill_tui.widgets.pane import Line
from tests.tui.pane_harness import Clock, PaneApp, play
from tests.tui.synthetic import SyntheticEngine


def entry(pane: EnginePane, name: str) -> Input:
    return pane.query_one(f"#setting-{name}", Input)


def now(pane: EnginePane, name: str) -> str:
    return pane.query_one(f"#now-{name}", Line).content.plain


def effect(pane: EnginePane) -> str:
    return str(pane.query_one("#engine-effect", Static).content)


def live(**fields: Any) -> tuple[SyntheticEngine, EngineView, EnginePane]:
    engine = SyntheticEngine(budget=512, cap=0, **fields)
    view = EngineView(clock=Clock())
    view.apply(engine.snapshot())
    return engine, view, EnginePane()


def change(engine: SyntheticEngine, view: EngineView, pane: EnginePane, **fields: Any) -> None:
    engine.settings = EngineSettings(**(vars(engine.settings) | fields))
    view.apply(engine.update())
    pane.update_view(view)


def test_the_live_settings_are_shown_in_words() -> None:
    engine, view, pane = live()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        assert now(pane, "max_num_batched_tokens") == "now 512 tokens a step"
        assert now(pane, "long_prefill_token_threshold") == "now automatic: half of what is left"
        assert now(pane, "itl_target_ms") == "now none"
        assert entry(pane, "max_num_batched_tokens").value == "512"
        change(engine, view, pane, max_num_batched_tokens=64, long_prefill_token_threshold=32, itl_target_ms=12.5)
        assert now(pane, "max_num_batched_tokens") == "now 64 tokens a step"
        assert now(pane, "long_prefill_token_threshold") == "now 32 tokens of one prompt a step"
        assert now(pane, "itl_target_ms") == "now 12.5 ms"
        assert entry(pane, "itl_target_ms").value == "12.5"
        change(engine, view, pane, itl_target_ms="auto")
        assert now(pane, "itl_target_ms") == "now auto: 150 ms"
        assert entry(pane, "itl_target_ms").value == "auto"

    play(pane, scene)


def test_enter_and_the_button_ask_for_what_was_changed_and_for_nothing_else() -> None:
    _, view, pane = live()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        entry(pane, "max_num_batched_tokens").value = "128"
        entry(pane, "max_num_batched_tokens").focus()
        await pilot.press("enter")
        assert app.take(SettingsWanted) == [SettingsWanted(max_num_batched_tokens=128, source="token budget")]
        entry(pane, "itl_target_ms").value = "40"
        await pilot.pause()
        await pilot.click("#apply")
        assert app.take(SettingsWanted) == [
            SettingsWanted(max_num_batched_tokens=128, itl_target_ms=40.0, source="token budget, itl target")
        ]
        entry(pane, "max_num_batched_tokens").value = "512"
        entry(pane, "itl_target_ms").value = "0"
        await pilot.pause()
        pane.apply()
        await pilot.pause()
        assert app.take(SettingsWanted) == []

    play(pane, scene)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("max_num_batched_tokens", "7", "Token budget must be at least 8, a token for each"),
        ("max_num_batched_tokens", "many", "Token budget must be a whole number, got “many”"),
        ("max_num_batched_tokens", "", "Token budget must be a whole number, got “”"),
        ("long_prefill_token_threshold", "-1", "Chunk cap must be at least 0, got -1"),
        ("long_prefill_token_threshold", "1.5", "Chunk cap must be a whole number, got “1.5”"),
        ("itl_target_ms", "nan", "ITL target must be a number of milliseconds, 0 for none, or auto, got “nan”"),
        ("itl_target_ms", "[bold x", "ITL target must be a number of milliseconds, 0 for none, or auto, got “[bold x”"),
    ],
)
def test_a_senseless_value_is_named_and_not_sent(name: str, text: str, problem: str) -> None:
    _, view, pane = live()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        entry(pane, name).value = text
        await pilot.pause()
        pane.apply()
        await pilot.pause()
        assert app.take(SettingsWanted) == []
        assert effect(pane).startswith(problem)
        assert entry(pane, name).has_class("-invalid")
        entry(pane, name).value = "100"
        await pilot.pause()
        assert not entry(pane, name).has_class("-invalid")
        pane.apply()
        await pilot.pause()
        assert len(app.take(SettingsWanted)) == 1
        assert problem not in effect(pane)

    play(pane, scene)


def test_what_is_being_typed_is_not_overwritten_by_another_client() -> None:
    engine, view, pane = live()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        entry(pane, "max_num_batched_tokens").value = "25"
        await pilot.pause()
        change(engine, view, pane, max_num_batched_tokens=300, long_prefill_token_threshold=70)
        assert entry(pane, "max_num_batched_tokens").value == "25"
        assert now(pane, "max_num_batched_tokens") == "now 300 tokens a step"
        assert entry(pane, "long_prefill_token_threshold").value == "70"

    play(pane, scene)


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_asks_for_its_settings_and_its_tooltip_says_the_flags(name: str) -> None:
    engine, view, pane = live(max_num_seqs=300)

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        await pilot.click(f"#preset-{name}")
        wanted = PRESETS[name].settings(engine.description)
        (message,) = app.take(SettingsWanted)
        assert message.max_num_batched_tokens == wanted.max_num_batched_tokens >= 300
        assert message.long_prefill_token_threshold == wanted.long_prefill_token_threshold
        assert message.itl_target_ms == wanted.itl_target_ms
        assert PRESETS[name].title in message.source
        assert flags(wanted) in str(pane.query_one(f"#preset-{name}", Button).tooltip)
        pane.apply_preset(name)
        await pilot.pause()
        assert app.take(SettingsWanted) == [message]

    play(pane, scene)


def test_a_change_under_load_shows_what_it_did_to_steps_itl_and_ttft() -> None:
    engine, view, pane = live()

    def load(seconds: float) -> None:
        end = engine.time + seconds
        while engine.time < end:
            if len(engine.requests) < 4:
                engine.submit(700, 20)
            engine.step()
        view.apply(engine.update())

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        load(20)
        pane.update_view(view)
        assert "Change a setting" in effect(pane)
        change(engine, view, pane, max_num_batched_tokens=48)
        load(20)
        pane.update_view(view)
        told = effect(pane)
        assert told.startswith("Since the change 20 s ago: longest step ")
        before, after = told.split("longest step ")[1].split(" · ")[0].split(" → ")
        assert float(before.removesuffix(" ms")) > 2 * float(after.removesuffix(" ms"))

    play(pane, scene)


def test_without_an_engine_there_is_nothing_to_press() -> None:
    pane = EnginePane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(EngineView())
        assert all(button.disabled for button in pane.query(Button))
        assert all(box.disabled for box in pane.query(Input))
        assert "Waiting for an engine" in effect(pane)
        pane.apply_preset("rag")
        pane.apply()
        await pilot.pause()
        assert app.take(SettingsWanted) == []

    play(pane, scene)
