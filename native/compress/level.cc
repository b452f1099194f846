#include "compress/level.h"

#include <algorithm>

namespace halfstep::compress {

uint64_t list_symbols(const SymbolCounts& counts, uint64_t total, std::array<uint8_t, 9>* listed) noexcept {
  std::array<uint32_t, 10> most{};  // sorted; one more than is kept
  std::array<uint8_t, 10> symbol{};
  size_t known = 0;
  for (uint32_t s = 0; s < counts.size(); ++s) {
    if (counts[s] == 0) continue;
    size_t at = known;
    for (; at > 0 && most[at - 1] < counts[s]; --at) {
      most[at] = most[at - 1];
      symbol[at] = symbol[at - 1];
    }
    most[at] = counts[s];
    symbol[at] = static_cast<uint8_t>(s);
    known = std::min<size_t>(known + 1, listed->size());
  }
  uint64_t left = total;
  uint64_t bits = 0;
  uint32_t unseen = 0;
  for (size_t i = 0; i < listed->size(); ++i) {
    if (i % 3 == 0) bits += 2 * left;
    while (i >= known && counts[unseen] != 0) ++unseen;
    (*listed)[i] = i < known ? symbol[i] : static_cast<uint8_t>(unseen++);
    left -= i < known ? most[i] : 0;
  }
  return bits + 8 * left;
}

size_t put_level(const Kernels& use, const uint8_t* symbols, size_t count, const uint8_t* listed, uint8_t* planes,
                 uint8_t* next) noexcept {
  const size_t groups = groups_of(count);
  size_t on = use.encode_level(symbols, groups, listed, planes, next);
  if (const uint32_t rest = rest_of(count); rest > 0) {
    uint8_t last[kGroup] = {};
    std::memcpy(last, symbols + groups * kGroup, rest);
    LastPlanes whole;
    // What is beyond the rest comes last, and is not counted.
    use.encode_level(last, 1, listed, whole.of, next + on);
    on += whole.cut(rest, planes + groups * kPlanesBytes);
  }
  return on;
}

bool get_level(const Kernels& use, const LevelIn& in, uint8_t* symbols) noexcept {
  const size_t groups = groups_of(in.count);
  size_t taken = use.decode_level(in.planes, groups, in.listed, in.next, in.next_count, symbols);
  if (taken == kTooMany) return false;
  if (const uint32_t rest = rest_of(in.count); rest > 0) {
    const LastPlanes last(in.planes + groups * kPlanesBytes, rest);
    if (last.spare_bits(rest)) return false;
    const size_t more =
        use.decode_level(last.of, 1, in.listed, in.next + taken, in.next_count - taken, symbols + groups * kGroup);
    if (more == kTooMany) return false;
    taken += more;
  }
  return taken == in.next_count;
}

}  // namespace halfstep::compress
