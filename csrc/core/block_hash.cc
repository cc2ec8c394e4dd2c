#include "csrc/core/block_hash.h"

#include <bit>
#include <cstring>
#include <random>

namespace cudaprefill {
namespace {

class SipState {
 public:
  explicit SipState(const HashKey& key)
      : v0_(key.first ^ 0x736f6d6570736575),
        v1_(key.second ^ 0x646f72616e646f6d ^ 0xee),  // 0xee and 0xdd below: the variant with a 128-bit result
        v2_(key.first ^ 0x6c7967656e657261),
        v3_(key.second ^ 0x7465646279746573) {}

  void absorb(uint64_t word) {
    v3_ ^= word;
    rounds(2);
    v0_ ^= word;
  }

  Hash128 finish() {
    v2_ ^= 0xee;
    rounds(4);
    const uint64_t low = v0_ ^ v1_ ^ v2_ ^ v3_;
    v1_ ^= 0xdd;
    rounds(4);
    return {low, v0_ ^ v1_ ^ v2_ ^ v3_};
  }

 private:
  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0_ += v1_;
      v2_ += v3_;
      v1_ = std::rotl(v1_, 13) ^ v0_;
      v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ = std::rotl(v0_, 32);
      v2_ += v1_;
      v0_ += v3_;
      v1_ = std::rotl(v1_, 17) ^ v2_;
      v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ = std::rotl(v2_, 32);
    }
  }

  uint64_t v0_, v1_, v2_, v3_;
};

}  // namespace

Hash128 siphash128(const HashKey& key, std::string_view bytes) {
  SipState state(key);
  size_t offset = 0;
  for (; offset + 8 <= bytes.size(); offset += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + offset, 8);
    state.absorb(word);
  }
  uint64_t last = static_cast<uint64_t>(bytes.size()) << 56;
  for (int shift = 0; offset < bytes.size(); ++offset, shift += 8) {
    last |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[offset])) << shift;
  }
  state.absorb(last);
  return state.finish();
}

std::string encode_extra_keys(std::span<const std::pair<std::string, std::string>> parts) {
  std::string encoded;
  const auto append = [&encoded](const std::string& text) {
    const uint64_t length = text.size();
    encoded.append(reinterpret_cast<const char*>(&length), sizeof(length));
    encoded.append(text);
  };
  for (const auto& [kind, value] : parts) {
    append(kind);
    append(value);
  }
  return encoded;
}

std::vector<std::pair<std::string, std::string>> decode_extra_keys(std::string_view encoded) {
  const auto take = [&encoded] {
    uint64_t length;
    std::memcpy(&length, encoded.data(), sizeof(length));
    const std::string text(encoded.substr(sizeof(length), length));
    encoded.remove_prefix(sizeof(length) + length);
    return text;
  };
  std::vector<std::pair<std::string, std::string>> parts;
  while (!encoded.empty()) {
    std::string kind = take();
    parts.emplace_back(std::move(kind), take());
  }
  return parts;
}

BlockHasher BlockHasher::random() {
  std::random_device device;
  const auto word = [&device] { return static_cast<uint64_t>(device()) << 32 | device(); };
  const uint64_t first = word();
  return BlockHasher(HashKey{first, word()});
}

BlockHasher BlockHasher::constant() { return BlockHasher(); }

Hash128 BlockHasher::root(std::string_view extra_keys) const {
  return key_ ? siphash128(*key_, extra_keys) : Hash128{};
}

Hash128 BlockHasher::chain(const Hash128& parent, std::span<const TokenId> token_ids) const {
  if (!key_) return Hash128{};
  SipState state(*key_);
  state.absorb(parent.low);
  state.absorb(parent.high);
  size_t i = 0;
  for (; i + 2 <= token_ids.size(); i += 2) {
    state.absorb(static_cast<uint32_t>(token_ids[i]) | static_cast<uint64_t>(token_ids[i + 1]) << 32);
  }
  const uint64_t odd = i < token_ids.size() ? static_cast<uint32_t>(token_ids[i]) : 0;
  state.absorb(odd | static_cast<uint64_t>(sizeof(Hash128) + token_ids.size_bytes()) << 56);
  return state.finish();
}

}  // namespace cudaprefill
