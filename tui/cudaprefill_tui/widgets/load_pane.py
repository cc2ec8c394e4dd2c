"""The load generator's panel: what to send, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Input, Label, RadioButton, RadioSet, Static

from cudaprefill.client.engine_view import EngineView

from ..figures import milliseconds
from ..glyphs import UNICODE, Glyphs
from ..load import SCENARIOS, LoadGenerator, LoadPlan, ScenarioName, preset
from ..printable import displayable
from .pane import Pane

FIELDS = {
    "users": "Users",
    "document_words": "Words",
    "max_tokens": "Max tokens",
    "pause": "Pause, s",
}


class _Choice(RadioButton):
    """One whose state shows without colour."""

    @property
    def BUTTON_INNER(self) -> str:  # type: ignore[override]  # noqa: N802  (Textual's name)
        return "●" if self.value else "○"


class LoadPane(Pane):
    """Posts Wanted and StopWanted; `update_load` shows what the generator does."""

    TITLE = "Load"

    @dataclass
    class Wanted(Message):
        plan: LoadPlan

    @dataclass
    class StopWanted(Message):
        pass

    @dataclass
    class Refused(Message):
        reason: str

    def __init__(self, *, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        super().__init__(glyphs=glyphs, id=id)
        self._shown = ""
        self._shown_scenario: ScenarioName = "chat"

    def compose(self) -> ComposeResult:
        with Horizontal(id="load-setup"):
            with RadioSet(id="load-scenario", compact=True):
                for scenario in SCENARIOS:
                    yield _Choice(scenario.title, name=scenario.name, value=scenario is SCENARIOS[0], compact=True)
            with Vertical(id="load-fields"):
                for name, title in FIELDS.items():
                    with Horizontal(classes="field"):
                        yield Label(title)
                        yield Input(id=f"load-{name}", type="number" if name == "pause" else "integer", compact=True)
        with Horizontal(id="load-state"):
            yield Button("Start", id="load-start", variant="primary", compact=True)
            yield Button("Stop", id="load-stop", disabled=True, compact=True)
            yield Static(id="load-figures")
        yield Static(id="load-shows")

    def on_mount(self) -> None:
        self.show_plan(preset("chat"))

    def update_view(self, view: EngineView) -> None:
        """The engine's own side of the load shows in the other panes."""

    def show_plan(self, plan: LoadPlan) -> None:
        """Puts a plan into the fields."""
        self._shown_scenario = plan.scenario
        for button in self.query(RadioButton):
            if button.name == plan.scenario:
                button.value = True
        for name in FIELDS:
            self.query_one(f"#load-{name}", Input).value = f"{getattr(plan, name):g}"
        shows = next(scenario.shows for scenario in SCENARIOS if scenario.name == plan.scenario)
        self.query_one("#load-shows", Static).update(Content(shows))

    def plan(self) -> LoadPlan:
        """What the fields say. ValueError names the field that makes no sense."""
        values: dict[str, float] = {}
        for name, title in FIELDS.items():
            text = self.query_one(f"#load-{name}", Input).value
            try:
                values[name] = float(text) if name == "pause" else int(text)
            except ValueError:
                raise ValueError(f"{title} must be a number, got {text!r}") from None
        return LoadPlan(
            self._scenario(),
            users=int(values["users"]),
            document_words=int(values["document_words"]),
            max_tokens=int(values["max_tokens"]),
            pause=values["pause"],
        ).checked()

    def update_load(self, generator: LoadGenerator) -> None:
        figures, running = generator.figures, generator.is_running
        self.query_one("#load-start", Button).disabled = running
        self.query_one("#load-stop", Button).disabled = not running
        text = ""
        if generator.plan is not None:
            text = (
                f"{'▶ running' if running else '■ stopped'} · {figures.running} under way · {figures.finished} answered"
                f" · {figures.failed} failed"
            )
            if figures.ttfts:
                text += f" · TTFT p50 {milliseconds(median(figures.ttfts))} here"
            if figures.last_error:
                text += f"\nlast error: {figures.last_error}"
        if text != self._shown:
            self._shown = text
            self.query_one("#load-figures", Static).update(Content(displayable(text)))

    def _scenario(self) -> ScenarioName:
        pressed = self.query_one(RadioSet).pressed_button
        name = pressed.name if pressed is not None else None
        return next((scenario.name for scenario in SCENARIOS if scenario.name == name), "chat")

    @on(RadioSet.Changed)
    def _chosen(self, event: RadioSet.Changed) -> None:
        event.stop()
        if self._scenario() != self._shown_scenario:
            self.show_plan(preset(self._scenario()))

    @on(Button.Pressed, "#load-start")
    def _start(self, event: Button.Pressed) -> None:
        event.stop()
        try:
            self.post_message(self.Wanted(self.plan()))
        except ValueError as error:
            self.post_message(self.Refused(str(error)))

    @on(Button.Pressed, "#load-stop")
    def _stop(self, event: Button.Pressed) -> None:
        event.stop()
        self.post_message(self.StopWanted())
