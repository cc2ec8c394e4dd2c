#include "csrc/core/block_hash.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

using namespace cudaprefill;

namespace {

using Parts = std::vector<std::pair<std::string, std::string>>;

constexpr HashKey kReferenceKey{0x0706050403020100, 0x0f0e0d0c0b0a0908};

std::string counting_bytes(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i));
  return bytes;
}

}  // namespace

// Expected: `openssl mac -macopt size:16 SIPHASH` with the key 00 01 .. 0f, read as little-endian words.
TEST(siphash_agrees_with_openssl) {
  CHECK((siphash128(kReferenceKey, counting_bytes(0)) == Hash128{0xe6a825ba047f81a3, 0x930255c71472f66d}));
  CHECK((siphash128(kReferenceKey, counting_bytes(1)) == Hash128{0x44af996bd8c187da, 0x45fc229b11597634}));
  CHECK((siphash128(kReferenceKey, counting_bytes(8)) == Hash128{0x61f55862baa9623b, 0xb49714f364e2830f}));
  CHECK((siphash128(kReferenceKey, counting_bytes(15)) == Hash128{0x11a8b03399e99354, 0xd9c3cf970fec087e}));
  CHECK((siphash128(kReferenceKey, counting_bytes(33)) == Hash128{0x321cf0467107c677, 0xcfffa94e5f9db6b6}));
}

TEST(chaining_hashes_the_parent_and_then_the_token_ids) {
  const BlockHasher hasher(kReferenceKey);
  const Hash128 parent{0x0123456789abcdef, 0xfedcba9876543210};
  for (const std::vector<TokenId>& token_ids : {std::vector<TokenId>{7}, {7, 0}, {1, 2, 3, -1}, {1, 2, 3, 4, 5}}) {
    std::string bytes(reinterpret_cast<const char*>(&parent), sizeof(parent));
    bytes.append(reinterpret_cast<const char*>(token_ids.data()), token_ids.size() * sizeof(TokenId));
    CHECK(hasher.chain(parent, token_ids) == siphash128(kReferenceKey, bytes));
  }
}

TEST(another_key_gives_other_hashes) {
  const std::vector<TokenId> token_ids(16, 5);
  CHECK(!(BlockHasher::random().chain({}, token_ids) == BlockHasher::random().chain({}, token_ids)));
}

TEST(extra_keys_of_different_kinds_or_cuts_never_meet) {
  const std::vector<Parts> all = {{},
                                  {{"cache_salt", "x"}},
                                  {{"cache_salt", "y"}},
                                  {{"adapter", "x"}},
                                  {{"", ""}},
                                  {{"cache_saltx", ""}},
                                  {{"cache_salt", "x"}, {"adapter", "x"}},
                                  {{"adapter", "x"}, {"cache_salt", "x"}},
                                  {{"cache_salt", "xadapterx"}},
                                  {{"cache_salt", std::string("x\0", 2)}}};
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) CHECK(encode_extra_keys(all[i]) != encode_extra_keys(all[j]));
  }
  CHECK(encode_extra_keys({}).empty());
}
