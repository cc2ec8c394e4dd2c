#include "csrc/cpu/paged_slot.h"

#include <stdexcept>
#include <string>

namespace cudaprefill::cpu {

void check_slots(const int64_t* slot_mapping, int64_t num_tokens, const PagedCache& cache, int64_t block_size) {
  const int64_t num_slots = cache.num_blocks * block_size;
  for (int64_t token = 0; token < num_tokens; ++token) {
    if (slot_mapping[token] < -1 || slot_mapping[token] >= num_slots) {
      throw std::out_of_range("slot_mapping[" + std::to_string(token) + "] is " + std::to_string(slot_mapping[token]) +
                              ", but the cache has " + std::to_string(num_slots) + " slots (and -1 means none)");
    }
  }
}

}  // namespace cudaprefill::cpu
