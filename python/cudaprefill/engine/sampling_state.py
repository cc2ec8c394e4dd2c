"""What the sampler needs to know of one output between steps."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cudaprefill.engine.penalties import TokenCounts
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.text.grammar import Grammar, Matcher

if TYPE_CHECKING:
    import numpy.typing as npt

_BLOCK = 64  # uniforms made at a time
_PER_COUNTER = 4  # uniforms of one Philox counter value


class SamplingState:
    """One output of a request, as the sampler sees it. A plain greedy output holds nothing but references.

    prompt_token_ids, output_token_ids: the request's own lists, read at every step and never copied.
    stop_token_ids: what min_tokens keeps from being drawn: EOS unless it is ignored, and the stop tokens.
    index: which of the n outputs.
    matcher: where the text must follow a grammar.
    """

    __slots__ = (
        "_block",
        "_block_number",
        "_counts",
        "_grammar",
        "_seed",
        "greedy",
        "index",
        "matcher",
        "output_token_ids",
        "params",
        "penalized",
        "prompt_token_ids",
        "stop_token_ids",
    )

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        output_token_ids: list[int],
        eos_token_ids: Sequence[int] = (),
        index: int = 0,
        seed: int | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        """`seed` overrides that of `params`."""
        self.params = params
        self.prompt_token_ids = prompt_token_ids
        self.output_token_ids = output_token_ids
        self.stop_token_ids: Sequence[int] = ()
        if params.min_tokens:
            ends = () if params.ignore_eos else eos_token_ids
            self.stop_token_ids = tuple({*ends, *(params.stop_token_ids or ())})
        self.index = index
        self.greedy = params.greedy
        self.penalized = (
            params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        )
        self.matcher: Matcher | None = None if grammar is None else grammar.matcher()
        self._grammar = grammar
        self._seed = params.seed if seed is None else seed
        self._block_number = -1
        self._block: npt.NDArray[np.float64] | None = None
        self._counts: TokenCounts | None = None

    def fork(self, index: int, output_token_ids: list[int]) -> SamplingState:
        """The state of output `index` of the same request: the same seed, a stream of uniforms of its own."""
        return SamplingState(
            self.params,
            self.prompt_token_ids,
            output_token_ids,
            self.stop_token_ids,
            index,
            seed=self.seed,
            grammar=self._grammar,
        )

    @property
    def seed(self) -> int:
        """The request's own seed, or one from the operating system, drawn when it is first needed."""
        if self._seed is None:
            self._seed = secrets.randbits(64)
        return self._seed

    @property
    def modified(self) -> bool:
        """Whether the next token is chosen from other logits than the model's own."""
        return self.penalized or bool(self.params.logit_bias) or self.matcher is not None or self.is_shorter_than_asked

    @property
    def is_shorter_than_asked(self) -> bool:
        """Whether min_tokens keeps stop tokens from coming next."""
        return bool(self.stop_token_ids) and len(self.output_token_ids) < self.params.min_tokens

    @property
    def masked_stop_tokens(self) -> Sequence[int]:
        """The stop tokens that must not come next. Where a grammar has come to its end, they are all it leaves."""
        if not self.is_shorter_than_asked:
            return ()
        if self.matcher is not None and not self.matcher.allows_others(self.output_token_ids, self.stop_token_ids):
            return ()
        return self.stop_token_ids

    @property
    def at_end_of_grammar(self) -> bool:
        """Whether the output has ended as its grammar says. Always False without one."""
        return self.matcher is not None and self.matcher.ended(self.output_token_ids)

    def next_uniform(self) -> float:
        """The number in [0, 1) that draws the next token.

        It depends on the seed, the output's index and the token's position alone, so that neither neighbours nor a
        preemption change it. Asking twice for the same position gives the same number.
        """
        number, offset = divmod(len(self.output_token_ids), _BLOCK)
        if number != self._block_number or self._block is None:
            philox = np.random.Philox(counter=number * (_BLOCK // _PER_COUNTER), key=self.seed | self.index << 64)
            self._block = np.random.Generator(philox).random(_BLOCK)
            self._block_number = number
        return float(self._block[offset])

    def token_counts(self) -> TokenCounts:
        """The tokens that penalties apply to, up to date."""
        if self._counts is None:
            repeats = self.params.repetition_penalty != 1.0
            self._counts = TokenCounts(self.prompt_token_ids if repeats else ())
        self._counts.update(self.output_token_ids)
        return self._counts
