#include "wire/records.h"

#include <algorithm>

#include "base/check.h"
#include "wire/utf8.h"

namespace halfstep::wire {
namespace {

constexpr size_t kRecordAlign = 8;

bool all_zero(ConstBytes bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Padding that follows `bytes` of a record of variable length.
bool take_padding(Reader& reader, size_t bytes) noexcept {
  return all_zero(reader.take_bytes((kRecordAlign - bytes % kRecordAlign) % kRecordAlign));
}

template <Plain T>
bool load_exact(ConstBytes value, T* out) noexcept {
  if (value.size() != sizeof(T)) return false;
  *out = load_le<T>(value.data());
  return true;
}

// What Lengths, MatchBits and PartTable begin with.
bool take_section(Reader& reader, uint16_t* out) noexcept {
  *out = reader.take<uint16_t>();
  return reader.take<uint16_t>() == 0 && *out < kSectionsMax;
}

bool within_items(uint32_t first, uint32_t count) noexcept { return uint64_t{first} + count <= kItemsMax; }

// The rule of records.h for one run, apart from what only the group's shape can tell.
bool run_allowed(const Run& run) noexcept {
  if (run.section >= kSectionsMax || run.item >= kItemsMax || run.block_bytes == 0) return false;
  if ((run.flags & ~(kRunAborted | kRunCoded)) != 0) return false;
  if (run.part_count == 0 || uint64_t{run.part} + run.part_count > kPartsMax) return false;
  const bool aborted = (run.flags & kRunAborted) != 0;
  if (run.bytes < run.part_count && !(aborted && run.bytes == 0)) return false;
  // Stored bytes of a coded block may be more than its raw ones.
  const uint32_t end_max = (run.flags & kRunCoded) != 0 ? UINT32_MAX : run.block_bytes;
  if (uint64_t{run.offset} + run.bytes > end_max) return false;
  if (run.part_count == 1) return run.check_count <= 1;
  return run.offset == 0 && run.check_count == run.part_count;
}

}  // namespace

Status parse_hello_client(ConstBytes value, HelloClient* out) noexcept {
  if (!load_exact(value, out) || out->version_min > out->version_max) return Code::Invalid;
  return {};
}

Status parse_hello_server(ConstBytes value, HelloServer* out) noexcept {
  if (!load_exact(value, out)) return Code::Invalid;
  const bool numbers = out->shards >= 1 && out->shards <= kShardsMax && out->shard < out->shards;
  const bool limits = out->block_bytes_max > 0 && out->parts_max > 0 && out->keys_max > 0 && out->requests_in_flight_max > 0 &&
                      out->chunk_bytes_max > 0;
  return numbers && limits ? Status() : Status(Code::Invalid);
}

Status parse_batch(ConstBytes value, Batch* out) noexcept {
  if (!load_exact(value, out) || out->reserved != 0) return Code::Invalid;
  if (out->order > Order::LayerMajor || out->durability > Durability::Persist) return Code::Invalid;
  if ((out->flags & ~kBatchFlags) != 0) return Code::Invalid;
  return (out->hold_owner != 0) == (out->hold_ms != 0) ? Status() : Status(Code::Invalid);
}

Status parse_owner(ConstBytes value, OwnerRecord* out) noexcept {
  if (!load_exact(value, out) || out->owner == 0 || out->reserved != 0) return Code::Invalid;
  return {};
}

Status parse_until(ConstBytes value, UntilRecord* out) noexcept {
  if (!load_exact(value, out) || out->reserved != 0 || (out->flags & ~(kHoldPersistent | kUntilKindMask)) != 0)
    return Code::Invalid;
  return out->hold_ms != 0 || (out->flags & kHoldPersistent) != 0 ? Status() : Status(Code::Invalid);
}

Status parse_expiry(ConstBytes value, ExpiryRecord* out) noexcept {
  return load_exact(value, out) && out->reserved == 0 ? Status() : Status(Code::Invalid);
}

Status parse_layout_id(ConstBytes value, LayoutId* out) noexcept {
  return load_exact(value, out) ? Status() : Status(Code::Invalid);
}

Status parse_pin_budget(ConstBytes value, PinBudgetRecord* out) noexcept {
  return load_exact(value, out) ? Status() : Status(Code::Invalid);
}

Status parse_coding(ConstBytes value, CodingRecord* out) noexcept {
  return load_exact(value, out) && out->reserved == 0 ? Status() : Status(Code::Invalid);
}

Status parse_cancel(ConstBytes value, CancelRecord* out) noexcept {
  return load_exact(value, out) ? Status() : Status(Code::Invalid);
}

Status parse_namespace_action(ConstBytes value, NamespaceRecord* out) noexcept {
  if (!load_exact(value, out) || !all_zero(object_bytes(out->reserved))) return Code::Invalid;
  if ((out->flags & ~kNamespaceSlidingTtl) != 0) return Code::Invalid;
  return out->verb >= NamespaceVerb::Create && out->verb <= NamespaceVerb::Delete ? Status() : Status(Code::Invalid);
}

Status parse_layout_handle(ConstBytes value, LayoutHandleRecord* out) noexcept {
  if (!load_exact(value, out) || !all_zero(object_bytes(out->reserved))) return Code::Invalid;
  return {};
}

Status parse_load(ConstBytes value, LoadRecord* out) noexcept {
  return load_exact(value, out) ? Status() : Status(Code::Invalid);
}

Status parse_cursor(ConstBytes value, CursorRecord* out) noexcept {
  return load_exact(value, out) && out->reserved == 0 ? Status() : Status(Code::Invalid);
}

Status parse_key_question(ConstBytes value, KeyQuestionView* out) noexcept {
  Reader reader(value);
  out->head = reader.take<KeyQuestionHead>();
  if (reader.failed() || out->head.reserved != 0 || (out->head.flags & ~kQuestionEveryGroup) != 0) return Code::Invalid;
  if (out->head.range_count > kQuestionRangesMax) return Code::TooLarge;
  if (out->head.key_bytes == 0) return Code::Invalid;
  out->ranges = PackedArray<ComponentRange>(reader.take_bytes(out->head.range_count * sizeof(ComponentRange)));
  out->engine_key = reader.take_bytes(out->head.key_bytes);
  if (reader.failed() || reader.left() > 0) return Code::Invalid;
  const bool every_group = (out->head.flags & kQuestionEveryGroup) != 0;
  uint64_t components = 0;
  for (uint32_t r = 0; r < out->ranges.size(); ++r) {
    const ComponentRange range = out->ranges[r];
    const uint64_t last = uint64_t{range.first} + range.count - 1;
    if (range.count == 0 || last >> 24 != range.first >> 24) return Code::Invalid;
    if (every_group && Component{range.first}.group() != 0) return Code::Invalid;
    components += range.count;
  }
  return components > kQuestionComponentsMax ? Status(Code::TooLarge) : Status();
}

Status parse_namespace_name(ConstBytes value, std::string_view* out) noexcept {
  if (value.empty() || value.size() > kNamespaceBytesMax || !valid_utf8(value)) {
    return Code::Invalid;
  }
  const auto control = [](std::byte b) { return b < std::byte{0x20} || b == std::byte{0x7F}; };
  if (std::any_of(value.begin(), value.end(), control)) return Code::Invalid;
  *out = as_text(value);
  return {};
}

Status parse_shard_map(ConstBytes value, PackedArray<ShardAddress>* out) noexcept {
  const size_t count = value.size() / sizeof(ShardAddress);
  if (value.size() % sizeof(ShardAddress) != 0 || count == 0 || count > kShardsMax) {
    return Code::Invalid;
  }
  const PackedArray<ShardAddress> map(value);
  for (uint32_t i = 0; i < map.size(); ++i) {
    const ShardAddress address = map[i];
    if (address.reserved != 0 || address.host > kShardsMax) return Code::Invalid;
  }
  *out = map;
  return {};
}

Status parse_shard_hosts(ConstBytes value, ShardHostsView* out) noexcept {
  Reader reader(value);
  const auto head = reader.take<ShardHostsHead>();
  if (reader.failed() || head.reserved != 0) return Code::Invalid;
  if (head.host_count > kShardsMax) return Code::TooLarge;
  ShardHostsView view;
  view.epoch = head.epoch;
  view.host_count = head.host_count;
  for (uint32_t i = 0; i < head.host_count; ++i) {
    const auto bytes = reader.take<uint8_t>();
    const ConstBytes host = reader.take_bytes(bytes);
    const bool padded = take_padding(reader, size_t{1} + bytes);
    if (reader.failed() || !padded || host.empty() || !valid_utf8(host)) return Code::Invalid;
    view.hosts[i] = as_text(host);
  }
  if (!reader.finished()) return Code::Invalid;
  *out = view;
  return {};
}

Status parse_grant(ConstBytes value, GrantView* out) noexcept {
  Reader reader(value);
  GrantView grant;
  grant.head = reader.take<GrantHead>();
  if (reader.failed() || grant.head.reserved != 0) return Code::Invalid;
  if (reader.left() != uint64_t{grant.head.range_count} * sizeof(ItemRange)) return Code::Invalid;
  grant.ranges = PackedArray<ItemRange>(reader.rest());
  for (uint32_t i = 0; i < grant.head.range_count; ++i) {
    const ItemRange range = grant.ranges[i];
    if (range.section >= kSectionsMax || range.reserved != 0) return Code::Invalid;
    if (range.count == 0 || !within_items(range.first, range.count)) return Code::Invalid;
  }
  *out = grant;
  return {};
}

Status parse_lengths(ConstBytes value, LengthsView* out) noexcept {
  Reader reader(value);
  LengthsView lengths;
  const bool section = take_section(reader, &lengths.section);
  lengths.first = reader.take<uint32_t>();
  const auto count = reader.take<uint32_t>();
  const auto reserved = reader.take<uint32_t>();
  if (reader.failed() || !section || reserved != 0) return Code::Invalid;
  if (!within_items(lengths.first, count)) return Code::Invalid;
  if (reader.left() != uint64_t{count} * sizeof(uint32_t)) return Code::Invalid;
  lengths.block_bytes = PackedArray<uint32_t>(reader.rest());
  *out = lengths;
  return {};
}

Status parse_match_bits(ConstBytes value, MatchBitsView* out) noexcept {
  Reader reader(value);
  MatchBitsView match;
  const bool section = take_section(reader, &match.section);
  match.key_count = reader.take<uint32_t>();
  if (reader.failed() || !section || match.key_count > kKeysMax) return Code::Invalid;
  if (reader.left() != (match.key_count + 7) / 8) return Code::Invalid;
  match.bits = reader.rest();
  const uint32_t used = match.key_count % 8;
  if (used != 0 && std::to_integer<uint32_t>(match.bits.back()) >> used != 0) return Code::Invalid;
  *out = match;
  return {};
}

Status check_entries(ConstBytes value, uint32_t* count) noexcept {
  Reader reader(value);
  const auto entries = reader.take<uint32_t>();
  const auto reserved = reader.take<uint32_t>();
  if (reader.failed() || reserved != 0) return Code::Invalid;
  // Ends with the bytes, however many the count claims.
  for (uint32_t i = 0; i < entries; ++i) {
    const auto entry = reader.take<EntryRecord>();
    reader.take_bytes(entry.key_bytes);
    const bool padded = take_padding(reader, entry.key_bytes);
    if (reader.failed() || !padded) return Code::Invalid;
    if (entry.key_bytes == 0 || entry.flags != 0 || entry.reserved != 0) return Code::Invalid;
  }
  if (!reader.finished()) return Code::Invalid;
  *count = entries;
  return {};
}

Status check_counters(ConstBytes value) noexcept {
  Reader reader(value);
  while (reader.left() > 0) {
    const auto name_bytes = reader.take<uint16_t>();
    const auto reserved_short = reader.take<uint16_t>();
    const auto reserved = reader.take<uint32_t>();
    reader.take<uint64_t>();
    const ConstBytes name = reader.take_bytes(name_bytes);
    const bool padded = take_padding(reader, name_bytes);
    if (reader.failed() || !padded || reserved_short != 0 || reserved != 0) return Code::Invalid;
    if (name.empty() || !valid_utf8(name)) return Code::Invalid;
  }
  return {};
}

bool KeyCursor::next(ConstBytes* key) noexcept {
  Reader reader(rest_);
  const auto bytes = reader.take<uint8_t>();
  const ConstBytes taken = reader.take_bytes(bytes);
  if (reader.failed() || bytes == 0) return false;
  *key = taken;
  rest_ = reader.rest();
  return true;
}

Status parse_part_table(ConstBytes value, PartTableView* out, uint32_t* stored_bytes, uint32_t* raw_bytes) noexcept {
  Reader reader(value);
  PartTableView table;
  const bool section = take_section(reader, &table.section);
  table.item = reader.take<uint32_t>();
  const auto count = reader.take<uint32_t>();
  const auto reserved = reader.take<uint32_t>();
  if (reader.failed() || !section || reserved != 0) return Code::Invalid;
  if (table.item >= kItemsMax || count == 0 || count > kPartsMax) return Code::Invalid;
  if (reader.left() != uint64_t{count} * sizeof(PartRecord)) return Code::Invalid;
  table.records = PackedArray<PartRecord>(reader.rest());
  uint64_t stored = 0;
  uint64_t raw = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const PartRecord part = table.records[i];
    if (!all_zero(object_bytes(part.reserved))) return Code::Invalid;
    if (part.stored_bytes == 0 || part.raw_bytes == 0) return Code::Invalid;
    if (part.codec == 0 && part.stored_bytes != part.raw_bytes) return Code::Invalid;
    stored += part.stored_bytes;
    raw += part.raw_bytes;
  }
  if (stored > UINT32_MAX || raw > UINT32_MAX) return Code::Invalid;
  *out = table;
  *stored_bytes = static_cast<uint32_t>(stored);
  *raw_bytes = static_cast<uint32_t>(raw);
  return {};
}

Status parse_runs(ConstBytes value, uint32_t payload_bytes, RunsView* out) noexcept {
  Reader reader(value);
  RunsView view;
  view.run_count = reader.take<uint32_t>();
  view.check_count = reader.take<uint32_t>();
  if (reader.failed() || view.run_count == 0) return Code::Invalid;
  if (view.run_count > kRunsPerChunkMax) return Code::TooLarge;
  const uint64_t runs_bytes = uint64_t{view.run_count} * sizeof(Run);
  const uint64_t checks_bytes = uint64_t{view.check_count} * sizeof(uint32_t);
  if (reader.left() != runs_bytes + checks_bytes) return Code::Invalid;
  view.runs = reader.take_bytes(static_cast<size_t>(runs_bytes));
  view.checks = reader.take_bytes(static_cast<size_t>(checks_bytes));
  uint64_t bytes = 0;
  uint64_t checks = 0;
  for (uint32_t i = 0; i < view.run_count; ++i) {
    const Run run = view.run(i);
    if (!run_allowed(run)) return Code::Invalid;
    bytes += run.bytes;
    checks += run.check_count;
  }
  if (bytes != payload_bytes || checks != view.check_count) return Code::Invalid;
  *out = view;
  return {};
}

Status parse_chunk(ConstBytes body, uint32_t payload_bytes, RunsView* out) noexcept {
  TlvReader reader(body);
  TlvView tlv;
  bool found = false;
  while (reader.next(&tlv)) {
    if (tlv.kind == static_cast<uint16_t>(Tlv::Runs)) {
      if (found) return Code::Invalid;
      found = true;
      if (Status s = parse_runs(tlv.value, payload_bytes, out); !s.ok()) return s;
    } else if (tlv.kind == static_cast<uint16_t>(Tlv::PartTable)) {
      PartTableView table;
      uint32_t stored_bytes = 0;
      uint32_t raw_bytes = 0;
      if (Status s = parse_part_table(tlv.value, &table, &stored_bytes, &raw_bytes); !s.ok()) {
        return s;
      }
    } else if ((tlv.kind & kMustUnderstandTlv) != 0) {
      return Code::Unsupported;
    } else if (is_known(tlv.kind)) {
      return Code::Invalid;
    }
  }
  if (!reader.status().ok()) return reader.status();
  return found ? Status() : Status(Code::Invalid);
}

Status check_statuses(ConstBytes value) noexcept {
  Reader reader(value);
  const auto section = reader.take<uint16_t>();
  const auto flags = reader.take<uint16_t>();
  const auto count = reader.take<uint32_t>();
  if (reader.failed() || reader.left() != uint64_t{count} * sizeof(StatusRun)) return Code::Invalid;
  const bool whole = section == kWholeRequest;
  if ((section >= kSectionsMax && !whole) || (flags & ~kStatusPerPart) != 0) return Code::Invalid;
  if (whole && (count != 1 || flags != 0)) return Code::Invalid;
  const uint64_t per_item = (flags & kStatusPerPart) != 0 ? kPartsMax : 1;
  const uint64_t end_max = whole ? 1 : kItemsMax * per_item;
  for (uint32_t i = 0; i < count; ++i) {
    const auto run = reader.take<StatusRun>();
    if (run.count == 0 || uint64_t{run.first} + run.count > end_max) return Code::Invalid;
    if (run.answer == Answer::Pending || run.reserved != 0) return Code::Invalid;
  }
  return {};
}

StatusWriter::StatusWriter(FrameWriter& frame, uint16_t section, uint16_t flags) : frame_(frame) {
  frame_.open_tlv(Tlv::Statuses);
  frame_.value().put(section);
  frame_.value().put(flags);
  count_at_ = frame_.value().size();
  frame_.value().put(uint32_t{0});  // patched by close
}

void StatusWriter::add(uint32_t number, AnswerReason status) {
  HALFSTEP_DCHECK(status.answer != Answer::Pending, status.answer);
  HALFSTEP_DCHECK(open_.count == 0 || number >= open_.first + open_.count);
  const bool extends =
      open_.count != 0 && number == open_.first + open_.count && open_.answer == status.answer && open_.reason == status.reason;
  if (extends) {
    ++open_.count;
    return;
  }
  flush();
  open_ = {number, 1, status.answer, 0, status.reason};
}

void StatusWriter::flush() {
  if (open_.count == 0) return;
  frame_.value().put(open_);
  ++runs_;
}

void StatusWriter::close() {
  flush();
  open_.count = 0;
  frame_.value().patch(count_at_, runs_);
  frame_.close_tlv();
}

}  // namespace halfstep::wire
