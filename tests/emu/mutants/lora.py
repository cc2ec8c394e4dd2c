"""Faults in the LoRA kernel."""

from __future__ import annotations

from functools import partial

from .mutant import Mutant

mutant = partial(Mutant, folder="lora", instance="lora_BFloat16")

MUTANTS = (
    mutant(
        "lora_sums_read_before_the_barrier",
        "lora.cuh",
        "__syncthreads();  // all warps have left their sums",
        "// all warps have left their sums",
        "lora",
        "race",
    ),
    mutant(
        "lora_without_wait_for_copies",
        "lora.cuh",
        "ptx::wait_for_copies<0>();  // of this thread",
        "// of this thread",
        "lora",
        "ldmatrix: reads shared memory that an unfinished cp.async is about to write",
    ),
    mutant(
        "lora_without_barrier_for_copies",
        "lora.cuh",
        "__syncthreads();            // of all others",
        "// of all others",
        "lora",
        "race|unfinished cp.async",
    ),
    mutant(
        "lora_swapped_fragment",
        "lora.cuh",
        "{{upper.x, lower.x, upper.y, lower.y}",
        "{{upper.x, upper.y, lower.x, lower.y}",
        "lora",
        "error .*, in torch",
    ),
    mutant(
        "lora_not_scaled",
        "lora.cuh",
        "ptx::pack<Element>(scale * total.x, scale * total.y)",
        "ptx::pack<Element>(total.x, total.y)",
        "lora",
        "error .*, in torch",
    ),
    mutant(
        "lora_ranks_of_a_read_past_their_end",
        "lora.cuh",
        "inside && row < rank);",
        "inside);",
        "lora",
        "error nan|invalid global read of 16 bytes: ",
    ),
    mutant(
        "lora_ranks_of_b_read_past_their_end",
        "lora.cuh",
        "chunk * kChunkElements, row < rank);",
        "chunk * kChunkElements, true);",
        "lora",
        "error nan|invalid global read of 16 bytes by cp.async",
    ),
    mutant(
        "lora_rows_read_past_their_end",
        "lora.cuh",
        "chunk * kChunkElements, row < tile.count);",
        "chunk * kChunkElements, true);",
        "lora",
        "invalid global read of 16 bytes by cp.async",
    ),
    mutant(
        "lora_outputs_written_past_their_part",
        "lora.cuh",
        "if (first_of_warp + column >= num_outputs) continue;",
        "",
        "lora",
        "error|base rows|invalid global read of 4 bytes",
    ),
    mutant(
        "lora_rows_in_32_bits",
        "lora.cuh",
        "static_cast<Element*>(params.out) + id * params.out_stride",
        "static_cast<Element*>(params.out) + static_cast<int32_t>(id * params.out_stride)",
        "lora, far rows",
        "invalid global read of 4 bytes: at byte -",
    ),
    mutant(
        "lora_adapters_past_the_first_32_counted_anew",
        "tile.cuh",
        "before += __shfl_sync(kFullWarp, through, kWarpSize - 1);",
        "",
        "lora, many adapters",
        "error .*, in torch|base rows|invalid global",
    ),
)
