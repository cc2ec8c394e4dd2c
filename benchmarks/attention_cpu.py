"""Attention on the CPU beside what the machine can do, all measured in this run.

Prefill is told in GFLOP/s (4 * head_size for each pair of a query and a key that it sees) beside the float32 GEMM of
torch; decoding in GB/s of keys and values beside a plain read of memory. Torch's own attention works on the same
numbers laid out contiguously.

    python -m benchmarks.attention_cpu [--threads N] [--seconds S]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from cudaprefill import ops

BLOCK_SIZE = 16
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Bench:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.gemm_flops = self._gemm_flops()
        self.read_bytes = self._read_bytes()

    def best(self, work: Callable[[], object]) -> float:
        """The shortest of the runs that fit into the time, in seconds."""
        work()
        shortest = math.inf
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end or shortest == math.inf:
            start = time.perf_counter()
            work()
            shortest = min(shortest, time.perf_counter() - start)
        return shortest

    def _gemm_flops(self) -> float:
        size = 2048
        a, b = torch.randn(size, size), torch.randn(size, size)
        return 2 * size**3 / self.best(lambda: a @ b)

    def _read_bytes(self) -> float:
        numbers = torch.ones(64 * 2**20)  # 256 MiB: more than any cache
        return numbers.nbytes / self.best(numbers.sum)

    def prefill(
        self, new_tokens: int, context_len: int, heads: tuple[int, int], head_size: int, kv_dtype: torch.dtype
    ) -> None:
        q = torch.randn(new_tokens, heads[0], head_size)
        keys, values, caches, block_table = paged(1, context_len, heads[1], head_size, kv_dtype)
        out = torch.empty_like(q)
        cu_seqlens_q = torch.tensor([0, new_tokens], dtype=torch.int32)
        context_lens = torch.tensor([context_len], dtype=torch.int32)
        scale = head_size**-0.5
        ours = self.best(lambda: ops.prefill_attention(q, *caches, block_table, cu_seqlens_q, context_lens, out, scale))
        mask = torch.ones(new_tokens, context_len, dtype=torch.bool).tril(context_len - new_tokens)
        whole = new_tokens == context_len
        contiguous = q.transpose(0, 1)[None], keys.float(), values.float()
        torchs = self.best(
            lambda: scaled_dot_product_attention(
                *contiguous, attn_mask=None if whole else mask, is_causal=whole, enable_gqa=True
            )
        )
        pairs = new_tokens * (2 * context_len - new_tokens + 1) // 2
        rate = 4 * head_size * heads[0] * pairs / ours
        print(
            f"prefill {new_tokens:6} new of {context_len:6}  heads {heads[0]:2}/{heads[1]}  D {head_size:3}  "
            f"{NAMES[kv_dtype]:8}  {ours * 1e3:8.2f} ms  {rate / 1e9:6.0f} GFLOP/s  "
            f"{rate / self.gemm_flops:5.2f} x GEMM  {torchs / ours:5.2f} x as fast as torch"
        )

    def decode(
        self, requests: int, context_len: int, heads: tuple[int, int], head_size: int, kv_dtype: torch.dtype
    ) -> None:
        q = torch.randn(requests, heads[0], head_size)
        keys, values, caches, block_table = paged(requests, context_len, heads[1], head_size, kv_dtype)
        out = torch.empty_like(q)
        context_lens = torch.full((requests,), context_len, dtype=torch.int32)
        scale = head_size**-0.5
        ours = self.best(lambda: ops.decode_attention(q, *caches, block_table, context_lens, out, scale))
        contiguous = q[:, :, None].to(kv_dtype), keys, values
        torchs = self.best(lambda: scaled_dot_product_attention(*contiguous, enable_gqa=True))
        rate = (keys.nbytes + values.nbytes) / ours
        print(
            f"decode {requests:4} requests of {context_len:6}  heads {heads[0]:2}/{heads[1]}  D {head_size:3}  "
            f"{NAMES[kv_dtype]:8}  {ours * 1e6:8.1f} us  {rate / 1e9:6.1f} GB/s  "
            f"{rate / self.read_bytes:5.2f} x read  {torchs / ours:5.2f} x as fast as torch"
        )


def paged(
    requests: int, context_len: int, num_kv_heads: int, head_size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
    """Keys and values [requests, Hkv, L, D], the same in shuffled blocks, and the block table."""
    blocks = math.ceil(context_len / BLOCK_SIZE)
    block_table = torch.randperm(requests * blocks).view(requests, blocks)

    def cache_of(rows: Tensor) -> Tensor:
        padded = torch.zeros(requests, num_kv_heads, blocks * BLOCK_SIZE, head_size, dtype=dtype)
        padded[:, :, :context_len] = rows
        cache = torch.empty(requests * blocks, num_kv_heads, BLOCK_SIZE, head_size, dtype=dtype)
        cache[block_table.flatten()] = (
            padded.view(requests, num_kv_heads, blocks, BLOCK_SIZE, head_size).transpose(1, 2).flatten(0, 1)
        )
        return cache

    keys, values = (torch.randn(requests, num_kv_heads, context_len, head_size).to(dtype) for _ in range(2))
    return keys, values, (cache_of(keys), cache_of(values)), block_table.int()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each measurement")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ops.set_num_threads(arguments.threads)
    bench = Bench(arguments.seconds)
    print(
        f"{ops.cpu_isa()}, {arguments.threads} threads: float32 GEMM {bench.gemm_flops / 1e9:.0f} GFLOP/s, "
        f"read {bench.read_bytes / 1e9:.1f} GB/s"
    )
    for new_tokens, context_len in ((64, 64), (1600, 1600), (3200, 3200), (16, 8192), (64, 8192), (256, 8192)):
        bench.prefill(new_tokens, context_len, (9, 3), 64, torch.float32)
    bench.prefill(1600, 1600, (9, 3), 64, torch.bfloat16)
    bench.prefill(1600, 1600, (9, 9), 64, torch.float32)
    bench.prefill(1600, 1600, (32, 8), 128, torch.bfloat16)
    for requests, context_len in ((1, 64), (1, 1024), (1, 65536), (64, 1024)):
        bench.decode(requests, context_len, (9, 3), 64, torch.float32)
        bench.decode(requests, context_len, (9, 3), 64, torch.bfloat16)
    bench.decode(16, 4096, (32, 8), 128, torch.bfloat16)
    bench.decode(16, 4096, (32, 2), 128, torch.float16)


if __name__ == "__main__":
    main()
