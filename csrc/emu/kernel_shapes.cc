// Prints how the attention kernels are launched, for the resource report of `make cuda`: kernel, head size, threads of
// a block, bytes of its dynamic shared memory. The compiler's own report knows neither of the last two.
#include <cstdio>

#include "csrc/cuda/attention/decode.cuh"
#include "csrc/cuda/attention/hopper/decode_launch.h"
#include "csrc/cuda/attention/hopper/prefill_traits.h"
#include "csrc/cuda/attention/prefill.cuh"

namespace {

template <int head_size>
void print() {
  using Decode = cudaprefill::DecodeTraits<head_size>;
  using Prefill = cudaprefill::PrefillTraits<head_size>;
  std::printf("decode_attention_kernel %d %d %u\n", head_size, Decode::kWarps * cudaprefill::kWarpSize,
              Decode::kSharedBytes);
  std::printf("prefill_attention_kernel %d %d %u\n", head_size, cudaprefill::kPrefillThreads, Prefill::kSharedBytes);
  if constexpr (cudaprefill::hopper_has_head_size(head_size)) {
    using Hopper = cudaprefill::HopperPrefillTraits<head_size>;
    using HopperDecode = cudaprefill::HopperDecodeTraits<head_size>;
    std::printf("decode_sm90_kernel %d %d %u\n", head_size, HopperDecode::kThreads, HopperDecode::kSharedBytes);
    std::printf("prefill_sm90_kernel %d %d %u\n", head_size, Hopper::kThreads, Hopper::kSharedBytes);
  }
}

}  // namespace

int main() {
  print<64>();
  print<80>();
  print<96>();
  print<128>();
  print<256>();
}
