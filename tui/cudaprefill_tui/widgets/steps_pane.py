"""The step list with its legend."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.style import Style

from cudaprefill.client.engine_view import EngineView, ViewWatch

from ..glyphs import UNICODE, Glyphs
from .pane import Legend, Pane
from .step_list import StepList


class StepsPane(Pane):
    """Posts what its StepList posts."""

    TITLE = "Steps"
    DEFAULT_CSS = """
    StepsPane.-low > Legend { display: none; }
    """

    def __init__(self, *, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        super().__init__(glyphs=glyphs, id=id)
        self.list = StepList(glyphs=glyphs)
        self._watch: ViewWatch | None = None
        self._view: EngineView | None = None

    def compose(self) -> ComposeResult:
        yield self.list
        yield Legend(self._entries)

    def on_resize(self) -> None:
        self.set_class(self.size.height < 6, "-low")
        if self._view is not None:
            self._show_facts(self._view)

    def update_view(self, view: EngineView) -> None:
        if self._watch is None or view is not self._view:
            self._watch, self._view = view.watch(), view
        changes = self._watch.take()
        if changes.reset:
            self.list.reset(view)
        if changes.steps or changes.settings:
            self.list.update_steps(view, 0 if changes.reset else changes.steps)
        self._show_facts(view)

    def highlight(self, number: int | None) -> None:
        self.list.highlight(number)

    def jump_to(self, step: int) -> bool:
        """Puts the cursor on a step; False when the history does not have it."""
        return self.list.jump_to(step)

    def _entries(self) -> list[tuple[str, str | Style, str]]:
        glyphs = self.glyphs
        return [
            (glyphs.decode, self.list.get_visual_style("step-list--decode"), "decodes"),
            ("".join(glyphs.fills), "", "chunks, in their requests' colours"),
            (glyphs.unused, "", "budget left"),
            ("!", self.list.get_visual_style("step-list--late"), "over the ITL target"),
            ("space", "bold", "pauses"),
        ]

    def _show_facts(self, view: EngineView) -> None:
        facts = [] if view.settings is None else [f"budget {view.settings.max_num_batched_tokens}"]
        if self.list.paused:
            facts.append("paused: space goes on")
        elif not self.list.following and view.steps:
            facts.append("scrolled back: End follows")
        if view.dropped_steps:
            facts.append(f"{view.dropped_steps} not shown")
        self.show_title(*facts)
