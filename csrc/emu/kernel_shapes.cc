// Prints how the attention kernels are launched, for the resource report of `make cuda`: kernel, head size, what the
// caches store, threads of a block, bytes of its dynamic shared memory. The compiler's own report knows neither of the
// last two.
#include <cstdio>

#include "csrc/cuda/attention/decode.cuh"
#include "csrc/cuda/attention/hopper/decode_launch.h"
#include "csrc/cuda/attention/hopper/prefill_traits.h"
#include "csrc/cuda/attention/prefill.cuh"

namespace {

template <int head_size, class Kv>
void print(const char* kv) {
  using Decode = cudaprefill::DecodeTraits<head_size, Kv>;
  using Prefill = cudaprefill::PrefillTraits<head_size, Kv>;
  std::printf("decode_attention_kernel %d %s %d %u\n", head_size, kv, Decode::kWarps * cudaprefill::kWarpSize,
              Decode::kSharedBytes);
  std::printf("prefill_attention_kernel %d %s %d %u\n", head_size, kv, cudaprefill::kPrefillThreads,
              Prefill::kSharedBytes);
  if constexpr (cudaprefill::hopper_has_head_size(head_size)) {
    using HopperDecode = cudaprefill::HopperDecodeTraits<head_size, Kv>;
    std::printf("decode_sm90_kernel %d %s %d %u\n", head_size, kv, HopperDecode::kThreads, HopperDecode::kSharedBytes);
  }
}

template <int head_size>
void print_all() {
  print<head_size, cudaprefill::BFloat16>("Element");
  print<head_size, cudaprefill::Float8>("Float8");
  if constexpr (cudaprefill::hopper_has_head_size(head_size)) {
    using Hopper = cudaprefill::HopperPrefillTraits<head_size>;
    std::printf("prefill_sm90_kernel %d Element %d %u\n", head_size, Hopper::kThreads, Hopper::kSharedBytes);
    std::printf("prefill_sm90_kernel %d Float8 %d %u\n", head_size, Hopper::kThreads, Hopper::kWideningSharedBytes);
  }
}

}  // namespace

int main() {
  print_all<64>();
  print_all<80>();
  print_all<96>();
  print_all<128>();
  print_all<256>();
}
