// rope_write_kv: q is normed and rotated in place; k is normed, rotated and written to its slot; v is written to its
// slot.
//
// A head is cut into items of two 16-byte vectors. In the rotated part, an item pairs a vector of the first half with
// the one that it turns with; the rest of a head, which only passes through, is cut into neighbouring pairs:
//
//     | first half of rotary_dim | second half | passes through |
//        ^ item i ................. ^ item i      ^^ item j
//
// A power of two of lanes works on a head, one item a lane, so the sums of the norm are shuffles.
#include <cuda_runtime.h>

#include <bit>
#include <launch.cuh>

#include "csrc/cuda/checks.h"
#include "csrc/cuda/kernels.h"
#include "csrc/cuda/kv_number.cuh"
#include "csrc/cuda/paged.cuh"
#include "csrc/cuda/reduce.cuh"
#include "csrc/cuda/stream_order.cuh"
#include "csrc/cuda/vector.cuh"

namespace cudaprefill::cuda {
namespace {

constexpr int kThreads = 128;

struct LaunchParams {
  RopeWriteKvParams op;
  int lanes_per_head;
};

template <class Element, class Kv>
__global__ void __launch_bounds__(kThreads) rope_write_kv_kernel(const __grid_constant__ LaunchParams launch) {
  constexpr int kVector = kVectorSize<Element>;
  const RopeWriteKvParams& params = launch.op;
  const int64_t token = blockIdx.x;
  const int lanes = launch.lanes_per_head;
  const int item = threadIdx.x % lanes;
  const int half = params.rotary_dim / 2;
  const bool rotates = item * kVector < half;
  // Elements where the two vectors of the item begin.
  const int low = rotates ? item * kVector : 2 * item * kVector;
  const int high = rotates ? low + half : low + kVector;
  const bool active = item < params.head_size / (2 * kVector);

  enter_stream();
  float cosine[kVector] = {}, sine[kVector] = {};
  if (active && rotates) {
    const int64_t position = ptx::load_global(params.position_ids + token);
    const float* row = params.cos_sin + position * params.rotary_dim + item * kVector;
#pragma unroll
    for (int i = 0; i < kVector; i += 4) {
      float part[4];
      load_vector(row + i, part);
#pragma unroll
      for (int j = 0; j < 4; ++j) cosine[i + j] = part[j];
      load_vector(row + half + i, part);
#pragma unroll
      for (int j = 0; j < 4; ++j) sine[i + j] = part[j];
    }
  }
  const int64_t slot = ptx::load_global(params.slot_mapping + token);

  // The heads of q, then those of k, then those of v. All lanes of a warp stay to the end, for the sums.
  const int num_heads = params.num_q_heads + 2 * params.num_kv_heads;
  const int heads_at_once = kThreads / lanes;
  for (int first = 0; first < num_heads; first += heads_at_once) {
    const int head = first + static_cast<int>(threadIdx.x) / lanes;
    const bool is_q = head < params.num_q_heads;
    const bool is_v = head >= params.num_q_heads + params.num_kv_heads;
    const int kv_head = (head - params.num_q_heads) % params.num_kv_heads;
    const bool works = active && head < num_heads && (is_q || slot >= 0);

    const HeadRows& rows = is_q ? params.q : is_v ? params.v : params.k;
    Element* from =
        static_cast<Element*>(rows.data) + token * rows.token_stride + (is_q ? head : kv_head) * rows.head_stride;
    float a[kVector] = {}, b[kVector] = {};
    if (works) {
      load_vector(from + low, a);
      load_vector(from + high, b);
    }

    const void* norm = is_q ? params.q_norm : is_v ? nullptr : params.k_norm;
    if (params.q_norm || params.k_norm) {  // the same for all lanes
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kVector; ++i) squares += a[i] * a[i] + b[i] * b[i];
      const float mean = group_sum(squares, lanes) / static_cast<float>(params.head_size);
      if (works && norm) {
        const float scale = rsqrtf(mean + params.norm_epsilon);
        float weight_a[kVector], weight_b[kVector];
        load_vector(static_cast<const Element*>(norm) + low, weight_a);
        load_vector(static_cast<const Element*>(norm) + high, weight_b);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          a[i] *= scale * weight_a[i];
          b[i] *= scale * weight_b[i];
        }
      }
    }
    if (!works) continue;
    if (rotates && !is_v) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float turned_a = a[i] * cosine[i] - b[i] * sine[i];
        b[i] = b[i] * cosine[i] + a[i] * sine[i];
        a[i] = turned_a;
      }
    }
    const PagedCache& cache = is_v ? params.v_cache : params.k_cache;
    if (kHasScales<Kv> && !is_q) {
      Float8* to = static_cast<Float8*>(cache.data) + slot_offset(cache, slot, params.block_size, kv_head);
      const float inverse = 1 / scale_of<Float8>(cache, kv_head);
      store_float8<Element>(to + low, a, inverse);
      store_float8<Element>(to + high, b, inverse);
    } else {  // q and a cache of its type share the stores, which takes fewer registers
      Element* to =
          is_q ? from : static_cast<Element*>(cache.data) + slot_offset(cache, slot, params.block_size, kv_head);
      store_vector(to + low, a);
      store_vector(to + high, b);
    }
  }
}

}  // namespace

void rope_write_kv(const RopeWriteKvParams& params, Device& device) {
  constexpr const char* op = "rope_write_kv";
  require_cache_dtype(op, params.dtype, params.kv_dtype);
  require_alignment(op, "q", params.q, params.dtype);
  require_alignment(op, "k", params.k, params.dtype);
  require_alignment(op, "v", params.v, params.dtype);
  require_alignment(op, "k_cache", params.k_cache, params.kv_dtype);
  require_alignment(op, "v_cache", params.v_cache, params.kv_dtype);
  require_alignment(op, "cos_sin", params.cos_sin, {}, DType::kFloat32);
  require_alignment(op, "q_norm", params.q_norm, {}, params.dtype);
  require_alignment(op, "k_norm", params.k_norm, {}, params.dtype);
  const int pair = 2 * kVectorBytes / element_bytes(params.dtype);
  require(params.head_size % pair == 0, op, ": head_size must be a multiple of ", pair, ", got ", params.head_size);
  require(params.rotary_dim % pair == 0, op, ": rotary_dim must be a multiple of ", pair, ", got ", params.rotary_dim);
  const int items = params.head_size / pair;
  require(items <= kWarpSize, op, ": head_size must be at most ", kWarpSize * pair, ", got ", params.head_size);
  if (params.num_tokens == 0 || params.head_size == 0) return;
  const auto lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(items)));
  const LaunchShape shape{dim3{static_cast<unsigned>(params.num_tokens), 1, 1}, kThreads};
  with_element_type(params.dtype, [&]<class Element>(Element) {
    with_kv_type<Element>(params.kv_dtype, [&]<class Kv>(Kv) {
      launch(op, rope_write_kv_kernel<Element, Kv>, shape, LaunchParams{params, lanes}, device.stream());
    });
  });
}

}  // namespace cudaprefill::cuda
