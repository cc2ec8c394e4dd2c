"""The C++ core: block pool, prefix index, request table, batch builder (csrc/core)."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_Rows = NDArray[np.int32] | Sequence[int]

class BlockState(IntEnum):
    FREE = 0
    ACTIVE = 1  # one reference
    SHARED = 2  # more than one
    CACHED = 3  # none, findable by its prefix

class FinishReason(IntEnum):
    EOS = 1
    STOP_TOKEN = 2
    LENGTH = 3

class BlockPool:
    """Reference-counted blocks with a prefix index. Without `hash_key` the hashes are keyed by random numbers.

    Raises ValueError when a size is below 1.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        *,
        hash_key: tuple[int, int] | None = None,
        constant_hash: bool = False,
    ) -> None: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def num_free(self) -> int:
        """Blocks with nothing worth keeping."""
    @property
    def num_cached(self) -> int:
        """Blocks nobody holds that are findable by their prefix."""
    @property
    def num_used(self) -> int: ...
    @property
    def num_available(self) -> int:
        """Free and cached blocks."""
    @property
    def num_taken(self) -> int:
        """How often a block came into use, since construction."""
    @property
    def num_freed(self) -> int:
        """How often a block went out of use, since construction."""
    @property
    def num_evicted(self) -> int:
        """How often a cached block lost its prefix to another use, since construction."""
    def set_step(self, step: int) -> None:
        """The step that blocks used from now on remember as their last use."""
    def allocate(self) -> int | None:
        """A block with one reference, None when all are in use."""
    def share(self, block: int) -> None:
        """One more reference. Raises RuntimeError for a free block, IndexError for an id that is no block."""
    def free(self, blocks: Sequence[int]) -> None:
        """One reference less for each. Raises ValueError for a free block, IndexError for an id that is no block."""
    def reset_prefix_cache(self) -> None: ...
    def states(self) -> NDArray[np.uint8]:
        """[num_blocks]: the BlockState of each."""
    def virtual_blocks(self) -> NDArray[np.bool_]:
        """[num_blocks]: whether a block holds virtual tokens."""
    def record_changes(self, wanted: bool) -> None: ...
    def take_changes(self) -> NDArray[np.int32]:
        """[C, 4]: block, its BlockState now, 1 if it was cached in between and its prefix is forgotten, and 1 if it
        holds virtual tokens now.

        For each block that is not what it was at the last call, or that was evicted since; none unless recorded.
        """
    def record_evictions(self, wanted: bool) -> None: ...
    def take_evictions(self) -> NDArray[np.uint64]:
        """[E]: the hashes, as `RequestTable.block_hashes` has them, of prefixes evicted since the last call, in order;
        empty unless recorded."""
    def check(self) -> None:
        """Raises RuntimeError naming the first broken invariant."""

class Admission:
    @property
    def admitted(self) -> bool: ...
    @property
    def hit_tokens(self) -> int: ...
    @property
    def needed(self) -> int: ...
    @property
    def available(self) -> int: ...

class Finished:
    @property
    def index(self) -> int: ...
    @property
    def reason(self) -> FinishReason: ...
    @property
    def token(self) -> int: ...

class BlockInfo:
    @property
    def state(self) -> BlockState: ...
    @property
    def reference_count(self) -> int: ...
    @property
    def last_use(self) -> int: ...
    @property
    def hash(self) -> str | None: ...
    @property
    def owners(self) -> list[int]: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def extra_keys(self) -> list[tuple[str, bytes]]: ...

class RequestTable:
    """Tokens, block tables, prefix chains and limits of requests. csrc/core/request_table.h describes a step.

    A row that holds no request raises IndexError.
    """

    def __init__(self, pool: BlockPool) -> None: ...
    def add(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_length: int,
        min_length: int = 0,
        eos_token_ids: Sequence[int] = (),
        stop_token_ids: Sequence[int] = (),
        extra_keys: Sequence[tuple[str, bytes]] = (),
    ) -> int: ...
    def fork(self, row: int) -> int: ...
    def remove(self, row: int) -> None: ...
    def admit(self, row: int, headroom: int = 0) -> Admission: ...
    def give(self, row: int, num_tokens: int) -> None: ...
    def reserve(self, row: int, num_tokens: int) -> int: ...
    def reserve_decodes(self, rows: _Rows, begin: int = 0) -> int: ...
    def preempt(self, row: int) -> None: ...
    def complete(self, rows: _Rows) -> None: ...
    def append(self, rows: _Rows, tokens: NDArray[np.int64] | Sequence[int]) -> list[Finished]: ...
    def end_step(self) -> None: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_promised_blocks(self) -> int: ...
    def num_tokens(self, row: int) -> int: ...
    def num_computed(self, row: int) -> int: ...
    def token_ids(self, row: int) -> list[int]: ...
    def output_token_ids(self, row: int) -> list[int]: ...
    def block_table(self, row: int) -> list[int]: ...
    def block_tables(self, rows: _Rows) -> list[NDArray[np.int32]]:
        """Copies, one a row."""
    def total_tokens(self, rows: _Rows) -> int:
        """Prompt and output tokens of all these rows."""
    def count_used_tokens(self) -> int:
        """Tokens whose KV the blocks in use hold, those of shared blocks counted once. Looks through all tables."""
    def block_hashes(self, row: int) -> NDArray[np.uint64]:
        """Of the row's full blocks: each covers its block's tokens and all before them. They are keyed by the pool's
        secret, so they tell equal prefixes of one pool apart from others and say nothing else."""
    def describe(self, block: int) -> BlockInfo: ...
    def check(self) -> None: ...

class BatchBuilder:
    """Fills arrays that are allocated once. csrc/core/batch_builder.h gives their layout."""

    def __init__(self, table: RequestTable, max_tokens: int, max_requests: int, max_length: int) -> None: ...
    def build(
        self, decodes: _Rows, chunks: _Rows
    ) -> tuple[
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int64],
    ]:
        """The fields of `BatchArrays` (engine/schedule.py), in their order.

        Views that the next call overwrites. Raises ValueError when the step is larger than the arrays.
        """
