"""Attention on the CPU beside what the machine can do, all measured in this run.

Prefill is told in GFLOP/s (4 * head_size for each pair of a query and a key that it sees), and as a multiple of two
float32 matrix products that take turns with it: our own at the shape of a MLP, and torch's. Decoding is told in GB/s of
keys and values beside a plain read of memory. Torch's own attention works on the same numbers laid out contiguously.

    python -m benchmarks.attention_cpu [--threads N] [--seconds S] [--cpu-time]

Times are the shortest of those that fit into `--seconds`. With --cpu-time they are the CPU time of one thread: on a
machine that is busy with other things, that alone can be compared.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from cudaprefill import ops

BLOCK_SIZE = 16
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
GEMM_ROWS, GEMM_INPUTS, GEMM_OUTPUTS = 512, 576, 3072


class Bench:
    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = seconds
        self._clock = clock
        self._x, self._weight = torch.randn(GEMM_ROWS, GEMM_INPUTS), torch.randn(GEMM_OUTPUTS, GEMM_INPUTS)
        numbers = torch.ones(64 * 2**20)  # 256 MiB: more than any cache
        self.read_bytes = numbers.nbytes / self.shortest(numbers.sum)[0]

    def shortest(self, *works: Callable[[], object]) -> list[float]:
        """The shortest time of each of the works, which take turns so that the same disturbances hit all of them."""
        for work in works:
            work()
        times = [math.inf] * len(works)
        end = time.perf_counter() + self.seconds * len(works)
        while time.perf_counter() < end or math.inf in times:
            for i, work in enumerate(works):
                start = self._clock()
                work()
                times[i] = min(times[i], self._clock() - start)
        return times

    def prefill(
        self, new_tokens: int, context_len: int, heads: tuple[int, int], head_size: int, kv_dtype: torch.dtype
    ) -> None:
        q = torch.randn(new_tokens, heads[0], head_size)
        keys, values, caches, block_table = paged(1, context_len, heads[1], head_size, kv_dtype)
        out = torch.empty_like(q)
        cu_seqlens_q = torch.tensor([0, new_tokens], dtype=torch.int32)
        context_lens = torch.tensor([context_len], dtype=torch.int32)
        scale = head_size**-0.5
        mask = torch.ones(new_tokens, context_len, dtype=torch.bool).tril(context_len - new_tokens)
        whole = new_tokens == context_len
        contiguous = q.transpose(0, 1)[None], keys.float(), values.float()
        ours, torchs, linear, gemm = self.shortest(
            lambda: ops.prefill_attention(q, *caches, block_table, cu_seqlens_q, context_lens, out, scale),
            lambda: scaled_dot_product_attention(
                *contiguous, attn_mask=None if whole else mask, is_causal=whole, enable_gqa=True
            ),
            lambda: ops.linear(self._x, self._weight),
            lambda: functional.linear(self._x, self._weight),
        )
        pairs = new_tokens * (2 * context_len - new_tokens + 1) // 2
        rate = 4 * head_size * heads[0] * pairs / ours
        gemm_flops = 2 * GEMM_ROWS * GEMM_INPUTS * GEMM_OUTPUTS
        print(
            f"prefill {new_tokens:6} new of {context_len:6}  heads {heads[0]:2}/{heads[1]}  D {head_size:3}  "
            f"{NAMES[kv_dtype]:8}  {ours * 1e3:8.2f} ms  {rate / 1e9:6.0f} GFLOP/s  "
            f"{rate * linear / gemm_flops:5.2f} x ops.linear's {gemm_flops / linear / 1e9:.0f}  "
            f"{rate * gemm / gemm_flops:5.2f} x torch's GEMM  {torchs / ours:5.2f} x as fast as torch",
            flush=True,
        )

    def decode(
        self, requests: int, context_len: int, heads: tuple[int, int], head_size: int, kv_dtype: torch.dtype
    ) -> None:
        q = torch.randn(requests, heads[0], head_size)
        keys, values, caches, block_table = paged(requests, context_len, heads[1], head_size, kv_dtype)
        out = torch.empty_like(q)
        context_lens = torch.full((requests,), context_len, dtype=torch.int32)
        scale = head_size**-0.5
        contiguous = q[:, :, None].to(kv_dtype), keys, values
        ours, torchs = self.shortest(
            lambda: ops.decode_attention(q, *caches, block_table, context_lens, out, scale),
            lambda: scaled_dot_product_attention(*contiguous, enable_gqa=True),
        )
        rate = (keys.nbytes + values.nbytes) / ours
        print(
            f"decode {requests:4} requests of {context_len:6}  heads {heads[0]:2}/{heads[1]}  D {head_size:3}  "
            f"{NAMES[kv_dtype]:8}  {ours * 1e6:8.1f} us  {rate / 1e9:6.1f} GB/s  "
            f"{rate / self.read_bytes:5.2f} x read  {torchs / ours:5.2f} x as fast as torch",
            flush=True,
        )

    def all(self) -> None:
        """The shapes of a Llama of 135 million weights (9 query heads, 3 KV heads) and of one of 8 billion (32, 8)."""
        small, large = ((9, 3), 64), ((32, 8), 128)
        for kv_dtype in (torch.float32, torch.float16, torch.bfloat16):
            for new_tokens, context_len in ((1600, 1600), (3200, 3200), (8000, 8000), (512, 8192), (32, 2432)):
                self.prefill(new_tokens, context_len, *small, kv_dtype)
            self.prefill(1600, 1600, *large, kv_dtype)
        for new_tokens, context_len in ((64, 64), (16, 8192)):
            self.prefill(new_tokens, context_len, *small, torch.float32)
        self.prefill(1600, 1600, (9, 9), 64, torch.float32)
        for kv_dtype in (torch.float32, torch.float16, torch.bfloat16):
            for requests, context_len in ((1, 64), (1, 1024), (1, 65536), (16, 390), (64, 1024)):
                self.decode(requests, context_len, *small, kv_dtype)
        self.decode(16, 4096, *large, torch.bfloat16)
        self.decode(16, 4096, (32, 2), 128, torch.float16)


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
    parser.add_argument("--cpu-time", action="store_true", help="CPU time of one thread, whatever --threads")
    arguments = parser.parse_args()
    threads = 1 if arguments.cpu_time else arguments.threads
    torch.set_num_threads(threads)
    ops.set_num_threads(threads)
    with torch.inference_mode():
        bench = Bench(arguments.seconds, time.thread_time if arguments.cpu_time else time.perf_counter)
        print(f"{ops.cpu_isa()}, {threads} threads: plain read of memory {bench.read_bytes / 1e9:.1f} GB/s")
        bench.all()


if __name__ == "__main__":
    main()
