// Any bytes as a layout: what parses is canonical (make() of its fields and groups gives the same bytes and id), and its
// shapes cut every block length that they accept into parts that tile it.
#include <algorithm>
#include <cstdlib>

#include "wire/layout.h"

namespace halfstep::wire {
namespace {

void check_shape(const GroupShape& shape, uint64_t block_bytes) {
  const uint32_t parts = shape.parts_of(block_bytes);
  if (parts > kPartsMax) std::abort();
  uint64_t at = 0;
  for (uint32_t part = 0; part < parts; ++part) {
    const uint32_t bytes = shape.bytes_of(part, block_bytes);
    if (bytes == 0 || shape.offset_of(part) != at) std::abort();
    at += bytes;
  }
  if (parts > 0 && at != block_bytes) std::abort();
  if (shape.part_count != 0 && parts != 0 && parts != shape.part_count) std::abort();
}

}  // namespace
}  // namespace halfstep::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::wire;
  const ConstBytes given(reinterpret_cast<const std::byte*>(data), size);
  Layout layout;
  if (!Layout::parse(given, &layout).ok()) return 0;
  auto fields = layout.fields();
  std::reverse(fields.begin(), fields.end());
  Layout again;
  if (!Layout::make(std::move(fields), layout.groups(), &again).ok()) std::abort();
  if (!std::ranges::equal(again.canonical(), given) || again.id() != layout.id()) std::abort();

  // Lengths that come from the input itself, and the borders of its own shapes.
  uint32_t shapes = 0;
  for (const GroupShape& shape : layout.groups()) {
    if (++shapes > 8) break;  // the rest are cut by the same code
    const uint64_t whole = shape.offset_of(std::max<uint32_t>(shape.part_count, 1));
    for (const uint64_t bytes : {whole - 1, whole, whole + 1, uint64_t{size} * 4093, UINT64_MAX}) check_shape(shape, bytes);
  }
  return 0;
}
