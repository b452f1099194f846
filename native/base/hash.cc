#include "base/hash.h"

#include <openssl/sha.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>

namespace halfstep {
namespace {

struct SipState {
  uint64_t v0, v1, v2, v3;

  void round() noexcept {
    v0 += v1;
    v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1;
    v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  }
  void absorb(uint64_t word) noexcept {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }
  uint64_t squeeze() noexcept {
    for (int i = 0; i < 4; ++i) round();
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

}  // namespace

Hash128 keyed_hash(const HashKey& key, ConstBytes bytes) noexcept {
  SipState s{key.k0 ^ 0x736f6d6570736575U, key.k1 ^ 0x646f72616e646f6dU ^ 0xeeU, key.k0 ^ 0x6c7967656e657261U,
             key.k1 ^ 0x7465646279746573U};
  const size_t whole = bytes.size() / 8 * 8;
  for (size_t at = 0; at < whole; at += 8) s.absorb(load<uint64_t>(bytes.data() + at));
  uint64_t last = static_cast<uint64_t>(bytes.size()) << 56;
  for (size_t i = whole; i < bytes.size(); ++i) last |= static_cast<uint64_t>(bytes[i]) << (8 * (i - whole));
  s.absorb(last);
  s.v2 ^= 0xeeU;
  Hash128 out;
  out.low = s.squeeze();
  s.v1 ^= 0xddU;
  out.high = s.squeeze();
  return out;
}

uint64_t xxh3_64(ConstBytes bytes, uint64_t seed) noexcept { return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed); }

Sha256 sha256(ConstBytes bytes) noexcept {
  Sha256 out;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), reinterpret_cast<unsigned char*>(out.data()));
  return out;
}

}  // namespace halfstep
