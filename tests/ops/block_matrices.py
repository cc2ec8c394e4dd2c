"""Random weights in the block formats of GGUF files, and what the gguf package says that they are."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cudaprefill import ops

FORMATS = sorted(ops.BLOCK_FORMATS)

# Where a block holds half-precision scales: these are drawn small and finite, every other byte is drawn freely.
_SCALES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}


def random_blocks(block_format: int, num_rows: int, num_columns: int, seed: int = 0) -> Tensor:
    """[num_rows, bytes of num_columns elements] uint8."""
    form = ops.BLOCK_FORMATS[block_format]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (num_rows, num_columns // form.elements, form.num_bytes), dtype=np.uint8)
    for at in _SCALES[form.name]:
        scales = random.normal(scale=0.02, size=(*blocks.shape[:2], 1)).astype(np.float16)
        blocks[:, :, at : at + 2] = scales.view(np.uint8)
    return torch.from_numpy(blocks.reshape(num_rows, num_columns // form.elements * form.num_bytes))


def groups_of(blocks: Tensor, block_format: int) -> Tensor:
    """The blocks as the kernels read them."""
    form = ops.BLOCK_FORMATS[block_format]
    num_columns = blocks.shape[1] // form.num_bytes * form.elements
    groups = torch.full(form.groups_shape(blocks.shape[0], num_columns), 0xFF, dtype=torch.uint8)
    ops.group_blocks(blocks, block_format, groups)
    return groups


def values_of(blocks: Tensor, block_format: int) -> Tensor:
    """The matrix as the gguf package dequantises it, float32."""
    if blocks.numel() == 0:
        form = ops.BLOCK_FORMATS[block_format]
        return torch.zeros(blocks.shape[0], blocks.shape[1] // form.num_bytes * form.elements)
    import gguf  # what else is here serves machines that lack it

    return torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType(block_format)))
