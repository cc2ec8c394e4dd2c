"""What is refused are counts of what may be empty, and too many copies; Python's own engine says what may be empty."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudaprefill.text.regex_limits import refuse_explosive_regex

ATOMS = st.sampled_from(
    ["a", "é", ".", "[ab]", "[]a]", "[^(]", "[a{2}]", r"\(", r"\{", r"\d", "(?:b)", "()", "(?P<x>c)"]
)


def patterns(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeated = st.tuples(children, st.sampled_from(["*", "+", "?", "{1}", "{0,1}", "*?", "+?"]))
    return st.one_of(
        st.lists(children, max_size=3).map("".join),
        st.lists(children, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        repeated.map(lambda parts: f"(?:{parts[0]}){parts[1]}"),
    )


PATTERNS = st.recursive(ATOMS, patterns, max_leaves=8).map(lambda text: text.replace("?P<x>", ""))


@given(PATTERNS)
def test_a_count_is_refused_if_and_only_if_what_it_counts_may_be_empty(pattern: str) -> None:
    may_be_empty = re.fullmatch(pattern, "") is not None
    for count in ("{2}", "{0,3}", "{1,3}"):
        if may_be_empty:
            with pytest.raises(ValueError, match="may be empty"):
                refuse_explosive_regex("regex", f"({pattern}){count}")
        else:
            refuse_explosive_regex("regex", f"({pattern}){count}")


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_counts_within_each_other_multiply(counts: list[int]) -> None:
    pattern, copies = "a", 1
    for count in counts:
        pattern, copies = f"x|({pattern}){{{count}}}", copies * count
    if copies > 10_000:
        with pytest.raises(ValueError, match="regex: counts may multiply to at most 10000, got"):
            refuse_explosive_regex("regex", pattern)
    else:
        refuse_explosive_regex("regex", pattern)


@pytest.mark.parametrize(
    "pattern", ["(a{1000}){1000}", "a?" * 129, "a{10001}", "a{1,10001}", "(" * 100 + "a" + ")" * 100]
)
def test_what_is_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="at most"):
        refuse_explosive_regex("regex", pattern)


@pytest.mark.parametrize("pattern", ["[", "(", ")", "a{", "a{2", "a{x}", "\\", "|", "", "{2}", "*"])
def test_what_is_no_pattern_is_left_to_the_compiler(pattern: str) -> None:
    refuse_explosive_regex("regex", pattern)
