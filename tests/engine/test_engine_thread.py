"""The engine in its own thread, seen from its clients."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from cudaprefill.engine.engine import Engine
from cudaprefill.engine.engine_thread import EngineThread
from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.request import Request
from cudaprefill.engine.request_stream import RequestStream
from cudaprefill.errors import EngineDeadError, QueueFullError
from cudaprefill.sampling_params import SamplingParams
from tests.engine.harness import GREEDY, FakeRunner, expected, make_engine, make_request, pool_is_idle, text_of

PROMPT = [7, 3, 9, 4, 11, 5]
ENDLESS = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


@pytest.fixture
def start() -> Iterator[Callable[[Engine], EngineThread]]:
    threads: list[EngineThread] = []

    def start(engine: Engine) -> EngineThread:
        threads.append(EngineThread(engine))
        return threads[-1]

    yield start
    for thread in threads:
        thread.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "cudaprefill-engine"]


def submit(thread: EngineThread, request: Request) -> RequestStream:
    stream = RequestStream(request, None, lambda: thread.abort(request.request_id))
    thread.submit(request, stream.deliver)
    return stream


def test_clients_get_their_own_tokens(start: Callable[[Engine], EngineThread]) -> None:
    engine = make_engine()
    thread = start(engine)
    streams = {token: submit(thread, make_request(f"r{token}", [token] * 20)) for token in range(1, 9)}
    for token, stream in streams.items():
        output = stream.wait().outputs[0]
        assert output.token_ids == expected([token] * 20)
        assert output.text == text_of(output.token_ids)
    assert thread.call(lambda engine: len(thread._mailboxes)).result() == 0
    assert thread.call(pool_is_idle).result()


def test_a_refused_request_raises_for_its_client_alone(start: Callable[[Engine], EngineThread]) -> None:
    thread = start(make_engine(num_blocks=4))
    refused, served = submit(thread, make_request("big", [1] * 100)), submit(thread, make_request("r", PROMPT))
    with pytest.raises(ValueError, match="100 tokens"):
        refused.wait()
    assert served.wait().outputs[0].token_ids == expected(PROMPT)


def test_a_full_queue_refuses_and_serves_again_later(start: Callable[[Engine], EngineThread]) -> None:
    thread = start(make_engine(max_num_seqs=1, max_num_queued_reqs=1))
    runs = submit(thread, make_request("runs", PROMPT, ENDLESS))
    next(iter(runs))
    waits = submit(thread, make_request("waits", PROMPT))
    with pytest.raises(QueueFullError, match="max_num_queued_reqs is 1"):
        submit(thread, make_request("refused", PROMPT)).wait()
    runs.abort()
    assert waits.wait().outputs[0].token_ids == expected(PROMPT)


def test_an_abort_ends_the_stream_with_what_was_sent(start: Callable[[Engine], EngineThread]) -> None:
    thread = start(make_engine())
    stream = submit(thread, make_request("r", PROMPT, ENDLESS))
    next(stream)
    stream.abort()
    output = stream.wait().outputs[0]
    assert output.finish_reason == "abort"
    assert output.token_ids == expected(PROMPT, ENDLESS)[: len(output.token_ids)]
    stream.abort()
    assert thread.call(pool_is_idle).result()


def test_a_step_that_fails_ends_every_request_with_the_reason(start: Callable[[Engine], EngineThread]) -> None:
    engine = make_engine()
    thread = start(engine)
    streams = [submit(thread, make_request(f"r{number}", PROMPT, ENDLESS)) for number in range(3)]
    for stream in streams:
        next(stream)
    assert isinstance(engine.model_runner, FakeRunner)
    engine.model_runner.fails = OSError("the device fell off the bus")
    for stream in streams:
        with pytest.raises(EngineDeadError, match="fell off the bus"):
            stream.wait()
    assert isinstance(thread.error, OSError)
    with pytest.raises(EngineDeadError, match="fell off the bus") as caught:
        submit(thread, make_request("late", PROMPT))
    assert caught.value.__cause__ is thread.error  # where it happened is not lost
    thread.abort("r0")


@pytest.mark.parametrize("part", ["schedule", "build", "commit", "end_step"])
def test_a_fault_of_the_scheduler_ends_every_request_with_the_reason(
    part: str, start: Callable[[Engine], EngineThread]
) -> None:
    engine = make_engine(max_num_seqs=2)
    thread = start(engine)
    streams = [submit(thread, make_request(f"r{number}", PROMPT, ENDLESS)) for number in range(4)]
    next(streams[0])

    def fails(*args: object, **options: object) -> None:
        raise RuntimeError("the books do not agree")

    thread.call(lambda engine: setattr(engine.scheduler, part, fails))
    for stream in streams:
        with pytest.raises(EngineDeadError, match="the books do not agree"):
            stream.wait()
    assert "the books do not agree" in str(thread.error)
    thread.close()
    assert not engine.has_work()


def test_close_ends_running_requests_and_the_thread(start: Callable[[Engine], EngineThread]) -> None:
    thread = start(make_engine())
    stream = submit(thread, make_request("r", PROMPT, ENDLESS))
    next(stream)
    thread.close()
    with pytest.raises(EngineDeadError, match="closed"):
        stream.wait()
    with pytest.raises(EngineDeadError):
        thread.call(lambda engine: None)
    thread.close()


def test_a_command_that_fails_harms_nobody(start: Callable[[Engine], EngineThread]) -> None:
    thread = start(make_engine())

    def wrong(engine: Engine) -> None:
        raise KeyError("a bug of the caller")

    with pytest.raises(KeyError):
        thread.call(wrong).result()
    assert submit(thread, make_request("r", PROMPT, GREEDY)).wait().finished


def test_one_delivery_a_step_and_mailbox(start: Callable[[Engine], EngineThread]) -> None:
    thread = start(make_engine())
    mail: queue.SimpleQueue[list[OutputDelta]] = queue.SimpleQueue()
    gate = threading.Event()
    thread.call(lambda engine: gate.wait())
    for number in range(4):
        thread.submit(make_request(f"r{number}", PROMPT), mail.put)
    gate.set()
    deliveries = [mail.get() for _ in range(8)]
    assert [len(deltas) for deltas in deliveries] == [4] * 8
    assert deliveries[-1][0].request_finished


def test_a_mailbox_that_fails_costs_its_own_requests_alone(start: Callable[[Engine], EngineThread]) -> None:
    thread = start(make_engine())

    def full(deltas: list[OutputDelta]) -> None:
        raise OSError("no space left in this mailbox")

    thread.submit(make_request("lost", PROMPT, ENDLESS), full)
    assert submit(thread, make_request("r", PROMPT)).wait().outputs[0].token_ids == expected(PROMPT)
    assert thread.call(lambda engine: engine.has_work()).result() is False
    assert thread.call(pool_is_idle).result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_has_no_engine_and_says_so_instead_of_waiting_for_ever(start: Callable[[Engine], EngineThread]) -> None:
    thread = start(make_engine())
    child = os.fork()
    if child == 0:
        try:
            submit(thread, make_request("r", PROMPT))
        except EngineDeadError as error:
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert submit(thread, make_request("r", PROMPT)).wait().finished


def test_work_that_can_wait_is_done_a_piece_at_a_time_while_nobody_asks_for_anything() -> None:
    """A request that comes during a piece is served before the next one begins."""
    in_a_piece, go_on = threading.Event(), threading.Event()
    events: list[str] = []
    engine = make_engine()
    engine.on_step = lambda step: events.append("step")

    def pieces() -> Iterator[None]:
        events.append("first piece")
        in_a_piece.set()
        go_on.wait()
        yield
        events.append("second piece")
        yield

    thread = EngineThread(engine, idle_work=pieces())
    try:
        in_a_piece.wait()
        stream = submit(thread, make_request("r", PROMPT))
        go_on.set()
        assert stream.wait().outputs[0].token_ids == expected(PROMPT)
        thread.call(lambda engine: None).result()
    finally:
        thread.close()
    assert events[0] == "first piece"
    assert events.count("second piece") <= 1
    assert set(events[1 : events.index("second piece")] if "second piece" in events else events[1:]) == {"step"}


def test_work_that_can_wait_is_done_to_its_end() -> None:
    done = threading.Event()

    def pieces() -> Iterator[None]:
        yield from [None] * 5
        done.set()

    thread = EngineThread(make_engine(), idle_work=pieces())
    try:
        done.wait()
        assert submit(thread, make_request("r", PROMPT)).wait().outputs[0].token_ids == expected(PROMPT)
    finally:
        thread.close()


def test_close_waits_for_one_piece_of_work_that_can_wait_and_lets_go_of_the_rest() -> None:
    in_a_piece, go_on, let_go = threading.Event(), threading.Event(), threading.Event()
    pieces_done: list[int] = []

    def pieces() -> Iterator[None]:
        in_a_piece.set()
        go_on.wait()
        try:
            for number in range(1000):
                pieces_done.append(number)
                yield
        finally:
            let_go.set()

    thread = EngineThread(make_engine(), idle_work=pieces())
    in_a_piece.wait()
    closing = threading.Thread(target=thread.close)
    closing.start()
    while not thread._closing:  # set under the lock under which the end is put in line
        time.sleep(0.001)
    with thread._lock:
        go_on.set()
    closing.join()
    assert pieces_done == [0]
    assert let_go.is_set()
    assert thread.error is None


def test_a_fault_in_work_that_can_wait_ends_the_engine_and_who_waits_behind_it_with_the_reason() -> None:
    in_a_piece, go_on = threading.Event(), threading.Event()

    def pieces() -> Iterator[None]:
        yield
        in_a_piece.set()
        go_on.wait()
        raise OSError("no page is left")

    thread = EngineThread(make_engine(), idle_work=pieces())
    try:
        in_a_piece.wait()
        stream = submit(thread, make_request("r", PROMPT, ENDLESS))
        go_on.set()
        with pytest.raises(EngineDeadError, match="no page is left"):
            stream.wait()
    finally:
        thread.close()
    assert isinstance(thread.error, OSError)
