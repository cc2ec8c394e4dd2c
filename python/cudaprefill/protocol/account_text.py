"""An account in words, for servers and clients: a waterfall, then the prefix, then late tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cudaprefill.protocol.account import Account, LateToken, Part, PrefixAccount, Work
from cudaprefill.protocol.itl_target import itl_target_text

BAR_WIDTH = 32
MOST_NAMES = 3

TokenText = Callable[[int], str]


def account_text(account: Account, token_text: TokenText | None = None) -> str:
    """`token_text` shows a token of the vocabulary."""
    return "\n".join(_lines(account, token_text)) + "\n"


def _lines(account: Account, token_text: TokenText | None) -> Iterator[str]:
    yield headline(account)
    yield ""
    yield from _waterfall(account)
    if account.incomplete:
        yield "Steps of its time are no longer known: what it waited for is missing above."
    if account.prefix is not None:
        yield ""
        yield f"prefix cache: {prefix_text(account.prefix, token_text)}"
    if account.itl_limit is not None:
        yield ""
        yield from late_token_lines(account)


def headline(account: Account) -> str:
    outcome = f"first token after {seconds(account.ttft)}" if account.ttft is not None else "no token yet"
    prompt = _counted(account.prompt_tokens, "prompt token")
    if account.virtual_tokens:
        prompt += f", {account.virtual_tokens:,} of them virtual"
    parts = [f"{account.id}: {outcome}", prompt]
    if account.adapter is not None:
        parts.append(f"adapter {account.adapter}")
    parts.append(_counted(account.output_tokens, "output token"))
    if account.preemptions:
        parts.append(f"preempted {_times(account.preemptions)}")
    parts.append(account.finish_reason or account.state)
    return " · ".join(parts)


def _waterfall(account: Account) -> Iterator[str]:
    width = max((len(part.kind) for part in account.parts), default=0)
    for part in account.parts:
        begin = round(part.start / account.total * BAR_WIDTH)
        end = round((part.start + part.duration) / account.total * BAR_WIDTH)
        bar = " " * min(begin, BAR_WIDTH - 1) + "█" * max(end - begin, 1)
        yield f"{part.kind:{width}}  {seconds(part.duration):>9} │{bar:{BAR_WIDTH}}│ {part_detail(part)}".rstrip()
    if account.parts:
        yield f"{'total':{width}}  {seconds(account.total):>9}"


def part_detail(part: Part) -> str:
    if part.kind in ("tokenizing", "between steps", "delivering", "sending"):
        return ""
    words = []
    if part.first_token is not None:
        last = part.first_token + part.num_tokens - 1
        words.append(f"{_steps(part)}: tokens {part.first_token:,} to {last:,}")
    elif part.first_step is not None:
        words.append(f"during {_steps(part)}" if part.kind == "handing over" else _steps(part))
    if part.waiting_for:
        place = f"behind {_names(part.behind)}, whose head" if part.behind else "it"
        words.append(f"{place} lacks {part.waiting_for}")
    elif part.behind:
        words.append(f"behind {_names(part.behind)}")
    work = []
    if part.num_decodes:
        work.append(f"{_counted(part.num_decodes, 'token')} of decodes")
    if part.others:
        work.append(_works(part.others))
    if work:
        share = "" if part.others_seconds is None else f"{seconds(part.others_seconds)} of it for "
        words.append(share + " and ".join(work))
    return "; ".join(words)


def prefix_text(prefix: PrefixAccount, token_text: TokenText | None) -> str:
    found = f"{prefix.hit_tokens:,} of {prefix.shareable_tokens:,} tokens that can be shared"
    if prefix.virtual_hit_tokens:
        whose = "" if prefix.adapter is None else f" of the adapter {prefix.adapter}"
        found += f", {prefix.virtual_hit_tokens:,} of them virtual tokens{whose}"
    reason = {
        "complete": "",
        "off": "it is off (--no-enable-prefix-caching)",
        "different": _different(prefix, token_text),
        "salt": f"{prefix.known_from} has the same tokens under another cache salt",
        "adapter": f"{prefix.known_from} has the same text, but behind other virtual tokens or another adapter",
        "evicted": f"block {prefix.missed_block}, computed for {prefix.known_from}, gave way in step "
        f"{prefix.evicted_in_step} to {_works(prefix.evicted_by)}",
        "computing": f"{prefix.known_from} had block {prefix.missed_block} in the making at the same time",
        "forgotten": f"block {prefix.missed_block}, computed for {prefix.known_from}, is gone: by a reset of the "
        "cache, or longer ago than is remembered",
        "unknown": "prompts were not recorded",
    }[prefix.reason]
    return f"{found}; {reason}" if reason else found


def _different(prefix: PrefixAccount, token_text: TokenText | None) -> str:
    difference = prefix.difference
    if difference is None:
        return f"no known request has block {prefix.missed_block}"

    def show(token: int | None) -> str:
        if token is None:
            return "its end"
        if token < 0:
            return "a virtual token"
        return f"token {token}" if token_text is None else f"{token_text(token)!r} (token {token})"

    return (
        f"from token {difference.position:,} on, in block {prefix.missed_block}, it differs from the nearest request, "
        f"{difference.id}: {show(difference.own_token)} instead of {show(difference.other_token)}"
    )


def late_token_lines(account: Account) -> Iterator[str]:
    if not account.num_late_tokens:
        yield f"no gap between tokens above {seconds(account.itl_limit)}"
        return
    shown = len(account.late_tokens)
    rest = "" if shown == account.num_late_tokens else f", the last {shown}"
    times, limit = _times(account.num_late_tokens), seconds(account.itl_limit)
    target = "" if account.itl_target_ms is None else f" (ITL target {itl_target_text(account.itl_target_ms)})"
    yield f"{times} a token came later than {limit} after the one before{target}{rest}:"
    for late in account.late_tokens:
        yield f"  token {late.token}, {seconds(late.gap)} after the one before: {_why_late(late)}"
        for prevention in late.preventions:
            yield f"    {prevention.text}" + (
                f" ({prevention.setting} {prevention.value:g})" if prevention.setting else ""
            )


def _why_late(late: LateToken) -> str:
    if late.preempted:
        return f"preempted, and computed again by step {late.steps[-1]}"
    words = f"step {late.slowest_step} took {seconds(late.slowest_duration)} for {_counted(late.num_decodes, 'decode')}"
    if late.others:
        words += f" and {_works(late.others)}"
    if late.outside_steps > late.gap / 10:
        words += f"; {seconds(late.outside_steps)} were between steps"
    return words


def _works(works: Sequence[Work]) -> str:
    return _listed([f"{work.tokens:,} of {work.id}" for work in works])


def _names(names: Sequence[str]) -> str:
    return _listed(list(names))


def _listed(items: list[str]) -> str:
    rest = len(items) - MOST_NAMES
    return ", ".join(items[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _steps(part: Part) -> str:
    if part.first_step == part.last_step:
        return f"step {part.first_step}"
    return f"steps {part.first_step} to {part.last_step}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def seconds(duration: float | None) -> str:
    """1.234 s, or 12.3 ms below a tenth of a second."""
    if duration is None:
        return "-"
    return f"{duration * 1e3:.1f} ms" if duration < 0.1 else f"{duration:.3f} s"
