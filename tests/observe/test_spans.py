"""Spans of requests, as an OpenTelemetry collector gets them."""

from __future__ import annotations

import pytest

from cudaprefill import LLM
from cudaprefill.observe.spans import RequestSpans, start_span_of
from tests.observe.fake_run import FakeRun

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

UNIX = 1_700_000_000.0  # seconds since 1970 when the engine's clock was at 0


def spans_of(run: FakeRun) -> list[object]:
    exporter = in_memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    listener = RequestSpans(start_span_of(provider.get_tracer("test")), "model", UNIX)
    listener(run.events)
    return list(exporter.get_finished_spans())


def test_a_request_is_a_span_with_its_parts_in_it() -> None:
    run = FakeRun(max_num_batched_tokens=16, max_num_seqs=1)
    run.submit([2] * 16, max_tokens=2, request_id="first")
    run.submit([3] * 24, max_tokens=3, request_id="second")
    run.run()
    spans = {span.name: span for span in spans_of(run)[4:]}
    request = spans["llm_request"]
    assert (request.start_time, request.end_time) == (UNIX * 1e9, (UNIX + 6) * 1e9)
    assert dict(request.attributes) == {
        "gen_ai.request.id": "second",
        "gen_ai.response.model": "model",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.usage.prompt_tokens": 24,
        "gen_ai.usage.completion_tokens": 3,
        "gen_ai.latency.e2e": 6.0,
        "gen_ai.latency.time_in_queue": 2.0,
        "gen_ai.latency.time_in_model_inference": 4.0,
        "gen_ai.latency.time_to_first_token": 4.0,
        "gen_ai.latency.time_in_model_prefill": 2.0,
        "gen_ai.latency.time_in_model_decode": 2.0,
    }
    times = {name: ((span.start_time / 1e9 - UNIX), (span.end_time / 1e9 - UNIX)) for name, span in spans.items()}
    assert times == {"llm_request": (0, 6), "queued": (0, 2), "prefill": (2, 4), "decode": (4, 6)}
    assert all(spans[name].parent.span_id == request.context.span_id for name in ("queued", "prefill", "decode"))
    assert [event.attributes["length"] for event in spans["prefill"].events] == [16, 8]


def test_a_request_that_was_given_up_in_the_queue_has_no_more_than_that() -> None:
    run = FakeRun(max_num_seqs=1)
    run.submit([2] * 16, max_tokens=3, request_id="runs")
    run.submit([3] * 16, max_tokens=3, request_id="given up")
    run.step()
    run.driver.scheduler.abort("given up")
    spans = spans_of(run)
    assert [span.name for span in spans] == ["queued", "llm_request"]
    assert "gen_ai.latency.time_to_first_token" not in spans[-1].attributes


def test_without_the_exporters_package_the_setting_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ValueError, match=r"otlp_traces_endpoint needs a package that is missing .*cudaprefill\[otel\]"):
        LLM(otlp_traces_endpoint="http://127.0.0.1:4318/v1/traces")
