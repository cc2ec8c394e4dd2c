"""The ops of a decode step inside a CUDA graph: one capture serves every length that fits its block table."""

from __future__ import annotations

import math

import pytest
import torch

from cudaprefill import ops
from tests.ops.attention_reference import assert_as_exact_as_torch, paged_batch


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_captured_decode_follows_the_lengths_in_its_buffers():
    batches = [
        paged_batch([1, 1], lens, dtype=torch.bfloat16, kv_dtype=torch.bfloat16, seed=seed)
        for seed, lens in enumerate([[4000, 33], [1, 3999], [700, 0]])
    ]
    columns = max(batch.block_table.shape[1] for batch in batches)
    blocks = max(batch.k_cache.shape[0] for batch in batches)
    shape = (blocks, *batches[0].k_cache.shape[1:])
    k_cache, v_cache = (torch.full(shape, math.nan, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    table = torch.zeros(2, columns, dtype=torch.int32, device="cuda")
    lens = torch.ones(2, dtype=torch.int32, device="cuda")
    q = torch.zeros_like(batches[0].q, device="cuda")
    out = torch.empty_like(q)

    def step() -> None:
        ops.decode_attention(q, k_cache, v_cache, table, lens, out, batches[0].scale)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        k_cache[0], v_cache[0] = 0, 0
        step()  # outside of the capture once: what is loaded lazily is loaded
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for batch in batches:
        k_cache[: batch.k_cache.shape[0]].copy_(batch.k_cache)
        v_cache[: batch.v_cache.shape[0]].copy_(batch.v_cache)
        table[:, : batch.block_table.shape[1]].copy_(batch.block_table)
        lens.copy_(batch.context_lens)
        q.copy_(batch.q)
        graph.replay()
        assert_as_exact_as_torch(out.cpu(), batch)
