// How many parts the keys of a decode are cut into, so that a small batch fills the device.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cudaprefill {

constexpr int kDecodeBlocksPerMultiprocessor = 3;  // their loads in flight together cover the latency of memory
constexpr int kMinKeysPerSplit = 256;
constexpr int kMaxDecodeSplits = 128;

// `blocks` thread blocks without splits; no request has more than `max_keys` keys. The lengths themselves are on the
// device, which cuts each request evenly: the number holds for a captured graph, too.
inline int decode_splits(int64_t blocks, int64_t max_keys, int num_multiprocessors) {
  const int64_t wanted = int64_t{num_multiprocessors} * kDecodeBlocksPerMultiprocessor / std::max<int64_t>(blocks, 1);
  const int64_t useful = max_keys / kMinKeysPerSplit;
  return static_cast<int>(std::clamp<int64_t>(std::min(wanted, useful), 1, kMaxDecodeSplits));
}

}  // namespace cudaprefill
