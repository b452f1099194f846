// prng.h — reproducible randomness (xoshiro256**, Blackman & Vigna) and the operating system's, kept apart.
// Prng drives tests, the simulator and back-off; secrets and identities come from system_random() alone.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"

namespace halfstep {

class Prng {
 public:
  explicit Prng(uint64_t seed) noexcept {
    for (uint64_t& word : state_) {  // splitmix64 spreads any seed, zero included
      seed += 0x9E3779B97F4A7C15U;
      uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
      word = z ^ (z >> 31);
    }
  }

  uint64_t next() noexcept {
    const uint64_t result = rotl(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotl(state_[3], 45);
    return result;
  }

  // Uniform in [0, bound); bound > 0. Multiply-shift: the bias is below bound / 2^64.
  uint64_t below(uint64_t bound) noexcept {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }
  bool chance(double probability) noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53 < probability; }
  void fill(Bytes out) noexcept {
    for (size_t at = 0; at < out.size(); at += 8) {
      const uint64_t word = next();
      std::memcpy(out.data() + at, &word, out.size() - at < 8 ? out.size() - at : 8);
    }
  }

 private:
  static constexpr uint64_t rotl(uint64_t x, int k) noexcept { return (x << k) | (x >> (64 - k)); }
  uint64_t state_[4];
};

// getrandom(2), all bytes or an error.
Status system_random(Bytes out) noexcept;

}  // namespace halfstep
