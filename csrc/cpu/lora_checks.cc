#include "csrc/cpu/lora_checks.h"

#include <stdexcept>
#include <string>

namespace cudaprefill::cpu {
namespace {

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw std::out_of_range((std::string() + ... + parts));
}

void check_part(const AddLoraParams& params, int32_t adapter, int32_t number) {
  using std::to_string;
  const LoraPart& part = params.parts[int64_t{adapter} * params.num_parts + number];
  const std::string name = "parts[" + to_string(adapter) + ", " + to_string(number) + "]";
  if (part.rank < 0 || part.rank > kMaxLoraRank) {
    fail(name, " has rank ", to_string(part.rank), ", but ranks are 0 .. ", to_string(kMaxLoraRank));
  }
  if (part.rank == 0) return;
  if (part.first_output < 0 || part.num_outputs < 0 || part.num_outputs > params.num_outputs ||
      part.first_output > params.num_outputs - part.num_outputs) {
    fail(name, " has ", to_string(part.num_outputs), " outputs from ", to_string(part.first_output),
         " on, but out has ", to_string(params.num_outputs));
  }
  if (part.dtype < 0 || part.dtype > static_cast<int64_t>(DType::kFloat16)) {
    fail(name, " has dtype ", to_string(part.dtype), ", but dtypes are 0, 1 and 2");
  }
  if (part.a == 0 || part.b == 0) fail(name, " has rank ", to_string(part.rank), ", but no matrices");
}

}  // namespace

void check_values(const AddLoraParams& params) {
  using std::to_string;
  const int32_t* starts = params.row_starts;
  for (int32_t adapter = 0; adapter < params.num_adapters; ++adapter) {
    if (starts[adapter] < 0 || starts[adapter + 1] < starts[adapter] || starts[adapter + 1] > params.num_row_ids) {
      fail("row_starts[", to_string(adapter), "] .. is ", to_string(starts[adapter]), ", ",
           to_string(starts[adapter + 1]), ", but there are ", to_string(params.num_row_ids), " row_ids");
    }
    for (int32_t i = starts[adapter]; i < starts[adapter + 1]; ++i) {
      if (params.row_ids[i] < 0 || params.row_ids[i] >= params.num_rows) {
        fail("row_ids[", to_string(i), "] is ", to_string(params.row_ids[i]), ", but out has ",
             to_string(params.num_rows), " rows");
      }
    }
    if (starts[adapter] == starts[adapter + 1]) continue;
    for (int32_t part = 0; part < params.num_parts; ++part) check_part(params, adapter, part);
  }
}

}  // namespace cudaprefill::cpu
