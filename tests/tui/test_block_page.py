"""What the page of one block says."""

from __future__ import annotations

from typing import Any

from cudaprefill.protocol.telemetry import TelemetryBlock
from cudaprefill_tui.screens.pages import block_page


def words(**fields: Any) -> str:
    known = {"state": "cached", "reference_count": 0, "owners": [], "age": 1, "token_ids": [5, 6], "text": "hi"}
    page = block_page(TelemetryBlock(sequence_number=1, block=7, **{**known, **fields}))
    return "\n".join(text.plain for text in page._texts)


def test_a_block_of_text_says_nothing_of_adapters() -> None:
    assert "adapter" not in words()
    assert "virtual" not in words()


def test_a_block_of_an_adapter_names_it_and_counts_its_virtual_tokens() -> None:
    shown = words(virtual_tokens=14, adapter="support")
    assert "virtual     14 tokens before these" in shown
    assert "adapter     support" in shown
    assert "tokens      2: 5 6" in shown
