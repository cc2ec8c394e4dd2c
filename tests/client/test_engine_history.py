"""The engine's last seconds."""

from __future__ import annotations

from cudaprefill.client.engine_history import EngineHistory


def test_rates_are_of_full_seconds() -> None:
    history = EngineHistory()
    for second in range(5):
        history.at(100 + second).output_tokens += 10
        history.at(100 + second).prompt_tokens += 100
    history.at(105.5).output_tokens += 1000  # not over yet
    assert history.rates(105.9) == (10, 100)


def test_the_queue_goes_on_through_seconds_without_news_and_tokens_do_not() -> None:
    history = EngineHistory()
    second = history.at(10.0)
    second.output_tokens, second.waiting, second.used_blocks = 5, 2, 7
    seconds = history.seconds(12.5, 4)
    assert [item.second for item in seconds] == [9, 10, 11, 12]
    assert [item.output_tokens for item in seconds] == [0, 5, 0, 0]
    assert [item.waiting for item in seconds] == [0, 2, 2, 2]
    assert [item.used_blocks for item in seconds] == [0, 7, 7, 7]


def test_what_is_older_than_the_span_is_forgotten_but_for_where_the_queue_stood() -> None:
    history = EngineHistory(span=3)
    history.at(0.0).waiting = 9
    history.at(1.0).waiting = 4
    history.at(10.0).output_tokens = 1
    assert [item.waiting for item in history.seconds(10.0, 3)] == [4, 4, 4]
    assert history.seconds(10.0, 60)[0].waiting == 0
