"""Structured output: which tokens may come next, so that the text follows a grammar. xgrammar does the work.

    Grammars, one an engine          the vocabulary, and the grammars compiled so far
      └─ Grammar, shared             compiled while the caller waits, before the engine hears of the request
           └─ Matcher, one an output where its text is in the grammar; used in the engine's thread

A matcher reads the tokens that the output has got since it was last asked, so nothing that happens to a request between
two tokens (preemption, recomputing) can put it out of step.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any

import numpy as np

from cudaprefill.sampling_params import StructuredOutputsParams
from cudaprefill.text.token_bytes import text_loses_first_space, token_bytes
from cudaprefill.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy.typing as npt

    Mask = npt.NDArray[np.int32]  # [ceil(vocab_size / 32)]: bit i % 32 of word i // 32 is set where token i may come

COMPILE_SECONDS = 20.0  # the vocabulary's own preparation, once, among them
MAX_COMPILING = 2  # at once, so that a burst of them leaves cores to the engine
MAX_CACHED_GRAMMARS = 128
MAX_CACHED_BYTES = 256 << 20
MAX_GRAMMAR_BYTES = 128 << 20

# CPU time in the engine's thread that following a grammar may take: at first, and on average for each token of the
# output. A common grammar takes some tens of microseconds a token. One that is ambiguous takes longer with every token,
# and would in time hold up all other requests.
FIRST_SECONDS = 0.25
SECONDS_PER_TOKEN = 0.002

# Control characters must be escaped in JSON. xgrammar lets some into strings of a bounded length, and tabs are no loss.
_NOT_IN_JSON = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")

NOT_INSTALLED = "structured output needs xgrammar: pip install cudaprefill[structured-output]"


class Grammars:
    """Compiles grammars for one tokenizer and model, and keeps those used last. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Collection[int], vocab_size: int) -> None:
        """vocab_size: the model's."""
        self._tokenizer = tokenizer
        self._eos_token_ids = sorted(eos_token_ids)
        self._vocab_size = vocab_size
        self._compiler: _Compiler | None = None
        self._compiler_lock = threading.Lock()
        self._seats = threading.Semaphore(MAX_COMPILING)
        self._cache: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        self._compiling: dict[tuple[str, str], Future[Grammar]] = {}
        self._lock = threading.Lock()  # guards both

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """Takes milliseconds as a rule, and never longer than COMPILE_SECONDS. Not for an event loop or the engine.

        Raises ValueError for what is no grammar, what is too large, what takes too long to compile or to follow, where
        xgrammar is not installed, and for a model without EOS, which could not end a text.
        """
        key = _source_of(params)
        with self._lock:
            grammar = self._cache.get(key)
            if grammar is not None:
                self._cache.move_to_end(key)
                return grammar
            future = self._compiling.get(key)
            if future is None:
                future = self._compiling[key] = Future()
                # A thread cannot be stopped while xgrammar works: the caller must be able to leave it behind.
                threading.Thread(target=self._work, args=(key, future), name="grammar", daemon=True).start()
        try:
            return future.result(COMPILE_SECONDS)
        except FutureTimeoutError:
            raise ValueError(
                f"structured_outputs: {key[0]} was not compiled within {COMPILE_SECONDS:g} seconds"
            ) from None

    def _work(self, key: tuple[str, str], future: Future[Grammar]) -> None:
        """Compiles in a thread of its own. One that still waits for a seat when its callers have left does nothing."""
        try:
            if not self._seats.acquire(timeout=COMPILE_SECONDS):
                raise ValueError("structured_outputs: too many grammars are being compiled")
            try:
                grammar = self._compile(*key)
            finally:
                self._seats.release()
        except Exception as error:
            with self._lock:
                del self._compiling[key]
            future.set_exception(error)
            return
        with self._lock:
            del self._compiling[key]
            self._cache[key] = grammar
            while len(self._cache) > MAX_CACHED_GRAMMARS or self.num_cached_bytes > MAX_CACHED_BYTES:
                self._cache.popitem(last=False)
        future.set_result(grammar)

    @property
    def num_cached_bytes(self) -> int:
        return sum(grammar.num_bytes for grammar in self._cache.values())

    def _compile(self, kind: str, source: str) -> Grammar:
        with self._compiler_lock:
            if self._compiler is None:
                self._compiler = _Compiler(self._tokenizer, self._eos_token_ids, self._vocab_size)
        try:
            grammar = Grammar(self._compiler.compile(kind, source), self._vocab_size)
        except RuntimeError as error:
            raise ValueError(f"structured_outputs: {kind} cannot be followed: {_reason(error)}") from None
        if grammar.num_bytes > MAX_GRAMMAR_BYTES:
            raise ValueError(
                f"structured_outputs: {kind} takes {grammar.num_bytes} bytes when compiled, "
                f"at most {MAX_GRAMMAR_BYTES} are allowed"
            )
        trial = grammar.matcher()
        trial.allowed(())
        if trial.error is not None:
            raise ValueError(f"structured_outputs: {kind} cannot be followed: {trial.error}")
        return grammar


class Grammar:
    """A compiled grammar."""

    def __init__(self, compiled: Any, vocab_size: int) -> None:
        self._compiled = compiled
        self._vocab_size = vocab_size
        self.num_bytes: int = compiled.memory_size_bytes

    def matcher(self) -> Matcher:
        """For one output, at its start."""
        import xgrammar

        return Matcher(xgrammar.GrammarMatcher(self._compiled), self._vocab_size)


class Matcher:
    """Follows one output. What goes wrong is kept in `error`, and from then on no token is allowed."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self.error: str | None = None
        self._matcher = matcher
        self._mask: Mask = np.zeros(-(-vocab_size // 32), np.int32)
        self._mask_position = -1  # output tokens that the mask comes after
        self._unused = np.int32(-1 << vocab_size % 32) if vocab_size % 32 else np.int32(0)  # bits of the last word
        self._num_read = 0
        self._seconds = 0.0

    def allowed(self, output_token_ids: Sequence[int]) -> Mask:
        """Which tokens may follow the output so far: a view, valid until the next call."""
        self._read(output_token_ids)
        if self._mask_position != self._num_read:
            self._mask_position = self._num_read
            if self.error is None and not self._matcher.is_terminated():
                self._timed(lambda: self._matcher.fill_next_token_bitmask(self._mask[None]))
                self._mask[-1] &= ~self._unused
            else:
                self._mask[:] = 0
        if self.error is not None:
            self._mask[:] = 0
        return self._mask

    def allows_others(self, output_token_ids: Sequence[int], token_ids: Collection[int]) -> bool:
        """Whether a token that is not among `token_ids` may come next."""
        mask = self.allowed(output_token_ids).copy()
        for token_id in token_ids:
            mask.view(np.uint32)[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        return bool(mask.any())

    def ended(self, output_token_ids: Sequence[int]) -> bool:
        """Whether the output has come to the end of the grammar, EOS included."""
        self._read(output_token_ids)
        return self.error is None and bool(self._matcher.is_terminated())

    def _read(self, output_token_ids: Sequence[int]) -> None:
        while self._num_read < len(output_token_ids) and self.error is None:
            token_id = output_token_ids[self._num_read]
            self._num_read += 1
            if not self._timed(lambda token_id=token_id: self._matcher.accept_token(token_id)) and self.error is None:
                self.error = f"token {token_id} of the output, number {self._num_read}, is not in the grammar"

    def _timed(self, call: Any) -> Any:
        """The call's result; an exception, or too much time spent so far, becomes the error."""
        start = time.thread_time()
        try:
            return call()
        except RuntimeError as error:
            self.error = _reason(error)
        finally:
            self._seconds += time.thread_time() - start
            allowed = FIRST_SECONDS + SECONDS_PER_TOKEN * self._num_read
            if self._seconds > allowed and self.error is None:
                self.error = (
                    f"it took {self._seconds:.2f} s of computing to follow {self._num_read} tokens, "
                    f"at most {allowed:.2f} s are allowed"
                )


class _Compiler:
    """xgrammar's compiler for one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: list[int], vocab_size: int) -> None:
        try:
            import xgrammar
        except ImportError:
            raise ValueError(NOT_INSTALLED) from None
        if not eos_token_ids:
            raise ValueError("structured_outputs needs a model with an EOS token, and this one has none")
        self._xgrammar = xgrammar
        self._eos_token_ids = eos_token_ids
        tokens = token_bytes(tokenizer, vocab_size)
        self._loses_first_space = text_loses_first_space(tokenizer, tokens)
        self._for_text = self._compiler(tokens)
        self._for_json = self._compiler([b"" if _NOT_IN_JSON.search(token) else token for token in tokens])

    def _compiler(self, tokens: list[bytes]) -> Any:
        """For texts of these tokens; an empty one is not used."""
        xgrammar = self._xgrammar
        vocabulary = xgrammar.TokenizerInfo(
            tokens, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=self._eos_token_ids
        )
        return xgrammar.GrammarCompiler(vocabulary, max_threads=1, cache_enabled=False)

    def compile(self, kind: str, source: str) -> Any:
        """Raises RuntimeError with xgrammar's reason."""
        make = {
            "json": self._xgrammar.Grammar.from_json_schema,
            "regex": self._xgrammar.Grammar.from_regex,
            "grammar": self._xgrammar.Grammar.from_ebnf,
            "choice": self._xgrammar.Grammar.from_ebnf,
            "json_object": lambda _: self._xgrammar.Grammar.from_json_schema('{"type": "object"}', strict_mode=False),
        }[kind]
        grammar = make(source)
        if self._loses_first_space:  # so the tokens must spell one more
            grammar = self._xgrammar.Grammar.concat(self._xgrammar.Grammar.from_ebnf('root ::= " "'), grammar)
        compiler = self._for_json if kind in ("json", "json_object") else self._for_text
        return compiler.compile_grammar(grammar)


def _source_of(params: StructuredOutputsParams) -> tuple[str, str]:
    """The field that is given, and what it says as one text."""
    for kind in ("json", "regex", "grammar"):
        source = getattr(params, kind)
        if source is not None:
            return kind, source
    if params.choice is not None:
        return "choice", "root ::= " + " | ".join(map(_quoted, params.choice))
    return "json_object", ""


def _quoted(text: str) -> str:
    """`text` as a string of EBNF."""
    return '"' + "".join(c if c.isascii() and c.isalnum() else f"\\U{ord(c):08X}" for c in text) + '"'


def _reason(error: RuntimeError) -> str:
    """xgrammar's message without its own time, file and line."""
    text = re.sub(r"\[\d\d:\d\d:\d\d\] \S+: ", "", str(error)).strip()
    return text if len(text) <= 300 else f"{text[:297]}..."
