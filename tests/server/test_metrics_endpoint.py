"""`/metrics` as Prometheus reads it, in both of its formats, from a server that has worked and from an idle one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.server.running import RunningServer

Parser = Callable[[str], Iterable[Metric]]
FORMATS = [
    pytest.param("text/plain; version=0.0.4", parse_text, id="text"),
    pytest.param("application/openmetrics-text; version=1.0.0", parse_open_metrics, id="openmetrics"),
]
# What a Prometheus server of today sends.
PROMETHEUS_ACCEPTS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)

# vLLM's names and types, as its dashboards query them.
VLLM = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:request_success": "counter",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """One that has done nothing yet."""
    with RunningServer() as server:
        yield server


def complete(server: RunningServer, prompt: list[int], max_tokens: int = 8, **fields: Any) -> str:
    """The id of the answer."""
    body = {"model": "letters", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}
    with server.client() as client:
        response = client.post("/v1/completions", json=body)
    response.raise_for_status()
    identifier: str = response.json()["id"]
    return identifier


def scrape(server: RunningServer, accept: str = "text/plain", parse: Parser = parse_text) -> dict[str, Metric]:
    with server.client() as client:
        response = client.get("/metrics", headers={"Accept": accept})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith(accept.partition(";")[0])
    families = list(parse(response.text))
    assert len({family.name for family in families}) == len(families)
    return {family.name: family for family in families}


def value(families: dict[str, Metric], sample_name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == sample_name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, f"{len(found)} samples of {sample_name}"
    return float(found[0])


def counters(families: dict[str, Metric]) -> dict[tuple[str, str], float]:
    """All that must only grow: counters, and the counts and sums of histograms."""
    return {
        (sample.name, str(sorted(sample.labels.items()))): sample.value
        for family in families.values()
        if family.type in ("counter", "histogram")
        for sample in family.samples
    }


def assert_sound(families: dict[str, Metric]) -> None:
    for name, family in families.items():
        assert re.fullmatch(r"(vllm|cudaprefill):[a-z0-9_]+", name)
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert sample.labels["model_name"] == "letters"
            assert sample.labels["engine"] == "0"
            assert set(sample.labels) <= {"model_name", "engine", "le", "finished_reason", "state", "reason"}
            assert math.isfinite(sample.value)
            assert sample.value >= 0
        if family.type == "counter":
            assert all(sample.name == f"{name}_total" for sample in family.samples)
        if family.type == "histogram":
            assert_complete(family)
        if "time" in name or "latency" in name or "duration" in name:
            assert name.endswith("_seconds")


def assert_complete(family: Metric) -> None:
    buckets = [sample for sample in family.samples if sample.name == f"{family.name}_bucket"]
    bounds = [float(sample.labels["le"]) for sample in buckets]
    assert bounds == sorted(set(bounds))
    assert buckets[-1].labels["le"] == "+Inf"
    counts = [sample.value for sample in buckets]
    assert counts == sorted(counts)
    (count,) = [sample.value for sample in family.samples if sample.name == f"{family.name}_count"]
    (total,) = [sample.value for sample in family.samples if sample.name == f"{family.name}_sum"]
    assert count == counts[-1]
    assert (total > 0) >= (count > 0)


@pytest.mark.parametrize(("accept", "parse"), FORMATS)
def test_an_idle_server_has_every_metric_and_all_counts_are_zero(
    server: RunningServer, accept: str, parse: Parser
) -> None:
    families = scrape(server, accept, parse)
    assert_sound(families)
    assert {name: families[name].type for name in VLLM} == VLLM
    assert set(counters(families).values()) == {0.0}
    assert value(families, "cudaprefill:blocks", state="free") == 64


@pytest.mark.parametrize(("accept", "parse"), FORMATS)
def test_after_three_requests_the_counts_are_theirs_and_have_only_grown(
    server: RunningServer, accept: str, parse: Parser
) -> None:
    before = scrape(server, accept, parse)
    ids = [complete(server, [3] * 40), complete(server, [3] * 40, max_tokens=4), complete(server, [7])]
    after = scrape(server, accept, parse)
    assert_sound(after)
    grown = counters(after)
    assert grown.keys() == counters(before).keys()
    assert all(grown[key] >= old for key, old in counters(before).items())
    assert value(after, "vllm:prompt_tokens_total") == value(after, "vllm:request_prompt_tokens_sum") == 81
    assert value(after, "vllm:generation_tokens_total") == value(after, "vllm:request_generation_tokens_sum") == 20
    assert value(after, "vllm:request_success_total", finished_reason="length") == 3
    assert value(after, "vllm:time_to_first_token_seconds_count") == 3
    assert value(after, "vllm:inter_token_latency_seconds_count") == 17
    assert value(after, "vllm:prefix_cache_queries_total") == 81
    assert value(after, "vllm:prefix_cache_hits_total") == 32
    assert value(after, "vllm:num_requests_running") == value(after, "vllm:num_requests_waiting") == 0
    phases = ["request_queue_time", "request_prefill_time", "request_decode_time"]
    parts = [value(after, f"vllm:{phase}_seconds_sum") for phase in phases]
    assert sum(parts) == pytest.approx(value(after, "vllm:e2e_request_latency_seconds_sum"))
    assert sum(parts[:2]) == pytest.approx(value(after, "vllm:time_to_first_token_seconds_sum"))
    assert sum(parts[1:]) == pytest.approx(value(after, "vllm:request_inference_time_seconds_sum"))
    with server.client() as client:
        text = client.get("/metrics").text
    assert not any(identifier in text for identifier in ids)


def test_prometheus_gets_the_names_with_their_colons(server: RunningServer) -> None:
    """What it asks for first is a format whose writer would otherwise change them."""
    with server.client() as client:
        response = client.get("/metrics", headers={"Accept": PROMETHEUS_ACCEPTS})
    assert response.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert "\nvllm:generation_tokens_total{" in response.text
    assert "vllm_" not in response.text
    assert response.text.endswith("# EOF\n")


def test_while_requests_run_and_wait_they_are_counted_as_such() -> None:
    with RunningServer(max_num_seqs=1) as server, ThreadPoolExecutor() as threads:

        def standing() -> tuple[float, float]:
            families = scrape(server)
            return value(families, "vllm:num_requests_running"), value(families, "vllm:num_requests_waiting")

        server.runner.seconds = 0.02
        answers = [threads.submit(complete, server, prompt, 50) for prompt in ([1, 2], [3, 4])]
        server.wait_until(lambda: standing() == (1, 1), "one request to run and the other to wait")
        for answer in answers:
            answer.result()
        assert standing() == (0, 0)
        assert value(scrape(server), "cudaprefill:waiting_steps_total", reason="seats") >= 1


def test_blocks_are_counted_after_an_abort_and_a_reset_that_no_step_followed(server: RunningServer) -> None:
    complete(server, [3] * 40)
    families = scrape(server)
    assert value(families, "cudaprefill:blocks", state="cached") == 2
    with server.client() as client:
        client.post("/reset_prefix_cache").raise_for_status()
    families = scrape(server)
    assert value(families, "cudaprefill:blocks", state="cached") == 0
    assert value(families, "cudaprefill:blocks", state="free") == 64
    assert value(families, "vllm:kv_cache_usage_perc") == 0


def test_metrics_need_no_key() -> None:
    with RunningServer(config={"api_keys": ("secret",)}) as server, server.client() as client:
        assert client.get("/metrics").status_code == 200
        assert client.get("/v1/models").status_code == 401


# --- The dashboard and the documentation ---

DOCS = Path(__file__).parents[2] / "docs"
METRIC = re.compile(r"\b(?:vllm|cudaprefill):[a-z0-9_]+")


def sample_names(families: dict[str, Metric]) -> set[str]:
    return {sample.name for family in families.values() for sample in family.samples}


def test_every_metric_that_the_dashboard_queries_exists(server: RunningServer) -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    queried = {name for query in queries for name in METRIC.findall(query)}
    existing = sample_names(scrape(server))
    assert len(queried) > 20
    assert queried - existing == set()


def test_the_dashboard_gives_each_panel_a_place_and_an_id_of_its_own() -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_metric_is_documented_and_nothing_else_is(server: RunningServer) -> None:
    families = scrape(server)
    documented = set(METRIC.findall((DOCS / "metrics.md").read_text()))
    names = {f"{name}_total" if family.type == "counter" else name for name, family in families.items()}
    assert names - documented == set()
    assert documented - names - sample_names(families) == set()
