"""Accounts of requests on a clock that stands still unless told: every part and every sum is exact."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill.engine.step_cost import StepWork
from cudaprefill.observe.explain import Account, ExplainLog, explain
from cudaprefill.protocol.account import Difference, Part, PrefixAccount, Work
from cudaprefill.protocol.account_text import account_text
from tests.observe.fake_run import FakeRun
from tests.scheduler.driver import Virtual


def prompt(length: int, first: int = 2) -> list[int]:
    return [first + position % 40 for position in range(length)]


def by_tokens(work: StepWork) -> float:
    """A quarter of a second, and 1/64 a token: sums stay exact."""
    return 0.25 + (work.decodes + work.chunk_tokens) / 64


def kinds(account: Account) -> list[tuple[str, float]]:
    return [(part.kind, part.duration) for part in account.parts]


def assert_complete(account: Account) -> None:
    """The parts follow each other from the arrival on, and add up."""
    end = 0.0
    for part in account.parts:
        assert part.start == end
        assert part.duration > 0
        end += part.duration
    assert end == account.total


def test_a_lone_request_is_tokenized_taken_over_and_computed() -> None:
    run = FakeRun(by_tokens, delivering=0.125, gap=0.5, max_num_batched_tokens=64)
    run.now = 10.5
    run.submit(prompt(96), received=10.0, tokenized=10.25, request_id="lone")
    run.now = 11.0
    run.run()
    account = explain(run.history(), "lone")
    assert kinds(account) == [
        ("tokenizing", 0.25),
        ("handing over", 0.25),
        ("queued", 0.5),
        ("chunk", 1.375),
        ("between steps", 0.5),
        ("chunk", 0.75),
        ("delivering", 0.125),
    ]
    assert account.ttft == 3.625
    assert_complete(account)
    first, second = (part for part in account.parts if part.kind == "chunk")
    assert (first.first_token, first.num_tokens, first.others_seconds) == (0, 64, 0.0)
    assert (second.first_token, second.num_tokens, second.first_step) == (64, 32, 2)
    assert (account.state, account.finish_reason, account.output_tokens) == ("finished", "length", 1)


def test_a_request_that_comes_during_a_step_waits_for_its_end() -> None:
    run = FakeRun(by_tokens, max_num_batched_tokens=64)
    run.submit(prompt(64), request_id="first")
    run.step()
    run.submit(prompt(16, first=9), received=0.5, tokenized=0.75, request_id="second")
    run.run()
    account = explain(run.history(), "second")
    assert kinds(account) == [("tokenizing", 0.25), ("handing over", 0.5), ("chunk", 0.5)]
    handing_over = account.parts[1]
    assert (handing_over.first_step, handing_over.others) == (1, [Work(id="first", tokens=64)])


def test_queueing_says_what_the_head_lacked_and_who_stands_before() -> None:
    run = FakeRun(max_num_seqs=1, max_num_batched_tokens=64)
    run.submit(prompt(64), max_tokens=3, request_id="runs")
    run.submit(prompt(32, first=5), request_id="head")
    run.submit(prompt(32, first=6), request_id="behind")
    run.run()
    assert kinds(explain(run.history(), "head")) == [("queued", 1.0), ("queued", 2.0), ("chunk", 1.0)]
    account = explain(run.history(), "behind")
    assert [(part.first_step, part.last_step, part.waiting_for, part.behind) for part in account.parts[:3]] == [
        (1, 1, "budget", ["head"]),
        (2, 3, "seats: needs 1, 0 free", ["head"]),
        (4, 4, "seats: needs 1, 0 free", []),
    ]
    assert account.parts[0].others == [Work(id="runs", tokens=64)]
    assert [part.num_decodes for part in account.parts] == [0, 2, 0, 0]
    assert account.ttft == 5.0
    assert_complete(account)


def test_a_prompt_without_blocks_waits_for_them() -> None:
    run = FakeRun(num_blocks=8, max_num_batched_tokens=128)
    run.submit(prompt(80), max_tokens=3, request_id="runs")
    run.submit(prompt(80, first=5), request_id="waits")
    run.run()
    queued = explain(run.history(), "waits").parts[0]
    assert (queued.kind, queued.duration) == ("queued", 3.0)
    assert queued.waiting_for.startswith("blocks: needs 5, ")


def test_a_chunk_says_how_much_of_its_step_was_others_work() -> None:
    run = FakeRun(by_tokens, max_num_batched_tokens=256)
    run.submit(prompt(16), max_tokens=9, request_id="decodes")
    run.step()
    run.submit(prompt(300, first=5), request_id="long")
    run.submit(prompt(16, first=6), request_id="short")
    run.run()
    account = explain(run.history(), "long", cost=by_tokens)
    first, second = (part for part in account.parts if part.kind == "chunk")
    assert (first.num_tokens, first.num_decodes, first.others) == (239, 1, [Work(id="short", tokens=16)])
    assert first.others_seconds == 17 / 64  # a step with its own chunk alone had been so much shorter
    assert (second.num_tokens, second.num_decodes, second.others) == (61, 1, [])
    without_model = explain(run.history(), "long").parts[0]
    assert without_model.others_seconds == first.duration * 17 / 256
    assert_complete(account)


def test_a_preempted_prefill_starts_anew_and_all_of_it_counts() -> None:
    run = FakeRun(num_blocks=8, max_num_batched_tokens=3, max_num_seqs=2)
    run.submit(prompt(16), max_tokens=60, request_id="grows")
    for _ in range(6):
        run.step()
    run.submit(prompt(80, first=5), request_id="loses")
    run.run()
    account = explain(run.history(), "loses")
    assert account.preemptions == 1
    stations = [kind for kind, _ in itertools.groupby(part.kind for part in account.parts if part.kind != "left out")]
    assert stations == ["chunk", "preempted", "chunk"]
    lost = next(part for part in account.parts if part.kind == "preempted")
    assert lost.waiting_for.startswith("blocks: needs")
    assert_complete(account)


def test_a_decode_that_was_preempted_has_its_first_token_already() -> None:
    run = FakeRun(num_blocks=5, max_num_batched_tokens=64, max_num_seqs=2)
    run.submit(prompt(30), max_tokens=30, request_id="old")
    run.submit(prompt(14, first=5), max_tokens=30, request_id="new")
    run.run()
    account = explain(run.history(), "new", itl_limit=1.5)
    assert account.preemptions == 1
    assert account.ttft == 1.0
    (late,) = account.late_tokens
    assert late.preempted
    assert late.preventions == []


def test_what_is_cached_and_what_differs_from_the_nearest_prompt() -> None:
    run = FakeRun(max_num_batched_tokens=256)
    other = prompt(100)
    run.submit(other, request_id="known")
    run.run()
    run.submit([*other[:70], 49, *other[71:]], request_id="asks")
    run.run()
    prefix = explain(run.history(), "asks").prefix
    assert (prefix.hit_tokens, prefix.shareable_tokens, prefix.reason, prefix.missed_block) == (64, 96, "different", 4)
    assert prefix.difference == Difference(id="known", position=70, own_token=49, other_token=other[70])


def test_an_answer_that_comes_back_changed_is_found_out() -> None:
    run = FakeRun(max_num_batched_tokens=256)
    question = prompt(30)
    turn = run.submit(question, max_tokens=30, request_id="turn 1")
    run.run()
    answer = list(turn.output_token_ids)
    answer[10] = 49 if answer[10] != 49 else 48
    run.submit([*question, *answer, 7, 7, 7], request_id="turn 2")
    run.run()
    prefix = explain(run.history(), "turn 2").prefix
    assert (prefix.hit_tokens, prefix.reason, prefix.difference.position) == (32, "different", 40)
    assert prefix.difference.id == "turn 1"


def test_a_prefix_that_gave_way_names_the_step_and_who_took_the_blocks() -> None:
    run = FakeRun(num_blocks=6, max_num_batched_tokens=256)
    run.submit(prompt(64), request_id="first")
    run.run()
    run.submit(prompt(80, first=5), request_id="taker")
    run.run()
    run.submit(prompt(64), request_id="again")
    run.run()
    prefix = explain(run.history(), "again").prefix
    assert (prefix.reason, prefix.known_from, prefix.evicted_in_step) == ("evicted", "first", 2)
    assert prefix.evicted_by == [Work(id="taker", tokens=80)]


def test_other_reasons_for_a_miss() -> None:
    run = FakeRun(max_num_batched_tokens=96)
    run.submit(prompt(160), request_id="making")
    run.step()
    run.submit(prompt(160), request_id="too early")
    run.run()
    run.submit(prompt(64), request_id="complete")
    run.submit(prompt(64), request_id="salted", extra_keys=(("cache_salt", b"x"),))
    run.run()
    run.driver.scheduler.reset_prefix_cache()
    run.submit(prompt(64), request_id="after a reset")
    run.run()
    history = run.history()

    def reason(request_id: str) -> Any:
        return explain(history, request_id).prefix.reason

    assert reason("making") == "different"
    assert reason("too early") == "computing"
    assert reason("complete") == "complete"
    assert reason("salted") == "salt"
    assert reason("after a reset") == "forgotten"
    off = FakeRun(enable_prefix_caching=False)
    off.submit(prompt(64), request_id="off")
    off.run()
    assert explain(off.history(), "off").prefix.reason == "off"


def test_what_adapters_share_and_what_they_do_not() -> None:
    run = FakeRun()
    tuned, other = Virtual(embedded=64), Virtual(embedded=64, content=1)
    names = {tuned: "tuned", other: "other"}

    def ask(request_id: str, text: list[int], virtual: Virtual | None = None) -> PrefixAccount:
        run.submit(text, request_id=request_id, virtual=virtual, adapter=names.get(virtual))
        run.run()
        found = explain(run.history(), request_id).prefix
        assert found is not None
        return found

    assert ask("first", prompt(40), tuned).reason == "different"
    again = ask("again", prompt(40), tuned)
    assert (again.reason, again.hit_tokens, again.virtual_hit_tokens) == ("complete", 96, 64)
    text = ask("another text", prompt(40, first=20), tuned)
    assert (text.reason, text.hit_tokens, text.virtual_hit_tokens) == ("different", 64, 64)
    assert text.difference == Difference(id="again", position=64, own_token=20, other_token=2)
    for request_id, virtual in (("another adapter", other), ("none", None)):
        apart = ask(request_id, prompt(40), virtual)
        assert (apart.reason, apart.known_from, apart.hit_tokens) == ("adapter", apart.known_from, 0)
    account = explain(run.history(), "another text")
    words = account_text(account)
    assert "104 prompt tokens, 64 of them virtual · adapter tuned" in words
    assert "64 of 96 tokens that can be shared, 64 of them virtual tokens of the adapter tuned; from token 64" in words


def test_a_new_version_of_an_adapter_is_another_adapter() -> None:
    run = FakeRun()
    for request_id, content in (("old", 0), ("new", 1)):
        run.submit(
            prompt(40), request_id=request_id, virtual=Virtual(embedded=32, content=content), adapter="same name"
        )
        run.run()
    found = explain(run.history(), "new").prefix
    assert found is not None
    assert (found.hit_tokens, found.reason, found.known_from) == (0, "adapter", "old")
    assert "old has the same text, but behind other virtual tokens" in account_text(explain(run.history(), "new"))


def test_virtual_tokens_are_not_looked_up_in_the_vocabulary() -> None:
    run = FakeRun()
    run.submit(prompt(40), request_id="text")
    run.run()
    run.submit(prompt(40, first=20), request_id="embedded", virtual=Virtual(embedded=20))
    run.run()
    assert "no known request has block 0" in account_text(explain(run.history(), "embedded"), lambda token: "ab"[token])


def test_a_late_token_names_the_chunk_and_what_would_have_prevented_it() -> None:
    run = FakeRun(by_tokens, max_num_batched_tokens=64)
    run.submit(prompt(16), max_tokens=6, request_id="chat")
    run.step()
    run.step()
    run.submit(prompt(40, first=5), request_id="long")
    run.run()
    account = explain(run.history(), "chat", itl_limit=0.5, cost=by_tokens)
    assert account.num_late_tokens == 1
    (late,) = account.late_tokens
    assert (late.token, late.gap, late.steps, late.slowest_step) == (2, 0.25 + 41 / 64, [3], 3)
    assert late.others == [Work(id="long", tokens=40)]
    budget, target = late.preventions
    assert (budget.setting, budget.value, budget.predicted) == ("--max-num-batched-tokens", 16, 0.5)
    assert (target.setting, target.value) == ("--itl-target-ms", 500)
    # The budget does what is said of it, and one more token would not have.
    for value, gap in ((16, 0.5), (17, 0.25 + 17 / 64)):
        again = FakeRun(by_tokens, max_num_batched_tokens=value, max_num_seqs=4)
        again.submit(prompt(16), max_tokens=6, request_id="chat")
        again.step()
        again.step()
        again.submit(prompt(40, first=5), request_id="long")
        again.run()
        gaps = [step.duration for step in again.history().steps]
        assert max(gaps[1:]) == gap


def test_when_decodes_alone_are_too_slow_no_budget_is_proposed() -> None:
    run = FakeRun(by_tokens, max_num_batched_tokens=64)
    for number in range(16):
        run.submit(prompt(3, first=number), max_tokens=3, request_id=f"chat {number}")
    run.run()
    (late, *_) = explain(run.history(), "chat 0", itl_limit=0.375, cost=by_tokens).late_tokens
    (prevention,) = late.preventions
    assert (prevention.setting, prevention.value, prevention.predicted) == ("--max-num-seqs", 8, 0.375)
    (late, *_) = explain(run.history(), "chat 0", itl_limit=0.1, cost=by_tokens).late_tokens
    assert [prevention.setting for prevention in late.preventions] == [""]


def test_a_request_that_still_waits_has_an_account_up_to_now() -> None:
    run = FakeRun(max_num_seqs=1)
    run.submit(prompt(16), max_tokens=50, request_id="runs")
    run.submit(prompt(16, first=5), request_id="waits")
    run.step()
    run.step()
    account = explain(run.history(), "waits", now=run.now)
    assert (account.state, account.ttft, account.total) == ("waiting", None, 2.0)
    assert explain(run.history(), "runs", now=run.now).state == "decoding"


def test_an_unknown_request_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="nobody"):
        explain(FakeRun().history(), "nobody")


def test_one_of_several_outputs_shares_the_account_of_the_first() -> None:
    run = FakeRun(by_tokens, max_num_batched_tokens=64)
    lead = run.driver.request(prompt(96), request_id="all", max_tokens=2, n=2, ignore_eos=True)
    lead.siblings[0].request_id = "all#1"
    run.driver._salts["all#1"] = 1
    run.driver.add(lead)
    run.run()
    history = run.history()
    assert kinds(explain(history, "all#1")) == kinds(explain(history, "all"))
    assert explain(history, "all#1").prefix == explain(history, "all").prefix


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_parts_of_every_request_of_any_run_add_up_to_its_ttft(data: st.DataObject) -> None:
    draw = data.draw
    run = FakeRun(
        by_tokens,
        delivering=draw(st.sampled_from([0.0, 0.125])),
        gap=draw(st.sampled_from([0.0, 0.0625])),
        num_blocks=draw(st.integers(8, 24)),
        max_num_batched_tokens=draw(st.sampled_from([16, 48, 128])),
        max_num_seqs=draw(st.integers(1, 6)),
        enable_prefix_caching=draw(st.booleans()),
    )
    for number in range(draw(st.integers(1, 8))):
        run.submit(
            prompt(draw(st.integers(1, 100)), first=draw(st.integers(2, 4))),
            received=run.now - draw(st.sampled_from([0.0, 0.25, 1.0])),
            request_id=f"request {number}",
            max_tokens=draw(st.integers(1, 28)),
            priority=draw(st.integers(0, 1)),
        )
        for _ in range(draw(st.integers(0, 3))):
            if run.driver.scheduler.has_work():
                run.step()
    run.run()
    history = run.history()
    for request_id in run.driver.requests:
        account = explain(history, request_id, itl_limit=0.5, cost=by_tokens)
        assert_complete(account)
        delivering = sum(part.duration for part in account.parts if part.kind == "delivering")
        assert account.ttft == account.total - delivering
        assert not account.incomplete
        computed = sum(part.num_tokens for part in account.parts if part.kind == "chunk")
        if account.preemptions == 0:
            assert computed == account.prompt_tokens - account.prefix.hit_tokens
        json.dumps(account.as_dict())


def test_the_log_keeps_the_last_requests_and_what_still_runs() -> None:
    run = FakeRun()
    log = ExplainLog(block_size=16, prefix_caching=True, max_requests=2)
    run.submit(prompt(16), max_tokens=50, request_id="long")
    for number in range(4):
        run.submit(prompt(16, first=number), request_id=f"short {number}")
        run.step()
    log(run.events)
    history = log.history()
    assert sorted(request.arrived.request_id for request in history.requests.values()) == ["long", "short 2", "short 3"]
    run.events.clear()
    run.run()
    log(run.events)
    assert math.isclose(explain(log.history(), "long").total, 1.0)
    assert explain(history, "long").state == "decoding"  # what was taken does not change


def test_the_log_is_bounded_in_tokens_and_steps() -> None:
    run = FakeRun()
    log = ExplainLog(block_size=16, prefix_caching=True, max_tokens=100, max_steps=3)
    for number in range(5):
        run.submit(prompt(40), request_id=f"request {number}")
        run.step()
    log(run.events)
    history = log.history()
    assert sorted(history.requests) == [4, 5]
    assert [step.number for step in history.steps] == [3, 4, 5]


def test_an_account_whose_steps_are_forgotten_says_so() -> None:
    run = FakeRun(max_num_batched_tokens=16)
    log = ExplainLog(block_size=16, prefix_caching=True, max_steps=1)
    run.submit(prompt(64), request_id="old", max_tokens=1)
    run.run()
    log(run.events)
    account = explain(log.history(), "old")
    assert account.incomplete
    assert_complete(account)


def test_sending_is_the_last_part_when_the_server_tells_of_it() -> None:
    run = FakeRun()
    log = ExplainLog(block_size=16, prefix_caching=True)
    run.submit(prompt(16), request_id="sent")
    run.run()
    log(run.events)
    log.record_sent("sent", 1.25)
    log.record_sent("sent", 9.0)  # later writes are of later tokens
    account = explain(log.history(), "sent")
    assert account.parts[-1] == Part(kind="sending", start=1.0, duration=0.25)
    assert (account.ttft, account.total) == (1.0, 1.25)
