"""Pages of the documentation whose figures come from kept results, so that none is typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class PagePart:
    """What stands between `<!-- NAME -->` and `<!-- /NAME -->`.

    pattern: of the files that its results have.
    make: the text, from the newest of them.
    without: what to say while there is none.
    """

    name: str
    pattern: str
    make: Callable[[Path], str]
    without: str


def filled(page: str, parts: Sequence[PagePart], results: Path) -> str:
    """The page with its parts as the results are now. Raises ValueError if it lacks one."""
    for part in parts:
        newest = max(results.glob(part.pattern), default=None)  # names begin with the date
        text = part.without if newest is None else part.make(newest)
        begin, end = f"<!-- {part.name} -->\n", f"<!-- /{part.name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"the page must have one part between {begin.strip()} and {end}")
        head, rest = page.split(begin)
        page = f"{head}{begin}{text}\n{end}{rest.split(end)[1]}"
    return page
