// Any bytes as the body of a request. The first byte chooses the opcode.
// What is let through must keep the limits that the shard relies on, and must be readable to its last byte.
#include <cstdlib>

#include "wire/records.h"

namespace halfstep::wire {
namespace {

void require(bool kept) {
  if (!kept) std::abort();
}

void check_section(const SectionView& section, bool put) {
  require(section.head.component_count > 0 && section.item_count() > 0);
  require(section.head.range_count <= kRangesMax);
  KeyCursor cursor(section.keys);
  ConstBytes key;
  size_t keys = 0;
  size_t keys_bytes = 0;
  for (; cursor.next(&key); ++keys) {
    keys_bytes += 1 + key.size();
    require(!key.empty() && key.size() <= kEngineKeyBytesMax);
  }
  require(keys == section.head.key_count && keys_bytes == section.keys.size());

  uint32_t parts = 0;
  const Status selected = for_selected_parts(section, kPartsMax, [&](uint32_t part) {
    require(part < kPartsMax);
    ++parts;
  });
  require(selected.ok() && parts >= 1 && parts <= kPartsMax);

  require(section.offers.size() == (put ? section.item_count() * sizeof(Offer) : 0));
  for (uint32_t item = 0; put && item < section.item_count(); ++item) {
    const Offer offer = section.offer(item);
    require(offer.block_bytes > 0 && offer.stored_bytes > 0);
  }
}

void check(const RequestView& view, Opcode opcode) {
  require(view.section_count <= kSectionsMax);
  require(view.section_count > 0 || opcode == Opcode::Release || opcode == Opcode::Renew);
  require(view.section_count == 0 || opcode != Opcode::Renew);
  require(!view.has_until || view.until.hold_ms != 0 || (view.until.flags & kHoldPersistent) != 0);
  uint64_t keys = 0;
  uint64_t items = 0;
  for (uint32_t i = 0; i < view.section_count; ++i) {
    check_section(view.sections[i], opcode == Opcode::Put);
    keys += view.sections[i].head.key_count;
    items += view.sections[i].item_count();
  }
  require(keys <= kKeysMax && items <= kItemsMax);
  for (const PartTableView& table : view.part_tables) {
    require(opcode == Opcode::Put && table.section < view.section_count);
    const Offer offer = view.sections[table.section].offer(table.item);
    uint64_t stored_bytes = 0;
    uint64_t raw_bytes = 0;
    for (uint32_t i = 0; i < table.records.size(); ++i) {
      stored_bytes += table.records[i].stored_bytes;
      raw_bytes += table.records[i].raw_bytes;
    }
    require(stored_bytes == offer.stored_bytes && raw_bytes == offer.block_bytes);
  }
}

}  // namespace
}  // namespace halfstep::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::wire;
  static RequestView view;  // reused, as a connection reuses its own
  if (size == 0) return 0;
  const auto opcode = static_cast<Opcode>(data[0] % static_cast<uint8_t>(Opcode::Chunk));
  const ConstBytes body(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  if (parse_request(opcode, body, &view).ok()) check(view, opcode);
  return 0;
}
