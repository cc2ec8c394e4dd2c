#include "csrc/cpu/cache_scales.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace cudaprefill::cpu {
namespace {

void check(const char* name, const PagedCache& cache, int64_t num_kv_heads) {
  for (int64_t head = 0; cache.scales != nullptr && head < num_kv_heads; ++head) {
    const float scale = cache.scales[head];
    if (!std::isnormal(scale) || scale < 0) {
      throw std::out_of_range(std::string(name) + "[" + std::to_string(head) + "] is " + std::to_string(scale) +
                              ", but a scale must be a normal number above 0");
    }
  }
}

}  // namespace

void check_scales(const PagedCache& k_cache, const PagedCache& v_cache, int64_t num_kv_heads) {
  check("k_scale", k_cache, num_kv_heads);
  check("v_scale", v_cache, num_kv_heads);
}

}  // namespace cudaprefill::cpu
