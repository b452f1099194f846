// extent_layout.h — how a block lies in its extent: parts, padding, trailer; and its checksum from the checksums of its parts.
// Invariants: what parse_trailer() accepts adds up (part offsets and lengths lie within stored_bytes, counts within limits);
// the checksum of an extent covers every byte of its pages.
// Thread: any; no state.
#pragma once

#include <span>

#include "base/slots.h"
#include "base/status.h"
#include "store/format/format.h"
#include "store/format/part_table.h"
#include "wire/layout.h"

namespace halfstep::store {

struct ExtentShape {
  uint32_t parts = 0;
  uint32_t stored_bytes = 0;
  bool trailer = false;

  uint64_t extent_bytes() const noexcept {
    return trailer ? round_up(stored_bytes + format::trailer_bytes(parts), kPageBytes) : stored_bytes;
  }
  uint64_t trailer_offset() const noexcept { return extent_bytes() - format::trailer_bytes(parts); }
};
// Of the end of an extent, those that a trailer for so many parts lies in.
constexpr uint32_t trailer_pages(uint32_t parts) noexcept {
  return static_cast<uint32_t>(div_up(format::trailer_bytes(parts), kPageBytes));
}

// Plain: every part raw and whole pages; anything else has a trailer.
ExtentShape shape_of(std::span<const PartInfo> parts, uint32_t stored_bytes) noexcept;

inline ExtentShape shape_of(const format::Entry& entry) noexcept {
  return {entry.parts, entry.stored_bytes, (entry.flags & format::kEntryTrailer) != 0};
}

// Fills offsets of parts of a plain cut of `block_bytes` by the group's shape. Sums are the caller's.
void cut_parts(const wire::GroupShape& group, uint32_t block_bytes, std::span<PartInfo> parts) noexcept;

// Zeroes the padding, writes the trailer if there is one, and returns the CRC32C of the whole extent, computed from the
// parts' stored_crc without reading the payload.
uint32_t finish_extent(const Slot& slot, const ExtentShape& shape, std::span<const PartInfo> parts,
                       uint32_t raw_bytes) noexcept;

// `tail`: the last trailer_bytes(parts) bytes of an extent that is said to have this shape. Corrupt when it says otherwise.
Status parse_trailer(ConstBytes tail, const ExtentShape& shape, uint32_t raw_bytes, PartTable* out);

// The same before anything else of the extent is there. Its shape is what `tail` says and `extent_bytes` allow; what it says of
// the parts is believed because their sums, the padding and `tail` itself make up `checksum`, that of the whole extent.
Status open_trailer(ConstBytes tail, uint64_t extent_bytes, uint32_t raw_bytes, uint32_t checksum, ExtentShape* shape,
                    PartTable* out);

// Checks a whole extent in memory against its checksum; on the way learns the parts' sums. `parts` come in with offsets and
// stored_bytes (plain), or are read from the trailer. Fed in order, so that it can follow the pieces of a read as they land.
class ExtentVerifier {
 public:
  void begin(const ExtentShape& shape, PartTable* parts) noexcept;
  void feed(ConstBytes bytes) noexcept;  // the next bytes of the extent
  uint64_t fed_bytes() const noexcept { return at_; }
  uint32_t parts_done() const noexcept { return part_; }
  uint32_t checksum() const noexcept { return whole_; }

 private:
  ExtentShape shape_;
  PartTable* parts_ = nullptr;
  uint64_t at_ = 0;
  uint32_t part_ = 0;
  uint32_t part_crc_ = 0;
  uint32_t whole_ = 0;
};

// What the end of an extent with a trailer says of its shape. Corrupt when that is not an extent of so many bytes; what it
// says is believed only when the whole extent fits its checksum.
Status read_tail(const Slot& slot, uint64_t extent_bytes, ExtentShape* shape, uint32_t* raw_bytes);

// The whole check in one go: parts are cut or read from the trailer, sums computed and compared with `checksum` and, for a
// trailer, with what it says. Corrupt on any difference.
Status verify_extent(const Slot& slot, const ExtentShape& shape, const wire::GroupShape* group, uint32_t raw_bytes,
                     uint32_t checksum, PartTable* parts);

}  // namespace halfstep::store
