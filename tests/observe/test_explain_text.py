"""The account as a person reads it."""

from __future__ import annotations

from cudaprefill.engine.step_cost import StepWork
from cudaprefill.observe.explain import explain
from cudaprefill.protocol.account_text import account_text
from tests.observe.fake_run import FakeRun

PROMPT = [2 + position % 40 for position in range(200)]


def ten_milliseconds_a_token(work: StepWork) -> float:
    return (work.decodes + work.chunk_tokens) / 100


def test_the_waterfall_says_what_the_request_waited_for_and_what_its_steps_did() -> None:
    run = FakeRun(ten_milliseconds_a_token, max_num_batched_tokens=128, max_num_seqs=2)
    run.submit(PROMPT[:16], max_tokens=4, request_id="chat")
    run.step()
    run.submit(PROMPT, request_id="long", received=0.0, tokenized=0.05)
    run.submit(PROMPT[50:90], request_id="short", received=0.1, tokenized=0.11)
    run.run()
    lines = account_text(explain(run.history(), "short", itl_limit=1.0)).splitlines()
    assert lines[0] == "short: first token after 2.330 s · 40 prompt tokens · 1 output token · length"
    assert lines[2] == "tokenizing      10.0 ms │█                               │"
    assert lines[3] == ("handing over    50.0 ms │█                               │ during step 1; 16 of chat")
    assert lines[4] == (
        "queued          1.860 s │ █████████████████████████      │ "
        "steps 2 to 3; it lacks seats: needs 1, 0 free; 2 tokens of decodes and 184 of long"
    )
    assert lines[-3] == (
        "prefix cache: 0 of 32 tokens that can be shared; from token 0 on, in block 0, it differs from the nearest "
        "request, long: token 12 instead of token 2"
    )
    assert lines[-1] == "no gap between tokens above 1.000 s"


def test_tokens_are_shown_as_text_where_a_tokenizer_is_at_hand() -> None:
    run = FakeRun(max_num_batched_tokens=256)
    run.submit(PROMPT, request_id="known")
    run.run()
    run.submit([*PROMPT[:100], 3, *PROMPT[101:]], request_id="asks")
    run.run()
    text = account_text(explain(run.history(), "asks"), token_text=chr)
    assert "from token 100 on, in block 6, it differs from the nearest request, known: '\\x03' (token 3)" in text


def test_late_tokens_name_the_step_the_chunk_and_the_way_out() -> None:
    run = FakeRun(ten_milliseconds_a_token, max_num_batched_tokens=128, max_num_seqs=4)
    run.submit(PROMPT[:16], max_tokens=4, request_id="chat")
    run.step()
    run.submit(PROMPT[20:60], request_id="long")
    run.run()
    text = account_text(explain(run.history(), "chat", itl_limit=0.2, cost=ten_milliseconds_a_token))
    assert "once a token came later than 0.200 s after the one before:" in text
    assert "token 1, 0.410 s after the one before: step 2 took 0.410 s for 1 decode and 40 of long" in text
    assert "(--max-num-batched-tokens 20)" in text
    assert "(--itl-target-ms 200)" in text
