#include <cmath>

#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/parallel.h"
#include "csrc/cpu/simd.h"
#include "csrc/cpu/sum_of_squares.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

// residual += x; what is normed afterwards is the sum as stored, rounded to T.
template <class T>
void add_row(const T* x, T* residual, int64_t size) {
  for_each_vector(
      size, [&](int64_t i) { store(residual + i, load(residual + i) + load(x + i)); },
      [&](int64_t i, int count) {
        store_first(residual + i, load_first(residual + i, count) + load_first(x + i, count), count);
      });
}

template <class T>
void norm_row(const T* x, const T* weight, T* out, int64_t size, float epsilon) {
  const float mean = sum_of_squares(x, size) / static_cast<float>(size);
  const Vec scale = broadcast(1 / std::sqrt(mean + epsilon));
  for_each_vector(
      size, [&](int64_t i) { store(out + i, load(x + i) * scale * load(weight + i)); },
      [&](int64_t i, int count) {
        store_first(out + i, load_first(x + i, count) * scale * load_first(weight + i, count), count);
      });
}

}  // namespace

void rms_norm(const RmsNormParams& params) {
  with_element_type(params.dtype, [&](auto t) {
    using T = decltype(t);
    const T* weight = static_cast<const T*>(params.weight);
    parallel_for(params.num_rows, grain_of(params.hidden_size), [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* x = static_cast<const T*>(params.x) + row * params.x_stride;
        T* out = static_cast<T*>(params.out) + row * params.out_stride;
        if (params.residual != nullptr) {
          T* residual = static_cast<T*>(params.residual) + row * params.residual_stride;
          add_row(x, residual, params.hidden_size);
          x = residual;
        }
        norm_row(x, weight, out, params.hidden_size, params.epsilon);
      }
    });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
