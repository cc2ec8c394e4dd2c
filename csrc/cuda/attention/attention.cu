// The dispatch of the attention ops: arguments checked, launches planned, the instance chosen by dtype and head size.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "csrc/cuda/attention/decode_splits.h"
#include "csrc/cuda/attention/hopper/decode_launch.h"
#include "csrc/cuda/attention/hopper/prefill_launch.h"
#include "csrc/cuda/attention/instance.h"
#include "csrc/cuda/attention/measured_kernels.h"
#include "csrc/cuda/attention/plain.h"
#include "csrc/cuda/checks.h"
#include "csrc/cuda/element.cuh"
#include "csrc/cuda/kernels.h"
#include "csrc/cuda/kv_number.cuh"
#include "csrc/ops/mixed_step.h"

namespace cudaprefill::cuda {
namespace {

constexpr int kPrefillBlocksPerMultiprocessor = 2;

template <class Params>
void check_attention(const char* op, const Params& params) {
  require_cache_dtype(op, params.dtype, params.kv_dtype);
  require(params.scale > 0, op, ": scale must be above 0, got ", params.scale);
  require(params.block_size >= 16 && std::has_single_bit(static_cast<unsigned>(params.block_size)), op,
          ": block_size must be a power of two from 16 on, got ", params.block_size);
  require_alignment(op, "q", params.q, params.dtype);
  require_alignment(op, "out", params.out, params.dtype);
  require_alignment(op, "k_cache", params.k_cache, params.kv_dtype);
  require_alignment(op, "v_cache", params.v_cache, params.kv_dtype);
}

int block_shift(int block_size) { return std::countr_zero(static_cast<unsigned>(block_size)); }

// Calls function(Element{}, integral_constant<head_size>) for the instance.
template <class Function>
void with_instance(const char* op, DType dtype, int head_size, Function function) {
  const auto with_head_size = [&](auto element) {
    switch (head_size) {
      case 64:
        return function(element, std::integral_constant<int, 64>{});
      case 80:
        return function(element, std::integral_constant<int, 80>{});
      case 96:
        return function(element, std::integral_constant<int, 96>{});
      case 128:
        return function(element, std::integral_constant<int, 128>{});
      case 256:
        return function(element, std::integral_constant<int, 256>{});
      default:
        require(false, op, ": head_size must be 64, 80, 96, 128 or 256, got ", head_size);
    }
  };
  if (dtype == DType::kBFloat16) {
    with_head_size(BFloat16{});
  } else {
    with_head_size(Half{});
  }
}

void check_plain_head_size(const char* op, int head_size) {
  require(head_size % 4 == 0 && head_size <= kPlainMaxHeadSize, op, ": head_size must be a multiple of 4 of at most ",
          kPlainMaxHeadSize, ", got ", head_size);
}

template <class Params>
bool has_hopper_kernels(const Params& params, Device& device) {
  constexpr int kHopper = 90;  // and no later one: the machine code is that of 9.0a
  return device.compute_capability() == kHopper && hopper_has_head_size(params.head_size);
}

template <class Params>
bool has_page_boxes(const Params& params) {
  return PageBoxes::fits(params.k_cache, params.num_kv_heads) && PageBoxes::fits(params.v_cache, params.num_kv_heads);
}

// A kernel of 16-bit prefill for these arguments: the one that is wanted, or the best that the device has.
PrefillKernel choose_prefill_kernel(const PrefillAttentionParams& params, Device& device) {
  const bool widens = params.kv_dtype == DType::kFloat8;
  const bool hopper = has_hopper_kernels(params, device) && (!widens || hopper_widens(params.head_size));
  const bool boxes = hopper && !widens && has_page_boxes(params);
  PrefillKernel wanted = device.wanted_prefill_kernel();
  if (wanted == PrefillKernel::kBest) {
    wanted = measured_kernel(kMeasuredPrefill, params.kv_dtype, params.head_size, params.num_tokens, wanted);
  }
  if (wanted == PrefillKernel::kMma || !hopper) return PrefillKernel::kMma;
  if (wanted == PrefillKernel::kAsyncCopies || !boxes) return PrefillKernel::kAsyncCopies;
  return PrefillKernel::kTensorCopies;
}

// The line of all keys (hopper/decode_line.cuh) is counted in 32 bits, and the lengths of all requests are in shared
// memory.
bool fits_decode_line(const DecodeAttentionParams& params, int row_tiles) {
  const int64_t pieces = params.max_blocks * params.block_size / kPageRows;
  return params.num_requests <= kHopperDecodeMostRequests &&
         params.num_requests * pieces * params.num_kv_heads * row_tiles <= INT32_MAX;
}

DecodeKernel choose_decode_kernel(const DecodeAttentionParams& params, int row_tiles, Device& device) {
  const bool tensor_copies =
      has_hopper_kernels(params, device) && has_page_boxes(params) && fits_decode_line(params, row_tiles);
  DecodeKernel wanted = device.wanted_decode_kernel();
  if (wanted == DecodeKernel::kBest) {
    wanted = measured_kernel(kMeasuredDecode, params.kv_dtype, params.head_size, params.num_requests, wanted);
  }
  return tensor_copies && wanted != DecodeKernel::kAsyncCopies ? DecodeKernel::kTensorCopies
                                                               : DecodeKernel::kAsyncCopies;
}

template <class Params>
TensorMap page_map(const PagedCache& cache, const Params& params) {
  return encode_tensor_map(PageBoxes::shape(cache, params.num_kv_heads, params.block_size, params.head_size,
                                            element_bytes(params.kv_dtype)));
}

struct PlannedPrefill {
  PrefillLaunch launch;
  int64_t max_split_tiles;
};

// The tiles of a kernel.
struct TileShape {
  int rows, keys;
  int narrow_rows, narrow_keys;  // no rows where the kernel has no narrow ones
};

// Launches the planning kernel for tiles of that shape, run by `blocks` thread blocks.
PlannedPrefill plan(const PrefillAttentionParams& params, const ScoreScale& scale, int group, const TileShape& tile,
                    int blocks, Device& device) {
  const int rows = tile.rows;
  const auto bounds =
      PrefillPlanBounds::of(params.num_tokens, params.num_requests, params.num_kv_heads, group, rows, blocks);
  PrefillPlanParams plan{};
  plan.cu_seqlens_q = params.cu_seqlens_q;
  plan.context_lens = params.context_lens;
  plan.num_requests = params.num_requests;
  plan.num_kv_heads = params.num_kv_heads;
  plan.group = group;
  plan.window = params.window;
  plan.rows = rows;
  plan.keys = tile.keys;
  plan.narrow_rows = tile.narrow_rows;
  plan.narrow_keys = tile.narrow_keys;
  plan.num_blocks = blocks;
  plan.items = static_cast<PrefillItem*>(device.workspace(bounds.items * sizeof(PrefillItem)));
  plan.split_tiles = static_cast<SplitTile*>(device.workspace(bounds.parts * sizeof(SplitTile)));
  plan.counts = static_cast<PlanCounts*>(device.workspace(sizeof(PlanCounts)));
  plan_prefill(plan, device.stream());

  const int at_once = heads_at_once(params.max_blocks * params.block_size, params.num_kv_heads, params.head_size,
                                    element_bytes(params.kv_dtype), device.l2_bytes());
  const int64_t parts = bounds.parts * params.num_kv_heads;
  void* workspace = device.workspace(Partials::bytes(parts, rows, params.head_size));
  const PrefillLaunch launch{params,
                             scale,
                             block_shift(params.block_size),
                             group,
                             at_once,
                             plan.items,
                             plan.split_tiles,
                             plan.counts,
                             Partials::in(workspace, parts, rows, params.head_size)};
  return {launch, bounds.parts / 2};
}

template <class Element, int head_size>
void decode_by_tensor_copies(const DecodeAttentionParams& params, const ScoreScale& scale, int group, int row_tiles,
                             Device& device) {
  const int blocks = device.num_multiprocessors();
  HopperDecodeLaunch launch{};
  launch.keys = page_map(params.k_cache, params);
  launch.values = page_map(params.v_cache, params);
  launch.op = params;
  launch.scale = scale;
  launch.block_shift = block_shift(params.block_size);
  launch.group = group;
  launch.row_tiles = row_tiles;
  launch.heads_of_keys = PageBoxes::heads_of_block(params.k_cache);
  launch.heads_of_values = PageBoxes::heads_of_block(params.v_cache);
  launch.workers = blocks * HopperDecodeTraits<head_size, Element>::kWarps;
  launch.pieces_before = static_cast<int32_t*>(device.workspace((params.num_requests + 1) * sizeof(int32_t)));
  const int rows = std::min(group, kDecodeRows);
  const int64_t parts = 2 * int64_t{launch.workers};
  launch.partials = Partials::in(device.workspace(Partials::bytes(parts, rows, head_size)), parts, rows, head_size);
  with_kv_type<Element>(
      params.kv_dtype, [&]<class Kv>(Kv) { run_decode_sm90<Element, head_size, Kv>(launch, blocks, device.stream()); });
  run_merge_decode_sm90<Element, head_size>(launch, device.stream());
}

}  // namespace

PrefillKernel prefill_kernel_named(const std::string& name) {
  if (name.empty() || name == "best") return PrefillKernel::kBest;
  if (name == "mma") return PrefillKernel::kMma;
  if (name == "tensor") return PrefillKernel::kTensorCopies;
  if (name == "async") return PrefillKernel::kAsyncCopies;
  throw std::invalid_argument("the prefill kernel must be best, mma, tensor or async, got " + name);
}

DecodeKernel decode_kernel_named(const std::string& name) {
  if (name.empty() || name == "best") return DecodeKernel::kBest;
  if (name == "async") return DecodeKernel::kAsyncCopies;
  if (name == "tensor") return DecodeKernel::kTensorCopies;
  throw std::invalid_argument("the decode kernel must be best, async or tensor, got " + name);
}

void decode_attention(const DecodeAttentionParams& params, Device& device) {
  constexpr const char* op = "decode_attention";
  check_attention(op, params);
  if (params.num_requests == 0 || params.num_q_heads == 0) return;
  const int group = params.num_q_heads / params.num_kv_heads;
  const ScoreScale scale = ScoreScale::from(params.scale, params.softcap);
  if (params.dtype == DType::kFloat32) {
    check_plain_head_size(op, params.head_size);
    PrefillAttentionParams plain{};
    plain.q = params.q;
    plain.out = params.out;
    plain.k_cache = params.k_cache;
    plain.v_cache = params.v_cache;
    plain.block_table = params.block_table;
    plain.context_lens = params.context_lens;
    plain.block_table_stride = params.block_table_stride;
    plain.num_tokens = params.num_requests;
    plain.num_requests = params.num_requests;
    plain.num_q_heads = params.num_q_heads;
    plain.num_kv_heads = params.num_kv_heads;
    plain.kv_dtype = params.kv_dtype;
    plain.head_size = params.head_size;
    plain.window = params.window;
    return run_plain_attention({plain, scale, block_shift(params.block_size), group}, device.stream());
  }
  with_instance(op, params.dtype, params.head_size, [&]<class Element, class HeadSize>(Element, HeadSize) {
    constexpr int head_size = HeadSize::value;
    const int row_tiles = (group + kDecodeRows - 1) / kDecodeRows;
    if constexpr (hopper_has_head_size(head_size)) {
      if (choose_decode_kernel(params, row_tiles, device) == DecodeKernel::kTensorCopies) {
        return decode_by_tensor_copies<Element, head_size>(params, scale, group, row_tiles, device);
      }
    }
    const int64_t blocks = int64_t{params.num_requests} * params.num_kv_heads * row_tiles;
    const int64_t max_keys = params.max_blocks * params.block_size;
    const int splits = decode_splits(blocks, max_keys, device.num_multiprocessors());
    Partials partials{};
    if (splits > 1) {
      const int64_t parts = blocks * splits;
      void* workspace = device.workspace(Partials::bytes(parts, kDecodeRows, head_size));
      partials = Partials::in(workspace, parts, kDecodeRows, head_size);
    }
    const DecodeLaunch launch{params, scale, block_shift(params.block_size), group, row_tiles, splits, partials};
    with_kv_type<Element>(params.kv_dtype,
                          [&]<class Kv>(Kv) { run_decode<Element, head_size, Kv>(launch, blocks, device.stream()); });
    if (splits > 1) run_merge_decode<Element, head_size>(launch, blocks, device.stream());
  });
}

void prefill_attention(const PrefillAttentionParams& params, Device& device) {
  constexpr const char* op = "prefill_attention";
  check_attention(op, params);
  if (params.num_requests == 0 || params.num_tokens == 0 || params.num_q_heads == 0) return;
  const int group = params.num_q_heads / params.num_kv_heads;
  const ScoreScale scale = ScoreScale::from(params.scale, params.softcap);
  if (params.dtype == DType::kFloat32) {
    check_plain_head_size(op, params.head_size);
    return run_plain_attention({params, scale, block_shift(params.block_size), group}, device.stream());
  }
  const PrefillKernel kernel = choose_prefill_kernel(params, device);
  with_instance(op, params.dtype, params.head_size, [&]<class Element, class HeadSize>(Element, HeadSize) {
    constexpr int head_size = HeadSize::value;
    if constexpr (hopper_has_head_size(head_size)) {
      if (kernel != PrefillKernel::kMma) {
        using Traits = HopperPrefillTraits<head_size>;
        const int blocks = device.num_multiprocessors();
        constexpr TileShape kTile{Traits::kRows, Traits::kKeys, Traits::kNarrowTiles ? kWarpgroupRows : 0,
                                  Traits::kKeys * Traits::kConsumers};
        const PlannedPrefill planned = plan(params, scale, group, kTile, blocks, device);
        HopperPrefillLaunch launch{{}, {}, planned.launch, 0, 0};
        if (kernel == PrefillKernel::kTensorCopies) {
          launch.keys = page_map(params.k_cache, params);
          launch.values = page_map(params.v_cache, params);
          launch.heads_of_keys = PageBoxes::heads_of_block(params.k_cache);
          launch.heads_of_values = PageBoxes::heads_of_block(params.v_cache);
        }
        if (params.kv_dtype == DType::kFloat8) {
          if constexpr (hopper_widens(head_size)) {
            run_widening_prefill_sm90<Element, head_size>(launch, blocks, device.stream());
          }
          return run_merge_prefill<Element, head_size>(planned.launch, planned.max_split_tiles, device.stream());
        }
        const KvCopies copies = kernel == PrefillKernel::kTensorCopies ? KvCopies::kTensor : KvCopies::kAsync;
        run_prefill_sm90<Element, head_size>(launch, copies, blocks, device.stream());
        return run_merge_prefill<Element, head_size>(planned.launch, planned.max_split_tiles, device.stream());
      }
    }
    using Traits = PrefillTraits<head_size, Element>;  // the tiles are the same for all caches
    const int blocks = device.num_multiprocessors() * kPrefillBlocksPerMultiprocessor;
    constexpr TileShape kTile{Traits::kRows, Traits::kKeys, 0, 0};
    const PlannedPrefill planned = plan(params, scale, group, kTile, blocks, device);
    with_kv_type<Element>(params.kv_dtype, [&]<class Kv>(Kv) {
      run_prefill<Element, head_size, Kv>(planned.launch, blocks, device.stream());
    });
    run_merge_prefill<Element, head_size>(planned.launch, planned.max_split_tiles, device.stream());
  });
}

void mixed_attention(const PrefillAttentionParams& params, int num_decodes, Device& device) {
  const bool both = num_decodes > 0 && num_decodes < params.num_requests;
  const bool one_queue = params.dtype != DType::kFloat32 && hopper_has_narrow_tiles(params.head_size) &&
                         choose_prefill_kernel(params, device) != PrefillKernel::kMma;
  if (both && one_queue) return prefill_attention(params, device);
  decode_attention(decodes_of(params, num_decodes), device);
  prefill_attention(chunks_of(params, num_decodes), device);
}

}  // namespace cudaprefill::cuda
