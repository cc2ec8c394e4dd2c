"""Tensors cut from one mapping."""

from __future__ import annotations

import pytest
import torch

from cudaprefill.huge_pages import HugePages

SHAPES = [((3, 5), torch.float32), ((7,), torch.bfloat16), ((0, 4), torch.float32), ((33,), torch.float16)]


def test_tensors_are_apart_and_start_at_cache_lines() -> None:
    pages = HugePages(sum(HugePages.size_of(shape, dtype) for shape, dtype in SHAPES))
    tensors = [pages.empty(shape, dtype) for shape, dtype in SHAPES]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number + 1)
    for number, (tensor, (shape, dtype)) in enumerate(zip(tensors, SHAPES, strict=True)):
        assert (tensor.shape, tensor.dtype) == (shape, dtype)
        assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0
        assert (tensor == number + 1).all()


def test_the_mapping_outlives_its_owner() -> None:
    pages = HugePages(1 << 20)
    tensor = pages.empty((1 << 18,), torch.float32)
    del pages
    tensor.fill_(3.0)
    assert tensor.sum() == 3.0 * (1 << 18)


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    pages = HugePages(128)
    pages.empty((16,), torch.float32)
    with pytest.raises(MemoryError, match=r"128 bytes does not fit into the 64"):
        pages.empty((32,), torch.float32)
