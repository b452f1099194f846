// The trailer's decoders: what they accept adds up, and where nothing but a checksum stands against it, it lies in its extent.
#include "store/format/extent_layout.h"

#include <cstdlib>
#include <cstring>

#include "base/crc.h"

namespace {

// The checksum of the extent that such a trailer ends, as far as its parts can be added up.
uint32_t checksum_that_fits(halfstep::ConstBytes bytes) {
  using namespace halfstep;
  using namespace halfstep::store;
  if (bytes.size() < sizeof(format::TrailerTail)) return 0;
  const auto tail = load_le<format::TrailerTail>(bytes.data() + bytes.size() - sizeof(format::TrailerTail));
  const ExtentShape shape{tail.parts, tail.stored_bytes, true};
  if (tail.parts > wire::kPartsMax || bytes.size() != format::trailer_bytes(tail.parts)) return 0;
  uint32_t crc = 0;
  for (uint32_t p = 0; p < tail.parts; ++p) {
    const auto record = load_le<format::TrailerPart>(bytes.data() + p * sizeof(format::TrailerPart));
    crc = crc32c_combine(crc, record.stored_crc, record.stored_bytes);
  }
  return crc32c(bytes, crc32c_zeros(crc, shape.trailer_offset() - shape.stored_bytes));
}

}  // namespace

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
  ExtentShape said;
  const uint64_t extent_bytes = shape.extent_bytes();
  // As a reader has it that knows the extent's length and how many parts there are.
  if (open_trailer(bytes, extent_bytes, raw_bytes, checksum_that_fits(bytes), &said, &parts).ok()) {
    if (said.extent_bytes() != extent_bytes || parts.size() != said.parts) std::abort();
    for (const PartInfo& part : parts) {
      if (uint64_t{part.offset} + part.stored_bytes > said.trailer_offset()) std::abort();
    }
  }
  if (!parse_trailer(bytes, shape, raw_bytes, &parts).ok()) return 0;
  uint64_t stored = 0;
  for (const PartInfo& part : parts) {
    if (part.offset != stored) std::abort();
    stored += part.stored_bytes;
  }
  if (stored != shape.stored_bytes || parts.size() != shape.parts) std::abort();
  return 0;
}
