"""Faults in what is special about float8 caches: scales, the conversion, and how its fragments lie."""

from __future__ import annotations

from functools import partial

from .mutant import Mutant

mutant = partial(Mutant, folder="attention", instance="attention_BFloat16_64_Float8")
conversion = partial(Mutant, folder=".", instance="attention_BFloat16_64_Float8")
hopper = partial(Mutant, folder="attention/hopper", instance="decode_sm90_BFloat16_128_Float8")
widening = partial(Mutant, folder="attention/hopper", instance="prefill_sm90_BFloat16_128_Float8")

MUTANTS = (
    conversion(
        "float8_scale_of_the_first_head",
        "kv_number.cuh",
        "ptx::load_global(cache.scales + head)",
        "ptx::load_global(cache.scales)",
        "float8 decodes",
        "error .*, in torch",
    ),
    mutant(
        "float8_decode_takes_the_scale_of_values_for_keys",
        "decode.cuh",
        "scale_of<Kv>(params.k_cache, block.kv_head)",
        "scale_of<Kv>(params.v_cache, block.kv_head)",
        "float8 decodes",
        "error .*, in torch",
    ),
    mutant(
        "float8_prefill_takes_the_scale_of_keys_for_values",
        "prefill.cuh",
        "scale_of<Kv>(params.v_cache, kv_head)",
        "scale_of<Kv>(params.k_cache, kv_head)",
        "float8 chunks",
        "error .*, in torch",
    ),
    mutant(
        "float8_slots_read_past_the_context",
        "pages.cuh",
        "key + r >= first && key + r < last;",
        "any;",
        "float8 chunks",
        "error nan",
    ),
    mutant(
        "float8_queries_in_another_order_than_keys",
        "kv_fragments.cuh",
        "ptx::load_shared(four + 4, fragment[half + 2]);",
        "ptx::load_shared(four + 8 - lane % 2 * 16, fragment[half + 2]);",
        "float8 decodes",
        "error .*, in torch",
    ),
    mutant(
        "float8_columns_in_the_order_of_16_bits",
        "kv_fragments.cuh",
        "n / 2 * 16 + lane % 4 * 4 + n % 2 * 2",
        "n * 8 + lane % 4 * 2",
        "float8 decodes",
        "error .*, in torch",
    ),
    mutant(
        "float8_tile_widened_before_it_has_come",
        "prefill.cuh",
        "ptx::wait_for_copies<1>();  // the values",
        "// the values",
        "float8 chunks",
        "unfinished cp.async",
    ),
    conversion(
        "float8_nan_becomes_a_number",
        "float8.cuh",
        "signs | magnitudes | ((nan << 4) - nan)",
        "signs | magnitudes",
        "float8 nan",
        "nan became",
    ),
    Mutant(
        "float8_without_saturation",
        "float8.cuh",
        "magnitude < 0x43e00000u ? normal : 0x7eu",
        "normal",
        "float8 writes",
        "stored as",
        folder=".",
        instance="write_kv",
    ),
    Mutant(
        "float8_ties_rounded_up",
        "float8.cuh",
        "0x7ffffu + (magnitude >> 20 & 1u)",
        "0x80000u",
        "float8 writes",
        "stored as",
        folder=".",
        instance="write_kv",
    ),
    hopper(
        "hopper_float8_values_outside_not_taken_away",
        "decode_sm90.cuh",
        "fragments[s][i] &= value_bits[i % 2];",
        "fragments[s][i] &= ~0u;",
        "hopper float8 decodes",
        "error nan",
    ),
    hopper(
        "hopper_float8_queries_in_the_order_of_16_bits",
        "decode_sm90.cuh",
        "right * (kHasScales<Kv> ? 2 : 8)",
        "right * 8",
        "hopper float8 decodes",
        "error .*, in torch|invalid global read",
    ),
    hopper(
        "hopper_float8_scale_of_the_next_head",
        "decode_sm90.cuh",
        "scale_of<Kv>(launch.op.v_cache, segment.kv_head)",
        "scale_of<Kv>(launch.op.v_cache, (segment.kv_head + 1) % launch.op.num_kv_heads)",
        "hopper float8 decodes",
        "error .*, in torch",
    ),
    widening(
        "hopper_float8_widened_before_it_has_come",
        "produce.cuh",
        "    ptx::wait_for_copies<1>();\n#pragma unroll 1",
        "#pragma unroll 1",
        "hopper float8 chunks",
        "unfinished cp.async",
    ),
    widening(
        "hopper_float8_without_proxy_fence",
        "produce.cuh",
        "    ptx::fence_proxy_async();\n    __syncwarp();\n    if (lane == 0) ptx::mbarrier_arrive(full);\n  };",
        "    __syncwarp();\n    if (lane == 0) ptx::mbarrier_arrive(full);\n  };",
        "hopper float8 chunks",
        "wgmma: no fence.proxy.async lies between",
    ),
    widening(
        "hopper_float8_stage_widened_into_while_in_use",
        "produce.cuh",
        "      ptx::mbarrier_wait(barriers.keys_empty(step.stage()), step.parity() ^ 1);\n      widen_tile",
        "      widen_tile",
        "hopper float8 chunks",
        "race|unfinished|mbarrier.arrive: all|deadlock",
    ),
    widening(
        "hopper_float8_rows_outside_not_zeroed",
        "produce.cuh",
        "source + row * rows.slot_stride + chunk * kChunkBytes, view.has_all(first + row, 1)",
        "source + row * rows.slot_stride + chunk * kChunkBytes, view.has_any(first, kPageRows)",
        "hopper float8 chunks",
        "error nan",
    ),
    widening(
        "hopper_float8_scale_of_values_for_keys",
        "produce.cuh",
        "scale_of<Kv>(launch.op.k_cache, view.kv_head)",
        "scale_of<Kv>(launch.op.v_cache, view.kv_head)",
        "hopper float8 chunks",
        "error .*, in torch",
    ),
)
