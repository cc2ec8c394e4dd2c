"""The store of responses stays within its bounds, and forgets what was used longest ago."""

from __future__ import annotations

from array import array
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill.protocol.responses import Response
from cudaprefill.server.responses.store import ResponseStore, StoredTurn


def turn(response_id: str, size: int) -> StoredTurn:
    response = Response(
        id=response_id, created_at=0, status="completed", model="m", temperature=1.0, top_p=1.0, store=True
    )
    return StoredTurn(response, ({"role": "user", "content": "x" * size},), None, array("i", range(size)), 1)


NAMES = st.sampled_from("abcdefgh")
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), NAMES, st.sampled_from([0, 10, 1000, 100_000])),
        st.tuples(st.just("get"), NAMES, st.none()),
        st.tuples(st.just("remove"), NAMES, st.none()),
    ),
    max_size=60,
)


@given(OPERATIONS, st.integers(1, 6), st.integers(5_000, 30_000))
@settings(deadline=None)
def test_the_store_is_a_bounded_lru(operations: list[tuple[str, str, int]], max_responses: int, max_bytes: int) -> None:
    store = ResponseStore(max_responses, max_bytes)
    model: dict[str, StoredTurn] = {}  # oldest first
    for operation, name, size in operations:
        if operation == "add":
            added = turn(name, size)
            store.add(added)
            model.pop(name, None)
            if added.num_bytes <= max_bytes:
                model[name] = added
            while len(model) > max_responses or sum(each.num_bytes for each in model.values()) > max_bytes:
                del model[next(iter(model))]
        elif operation == "get":
            assert store.get(name) is model.get(name)
            if name in model:
                model[name] = model.pop(name)
        else:
            assert store.remove(name) == (model.pop(name, None) is not None)
        assert len(store) == len(model)
        assert store.num_bytes == sum(each.num_bytes for each in model.values())
        assert len(store) <= max_responses
        assert store.num_bytes <= max_bytes


def test_a_turn_counts_its_text_and_its_tokens() -> None:
    assert turn("a", 1000).num_bytes - turn("a", 0).num_bytes == 1000 + 4 * 1000
    with_variable = replace(turn("a", 0), known_variables={"date": "x" * 1000})
    assert with_variable.num_bytes - turn("a", 0).num_bytes > 1000
