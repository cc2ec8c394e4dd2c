"""Every command of the desktop, once: bindings, menus, palette, footer and help are made from this table."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding

MENUS = {
    "File": "&File",
    "Chat": "&Chat",
    "View": "&View",
    "Engine": "&Engine",
    "Load": "&Load",
    "Play": "&Play",
    "Help": "&Help",
}


@dataclass(frozen=True)
class Command:
    """id: for tests and help. action: of the desktop screen. label: with `&` before the menu's mnemonic.

    keys: as Textual names them, alternatives by commas. footer: the short word there, "" for none.
    chat: makes no sense without the chat (`cudaprefill top`). play: only while a recording is played.
    rule: a line above it in its menu.
    priority: even while a text field has the focus and would take the key for itself.
    """

    id: str
    menu: str
    label: str
    action: str
    help: str
    keys: str = ""
    footer: str = ""
    chat: bool = False
    play: bool = False
    rule: bool = False
    priority: bool = False

    @property
    def title(self) -> str:
        return self.label.replace("&", "")


COMMANDS = (
    Command("file.attach", "File", "&Attach to a server…", "attach", "Show another running server as well"),
    Command("file.next_server", "File", "&Next server", "next_server", "Go on to the next of the attached servers"),
    Command(
        "file.export",
        "File",
        "&Export the conversation…",
        "export",
        "Write this conversation to a Markdown file",
        keys="ctrl+s",
        chat=True,
        rule=True,
    ),
    Command("file.quit", "File", "&Quit", "app.quit", "Leave", keys="ctrl+q", footer="Quit", rule=True, priority=True),
    Command(
        "chat.new",
        "Chat",
        "&New conversation",
        "new_conversation",
        "Start a conversation in a tab of its own",
        keys="ctrl+n",
        chat=True,
        priority=True,
    ),
    Command("chat.close", "Chat", "&Close the conversation", "close_conversation", "Close this tab", chat=True),
    Command(
        "chat.next",
        "Chat",
        "Ne&xt conversation",
        "next_conversation",
        "Go to the tab on the right",
        keys="ctrl+pagedown,alt+right",
        chat=True,
        priority=True,
    ),
    Command(
        "chat.previous",
        "Chat",
        "&Previous conversation",
        "previous_conversation",
        "Go to the tab on the left",
        keys="ctrl+pageup,alt+left",
        chat=True,
        priority=True,
    ),
    Command(
        "chat.settings",
        "Chat",
        "&Settings and system prompt…",
        "chat_settings",
        "System prompt, temperature, top-p and longest answer of this conversation",
        keys="f7",
        chat=True,
        rule=True,
    ),
    Command(
        "chat.stop",
        "Chat",
        "S&top the answer",
        "stop_answer",
        "End the answer that is being written",
        keys="escape",
        footer="Stop",
        chat=True,
        rule=True,
    ),
    Command(
        "chat.regenerate",
        "Chat",
        "&Regenerate",
        "regenerate",
        "Ask for the last answer again",
        keys="ctrl+r",
        chat=True,
        priority=True,
    ),
    Command(
        "chat.edit",
        "Chat",
        "&Edit and resend",
        "edit_earlier",
        "Take the last prompt into the input line to ask it anew; again for the one before",
        keys="f3",
        chat=True,
    ),
    Command(
        "chat.copy",
        "Chat",
        "C&opy",
        "copy_text",
        "Copy the selection or, without one, the last answer as it was written",
        keys="ctrl+c",
        footer="Copy",
    ),
    Command(
        "view.next_pane",
        "View",
        "&Next pane",
        "next_pane",
        "Move the focus to the next pane",
        keys="f6",
        footer="Next pane",
    ),
    Command(
        "view.previous_pane",
        "View",
        "&Previous pane",
        "previous_pane",
        "Move the focus to the pane before",
        keys="shift+f6,f18",
    ),
    Command(
        "view.zoom",
        "View",
        "&Zoom the pane",
        "zoom",
        "Give the whole screen to the pane in focus, and take it back",
        keys="f4",
        footer="Zoom",
    ),
    Command("view.chat", "View", "Show &Chat", "toggle_pane('chat')", "Show or hide the chat", chat=True, rule=True),
    Command("view.steps", "View", "Show &Steps", "toggle_pane('steps')", "Show or hide the step list"),
    Command("view.blocks", "View", "Show &Blocks", "toggle_pane('blocks')", "Show or hide the block map"),
    Command("view.requests", "View", "Show &Requests", "toggle_pane('requests')", "Show or hide the request table"),
    Command("view.latency", "View", "Show &Latency", "toggle_pane('latency')", "Show or hide TTFT and ITL"),
    Command(
        *("view.reset", "View", "Reset t&he layout", "reset_layout", "All panes, in the sizes of the first day"),
        rule=True,
    ),
    Command(
        "view.theme",
        "View",
        "Next &theme",
        "next_theme",
        "Dark, light, high contrast",
        keys="f9",
    ),
    Command(
        "engine.settings",
        "Engine",
        "&Settings",
        "engine_settings",
        "Token budget, chunk cap and target ITL of the live engine",
        keys="f8",
        footer="Engine",
    ),
    Command("engine.rag", "Engine", "Preset &RAG", "preset('rag')", "Many questions over the same texts", rule=True),
    Command("engine.code", "Engine", "Preset c&ode", "preset('code')", "Long prompts, their first token soon"),
    Command("engine.chat", "Engine", "Preset cha&t", "preset('chat')", "Many readers, smooth streams"),
    Command(
        "engine.reset_cache",
        "Engine",
        "Reset the prefix &cache",
        "reset_prefix_cache",
        "Forget all cached prefixes, to see what they were worth",
        rule=True,
    ),
    Command(
        "load.open",
        "Load",
        "&Load generator…",
        "load",
        "Choose and set up a load",
        keys="f5",
        footer="Load",
    ),
    Command("load.chat", "Load", "&Chat users", "start_load('chat')", "Users who ask, read and ask again", rule=True),
    Command("load.document", "Load", "Long &document", "start_load('document')", "A long prompt among chats"),
    Command("load.prefix", "Load", "Same &prefix", "start_load('prefix')", "Many questions about one document"),
    Command("load.bursts", "Load", "&Bursts", "start_load('bursts')", "All users at once, then nobody"),
    Command("load.stop", "Load", "&Stop the load", "stop_load", "End the load and its requests", rule=True),
    Command(
        "play.pause",
        "Play",
        "&Pause",
        "pause",
        "Hold the recording, and let it go on",
        keys="f12",
        footer="Pause",
        play=True,
    ),
    Command(
        "play.slower", "Play", "&Slower", "change_speed(0.5)", "Half the speed", keys="left_square_bracket", play=True
    ),
    Command(
        "play.faster", "Play", "&Faster", "change_speed(2.0)", "Twice the speed", keys="right_square_bracket", play=True
    ),
    Command("help.help", "Help", "&Help", "help", "Keys, glyphs and words", keys="f1", footer="Help", priority=True),
    Command(
        "help.explain",
        "Help",
        "&Why so slow?",
        "explain",
        "Where the time went: of the last answer, or of the row under the cursor in Requests and Steps",
        keys="f2",
        footer="Explain",
    ),
    Command(
        "help.palette",
        "Help",
        "Command &palette",
        "app.command_palette",
        "Find a command by its name",
        keys="ctrl+p",
        footer="Palette",
        priority=True,
    ),
    Command("help.menu", "Help", "&Menu", "menu", "Open the menu bar", keys="f10", footer="Menu", priority=True),
    Command("help.about", "Help", "&About", "about", "Version, model and server", rule=True),
)

_FUNCTION_KEYS = {f"f{digit}" for digit in range(1, 10)}
FOOTER_ORDER = ("help.help", "help.explain", "view.zoom", "load.open", "view.next_pane", "engine.settings", "help.menu")


def commands(with_chat: bool, is_playback: bool) -> list[Command]:
    return [command for command in COMMANDS if (with_chat or not command.chat) and (is_playback or not command.play)]


def bindings() -> list[Binding]:
    """In the footer's order: F-keys first, then the rest as in the menus."""
    rank = {identifier: place for place, identifier in enumerate(FOOTER_ORDER)}
    ordered = sorted(COMMANDS, key=lambda command: rank.get(command.id, len(rank)))
    menus = [
        Binding(f"alt+{letter}", f"menu('{letter}')", f"Menu {label.replace('&', '')}", show=False, priority=True)
        for label in MENUS.values()
        for letter in [label[label.index("&") + 1].lower()]
    ]
    return menus + [
        Binding(
            command.keys,
            command.action,
            command.footer or command.title,
            show=bool(command.footer),
            # A text field has uses of its own for some function keys.
            priority=command.priority or command.keys[:2] in _FUNCTION_KEYS,
            id=command.id,
            tooltip=command.help,
        )
        for command in ordered
        if command.keys
    ]
