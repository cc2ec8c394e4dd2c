"""Kernels with one fault each.

A mutant replaces one piece of source text. CMake builds each from a copy of csrc/cuda that this script writes:

    mutants.py --list    name/instance of each; the instance is the object file that is compiled anew
    mutants.py NAME SOURCE_ROOT DIRECTORY
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """`original` stands once in the file, under csrc/cuda and `folder`; `caught_by` is a case of test_mutants.py."""

    name: str
    file: str
    original: str
    replacement: str
    caught_by: str
    report: str  # a regular expression that the failure matches
    instance: str = "attention_BFloat16_64"
    folder: str = "attention"


HOPPER = "prefill_sm90_BFloat16_128"
LORA = ("lora_BFloat16", "lora")
MUTANTS = (
    Mutant(
        "prefill_without_wait_for_keys",
        "prefill.cuh",
        "ptx::wait_for_copies<1>();  // the keys",
        "// the keys",
        "chunks",
        "ldmatrix: reads shared memory that an unfinished cp.async is about to write",
    ),
    Mutant(
        "prefill_without_wait_for_values",
        "prefill.cuh",
        "ptx::wait_for_copies<1>();  // the values",
        "// the values",
        "chunks",
        "ldmatrix: reads shared memory that an unfinished cp.async is about to write",
    ),
    Mutant(
        "prefill_without_barrier_for_keys",
        "prefill.cuh",
        "__syncthreads();            // for all warps",
        "// for all warps",
        "chunks",
        "race|unfinished cp.async",
    ),
    Mutant(
        "prefill_without_barrier_between_items",
        "prefill.cuh",
        "__syncthreads();  // the next item",
        "// the next item",
        "chunks",
        "race|unfinished cp.async",
    ),
    Mutant(
        "prefill_overwrites_the_tile_in_use",
        "prefill.cuh",
        "copy_tile(key_tile(1 - stage), keys, key + kKeys);",
        "copy_tile(key_tile(stage), keys, key + kKeys);",
        "chunks",
        "race|unfinished cp.async",
    ),
    Mutant(
        "decode_without_wait",
        "decode.cuh",
        "ptx::wait_for_copies<kStages - 2>();",
        "",
        "decodes",
        "ldmatrix: reads shared memory that an unfinished cp.async is about to write",
    ),
    Mutant(
        "decode_without_warp_barrier",
        "decode.cuh",
        "__syncwarp();  // the piece",
        "// the piece",
        "decodes",
        "race|unfinished cp.async",
    ),
    Mutant(
        "decode_without_barrier_before_merge",
        "decode.cuh",
        "  ptx::wait_for_copies<0>();\n  __syncthreads();",
        "  ptx::wait_for_copies<0>();",
        "decodes",
        "race",
    ),
    Mutant(
        "mask_off_by_one",
        "prefill_rows.cuh",
        "column > position)",
        "column > position + 1)",
        "chunks",
        "error .*, in torch|nan",
    ),
    Mutant(
        "window_off_by_one",
        "prefill_rows.cuh",
        "position - launch.op.window + 1 : 0;\n#pragma unroll",
        "position - launch.op.window : 0;\n#pragma unroll",
        "windows",
        "error .*, in torch|nan",
    ),
    Mutant(
        "unmasked_edge_tile",
        "prefill.cuh",
        "key + kKeys > all_see_to",
        "key > all_see_to",
        "chunks",
        "error .*, in torch|nan",
    ),
    Mutant(
        "swapped_key_fragment",
        "products.cuh",
        "row + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2",
        "row + lane % 8 + lane / 8 % 2 * 8, 2 * k + lane / 16",
        "chunks",
        "error .*, in torch|nan",
    ),
    Mutant(
        "offsets_in_32_bits",
        "pages.cuh",
        "return data + block * block_stride",
        "return data + static_cast<int32_t>(block * block_stride)",
        "a large cache",
        "invalid global read of 16 bytes by cp.async: at byte -",
    ),
    Mutant(
        "table_read_past_its_end",
        "pages.cuh",
        "const bool any = key + rows > first && key < last;",
        "const bool any = true;",
        "an exact table",
        r"invalid global read of 4 bytes: at byte \d+ of block_table, which has 20 bytes",
    ),
    Mutant(
        "slots_read_past_the_context",
        "pages.cuh",
        "key + r >= first && key + r < last;",
        "any;",
        "chunks",
        "error nan",
    ),
    Mutant(
        "splits_not_weighted",
        "partial.cuh",
        "const float weight = ptx::exp2_fast(log_sum - highest);",
        "const float weight = 1;",
        "splits",
        "error .*, in torch",
    ),
    Mutant(
        "splits_not_normalised",
        "partial.cuh",
        "const float scale = weights > 0 ? 1 / weights : 0.0f;",
        "const float scale = 1;",
        "splits",
        "error .*, in torch",
    ),
    Mutant(
        "empty_splits_are_read",
        "partial.cuh",
        "if (log_sum == kMinusInfinity) continue;",
        "",
        "splits",
        "error nan",
    ),
    Mutant(
        "earlier_output_not_rescaled",
        "softmax.cuh",
        "out[n][2 * half] *= correction[half];",
        "",
        "chunks",
        "error .*, in torch",
    ),
    Mutant(
        "hopper_wrong_phase_of_keys",
        "hopper/consume.cuh",
        "ptx::mbarrier_wait(barriers.keys_full(step.stage()), step.parity());",
        "ptx::mbarrier_wait(barriers.keys_full(step.stage()), step.parity() ^ 1);",
        "hopper chunks",
        "unfinished tensor copy|deadlock",
        HOPPER,
    ),
    Mutant(
        "hopper_wrong_phase_of_values",
        "hopper/consume.cuh",
        "ptx::mbarrier_wait(barriers.values_full(value_step.stage()), value_step.parity());",
        "ptx::mbarrier_wait(barriers.values_full(value_step.stage()), value_step.parity() ^ 1);",
        "hopper chunks",
        "unfinished tensor copy|deadlock|race",
        HOPPER,
    ),
    Mutant(
        "hopper_wrong_phase_of_empty_stages",
        "hopper/produce.cuh",
        "ptx::mbarrier_wait(barriers.keys_empty(step.stage()), step.parity() ^ 1);\n      copy_pages",
        "ptx::mbarrier_wait(barriers.keys_empty(step.stage()), step.parity());\n      copy_pages",
        "hopper chunks",
        "deadlock: .* wait at the mbarrier at byte .* for a phase of parity 0, which is in phase 0",
        HOPPER,
    ),
    Mutant(
        "hopper_stage_of_keys_reused_too_early",
        "hopper/produce.cuh",
        "ptx::mbarrier_wait(barriers.keys_empty(step.stage()), step.parity() ^ 1);\n      copy_pages",
        "copy_pages",
        "hopper chunks",
        "race|unfinished|mbarrier.arrive: all 1 arrivals of this phase have been",
        HOPPER,
    ),
    Mutant(
        "hopper_values_released_before_the_product",
        "hopper/consume.cuh",
        "        ptx::wait_for_products<0>();  // what the weights before gave\n        release_values(step.before());",
        "        release_values(step.before());\n        ptx::wait_for_products<0>();  // what the weights before gave",
        "hopper chunks",
        "race|unfinished wgmma",
        HOPPER,
    ),
    Mutant(
        "hopper_scores_read_before_the_product",
        "hopper/consume.cuh",
        "ptx::wait_for_products<1>();  // the scores",
        "// the scores",
        "hopper chunks",
        "error nan|an accumulator was written while the product was unfinished|race|unfinished wgmma",
        HOPPER,
    ),
    Mutant(
        "hopper_zeroed_rows_without_proxy_fence",
        "hopper/produce.cuh",
        "        ptx::fence_proxy_async();\n        __syncwarp();\n        if (lane == 0)",
        "        __syncwarp();\n        if (lane == 0)",
        "hopper chunks",
        "wgmma: no fence.proxy.async lies between",
        HOPPER,
    ),
    Mutant(
        "hopper_results_over_queries_in_use",
        "hopper/consume.cuh",
        "    sync_warpgroup(consumer);  // all are done",
        "    // all are done",
        "hopper chunks",
        "race|unfinished wgmma",
        HOPPER,
    ),
    Mutant(
        "hopper_mbarriers_without_fence",
        "hopper/pipeline.cuh",
        "    ptx::fence_mbarrier_init();\n",
        "",
        "hopper chunks",
        "no fence lies between this and mbarrier.init",
        HOPPER,
    ),
    Mutant(
        "hopper_wrong_stride_of_keys",
        "hopper/operand_tile.cuh",
        "matrix_descriptor(base + first_row / kBrickRows * kGroupBytes, 0, kGroupBytes)",
        "matrix_descriptor(base + first_row / kBrickRows * kGroupBytes, 0, kBrickBytes)",
        "hopper chunks",
        "error .*, in torch|error nan|race",
        HOPPER,
    ),
    Mutant(
        "hopper_wrong_offsets_of_values",
        "hopper/operand_tile.cuh",
        "matrix_descriptor(base, kBrickBytes, kGroupBytes)",
        "matrix_descriptor(base, kGroupBytes, kBrickBytes)",
        "hopper chunks",
        "error .*, in torch|error nan|race",
        HOPPER,
    ),
    Mutant(
        "hopper_rows_not_zeroed",
        "hopper/produce.cuh",
        "          ptx::store_shared(tile.address(row, i % Tile::kChunks), uint4{0, 0, 0, 0});\n",
        "",
        "hopper chunks",
        "error nan",
        HOPPER,
    ),
    Mutant(
        "hopper_edge_at_the_end_forgotten",
        "hopper/item_view.cuh",
        "return at_the_beginning || at_the_end;",
        "return at_the_beginning;",
        "hopper chunks",
        "error nan",
        HOPPER,
    ),
    Mutant(
        "hopper_unmasked_edge_tile",
        "hopper/consume.cuh",
        "key + kKeys > positions[0] + 1",
        "key > positions[0] + 1",
        "hopper chunks",
        "error .*, in torch|error nan",
        HOPPER,
    ),
    Mutant(
        "hopper_earlier_output_not_rescaled",
        "hopper/consume.cuh",
        "        OnlineSoftmax::rescale(out, correction);\n        ptx::pin_accumulators",
        "        ptx::pin_accumulators",
        "hopper chunks",
        "error .*, in torch",
        HOPPER,
    ),
    Mutant(
        "hopper_table_read_past_its_end",
        "hopper/produce.cuh",
        "if (view.has_any(first, kPageRows)) {",
        "if (true) {",
        "hopper, an exact table",
        r"invalid global read of 4 bytes: at byte \d+ of block_table, which has 20 bytes",
        HOPPER,
    ),
    Mutant(
        "hopper_async_copies_announced_too_early",
        "hopper/produce.cuh",
        "    ptx::wait_for_copies<1>();  // the tile before",
        "    ptx::wait_for_copies<2>();  // the tile before",
        "hopper, by cp.async",
        "wgmma: reads shared memory that an unfinished cp.async is about to write|race",
        HOPPER,
    ),
    Mutant(
        "hopper_async_copies_without_proxy_fence",
        "hopper/produce.cuh",
        "    if (issued == 0) return;\n    ptx::fence_proxy_async();",
        "    if (issued == 0) return;",
        "hopper, by cp.async",
        "wgmma: no fence.proxy.async lies between",
        HOPPER,
    ),
    Mutant(
        "hopper_queries_without_proxy_fence",
        "hopper/produce.cuh",
        "  ptx::fence_proxy_async();\n  __syncwarp();\n  if (lane == 0) ptx::mbarrier_arrive(barriers.queries_full",
        "  __syncwarp();\n  if (lane == 0) ptx::mbarrier_arrive(barriers.queries_full",
        "hopper chunks",
        "wgmma: no fence.proxy.async lies between",
        HOPPER,
    ),
    Mutant(
        "hopper_queries_not_waited_for",
        "hopper/consume.cuh",
        "    ptx::mbarrier_wait(barriers.queries_full(query_step.stage()), query_step.parity());\n",
        "",
        "hopper chunks",
        "race",
        HOPPER,
    ),
    Mutant(
        "hopper_queries_overwritten_too_early",
        "hopper/produce.cuh",
        "  ptx::mbarrier_wait(barriers.queries_empty(stage), parity ^ 1);\n",
        "",
        "hopper chunks",
        "race|unfinished wgmma",
        HOPPER,
    ),
    Mutant(
        "hopper_last_tile_kept_back",
        "hopper/produce.cuh",
        "    ptx::wait_for_copies<0>();\n    announce();\n    issued = 0;\n",
        "",
        "hopper, by cp.async with one stage of queries",
        "deadlock: .* wait at the mbarrier",
        "prefill_sm90_BFloat16_256",
    ),
    Mutant(
        "lora_sums_read_before_the_barrier",
        "lora.cuh",
        "__syncthreads();  // all warps have left their sums",
        "// all warps have left their sums",
        "lora",
        "race",
        *LORA,
    ),
    Mutant(
        "lora_without_wait_for_copies",
        "lora.cuh",
        "ptx::wait_for_copies<0>();  // of this thread",
        "// of this thread",
        "lora",
        "ldmatrix: reads shared memory that an unfinished cp.async is about to write",
        *LORA,
    ),
    Mutant(
        "lora_without_barrier_for_copies",
        "lora.cuh",
        "__syncthreads();            // of all others",
        "// of all others",
        "lora",
        "race|unfinished cp.async",
        *LORA,
    ),
    Mutant(
        "lora_swapped_fragment",
        "lora.cuh",
        "{{upper.x, lower.x, upper.y, lower.y}",
        "{{upper.x, upper.y, lower.x, lower.y}",
        "lora",
        "error .*, in torch",
        *LORA,
    ),
    Mutant(
        "lora_not_scaled",
        "lora.cuh",
        "ptx::pack<Element>(scale * total.x, scale * total.y)",
        "ptx::pack<Element>(total.x, total.y)",
        "lora",
        "error .*, in torch",
        *LORA,
    ),
    Mutant(
        "lora_ranks_of_a_read_past_their_end",
        "lora.cuh",
        "inside && row < rank);",
        "inside);",
        "lora",
        "error nan|invalid global read of 16 bytes: ",
        *LORA,
    ),
    Mutant(
        "lora_ranks_of_b_read_past_their_end",
        "lora.cuh",
        "chunk * kChunkElements, row < rank);",
        "chunk * kChunkElements, true);",
        "lora",
        "error nan|invalid global read of 16 bytes by cp.async",
        *LORA,
    ),
    Mutant(
        "lora_rows_read_past_their_end",
        "lora.cuh",
        "chunk * kChunkElements, row < tile.count);",
        "chunk * kChunkElements, true);",
        "lora",
        "invalid global read of 16 bytes by cp.async",
        *LORA,
    ),
    Mutant(
        "lora_outputs_written_past_their_part",
        "lora.cuh",
        "if (first_of_warp + column >= num_outputs) continue;",
        "",
        "lora",
        "error|base rows|invalid global read of 4 bytes",
        *LORA,
    ),
    Mutant(
        "lora_rows_in_32_bits",
        "lora.cuh",
        "static_cast<Element*>(params.out) + id * params.out_stride",
        "static_cast<Element*>(params.out) + static_cast<int32_t>(id * params.out_stride)",
        "lora, far rows",
        "invalid global read of 4 bytes: at byte -",
        *LORA,
    ),
    Mutant(
        "lora_adapters_past_the_first_32_counted_anew",
        "tile.cuh",
        "before += __shfl_sync(kFullWarp, through, kWarpSize - 1);",
        "",
        "lora, many adapters",
        "error .*, in torch|base rows|invalid global",
        *LORA,
    ),
)


def write_mutant(mutant: Mutant, source_root: Path, directory: Path) -> None:
    """Writes a copy of csrc/cuda with the fault in it under `directory`."""
    original_tree, tree = source_root / "csrc/cuda", directory / "csrc/cuda"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(original_tree, tree)
    path = tree / mutant.folder / mutant.file
    text = path.read_text()
    if text.count(mutant.original) != 1:
        raise SystemExit(
            f"mutant {mutant.name}: {mutant.file} has {text.count(mutant.original)} places, not 1, that read\n"
            f"{mutant.original}"
        )
    path.write_text(text.replace(mutant.original, mutant.replacement))
    shutil.rmtree(tree / "ptx")  # the machine has its own


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        sys.stdout.write(";".join(f"{mutant.name}/{mutant.instance}" for mutant in MUTANTS))
    else:
        chosen, root, where = sys.argv[1:]
        write_mutant(next(m for m in MUTANTS if m.name == chosen), Path(root), Path(where))
