#include "base/crc.h"

#include <isa-l/crc.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <array>

namespace halfstep {
namespace {

// Multiplication in GF(2)[x] modulo the Castagnoli polynomial, operands bit-reflected as the CRC itself is.
constexpr uint32_t kPolynomial = 0x82F63B78;

constexpr uint32_t multiply(uint32_t a, uint32_t b) noexcept {
  uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    if ((a >> bit) & 1U) product ^= b;
    b = (b >> 1) ^ ((b & 1U) != 0 ? kPolynomial : 0);
  }
  return product;
}

// x^(8 * 2^i) for i = 0..63: appending 2^i zero bytes multiplies the CRC register by it.
constexpr std::array<uint32_t, 64> make_zero_powers() noexcept {
  std::array<uint32_t, 64> powers{};
  uint32_t power = 1U << 23;  // x^8, reflected
  for (uint32_t& entry : powers) {
    entry = power;
    power = multiply(power, power);
  }
  return powers;
}
constexpr std::array<uint32_t, 64> kZeroPowers = make_zero_powers();

constexpr uint32_t shift(uint32_t crc, uint64_t zero_bytes) noexcept {
  for (size_t i = 0; zero_bytes != 0; ++i, zero_bytes >>= 1) {
    if ((zero_bytes & 1U) != 0) crc = multiply(kZeroPowers[i], crc);
  }
  return crc;
}

// ISA-L's AVX-512 path returns with the upper halves of the vector registers in use. Until they are cleared some processors
// (Emerald Rapids) take several times as long for each SSE instruction, and those are everybody's: a copy of 16 bytes, a hash.
#if defined(__x86_64__)
[[gnu::target("avx")]] void clear_upper_halves() noexcept { _mm256_zeroupper(); }
void leave_vectors() noexcept {
  if (__builtin_cpu_supports("avx")) clear_upper_halves();
}
#else
void leave_vectors() noexcept {}
#endif

}  // namespace

uint32_t crc32c(ConstBytes bytes, uint32_t before) noexcept {
  // ISA-L takes an int length and does neither inversion.
  constexpr size_t kStep = size_t{1} << 30;
  uint32_t state = ~before;
  // The declaration lacks const; the bytes are only read.
  auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
  for (size_t left = bytes.size(); left > 0;) {
    const size_t step = left < kStep ? left : kStep;
    state = crc32_iscsi(data, static_cast<int>(step), state);
    data += step;
    left -= step;
  }
  leave_vectors();
  return ~state;
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t b_bytes) noexcept { return shift(crc_a, b_bytes) ^ crc_b; }

uint32_t crc32c_zeros(uint32_t before, uint64_t count) noexcept { return ~shift(~before, count); }

}  // namespace halfstep
