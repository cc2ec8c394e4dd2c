"""Tokens in front of a prompt that no vocabulary has: their embeddings are given, or their keys and values are.

    position      0 .. G                      G .. G + E                     G + E ..
    token id      -1, -2, ..., -G             -G - 1, ..., -G - E            >= 0
    comes from    keys and values, written    embeddings, in the place of    the embedding matrix
                  into the KV cache as a      rows of the embedding
                  request is admitted         matrix

They take slots and positions like any others, and full blocks of them are published in the prefix index. Their ids are
below zero, so they are never equal to a token of a text; what they stand for is said by an extra key, the hash of the
content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class VirtualTokens:
    """keys_values: [num_layers, 2, G, Hkv, D] of the KV cache's dtype; embeddings: [E, H] of the activation dtype.

    With a float8 cache the former are of the activation dtype as well.
    """

    keys_values: Tensor | None = None
    embeddings: Tensor | None = None

    @property
    def num_given(self) -> int:
        """Those whose keys and values are given, so that they are never computed."""
        return 0 if self.keys_values is None else self.keys_values.shape[2]

    @property
    def num_embedded(self) -> int:
        return 0 if self.embeddings is None else self.embeddings.shape[0]

    @property
    def num_tokens(self) -> int:
        return self.num_given + self.num_embedded

    @property
    def token_ids(self) -> list[int]:
        return list(range(-1, -1 - self.num_tokens, -1))


NO_VIRTUAL_TOKENS = VirtualTokens()
