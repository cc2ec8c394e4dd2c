"""What can be done over `/v1/telemetry` while the engine runs: settings, aborts, the prefix cache, blocks."""

from __future__ import annotations

import pytest

from tests.server.running import RunningServer
from tests.server.telemetry.connection import Telemetry, complete, stream


def test_settings_are_changed_for_all_to_see(server: RunningServer, telemetry: Telemetry) -> None:
    with Telemetry(server) as other:
        telemetry.subscribe()
        other.subscribe()
        telemetry.send("change_settings", max_num_batched_tokens=48, itl_target_ms=20.0, command_id=7)
        assert telemetry.until_answer("telemetry.done").command_id == 7
        for reader in (telemetry, other):
            reader.until(lambda reader=reader: reader.view.settings.max_num_batched_tokens == 48)  # type: ignore[misc]
            assert reader.view.settings is not None
            assert reader.view.settings.itl_target_ms == 20.0
        telemetry.send("change_settings", itl_target_ms=0)
        other.until(lambda: other.view.settings is not None and other.view.settings.itl_target_ms is None)
    with server.client() as client:
        client.post("/v1/engine", json={"max_num_batched_tokens": 32}).raise_for_status()
    telemetry.until(
        lambda: telemetry.view.settings is not None and telemetry.view.settings.max_num_batched_tokens == 32
    )


def test_a_setting_that_cannot_be_is_an_error_that_names_it(telemetry: Telemetry) -> None:
    telemetry.send("change_settings", max_num_batched_tokens=-3, command_id=5)
    error = telemetry.receive()
    assert (error.type, error.param, error.command_id) == ("error", "max_num_batched_tokens", 5)
    assert "-3" in error.message


def test_a_request_is_aborted_by_its_id(server: RunningServer, telemetry: Telemetry) -> None:
    server.runner.seconds = 0.002
    telemetry.subscribe()
    with stream(server, [1, 2, 3], max_tokens=450) as lines:
        telemetry.until(lambda: bool(telemetry.view.requests))
        (record,) = telemetry.view.requests.values()
        telemetry.send("abort", id=record.id)
        assert "abort" in "".join(lines)
    telemetry.until(lambda: [r.finish_reason for r in telemetry.view.requests.values()] == ["abort"])
    telemetry.send("abort", id=record.id)
    error = telemetry.until_answer("error")
    assert (error.code, error.param) == ("request_not_found", "id")


@pytest.mark.parametrize("over_http", [False, True])
def test_a_reset_of_the_prefix_cache_frees_the_cached_blocks_in_every_view(
    server: RunningServer, telemetry: Telemetry, over_http: bool
) -> None:
    telemetry.subscribe()
    complete(server, [3] * 40)
    telemetry.until(lambda: telemetry.view.pool is not None and telemetry.view.pool.cached == 2)
    assert telemetry.view.blocks.count("c") == 2
    if over_http:
        with server.client() as client:
            client.post("/reset_prefix_cache").raise_for_status()
    else:
        telemetry.send("reset_prefix_cache")
    telemetry.until(lambda: telemetry.view.pool is not None and telemetry.view.pool.cached == 0)
    assert telemetry.view.blocks.count(".") == 64


def test_a_block_is_described_with_its_text(server: RunningServer, telemetry: Telemetry) -> None:
    server.runner.seconds = 0.002
    telemetry.subscribe()
    with stream(server, [*range(16), 5]):
        telemetry.until(lambda: bool(telemetry.view.blocks.owners))
        (record,) = telemetry.view.requests.values()
        block = telemetry.view.blocks.owners[record.number][0]
        telemetry.send("describe_block", block=block)
        described = telemetry.until_answer("telemetry.block")
    assert (described.block, described.state, described.reference_count) == (block, "active", 1)
    assert described.owners == [record.id]
    assert described.token_ids == list(range(16))
    assert described.text == "ABCDEFGHIJKLMNOP"
    assert described.age >= 0
    assert described.hash


@pytest.mark.parametrize("block", [-1, 64])
def test_a_block_that_there_is_not_is_an_error_with_both_numbers(telemetry: Telemetry, block: int) -> None:
    telemetry.send("describe_block", block=block)
    error = telemetry.receive()
    assert (error.type, error.param, error.message) == (
        "error",
        "block",
        f"block must be between 0 and 63, got {block}",
    )
