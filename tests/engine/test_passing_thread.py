"""Work outside the engine's thread leaves no thread behind."""

from __future__ import annotations

import threading

import pytest

from cudaprefill.engine.passing_thread import run_in_passing_thread


def test_the_result_comes_from_another_thread_that_has_ended() -> None:
    before = threading.active_count()
    worker = run_in_passing_thread(threading.current_thread)
    worker.join()
    assert worker is not threading.current_thread()
    assert threading.active_count() == before


def test_an_error_is_raised_for_the_caller() -> None:
    def wrong() -> None:
        raise ValueError("max_model_len is 9000")

    with pytest.raises(ValueError, match="max_model_len is 9000"):
        run_in_passing_thread(wrong)
