// What a cache stores of a number of K or V: the number itself, of the type of the activations, or a Float8 that stands
// for itself times the scale of its KV head. Kernels are templates over that type, Kv.
#pragma once

#include <cuda_runtime.h>

#include <ptx/memory.cuh>
#include <type_traits>

#include "csrc/cuda/float8.cuh"
#include "csrc/cuda/vector.cuh"
#include "csrc/ops/params.h"

namespace cudaprefill {

template <class Kv>
inline constexpr bool kHasScales = std::is_same_v<Kv, Float8>;

template <class Kv>
__device__ __forceinline__ float scale_of(const PagedCache& cache, int head) {
  if constexpr (kHasScales<Kv>) {
    return ptx::load_global(cache.scales + head);
  } else {
    return 1;
  }
}

// Stores as many neighbouring numbers as are 16 bytes of Element; `inverse` is that of the scale.
template <class Element>
__device__ __forceinline__ void store_float8(Float8* address, const float (&numbers)[kVectorSize<Element>],
                                             float inverse) {
  float quotients[kVectorSize<Element>];
#pragma unroll
  for (int i = 0; i < kVectorSize<Element>; ++i) quotients[i] = numbers[i] * inverse;
  if constexpr (kVectorSize<Element> == 8) {
    const uint2 packed{pack_four_float8(quotients), pack_four_float8(quotients + 4)};
    ptx::store_global(reinterpret_cast<uint2*>(address), packed);
  } else {
    ptx::store_global(reinterpret_cast<uint32_t*>(address), pack_four_float8(quotients));
  }
}

// Calls function(Kv{}) with what the caches store beside activations of type Element.
template <class Element, class Function>
void with_kv_type(DType kv_dtype, Function function) {
  if (kv_dtype == DType::kFloat8) return function(Float8{});
  function(Element{});
}

}  // namespace cudaprefill
