#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/prefill_attention_float.h"
#include "csrc/cpu/prefill_attention_worker.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

void prefill_attention(const PrefillAttentionParams& params) {
  with_cache_type(params.kv_dtype, [&](auto kv) { run_prefill_attention<FloatProducts<decltype(kv)>>(params); });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
