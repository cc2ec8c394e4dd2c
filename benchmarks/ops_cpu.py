"""The ops on the CPU, beside what the machine can do, all measured in this run.

    python benchmarks/ops_cpu.py [--threads N] [--seconds S] [--only NAME ...]

What moves memory is told in GB/s and as a share of a plain read of memory, the matmul of many rows in GFLOP/s and as a
multiple of torch's. `integers` are products of Q4_1 blocks with activations of 16 and 8 bits, beside the dot products
that the processor does in its registers: of bytes as measured, of words half as many. `step` is all ops of one decoded
token of a Llama of 135 million weights beside the reading of these weights. `attention` is what
benchmarks/attention_cpu.py measures. Times are the shortest of those that fit into `--seconds`.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from subprocess import CalledProcessError

import attention_cpu
import torch
from machine import IntegerProducts, read_bandwidth
from torch import Tensor
from torch.nn import functional

from cudaprefill import ops

NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
HIDDEN, INTERMEDIATE, VOCABULARY, LAYERS = 576, 1536, 49152, 30
Q_HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE = 9, 3, 64, 16
TOKENS = [1, 64, 1600]
CACHE_BLOCKS = 2048
Q4_1 = 3  # its number in GGUF
PARTS = ("elementwise", "kv", "linear", "integers", "step", "attention")


class Bench:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.read_bytes = read_bandwidth(2**29)

    def shortest(self, *works: Callable[[], object]) -> list[float]:
        """The shortest time of each of the works, which take turns so that the same disturbances hit all of them."""
        for work in works:
            work()
        times = [math.inf] * len(works)
        end = time.perf_counter() + self.seconds * len(works)
        while time.perf_counter() < end:
            for i, work in enumerate(works):
                start = time.perf_counter()
                work()
                times[i] = min(times[i], time.perf_counter() - start)
        return times

    def moves(
        self, name: str, tokens: int, dtype: torch.dtype, num_bytes: int, op: Callable[..., object], *arguments: object
    ) -> None:
        [seconds] = self.shortest(lambda: op(*arguments))
        rate = num_bytes / seconds
        print(
            f"{name:14} {tokens:5} tokens  {NAMES[dtype]:8}  {seconds * 1e6:9.2f} us  {rate / 1e9:6.1f} GB/s  "
            f"{rate / self.read_bytes:5.2f} x read"
        )

    def elementwise(self, dtype: torch.dtype) -> None:
        weight = torch.ones(HIDDEN, dtype=dtype)
        for tokens in TOKENS:
            x, residual = torch.randn(2, tokens, HIDDEN).to(dtype)
            self.moves("rms_norm", tokens, dtype, 2 * x.nbytes, ops.rms_norm, x, weight, 1e-5)
            self.moves("add_rms_norm", tokens, dtype, 4 * x.nbytes, ops.add_rms_norm, x, residual, weight, 1e-5)
            gate_up = torch.randn(tokens, 2 * INTERMEDIATE).to(dtype)
            self.moves("silu_and_mul", tokens, dtype, gate_up.nbytes * 3 // 2, ops.silu_and_mul, gate_up)

    def kv(self, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
        k_cache, v_cache = torch.zeros(2, CACHE_BLOCKS, KV_HEADS, BLOCK_SIZE, HEAD_SIZE, dtype=kv_dtype)
        cos_sin = torch.randn(4096, HEAD_SIZE)
        for tokens in TOKENS:
            qkv = torch.randn(tokens, Q_HEADS + 2 * KV_HEADS, HEAD_SIZE).to(dtype)
            q, k, v = qkv.split([Q_HEADS, KV_HEADS, KV_HEADS], dim=1)
            slots, positions = torch.randperm(CACHE_BLOCKS * BLOCK_SIZE)[:tokens], torch.arange(tokens)
            moved = 2 * k.numel() * (dtype.itemsize + kv_dtype.itemsize)
            self.moves("write_kv", tokens, kv_dtype, moved, ops.write_kv, k, v, k_cache, v_cache, slots)
            moved += 2 * q.numel() * dtype.itemsize
            arguments = (q, k, v, cos_sin, positions, k_cache, v_cache, slots)
            self.moves("rope_write_kv", tokens, kv_dtype, moved, ops.rope_write_kv, *arguments)
        pairs = torch.randperm(CACHE_BLOCKS)[:512].view(-1, 2)
        moved = 2 * 2 * pairs.shape[0] * k_cache[0].nbytes
        self.moves(
            "copy_blocks", pairs.shape[0] * BLOCK_SIZE, kv_dtype, moved, ops.copy_blocks, k_cache, v_cache, pairs
        )

    def linear(self, outputs: int, inputs: int, rows: int, dtype: torch.dtype) -> None:
        weight, x = torch.randn(outputs, inputs).to(dtype), torch.randn(rows, inputs)
        # Enough copies of the weight that none is still in a cache when its turn comes again.
        copies = [weight.clone() for _ in range(max(1, 2**28 // weight.nbytes))] if rows <= 16 else [weight]
        widened = [copy.float() for copy in copies]
        turn = [0]

        def each(function: Callable[[Tensor, Tensor], Tensor], weights: list[Tensor]) -> Callable[[], None]:
            def run() -> None:
                turn[0] = (turn[0] + 1) % len(weights)
                function(x, weights[turn[0]])

            return run

        ours, torchs = self.shortest(each(ops.linear, copies), each(functional.linear, widened))
        flops = 2 * rows * outputs * inputs
        print(
            f"linear {outputs:5} x {inputs:4} {rows:5} rows  {NAMES[dtype]:8}  {ours * 1e6:9.1f} us  "
            f"{weight.nbytes / ours / 1e9:5.1f} GB/s ({weight.nbytes / ours / self.read_bytes:4.2f} x read)  "
            f"{flops / ours / 1e9:5.0f} GFLOP/s  {torchs / ours:5.2f} x torch's float32"
        )

    def integers(self, outputs: int, inputs: int, rows: int, bits: int, roof: IntegerProducts | None) -> None:
        form = ops.BLOCK_FORMATS[Q4_1]
        blocks = torch.randint(0, 256, (outputs, inputs // form.elements, form.num_bytes), dtype=torch.uint8)
        blocks[:, :, :4] = torch.tensor([0.01, -0.08]).to(torch.float16).view(torch.uint8)  # scale and minimum
        groups = torch.empty(form.groups_shape(outputs, inputs), dtype=torch.uint8)
        ops.group_blocks(blocks.flatten(1), Q4_1, groups)
        copies = [groups.clone() for _ in range(max(1, 2**28 // groups.nbytes))] if rows <= 64 else [groups]
        x = torch.randn(rows, inputs)
        turn = [0]

        def product() -> None:
            turn[0] = (turn[0] + 1) % len(copies)
            ops.linear_blocks(x, copies[turn[0]], Q4_1, outputs, activation_bits=bits)

        operations = 2 * rows * outputs * inputs
        line = f"linear {outputs:5} x {inputs:4} {rows:5} rows  Q4_1, int{bits:<2} "
        if roof is None:
            [ours] = self.shortest(product)
            limit = ""
        else:
            ours, limits = self.shortest(product, roof.run)
            dot_products = roof.run() / limits * 8 / bits
            limit = f"  {operations / ours / dot_products:4.2f} x dot products"
        print(
            f"{line} {ours * 1e6:9.1f} us  {groups.nbytes / ours / 1e9:5.1f} GB/s "
            f"({groups.nbytes / ours / self.read_bytes:4.2f} x read)  {operations / ours / 1e9:5.0f} GOP/s{limit}"
        )

    def step(self, dtype: torch.dtype) -> None:
        model = DecodeStep(dtype)
        numbers = torch.ones(model.weight_bytes // 4)
        ours, read = self.shortest(model.run, numbers.sum)
        print(
            f"step {NAMES[dtype]:8}  {ours * 1e3:6.2f} ms of ops, {read * 1e3:6.2f} ms to read the "
            f"{model.weight_bytes / 1e6:.0f} MB of weights: {ours / read:4.2f} x"
        )


class DecodeStep:
    """Every op of one decoded token behind a context of 100, with weights of a Llama of 135 million."""

    def __init__(self, dtype: torch.dtype) -> None:
        def weight(outputs: int, inputs: int) -> Tensor:
            return (torch.randn(outputs, inputs) * inputs**-0.5).to(dtype)

        heads = Q_HEADS + 2 * KV_HEADS
        self.layers = [
            (
                weight(heads * HEAD_SIZE, HIDDEN),
                weight(HIDDEN, HIDDEN),
                weight(2 * INTERMEDIATE, HIDDEN),
                weight(HIDDEN, INTERMEDIATE),
            )
            for _ in range(LAYERS)
        ]
        self.head = weight(VOCABULARY, HIDDEN)
        self.norm = torch.ones(HIDDEN)
        self.caches = torch.zeros(LAYERS, 2, 64, KV_HEADS, BLOCK_SIZE, HEAD_SIZE)
        self.cos_sin = torch.randn(1024, HEAD_SIZE)
        self.block_table = torch.arange(64, dtype=torch.int32)[None]
        self.context_lens = torch.tensor([101], dtype=torch.int32)
        self.position = torch.tensor([100])
        self.attended = torch.empty(1, Q_HEADS, HEAD_SIZE)
        self.weight_bytes = sum(weight.nbytes for layer in self.layers for weight in layer) + self.head.nbytes

    def run(self) -> Tensor:
        residual = torch.ones(1, HIDDEN)
        x = ops.rms_norm(residual, self.norm, 1e-5)
        for (qkv_weight, out_weight, gate_up_weight, down_weight), (k_cache, v_cache) in zip(
            self.layers, self.caches, strict=True
        ):
            qkv = ops.linear(x, qkv_weight).view(1, -1, HEAD_SIZE)
            q, k, v = qkv.split([Q_HEADS, KV_HEADS, KV_HEADS], dim=1)
            ops.rope_write_kv(q, k, v, self.cos_sin, self.position, k_cache, v_cache, self.position)
            ops.decode_attention(
                q, k_cache, v_cache, self.block_table, self.context_lens, self.attended, HEAD_SIZE**-0.5
            )
            x = ops.linear(self.attended.view(1, -1), out_weight)
            x = ops.silu_and_mul(ops.linear(ops.add_rms_norm(x, residual, self.norm, 1e-5), gate_up_weight))
            x = ops.add_rms_norm(ops.linear(x, down_weight), residual, self.norm, 1e-5)
        return ops.linear(x, self.head)


def _integer_roof(threads: int) -> IntegerProducts | None:
    try:
        return IntegerProducts(ops.cpu_isa(), threads)
    except (ValueError, OSError, CalledProcessError) as error:
        print(f"products of integers without their limit: {error}")
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure")
    parser.add_argument("--only", nargs="*", choices=PARTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ops.set_num_threads(arguments.threads)
    wanted = arguments.only or PARTS
    with torch.inference_mode():
        bench = Bench(arguments.seconds)
        print(f"{ops.cpu_isa()}, {arguments.threads} threads, plain read of memory {bench.read_bytes / 1e9:.1f} GB/s")
        for dtype in (torch.float32, torch.bfloat16):
            if "elementwise" in wanted:
                bench.elementwise(dtype)
            if "kv" in wanted:
                bench.kv(torch.float32, dtype)
            if "linear" in wanted:
                for outputs, inputs in [(576, 576), (960, 576), (3072, 576), (576, 1536), (49152, 576)]:
                    for rows in (1, 4, 16):
                        bench.linear(outputs, inputs, rows, dtype)
                for rows in (32, 64, 256, 1600):
                    bench.linear(3072, 576, rows, dtype)
            if "step" in wanted:
                bench.step(dtype)
        if "integers" in wanted:
            roof = _integer_roof(arguments.threads)
            for bits in (16, 8):
                for outputs, inputs in [(960, 576), (3072, 576), (576, 1536), (49152, 576)]:
                    for rows in (1, 4, 16):
                        bench.integers(outputs, inputs, rows, bits, roof)
                for outputs, inputs in [(960, 576), (576, 576), (3072, 576), (576, 1536)]:
                    for rows in (64, 400, 1600):
                        bench.integers(outputs, inputs, rows, bits, roof)
        if "attention" in wanted:
            attention_cpu.Bench(arguments.seconds).all()


if __name__ == "__main__":
    main()
