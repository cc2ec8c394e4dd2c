"""Whatever fits the server's own description, or just misses it, gets an answer that is no 5xx."""

from __future__ import annotations

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.server.running import PATIENCE, RunningServer

EXAMPLES = 12  # of each endpoint and each mode


def test_no_request_makes_the_server_fail(server: RunningServer) -> None:
    description = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    called = set()
    for operation in (result.ok() for result in description.get_all_operations()):
        # Without a body there is nothing to get wrong.
        for mode in GenerationMode if operation.body else [GenerationMode.POSITIVE]:

            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: schemathesis.Case) -> None:
                response = case.call(timeout=PATIENCE)
                assert response.status_code < 500, response.text
                if response.status_code >= 400:
                    assert set(response.json()["error"]) >= {"message", "type", "param", "code"}
                called.add(case.path)

            ask()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/models/{name}"} <= called
