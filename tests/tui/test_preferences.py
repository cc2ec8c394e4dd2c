"""A file that is read once, written whole, and never a reason to fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudaprefill_tui.preferences import MAX_BYTES, Preferences, load_preferences, preferences_path, save_preferences


def test_what_was_saved_is_loaded_and_nothing_else_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "terminal-ui.json"
    preferences = Preferences(theme="cudaprefill-light", splits={"split-chat": 0.4}, hidden=["blocks"])
    assert save_preferences(path, preferences) == ""
    assert load_preferences(path) == (preferences, "")
    assert list(path.parent.iterdir()) == [path]


def test_no_file_is_no_complaint(tmp_path: Path) -> None:
    assert load_preferences(tmp_path / "none.json") == (Preferences(), "")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{bad", "valid JSON"),
        (b"[]", "JSON object"),
        (b'{"splits": {"split-chat": "wide"}}', "splits.split-chat must be a number"),
        (b'{"theme": 3}', "theme must be a string"),
        (b"\xff\xfe", "codec"),
        (b" " * (MAX_BYTES + 1), "more than"),
    ],
)
def test_a_bad_file_gives_the_defaults_and_says_why(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "terminal-ui.json"
    path.write_bytes(content)
    preferences, why = load_preferences(path)
    assert preferences == Preferences()
    assert complaint in why
    assert str(path) in why


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_no_content_is_fatal(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "terminal-ui.json"
    path.write_bytes(content)
    load_preferences(path)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in save_preferences(tmp_path / "file" / "terminal-ui.json", Preferences())
    (tmp_path / "terminal-ui.json").mkdir()
    assert "terminal-ui.json" in save_preferences(tmp_path / "terminal-ui.json", Preferences())
    assert {path.name for path in tmp_path.iterdir()} == {"file", "terminal-ui.json"}


def test_the_place_follows_xdg() -> None:
    assert preferences_path({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/cudaprefill/terminal-ui.json")
    assert preferences_path({"XDG_CONFIG_HOME": "rel", "HOME": "/h"}) == Path("/h/.config/cudaprefill/terminal-ui.json")
    assert preferences_path({"HOME": "/h"}) == Path("/h/.config/cudaprefill/terminal-ui.json")
