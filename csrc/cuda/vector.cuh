// Rows of numbers, 16 bytes at a time: float32 in registers, the storage format in memory.
#pragma once

#include <ptx/convert.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/element.cuh"
#include "csrc/ops/params.h"

namespace cudaprefill {

template <class Element>
constexpr int kVectorSize = 16 / sizeof(Element);

template <class Element>
__device__ __forceinline__ void load_vector(const Element* address, float (&out)[kVectorSize<Element>]) {
  const uint4 bits = ptx::load_global(reinterpret_cast<const uint4*>(address));
  if constexpr (sizeof(Element) == 4) {
    out[0] = __uint_as_float(bits.x);
    out[1] = __uint_as_float(bits.y);
    out[2] = __uint_as_float(bits.z);
    out[3] = __uint_as_float(bits.w);
  } else {
    ptx::unpack<Element>(bits.x, out[0], out[1]);
    ptx::unpack<Element>(bits.y, out[2], out[3]);
    ptx::unpack<Element>(bits.z, out[4], out[5]);
    ptx::unpack<Element>(bits.w, out[6], out[7]);
  }
}

template <class Element>
__device__ __forceinline__ uint4 pack_vector(const float (&in)[kVectorSize<Element>]) {
  uint4 bits;
  if constexpr (sizeof(Element) == 4) {
    bits.x = __float_as_uint(in[0]);
    bits.y = __float_as_uint(in[1]);
    bits.z = __float_as_uint(in[2]);
    bits.w = __float_as_uint(in[3]);
  } else {
    bits.x = ptx::pack<Element>(in[0], in[1]);
    bits.y = ptx::pack<Element>(in[2], in[3]);
    bits.z = ptx::pack<Element>(in[4], in[5]);
    bits.w = ptx::pack<Element>(in[6], in[7]);
  }
  return bits;
}

template <class Element>
__device__ __forceinline__ void store_vector(Element* address, const float (&in)[kVectorSize<Element>]) {
  ptx::store_global(reinterpret_cast<uint4*>(address), pack_vector<Element>(in));
}

// Calls `function` with a value of the type that stores `dtype`.
template <class Function>
void with_element_type(DType dtype, Function function) {
  switch (dtype) {
    case DType::kFloat32:
      return function(float{});
    case DType::kBFloat16:
      return function(BFloat16{});
    case DType::kFloat16:
      return function(Half{});
    case DType::kFloat8:
      return;  // of caches alone
  }
}

}  // namespace cudaprefill
