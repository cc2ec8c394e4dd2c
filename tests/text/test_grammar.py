"""Grammars are compiled once, within a time, and kept within bounds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cudaprefill.sampling_params import StructuredOutputsParams
from cudaprefill.text import grammar
from cudaprefill.text.grammar import Grammars
from cudaprefill.text.tokenizer import Tokenizer
from tests.text.made_tokenizers import byte_level, files

pytest.importorskip("xgrammar")

EOS = 2


def make_grammars(eos: Sequence[int] = (EOS,)) -> Grammars:
    tokenizer = Tokenizer(files(byte_level()))
    return Grammars(tokenizer, eos, tokenizer.vocab_size)


def test_who_waits_too_long_for_a_grammar_is_refused_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compilation that never ends: nothing can stop it, and nothing has to wait for it."""
    grammars = make_grammars()
    compile_: Callable[[str, str], Any] = grammars._compile
    let_go = threading.Event()

    def stuck(kind: str, source: str) -> Any:
        if source == "stuck":
            let_go.wait()
        return compile_(kind, source)

    monkeypatch.setattr(grammars, "_compile", stuck)
    grammars.compile(StructuredOutputsParams(regex="ready"))
    monkeypatch.setattr(grammar, "COMPILE_SECONDS", 0.01)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"regex was not compiled within 0\.01 seconds"):
            grammars.compile(StructuredOutputsParams(regex="stuck"))
    monkeypatch.setattr(grammar, "COMPILE_SECONDS", 60.0)
    grammars.compile(StructuredOutputsParams(regex="ready"))
    grammars.compile(StructuredOutputsParams(regex="other"))
    let_go.set()
    grammars.compile(StructuredOutputsParams(regex="stuck"))


def test_a_model_without_eos_cannot_end_a_text() -> None:
    with pytest.raises(ValueError, match="needs a model with an EOS token"):
        make_grammars(eos=()).compile(StructuredOutputsParams(regex="a"))


def test_without_xgrammar_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(ValueError, match=r"needs xgrammar: pip install cudaprefill\[structured-output\]"):
        make_grammars().compile(StructuredOutputsParams(regex="a"))


def counting(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that are compiled from here on."""
    compiled: list[str] = []
    compile_: Callable[[str, str], Any] = grammars._compile

    def counted(kind: str, source: str) -> Any:
        compiled.append(source)
        return compile_(kind, source)

    monkeypatch.setattr(grammars, "_compile", counted)
    return compiled


def test_grammars_are_kept_within_bounds_and_those_used_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MAX_CACHED_GRAMMARS", 3)
    grammars = make_grammars()
    compiled = counting(grammars, monkeypatch)
    for regex in "a", "b", "c", "a", "d", "a", "b":
        grammars.compile(StructuredOutputsParams(regex=regex))
    assert compiled == ["a", "b", "c", "d", "b"]
    grammars.compile(StructuredOutputsParams(grammar='root ::= "a"'))
    assert grammars.num_cached_bytes < 10_000
    monkeypatch.setattr(grammar, "MAX_CACHED_BYTES", 0)
    grammars.compile(StructuredOutputsParams(regex="e"))
    assert grammars.num_cached_bytes == 0


def test_threads_that_ask_for_one_grammar_at_once_compile_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = make_grammars()
    compiled = counting(grammars, monkeypatch)
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(grammars.compile(StructuredOutputsParams(regex="a{9}"))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiled == ["a{9}"]
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
