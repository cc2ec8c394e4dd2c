"""Faults in the kernels of the experts: the choice, the sort into tiles, the products and the weighted sum."""

from __future__ import annotations

from functools import partial

from .mutant import Mutant

mutant = partial(Mutant, folder="experts", instance="expert_mlp", caught_by="experts")

MUTANTS = (
    mutant(
        "experts_chosen_twice",
        "routing.cuh",
        "    if (best_expert % kWarpSize == lane) chosen |= 1u << (best_expert / kWarpSize);\n",
        "",
        report="error .*, in torch",
    ),
    mutant(
        "experts_sorted_by_an_inclusive_sum",
        "routing.cuh",
        "uint32_t before = through - value;",
        "uint32_t before = through;",
        report="invalid global write|error .*, in torch",
    ),
    mutant(
        "experts_placed_before_all_are_counted",
        "routing.cuh",
        "__syncthreads();  // counted by all",
        "// counted by all",
        report="race",
    ),
    mutant(
        "experts_placed_before_all_begin",
        "routing.cuh",
        "__syncthreads();  // every counter is where its expert begins",
        "// every counter is where its expert begins",
        report="race",
    ),
    mutant(
        "experts_with_tiles_rounded_down",
        "routing.cuh",
        "sum_before((count + kExpertRows - 1) / kExpertRows, scratch, num_tiles)",
        "sum_before(count / kExpertRows, scratch, num_tiles)",
        report="error .*, in torch",
    ),
    mutant(
        "experts_multiplied_by_the_next_one",
        "products.cuh",
        "int64_t{expert} * (gated",
        "int64_t{(expert + 1) % params.num_experts} * (gated",
        report="error .*, in torch",
    ),
    mutant(
        "experts_with_gate_for_up",
        "products.cuh",
        "gated && row >= kOutputsOfBlock<gated> ? params.inner_size + output : output",
        "gated && row < kOutputsOfBlock<gated> ? params.inner_size + output : output",
        report="error .*, in torch",
    ),
    mutant(
        "experts_without_wait_for_copies",
        "products.cuh",
        "ptx::wait_for_copies<1>();  // this step's, of this thread",
        "// this step's, of this thread",
        report="ldmatrix: reads shared memory that an unfinished cp.async is about to write",
    ),
    mutant(
        "experts_stage_filled_too_early",
        "products.cuh",
        "__syncthreads();  // the stage may be filled again",
        "// the stage may be filled again",
        report="race|unfinished cp.async",
    ),
    mutant(
        "experts_results_left_in_the_order_of_the_sort",
        "products.cuh",
        "int64_t{ptx::load_global(launch.sorted + first + row)} * num_outputs",
        "int64_t{first + row} * num_outputs",
        report="error .*, in torch",
    ),
    mutant(
        "experts_weighted_as_the_first_choice",
        "expert_mlp.cu",
        "ptx::load_global(launch.weights + pair)",
        "ptx::load_global(launch.weights + pair - choice)",
        report="error .*, in torch",
    ),
)
