"""What the Chat menu does."""

from __future__ import annotations

from pathlib import Path

from textual import on, work

from ..conversations import ChatSettings
from ..export import as_markdown, suggested_name, write_export
from ..widgets.conversation_view import ConversationView
from .chat_settings import ChatSettingsDialog
from .desktop_base import DesktopBase
from .dialog import ConfirmDialog, TextDialog


class ChatCommands(DesktopBase):
    async def action_new_conversation(self) -> None:
        self.desk.show("chat")
        await self.chat.new_conversation()

    @work(group="dialog")
    async def action_close_conversation(self) -> None:
        conversation = self.chat.current.conversation
        question = f"Close “{conversation.title}”? Its {len(conversation.turns)} answers are not kept."
        if conversation.turns and not await self.app.push_screen_wait(ConfirmDialog(question, "Close")):
            return
        await self.chat.close_conversation()

    def action_next_conversation(self) -> None:
        self.desk.show("chat")
        self.chat.move(1)

    def action_previous_conversation(self) -> None:
        self.desk.show("chat")
        self.chat.move(-1)

    @work(group="dialog")
    async def action_chat_settings(self) -> None:
        conversation = self.chat.current.conversation
        settings = await self.app.push_screen_wait(ChatSettingsDialog(conversation.settings))
        if isinstance(settings, ChatSettings):
            conversation.settings = settings

    async def action_stop_answer(self) -> None:
        await self.chat.current.stop()

    async def action_regenerate(self) -> None:
        await self.chat.current.regenerate()

    def action_edit_earlier(self) -> None:
        self.desk.show("chat")
        self.chat.current.edit_earlier()

    @work(group="dialog")
    async def action_export(self) -> None:
        conversation = self.chat.current.conversation
        if not conversation.turns:
            self.tell("nothing was said yet", failed=True)
            return
        engine = self.session.link.view.engine if self.session.link is not None else None
        text = as_markdown(conversation, engine.model if engine is not None else "")
        fields = {"path": ("File", str(Path.cwd() / suggested_name(conversation)))}
        answer = await self.app.push_screen_wait(TextDialog("Export the conversation", "Export", fields))
        if answer is None:
            return
        path = Path(answer["path"]).expanduser()
        try:
            try:
                write_export(path, text)
            except FileExistsError:
                if not await self.app.push_screen_wait(ConfirmDialog(f"Replace {path}?", "Replace")):
                    return
                write_export(path, text, overwrite=True)
        except (OSError, ValueError) as error:
            self.tell(f"could not export: {error}", failed=True)
            return
        self.tell(f"wrote {path}")

    @on(ConversationView.Refused)
    def _refused(self, message: ConversationView.Refused) -> None:
        self.tell(message.reason, failed=True)
