#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "base/sip.h"

namespace halfstep {
namespace {

// SHA-256 runs on cold paths alone (a layout's registration, an engine key beyond 32 bytes), so a plain one is enough, and the
// client needs no OpenSSL.
constexpr std::array<uint32_t, 64> kSha256Rounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

}  // namespace

Hash128 keyed_hash(const HashKey& key, ConstBytes bytes) noexcept {
  Sip s(key);
  const size_t whole = bytes.size() / 8 * 8;
  for (size_t at = 0; at < whole; at += 8) s.absorb(load_le<uint64_t>(bytes.data() + at));
  s.absorb(Sip::last_word(bytes));
  Hash128 out;
  s.finish(&out.low, &out.high);
  return out;
}

uint64_t xxh3_64(ConstBytes bytes, uint64_t seed) noexcept { return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed); }

void Sha256Stream::absorb_block(const std::byte* block) noexcept {
  std::array<uint32_t, 64> schedule;
  for (size_t i = 0; i < 16; ++i) schedule[i] = __builtin_bswap32(load_le<uint32_t>(block + 4 * i));
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(schedule[i - 15], 7) ^ std::rotr(schedule[i - 15], 18) ^ (schedule[i - 15] >> 3);
    const uint32_t s1 = std::rotr(schedule[i - 2], 17) ^ std::rotr(schedule[i - 2], 19) ^ (schedule[i - 2] >> 10);
    schedule[i] = schedule[i - 16] + s0 + schedule[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = word_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + choice + kSha256Rounds[i] + schedule[i];
    const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + majority;
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < word_.size(); ++i) word_[i] += add[i];
}

void Sha256Stream::absorb(ConstBytes bytes) noexcept {
  bytes_ += bytes.size();
  if (rest_bytes_ != 0) {
    const size_t step = std::min(kBlockBytes - rest_bytes_, bytes.size());
    std::copy_n(bytes.begin(), step, rest_.begin() + static_cast<ptrdiff_t>(rest_bytes_));
    rest_bytes_ += step;
    bytes = bytes.subspan(step);
    if (rest_bytes_ < kBlockBytes) return;
    absorb_block(rest_.data());
  }
  for (; bytes.size() >= kBlockBytes; bytes = bytes.subspan(kBlockBytes)) absorb_block(bytes.data());
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
  rest_bytes_ = bytes.size();
}

// The rest, a one bit, zeros, and the length in bits, big-endian: one block or two.
Sha256 Sha256Stream::finish() noexcept {
  std::array<std::byte, 2 * kBlockBytes> tail{};
  std::copy_n(rest_.begin(), rest_bytes_, tail.begin());
  tail[rest_bytes_] = std::byte{0x80};
  const size_t end = rest_bytes_ + 1 + sizeof(uint64_t) <= kBlockBytes ? kBlockBytes : 2 * kBlockBytes;
  store_le(tail.data() + end - sizeof(uint64_t), __builtin_bswap64(bytes_ * 8));
  for (size_t at = 0; at < end; at += kBlockBytes) absorb_block(tail.data() + at);
  Sha256 out;
  for (size_t i = 0; i < word_.size(); ++i) store_le(out.data() + 4 * i, __builtin_bswap32(word_[i]));
  return out;
}

Sha256 sha256(ConstBytes bytes) noexcept {
  Sha256Stream stream;
  stream.absorb(bytes);
  return stream.finish();
}

}  // namespace halfstep
