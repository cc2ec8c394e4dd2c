#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/paged_slot.h"
#include "csrc/cpu/parallel.h"
#include "csrc/cpu/simd.h"
#include "csrc/cpu/stored_numbers.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
void write_kv(const WriteKvParams& params) {
  check_slots(params.slot_mapping, params.num_tokens, params.k_cache, params.block_size);
  check_scales(params.k_cache, params.v_cache, params.num_kv_heads);
  with_element_types(params.dtype, params.kv_dtype, [&](auto t, auto kv) {
    using T = decltype(t);
    using Kv = decltype(kv);
    const int64_t token_size = 2 * params.num_kv_heads * params.head_size;
    parallel_for(params.num_tokens, grain_of(token_size), [&](int64_t first, int64_t last) {
      for (int64_t token = first; token < last; ++token) {
        if (params.slot_mapping[token] < 0) continue;
        const PagedSlot slot(params.slot_mapping[token], params.block_size);
        for (int64_t head = 0; head < params.num_kv_heads; ++head) {
          store_row(row_of<T>(params.k, token, head), slot.row<Kv>(params.k_cache, head), params.head_size,
                    StoredNumbers<Kv>(params.k_cache, head));
          store_row(row_of<T>(params.v, token, head), slot.row<Kv>(params.v_cache, head), params.head_size,
                    StoredNumbers<Kv>(params.v_cache, head));
        }
      }
    });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
