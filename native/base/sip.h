// sip.h — SipHash-2-4 with 128 bits of output, one message at a time, and its constants. For hash.cc and hash_many.cc alone;
// everybody else calls keyed_hash.
// Source: Aumasson & Bernstein, "SipHash: a fast short-input PRF", and the reference implementation's 128-bit variant.
#pragma once

#include <bit>
#include <cstdint>

#include "base/bytes.h"
#include "base/hash.h"

namespace halfstep {

struct Sip {
  explicit Sip(const HashKey& key) noexcept
      : v0(key.k0 ^ kInit0), v1(key.k1 ^ kInit1), v2(key.k0 ^ kInit2), v3(key.k1 ^ kInit3) {}

  void absorb(uint64_t word) noexcept {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }
  void finish(uint64_t* low, uint64_t* high) noexcept {
    v2 ^= kFinish;
    *low = squeeze();
    v1 ^= kFinishHigh;
    *high = squeeze();
  }

  // What is left over behind the whole words, and the length.
  static uint64_t last_word(ConstBytes message) noexcept {
    uint64_t last = static_cast<uint64_t>(message.size()) << 56;
    const size_t whole = message.size() / 8 * 8;
    for (size_t i = whole; i < message.size(); ++i) last |= static_cast<uint64_t>(message[i]) << (8 * (i - whole));
    return last;
  }

  static constexpr uint64_t kInit0 = 0x736f6d6570736575U;
  static constexpr uint64_t kInit1 = 0x646f72616e646f6dU ^ 0xeeU;  // 0xee: 128 bits of output
  static constexpr uint64_t kInit2 = 0x6c7967656e657261U;
  static constexpr uint64_t kInit3 = 0x7465646279746573U;
  static constexpr uint64_t kFinish = 0xee;
  static constexpr uint64_t kFinishHigh = 0xdd;

 private:
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
  uint64_t squeeze() noexcept {
    for (int i = 0; i < 4; ++i) round();
    return v0 ^ v1 ^ v2 ^ v3;
  }

  uint64_t v0, v1, v2, v3;
};

}  // namespace halfstep
