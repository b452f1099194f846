// request.cc — parse_request: one pass over the TLVs, then what can only be judged when all of them are there.
#include <algorithm>

#include "wire/coding_choices.h"
#include "wire/places.h"
#include "wire/records.h"

namespace halfstep::wire {
namespace {

// Which parts of a request an opcode may have.
struct Rules {
  bool ranges = false;
  bool places = false;
  bool stop_at_miss = false;
  uint8_t flags = 0;  // of a Batch
  bool hold = false;  // in the Batch
  bool offers = false;
  bool owner = false;
  bool until = false;
  bool persistent = false;  // the flag of an Until
  bool kind = false;        // in an Until
  bool expiry = false;
  bool sections = true;
  bool sections_needed = true;
};

bool rules_of(Opcode opcode, Rules* out) noexcept {
  switch (opcode) {
    case Opcode::Match:
      *out = {.stop_at_miss = true, .flags = kBatchLengths | kBatchDecodable | kBatchWait, .hold = true};
      return true;
    case Opcode::Get:
      *out = {.ranges = true, .places = true, .stop_at_miss = true, .flags = kBatchDecodable | kBatchWait};
      return true;
    case Opcode::Put: *out = {.places = true, .flags = kBatchDecodable, .offers = true}; return true;
    case Opcode::Prefetch: *out = {.flags = kBatchFollow, .until = true, .kind = true}; return true;
    case Opcode::Delete:
    case Opcode::Touch: *out = {}; return true;
    case Opcode::Hold: *out = {.owner = true, .until = true, .persistent = true}; return true;
    case Opcode::Renew: *out = {.owner = true, .until = true, .sections = false, .sections_needed = false}; return true;
    case Opcode::Expire: *out = {.expiry = true}; return true;
    case Opcode::Release: *out = {.owner = true, .sections_needed = false}; return true;
    default: return false;
  }
}

// Cells of one group and variant: the low 20 bits do not carry.
bool one_group(const SectionHead& head) noexcept {
  return head.component_count > 0 && uint64_t{Component{head.first_component}.cell()} + head.component_count <= 1U << 20;
}

Status check_ranges(const SectionView& section) noexcept {
  uint64_t parts = 0;
  for (uint32_t i = 0; i < section.head.range_count; ++i) {
    const PartRange range = section.range(i);
    if (range.count == 0 || range.stride == 0) return Code::Invalid;
    if (range.start + uint64_t{range.count - 1} * range.stride >= kPartsMax) return Code::Invalid;
    parts += range.count;
  }
  return parts <= kPartsMax ? Status() : Status(Code::Invalid);
}

Status check_keys(const SectionView& section) noexcept {
  KeyCursor cursor(section.keys);
  ConstBytes key;
  size_t bytes = 0;
  for (uint32_t i = 0; i < section.head.key_count; ++i) {
    if (!cursor.next(&key)) return Code::Invalid;
    bytes += 1 + key.size();
  }
  return bytes == section.keys.size() ? Status() : Status(Code::Invalid);
}

class RequestParser {
 public:
  RequestParser(const Rules& rules, RequestView* out) noexcept : rules_(rules), out_(*out) {}

  Status parse(ConstBytes body) {
    TlvReader reader(body);
    TlvView tlv;
    while (reader.next(&tlv)) {
      if (Status s = take(tlv); !s.ok()) return s;
    }
    if (!reader.status().ok()) return reader.status();
    return check_whole();
  }

 private:
  Status take(const TlvView& tlv) {
    switch (static_cast<Tlv>(tlv.kind)) {
      case Tlv::Batch: return take_batch(tlv.value);
      case Tlv::Owner:
        if (!rules_.owner || out_.has_owner) return Code::Invalid;
        out_.has_owner = true;
        return parse_owner(tlv.value, &out_.owner);
      case Tlv::Until: return take_until(tlv.value);
      case Tlv::Expiry:
        if (!rules_.expiry || out_.has_expiry) return Code::Invalid;
        out_.has_expiry = true;
        return parse_expiry(tlv.value, &out_.expiry);
      case Tlv::Section: return take_section(tlv.value);
      case Tlv::Offers: return take_offers(tlv.value);
      case Tlv::PartTable: return take_part_table(tlv.value);
      case Tlv::CodingChoices: return take_choices(tlv.value);
      case Tlv::Places: return take_places(tlv.value);
      case Tlv::PlaceRows: return take_place_rows(tlv.value);
      case Tlv::PlaceKeys: return take_place_keys(tlv.value);
      default:
        if ((tlv.kind & kMustUnderstandTlv) != 0) return Code::Unsupported;
        return is_known(tlv.kind) ? Status(Code::Invalid) : Status();
    }
  }

  Status take_batch(ConstBytes value) noexcept {
    if (has_batch_) return Code::Invalid;
    has_batch_ = true;
    if (Status s = parse_batch(value, &out_.batch); !s.ok()) return s;
    if ((out_.batch.flags & ~rules_.flags) != 0) return Code::Invalid;
    return out_.batch.hold_owner != 0 && !rules_.hold ? Status(Code::Invalid) : Status();
  }

  Status take_until(ConstBytes value) noexcept {
    if (!rules_.until || out_.has_until) return Code::Invalid;
    out_.has_until = true;
    if (Status s = parse_until(value, &out_.until); !s.ok()) return s;
    if ((out_.until.flags & kUntilKindMask) != 0 && !rules_.kind) return Code::Invalid;
    return (out_.until.flags & kHoldPersistent) == 0 || rules_.persistent ? Status() : Status(Code::Invalid);
  }

  Status take_section(ConstBytes value) noexcept {
    if (!rules_.sections) return Code::Invalid;
    if (out_.section_count == kSectionsMax) return Code::TooLarge;
    Reader reader(value);
    SectionView section;
    section.head = reader.take<SectionHead>();
    const SectionHead& head = section.head;
    if (reader.failed() || head.reserved != 0 || head.key_count == 0) return Code::Invalid;
    if ((head.flags & ~(rules_.stop_at_miss ? kSectionStopAtMiss : 0)) != 0) return Code::Invalid;
    if (!one_group(head)) return Code::Invalid;
    if (head.range_count > 0 && !rules_.ranges) return Code::Invalid;
    if (head.range_count > kRangesMax) return Code::TooLarge;
    // Counts are bounded one by one before they are multiplied or added.
    if (head.key_count > kKeysMax - keys_) return Code::TooLarge;
    if (uint64_t{head.key_count} * head.component_count > kItemsMax - items_) return Code::TooLarge;

    section.ranges = reader.take_bytes(head.range_count * sizeof(PartRange));
    section.keys = reader.take_bytes(head.keys_bytes);
    if (!reader.finished()) return Code::Invalid;
    if (Status s = check_ranges(section); !s.ok()) return s;
    if (Status s = check_keys(section); !s.ok()) return s;
    keys_ += head.key_count;
    items_ += section.item_count();
    out_.sections[out_.section_count++] = section;
    return {};
  }

  Status take_offers(ConstBytes value) noexcept {
    if (!rules_.offers) return Code::Invalid;
    Reader reader(value);
    const auto number = reader.take<uint16_t>();
    const auto reserved = reader.take<uint16_t>();
    const auto count = reader.take<uint32_t>();
    if (reader.failed() || reserved != 0 || number >= out_.section_count) return Code::Invalid;
    SectionView& section = out_.sections[number];
    if (!section.offers.empty() || count != section.item_count()) return Code::Invalid;
    if (reader.left() != uint64_t{count} * sizeof(Offer)) return Code::Invalid;
    section.offers = reader.rest();
    return {};
  }

  Status take_part_table(ConstBytes value) {
    if (!rules_.offers) return Code::Invalid;
    PartTableView table;
    uint32_t stored_bytes = 0;
    uint32_t raw_bytes = 0;
    if (Status s = parse_part_table(value, &table, &stored_bytes, &raw_bytes); !s.ok()) return s;
    if (table.section >= out_.section_count) return Code::Invalid;
    const SectionView& section = out_.sections[table.section];
    if (section.offers.empty() || table.item >= section.item_count()) return Code::Invalid;
    if (!out_.part_tables.empty()) {
      const PartTableView& before = out_.part_tables.back();
      const bool ascends = table.section > before.section || (table.section == before.section && table.item > before.item);
      if (!ascends) return Code::Invalid;
    }
    const Offer offer = section.offer(table.item);
    if ((offer.flags & kOfferCoded) == 0) return Code::Invalid;
    if (offer.stored_bytes != stored_bytes || offer.block_bytes != raw_bytes) return Code::Invalid;
    out_.part_tables.push_back(table);
    return {};
  }

  Status take_choices(ConstBytes value) noexcept {
    CodingChoicesView choices;
    if (!rules_.offers || !parse_coding_choices(value, &choices).ok()) return Code::Invalid;
    if (choices.section >= out_.section_count) return Code::Invalid;
    SectionView& section = out_.sections[choices.section];
    if (section.offers.empty() || !section.choices.empty()) return Code::Invalid;
    if (choices.reasons.size() != section.item_count()) return Code::Invalid;
    section.choices = value;
    return {};
  }

  Status take_places(ConstBytes value) noexcept {
    PlacesView places;
    if (Status s = parse_places(value, &places); !s.ok()) return s;
    if (places.head.piece_count > kPiecesMax - pieces_) return Code::TooLarge;
    pieces_ += places.head.piece_count;
    return place(places.head.section, places.head.item_count, value, false);
  }

  Status take_place_rows(ConstBytes value) noexcept {
    PlaceRowsView rows;
    if (Status s = parse_place_rows(value, &rows); !s.ok()) return s;
    return place(rows.head.section, rows.head.item_count, value, true);
  }

  Status take_place_keys(ConstBytes value) noexcept {
    if (!rules_.places || !out_.place_keys.empty()) return Code::Invalid;
    PackedArray<RegionRecord> keys;
    out_.place_keys = value;
    return parse_place_keys(value, &keys);
  }

  Status place(uint32_t number, uint32_t item_count, ConstBytes value, bool by_rows) noexcept {
    if (!rules_.places || number >= out_.section_count) return Code::Invalid;
    SectionView& section = out_.sections[number];
    if (!section.places.empty() || item_count != section.item_count()) return Code::Invalid;
    section.places = value;
    section.by_rows = by_rows;
    return {};
  }

  Status check_whole() const noexcept {
    if (!has_batch_ || out_.has_owner != rules_.owner) return Code::Invalid;
    if (out_.has_until != rules_.until || out_.has_expiry != rules_.expiry) return Code::Invalid;
    if (out_.section_count == 0 && rules_.sections_needed) return Code::Invalid;
    return rules_.offers ? check_offers() : Status();
  }

  Status check_offers() const noexcept {
    size_t coded = 0;
    for (uint32_t s = 0; s < out_.section_count; ++s) {
      const SectionView& section = out_.sections[s];
      if (section.offers.empty()) return Code::Invalid;
      for (uint32_t item = 0; item < section.item_count(); ++item) {
        const Offer offer = section.offer(item);
        if (!offer_allowed(offer)) return Code::Invalid;
        coded += (offer.flags & kOfferCoded) != 0 ? 1 : 0;
      }
    }
    // Tables name coded items only, each once: so many of them are all of them.
    return coded == out_.part_tables.size() ? Status() : Status(Code::Invalid);
  }

  bool offer_allowed(const Offer& offer) const noexcept {
    if (offer.block_bytes == 0 || offer.stored_bytes == 0 || offer.reserved != 0) return false;
    if ((offer.flags & ~kOfferCoded) != 0 || offer.parent_kind > kParentKnown) return false;
    if (offer.parent_kind == kParentInBatch && offer.parent >= keys_) return false;
    return (offer.flags & kOfferCoded) != 0 || offer.stored_bytes == offer.block_bytes;
  }

  const Rules& rules_;
  RequestView& out_;
  bool has_batch_ = false;
  uint32_t keys_ = 0;
  uint32_t items_ = 0;
  uint32_t pieces_ = 0;  // of Places
};

}  // namespace

Status parse_request(Opcode opcode, ConstBytes body, RequestView* out) {
  out->batch = {};
  out->has_owner = false;
  out->owner = {};
  out->has_until = false;
  out->until = {};
  out->has_expiry = false;
  out->expiry = {};
  out->section_count = 0;
  out->part_tables.clear();
  out->place_keys = {};
  Rules rules;
  if (!rules_of(opcode, &rules)) return Code::Unsupported;
  return RequestParser(rules, out).parse(body);
}

}  // namespace halfstep::wire
