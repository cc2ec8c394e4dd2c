"""What the prefix cache gave a request, and where and why it stopped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cudaprefill.observe.events import RequestEventKind, StepEvent
from cudaprefill.observe.explain.history import History, RequestHistory
from cudaprefill.protocol.account import Difference, PrefixAccount, Work


def explain_prefix(history: History, request: RequestHistory) -> PrefixAccount | None:
    """None before the request was admitted. The first admission counts: later ones find what was its own."""
    request = history.lead_of(request)
    admitted = request.first(RequestEventKind.SCHEDULED)
    if admitted is None:
        return None
    size, hit_tokens = history.block_size, admitted.hit_tokens
    shareable_tokens = (request.arrived.num_prompt_tokens - 1) // size * size
    account = PrefixAccount(
        hit_tokens=hit_tokens,
        virtual_hit_tokens=min(hit_tokens, request.arrived.num_virtual_tokens),
        adapter=request.arrived.adapter,
        shareable_tokens=shareable_tokens,
        reason="unknown",
    )
    if not history.prefix_caching:
        return _replace(account, reason="off")
    if hit_tokens >= shareable_tokens:
        return _replace(account, reason="complete")
    if request.arrived.tokens is None:
        return account
    missed = hit_tokens // size
    account = _replace(account, missed_block=missed)
    others = [other for other in history.requests.values() if other is not request]
    earlier = [other for other in others if _began_before(other, admitted.step)]
    owner = _owner_of(earlier, missed, int(request.arrived.tokens.block_hashes[missed]))
    if owner is None:
        return _different(account, request, earlier, missed, size)
    account = _replace(account, known_from=owner.arrived.request_id)
    evicted = history.evicted_in(int(request.arrived.tokens.block_hashes[missed]), admitted.step)
    if evicted is not None:
        return _replace(account, reason="evicted", evicted_in_step=evicted.number, evicted_by=_who_took_blocks(evicted))
    published = _step_that_computed(owner, (missed + 1) * size)
    making = published is None or published >= admitted.step
    return _replace(account, reason="computing" if making else "forgotten")


def _replace(account: PrefixAccount, **changes: Any) -> PrefixAccount:
    return PrefixAccount(**{**vars(account), **changes})


def _began_before(other: RequestHistory, step: int) -> bool:
    admitted = other.first(RequestEventKind.SCHEDULED)
    return other.tokens is not None and admitted is not None and admitted.step <= step


def _owner_of(others: Iterable[RequestHistory], block: int, block_hash: int) -> RequestHistory | None:
    """The latest request that has this very block behind this very prefix."""
    found = None
    for other in others:
        hashes = () if other.tokens is None else other.tokens.block_hashes
        if block < len(hashes) and int(hashes[block]) == block_hash:
            found = other
    return found


def _step_that_computed(owner: RequestHistory, num_tokens: int) -> int | None:
    """The step after which its first `num_tokens` tokens had KV; None if there is none yet, or in its output."""
    for event in owner.events:
        if event.kind is RequestEventKind.CHUNK and event.start + event.length >= num_tokens:
            return event.step
    finished = owner.first(RequestEventKind.FINISHED)
    return None if finished is None else finished.step


def _who_took_blocks(step: StepEvent) -> list[Work]:
    chunks = sorted(step.chunks, key=lambda chunk: -chunk.length)
    if chunks:
        return [Work(id=chunk.request_id, tokens=chunk.length) for chunk in chunks]
    return [Work(id=request_id, tokens=1) for request_id in step.decode_ids]


def _different(
    account: PrefixAccount, request: RequestHistory, earlier: Sequence[RequestHistory], missed: int, size: int
) -> PrefixAccount:
    own = _token_ids(request)[: request.arrived.num_prompt_tokens]
    nearest, common = None, -1
    for other in earlier:
        if missed and not _shares(other, request, missed):
            continue
        if _virtual(other) != _virtual(request):
            continue
        tokens = _token_ids(other)
        length = _common_length(own, tokens, missed * size)
        if length >= common:
            nearest, common = other, length
    if common < (missed + 1) * size and not missed:
        behind_another = _same_text(request, earlier, size)
        if behind_another is not None:
            return _replace(account, reason="adapter", known_from=behind_another.arrived.request_id)
    if nearest is None or not own:
        return _replace(account, reason="different")
    tokens = _token_ids(nearest)
    if common >= (missed + 1) * size:
        # Virtual tokens have the same ids whatever they stand for.
        reason = "adapter" if request.arrived.num_virtual_tokens else "salt"
        return _replace(account, reason=reason, known_from=nearest.arrived.request_id)
    difference = Difference(
        id=nearest.arrived.request_id,
        position=common,
        own_token=own[common] if common < len(own) else None,
        other_token=tokens[common] if common < len(tokens) else None,
    )
    return _replace(account, reason="different", difference=difference)


def _virtual(request: RequestHistory) -> tuple[str | None, int]:
    return request.arrived.adapter, request.arrived.num_virtual_tokens


def _same_text(request: RequestHistory, others: Sequence[RequestHistory], size: int) -> RequestHistory | None:
    """The latest whose text begins with the same block of tokens behind something else."""
    own = _text_ids(request)
    found = None
    for other in others:
        if _virtual(other) != _virtual(request) and _common_length(own, _text_ids(other), 0) >= size:
            found = other
    return found


def _text_ids(request: RequestHistory) -> Sequence[int]:
    return _token_ids(request)[request.arrived.num_virtual_tokens :]


def _shares(other: RequestHistory, request: RequestHistory, num_blocks: int) -> bool:
    if other.tokens is None or request.arrived.tokens is None or len(other.tokens.block_hashes) < num_blocks:
        return False
    return bool(other.tokens.block_hashes[num_blocks - 1] == request.arrived.tokens.block_hashes[num_blocks - 1])


def _token_ids(request: RequestHistory) -> Sequence[int]:
    """Empty where they were not recorded, as in a trace."""
    if request.tokens is None:
        return ()
    return [*request.tokens.prompt_token_ids, *request.tokens.output_token_ids]


def _common_length(own: Sequence[int], other: Sequence[int], start: int) -> int:
    length = min(len(own), len(other))
    position = min(start, length)
    while position < length and own[position] == other[position]:
        position += 1
    return position
