"""Decode steps as CUDA graphs: one launch stands for the hundreds of a forward pass.

A graph replays what was captured once, on the same addresses. So there is a graph for each of a few sizes, and all read
their inputs from buffers that never move; rows that a step leaves over are padding:

    5 decodes ──copied──▶ buffers, rows 0 .. 4                 ──graph of size 8──▶ hidden, rows 0 .. 7
                          rows 5 .. 7: slot -1, length 0                            rows 0 .. 4 ──eagerly──▶ logits

Padding writes no KV, attends to nothing, and is left out of the logits. Steps with rows of LoRA adapters run eagerly:
which matrices they multiply by, and how many kernels that takes, is another thing in every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cudaprefill.engine.batch import Batch
from cudaprefill.engine.kv_cache import KVCache
from cudaprefill.engine.model_runner import Model, ModelRunner

# A larger step computes for longer than its launches take.
LARGEST_GRAPH = 512


class Graph(Protocol):
    """A captured function."""

    @property
    def output(self) -> Tensor:
        """What the function returned: one tensor, which holds the result of the latest replay."""

    def replay(self) -> None:
        """Runs it again on what its tensors hold now, without its Python."""


Capture = Callable[[Callable[[], Tensor]], Graph]


class DecodeGraphRunner(ModelRunner):
    """Runs steps of decodes alone as graphs, and all other steps as `ModelRunner` does.

    All graphs are captured when this is made. Captured at first use, each would stall running streams once; so a
    start takes longer, and what cannot be captured or does not fit shows there. The sizing of the KV cache leaves
    room for their memory (kv_cache_sizing.py), which is about that of the activations of the largest one.
    """

    @torch.inference_mode()
    def __init__(
        self, model: Model, kv_cache: KVCache, max_num_seqs: int, max_model_len: int, capture: Capture
    ) -> None:
        """Captures the sizes 1, 2, 4, 8, ... up to `max_num_seqs`, for contexts of at most `max_model_len` tokens."""
        super().__init__(model, kv_cache)
        self._sizes = graph_sizes(max_num_seqs)
        max_blocks = min(-(-max_model_len // kv_cache.block_size), kv_cache.num_blocks)
        self._inputs = _padding(self._sizes[-1], max_blocks, kv_cache.data.device)
        self._graphs: dict[int, Graph] = {}
        for size in reversed(self._sizes):  # the smaller ones then find their memory in the pool
            self._graphs[size] = capture(_ForwardPass(model, kv_cache, _first_rows(self._inputs, size)))

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        num_decodes = batch.num_decodes
        if batch.num_chunks or num_decodes > self._sizes[-1] or batch.lora is not None:
            return super().run(batch)
        size = next(size for size in self._sizes if size >= num_decodes)
        self.prepare_cache(batch)
        self._take_inputs(batch, size)
        graph = self._graphs[size]
        graph.replay()
        return self.model.logits(graph.output[:num_decodes])  # of decodes every row is sampled

    def _take_inputs(self, batch: Batch, size: int) -> None:
        """Copies the batch into the first rows of the buffers and makes padding of the others, up to `size`."""
        inputs, rows, padding = self._inputs, slice(batch.num_decodes), slice(batch.num_decodes, size)
        inputs.token_ids[rows].copy_(batch.token_ids, non_blocking=True)
        inputs.position_ids[rows].copy_(batch.position_ids, non_blocking=True)
        inputs.slot_mapping[rows].copy_(batch.slot_mapping, non_blocking=True)
        inputs.context_lens[rows].copy_(batch.context_lens, non_blocking=True)
        inputs.block_table[rows, : batch.block_table.shape[1]].copy_(batch.block_table, non_blocking=True)
        if batch.num_decodes < size:  # token and position of an earlier step are as good as any
            inputs.slot_mapping[padding].fill_(-1)
            inputs.context_lens[padding].zero_()


def graph_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, 8, ... and at the end `max_num_seqs` itself, or `LARGEST_GRAPH` if that is less."""
    largest = min(max_num_seqs, LARGEST_GRAPH)
    return [1 << power for power in range((largest - 1).bit_length())] + [largest]


def _padding(size: int, max_blocks: int, device: torch.device) -> Batch:
    """Decodes that do nothing: a capture may run them before there is a request."""
    return Batch(
        token_ids=torch.zeros(size, dtype=torch.int64, device=device),
        position_ids=torch.zeros(size, dtype=torch.int64, device=device),
        slot_mapping=torch.full((size,), -1, dtype=torch.int64, device=device),
        cu_seqlens_q=torch.arange(size + 1, dtype=torch.int32, device=device),
        context_lens=torch.zeros(size, dtype=torch.int32, device=device),
        block_table=torch.zeros((size, max_blocks), dtype=torch.int32, device=device),
        logits_rows=torch.arange(size, device=device),
        logits_requests=torch.arange(size, device=device),
        block_copies=torch.empty((0, 2), dtype=torch.int64, device=device),
        num_decodes=size,
    )


def _first_rows(batch: Batch, size: int) -> Batch:
    """The first `size` decodes of a batch of decodes, in the same memory."""
    return Batch(
        token_ids=batch.token_ids[:size],
        position_ids=batch.position_ids[:size],
        slot_mapping=batch.slot_mapping[:size],
        cu_seqlens_q=batch.cu_seqlens_q[: size + 1],
        context_lens=batch.context_lens[:size],
        block_table=batch.block_table[:size],
        logits_rows=batch.logits_rows[:size],
        logits_requests=batch.logits_requests[:size],
        block_copies=batch.block_copies,
        num_decodes=size,
    )


@dataclass(frozen=True)
class _ForwardPass:
    """What is captured: no Python state but these three."""

    model: Model
    kv_cache: KVCache
    batch: Batch

    def __call__(self) -> Tensor:
        return self.model.forward(self.batch, self.kv_cache)


class CudaGraphs:
    """Captures CUDA graphs that share one memory pool: of their memory only the outputs live between replays."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], Tensor]) -> Graph:
        """Runs `function` once, so that what is loaded or tuned at first use is, and captures it."""
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                function()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads of the program may use the device meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                output = function()
        return _CudaGraph(graph, output)


@dataclass(frozen=True)
class _CudaGraph:
    graph: torch.cuda.CUDAGraph
    output: Tensor

    def replay(self) -> None:
        self.graph.replay()
