#include "compress/zstd.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>

#include "base/check.h"

namespace halfstep::compress {
namespace {

// Every frame begins with it. libzstd may also read formats of before 1.0, and frames to skip: neither is a unit of ours.
constexpr uint32_t kMagic = ZSTD_MAGICNUMBER;
// What choose_planes() looks at: stretches, evenly spread.
constexpr size_t kStretches = 32;
constexpr size_t kStretchBytes = 256;

// ---- Byte planes: byte 0 of each value, then byte 1 of each, and so on; what is left of the part follows. -----------------

template <size_t kPlanes>
void split_planes(const uint8_t* raw, size_t bytes, uint8_t* out) noexcept {
  const size_t values = bytes / kPlanes;
  for (size_t i = 0; i < values; ++i) {
    for (size_t p = 0; p < kPlanes; ++p) out[p * values + i] = raw[i * kPlanes + p];
  }
  std::copy(raw + values * kPlanes, raw + bytes, out + values * kPlanes);
}

template <size_t kPlanes>
void join_planes(const uint8_t* planes, size_t bytes, uint8_t* out) noexcept {
  const size_t values = bytes / kPlanes;
  for (size_t i = 0; i < values; ++i) {
    for (size_t p = 0; p < kPlanes; ++p) out[i * kPlanes + p] = planes[p * values + i];
  }
  std::copy(planes + values * kPlanes, planes + bytes, out + values * kPlanes);
}

// 256 times the binary logarithm, by whole numbers alone, so that every processor chooses the same.
uint64_t log2_of(uint64_t x) noexcept {
  const auto whole = static_cast<uint32_t>(std::bit_width(x)) - 1;
  const uint64_t fraction = whole >= 8 ? x >> (whole - 8) & 255 : x << (8 - whole) & 255;
  return uint64_t{whole} * 256 + fraction;
}

// Bits of the sample, times 256, where each byte is coded by how frequent it is among those of its plane.
uint64_t cost_of(const uint8_t* raw, size_t bytes, size_t planes) noexcept {
  std::array<std::array<uint32_t, 256>, 4> counts{};
  const size_t stretch = std::min(bytes, kStretchBytes);
  for (size_t s = 0; s < kStretches; ++s) {
    const size_t from = (bytes - stretch) / (kStretches - 1) * s / 4 * 4;
    for (size_t i = from; i < from + stretch; ++i) ++counts[i % planes][raw[i]];
  }
  uint64_t cost = 0;
  for (size_t p = 0; p < planes; ++p) {
    uint64_t all = 0;
    for (const uint32_t count : counts[p]) all += count;
    for (const uint32_t count : counts[p]) {
      if (count > 0) cost += count * (log2_of(all) - log2_of(count));
    }
  }
  return cost;
}

// Planes part with the repetitions of whole values: they have to be smaller by a sixteenth.
uint8_t choose_planes(const uint8_t* raw, size_t bytes) noexcept {
  uint8_t best = 1;
  uint64_t least = cost_of(raw, bytes, 1);
  for (const uint8_t planes : {uint8_t{2}, uint8_t{4}}) {
    const uint64_t cost = cost_of(raw, bytes, planes);
    if (cost + cost / 16 >= least) continue;
    best = planes;
    least = cost;
  }
  return best;
}

// ---- libzstd's own memory, kept by the scratch ------------------------------------------------------------------------------

ZSTD_CCtx* encoder_of(Scratch& scratch) {
  Scratch::Context& held = scratch.context(0);
  if (held == nullptr) {
    ZSTD_CCtx* made = ZSTD_createCCtx();
    if (made == nullptr) throw std::bad_alloc();
    held = Scratch::Context(made, [](void* context) { ZSTD_freeCCtx(static_cast<ZSTD_CCtx*>(context)); });
  }
  return static_cast<ZSTD_CCtx*>(held.get());
}

ZSTD_DCtx* decoder_of(Scratch& scratch) {
  Scratch::Context& held = scratch.context(1);
  if (held == nullptr) {
    ZSTD_DCtx* made = ZSTD_createDCtx();
    if (made == nullptr) throw std::bad_alloc();
    held = Scratch::Context(made, [](void* context) { ZSTD_freeDCtx(static_cast<ZSTD_DCtx*>(context)); });
  }
  return static_cast<ZSTD_DCtx*>(held.get());
}

Status read_header(ConstBytes unit, ZstdHeader* out) noexcept {
  if (unit.size() < sizeof(ZstdHeader)) return Code::Corrupt;
  *out = load_le<ZstdHeader>(unit.data());
  const bool known = out->version == kZstdVersion && out->element < kElementsEnd && out->zero == 0;
  const bool planes = out->planes == 1 || out->planes == 2 || out->planes == 4;
  const bool exact = std::bit_cast<uint32_t>(out->step) == 0;
  return known && planes && exact && out->raw_bytes > 0 ? Status() : Status(Code::Corrupt);
}

}  // namespace

size_t zstd_encode(ConstBytes raw, const UnitShape& shape, Scratch& scratch, Bytes out) {
  if (raw.size() < kZstdBytesMin || raw.size() > UINT32_MAX) return 0;
  const size_t limit = unit_bytes_max(raw.size());
  HALFSTEP_CHECK(out.size() >= limit, out.size(), limit);
  const auto* from = reinterpret_cast<const uint8_t*>(raw.data());
  ZstdHeader header;
  header.element = static_cast<uint8_t>(shape.element);
  header.planes = choose_planes(from, raw.size());
  header.raw_bytes = static_cast<uint32_t>(raw.size());
  if (header.planes > 1) {
    scratch.reserve(raw.size());
    (header.planes == 2 ? split_planes<2> : split_planes<4>)(from, raw.size(), scratch.area(0));
    from = scratch.area(0);
  }
  ZSTD_CCtx* context = encoder_of(scratch);
  const size_t room = limit - sizeof(header);
  // It is refused as well where there is not room enough: then it does not pay.
  const size_t bytes = ZSTD_compressCCtx(context, out.data() + sizeof(header), room, from, raw.size(), kZstdLevel);
  if (ZSTD_isError(bytes) != 0) return 0;
  store_le(out.data(), header);
  return sizeof(header) + bytes;
}

Status zstd_decode(ConstBytes unit, Scratch& scratch, Bytes out) {
  ZstdHeader header;
  if (Status s = read_header(unit, &header); !s.ok()) return s;
  if (header.raw_bytes != out.size()) return Code::Corrupt;
  const ConstBytes frame = unit.subspan(sizeof(header));
  if (frame.size() < sizeof(kMagic) || load_le<uint32_t>(frame.data()) != kMagic) return Code::Corrupt;
  // One frame, which ends where the unit does, and says the part's length.
  if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != out.size()) return Code::Corrupt;
  if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size()) return Code::Corrupt;
  auto* to = reinterpret_cast<uint8_t*>(out.data());
  if (header.planes > 1) {
    scratch.reserve(out.size());
    to = scratch.area(0);
  }
  const size_t bytes = ZSTD_decompressDCtx(decoder_of(scratch), to, out.size(), frame.data(), frame.size());
  if (ZSTD_isError(bytes) != 0 || bytes != out.size()) return Code::Corrupt;
  if (header.planes > 1) {
    (header.planes == 2 ? join_planes<2> : join_planes<4>)(to, out.size(), reinterpret_cast<uint8_t*>(out.data()));
  }
  return {};
}

Status zstd_inspect(ConstBytes unit, UnitFacts* out) {
  ZstdHeader header;
  if (Status s = read_header(unit, &header); !s.ok()) return s;
  *out = {.version = header.version, .element = static_cast<Element>(header.element), .raw_bytes = header.raw_bytes};
  return {};
}

}  // namespace halfstep::compress
