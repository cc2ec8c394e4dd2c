"""Layers one after another in a stream: kernels that begin early give the bits of those that wait for the one before.

Nothing waits for the device, and what a race would need is there: torch's own kernels, copies and memsets in between,
lengths that change from one layer to the next, plans and parts in workspaces that later kernels take over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from cudaprefill import ops
from tests.cuda.backends import GPU_BACKENDS, as_it_usually_is, emulation, functions_of, ops_replaced_by
from tests.ops.attention_reference import FLOAT8

NUM_BLOCKS, BLOCK_SIZE, MAX_BLOCKS = 64, 16, 20
Q_HEADS, KV_HEADS, HEAD_SIZE, INNER = 4, 2, 64, 192
HIDDEN = Q_HEADS * HEAD_SIZE
# New and cached tokens of a layer's requests: decodes first.
STEPS = (
    [(1, 299), (1, 0), (1, 16), (40, 100), (3, 0)],
    [(1, 17), (1, 111), (1, 112), (1, 40), (42, 0)],
    [(1, 1), (1, 250), (1, 15), (20, 280), (23, 0)],
)
NUM_DECODES = 3
NUM_TOKENS = 46


class Layer:
    """The tensors of a layer, made from one seed, and the lengths of all steps."""

    def __init__(self, device: str, kv_dtype: torch.dtype) -> None:
        random = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random)

        def to_device(tensor: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return tensor.to(dtype).to(device)

        self.x, self.residual = (to_device(normal(NUM_TOKENS, HIDDEN)) for _ in range(2))
        self.norm = to_device(1 + normal(HIDDEN) / 8)
        self.qkv = to_device(normal(HIDDEN, (Q_HEADS + 2 * KV_HEADS) * HEAD_SIZE) / 16)
        self.o = to_device(normal(HIDDEN, HIDDEN) / 16)
        self.gate_up, self.down = to_device(normal(HIDDEN, 2 * INNER) / 16), to_device(normal(INNER, HIDDEN) / 16)
        caches = normal(2, NUM_BLOCKS * 2, KV_HEADS, BLOCK_SIZE, HEAD_SIZE).to(kv_dtype).to(device)
        self.k_cache, self.v_cache = caches
        self.scales = torch.tensor([0.02, 0.03], device=device) if kv_dtype == FLOAT8 else None
        self.cos_sin = to_device(normal(MAX_BLOCKS * BLOCK_SIZE, HEAD_SIZE), torch.float32)
        self.out = torch.empty(NUM_TOKENS, Q_HEADS, HEAD_SIZE, dtype=torch.bfloat16, device=device)
        # What a step changes: written by copies, ahead of the kernels that read it.
        requests = len(STEPS[0])
        self.starts = torch.zeros(requests + 1, dtype=torch.int32, device=device)
        self.lens = torch.zeros(requests, dtype=torch.int32, device=device)
        self.table = torch.zeros(requests, MAX_BLOCKS, dtype=torch.int32, device=device)
        self.positions, self.slots = torch.zeros(2, NUM_TOKENS, dtype=torch.int64, device=device)
        self.pairs = torch.tensor([[3, NUM_BLOCKS + 3], [NUM_BLOCKS + 3, NUM_BLOCKS + 9]], device=device)
        self.steps = [tuple(part.to(device) for part in self._lay_out(step, random)) for step in STEPS]

    def _lay_out(self, step: list[tuple[int, int]], random: torch.Generator) -> tuple[Tensor, ...]:
        new = torch.tensor([new for new, _ in step])
        lens = new + torch.tensor([cached for _, cached in step])
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), new.cumsum(0)])
        blocks = (lens + BLOCK_SIZE - 1) // BLOCK_SIZE
        used = torch.arange(MAX_BLOCKS) < blocks[:, None]
        table = torch.full(used.shape, -1)
        table[used] = torch.randperm(NUM_BLOCKS, generator=random)[: int(blocks.sum())]
        positions = torch.cat([torch.arange(int(last - n), int(last)) for n, last in zip(new, lens, strict=True)])
        rows = torch.arange(len(step)).repeat_interleave(new)
        slots = table[rows, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        return starts.int(), lens.int(), table.int(), positions, slots

    def run(self, step: int) -> None:
        changing = (self.starts, self.lens, self.table, self.positions, self.slots)
        for to, values in zip(changing, self.steps[step], strict=True):
            to.copy_(values, non_blocking=True)
        rows = ops.add_rms_norm(self.x, self.residual, self.norm, 1e-5)
        heads = (rows @ self.qkv).unflatten(1, (-1, HEAD_SIZE))
        q, k, v = heads.split([Q_HEADS, KV_HEADS, KV_HEADS], dim=1)
        caches = (self.k_cache, self.v_cache)
        scales = {"k_scale": self.scales, "v_scale": self.scales}
        ops.rope_write_kv(q, k, v, self.cos_sin, self.positions, *caches, self.slots, **scales)
        self.out.zero_()
        lengths = (self.table, self.starts, self.lens)
        ops.mixed_attention(q, *caches, *lengths, self.out, NUM_DECODES, HEAD_SIZE**-0.5, **scales)
        rows = ops.add_rms_norm(self.out.flatten(1) @ self.o, self.residual, self.norm, 1e-5)
        torch.matmul(ops.silu_and_mul(rows @ self.gate_up), self.down, out=self.x)
        ops.copy_blocks(*caches, self.pairs)

    def results(self) -> tuple[Tensor, ...]:
        caches = (cache.view(torch.uint8) for cache in (self.k_cache, self.v_cache))
        return tuple(tensor.cpu() for tensor in (self.x, self.residual, self.out, *caches))


@contextmanager
def launches(backend: str, *, early: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The emulated device has kernels begin early from compute capability 9.0 on; both run the same ones."""
    if backend == "cuda":
        monkeypatch.setenv("CUDAPREFILL_PROGRAMMATIC_LAUNCH", "1" if early else "0")
        yield
        return
    with as_it_usually_is(emulation()) as device, ops_replaced_by(functions_of("cudaprefill_emulated")):
        device.set_compute_capability(90 if early else 89)
        device.set_prefill_kernel("mma")
        device.set_decode_kernel("async")
        yield


def run_in_a_stream(layer: Layer, rounds: int) -> None:
    for number in range(rounds):
        layer.run(number % len(STEPS))


def replay_a_graph(layer: Layer, rounds: int) -> None:
    """Every round is a replay of all steps."""
    before = [tensor.clone() for tensor in vars(layer).values() if isinstance(tensor, Tensor)]
    run_in_a_stream(layer, len(STEPS))  # what is loaded lazily is loaded
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_in_a_stream(layer, len(STEPS))
    for tensor, value in zip([t for t in vars(layer).values() if isinstance(t, Tensor)], before, strict=True):
        tensor.copy_(value)
    for _ in range(rounds // len(STEPS)):
        graph.replay()


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FLOAT8], ids=["bfloat16", "float8"])
@pytest.mark.parametrize("run", [run_in_a_stream, replay_a_graph])
@pytest.mark.parametrize("backend", GPU_BACKENDS)
def test_kernels_that_begin_early_give_the_same_bits(
    backend: str, run: Callable[[Layer, int], None], kv_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    if backend == "emulated" and run is replay_a_graph:
        pytest.skip("the emulated device captures nothing")
    results = []
    for early in (False, True):
        with launches(backend, early=early, monkeypatch=monkeypatch):
            layer = Layer("cuda" if backend == "cuda" else "cpu", kv_dtype)
            run(layer, 300 if backend == "cuda" else len(STEPS))
            results.append(layer.results())
    assert results[0][0].isfinite().all()
    for in_turn, early in zip(*results, strict=True):
        assert torch.equal(in_turn, early)
