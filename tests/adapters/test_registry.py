"""Which adapters are there, under which names, and until when."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudaprefill.adapters import Adapter, AdapterError, AdapterRegistry, UnknownAdapterError
from tests.engine.harness import make_engine, make_request


def an_adapter(name: str = "a", content: bytes = b"content") -> Adapter:
    return Adapter(name, Path("nowhere"), "test", content)


def test_an_unload_waits_for_the_requests_that_use_it() -> None:
    engine, adapter = make_engine(), an_adapter()
    request = make_request("1", [1, 2, 3])
    request.adapter = adapter
    engine.submit(request)
    engine.step()
    unloaded = adapter.unload()
    assert not unloaded.done()
    while engine.has_work():
        engine.step()
    assert unloaded.done()
    assert adapter.num_uses == 0


def test_an_unload_without_requests_is_over_at_once() -> None:
    assert an_adapter().unload().done()


def test_new_requests_are_refused_from_the_unload_on() -> None:
    engine, adapter = make_engine(), an_adapter()
    adapter.unload()
    request = make_request("1", [1, 2, 3])
    request.adapter = adapter
    with pytest.raises(UnknownAdapterError, match="'a' was unloaded"):
        engine.submit(request)
    assert not engine.has_work()
    engine.check()


def test_a_refused_request_does_not_count_as_a_use() -> None:
    engine, adapter = make_engine(max_num_queued_reqs=0, max_num_seqs=1), an_adapter()
    for number in range(2):
        request = make_request(str(number), [1, 2, 3])
        request.adapter = adapter
        if number == 0:
            engine.submit(request)
        else:
            with pytest.raises(RuntimeError, match="waiting"):
                engine.submit(request)
    assert adapter.num_uses == 1


def test_unknown_names_are_refused() -> None:
    registry = AdapterRegistry()
    for call in (registry.get, registry.withdraw):
        with pytest.raises(UnknownAdapterError, match="'x'"):
            call("x")


@pytest.mark.parametrize("name", ["", "a\nb", "\x00", 257 * "a"])
def test_names_must_be_printable(name: str) -> None:
    with pytest.raises(AdapterError, match="printable"):
        AdapterRegistry().load(name, "nowhere")
