// cudaprefill._core: the core for Python. No call gives up the GIL: each takes well under a millisecond, and taking the
// GIL back from a busy thread may take five.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "csrc/core/batch_builder.h"
#include "csrc/core/block_pool.h"
#include "csrc/core/request_table.h"

namespace py = pybind11;

namespace cudaprefill {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T>
std::span<const T> span_of(const Array<T>& array, const char* name) {
  if (array.ndim() != 1) {
    throw std::invalid_argument(std::string(name) + " must have one dimension, got " + std::to_string(array.ndim()));
  }
  return {array.data(), static_cast<size_t>(array.size())};
}

py::array_t<uint64_t> array_of(const std::vector<uint64_t>& values) {
  return py::array_t<uint64_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

std::string hex(const Hash128& hash) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash.high),
                static_cast<unsigned long long>(hash.low));
  return text;
}

BlockHasher make_hasher(const std::optional<std::pair<uint64_t, uint64_t>>& hash_key, bool constant_hash) {
  if (constant_hash) return BlockHasher::constant();
  return hash_key ? BlockHasher(HashKey{hash_key->first, hash_key->second}) : BlockHasher::random();
}

void bind_enums(py::module_& m) {
  py::native_enum<BlockState>(m, "BlockState", "enum.IntEnum")
      .value("FREE", BlockState::kFree)
      .value("ACTIVE", BlockState::kActive)
      .value("SHARED", BlockState::kShared)
      .value("CACHED", BlockState::kCached)
      .finalize();
  py::native_enum<FinishReason>(m, "FinishReason", "enum.IntEnum")
      .value("EOS", FinishReason::kEos)
      .value("STOP_TOKEN", FinishReason::kStopToken)
      .value("LENGTH", FinishReason::kLength)
      .finalize();
}

void bind_block_pool(py::module_& m) {
  py::class_<BlockPool>(m, "BlockPool")
      .def(py::init([](int32_t num_blocks, int32_t block_size, bool enable_prefix_caching,
                       std::optional<std::pair<uint64_t, uint64_t>> hash_key, bool constant_hash) {
             return std::make_unique<BlockPool>(num_blocks, block_size, enable_prefix_caching,
                                                make_hasher(hash_key, constant_hash));
           }),
           py::arg("num_blocks"), py::arg("block_size"), py::arg("enable_prefix_caching") = true, py::kw_only(),
           py::arg("hash_key") = std::nullopt, py::arg("constant_hash") = false)
      .def_property_readonly("num_blocks", &BlockPool::num_blocks)
      .def_property_readonly("block_size", &BlockPool::block_size)
      .def_property_readonly("num_free", &BlockPool::num_free)
      .def_property_readonly("num_cached", &BlockPool::num_cached)
      .def_property_readonly("num_used", &BlockPool::num_used)
      .def_property_readonly("num_available", &BlockPool::num_available)
      .def_property_readonly("num_taken", &BlockPool::num_taken)
      .def_property_readonly("num_freed", &BlockPool::num_freed)
      .def_property_readonly("num_evicted", &BlockPool::num_evicted)
      .def("set_step", &BlockPool::set_step, py::arg("step"))
      .def("allocate",
           [](BlockPool& pool) -> std::optional<BlockId> {
             const BlockId block = pool.allocate();
             return block == kNoBlock ? std::nullopt : std::optional(block);
           })
      .def(
          "share",
          [](BlockPool& pool, BlockId block) {
            pool.require_block(block);
            pool.share(block);
          },
          py::arg("block"))
      .def(
          "free",
          [](BlockPool& pool, const std::vector<BlockId>& blocks) {
            for (const BlockId block : blocks) {
              pool.require_block(block);
              pool.release(block);
            }
          },
          py::arg("blocks"))
      .def("reset_prefix_cache", &BlockPool::reset_prefix_cache)
      .def("states",
           [](const BlockPool& pool) {
             py::array_t<uint8_t> states(pool.num_blocks());
             uint8_t* out = states.mutable_data();
             for (BlockId block = 0; block < pool.num_blocks(); ++block) {
               out[block] = static_cast<uint8_t>(pool.state(block));
             }
             return states;
           })
      .def("virtual_blocks",
           [](const BlockPool& pool) {
             py::array_t<bool> marks(pool.num_blocks());
             bool* out = marks.mutable_data();
             for (BlockId block = 0; block < pool.num_blocks(); ++block) {
               out[block] = pool.holds_virtual_tokens(block);
             }
             return marks;
           })
      .def("record_changes", &BlockPool::record_changes, py::arg("wanted"))
      .def("take_changes",
           [](BlockPool& pool) {
             const std::vector<BlockChange> changes = pool.take_changes();
             py::array_t<int32_t> array({static_cast<py::ssize_t>(changes.size()), py::ssize_t{4}});
             int32_t* out = array.mutable_data();
             for (const BlockChange& change : changes) {
               *out++ = change.block;
               *out++ = static_cast<int32_t>(change.state);
               *out++ = change.evicted;
               *out++ = change.virtual_tokens;
             }
             return array;
           })
      .def("record_evictions", &BlockPool::record_evictions, py::arg("wanted"))
      .def("take_evictions", [](BlockPool& pool) { return array_of(pool.take_evictions()); })
      .def("check", [](const BlockPool& pool) { pool.check(); });
}

void bind_request_table(py::module_& m) {
  py::class_<Admission>(m, "Admission")
      .def_readonly("admitted", &Admission::admitted)
      .def_readonly("hit_tokens", &Admission::hit_tokens)
      .def_readonly("needed", &Admission::needed)
      .def_readonly("available", &Admission::available);
  py::class_<Finished>(m, "Finished")
      .def_readonly("index", &Finished::index)
      .def_readonly("reason", &Finished::reason)
      .def_readonly("token", &Finished::token);
  py::class_<BlockInfo>(m, "BlockInfo")
      .def_readonly("state", &BlockInfo::state)
      .def_readonly("reference_count", &BlockInfo::reference_count)
      .def_readonly("last_use", &BlockInfo::last_use)
      .def_readonly("owners", &BlockInfo::owners)
      .def_readonly("token_ids", &BlockInfo::token_ids)
      .def_property_readonly("extra_keys",
                             [](const BlockInfo& info) {
                               std::vector<std::pair<std::string, py::bytes>> keys;
                               for (auto& [kind, value] : decode_extra_keys(info.extra_keys))
                                 keys.emplace_back(kind, value);
                               return keys;
                             })
      .def_property_readonly("hash", [](const BlockInfo& info) -> std::optional<std::string> {
        return info.hash ? std::optional(hex(*info.hash)) : std::nullopt;
      });

  py::class_<RequestTable>(m, "RequestTable")
      .def(py::init<BlockPool&>(), py::arg("pool"), py::keep_alive<1, 2>())
      .def(
          "add",
          [](RequestTable& table, std::vector<TokenId> prompt_token_ids, int32_t max_length, int32_t min_length,
             std::vector<TokenId> eos_token_ids, std::vector<TokenId> stop_token_ids,
             const std::vector<std::pair<std::string, std::string>>& extra_keys) {
            return table.add(std::move(prompt_token_ids),
                             {max_length, min_length, std::move(eos_token_ids), std::move(stop_token_ids)},
                             encode_extra_keys(extra_keys));
          },
          py::arg("prompt_token_ids"), py::kw_only(), py::arg("max_length"), py::arg("min_length") = 0,
          py::arg("eos_token_ids") = std::vector<TokenId>{}, py::arg("stop_token_ids") = std::vector<TokenId>{},
          py::arg("extra_keys") = std::vector<std::pair<std::string, std::string>>{})
      .def("fork", &RequestTable::fork, py::arg("row"))
      .def("remove", &RequestTable::remove, py::arg("row"))
      .def("admit", &RequestTable::admit, py::arg("row"), py::arg("headroom") = 0)
      .def("give", &RequestTable::give, py::arg("row"), py::arg("num_tokens"))
      .def("reserve", &RequestTable::reserve, py::arg("row"), py::arg("num_tokens"))
      .def(
          "reserve_decodes",
          [](RequestTable& table, const Array<Row>& rows, size_t begin) {
            return table.reserve_decodes(span_of(rows, "rows"), begin);
          },
          py::arg("rows"), py::arg("begin") = 0)
      .def("preempt", &RequestTable::preempt, py::arg("row"))
      .def(
          "complete", [](RequestTable& table, const Array<Row>& rows) { table.complete(span_of(rows, "rows")); },
          py::arg("rows"))
      .def(
          "append",
          [](RequestTable& table, const Array<Row>& rows, const Array<int64_t>& tokens) {
            return table.append(span_of(rows, "rows"), span_of(tokens, "tokens"));
          },
          py::arg("rows"), py::arg("tokens"))
      .def("end_step", &RequestTable::end_step)
      .def_property_readonly("num_rows", &RequestTable::num_rows)
      .def_property_readonly("num_promised_blocks", &RequestTable::num_promised_blocks)
      .def(
          "num_tokens", [](const RequestTable& table, Row row) { return table.row(row).num_tokens(); }, py::arg("row"))
      .def(
          "num_computed", [](const RequestTable& table, Row row) { return table.row(row).num_computed; },
          py::arg("row"))
      .def(
          "token_ids", [](const RequestTable& table, Row row) { return table.row(row).token_ids; }, py::arg("row"))
      .def(
          "output_token_ids",
          [](const RequestTable& table, Row row) {
            const RequestRow& request = table.row(row);
            return std::vector<TokenId>(request.token_ids.begin() + request.num_prompt_tokens, request.token_ids.end());
          },
          py::arg("row"))
      .def(
          "block_table", [](const RequestTable& table, Row row) { return table.row(row).blocks; }, py::arg("row"))
      .def(
          "block_tables",
          [](const RequestTable& table, const Array<Row>& rows) {
            std::vector<py::array_t<BlockId>> tables;
            for (const Row row : span_of(rows, "rows")) {
              const std::vector<BlockId>& blocks = table.row(row).blocks;
              tables.emplace_back(static_cast<py::ssize_t>(blocks.size()), blocks.data());
            }
            return tables;
          },
          py::arg("rows"))
      .def(
          "total_tokens",
          [](const RequestTable& table, const Array<Row>& rows) {
            int64_t tokens = 0;
            for (const Row row : span_of(rows, "rows")) tokens += table.row(row).num_tokens();
            return tokens;
          },
          py::arg("rows"))
      .def("count_used_tokens", &RequestTable::count_used_tokens)
      .def(
          "block_hashes", [](RequestTable& table, Row row) { return array_of(table.block_hashes(row)); },
          py::arg("row"))
      .def("describe", &RequestTable::describe, py::arg("block"))
      .def("check", &RequestTable::check);
}

// A view of `data` that keeps its owner alive.
template <typename T>
py::array view(const T* data, std::vector<py::ssize_t> shape, const py::object& owner) {
  return py::array_t<T>(std::move(shape), data, owner);
}

void bind_batch_builder(py::module_& m) {
  py::class_<BatchBuilder>(m, "BatchBuilder")
      .def(py::init<const RequestTable&, int32_t, int32_t, int32_t>(), py::arg("table"), py::arg("max_tokens"),
           py::arg("max_requests"), py::arg("max_length"), py::keep_alive<1, 2>())
      .def(
          "build",
          [](py::object self, const Array<Row>& decodes, const Array<Row>& chunks) {
            BatchBuilder& builder = self.cast<BatchBuilder&>();
            builder.build(span_of(decodes, "decodes"), span_of(chunks, "chunks"));
            const py::ssize_t T = builder.num_tokens();
            const py::ssize_t B = builder.num_requests();
            return py::make_tuple(view(builder.token_ids(), {T}, self), view(builder.position_ids(), {T}, self),
                                  view(builder.slot_mapping(), {T}, self), view(builder.cu_seqlens_q(), {B + 1}, self),
                                  view(builder.context_lens(), {B}, self),
                                  view(builder.block_table(), {B, builder.table_width()}, self),
                                  view(builder.logits_rows(), {builder.num_sampled()}, self),
                                  view(builder.logits_requests(), {builder.num_sampled()}, self),
                                  view(builder.block_copies(), {builder.num_copies(), 2}, self));
          },
          py::arg("decodes"), py::arg("chunks"));
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Block pool, prefix index, request table and batch builder.";
  bind_enums(m);
  bind_block_pool(m);
  bind_request_table(m);
  bind_batch_builder(m);
}

}  // namespace cudaprefill
