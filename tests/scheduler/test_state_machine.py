"""Random histories over tiny pools: every invariant after every step, and outputs as if each request had been alone."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cudaprefill.engine.request import Request, RequestState
from cudaprefill.engine.schedule import Schedule
from tests.scheduler.driver import Driver, Virtual

# Few tokens and few lengths, so that prompts share prefixes and meet outputs of others; token 1 is EOS.
VOCAB_SIZE = 4
PROMPTS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=14) | st.builds(
    lambda length: [2] * length, st.integers(1, 20)
)
EXTRA_KEYS = st.sampled_from([(), (), (), (("cache_salt", b"x"),), (("adapter", b"x"),)])
VIRTUAL = st.none() | st.builds(Virtual, given=st.integers(0, 6), embedded=st.integers(0, 6), content=st.integers(0, 1))


class SchedulerMachine(RuleBasedStateMachine):
    driver: Driver
    in_flight: Schedule | None = None

    @initialize(
        num_blocks=st.integers(2, 16),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 6),
        spare_budget=st.integers(0, 20),
        max_model_len=st.integers(8, 40),
        threshold=st.sampled_from([0, 0, 1, 3]),
        caching=st.sampled_from([True, True, False]),
        constant_hash=st.sampled_from([False, False, True]),
        itl_target_ms=st.sampled_from([None, None, 1.0, 20.0]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        spare_budget: int,
        max_model_len: int,
        threshold: int,
        caching: bool,
        constant_hash: bool,
        itl_target_ms: float | None,
    ) -> None:
        self.driver = Driver(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_budget,
            max_model_len=max_model_len,
            long_prefill_token_threshold=threshold,
            enable_prefix_caching=caching,
            constant_hash=constant_hash,
            vocab_size=VOCAB_SIZE,
            itl_target_ms=itl_target_ms,
        )

    @rule(
        prompt=PROMPTS,
        n=st.sampled_from([1, 1, 1, 2, 4]),
        salt=st.integers(0, 3),
        extra_keys=EXTRA_KEYS,
        virtual=VIRTUAL,
        priority=st.sampled_from([0, 0, 0, -1, 1]),
        max_tokens=st.integers(1, 12),
        min_tokens=st.integers(0, 4),
        stops=st.sampled_from([[], [], [3]]),
        ignore_eos=st.booleans(),
    )
    def submit(self, prompt: list[int], max_tokens: int, min_tokens: int, stops: list[int], **options: Any) -> None:
        request = self.driver.request(
            prompt,
            arrival_time=float(len(self.driver.requests)),
            max_tokens=max_tokens,
            min_tokens=min(min_tokens, max_tokens),
            stop_token_ids=stops,
            **options,
        )
        config = self.driver.config
        fits = (
            request.prompt_length < config.max_model_len
            and request.prompt_length <= config.num_slots
            and 1 + len(request.siblings) <= config.max_num_seqs
        )
        try:
            self.driver.add(request)
            assert fits
        except ValueError:
            assert not fits

    # A rule that does not apply at the moment does nothing: preconditions would make Hypothesis search for others.

    @rule()
    def step(self) -> None:
        self.begin_step()
        self.end_step()

    @rule()
    def begin_step(self) -> None:
        if self.in_flight is not None:
            return
        decoding = {r for r in self.driver.requests.values() if r.state is RequestState.DECODING}
        self.in_flight = self.driver.scheduler.schedule()
        if self.in_flight is None:
            assert not self.driver.scheduler.has_work()
            return
        assert self.in_flight.num_tokens > 0
        # Every running decode gets its token, unless its blocks were needed by an older or more urgent one.
        assert decoding - set(self.in_flight.preempted) == set(self.in_flight.decodes.requests)

    @rule()
    def end_step(self) -> None:
        if self.in_flight is not None:
            self.driver.clock += 0.002 + 0.001 * self.in_flight.num_tokens
            self.driver.finish_step(self.in_flight)
            self.in_flight = None

    @rule()
    def fail_step(self) -> None:
        if self.in_flight is not None:
            self.driver.scheduler.discard(self.in_flight)
            self.in_flight = None

    @rule(choice=st.integers(0, 10))
    def abort(self, choice: int) -> None:
        alive = [request for request in self.driver.requests.values() if not request.finished]
        if alive:
            request = alive[choice % len(alive)]
            self.driver.scheduler.abort(request.request_id)
            self.driver.scheduler.abort(request.request_id)
            assert request.finish_reason == "abort"

    @rule(choice=st.integers(0, 10))
    def stop_by_string(self, choice: int) -> None:
        alive = [r for r in self.driver.requests.values() if not r.finished and r.num_output_tokens > 0]
        if alive:
            self.driver.scheduler.finish(alive[choice % len(alive)], "stop", "word")

    @rule()
    def reset_prefix_cache(self) -> None:
        self.driver.scheduler.reset_prefix_cache()

    @invariant()
    def everything_is_consistent(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        if self.in_flight is not None:
            self.end_step()
        self.driver.run()
        self.driver.assert_idle()
        for request in self.driver.requests.values():
            self.assert_right(request)

    def assert_right(self, request: Request) -> None:
        """Ended by itself: all of the oracle's output. Ended from outside: a part of it."""
        output, reason = self.driver.expected(request)
        assert request.output_token_ids == self.driver.tokens[request.request_id]
        if request.finish_reason in ("abort", "error") or request.stop_reason == "word":
            assert request.output_token_ids == output[: request.num_output_tokens]
        else:
            assert (request.output_token_ids, request.finish_reason) == (output, reason)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=2000, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
