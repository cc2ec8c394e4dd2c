"""A scheduler whose telemetry is read by several readers, each at a pace of its own."""

from __future__ import annotations

from typing import Any

from cudaprefill.client.engine_view import EngineView
from cudaprefill.observe.events import RequestEvent, StepEvent
from cudaprefill.observe.request_log import RequestLog
from cudaprefill.protocol.codec import decode, encode
from cudaprefill.protocol.telemetry import (
    SERVER_MESSAGES,
    EngineDescription,
    EngineSettings,
    TelemetrySnapshot,
    TelemetryUpdate,
)
from cudaprefill.server.telemetry.feed import Cursor, TelemetryFeed, Wish
from cudaprefill.server.telemetry.hub import pull_from
from tests.scheduler.driver import Driver

ALL = Wish(frozenset({"step", "request", "blocks"}), owners=True)
LETTERS = ".asc"  # by BlockState


def describe(driver: Driver) -> EngineDescription:
    config = driver.config
    return EngineDescription(
        model="tiny",
        family="fake",
        num_parameters=0,
        dtype="int64",
        kv_cache_dtype="int64",
        device="cpu",
        kernels="none",
        threads=1,
        max_model_len=config.max_model_len,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        block_bytes=64,
        max_num_seqs=config.max_num_seqs,
        enable_prefix_caching=config.enable_prefix_caching,
        version="0",
    )


class Reader:
    """Applies what it reads; `messages` has all of it."""

    def __init__(self, feed: TelemetryFeed, wish: Wish = ALL) -> None:
        self.feed = feed
        self.wish = wish
        self.view = EngineView(clock=lambda: 0.0)
        self.messages: list[TelemetrySnapshot | TelemetryUpdate] = []
        self.texts: list[str] = []
        self.cursor: Cursor | None = None

    def read(self) -> TelemetrySnapshot | TelemetryUpdate | None:
        """What a subscriber would get now, by way of the wire."""
        if self.cursor is None:
            content, self.cursor = self.feed.snapshot(self.wish, "subscribed")
        else:
            content, self.cursor = self.feed.update(self.wish, self.cursor)
        if content is None:
            return None
        self.texts.append(encode(content))
        message = decode(self.texts[-1], SERVER_MESSAGES)
        assert isinstance(message, (TelemetrySnapshot, TelemetryUpdate))
        self.messages.append(message)
        self.view.apply(message)
        return message


class History:
    """The driver, its events and pulls. Each step lasts a second."""

    def __init__(self, *, max_steps: int = 1024, max_request_changes: int = 4096, **driver: Any) -> None:
        self.driver = Driver(**driver)
        self.log = RequestLog()
        scheduler = self.driver.scheduler
        scheduler.record_blocks(True)
        self.feed = TelemetryFeed(
            describe(self.driver),
            EngineSettings(max_num_batched_tokens=256, long_prefill_token_threshold=0),
            self.log,
            scheduler.pool.states(),
            scheduler.pool.virtual_blocks(),
            clock=lambda: self.driver.clock,
            max_steps=max_steps,
            max_request_changes=max_request_changes,
        )
        self.pull()

    def pull(self) -> None:
        self.deliver()
        self.feed.apply(pull_from(self.driver, with_owners=True))  # type: ignore[arg-type]

    def deliver(self, *more: StepEvent) -> None:
        events: list[RequestEvent | StepEvent] = [*self.driver.events, *more]
        self.driver.events.clear()
        for event in events:
            if isinstance(event, StepEvent):
                self.log.apply_step(event)
            else:
                self.log.apply(event)
        self.feed.on_events(events)

    def step(self) -> bool:
        """False when there is nothing to do."""
        schedule = self.driver.scheduler.schedule()
        if schedule is None:
            return False
        start = self.driver.clock
        self.driver.clock += 1.0
        self.driver.finish_step(schedule)
        self.deliver(self.driver.scheduler.step_event(schedule, start, 1.0))
        return True

    def run(self) -> None:
        while self.step():
            pass

    # --- The truth, from the scheduler itself ---

    def assert_known_to(self, view: EngineView) -> None:
        """States, owners, totals and requests are those of the scheduler, to the last field that it can tell."""
        scheduler = self.driver.scheduler
        marks = zip(scheduler.pool.states(), scheduler.pool.virtual_blocks(), strict=True)
        letters = [LETTERS[state].upper() if virtual else LETTERS[state] for state, virtual in marks]
        assert view.blocks.states.decode() == "".join(letters)
        assert view.blocks.owners == {number: table.tolist() for number, table in scheduler.block_tables().items()}
        assert view.pool == scheduler.pool_totals()
        live = {request.number: request for request in self.driver.requests.values() if not request.finished}
        shown = {number: record for number, record in view.requests.items() if record.state != "finished"}
        assert shown.keys() == live.keys()
        # A completion that is not forked yet stands where the request does whose prefill is its own, too.
        lead_of = {sibling: lead for lead in live.values() for sibling in lead.unforked_siblings}
        for number, request in live.items():
            record = shown[number]
            assert record.id == request.request_id
            assert record.state == lead_of.get(request, request).state.value
            assert record.prompt_tokens == request.prompt_length
            assert record.virtual_tokens == (request.virtual_tokens.num_tokens or None)
            assert record.adapter == (None if request.adapter is None else request.adapter.name)
            assert record.output_tokens == request.num_output_tokens
            assert record.preemptions == request.num_preemptions
            if record.first_scheduled is not None:
                assert record.hit_tokens == request.num_hit_tokens
            if request.row >= 0 and record.state == "prefilling":
                assert record.computed_tokens == scheduler.table.num_computed(request.row)
        assert shown == {record.number: record for record in self.log}
