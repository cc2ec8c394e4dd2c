"""A stop string ends the text wherever it falls, and only what may still become one is held back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudaprefill.text.stop import StopMatcher


def split(text: str, cuts: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(bounds)]


def oracle(text: str, stops: list[str], include: bool = False) -> tuple[str, str | None]:
    """By search of the whole text: the match that is complete first, of several the longest."""
    matches = [
        (start + len(stop), start, stop) for stop in stops for start in range(len(text)) if text.startswith(stop, start)
    ]
    if not matches:
        return text, None
    end, start, stop = min(matches)
    return text[: end if include else start], stop


def run(parts: list[str], stops: list[str], include: bool = False) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, include)
    sent = [matcher.push(part) for part in parts]
    return [*sent, matcher.finish()], matcher.matched


STOPS = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4)


@given(st.text("abc", max_size=40), STOPS, st.lists(st.integers(0, 99), max_size=12), st.booleans())
def test_pieces_give_what_a_search_of_the_whole_text_gives(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    sent, matched = run(split(text, cuts), stops, include)
    assert ("".join(sent), matched) == oracle(text, stops, include)


@given(st.text("abc", max_size=40), STOPS, st.lists(st.integers(0, 99), max_size=12))
def test_no_more_is_held_than_may_still_become_a_stop_string(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher, seen, sent = StopMatcher(stops), "", ""
    for part in split(text, cuts):
        seen += part
        sent += matcher.push(part)
        if matcher.matched is not None:
            break
        beginnings = {stop[:length] for stop in stops for length in range(len(stop))}
        held = next(seen[start:] for start in range(len(seen) + 1) if seen[start:] in beginnings)
        assert sent + held == seen


@pytest.mark.parametrize(
    ("parts", "stops", "sent"),
    [
        (["DEF", "G", "HI", "J"], ["DEFGHIJ"], ["", "", "", "", ""]),
        (["abcDEF", "G", "HI", "Jxyz"], ["DEFGHIJ"], ["abc", "", "", "", ""]),
        (["DEF", "X"], ["DEFGHIJ"], ["", "DEFX", ""]),
        (["DEF", "DEFG"], ["DEFGHIJ"], ["", "DEF", "DEFG"]),
        (["four, ", "five", ", six"], ["five"], ["four, ", "", "", ""]),
        (["four, five, six"], ["five"], ["four, ", ""]),
        (["fo", "ur"], ["our", "four"], ["", "", ""]),
        (["a b", "c d"], ["b c d", "c"], ["a ", "b", ""]),
        (["x" * 39], ["x" * 40], ["", "x" * 39]),
        (["x" * 39, "x"], ["x" * 40], ["", "", ""]),
        (["y", "x" * 39, "yx"], ["x" * 40], ["y", "", "x" * 39 + "y", "x"]),
        (["aab", "aabaaa"], ["aabaaa"], ["", "aab", ""]),
        (["안", "녕"], ["녕"], ["안", "", ""]),
    ],
)
def test_examples(parts: list[str], stops: list[str], sent: list[str]) -> None:
    assert run(parts, stops)[0] == sent


def test_the_stop_string_may_be_left_in_the_text() -> None:
    assert run(["one ", "two", " three"], ["tw"], include=True) == (["one ", "tw", "", ""], "tw")


def test_nothing_follows_a_match() -> None:
    matcher = StopMatcher(["b"])
    assert [matcher.push("abc"), matcher.push("def"), matcher.finish()] == ["a", "", ""]


def test_a_match_that_may_not_stop_yet_passes_and_a_later_one_counts() -> None:
    matcher = StopMatcher(["aba"])
    assert matcher.push("xaba", may_stop=False) == "xab"
    assert matcher.matched is None
    assert matcher.push("ba") == ""
    assert matcher.matched == "aba"


def test_without_stop_strings_everything_passes_at_once() -> None:
    assert run(["a", "", "b"], []) == (["a", "", "b", ""], None)
