"""The live engine's settings: what they are, new ones, and what a change did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Button, Input, Static

from cudaprefill.client.engine_view import EngineView, ViewWatch
from cudaprefill.config import parse_itl_target
from cudaprefill.protocol.itl_target import ItlTarget, itl_target_text
from cudaprefill.protocol.telemetry import EngineDescription, EngineSettings

from ..cells import one_line
from ..figures import milliseconds
from ..glyphs import UNICODE, Glyphs
from ..messages import SettingsWanted
from ..presets import PRESETS, flags, target_text
from .pane import Line, Pane

BEFORE_SECONDS = 30  # a change is compared with so much before it
AFTER_SECONDS = 30  # of these the newest count
EFFECT_SECONDS = 0.5  # between two tellings


@dataclass(frozen=True)
class Field:
    """One setting. `parse` takes the input's text and says what is wrong by ValueError; `say` tells a value."""

    name: str
    label: str
    parse: Callable[[str, EngineDescription], ItlTarget]
    text: Callable[[EngineSettings], str]
    say: Callable[[EngineSettings], str]
    tooltip: str


def _count(text: str, least: int, why: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"must be a whole number, got “{one_line(text)}”") from None
    if value < least:
        raise ValueError(f"must be at least {least}{why}, got {value}")
    return value


def _budget(text: str, engine: EngineDescription) -> float:
    return _count(text, engine.max_num_seqs, ", a token for each of as many running requests")


def _cap(text: str, engine: EngineDescription) -> float:
    return _count(text, 0, "")


def _target(text: str, engine: EngineDescription) -> ItlTarget:
    try:
        return parse_itl_target(text)
    except ValueError:
        raise ValueError(f"must be a number of milliseconds, 0 for none, or auto, got “{one_line(text)}”") from None


FIELDS = (
    Field(
        "max_num_batched_tokens",
        "Token budget",
        _budget,
        lambda settings: str(settings.max_num_batched_tokens),
        lambda settings: f"{settings.max_num_batched_tokens} tokens a step",
        "The most tokens one step computes: up for TTFT, down for ITL. --max-num-batched-tokens",
    ),
    Field(
        "long_prefill_token_threshold",
        "Chunk cap",
        _cap,
        lambda settings: str(settings.long_prefill_token_threshold),
        lambda settings: (
            f"{settings.long_prefill_token_threshold} tokens of one prompt a step"
            if settings.long_prefill_token_threshold
            else "automatic: half of what is left"
        ),
        "The most tokens of one prompt in a step while others wait; 0: automatic. --long-prefill-token-threshold",
    ),
    Field(
        "itl_target_ms",
        "ITL target",
        _target,
        lambda settings: target_text(settings.itl_target_ms),
        lambda settings: itl_target_text(settings.itl_target_ms),
        "Milliseconds a step should last at most while requests decode; 0: no target; auto: for those who read when a "
        "prompt arrives, and longer where decodes alone take long. --itl-target-ms",
    ),
)


class EnginePane(Pane):
    """Posts SettingsWanted."""

    TITLE = "Engine"
    DEFAULT_CSS = """
    EnginePane { overflow-y: auto; scrollbar-size-vertical: 1; }
    EnginePane .setting { height: 1; }
    EnginePane .setting > Static { width: 15; padding: 0 1; color: $foreground 70%; }
    EnginePane .setting > Input { width: 10; padding: 0 1; background: $panel; }
    EnginePane .setting > Input:focus { background: $primary 25%; }
    EnginePane .setting > Input.-invalid { background: $error 30%; }
    EnginePane .setting > Button { width: 10; min-width: 8; margin-right: 1; background: $panel; }
    EnginePane .setting > Button:focus { background: $primary 40%; }
    EnginePane .setting > Line { padding: 0 1; }
    EnginePane.-problem #engine-effect { color: $error; text-style: bold; }
    EnginePane #engine-effect { padding: 0 1; height: 3; color: $foreground 80%; }
    EnginePane #engine-facts { padding: 0 1; height: auto; color: $foreground 55%; }
    """

    def __init__(self, *, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        super().__init__(glyphs=glyphs, id=id)
        self._view: EngineView | None = None
        self._watch: ViewWatch | None = None
        self._settings: EngineSettings | None = None
        self._edited: set[str] = set()  # fields whose input is not what the engine has
        self._effect: _Effect | None = None
        self._effect_text = ""
        self._problem = ""
        self._effect_told_at = float("-inf")

    def compose(self) -> ComposeResult:
        with Horizontal(classes="setting"):
            yield Static(Content("Preset"))
            for preset in PRESETS.values():
                yield Button(Content(preset.title), id=f"preset-{preset.name}", compact=True, disabled=True)
        for field in FIELDS:
            with Horizontal(classes="setting"):
                yield Static(Content(field.label))
                yield Input(id=f"setting-{field.name}", compact=True, tooltip=Content(field.tooltip), disabled=True)
                yield Line(id=f"now-{field.name}")
        with Horizontal(classes="setting"):
            yield Static()
            yield Button(Content("Apply"), id="apply", variant="primary", compact=True, disabled=True)
            yield Line(id="apply-hint")
        yield Static(Content("Waiting for an engine…"), id="engine-effect")
        yield Static(id="engine-facts")

    # --- State comes down ---

    def update_view(self, view: EngineView) -> None:
        if self._watch is None or view is not self._view:
            self._watch, self._view = view.watch(), view
        changes = self._watch.take()
        if view.engine is None or view.settings is None:
            return
        if changes.reset:
            self._show_engine(view.engine)
        if changes.reset or changes.settings:
            self._take_settings(view, view.settings, another=changes.reset)
        self._show_effect(view)

    def _show_engine(self, engine: EngineDescription) -> None:
        for widget in (*self.query(Input), *self.query(Button)):
            widget.disabled = False
        for preset in PRESETS.values():
            self.query_one(f"#preset-{preset.name}", Button).tooltip = Content(
                f"{preset.purpose}\n{flags(preset.settings(engine))}"
            )
        facts = (
            f"{engine.model} · {engine.num_parameters / 1e6:.0f} M parameters · {engine.dtype}"
            f" · {engine.device}/{engine.kernels} · {engine.threads} threads"
            f" · {engine.num_blocks} blocks of {engine.block_size} slots"
            f" · at most {engine.max_num_seqs} requests of {engine.max_model_len} tokens"
        )
        self.query_one("#engine-facts", Static).update(Content(one_line(facts)))

    def _take_settings(self, view: EngineView, settings: EngineSettings, *, another: bool) -> None:
        if self._settings is not None and settings != self._settings and not another:
            self._effect = _Effect(view)
        elif another and settings != self._settings:
            self._effect = None
        self._settings = settings
        for field in FIELDS:
            self.query_one(f"#now-{field.name}", Line).show(f"now {field.say(settings)}")
            entry = self.query_one(f"#setting-{field.name}", Input)
            if entry.value == field.text(settings):
                self._edited.discard(field.name)
            if field.name not in self._edited:
                entry.value = field.text(settings)
        self._show_problem("")
        self.query_one("#apply-hint", Line).show("Enter applies too")

    def _show_effect(self, view: EngineView) -> None:
        now = view.now()
        if 0 <= now - self._effect_told_at < EFFECT_SECONDS:
            return
        self._effect_told_at = now
        if self._problem:
            text = self._problem
        elif self._effect is not None:
            text = self._effect.tell(view)
        else:
            text = "Change a setting under load and see here what it does to ITL and TTFT."
        if text != self._effect_text:
            self._effect_text = text
            self.query_one("#engine-effect", Static).update(Content(text), layout=False)

    # --- What the person does ---

    def apply_preset(self, name: str) -> None:
        """Asks for the settings of a preset: "rag", "code" or "chat"."""
        if self._view is None or self._view.engine is None:
            return
        preset = PRESETS[name]
        settings = preset.settings(self._view.engine)
        self._edited.clear()
        self.post_message(
            SettingsWanted(
                max_num_batched_tokens=settings.max_num_batched_tokens,
                long_prefill_token_threshold=settings.long_prefill_token_threshold,
                itl_target_ms=settings.itl_target_ms,
                source=f"preset {preset.title}",
            )
        )

    def apply(self) -> None:
        """Asks for what the inputs say and the engine does not have; says what is wrong with them instead."""
        if self._view is None or self._view.engine is None or self._settings is None:
            return
        wanted: dict[str, ItlTarget] = {}
        for field in FIELDS:
            entry = self.query_one(f"#setting-{field.name}", Input)
            try:
                value = field.parse(entry.value.strip(), self._view.engine)
            except ValueError as error:
                entry.add_class("-invalid")
                self._show_problem(f"{field.label} {error}")
                entry.focus()
                return
            entry.remove_class("-invalid")
            if value != (getattr(self._settings, field.name) or 0):
                wanted[field.name] = value
        self._show_problem("")
        if wanted:
            names = ", ".join(field.label.lower() for field in FIELDS if field.name in wanted)
            self.post_message(
                SettingsWanted(
                    max_num_batched_tokens=_whole(wanted.get("max_num_batched_tokens")),
                    long_prefill_token_threshold=_whole(wanted.get("long_prefill_token_threshold")),
                    itl_target_ms=wanted.get("itl_target_ms"),
                    source=names,
                )
            )

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        name = str(event.button.id)
        if name == "apply":
            self.apply()
        else:
            self.apply_preset(name.removeprefix("preset-"))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.apply()

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        field = next(field for field in FIELDS if event.input.id == f"setting-{field.name}")
        event.input.remove_class("-invalid")
        if self._settings is not None and event.value != field.text(self._settings):
            self._edited.add(field.name)
        else:
            self._edited.discard(field.name)

    def _show_problem(self, text: str) -> None:
        self._problem = text
        self.set_class(bool(text), "-problem")
        self._effect_told_at = float("-inf")
        if self._view is not None:
            self._show_effect(self._view)


def _whole(value: ItlTarget | None) -> int | None:
    return None if value is None else int(value)


class _Effect:
    """Figures before and after a change."""

    def __init__(self, view: EngineView) -> None:
        self._changed_at = view.now()
        self._itl = view.itl.counts(self._changed_at, BEFORE_SECONDS).percentile(99)
        self._ttft = view.ttft.counts(self._changed_at, BEFORE_SECONDS).percentile(50)
        self._longest = _longest_step(view, self._changed_at - BEFORE_SECONDS, self._changed_at)

    def tell(self, view: EngineView) -> str:
        now = view.now()
        after = max(0.0, min(now - self._changed_at - 1, AFTER_SECONDS))
        itl = view.itl.counts(now, after).percentile(99)
        ttft = view.ttft.counts(now, after).percentile(50)
        longest = _longest_step(view, max(self._changed_at, now - AFTER_SECONDS), now)
        figures = [
            f"{name} {_say(then)} → {_say(since)}"
            for name, then, since in (
                ("longest step", self._longest, longest),
                ("ITL p99", self._itl, itl),
                ("TTFT p50", self._ttft, ttft),
            )
        ]
        return f"Since the change {now - self._changed_at:.0f} s ago: {' · '.join(figures)}"


def _longest_step(view: EngineView, start: float, end: float) -> float | None:
    longest = None
    for step in reversed(view.steps):
        if step.record.start < start:
            break
        if step.end <= end:
            longest = max(longest or 0.0, step.record.duration)
    return longest


def _say(seconds: float | None) -> str:
    return "-" if seconds is None else milliseconds(max(seconds, 0.0))
