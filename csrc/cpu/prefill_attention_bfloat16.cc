// Prefill attention over a bfloat16 cache, for CPUs that multiply bfloat16.
#include "csrc/cpu/prefill_attention_bfloat16.h"

#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/prefill_attention_float.h"
#include "csrc/cpu/prefill_attention_worker.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

void prefill_attention(const PrefillAttentionParams& params) {
  if (params.kv_dtype == DType::kBFloat16 && BFloat16Products::can_do(params.head_size)) {
    run_prefill_attention<BFloat16Products>(params);
  } else {
    with_cache_type(params.kv_dtype, [&](auto kv) { run_prefill_attention<FloatProducts<decltype(kv)>>(params); });
  }
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
