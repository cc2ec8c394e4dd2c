"""Outputs follow their grammar, whatever a model of random weights would rather say and whatever happens to them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudaprefill.engine.batch import Batch
from cudaprefill.engine.engine import Engine
from cudaprefill.engine.input_processor import InputProcessor
from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.request import Request
from cudaprefill.engine.scheduler import Scheduler
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.sampling_params import SamplingParams, StructuredOutputsParams
from cudaprefill.text import grammar
from cudaprefill.text.tokenizer import Tokenizer
from tests.engine.harness import pool_is_idle, text_sent, tokens_of
from tests.fake_model import FakeModel
from tests.text.made_tokenizers import byte_fallback, byte_level, files

pytest.importorskip("xgrammar")

TOKENIZERS = {"byte level": Tokenizer(files(byte_level())), "byte fallback": Tokenizer(files(byte_fallback()))}
EOS = 2
NUM_PADDING = 5  # rows of the model's vocabulary that the tokenizer has no token for
MAX_MODEL_LEN = 600
PROMPT = [10, 11, 12, 13, 14]


class RandomRunner:
    """Logits that depend on the whole context, as those of random weights do. What ends a text is likelier."""

    def __init__(self, tokenizer: Tokenizer, num_blocks: int) -> None:
        self.vocab_size = tokenizer.vocab_size + NUM_PADDING
        self.model = FakeModel(num_blocks, 16, self.vocab_size)
        ends = [tokenizer.backend.token_to_id(token) for token in ('"', "}", "]", "</s>", "0")]
        self.likely = [token_id for token_id in ends if token_id is not None]

    def run(self, batch: Batch) -> torch.Tensor:
        hidden = self.model.forward(batch)[batch.logits_rows.numpy()]
        logits = np.zeros((len(hidden), self.vocab_size), np.float32)
        for row, of_context in zip(logits, hidden, strict=True):
            row[:] = np.random.default_rng(int(of_context)).normal(size=self.vocab_size) * 2
        logits[:, self.likely] += 4
        return torch.from_numpy(logits)


class Setup:
    """An engine on random logits, and what makes its requests."""

    def __init__(self, name: str = "byte level", *, num_blocks: int = 200, budget: int = 64) -> None:
        tokenizer = TOKENIZERS[name]
        config = SchedulerConfig(
            num_blocks=num_blocks,
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=budget,
            max_num_seqs=min(16, budget),
        )
        runner = RandomRunner(tokenizer, num_blocks)
        self.engine = Engine(Scheduler(config), runner, tokenizer, torch.device("cpu"))  # type: ignore[arg-type]
        self.processor = InputProcessor(tokenizer, (EOS,), runner.vocab_size, config)
        self.requests: list[Request] = []

    def submit(self, request_id: str, prompt: Sequence[int], params: SamplingParams) -> None:
        request, _ = self.processor.process_prompt(request_id, list(prompt), params)
        self.requests.append(request)
        self.engine.submit(request)

    def run(self) -> list[OutputDelta]:
        deltas: list[OutputDelta] = []
        while self.engine.has_work():
            deltas += self.engine.step()
        assert pool_is_idle(self.engine)
        return deltas

    def outputs(self, structured: StructuredOutputsParams, **fields: Any) -> list[tuple[str, str | None]]:
        """Text and finish reason of each output of one request."""
        params = SamplingParams(**{"max_tokens": 300, "structured_outputs": structured, **fields})
        self.submit("r", PROMPT, params)
        deltas = self.run()
        reasons = {delta.index: delta.finish_reason for delta in deltas if delta.finish_reason}
        return [(text_sent(deltas, "r", index), reasons[index]) for index in range(params.n)]


@pytest.fixture(params=TOKENIZERS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


SCALARS = st.one_of(
    st.sampled_from([{"type": "integer"}, {"type": "boolean"}, {"type": "null"}, {"type": "string"}]),
    st.lists(st.one_of(st.text('aé"\\ ', max_size=4), st.integers(-99, 99)), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
    st.integers(0, 5).map(lambda length: {"type": "string", "minLength": length, "maxLength": length + 3}),
    st.sampled_from(["^[ab]{2,4}$", "^x+y$"]).map(lambda pattern: {"type": "string", "pattern": pattern}),
)


def compounds(children: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.text("abcé ", min_size=1, max_size=3)

    @st.composite
    def objects(draw: st.DrawFn) -> dict[str, Any]:
        properties = draw(st.dictionaries(names, children, max_size=3))
        required = [key for key in properties if draw(st.booleans())]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    arrays = st.builds(
        lambda items, most: {"type": "array", "items": items, "maxItems": most}, children, st.integers(1, 3)
    )
    return st.one_of(objects(), arrays, st.lists(children, min_size=1, max_size=3).map(lambda any_: {"anyOf": any_}))


SCHEMAS = st.recursive(SCALARS, compounds, max_leaves=5)
SAMPLING = st.sampled_from(
    [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 2.0, "n": 3}, {"top_p": 0.9}, {"top_k": 4, "n": 2}]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=SCHEMAS, sampling=SAMPLING, seed=st.integers(0, 99))
def test_under_a_schema_every_output_parses_and_validates(
    name: str, schema: dict[str, Any], sampling: dict[str, Any], seed: int
) -> None:
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    outputs = Setup(name).outputs(StructuredOutputsParams(json=schema), seed=seed, **sampling)
    for text, reason in outputs:
        assert reason in ("stop", "length")
        if reason == "stop":
            value = json.loads(text)
            if "\ufffd" not in text:  # bytes of no character, which xgrammar takes for one and decoding for several
                jsonschema_rs.validate(schema, value)


ATOMS = st.sampled_from(["a", "é", "[b-f]", " ", r"\d", "😀", r"\.", "he", "x{2,4}"])


def regexes(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(children, min_size=1, max_size=4).map("".join),
        st.lists(children, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(children, st.sampled_from("*+?")).map(lambda parts: f"({parts[0]}){parts[1]}"),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(regex=st.recursive(ATOMS, regexes, max_leaves=6), sampling=SAMPLING, seed=st.integers(0, 99))
def test_under_a_regex_every_output_matches_as_a_whole(
    name: str, regex: str, sampling: dict[str, Any], seed: int
) -> None:
    for text, reason in Setup(name).outputs(StructuredOutputsParams(regex=regex), seed=seed, **sampling):
        assert reason in ("stop", "length")
        if reason == "stop":
            assert re.fullmatch(regex, text, re.ASCII)


def test_most_outputs_come_to_their_end(name: str) -> None:
    """The properties above would hold if all were cut by length."""
    for structured in (
        StructuredOutputsParams(json={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
        StructuredOutputsParams(regex=r"(\d|he){1,9}"),
        StructuredOutputsParams(json_object=True),
    ):
        outputs = Setup(name).outputs(structured, n=8, seed=1, temperature=1.5)
        assert sum(reason == "stop" for _, reason in outputs) >= 3
        assert len({text for text, _ in outputs}) >= 3


@pytest.mark.parametrize("choices", [["yes", "no"], [" a", "a"], ["né", "n😀", 'say "hi"\\n\n', "he"], [""]])
def test_a_choice_is_one_of_the_choices(name: str, choices: list[str]) -> None:
    outputs = Setup(name).outputs(StructuredOutputsParams(choice=choices), n=12, seed=0, temperature=9.0)
    assert {reason for _, reason in outputs} == {"stop"}
    assert {text for text, _ in outputs} <= set(choices)
    assert len({text for text, _ in outputs}) > len(choices) // 2


def test_a_json_object_is_an_object(name: str) -> None:
    for text, reason in Setup(name).outputs(StructuredOutputsParams(json_object=True), n=8, seed=3):
        assert text.lstrip().startswith("{")
        assert reason == "length" or isinstance(json.loads(text), dict)


def test_an_ebnf_grammar_is_followed(name: str) -> None:
    nested = 'root ::= "(" root ")" root | ""'
    for text, reason in Setup(name).outputs(StructuredOutputsParams(grammar=nested), n=8, seed=3, temperature=3.0):
        assert set(text) <= set("()")
        if reason == "stop":
            while "()" in text:
                text = text.replace("()", "")
            assert text == ""


MIXED = [
    {"structured_outputs": StructuredOutputsParams(regex=r"(a|bc|\d){40,60}"), "n": 2},
    {},
    {
        "structured_outputs": StructuredOutputsParams(
            json={"type": "array", "items": {"type": "integer"}, "minItems": 9}
        )
    },
    {"temperature": 0.0},
    {"structured_outputs": StructuredOutputsParams(regex="[a-f]{50}"), "temperature": 0.0},
]


def run_mixed(**settings: int) -> tuple[list[list[int]], int]:
    """Tokens of the outputs of several requests with and without grammars, and the number of preemptions."""
    setup = Setup(**settings)  # type: ignore[arg-type]
    for number, fields in enumerate(MIXED):
        params = SamplingParams(**{"seed": number, "max_tokens": 60, "ignore_eos": True, **fields})
        setup.submit(str(number), PROMPT * (4 + 3 * number), params)
    deltas = setup.run()
    assert not any(delta.error for delta in deltas)
    tokens = [tokens_of(deltas, str(i), index) for i, fields in enumerate(MIXED) for index in range(fields.get("n", 1))]  # type: ignore[arg-type]
    members = [member for request in setup.requests for member in (request, *request.siblings)]
    return tokens, sum(request.num_preemptions for request in members)


def test_chunks_and_preemptions_change_nothing() -> None:
    undisturbed, none = run_mixed(budget=512)
    assert none == 0
    for settings_, preempted in (({"budget": 7}, False), ({"budget": 40, "num_blocks": 15}, True)):
        tokens, preemptions = run_mixed(**settings_)
        assert tokens == undisturbed
        assert (preemptions > 0) == preempted


def test_requests_without_a_grammar_are_as_they_are_alone() -> None:
    together, _ = run_mixed(budget=512)
    alone = Setup()
    for number in (1, 3):
        params = SamplingParams(**{"seed": number, "max_tokens": 60, "ignore_eos": True, **MIXED[number]})  # type: ignore[arg-type]
        alone.submit(str(number), PROMPT * (4 + 3 * number), params)
    deltas = alone.run()
    assert [tokens_of(deltas, "1"), tokens_of(deltas, "3")] == [together[2], together[4]]


@pytest.mark.parametrize("fields", [{}, {"ignore_eos": True}, {"min_tokens": 50}, {"min_tokens": 50, "n": 2}])
def test_the_end_of_a_grammar_ends_the_output_before_anything_else(name: str, fields: dict[str, Any]) -> None:
    outputs = Setup(name).outputs(StructuredOutputsParams(regex="abc"), seed=0, **fields)
    assert outputs == [("abc", "stop")] * fields.get("n", 1)


def test_min_tokens_keeps_a_text_going_that_may_end() -> None:
    for number in (0, 40):
        setup = Setup()
        ((text, _),) = setup.outputs(
            StructuredOutputsParams(regex="[a-f]*"), seed=0, temperature=0.0, min_tokens=number, max_tokens=200
        )
        assert len(text) >= number
        if not number:
            assert len(text) < 40


def test_a_stop_string_and_max_tokens_end_a_text_early() -> None:
    stopped = Setup().outputs(StructuredOutputsParams(regex="abcdef"), stop="cd")
    assert stopped == [("ab", "stop")]
    assert Setup().outputs(StructuredOutputsParams(regex="a{100}"), max_tokens=7) == [("a" * 7, "length")]


def error_of(deltas: list[OutputDelta], request_id: str) -> str:
    (error,) = [delta.error for delta in deltas if delta.request_id == request_id and delta.error is not None]
    return str(error)


def test_a_grammar_that_takes_too_long_ends_its_own_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup()
    slow = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a{90}"), max_tokens=100)
    setup.submit("slow", PROMPT, slow)
    setup.submit("other", PROMPT, SamplingParams(seed=1, max_tokens=30, ignore_eos=True))
    deltas = setup.engine.step() + setup.engine.step()
    monkeypatch.setattr(grammar, "FIRST_SECONDS", -1.0)
    deltas += setup.run()
    assert "s of computing to follow" in error_of(deltas, "slow")
    assert len(tokens_of(deltas, "other")) == 30


def test_an_ambiguous_grammar_is_ended_before_it_holds_up_the_others() -> None:
    setup = Setup()
    hostile = StructuredOutputsParams(grammar='root ::= root root root | "a" | ""')
    setup.submit("hostile", PROMPT, SamplingParams(structured_outputs=hostile, max_tokens=500, seed=0, min_tokens=500))
    deltas = setup.run()
    assert "s of computing to follow" in error_of(deltas, "hostile")


def test_a_token_that_is_not_in_the_grammar_is_an_error_of_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can draw such a token; should it ever come, the others go on."""
    setup = Setup()
    setup.submit("wrong", PROMPT, SamplingParams(structured_outputs=StructuredOutputsParams(regex="b{9}")))
    setup.submit("other", PROMPT, SamplingParams(seed=1, max_tokens=9, ignore_eos=True))
    deltas = setup.engine.step()
    setup.engine._outputs._outputs["wrong"].token_ids[0] += 1
    state = setup.engine._outputs._outputs["wrong"].sampling_state
    assert state.matcher is not None
    state.matcher = state._grammar.matcher()  # type: ignore[union-attr]  # reads the output anew
    deltas += setup.run()
    assert "number 1, is not in the grammar" in error_of(deltas, "wrong")
    assert len(tokens_of(deltas, "other")) == 9


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"regex": "("}, "regex cannot be followed: Regex parsing error at position 2: The parenthesis is not closed"),
        ({"regex": "(?=a)b"}, "Lookahead is not supported"),
        ({"json": {"type": "foo"}}, "json cannot be followed"),
        ({"json": "5"}, "json cannot be followed"),
        ({"json": "false"}, "json cannot be followed"),
        ({"json": {"$ref": "#/nope"}}, "json cannot be followed"),
        ({"grammar": "root ::= missing"}, 'Rule "missing" is not defined'),
        ({"grammar": 'x ::= "a"'}, "root"),
        ({"grammar": "root ::= " + "(" * 8000 + '"a"'}, "grammar cannot be followed"),
    ],
)
def test_what_is_no_grammar_is_refused_before_the_engine_hears_of_it(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match="structured_outputs: ") as caught:
        Setup().outputs(StructuredOutputsParams(**fields))
    assert reason in str(caught.value)
    assert "/project/" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_takes_too_long_at_its_first_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "FIRST_SECONDS", -1.0)
    with pytest.raises(ValueError, match=r"regex cannot be followed: it took .* s of computing to follow 0 tokens"):
        Setup().outputs(StructuredOutputsParams(regex="a"))


def test_what_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MAX_GRAMMAR_BYTES", 100)
    with pytest.raises(ValueError, match=r"json takes \d+ bytes when compiled, at most 100 are allowed"):
        Setup().outputs(StructuredOutputsParams(json={"type": "integer"}))
