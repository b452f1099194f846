// unit.h — what a codec is given and what it says: the shape of a part, the facts of a unit, and the memory to work in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "compress/element.h"

namespace halfstep::compress {

inline constexpr uint8_t kRaw = 0;
inline constexpr uint8_t kBfx = 1;
inline constexpr uint8_t kUbq = 2;
inline constexpr uint8_t kZstd = 3;
// The codecs of this build, as HelloClient.codecs has them.
inline constexpr uint64_t kCodecs = uint64_t{1} << kRaw | uint64_t{1} << kBfx | uint64_t{1} << kUbq | uint64_t{1} << kZstd;
// Of these decoding does not give what was encoded: parts of a layout have one only where it names it.
inline constexpr uint64_t kLossyCodecs = uint64_t{1} << kUbq;
// Of what was coded by these, or by codecs that this build does not know, nobody says that decoding gives it back. Number 4
// is kept free for an exact codec.
constexpr bool may_be_lossy(uint32_t codec) noexcept { return codec == kUbq || codec > 4; }
// The length of a row is 16 bits of a header, and nobody has such rows: a longer one is as one that is not known.
inline constexpr uint32_t kRowValuesMax = 16384;

// What is known of a part. Unknown element: the codec looks for itself. row_values 0: nobody knows the channels.
// step: of a lossy codec, a share of the part's deviation (docs/quantiser.md); 0: none is allowed.
struct UnitShape {
  Element element = Element::Unknown;
  uint32_t row_values = 0;
  float step = 0;
};

// What a unit says of itself.
struct UnitFacts {
  uint8_t version = 0;
  Element element = Element::Unknown;
  uint32_t row_values = 0;  // of bases; 0: it has none
  uint64_t raw_bytes = 0;
  float step = 0;  // no value is off by more than half of it, and its element's rounding; 0: none is off
};

// Memory that a codec works in. Its owner keeps it from one unit to the next.
class Scratch {
 public:
  static constexpr size_t kSlackBytes = 64;  // a vector's width, past what was asked for
  // Two areas of at least `bytes` each, and the slack. Contents are undefined.
  void reserve(size_t bytes) {
    if (bytes <= bytes_) return;
    for (auto& area : areas_) area = std::make_unique_for_overwrite<uint8_t[]>(bytes + kSlackBytes);
    bytes_ = bytes;
  }
  uint8_t* area(size_t which) noexcept { return areas_[which].get(); }
  // What a library that a codec calls keeps for itself: 0 to encode, 1 to decode. The codec makes it.
  using Context = std::unique_ptr<void, void (*)(void*)>;
  Context& context(size_t which) noexcept { return contexts_[which]; }

 private:
  std::unique_ptr<uint8_t[]> areas_[2];
  size_t bytes_ = 0;
  Context contexts_[2] = {{nullptr, +[](void*) {}}, {nullptr, +[](void*) {}}};
};

// A unit takes at most this of its part's bytes; else the part is raw.
constexpr size_t unit_bytes_max(size_t raw_bytes) noexcept { return raw_bytes - (raw_bytes * 3 + 99) / 100; }

}  // namespace halfstep::compress
