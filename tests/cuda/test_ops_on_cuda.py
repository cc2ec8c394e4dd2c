"""The tests of tests/ops, run once more with the CUDA kernels behind the ops.

Left out are tests of the CPU kernels themselves (instruction set levels, threads, values checked inside tensors), those
of random examples, and those at sizes that test_attention.py has.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cudaprefill import ops
from tests.cuda.backends import GPU_BACKENDS, OP_NAMES, backend_of_ops, ops_replaced_by, skipping_refusals
from tests.ops import (
    test_activate_and_mul,
    test_copy_blocks,
    test_decode_attention,
    test_expert_mlp,
    test_float8_cache,
    test_mixed_attention,
    test_prefill_attention,
    test_rms_norm,
    test_rope_write_kv,
    test_write_kv,
)

SHARED = {
    test_prefill_attention: (
        "a_batch_without_requests_does_nothing",
        "a_key_of_overwhelming_score_is_found_wherever_it_lies",
        "caches_may_be_views_of_one_tensor",
        "chunks_give_what_one_shot_gives",
        "keys_before_the_window_contribute_nothing",
        "nan_in_one_row_stays_in_that_row",
        "q_and_out_may_be_views_of_wider_rows",
        "requests_without_new_tokens_yield_nothing",
        "row_i_sees_the_keys_up_to_its_own_position",
        "rows_outside_the_range_of_cu_seqlens_are_untouched",
        "scores_far_apart_and_far_from_zero",
        "soft_cap",
        "window",
    ),
    test_decode_attention: (
        "a_batch_without_requests_does_nothing",
        "an_empty_context_gives_zeros_and_disturbs_nobody",
        "decoding_gives_what_prefill_of_one_row_gives",
        "keys_before_the_window_contribute_nothing",
        "nan_in_one_request_stays_in_that_request",
        "q_and_out_may_be_views_of_wider_rows",
        "scores_far_apart_and_far_from_zero",
        "soft_cap",
        "the_query_sees_its_whole_context",
        "tokens_decoded_after_a_prompt_with_a_window",
        "window",
    ),
    test_mixed_attention: (
        "decodes_and_chunks_see_what_they_would_alone",
        "a_step_of_one_kind_and_chunks_of_one_token",
        "a_window_and_a_soft_cap",
        "nan_in_a_decode_stays_in_that_decode",
    ),
    test_write_kv: (
        "every_dtype_and_head_size",
        "many_tokens_on_several_threads",
        "a_nan_row_with_slot_minus_one_leaves_the_pool_alone",
        "views_of_one_fused_row",
        "caches_that_are_views",
        "no_tokens",
        "blocks_far_beyond_32_bit_offsets",
    ),
    test_rope_write_kv: (
        "every_dtype",
        "head_sizes_and_partial_rotation",
        "only_q_or_only_k_is_normed",
        "views_of_one_fused_row",
        "many_tokens_on_several_threads",
        "no_tokens",
        "nan_rows_with_slot_minus_one_leave_the_pool_and_the_real_rows_alone",
        "blocks_far_beyond_32_bit_offsets",
    ),
    test_float8_cache: (
        "numbers_are_rounded_as_in_torch_and_end_at_448",
        "a_skipped_token_leaves_the_pool_alone",
        "keys_are_rotated_before_they_are_rounded",
        "every_number_stands_for_itself_times_the_scale",
        "nan_in_one_key_is_seen_by_those_alone_who_see_the_key",
        "blocks_are_copied_byte_by_byte",
    ),
    test_rms_norm: (
        "rms_norm",
        "add_rms_norm",
        "rows_that_do_not_adjoin",
        "a_row_of_zeros_stays_zero",
        "a_row_of_nan_harms_no_other",
        "no_rows",
    ),
    test_activate_and_mul: (
        "every_dtype_and_size",
        "gates_beyond_the_range_of_the_exponential",
        "rows_that_do_not_adjoin",
        "no_rows",
    ),
    test_expert_mlp: (
        "tokens_and_experts",
        "all_tokens_choose_the_same_experts",
        "experts_that_nobody_chose_are_not_read",
        "of_equal_logits_the_first_experts_are_chosen",
        "nan_in_a_row_stays_in_that_row",
        "a_token_gets_the_same_alone_and_among_others",
        "rows_that_do_not_adjoin",
        "no_tokens",
    ),
    test_copy_blocks: (
        "every_dtype_and_size",
        "caches_whose_slots_do_not_adjoin",
        "blocks_far_beyond_32_bit_offsets",
    ),
}
for module, names in SHARED.items():
    prefix = module.__name__.rpartition(".")[2]
    globals().update({f"{prefix}_{name}": getattr(module, f"test_{name}") for name in names})


@pytest.fixture(params=GPU_BACKENDS, autouse=True)
def gpu_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test of this file runs on the emulated device and on a real one."""
    torch.manual_seed(0)
    with (
        backend_of_ops(request.param),
        ops_replaced_by({op: skipping_refusals(getattr(ops, op)) for op in OP_NAMES}),
    ):
        yield request.param
