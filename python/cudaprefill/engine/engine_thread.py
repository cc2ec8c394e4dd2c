"""The engine in a thread of its own: nothing that its clients do blocks a step, and nothing in a step blocks them."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.errors import EngineDeadError

if TYPE_CHECKING:
    from cudaprefill.engine.engine import Engine
    from cudaprefill.engine.request import Request
    from cudaprefill.protocol.telemetry import EngineSettings

Result = TypeVar("Result")

# Takes what one step made for one client. Called in the engine's thread, so it must only hand over, never work.
Mailbox = Callable[[list[OutputDelta]], None]
Command = Callable[["Engine"], None]

_NOTHING = object()


class EngineThread:
    """Steps the engine while it has work; commands (submit, abort, anything else) run between steps, in order."""

    def __init__(
        self, engine: Engine, hand_over: Callable[[], None] = lambda: None, idle_work: Iterable[object] = ()
    ) -> None:
        """`hand_over`, called in the engine's thread, sends the events that were collected: see EventHub.

        idle_work: what can wait, a piece from one item to the next: done in the engine's thread while there is no
            request, so that a step never shares its cores with it. A request waits for the end of one piece.
        """
        self.error: BaseException | None = None
        self._engine = engine
        self._hand_over = hand_over
        self._idle_work: Iterator[object] = iter(idle_work)
        self._step_start: float | None = None
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._mailboxes: dict[str, Mailbox] = {}
        self._lock = threading.Lock()  # guards _closing against a command that is put in while the thread ends
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="cudaprefill-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread in the middle of a step when the interpreter goes aborts the process

    def submit(self, request: Request, mailbox: Mailbox) -> None:
        """Deltas, or one delta with an error (ValueError, QueueFullError), arrive at `mailbox`."""

        def admit(engine: Engine) -> None:
            try:
                engine.submit(request)
            except Exception as error:
                _delivered(mailbox, [OutputDelta.failed(request.request_id, error)])
            else:
                self._mailboxes[request.request_id] = mailbox

        self._put(admit)

    def abort(self, request_id: str) -> Future[int]:
        """Ends a request wherever it is; its last deltas say "abort".

        The result is how many requests that were: none if the id is unknown or finished, or the engine has stopped.
        """
        return self._end_early(lambda engine: engine.abort(request_id))

    def abort_all(self) -> Future[int]:
        """Ends all requests; otherwise as `abort`."""
        return self._end_early(lambda engine: engine.abort_all())

    def call(self, function: Callable[[Engine], Result]) -> Future[Result]:
        """Runs `function(engine)` between two steps. Raises EngineDeadError if the engine has stopped."""
        future: Future[Result] = Future()

        def run(engine: Engine) -> None:
            if not future.set_running_or_notify_cancel():
                return
            self._hand_over()  # what happened before, so that it is known by then
            try:
                result = function(engine)
            except Exception as error:
                future.set_exception(error)
            else:
                self._hand_over()
                future.set_result(result)

        self._put(run)
        return future

    @property
    def settings(self) -> EngineSettings:
        """As of now; a change may be on its way."""
        return self._engine.settings

    def stuck_for(self) -> float:
        """Seconds that the current step has lasted; 0.0 between steps."""
        start = self._step_start
        return 0.0 if start is None else time.monotonic() - start

    def close(self) -> None:
        """Ends every request with an error, then the thread; returns when it has ended. Harmless when repeated."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._commands.put(_stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)

    def _end_early(self, end: Callable[[Engine], list[OutputDelta]]) -> Future[int]:
        future: Future[int] = Future()

        def run(engine: Engine) -> None:
            deltas = []
            with contextlib.suppress(EngineDeadError):
                deltas = end(engine)
                self._deliver(deltas)
            if future.set_running_or_notify_cancel():
                future.set_result(sum(delta.request_finished for delta in deltas))

        with self._lock:
            if self._closing:
                future.set_result(0)
            else:
                self._commands.put(run)
        return future

    def _put(self, command: Command) -> None:
        with self._lock:
            if self._closing:
                raise self._reason()
            if not self._thread.is_alive():
                raise EngineDeadError("the engine's thread is not in this process: it does not come along in a fork")
            self._commands.put(command)

    def _reason(self) -> EngineDeadError:
        reason = EngineDeadError(f"the engine has stopped: {self.error!r}" if self.error else "the engine was closed")
        reason.__cause__ = self.error
        return reason

    def _run(self) -> None:
        try:
            while True:
                self._run_commands()
                if self._engine.has_work():
                    self._step_start = time.monotonic()
                    deltas = self._engine.step()
                    self._step_start = None
                    self._deliver(deltas)
        except _Stop:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self._end()

    def _run_commands(self) -> None:
        """Runs all that wait; with no work to do, does a piece of what could wait, or waits for one."""
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                self._hand_over()
                if self._engine.has_work():
                    return
                if next(self._idle_work, _NOTHING) is not _NOTHING:
                    continue
                command = self._commands.get()
            command(self._engine)

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        self._hand_over()
        by_mailbox: dict[Mailbox, list[OutputDelta]] = {}
        for delta in deltas:
            by_mailbox.setdefault(self._mailboxes[delta.request_id], []).append(delta)
            if delta.request_finished:
                del self._mailboxes[delta.request_id]
        for mailbox, own in by_mailbox.items():
            if not _delivered(mailbox, own):
                self._forget({delta.request_id for delta in own})

    def _forget(self, request_ids: set[str]) -> None:
        """Ends requests whose client can no longer be reached."""
        for request_id in request_ids & self._mailboxes.keys():
            self._engine.abort(request_id)
            del self._mailboxes[request_id]

    def _end(self) -> None:
        with self._lock:
            self._closing = True
        self._step_start = None
        with contextlib.suppress(Exception):  # of an engine that failed, nothing is certain
            self._engine.end_all()
        self._hand_over()
        reason = self._reason()
        for request_id, mailbox in self._mailboxes.items():
            _delivered(mailbox, [OutputDelta.failed(request_id, reason)])
        self._mailboxes.clear()
        # Commands that came in before _closing was set still get an answer.
        while not self._commands.empty():
            command = self._commands.get()
            with contextlib.suppress(EngineDeadError, _Stop):
                command(_DeadEngine(reason))  # type: ignore[arg-type]
        # Who still has this object, or the error with its frames, must not keep the model: the next engine needs its
        # memory.
        self._engine = _DeadEngine(reason)  # type: ignore[assignment]
        self._idle_work = iter(())
        if self.error is not None:
            traceback.clear_frames(self.error.__traceback__)


def _delivered(mailbox: Mailbox, deltas: list[OutputDelta]) -> bool:
    """A client's mailbox may be gone, with its event loop say; that must not reach the engine."""
    try:
        mailbox(deltas)
    except Exception:
        return False
    return True


class _Stop(Exception):  # noqa: N818  (a signal, not an error)
    pass


def _stop(engine: Engine) -> None:
    raise _Stop


class _DeadEngine:
    """Stands in for the engine after its end: whatever is asked of it raises why it ended."""

    def __init__(self, reason: EngineDeadError) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> None:
        raise self._reason
