"""Faults in how kernels follow one another in the stream: a wait that is missing, or that comes too late."""

from __future__ import annotations

from functools import partial

from .mutant import Mutant

ENTER = "  enter_stream();\n"
DECODE_KEYS = """\
  // --- the keys of this split: whole pieces, the same number for every split ---
  const int last_key = ptx::load_global(params.context_lens + block.request);
"""
DECODE_LINE = """\
  const DecodeLine line = lay_out_line<Traits::kThreads>(launch, shared + Traits::kLineAt, shared + Traits::kScratchAt);
"""
attention = partial(Mutant, folder="attention", instance="attention_BFloat16_64")
hopper = partial(Mutant, folder="attention/hopper")
prefill_sm90 = partial(hopper, file="prefill_sm90.cuh", instance="prefill_sm90_BFloat16_128", caught_by="hopper chunks")
decode_sm90 = partial(hopper, instance="decode_sm90_BFloat16_128", caught_by="hopper decodes")
experts = partial(Mutant, folder="experts", instance="expert_mlp", caught_by="experts, overlapping")
small = partial(Mutant, folder="", report="invalid global|error|not equal|not close")

MUTANTS = (
    attention(
        "plan_made_before_the_lengths_are_there",
        "prefill_plan.cu",
        ENTER + "  // --- the even share",
        "  // --- the even share",
        "chunks, overlapping",
        "invalid global read|error nan",
        instance="prefill_plan",
    ),
    attention(
        "prefill_begins_before_its_plan",
        "prefill.cuh",
        ENTER + "  for (int i = blockIdx.x",
        "  for (int i = blockIdx.x",
        "chunks, overlapping",
        "invalid global read|error nan",
    ),
    attention(
        "prefill_merged_before_it_is_done",
        "prefill.cuh",
        ENTER + "  if (static_cast<int>(blockIdx.x)",
        "  if (static_cast<int>(blockIdx.x)",
        "parts, overlapping",
        "error nan",
    ),
    attention(
        "decode_reads_the_length_before_the_wait",
        "decode.cuh",
        ENTER + DECODE_KEYS,
        DECODE_KEYS + ENTER,
        "decodes, overlapping",
        "error|invalid global read",
    ),
    attention(
        "decode_merged_before_it_is_done",
        "decode.cuh",
        "* launch.num_splits;\n" + ENTER,
        "* launch.num_splits;\n",
        "splits, overlapping",
        "error nan",
    ),
    prefill_sm90(
        "hopper_prefill_without_wait_for_the_plan",
        original=ENTER,
        replacement="",
        report="invalid global read|error nan",
    ),
    prefill_sm90(
        "hopper_prefill_only_consumers_wait_for_the_plan",
        original=ENTER,
        replacement="  if (warpgroup > 0) enter_stream();\n",
        report="invalid global read|error nan",
    ),
    decode_sm90(
        "hopper_decode_lays_its_line_out_before_the_wait",
        "decode_sm90.cuh",
        ENTER + DECODE_LINE,
        DECODE_LINE + ENTER,
        report="invalid global read|error",
    ),
    decode_sm90(
        "hopper_decode_merged_before_it_is_done",
        "merge_decode_sm90.cuh",
        ENTER,
        "",
        report="invalid global|error",
    ),
    Mutant(
        "lora_expanded_before_it_is_shrunk",
        "lora.cuh",
        ENTER + "  const LoraTile tile = lora_tile<kExpandRows>",
        "  const LoraTile tile = lora_tile<kExpandRows>",
        "lora, overlapping",
        "invalid global|error",
        folder="lora",
        instance="lora_BFloat16",
    ),
    experts(
        "experts_sorted_before_they_are_chosen",
        "routing.cuh",
        "  ptx::store_shared(counter(expert), 0u);\n" + ENTER,
        "  ptx::store_shared(counter(expert), 0u);\n",
        report="at byte .* of the .* bytes of shared memory",
    ),
    experts(
        "experts_summed_before_they_are_multiplied",
        "expert_mlp.cu",
        ENTER + "  if (column",
        "  if (column",
        report="error nan",
    ),
    small(
        "norm_reads_its_row_before_the_wait",
        "rms_norm.cu",
        ENTER,
        "",
        "norms, overlapping",
        instance="rms_norm",
    ),
    small(
        "rope_turns_before_the_wait",
        "rope_write_kv.cu",
        ENTER,
        "",
        "rope, overlapping",
        instance="rope_write_kv",
    ),
)
