// hash.h — the three hashes of version 1, each with one use.
//   keyed_hash  SipHash-2-4 with 128 bits of output: index keys and page MACs. A tenant who does not know the store's secret
//               can neither steer where a block lands in the index nor imitate a page (docs/on-flash-format.md).
//   xxh3_64     routes and the name number of wire checksums: fast, unkeyed, both ends compute it.
//   sha256      layout ids and engine keys that are longer than their field.
// Sources: Aumasson & Bernstein, "SipHash: a fast short-input PRF"; xxHash specification; FIPS 180-4.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace halfstep {

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  constexpr bool operator==(const Hash128&) const noexcept = default;
};
static_assert(sizeof(Hash128) == 16);

struct HashKey {
  uint64_t k0 = 0;
  uint64_t k1 = 0;
};

Hash128 keyed_hash(const HashKey& key, ConstBytes bytes) noexcept;
// The same of every message, several at a time. Fastest where neighbours are of one length, as the keys of a request are.
// out is as long as messages.
void keyed_hash_many(const HashKey& key, std::span<const ConstBytes> messages, std::span<Hash128> out) noexcept;

uint64_t xxh3_64(ConstBytes bytes, uint64_t seed = 0) noexcept;

using Sha256 = std::array<std::byte, 32>;
Sha256 sha256(ConstBytes bytes) noexcept;
// The same of a message that comes in pieces.
class Sha256Stream {
 public:
  void absorb(ConstBytes bytes) noexcept;
  Sha256 finish() noexcept;  // once

 private:
  static constexpr size_t kBlockBytes = 64;
  void absorb_block(const std::byte* block) noexcept;

  std::array<uint32_t, 8> word_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlockBytes> rest_{};
  size_t rest_bytes_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace halfstep
