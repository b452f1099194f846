// The trailer's decoder: what it accepts adds up.
#include "store/format/extent_layout.h"

#include <cstdlib>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::store;
  if (size < 12) return 0;
  ExtentShape shape;
  uint32_t raw_bytes = 0;
  std::memcpy(&shape.parts, data, 4);
  std::memcpy(&shape.stored_bytes, data + 4, 4);
  std::memcpy(&raw_bytes, data + 8, 4);
  shape.trailer = true;
  std::vector<std::byte> bytes(size - 12);
  if (!bytes.empty()) std::memcpy(bytes.data(), data + 12, bytes.size());
  // Most lengths would be turned away at once: half of the inputs get a tail that fits.
  if ((size & 1U) == 0 && bytes.size() >= sizeof(format::TrailerTail)) {
    bytes.resize(bytes.size() - (bytes.size() - sizeof(format::TrailerTail)) % sizeof(format::TrailerPart));
    shape.parts = static_cast<uint32_t>((bytes.size() - sizeof(format::TrailerTail)) / sizeof(format::TrailerPart));
    format::TrailerTail tail;
    tail.parts = shape.parts;
    tail.stored_bytes = shape.stored_bytes;
    tail.raw_bytes = raw_bytes;
    store_le(bytes.data() + bytes.size() - sizeof(tail), tail);
  }
  PartTable parts;
  if (!parse_trailer(bytes, shape, raw_bytes, &parts).ok()) return 0;
  uint64_t stored = 0;
  for (const PartInfo& part : parts) {
    if (part.offset != stored) std::abort();
    stored += part.stored_bytes;
  }
  if (stored != shape.stored_bytes || parts.size() != shape.parts) std::abort();
  return 0;
}
