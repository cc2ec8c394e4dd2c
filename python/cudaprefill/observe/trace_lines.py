"""Events as lines of a trace file, and back.

A line is a JSON array: a letter for what it is, then its fields in a fixed order. Times are whole microseconds since
the header's `time`. A request is named by its number, its id comes once a file; a step says who joined and who left the
decodes since the step before. Prompts are not in it: only hashes of their full blocks, keyed by a secret that never
leaves the engine, which tell equal prefixes of one run apart from others and nothing else.

    ["a", number, id, time, step, priority, prompt tokens, max tokens, hashes]       arrived; with an adapter or virtual
                                                                     tokens, two more: virtual tokens, adapter's name
    ["q", number, time, step, tokenized]                                             queued
    ["s", number, time, step, hit tokens]                                            scheduled
    ["c", number, time, step, start, length, hit tokens]                             chunk
    ["t", number, time, step]                                                        first token
    ["p", number, time, step]                                                        preempted
    ["f", number, time, step, reason, output tokens, hashes]                         finished
    ["S", number, start, duration, predicted, budget, joined, left, chunks, preempted, finished, waiting, waiting for,
          blocks taken, freed, evicted, free, cached, used, evicted hashes]          step; a chunk is
          [request, start, length, hit tokens, is last]
    ["n", number, id]                                                                names a request without arrival
    ["d", count]                                                                     events that were dropped here
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from cudaprefill.observe.events import ChunkSpan, RequestEvent, RequestEventKind, RequestTokens, StepEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Event = RequestEvent | StepEvent

Line = list[Any]

_LETTERS = {
    RequestEventKind.ARRIVED: "a",
    RequestEventKind.QUEUED: "q",
    RequestEventKind.SCHEDULED: "s",
    RequestEventKind.CHUNK: "c",
    RequestEventKind.FIRST_TOKEN: "t",
    RequestEventKind.PREEMPTED: "p",
    RequestEventKind.FINISHED: "f",
}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}


def dump_line(line: Line | dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


class LineEncoder:
    """Knows what a reader of the current file knows: names, and who decodes."""

    def __init__(self, time: float) -> None:
        """`time`: of the header, seconds of the engine's clock."""
        self._time = time
        self._arrivals: dict[int, RequestEvent] = {}  # of requests that have not finished
        self._named: set[int] = set()
        self._ended: list[int] = []  # the step in which they finished names them once more
        self._decodes: tuple[int, ...] = ()

    def restart(self) -> list[Line]:
        """The lines that must open another file: it has to be read without the ones before."""
        self._named.clear()
        self._decodes = ()
        return [line for event in self._arrivals.values() for line in self._request_lines(event)]

    def encode(self, event: Event) -> list[Line]:
        if isinstance(event, StepEvent):
            return self._step_lines(event)
        if event.kind is RequestEventKind.ARRIVED:
            self._arrivals[event.number] = event
        lines = self._request_lines(event)
        if event.kind is RequestEventKind.FINISHED:
            self._arrivals.pop(event.number, None)
            self._ended.append(event.number)
        return lines

    def _micros(self, time: float) -> int:
        return round((time - self._time) * 1e6)

    def _name(self, number: int, request_id: str) -> list[Line]:
        if number in self._named:
            return []
        self._named.add(number)
        return [["n", number, request_id]]

    def _request_lines(self, event: RequestEvent) -> list[Line]:
        kind, times = event.kind, [self._micros(event.time), event.step]
        if kind is RequestEventKind.ARRIVED:
            self._named.add(event.number)
            own = [event.priority, event.num_prompt_tokens, event.max_tokens, _dump_hashes(event.tokens)]
            if event.num_virtual_tokens or event.adapter is not None:
                own += [event.num_virtual_tokens, event.adapter]
            return [["a", event.number, event.request_id, *times, *own]]
        line = [_LETTERS[kind], event.number, *times]
        if kind is RequestEventKind.QUEUED:
            line.append(None if event.tokenized is None else self._micros(event.tokenized))
        elif kind is RequestEventKind.SCHEDULED:
            line.append(event.hit_tokens)
        elif kind is RequestEventKind.CHUNK:
            line += [event.start, event.length, event.hit_tokens]
        elif kind is RequestEventKind.FINISHED:
            line += [event.reason, event.num_output_tokens, _dump_hashes(event.tokens)]
        return [*self._name(event.number, event.request_id), line]

    def _step_lines(self, step: StepEvent) -> list[Line]:
        members = [
            *zip(step.decode_numbers, step.decode_ids, strict=True),
            *((chunk.number, chunk.request_id) for chunk in step.chunks),
            *zip(step.preempted_numbers, step.preempted_ids, strict=True),
            *zip(step.finished_numbers, step.finished_ids, strict=True),
        ]
        lines = [line for number, request_id in members for line in self._name(number, request_id)]
        joined: list[int] = []
        left: list[int] = []
        if step.decode_numbers != self._decodes:
            now, before = set(step.decode_numbers), set(self._decodes)
            joined = [number for number in step.decode_numbers if number not in before]
            left = [number for number in self._decodes if number not in now]
            self._decodes = step.decode_numbers
        predicted = None if step.predicted_duration is None else round(step.predicted_duration * 1e6)
        chunks = [
            [chunk.number, chunk.start, chunk.length, chunk.hit_tokens, int(chunk.is_last)] for chunk in step.chunks
        ]
        times = [self._micros(step.start), round(step.duration * 1e6), predicted]
        blocks = [step.num_blocks_taken, step.num_blocks_freed, step.num_blocks_evicted]
        pool = [step.num_free_blocks, step.num_cached_blocks, step.num_used_blocks]
        line: Line = ["S", step.number, *times, step.token_budget, joined, left, chunks]
        line += [step.preempted_numbers, step.finished_numbers, step.num_waiting, step.waiting_for, *blocks, *pool]
        line.append(None if step.evicted_hashes is None else dump_array(step.evicted_hashes))
        gone = {number for number in self._ended if number not in self._decodes}
        self._named -= gone
        self._ended = [number for number in self._ended if number not in gone]
        return [*lines, line]


class LineDecoder:
    """Raises ValueError, KeyError, IndexError or TypeError for a line that is not one."""

    def __init__(self) -> None:
        self.num_dropped = 0
        self._time = 0.0
        self._ids: dict[int, str] = {}
        self._arrived: set[int] = set()
        self._decodes: dict[int, None] = {}

    def restart(self, time: float) -> None:
        """Another file of the same run begins."""
        self._time = time
        self._ids.clear()
        self._decodes.clear()

    def decode(self, line: Line) -> Iterator[Event]:
        letter, fields = line[0], line[1:]
        if letter == "S":
            yield self._step(fields)
        elif letter == "n":
            self._ids[fields[0]] = fields[1]
        elif letter == "d":
            self.num_dropped += fields[0]
        elif letter == "a":
            self._ids[fields[0]] = fields[1]
            if fields[0] not in self._arrived:  # otherwise a file repeats who was there when it began
                self._arrived.add(fields[0])
                yield self._arrival(fields)
        else:
            yield self._request(_KINDS[letter], fields)

    def _seconds(self, micros: int) -> float:
        return self._time + micros / 1e6

    def _arrival(self, fields: Line) -> RequestEvent:
        number, request_id, time, step, priority, num_prompt_tokens, max_tokens, hashes, *virtual = fields
        num_virtual_tokens, adapter = virtual or (0, None)
        return RequestEvent(
            RequestEventKind.ARRIVED,
            request_id,
            self._seconds(time),
            step,
            number=number,
            priority=priority,
            num_prompt_tokens=num_prompt_tokens,
            num_virtual_tokens=num_virtual_tokens,
            adapter=adapter,
            max_tokens=max_tokens,
            tokens=_load_hashes(hashes),
        )

    def _request(self, kind: RequestEventKind, fields: Line) -> RequestEvent:
        number, time, step, *own = fields
        more: dict[str, Any] = {}
        if kind is RequestEventKind.QUEUED:
            more = {"tokenized": None if own[0] is None else self._seconds(own[0])}
        elif kind is RequestEventKind.SCHEDULED:
            more = {"hit_tokens": own[0]}
        elif kind is RequestEventKind.CHUNK:
            more = dict(zip(("start", "length", "hit_tokens"), own, strict=True))
        elif kind is RequestEventKind.FINISHED:
            more = {"reason": own[0], "num_output_tokens": own[1], "tokens": _load_hashes(own[2])}
        return RequestEvent(kind, self._ids[number], self._seconds(time), step, number=number, **more)

    def _step(self, fields: Line) -> StepEvent:
        number, start, duration, predicted, budget, joined, left, chunks, preempted, finished, *rest = fields
        num_waiting, waiting_for, taken, freed, evicted, free, cached, used, evicted_hashes = rest
        for request in left:
            self._decodes.pop(request, None)
        self._decodes.update(dict.fromkeys(joined))
        spans = tuple(
            ChunkSpan(self._ids[request], begin, length, hit_tokens, bool(is_last), request)
            for request, begin, length, hit_tokens, is_last in chunks
        )
        return StepEvent(
            number=number,
            start=self._seconds(start),
            duration=duration / 1e6,
            token_budget=budget,
            num_tokens=len(self._decodes) + sum(span.length for span in spans),
            decode_ids=self._ids_of(self._decodes),
            chunks=spans,
            preempted_ids=self._ids_of(preempted),
            finished_ids=self._ids_of(finished),
            num_waiting=num_waiting,
            waiting_for=waiting_for,
            num_blocks_taken=taken,
            num_blocks_freed=freed,
            num_blocks_evicted=evicted,
            num_free_blocks=free,
            num_cached_blocks=cached,
            num_used_blocks=used,
            evicted_hashes=None if evicted_hashes is None else load_array(evicted_hashes),
            decode_numbers=tuple(self._decodes),
            preempted_numbers=tuple(preempted),
            finished_numbers=tuple(finished),
            predicted_duration=None if predicted is None else predicted / 1e6,
        )

    def _ids_of(self, numbers: Iterable[int]) -> tuple[str, ...]:
        return tuple(self._ids[number] for number in numbers)


def dump_array(hashes: NDArray[np.uint64]) -> str:
    return base64.b64encode(hashes.astype("<u8").tobytes()).decode()


def load_array(text: str) -> NDArray[np.uint64]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u8").astype(np.uint64)


def _dump_hashes(tokens: RequestTokens | None) -> str | None:
    return None if tokens is None else dump_array(tokens.block_hashes)


def _load_hashes(text: str | None) -> RequestTokens | None:
    """Without the token ids, which are not in a trace."""
    return None if text is None else RequestTokens((), (), load_array(text))
