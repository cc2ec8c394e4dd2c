"""The request table: a row a request, sorted and filtered, and whatever an id holds is shown as it is."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import Input

from cudaprefill.client.engine_view import EngineView
from cudaprefill_tui.glyphs import UNICODE
from cudaprefill_tui.messages import AbortWanted, ExplainWanted, RequestHovered, RequestSelected, StepWanted
from cudaprefill_tui.widgets import request_columns
from cudaprefill_tui.widgets.requests_pane import RequestsPane
from tests.tui.pane_harness import Clock, PaneApp, busy_engine, play, text, title
from tests.tui.synthetic import SyntheticEngine


def row(pane: RequestsPane, number: int) -> str:
    return pane.table.line(pane.table.numbers.index(number)).text


def test_alive_requests_come_first_as_they_came_then_the_finished_newest_first() -> None:
    engine, view = busy_engine()
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        finished = sorted(engine.finished.values(), key=lambda r: (r.record.finished, r.record.number), reverse=True)
        assert pane.table.numbers == [*engine.requests, *(r.record.number for r in finished)]
        assert title(pane) == f"Requests ─ {view.num_running:>2} running · {view.num_waiting:>2} waiting"

    play(pane, scene, size=(160, 20))


def test_a_row_tells_phase_prompt_hit_blocks_latencies_and_state() -> None:
    engine, view = busy_engine()
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        decoding = next(r for r in engine.requests.values() if r.record.state == "decoding")
        record = decoding.record
        shown = row(pane, record.number)
        assert f"r{record.number} {UNICODE.decoding} decode" in shown
        assert f" {record.prompt_tokens} " in shown
        assert f" {len(decoding.table)} " in shown
        assert f"{record.output_tokens}/{record.max_tokens} tokens" in shown
        assert record.first_token is not None
        assert f"{(record.first_token - record.arrived) * 1e3:.0f}"[:2] in shown
        prefilling = next(r.record for r in engine.requests.values() if r.record.state == "prefilling")
        assert f"chunk {prefilling.num_chunks}, {prefilling.computed_tokens}/{prefilling.prompt_tokens}" in row(
            pane, prefilling.number
        )
        waiting = [r.record.number for r in engine.requests.values() if r.record.state == "waiting"]
        assert f"{UNICODE.waiting} waiting" in row(pane, waiting[0])
        assert f"for {view.steps[-1].record.waiting_for}"[:20] in row(pane, waiting[0])
        assert "in the queue" in row(pane, waiting[1])

    play(pane, scene, size=(180, 30))


def test_the_progress_bar_grows_chunk_by_chunk_after_the_hits() -> None:
    engine, view = SyntheticEngine(budget=32, cap=32), EngineView(clock=Clock())
    view.apply(engine.snapshot())
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        engine.submit(160, 1, document=1)
        while engine.requests:
            engine.step()
        number = engine.submit(320, 4, document=1)
        bars = []
        for _ in range(3):
            engine.step()
            view.apply(engine.update())
            pane.update_view(view)
            bars.append(row(pane, number).split(UNICODE.left_edge)[1].split(UNICODE.right_edge)[0])
        hits, fills = UNICODE.hit * 5, UNICODE.fills
        assert [bar[:5] for bar in bars] == [hits] * 3
        assert [bar.rstrip(UNICODE.unused)[5:] for bar in bars] == [fills[0], fills[0] + fills[2], "█▓█"]

    play(pane, scene)


def test_a_request_that_changes_is_redrawn_and_one_that_comes_is_appended() -> None:
    engine, view = SyntheticEngine(), EngineView(clock=Clock())
    view.apply(engine.snapshot())
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        assert "No requests" in text(pane.table)
        first = engine.submit(20, 30)
        for _ in range(4):
            engine.step()
        view.apply(engine.update())
        pane.update_view(view)
        assert "4/30 tokens" in text(pane.table)
        second = engine.submit(20, 2)
        engine.step()
        view.apply(engine.update())
        pane.update_view(view)
        assert pane.table.numbers == [first, second]
        engine.step()
        view.apply(engine.update())
        pane.update_view(view)
        assert f"{UNICODE.finished} done" in row(pane, second)
        engine.time += 1
        engine.abort(first)
        view.apply(engine.update())
        pane.update_view(view)
        assert f"{UNICODE.failed} done" in row(pane, first)
        assert pane.table.numbers == [first, second]  # the one that ended last is first

    play(pane, scene)


def test_keys_choose_explain_and_abort_the_request_under_the_cursor() -> None:
    engine, view = busy_engine()
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        pane.table.focus()
        await pilot.press("down")
        record = list(engine.requests.values())[1].record
        assert app.take(RequestHovered)[-1] == RequestHovered(record.number)
        await pilot.press("enter", "w", "x")
        assert app.take(RequestSelected) == [RequestSelected(record.number)]
        assert app.take(ExplainWanted) == [ExplainWanted(record.number, record.id)]
        assert app.take(AbortWanted) == [AbortWanted(record.number, record.id)]
        await pilot.press("enter")
        assert app.take(RequestSelected) == [RequestSelected(None)]
        await pilot.press("end", "x", "w")
        assert app.take(AbortWanted) == []  # it has ended
        assert [m.number for m in app.take(ExplainWanted)] == [pane.table.numbers[-1]]

    play(pane, scene)


def test_a_key_asks_for_the_step_that_made_a_token_late() -> None:
    engine, view = SyntheticEngine(), EngineView(clock=Clock())
    view.apply(engine.snapshot())
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        engine.submit(10, 30)
        engine.step()
        engine.step()
        engine.submit(120, 2)
        engine.step()  # the first request waits for a chunk of the second
        late = engine.number
        for _ in range(8):
            engine.step()
        engine.submit(10, 3)
        view.apply(engine.update())
        pane.update_view(view)
        await pilot.pause()
        pane.table.focus()
        await pilot.press("l")
        slowest = view.step_view(app.take(StepWanted)[0].number)
        assert slowest is not None
        assert slowest.record.number >= late
        assert slowest.record.chunks
        await pilot.press("down", "l")  # this one has not decoded yet
        assert app.take(StepWanted) == []

    play(pane, scene)


def test_the_cursor_stays_on_its_request_when_rows_move() -> None:
    engine, view = busy_engine()
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        pane.table.focus()
        await pilot.press("down", "down")
        number = pane.table.cursor
        engine.abort(pane.table.numbers[0])
        view.apply(engine.update())
        pane.update_view(view)
        assert pane.table.cursor == number
        assert pane.table.numbers.index(number) == 1

    play(pane, scene)


def test_a_click_selects_and_a_click_on_a_title_sorts_then_turns_round() -> None:
    _, view = busy_engine()
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        await pilot.click(pane.table, offset=(5, 2))
        assert app.take(RequestSelected) == [RequestSelected(pane.table.numbers[2])]
        titles = pane.query("_Titles").first()
        x = titles.render_line(0).text.index("prompt")
        await pilot.click(titles, offset=(x, 0))
        prompts = [view.requests[number].prompt_tokens for number in pane.table.numbers]
        assert prompts == sorted(prompts)
        assert "prompt" + UNICODE.down in titles.render_line(0).text
        await pilot.click(titles, offset=(x, 0))
        prompts = [view.requests[number].prompt_tokens for number in pane.table.numbers]
        assert prompts == sorted(prompts, reverse=True)

    play(pane, scene, size=(120, 20))


@pytest.mark.parametrize("column", request_columns.COLUMNS, ids=lambda column: column.name)
def test_every_column_sorts(column: request_columns.Column) -> None:
    _, view = busy_engine()
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        pane.table.sort_by(column)
        keys = [column.sort_key(view.requests[number], view) for number in pane.table.numbers]
        assert keys == sorted(keys)  # type: ignore[type-var]
        assert sorted(pane.table.numbers) == sorted(view.requests)

    play(pane, scene)


def test_sorting_by_keys_goes_through_the_columns() -> None:
    _, view = busy_engine()
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        pane.table.focus()
        await pilot.press("s")
        assert pane.table.sort_column is request_columns.NUMBER
        await pilot.press("r")
        assert pane.table.numbers == sorted(view.requests, reverse=True)
        for _ in pane.table.columns:
            await pilot.press("s")
        assert pane.table.sort_column is None

    play(pane, scene)


def test_rows_are_filtered_by_phase_and_by_text() -> None:
    engine, view = busy_engine()
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        pane.table.focus()
        await pilot.press("f")
        assert set(pane.table.numbers) == set(engine.requests)
        await pilot.press("f")
        waiting = {n for n, r in engine.requests.items() if r.record.state == "waiting"}
        assert set(pane.table.numbers) == waiting
        assert "only waiting" in title(pane)
        await pilot.press("f", "f", "f", "f")
        assert set(pane.table.numbers) == set(view.requests)
        some = next(iter(engine.requests.values())).record
        await pilot.press("slash", *some.id[5:15])
        assert pane.table.numbers == [some.number]
        await pilot.press("enter")
        assert pane.table.has_focus
        await pilot.press("slash")
        pane.query_one(Input).value = "nothing like it"
        await pilot.pause()
        assert "No request matches" in text(pane.table)
        await pilot.press("escape")
        assert set(pane.table.numbers) == set(view.requests)
        assert pane.table.has_focus

    play(pane, scene)


def test_a_request_of_an_adapter_names_it_before_its_id() -> None:
    engine, view = SyntheticEngine(), EngineView(clock=Clock())
    view.apply(engine.snapshot())
    engine.submit(20, 3, id="cmpl-1")
    engine.step()
    update = engine.update()
    assert update.requests is not None
    update.requests[0].adapter = "support"
    view.apply(update)
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        assert "support · cmpl-1" in pane.table.line(0).text

    play(pane, scene, size=(160, 10))


@pytest.mark.parametrize(
    "id",
    [
        "[/INST] x[0] [bold [b + [1, 2]",
        "[@click=app.bell]x[/]",
        "日本語の長い識別子 🚀🚀",
        "עברית مرحبا",
        "line\nbreak\ttab\x1b[31mred\x07",
        "‮reversed‬",
        "👩‍👩‍👧‍👦 é",
    ],
)
def test_whatever_an_id_holds_it_is_shown_literally_and_rows_keep_their_width(id: str) -> None:
    engine, view = SyntheticEngine(), EngineView(clock=Clock())
    view.apply(engine.snapshot())
    engine.submit(20, 3, id=id)
    engine.step()
    view.apply(engine.update())
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        line = pane.table.line(0)
        assert cell_len(line.text) == pane.table.room
        assert all(c.isprintable() or c in "‍" for c in line.text)
        if id.startswith("["):
            assert id in line.text
        pane.table.focus()
        await pilot.press("x")
        assert [m.request_id for m in app.take(AbortWanted)] == [id]
        pane.table.filter(text="[bold [/")
        await pilot.pause()
        assert "[bold [/" in title(pane)

    play(pane, scene, size=(160, 10))


@pytest.mark.parametrize("width", [1, 10, 28, 40, 54, 80, 120, 200])
@pytest.mark.parametrize("owners", [True, False])
def test_columns_go_one_by_one_where_there_is_no_room(width: int, owners: bool) -> None:
    columns = request_columns.lay_out(width, owners)
    names = [column.name for column, _ in columns]
    assert names[:2] == ["no", "phase"]
    assert "state" in names
    assert ("blocks" in names) <= owners
    if width >= 31:
        assert sum(cells for _, cells in columns) + 1 <= width
    wider = [column.name for column, _ in request_columns.lay_out(width + 30, owners)]
    assert set(names) <= set(wider)


@pytest.mark.parametrize("width", [1, 10, 28, 40, 80, 200])
def test_rows_have_one_width_whatever_it_is(width: int) -> None:
    _, view = busy_engine()
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        assert {pane.table.line(y).cell_length for y in range(pane.table.num_lines)} == {pane.table.room}

    play(pane, scene, size=(width, 10))


def test_another_pane_can_point_at_a_request() -> None:
    _, view = busy_engine()
    pane = RequestsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        number = pane.table.numbers[3]
        plain = pane.table.line(3)
        pane.highlight(number)
        assert pane.table.line(3) != plain
        pane.highlight(None)
        assert pane.table.line(3) == plain
        assert pane.show_request(number)
        assert pane.current is view.requests[number]
        assert not pane.show_request(10_000)

    play(pane, scene)
