"""The block map: a glyph a block, whose it is on demand, and only changed rows drawn."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from cudaprefill.client.engine_view import EVICTED_SECONDS, EngineView
from cudaprefill.protocol.telemetry import TelemetryUpdate
from cudaprefill_tui.colours import palette_of, request_style
from cudaprefill_tui.glyphs import ASCII, UNICODE
from cudaprefill_tui.messages import BlockClicked, OwnersWanted, RequestHovered
from cudaprefill_tui.widgets.block_map import BlockMap
from cudaprefill_tui.widgets.blocks_pane import BlocksPane
from tests.tui.pane_harness import Clock, PaneApp, busy_engine, play, text, title
from tests.tui.synthetic import SyntheticEngine


def glyphs_of(view: EngineView) -> str:
    letters = {"a": UNICODE.active, "s": UNICODE.shared, "c": UNICODE.cached, ".": UNICODE.free}
    return "".join(
        UNICODE.evicted if block in view.blocks.evicted else letters[view.blocks.state(block)]
        for block in range(len(view.blocks))
    )


def rows_of(map: BlockMap) -> str:
    """The glyphs of all visible rows, without addresses."""
    return "".join(line.rstrip()[map._gutter :] for line in text(map).splitlines())


def update_of_blocks(view: EngineView, *blocks: tuple[int, str]) -> None:
    view.apply(TelemetryUpdate(sequence_number=9, time=view.time, blocks=list(blocks)))


def test_each_block_has_the_glyph_of_its_state() -> None:
    _, view = busy_engine()
    pane = BlocksPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        shown = rows_of(pane.map)
        assert shown == glyphs_of(view)
        assert set(shown) >= {UNICODE.active, UNICODE.shared, UNICODE.cached}

    play(pane, scene)


def test_blocks_of_virtual_tokens_are_marked_in_the_colour_of_their_state() -> None:
    view = EngineView(clock=Clock())
    view.apply(SyntheticEngine(num_blocks=64).snapshot())
    update_of_blocks(view, (0, "A"), (1, "S"), (2, "C"), (3, "a"), (4, "x."), (5, "xA"))
    assert (view.blocks.count("a"), view.blocks.count("s"), view.blocks.count_virtual()) == (3, 1, 4)
    pane = BlocksPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        shown = rows_of(pane.map)
        assert shown[:4] == UNICODE.virtual * 3 + UNICODE.active
        assert shown[5] == UNICODE.evicted
        assert f"{UNICODE.virtual} of an adapter" in text(pane._legend)

    play(pane, scene)


def test_the_ascii_set_has_a_glyph_of_its_own_for_each_state() -> None:
    _, view = busy_engine()
    pane = BlocksPane(glyphs=ASCII)

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        assert rows_of(pane.map).isascii()
        assert text(pane.map).isascii()

    play(pane, scene)
    assert len({ASCII.active, ASCII.shared, ASCII.cached, ASCII.virtual, ASCII.evicted, ASCII.free}) == 6


def test_only_rows_that_look_different_are_given_to_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    view = EngineView(clock=Clock())
    view.apply(SyntheticEngine(num_blocks=800).snapshot())
    pane = BlocksPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        drawn: list[int] = []
        refresh = pane.map.refresh
        monkeypatch.setattr(
            pane.map, "refresh", lambda *regions, **_: (drawn.extend(r.y for r in regions), refresh(*regions))
        )
        columns = pane.map.columns
        update_of_blocks(view, (0, "a"), (2 * columns, "a"), (2 * columns + 1, "a"), (799, "a"))
        pane.update_view(view)
        assert sorted(drawn) == [0, 2, 799 // columns]
        drawn.clear()
        update_of_blocks(view, (0, "a"))  # looks as before
        pane.update_view(view)
        assert not drawn

    play(pane, scene)


def test_an_evicted_block_is_marked_until_the_mark_is_old() -> None:
    clock = Clock()
    view = EngineView(clock=clock)
    view.apply(SyntheticEngine().snapshot())
    pane = BlocksPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        update_of_blocks(view, (5, "xa"))
        pane.update_view(view)
        assert rows_of(pane.map)[5] == UNICODE.evicted
        clock.time += EVICTED_SECONDS + 0.1
        pane.update_view(view)
        assert rows_of(pane.map)[5] == UNICODE.active

    play(pane, scene)


def test_a_hundred_thousand_blocks_scroll_and_only_visible_rows_are_made() -> None:
    view = EngineView(clock=Clock())
    view.apply(SyntheticEngine(num_blocks=100_000).snapshot())
    pane = BlocksPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        made: set[int] = set()
        line = pane.map.line
        pane.map.line = lambda y: (made.add(y), line(y))[1]  # type: ignore[method-assign]
        pane.update_view(view)
        await pilot.pause()
        assert pane.map.num_lines == -(-100_000 // pane.map.columns)
        assert len(made) <= pane.map.size.height
        pane.map.focus()
        await pilot.press("end")
        assert pane.map.cursor == 99_999
        assert pane.map.scroll_offset.y == pane.map.num_lines - pane.map.size.height
        assert len(made) <= 2 * pane.map.size.height + 2
        assert f" {pane.map.num_lines * pane.map.columns - pane.map.columns} " in text(pane.map)

    play(pane, scene)


def test_the_cursor_moves_by_keys_and_enter_asks_for_the_block() -> None:
    _, view = busy_engine()
    pane = BlocksPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        pane.map.focus()
        await pilot.press("right", "right", "down", "left", "enter")
        assert pane.map.cursor == pane.map.columns + 1
        assert app.take(BlockClicked) == [BlockClicked(pane.map.columns + 1)]
        await pilot.press("home", "left", "up", "enter")
        assert app.take(BlockClicked) == [BlockClicked(0)]

    play(pane, scene)


def test_a_click_asks_for_the_block_under_the_pointer_and_beside_the_map_for_none() -> None:
    _, view = busy_engine()
    pane = BlocksPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        await pilot.click(pane.map, offset=(pane.map._gutter + 3, 1))
        assert app.take(BlockClicked) == [BlockClicked(pane.map.columns + 3)]
        await pilot.click(pane.map, offset=(0, 0))
        await pilot.click(pane.map, offset=(pane.map._gutter, 9))
        assert app.take(BlockClicked) == []

    play(pane, scene)


def test_pointing_at_a_block_points_at_its_owner() -> None:
    engine, view = busy_engine()
    pane = BlocksPane()
    number, block = next((n, r.table[-1]) for n, r in engine.requests.items() if r.table)

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        y, x = divmod(block, pane.map.columns)
        await pilot.hover(pane.map, offset=(pane.map._gutter + x, y))
        assert app.take(RequestHovered) == [RequestHovered(number)]
        await pilot.hover(pane.map, offset=(0, 0))
        assert app.take(RequestHovered) == [RequestHovered(None)]

    play(pane, scene)


def test_a_highlighted_request_lights_up_its_blocks_and_no_others() -> None:
    engine, view = busy_engine()
    pane = BlocksPane()
    number = max(engine.requests, key=lambda n: len(engine.requests[n].table))

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        pane.highlight(number)
        await pilot.pause()
        assert lit_blocks(pane.map) == set(engine.requests[number].table) - set(view.blocks.evicted)
        pane.highlight(None)
        assert lit_blocks(pane.map) == set()

    play(pane, scene)


def lit_blocks(map: BlockMap) -> set[int]:
    lit, columns = set(), map.columns
    for y in range(map.num_lines):
        place = -map._gutter
        for segment in map.line(y):
            if segment.style is not None and segment.style.reverse:
                lit |= set(range(y * columns + place, y * columns + place + len(segment.text)))
            place += len(segment.text)
    return lit


def test_colours_by_request_need_owners_and_stay_the_same() -> None:
    engine, view = busy_engine()
    pane = BlocksPane()
    number, block = next((n, r.table[-1]) for n, r in engine.requests.items() if r.table)

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        pane.map.focus()
        await pilot.press("end", "o")
        assert app.take(OwnersWanted) == [OwnersWanted(True)]
        assert pane.map._style_of(block, request_style(999, palette_of(app))) is request_style(number, palette_of(app))
        assert "colours by state" in pane.query("Legend").first().render().plain  # type: ignore[attr-defined]
        await pilot.press("o")
        assert app.take(OwnersWanted) == [OwnersWanted(False)]

    play(pane, scene)


def test_the_title_has_totals_waste_and_hits() -> None:
    _, view = busy_engine()
    pane = BlocksPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        assert view.pool is not None
        shown = title(pane)
        assert shown.startswith("Blocks ─ 96 · ")
        assert f"used {view.pool.used / 96:4.0%}" in shown
        assert f"waste {view.waste:5.1%}" in shown
        assert f"hits {view.hit_rate:4.0%}" in shown

    play(pane, scene, size=(120, 20))


@pytest.mark.parametrize("width", [1, 5, 12, 30, 41, 60, 100, 200])
def test_rows_fit_any_width_and_hold_every_block_once(width: int) -> None:
    _, view = busy_engine()
    pane = BlocksPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        for y in range(pane.map.num_lines):
            assert pane.map.line(y).cell_length <= max(pane.map.room, 1)
        rows = "".join(pane.map.line(y).text[pane.map._gutter :] for y in range(pane.map.num_lines))
        assert rows == glyphs_of(view)

    play(pane, scene, size=(width, 12))


def test_an_empty_map_says_what_it_waits_for() -> None:
    pane = BlocksPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(EngineView())
        await pilot.pause()
        assert "Waiting for the engine" in text(pane.map)
        pane.map.focus()
        await pilot.press("down", "end", "pagedown", "enter")
        assert app.take(BlockClicked) == []

    play(pane, scene)
