#include "csrc/cpu/dispatch.h"

#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>

namespace cudaprefill::cpu {

namespace plain {
extern const KernelTable kKernels;
}
#ifdef __x86_64__
namespace avx2 {
extern const KernelTable kKernels;
}
namespace avx512 {
extern const KernelTable kKernels;
}
#endif

namespace {

// From the lowest to the highest.
constexpr IsaLevel kLevels[] = {
    {"plain", &plain::kKernels},
#ifdef __x86_64__
    {"avx2", &avx2::kKernels},
    {"avx512", &avx512::kKernels},
#endif
};

// The compiler's cpuid test includes whether the operating system saves the wide registers.
int highest_level() {
#ifdef __x86_64__
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return avx512 ? 2 : avx2 ? 1 : 0;
#else
  return 0;
#endif
}

const IsaLevel& choose_level() {
  const int highest = highest_level();
  const char* wanted = std::getenv("CUDAPREFILL_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return kLevels[highest];
  for (int level = 0; level <= highest; ++level) {
    if (kLevels[level].name == std::string(wanted)) return kLevels[level];
  }
  throw std::runtime_error("CUDAPREFILL_CPU_ISA asks for \"" + std::string(wanted) +
                           "\", but the highest level of this machine is \"" + kLevels[highest].name +
                           "\" (levels: plain, avx2, avx512)");
}

const KernelTable& kernels() { return *isa_level().kernels; }

}  // namespace

const IsaLevel& isa_level() {
  static const IsaLevel& level = choose_level();
  return level;
}

void write_kv(const WriteKvParams& params) { kernels().write_kv(params); }
void prefill_attention(const PrefillAttentionParams& params) { kernels().prefill_attention(params); }
void decode_attention(const DecodeAttentionParams& params) { kernels().decode_attention(params); }
void rope_write_kv(const RopeWriteKvParams& params) { kernels().rope_write_kv(params); }
void rms_norm(const RmsNormParams& params) { kernels().rms_norm(params); }
void silu_and_mul(const SiluAndMulParams& params) { kernels().silu_and_mul(params); }
void gelu_tanh_and_mul(const GeluTanhAndMulParams& params) { kernels().gelu_tanh_and_mul(params); }
void add_lora(const AddLoraParams& params) { kernels().add_lora(params); }
void linear(const LinearParams& params) { kernels().linear(params); }
void dequantise_rows(const DequantiseRowsParams& params) { kernels().dequantise_rows(params); }

}  // namespace cudaprefill::cpu
