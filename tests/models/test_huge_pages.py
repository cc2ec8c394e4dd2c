"""Tensors cut from one mapping."""

from __future__ import annotations

import resource

import pytest
import torch

from cudaprefill.engine import kv_cache
from cudaprefill.engine.kv_cache import KVCache
from cudaprefill.huge_pages import HUGE_PAGE, HugePages, populate

SHAPES = [((3, 5), torch.float32), ((7,), torch.bfloat16), ((0, 4), torch.float32), ((33,), torch.float16)]


def test_tensors_are_apart_and_start_at_cache_lines() -> None:
    pages = HugePages(sum(HugePages.size_of(shape, dtype) for shape, dtype in SHAPES), "a test")
    tensors = [pages.empty(shape, dtype) for shape, dtype in SHAPES]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number + 1)
    for number, (tensor, (shape, dtype)) in enumerate(zip(tensors, SHAPES, strict=True)):
        assert (tensor.shape, tensor.dtype) == (shape, dtype)
        assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0
        assert (tensor == number + 1).all()


def test_the_mapping_outlives_its_owner() -> None:
    pages = HugePages(1 << 20, "a test")
    tensor = pages.empty((1 << 18,), torch.float32)
    del pages
    tensor.fill_(3.0)
    assert tensor.sum() == 3.0 * (1 << 18)


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    pages = HugePages(128, "a test")
    pages.empty((16,), torch.float32)
    with pytest.raises(MemoryError, match=r"128 bytes does not fit into the 64"):
        pages.empty((32,), torch.float32)


def test_memory_that_the_system_refuses_is_named_with_its_use() -> None:
    with pytest.raises(OSError, match=r"^the system refuses 1048576.0 TiB for the KV cache: Cannot allocate memory$"):
        HugePages(2**60, "the KV cache")


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def test_a_kv_cache_is_populated_in_the_order_of_its_blocks_a_large_page_at_a_time() -> None:
    cache = KVCache(num_layers=2, num_blocks=256, num_kv_heads=2, block_size=16, head_size=128, dtype=torch.float32)
    if not populate(cache.data[0, 0, :1]):
        pytest.skip("this system has no MADV_POPULATE_WRITE")
    pieces = cache.populate_in_pieces()
    for _ in range(4):  # 2 MiB each: the first 128 of the 256 blocks, K and V of both layers
        next(pieces)
    before = page_faults()
    cache.data[:, :, 1:127, :, :, 0] = 1.0
    assert page_faults() - before < 5
    assert len(list(pieces)) == 4


@pytest.mark.parametrize(("rows", "pieces"), [(0, 0), (1, 4), (2, 8), (9, 8)])
def test_population_leaves_memory_for_the_activations_of_a_step(
    rows: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is a large page of each part, 8 MiB in all; there are two."""
    cache = KVCache(num_layers=2, num_blocks=256, num_kv_heads=2, block_size=16, head_size=128, dtype=torch.float32)
    taken: list[int] = []
    monkeypatch.setattr(kv_cache, "populate", lambda part: not taken.append(part.nbytes))  # type: ignore[func-returns-value]
    monkeypatch.setattr(kv_cache, "memory_left", lambda: kv_cache.LEFT_FREE + rows * 2**23 - sum(taken))
    assert len(list(cache.populate_in_pieces())) == pieces
    assert taken == [HUGE_PAGE] * pieces


def test_a_populated_kv_cache_is_written_without_a_page_fault_and_keeps_what_it_held() -> None:
    cache = KVCache(
        num_layers=3, num_blocks=1000, num_kv_heads=2, block_size=16, head_size=32, dtype=torch.float32
    )  # 23 MiB, no multiple of a page in any of its parts
    cache.data[1, 1, 7] = 5.0
    if not populate(cache.data[0, 0, :1]):
        pytest.skip("this system has no MADV_POPULATE_WRITE")
    cache.populate()
    assert (cache.data[1, 1, 7] == 5.0).all()
    before = page_faults()
    cache.data.view(-1)[::1024] = 1.0  # each page of 4 KiB
    assert page_faults() - before < 5  # 6,000 without, or 12 where all pages are huge
