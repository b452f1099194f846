// Any bytes as a frame: header, body, and every TLV through the parser of its kind. A second pass repairs the magic and the
// checksums first, since no mutation finds those by itself.
#include <algorithm>
#include <cstdlib>

#include "base/crc.h"
#include "wire/coding_choices.h"
#include "wire/rdma.h"
#include "wire/records.h"

namespace halfstep::wire {
namespace {

// What a parser lets through is read to its last byte, so that AddressSanitizer sees a count that lied.
volatile uint64_t sink = 0;
void touch(ConstBytes bytes) {
  for (const std::byte b : bytes) sink = sink + std::to_integer<uint64_t>(b);
}
template <Plain T>
void touch_all(const PackedArray<T>& array) {
  for (uint32_t i = 0; i < array.size(); ++i) touch(object_bytes(array[i]));
}

template <typename T>
void record(ConstBytes value, Status (*parse)(ConstBytes, T*) noexcept) {
  T out;
  if (parse(value, &out).ok() && value.size() != sizeof(T)) std::abort();
}

void parse_array(Tlv kind, ConstBytes value) {
  if (kind == Tlv::ShardMap) {
    PackedArray<ShardAddress> map;
    if (parse_shard_map(value, &map).ok()) touch_all(map);
  } else if (kind == Tlv::ShardHosts) {
    ShardHostsView hosts;
    if (!parse_shard_hosts(value, &hosts).ok()) return;
    for (uint32_t i = 0; i < hosts.host_count; ++i) touch(as_bytes(hosts.hosts[i]));
  } else if (kind == Tlv::Grant) {
    GrantView grant;
    if (!parse_grant(value, &grant).ok()) return;
    if (grant.ranges.size() != grant.head.range_count) std::abort();
    touch_all(grant.ranges);
  } else if (kind == Tlv::Lengths) {
    LengthsView lengths;
    if (parse_lengths(value, &lengths).ok()) touch_all(lengths.block_bytes);
  } else if (kind == Tlv::PartTable) {
    PartTableView table;
    uint32_t stored_bytes = 0;
    uint32_t raw_bytes = 0;
    if (parse_part_table(value, &table, &stored_bytes, &raw_bytes).ok()) touch_all(table.records);
  } else if (kind == Tlv::MatchBits) {
    MatchBitsView match;
    if (!parse_match_bits(value, &match).ok()) return;
    for (uint32_t key = 0; key < match.key_count; ++key) sink = sink + (match[key] ? 1 : 0);
  }
}

// What parses is within the bounds by which memory and devices are used.
void check_path(const RdmaPath& path) {
  if (path.ring_bytes < kRdmaRingBytesMin || path.ring_bytes > kRdmaRingBytesMax) std::abort();
  if ((path.ring_bytes & (path.ring_bytes - 1)) != 0 || path.ring_address + path.ring_bytes < path.ring_bytes) std::abort();
  if (path.queue_pair >> 24 != 0 || path.psn >> 24 != 0 || path.mtu_bytes > 4096) std::abort();
}

void parse_rdma(Tlv kind, ConstBytes value) {
  RdmaOfferView offer;
  RdmaAnswerView answer;
  if (kind == Tlv::RdmaOffer && parse_rdma_offer(value, &offer).ok()) {
    if (offer.paths.size() > kRdmaPathsMax) std::abort();
    for (uint32_t i = 0; i < offer.paths.size(); ++i) check_path(offer.paths[i]);
  } else if (kind == Tlv::RdmaAnswer && parse_rdma_answer(value, &answer).ok() && answer.head.version != 0) {
    check_path(answer.path);
  }
}

void parse_list(Tlv kind, ConstBytes value) {
  if (kind == Tlv::Statuses) {
    const Status walked = for_status_runs(value, [](uint16_t section, uint16_t, const StatusRun& run) {
      if (run.count == 0 || run.answer == Answer::Pending) std::abort();
      if (section >= kSectionsMax && section != kWholeRequest) std::abort();
    });
    sink = sink + (walked.ok() ? 1 : 0);
  } else if (kind == Tlv::Entries) {
    const Status walked = for_entries(value, [](const EntryRecord& entry, ConstBytes key) {
      if (key.size() != entry.key_bytes || key.empty()) std::abort();
      touch(key);
    });
    sink = sink + (walked.ok() ? 1 : 0);
  } else if (kind == Tlv::Counters) {
    const Status walked = for_counters(value, [](std::string_view name, uint64_t) { touch(as_bytes(name)); });
    sink = sink + (walked.ok() ? 1 : 0);
  }
}

void parse_tlv(const TlvView& tlv) {
  std::string_view name;
  switch (static_cast<Tlv>(tlv.kind)) {
    case Tlv::HelloClient: return record<HelloClient>(tlv.value, parse_hello_client);
    case Tlv::HelloServer: return record<HelloServer>(tlv.value, parse_hello_server);
    case Tlv::Batch: return record<Batch>(tlv.value, parse_batch);
    case Tlv::Owner: return record<OwnerRecord>(tlv.value, parse_owner);
    case Tlv::Until: return record<UntilRecord>(tlv.value, parse_until);
    case Tlv::KeyQuestion: {
      KeyQuestionView question;
      if (!parse_key_question(tlv.value, &question).ok()) return;
      if (question.engine_key.empty() || question.ranges.size() > kQuestionRangesMax) std::abort();
      touch(question.engine_key);
      return touch_all(question.ranges);
    }
    case Tlv::Expiry: return record<ExpiryRecord>(tlv.value, parse_expiry);
    case Tlv::NamedLayout: return record<LayoutId>(tlv.value, parse_layout_id);
    case Tlv::PinBudget: return record<PinBudgetRecord>(tlv.value, parse_pin_budget);
    case Tlv::NamespaceCoding:
    case Tlv::SetCoding: return record<CodingRecord>(tlv.value, parse_coding);
    case Tlv::CodingChoices: {
      CodingChoicesView choices;
      if (parse_coding_choices(tlv.value, &choices).ok()) touch(choices.reasons);
      return;
    }
    case Tlv::CancelTarget: return record<CancelRecord>(tlv.value, parse_cancel);
    case Tlv::NamespaceAction: return record<NamespaceRecord>(tlv.value, parse_namespace_action);
    case Tlv::LayoutHandle: return record<LayoutHandleRecord>(tlv.value, parse_layout_handle);
    case Tlv::Load: return record<LoadRecord>(tlv.value, parse_load);
    case Tlv::Cursor: return record<CursorRecord>(tlv.value, parse_cursor);
    case Tlv::NamespaceName:
      if (parse_namespace_name(tlv.value, &name).ok()) touch(as_bytes(name));
      return;
    case Tlv::RdmaOffer:
    case Tlv::RdmaAnswer: return parse_rdma(static_cast<Tlv>(tlv.kind), tlv.value);
    case Tlv::RdmaReads: return record<RdmaReadsRecord>(tlv.value, parse_rdma_reads);
    default: parse_array(static_cast<Tlv>(tlv.kind), tlv.value); parse_list(static_cast<Tlv>(tlv.kind), tlv.value);
  }
}

void walk(const Header& header, ConstBytes body) {
  TlvReader reader(body);
  TlvView tlv;
  size_t bytes = 0;
  while (reader.next(&tlv)) {
    bytes += 8 + (tlv.value.size() + 7) / 8 * 8;
    parse_tlv(tlv);
  }
  if (reader.status().ok() && bytes != body.size()) std::abort();
  RunsView runs;
  if (parse_chunk(body, header.payload_bytes, &runs).ok()) {
    touch(runs.runs);
    touch(runs.checks);
  }
}

void parse_frame(ConstBytes frame) {
  if (frame.size() < kHeaderBytes) return;
  Header header;
  if (!parse_header(frame.first(kHeaderBytes), &header).ok()) return;
  if (header.body_bytes > kBodyBytesMax || header.payload_bytes > kChunkBytesMax) std::abort();
  const ConstBytes rest = frame.subspan(kHeaderBytes);
  const ConstBytes body = rest.first(std::min<size_t>(rest.size(), header.body_bytes));
  if (check_body(header, body).ok()) walk(header, body);
}

}  // namespace
}  // namespace halfstep::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::wire;
  const ConstBytes given(reinterpret_cast<const std::byte*>(data), size);
  parse_frame(given);
  if (size < kHeaderBytes) return 0;

  auto header = load_le<Header>(given.data());
  header.magic = kMagic;
  const ConstBytes rest = given.subspan(kHeaderBytes);
  seal_header(header, rest.first(std::min<size_t>(rest.size(), header.body_bytes)));
  std::vector<std::byte> repaired(given.begin(), given.end());
  store_le(repaired.data(), header);
  parse_frame(repaired);
  return 0;
}
