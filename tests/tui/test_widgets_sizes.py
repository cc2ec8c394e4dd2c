"""No size, theme or content breaks a pane."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from cudaprefill_tui.glyphs import ASCII, UNICODE
from cudaprefill_tui.themes import THEMES
from cudaprefill_tui.widgets.blocks_pane import BlocksPane
from cudaprefill_tui.widgets.engine_pane import EnginePane
from cudaprefill_tui.widgets.latency_pane import LatencyPane
from cudaprefill_tui.widgets.pane import Pane
from cudaprefill_tui.widgets.requests_pane import RequestsPane
from cudaprefill_tui.widgets.splitter import Split
from cudaprefill_tui.widgets.steps_pane import StepsPane
from tests.tui.pane_harness import PaneApp, busy_engine, play, title

HOSTILE = "[bold x[/] 日本語\x1b[2J\n[@click=app.bell]"


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (20, 6), (3, 2)])
def test_all_panes_together_live_through_updates_resizing_and_themes(size: tuple[int, int]) -> None:
    engine, view = busy_engine(20, model=HOSTILE)
    glyphs = ASCII if size[0] < 80 else UNICODE
    kinds = (StepsPane, LatencyPane, BlocksPane, RequestsPane, EnginePane)
    steps, latency, blocks, requests, settings = panes = [kind(glyphs=glyphs) for kind in kinds]
    left = Split(steps, latency, direction="vertical", min_first=3, min_second=3)
    right = Split(blocks, Split(requests, settings, direction="vertical"), direction="vertical")

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        def turn(steps: int) -> None:
            for _ in range(steps):
                engine.submit(100, 4, document=1, id=HOSTILE)
                engine.step()
                view.apply(engine.update())
                for pane in panes:
                    pane.update_view(view)
                    pane.highlight(engine.number)

        turn(10)
        await pilot.resize_terminal(size[0] * 2 // 3 + 1, size[1] // 2 + 1)
        turn(5)
        await pilot.pause()
        for theme in THEMES:
            app.theme = theme.name
            turn(1)
            await pilot.pause()
        for key in ("tab", "down", "enter", "pageup", "end", "tab", "w", "t", "tab", "o", "tab", "s", "f", "tab"):
            await pilot.press(key)
            turn(1)
        await pilot.resize_terminal(*size)
        await pilot.pause()
        assert all(title(pane).startswith(pane.TITLE) for pane in panes)

    play(Split(left, right), scene, size=size)


def test_a_pane_draws_its_title_without_redrawing_what_it_encloses() -> None:
    pane = BlocksPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        Pane._exchange_repaint_regions(pane)
        pane.show_title("[bold x[/]", "more")
        assert title(pane) == "Blocks ─ [bold x[/] · more"
        assert {(region.y, region.height) for region in pane._exchange_repaint_regions()} == {(0, 1)}
        pane.show_title("[bold x[/]", "more")
        assert not pane._exchange_repaint_regions()

    play(pane, scene)
