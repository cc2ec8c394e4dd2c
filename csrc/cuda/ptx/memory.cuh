// Loads and stores of 4, 8 or 16 bytes. Kernels touch memory through these and the other files of ptx/ only, so the
// emulation, which has files of the same names, sees every access.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cudaprefill::ptx {

// 16-bit scalars are welcome here too; anything that a warp streams should be 16 bytes a thread.
template <class T>
__device__ __forceinline__ T load_global(const T* address) {
  return *address;
}

template <class T>
__device__ __forceinline__ void store_global(T* address, const T& value) {
  *address = value;
}

// Where the dynamic shared memory of the block begins, as an address of the shared window.
__device__ __forceinline__ uint32_t shared_base() {
  extern __shared__ uint4 dynamic_shared_memory[];
  return static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared_memory));
}

__device__ __forceinline__ void load_shared(uint32_t address, uint32_t& value) {
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_shared(uint32_t address, float& value) {
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_shared(uint32_t address, float2& value) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_shared(uint32_t address, uint4& value) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, const float2& value) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value.x), "f"(value.y) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, const uint4& value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

// Returns what was there before.
__device__ __forceinline__ uint32_t atomic_add_shared(uint32_t address, uint32_t value) {
  uint32_t before;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(address), "r"(value) : "memory");
  return before;
}

}  // namespace cudaprefill::ptx
