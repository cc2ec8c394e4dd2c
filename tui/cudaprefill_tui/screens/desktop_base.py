"""What the parts of the desktop know of each other."""

from __future__ import annotations

from abc import abstractmethod

from ..conversations import ChatSettings
from ..glyphs import UNICODE, Glyphs
from ..preferences import Preferences
from ..printable import displayable
from ..session import Session
from ..sparse_compositor import SparseScreen
from ..widgets.chat_pane import ChatPane
from ..widgets.desk import Desk


class DesktopBase(SparseScreen[None]):
    """chat: what new conversations start with; None for panes alone."""

    def __init__(
        self, session: Session, chat: ChatSettings | None, preferences: Preferences, glyphs: Glyphs = UNICODE
    ) -> None:
        super().__init__()
        self.session = session
        self.with_chat = chat is not None
        self._chat = ChatPane(chat, id="chat") if chat is not None else None
        self.desk = Desk(self._chat, preferences, glyphs)

    @property
    def chat(self) -> ChatPane:
        """There whenever a command of the chat can be called."""
        assert self._chat is not None
        return self._chat

    def tell(self, message: str, *, failed: bool = False) -> None:
        self.notify(displayable(message), severity="error" if failed else "information", markup=False)

    @abstractmethod
    def attach(self, url: str, api_key: str | None) -> None:
        """Raises ValueError for what is no URL."""

    @abstractmethod
    def tick(self) -> None:
        """Carries news down to the panes."""
