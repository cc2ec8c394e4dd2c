"""A model without arithmetic whose every output depends on every token of the context, read back through the paged KV.

The "KV" of a token is its id. A slot that was never written, was freed, or belongs to somebody else therefore changes
the output, and so does a token in the wrong place.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

TABLE_POISON = 2**31 - 1  # no block table entry within a context is this


def context_hash(token_ids: Sequence[int] | NDArray[np.int64]) -> int:
    return zlib.crc32(np.asarray(token_ids, dtype=np.int64).tobytes())


def pick_token(hidden: int, salt: int, vocab_size: int) -> int:
    """The "sampled" token: another salt gives another stream."""
    return zlib.crc32(salt.to_bytes(8, "little"), int(hidden)) % vocab_size


def continuation(
    prompt: Sequence[int],
    *,
    vocab_size: int,
    max_length: int,
    max_tokens: int | None = None,
    min_tokens: int = 0,
    ends: Iterable[int] = (),
    salt: int = 0,
) -> tuple[list[int], str]:
    """What a request must give, one token after the other and without any cache: output and finish reason.

    `max_length` bounds prompt plus output; `ends` are the tokens that stop it.
    """
    tokens = list(prompt)
    while True:
        tokens.append(pick_token(context_hash(tokens), salt, vocab_size))
        output = tokens[len(prompt) :]
        if tokens[-1] in ends and len(output) >= min_tokens:
            return output, "stop"
        if len(tokens) >= max_length or len(output) == max_tokens:
            return output, "length"


class FakeModel:
    """Takes a Batch or BatchArrays. Its cache starts as garbage; `poison` makes garbage of blocks again."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 50) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self._random = np.random.default_rng(0)
        self.cache = self._garbage(num_blocks)  # [num_blocks, block_size]

    def _garbage(self, num_blocks: int) -> NDArray[np.int64]:
        return self._random.integers(-(2**62), -1, size=(num_blocks, self.block_size))

    def poison(self, blocks: NDArray[np.bool_]) -> None:
        self.cache[blocks] = self._garbage(int(blocks.sum()))

    def forward(self, batch: Any, kv_cache: Any = None) -> NDArray[np.uint32]:
        """[T]: the hash of the context of each row that is sampled; rows that are not sampled stay zero."""
        table = np.asarray(batch.block_table)
        starts = np.asarray(batch.cu_seqlens_q)
        contexts = np.asarray(batch.context_lens)
        positions = np.asarray(batch.position_ids)
        slots = np.asarray(batch.slot_mapping)
        copies = np.asarray(batch.block_copies)
        # Copies may run in any order, all before the first write; no two rows may write one slot.
        assert not set(copies[:, 0].tolist()) & set(copies[:, 1].tolist())
        assert len(set(slots.tolist())) == len(slots)
        self.cache[copies[:, 1]] = self.cache[copies[:, 0]]
        self.cache.reshape(-1)[slots] = np.asarray(batch.token_ids)
        hidden = np.zeros(len(slots), dtype=np.uint32)
        request_of = np.searchsorted(starts, np.asarray(batch.logits_rows), side="right") - 1
        for request in range(len(contexts)):
            rows = slice(starts[request], starts[request + 1])
            expected = np.arange(contexts[request] - (rows.stop - rows.start), contexts[request])
            assert np.array_equal(positions[rows], expected)
            assert np.array_equal(
                slots[rows],
                table[request, expected // self.block_size].astype(np.int64) * self.block_size
                + expected % self.block_size,
            )
        for row, request in zip(np.asarray(batch.logits_rows), request_of, strict=True):
            assert row == starts[request + 1] - 1
            num_blocks = -(-contexts[request] // self.block_size)
            hidden[row] = context_hash(self.cache[table[request, :num_blocks]].reshape(-1)[: contexts[request]])
        return hidden

    def logits(self, hidden: NDArray[np.uint32]) -> NDArray[np.float32]:
        """[R, V]: the token of salt 0 has the best logit."""
        logits = np.zeros((len(hidden), self.vocab_size), dtype=np.float32)
        logits[np.arange(len(hidden)), [pick_token(h, 0, self.vocab_size) for h in hidden]] = 10.0
        return logits
