"""Refuses regular expressions that would take too long to follow.

What makes a matcher explode is not the length of a pattern but the ways in which one text can be split among counted
repetitions: for (.{0,30}){0,30} their number grows with every character. So a count of what may be empty is refused,
and so are counts that multiply to too many copies, and too many parts that may be empty. `*` and `+` by themselves are
loops and harmless.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_COPIES = 10_000
MAX_OPTIONAL = 128
_MAX_GROUPS = 64  # within each other

_COUNT = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}")
_GROUP = re.compile(r"\((\?:|\?P?<\w+>)?")
_CLASS = re.compile(r"\[\^?\]?(\\.|[^\]\\])*\]", re.DOTALL)


@dataclass(slots=True)
class _Sequence:
    """What was read of one group so far: alternatives of items one after the other."""

    copies: int = 1  # the most copies that counts make of a part of it
    branch_can_be_empty: bool = True
    some_branch_can_be_empty: bool = False

    def add(self, copies: int, can_be_empty: bool) -> None:
        self.copies = max(self.copies, copies)
        self.branch_can_be_empty &= can_be_empty

    def next_branch(self) -> None:
        self.some_branch_can_be_empty |= self.branch_can_be_empty
        self.branch_can_be_empty = True

    @property
    def can_be_empty(self) -> bool:
        return self.some_branch_can_be_empty or self.branch_can_be_empty


def refuse_explosive_regex(name: str, pattern: str) -> None:
    """Raises ValueError, beginning with `name`, where following the pattern could take too long.

    Whatever is no valid pattern passes: that is for the compiler to say.
    """
    open_groups = [_Sequence()]
    place = num_optional = 0
    while place < len(pattern):
        copies, can_be_empty = 1, False
        character = pattern[place]
        if character == "(":
            if len(open_groups) > _MAX_GROUPS:
                raise ValueError(f"{name} may have at most {_MAX_GROUPS} groups within each other, got more")
            open_groups.append(_Sequence())
            place = _end(_GROUP, pattern, place)
            continue
        if character == "|":
            open_groups[-1].next_branch()
            place += 1
            continue
        if character == ")" and len(open_groups) > 1:
            group = open_groups.pop()
            copies, can_be_empty = group.copies, group.can_be_empty
            place += 1
        elif character in "^$":
            can_be_empty = True
            place += 1
        elif character == "[":
            place = _end(_CLASS, pattern, place)
        else:
            place += 2 if character == "\\" else 1
        place, copies, can_be_empty = _repetitions(name, pattern, place, copies, can_be_empty)
        num_optional += can_be_empty
        if num_optional > MAX_OPTIONAL:
            raise ValueError(f"{name} may have at most {MAX_OPTIONAL} parts that may be empty, got more")
        open_groups[-1].add(copies, can_be_empty)


def _repetitions(name: str, pattern: str, place: int, copies: int, can_be_empty: bool) -> tuple[int, int, bool]:
    """Reads what says how often the item in front of `place` comes."""
    while place < len(pattern):
        count = _COUNT.match(pattern, place)
        if pattern[place] in "*?":
            can_be_empty = True
            place += 1
        elif pattern[place] == "+":
            place += 1
        elif count:
            most = int(count[3] or count[1])
            copies *= max(most, 1)
            if copies > MAX_COPIES:
                raise ValueError(f"{name}: counts may multiply to at most {MAX_COPIES}, got {copies}")
            if can_be_empty and most > 1:
                raise ValueError(f"{name}: {count[0]} at position {place} counts what may be empty")
            can_be_empty |= int(count[1]) == 0
            place = count.end()
        else:
            break
        if pattern.startswith("?", place):  # lazy, which changes nothing about what matches
            place += 1
    return place, copies, can_be_empty


def _end(what: re.Pattern[str], pattern: str, place: int) -> int:
    match = what.match(pattern, place)
    return match.end() if match else place + 1
