#include "csrc/cpu/float_types.h"
#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/paged_slot.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

template <class T, class Kv>
void write_rows(const HeadRows& rows, const PagedCache& cache, const WriteKvParams& params, int64_t token,
                const PagedSlot& slot) {
  for (int64_t head = 0; head < params.num_kv_heads; ++head) {
    const T* from = static_cast<const T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
    Kv* to = slot.row<Kv>(cache, head);
    for (int64_t d = 0; d < params.head_size; ++d) to[d] = from_float<Kv>(to_float(from[d]));
  }
}

}  // namespace

void write_kv(const WriteKvParams& params) {
  check_slots(params.slot_mapping, params.num_tokens, params.k_cache, params.block_size);
  with_element_type(params.dtype, [&](auto t) {
    with_element_type(params.kv_dtype, [&](auto kv) {
      parallel_for(params.num_tokens, 16, [&](int64_t first, int64_t last) {
        for (int64_t token = first; token < last; ++token) {
          if (params.slot_mapping[token] < 0) continue;
          const PagedSlot slot(params.slot_mapping[token], params.block_size);
          write_rows<decltype(t), decltype(kv)>(params.k, params.k_cache, params, token, slot);
          write_rows<decltype(t), decltype(kv)>(params.v, params.v_cache, params, token, slot);
        }
      });
    });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
