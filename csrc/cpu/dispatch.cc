#include "csrc/cpu/dispatch.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

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
namespace avx2_vnni {
void linear_integers(const LinearParams& params);
void gated_linear_integers(const GatedLinearParams& params);
}  // namespace avx2_vnni
namespace avx512_vnni {
void linear_integers(const LinearParams& params);
void gated_linear_integers(const GatedLinearParams& params);
}  // namespace avx512_vnni
namespace avx512_bf16 {
void prefill_attention(const PrefillAttentionParams& params);
}
#endif

namespace {

#ifdef __x86_64__
// The compiler's cpuid test includes whether the operating system saves the wide registers, but it knows AVX-VNNI only
// from GCC 13 and Clang 13 on.
bool has_avx_vnni() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

// The kernels of a level with those that its VNNI instructions make faster.
KernelTable with_integers(KernelTable kernels, void (*linear_integers)(const LinearParams&),
                          void (*gated_linear_integers)(const GatedLinearParams&)) {
  kernels.linear_integers = linear_integers;
  kernels.gated_linear_integers = gated_linear_integers;
  return kernels;
}

// The kernels of a level with the one that AVX512_BF16 makes faster.
KernelTable with_prefill_attention(KernelTable kernels, void (*prefill_attention)(const PrefillAttentionParams&)) {
  kernels.prefill_attention = prefill_attention;
  return kernels;
}
#endif

// All levels that run here, from the lowest to the highest.
std::vector<IsaLevel> levels_of_this_machine() {
  std::vector<IsaLevel> levels = {{"plain", plain::kKernels}};
#ifdef __x86_64__
  __builtin_cpu_init();
  if (has_avx2()) levels.push_back({"avx2", avx2::kKernels});
  if (has_avx2() && has_avx_vnni()) {
    levels.push_back(
        {"avx2_vnni", with_integers(avx2::kKernels, avx2_vnni::linear_integers, avx2_vnni::gated_linear_integers)});
  }
  if (has_avx512()) levels.push_back({"avx512", avx512::kKernels});
  if (has_avx512() && __builtin_cpu_supports("avx512vnni")) {
    levels.push_back({"avx512_vnni", with_integers(avx512::kKernels, avx512_vnni::linear_integers,
                                                   avx512_vnni::gated_linear_integers)});
  }
  if (has_avx512() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")) {
    levels.push_back({"avx512_bf16", with_prefill_attention(levels.back().kernels, avx512_bf16::prefill_attention)});
  }
#endif
  return levels;
}

IsaLevel choose_level() {
  const std::vector<IsaLevel> levels = levels_of_this_machine();
  const char* wanted = std::getenv("CUDAPREFILL_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return levels.back();
  std::string names;
  for (const IsaLevel& level : levels) {
    if (level.name == std::string(wanted)) return level;
    names += names.empty() ? level.name : std::string(", ") + level.name;
  }
  throw std::runtime_error("CUDAPREFILL_CPU_ISA asks for \"" + std::string(wanted) + "\", but this machine has " +
                           names);
}

const KernelTable& kernels() { return isa_level().kernels; }

}  // namespace

const IsaLevel& isa_level() {
  static const IsaLevel level = choose_level();
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
void linear(const LinearParams& params) {
  params.activation_bits < 32 ? kernels().linear_integers(params) : kernels().linear(params);
}
void gated_linear(const GatedLinearParams& params) {
  params.gate_up.activation_bits < 32 ? kernels().gated_linear_integers(params) : kernels().gated_linear(params);
}
void dequantise_rows(const DequantiseRowsParams& params) { kernels().dequantise_rows(params); }

}  // namespace cudaprefill::cpu
