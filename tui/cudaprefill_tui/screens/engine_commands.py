"""What the Engine and Load menus do, and what the panes ask of the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from textual import on, work

from ..engine_link import EngineLink, LinkError
from ..load import LoadPlan, ScenarioName, preset
from ..messages import AbortWanted, BlockClicked, OwnersWanted, SettingsWanted
from ..widgets.load_pane import LoadPane
from .desktop_base import DesktopBase
from .dialog import ConfirmDialog, TextDialog
from .pages import block_page


class EngineCommands(DesktopBase):
    @work(group="dialog")
    async def action_attach(self) -> None:
        fields = {"url": ("URL of the server", "http://127.0.0.1:8000"), "api_key": ("API key, if it wants one", "")}
        dialog = TextDialog("Attach to a server", "Attach", fields, secret="api_key")
        answer = await self.app.push_screen_wait(dialog)
        if answer is None:
            return
        try:
            self.attach(answer["url"], answer["api_key"] or None)
        except ValueError as error:
            self.tell(str(error), failed=True)

    def action_next_server(self) -> None:
        if len(self.session.links) < 2:
            self.tell("only one server is attached; File, Attach adds another", failed=True)
            return
        self.session.next()
        self.tick()

    def action_engine_settings(self) -> None:
        self.desk.show("engine")

    @work(group="dialog")
    async def action_reset_prefix_cache(self) -> None:
        question = "Forget all cached prefixes? The next prompts are computed from their first token."
        if await self.app.push_screen_wait(ConfirmDialog(question, "Forget")):
            self._ask_engine(lambda link: link.reset_prefix_cache(), "the prefix cache is empty")

    @on(SettingsWanted)
    def _change_settings(self, message: SettingsWanted) -> None:
        message.stop()
        self._ask_engine(
            lambda link: link.change_settings(
                max_num_batched_tokens=message.max_num_batched_tokens,
                long_prefill_token_threshold=message.long_prefill_token_threshold,
                itl_target_ms=message.itl_target_ms,
            ),
            message.source,
        )

    @on(AbortWanted)
    @work(group="dialog")
    async def _abort(self, message: AbortWanted) -> None:
        if await self.app.push_screen_wait(ConfirmDialog(f"Abort {message.request_id}?", "Abort")):
            self._ask_engine(lambda link: link.abort(message.request_id), f"aborted {message.request_id}")

    @on(OwnersWanted)
    def _owners(self, message: OwnersWanted) -> None:
        message.stop()
        self._ask_engine(lambda link: link.set_owners(message.wanted), "")

    @on(BlockClicked)
    @work(exclusive=True, group="block")
    async def _describe_block(self, message: BlockClicked) -> None:
        link = self.session.link
        if link is None:
            return
        try:
            page = block_page(await link.describe_block(message.block))
        except LinkError as error:
            self.tell(str(error), failed=True)
            return
        self.app.push_screen(page)

    @work(group="engine")
    async def _ask_engine(self, what: Callable[[EngineLink], Awaitable[None]], done: str) -> None:
        link = self.session.link
        if link is None:
            self.tell("there is no server yet", failed=True)
            return
        try:
            await what(link)
        except LinkError as error:
            self.tell(str(error), failed=True)
        else:
            if done:
                self.tell(done)

    # --- Load ---

    def action_load(self) -> None:
        self.desk.show("load")

    def action_start_load(self, name: ScenarioName) -> None:
        plan = preset(name)
        self.desk.query_one(LoadPane).show_plan(plan)
        self.start_load(plan)

    def start_load(self, plan: LoadPlan) -> None:
        if self.session.link is None:
            self.tell("there is no server yet", failed=True)
            return
        try:
            self.session.generator.start(plan)
        except ValueError as error:
            self.tell(str(error), failed=True)
            return
        self.desk.show("load")
        self.tick()

    async def action_stop_load(self) -> None:
        if not self.session.generator.is_running:
            self.tell("no load is running", failed=True)
        await self.session.generator.stop()
        self.tick()

    @on(LoadPane.Wanted)
    def _load_wanted(self, message: LoadPane.Wanted) -> None:
        message.stop()
        self.start_load(message.plan)

    @on(LoadPane.StopWanted)
    async def _load_stop_wanted(self, message: LoadPane.StopWanted) -> None:
        message.stop()
        await self.action_stop_load()

    @on(LoadPane.Refused)
    def _load_refused(self, message: LoadPane.Refused) -> None:
        message.stop()
        self.tell(message.reason, failed=True)
