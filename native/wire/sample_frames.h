// sample_frames.h — one small frame of every kind that matters, for tests and as the fuzzers' seeds. Not part of the library.
// Their bytes are published in tests/unit/vectors/wire.txt: change one only together with the protocol's version.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/crc.h"
#include "wire/coding_choices.h"
#include "wire/records.h"

namespace halfstep::wire::samples {

using Frame = std::vector<std::byte>;

inline std::string hex(ConstBytes bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const std::byte b : bytes) {
    out += kDigits[std::to_integer<unsigned>(b) >> 4];
    out += kDigits[std::to_integer<unsigned>(b) & 15U];
  }
  return out;
}

inline Layout layout() {
  Layout out;
  const GroupShape opaque{.part_count = 0, .size_count = 1, .part_bytes = {kOpaquePartBytes}};
  const GroupShape attention{.part_count = 4, .size_count = 2, .part_bytes = {4096, 2048}};
  const Status made =
      Layout::make({{"model", "tiny"}, {"dtype", "bf16"}, {"engine", "example 1.0"}}, {opaque, attention}, &out);
  return made.ok() ? out : Layout();
}

// Two keys of the opaque group, blocks of 16 and 24 bytes: one part each.
inline const std::string kKeys[] = {"key-0", "key-1"};
inline constexpr uint32_t kBlockBytes[] = {16, 24};

inline std::vector<std::byte> payload() {
  std::vector<std::byte> out(kBlockBytes[0] + kBlockBytes[1]);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i);
  return out;
}

inline void put_section(FrameWriter& frame, SectionHead head, const std::vector<PartRange>& ranges,
                        const std::vector<std::string>& keys) {
  head.range_count = static_cast<uint16_t>(ranges.size());
  head.key_count = static_cast<uint32_t>(keys.size());
  for (const std::string& key : keys) head.keys_bytes += static_cast<uint32_t>(1 + key.size());
  frame.open_tlv(Tlv::Section);
  frame.value().put(head);
  for (const PartRange& range : ranges) frame.value().put(range);
  for (const std::string& key : keys) {
    frame.value().put(static_cast<uint8_t>(key.size()));
    frame.value().put_bytes(as_bytes(key));
  }
  frame.close_tlv();
}

inline void put_offers(FrameWriter& frame, uint16_t section, const std::vector<Offer>& offers) {
  frame.open_tlv(Tlv::Offers);
  frame.value().put(section);
  frame.value().put(uint16_t{0});
  frame.value().put(static_cast<uint32_t>(offers.size()));
  for (const Offer& offer : offers) frame.value().put(offer);
  frame.close_tlv();
}

inline void put_part_table(FrameWriter& frame, uint16_t section, uint32_t item, const std::vector<PartRecord>& parts) {
  frame.open_tlv(Tlv::PartTable);
  frame.value().put(section);
  frame.value().put(uint16_t{0});
  frame.value().put(item);
  frame.value().put(static_cast<uint32_t>(parts.size()));
  frame.value().put(uint32_t{0});
  for (const PartRecord& part : parts) frame.value().put(part);
  frame.close_tlv();
}

inline void put_runs(FrameWriter& frame, const std::vector<Run>& runs, const std::vector<uint32_t>& checks) {
  frame.open_tlv(Tlv::Runs);
  frame.value().put(static_cast<uint32_t>(runs.size()));
  frame.value().put(static_cast<uint32_t>(checks.size()));
  for (const Run& run : runs) frame.value().put(run);
  for (const uint32_t check : checks) frame.value().put(check);
  frame.close_tlv();
}

inline Frame hello() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Hello, 1);
  frame.tlv(Tlv::HelloClient, HelloClient{.client_id = 0x0123456789ABCDEF});
  frame.tlv_bytes(Tlv::NamespaceName, as_bytes("default"));
  frame.finish();
  return out;
}

inline Frame hello_authenticated() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Hello, 1);
  frame.tlv(Tlv::HelloClient, HelloClient{.codecs = 0b1001, .client_id = 0x0123456789ABCDEF});
  frame.open_tlv(Tlv::Authentication);
  frame.value().put(AuthenticationHead{.method = 1});
  frame.value().put_bytes(as_bytes("token"));
  frame.close_tlv();
  frame.finish();
  return out;
}

// Two shards on two hosts: the second one is the host named.
inline Frame wrong_shard_final() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Final, 7);
  StatusWriter status(frame, kWholeRequest, 0);
  status.add(0, {Answer::Rejected, Reason::WrongShard});
  status.close();
  frame.open_tlv(Tlv::ShardMap);
  frame.value().put(ShardAddress{.port = 7350});
  frame.value().put(ShardAddress{.port = 7351, .host = 1});
  frame.close_tlv();
  frame.open_tlv(Tlv::ShardHosts);
  frame.value().put(ShardHostsHead{.epoch = 4, .host_count = 1});
  frame.value().put(uint8_t{6});
  frame.value().put_bytes(as_bytes("flash3"));
  frame.value().put(uint8_t{0});
  frame.close_tlv();
  frame.tlv(Tlv::Load, LoadRecord{});
  frame.finish();
  return out;
}

inline Frame hello_final() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Final, 1);
  HelloServer hello;
  hello.store_uuid.fill(std::byte{0xA1});
  hello.boot_id.fill(std::byte{0xB2});
  hello.block_bytes_max = 64 * MiB;
  hello.lease_ms_max = 60'000;
  StatusWriter status(frame, kWholeRequest, 0);
  status.add(0, {Answer::Ok, Reason::None});
  status.close();
  frame.tlv(Tlv::HelloServer, hello);
  frame.tlv(Tlv::ShardMap, ShardAddress{});
  frame.tlv(Tlv::ShardHosts, ShardHostsHead{.epoch = 3});
  frame.tlv(Tlv::Authentication, AuthenticationHead{});
  frame.tlv(Tlv::Load, LoadRecord{});
  frame.finish();
  return out;
}

inline Frame get() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Get, 2);
  frame.tlv(Tlv::Batch, Batch{.deadline_us = 2'000'000, .order = Order::LayerMajor});
  put_section(frame, {.flags = kSectionStopAtMiss, .first_component = Component::of(1, 0, 0).value, .component_count = 2},
              {{.start = 0, .count = 2, .stride = 2}}, {kKeys[0], kKeys[1]});
  frame.finish();
  return out;
}

inline Frame put() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Put, 3);
  frame.tlv(Tlv::Batch, Batch{.deadline_us = 5'000'000, .durability = Durability::Persist});
  put_section(frame, {}, {}, {kKeys[0], kKeys[1]});
  put_offers(frame, 0,
             {{.block_bytes = kBlockBytes[0], .stored_bytes = kBlockBytes[0], .parent_kind = kParentRoot},
              {.block_bytes = kBlockBytes[1],
               .stored_bytes = kBlockBytes[1],
               .parent = 0,
               .parent_kind = kParentInBatch,
               .depth = 1,
               .ttl_s = 3600}});
  frame.finish();
  return out;
}

// A coded block of the attention group: its part table follows the offer.
inline Frame put_coded() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Put, 4);
  frame.tlv(Tlv::Batch, Batch{});
  put_section(frame, {.first_component = Component::of(1, 0, 7).value}, {}, {"coded"});
  put_offers(frame, 0, {{.block_bytes = 12288, .stored_bytes = 10240, .flags = kOfferCoded}});
  put_part_table(frame, 0, 0,
                 {{.codec = 3, .stored_bytes = 3072, .raw_bytes = 4096, .raw_crc = 1},
                  {.codec = 0, .stored_bytes = 2048, .raw_bytes = 2048, .raw_crc = 2},
                  {.codec = 3, .stored_bytes = 3072, .raw_bytes = 4096, .raw_crc = 3},
                  {.codec = 0, .stored_bytes = 2048, .raw_bytes = 2048, .raw_crc = 4}});
  frame.finish();
  return out;
}

// Two blocks of which one was left as it is, and what their client knew of the speeds.
inline Frame put_choices() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Put, 16);
  frame.tlv(Tlv::Batch, Batch{});
  put_section(frame, {}, {}, {kKeys[0], kKeys[1]});
  put_offers(frame, 0,
             {{.block_bytes = kBlockBytes[0], .stored_bytes = kBlockBytes[0]},
              {.block_bytes = kBlockBytes[1], .stored_bytes = kBlockBytes[1]}});
  frame.open_tlv(Tlv::CodingChoices);
  frame.value().put(uint16_t{0});
  frame.value().put(uint16_t{0});
  frame.value().put(uint32_t{2});
  frame.value().put(CodingKnown{.encode_bytes_per_s = 5'000'000'000,
                                .decode_bytes_per_s = 9'000'000'000,
                                .link_bytes_per_s = 200'000'000,
                                .service_bytes_per_s = 6'000'000'000,
                                .ratio_milli = 1480});
  frame.value().put(CodingReason::NoGain);
  frame.value().put(CodingReason::SlowDecode);
  frame.close_tlv();
  frame.finish();
  return out;
}

inline Frame chunk() {
  const std::vector<std::byte> bytes = payload();
  const LayoutId id = layout().id();
  std::vector<Run> runs;
  std::vector<uint32_t> checks;
  size_t at = 0;
  for (uint32_t item = 0; item < 2; ++item) {
    const uint32_t crc = crc32c(ConstBytes(bytes).subspan(at, kBlockBytes[item]));
    checks.push_back(wire_check(crc, name_number(id, Component{0}, as_bytes(kKeys[item])), 0));
    runs.push_back({.item = item, .bytes = kBlockBytes[item], .block_bytes = kBlockBytes[item], .check_count = 1});
    at += kBlockBytes[item];
  }
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Chunk, 3);
  put_runs(frame, runs, checks);
  frame.finish(static_cast<uint32_t>(bytes.size()));
  out.insert(out.end(), bytes.begin(), bytes.end());
  return out;
}

inline Frame want() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Want, 3);
  frame.open_tlv(Tlv::Grant);
  frame.value().put(GrantHead{.credit_bytes = kBlockBytes[0] + kBlockBytes[1], .range_count = 1});
  frame.value().put(ItemRange{.section = 0, .first = 0, .count = 2});
  frame.close_tlv();
  frame.finish();
  return out;
}

inline Frame final() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Final, 3);
  StatusWriter status(frame, 0, 0);
  status.add(0, {Answer::Ok, Reason::Stored});
  status.add(1, {Answer::Ok, Reason::Stored});
  status.close();
  frame.tlv(Tlv::Load, LoadRecord{.queue_depth = 1, .queue_us = 250, .bytes_per_s = 3'000'000'000});
  frame.finish();
  return out;
}

inline void put_ok(FrameWriter& frame) {
  StatusWriter status(frame, kWholeRequest, 0);
  status.add(0, {Answer::Ok, Reason::None});
  status.close();
}

inline Frame match_final() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Final, 5);
  frame.open_tlv(Tlv::MatchBits);
  frame.value().put(uint16_t{0});
  frame.value().put(uint16_t{0});
  frame.value().put(uint32_t{10});
  frame.value().put(std::array<uint8_t, 2>{0xFF, 0x01});
  frame.close_tlv();
  frame.open_tlv(Tlv::Lengths);
  frame.value().put(uint16_t{0});
  frame.value().put(uint16_t{0});
  frame.value().put(std::array<uint32_t, 5>{0, 2, 0, 4096, 0});
  frame.close_tlv();
  frame.tlv(Tlv::Load, LoadRecord{});
  frame.finish();
  return out;
}

inline Frame list_final() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Final, 6);
  put_ok(frame);
  frame.open_tlv(Tlv::Entries);
  frame.value().put(std::array<uint32_t, 2>{1, 0});
  frame.value().put(EntryRecord{.block_bytes = 16, .parts = 1, .created_s = 1'700'000'000, .key_bytes = 5});
  frame.value().put_bytes(as_bytes(kKeys[0]));
  frame.value().put(std::array<uint8_t, 3>{});
  frame.close_tlv();
  frame.tlv(Tlv::Cursor, CursorRecord{.position = 9, .limit = 1});
  frame.tlv(Tlv::Load, LoadRecord{});
  frame.finish();
  return out;
}

inline Frame stat_final() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Final, 14);
  put_ok(frame);
  frame.open_tlv(Tlv::Counters);
  frame.value().put(std::array<uint16_t, 4>{4, 0, 0, 0});
  frame.value().put(uint64_t{12});
  frame.value().put_bytes(as_bytes("hits"));
  frame.value().put(uint32_t{0});
  frame.close_tlv();
  frame.tlv(Tlv::Cursor, CursorRecord{});
  frame.tlv(Tlv::Load, LoadRecord{});
  frame.finish();
  return out;
}

inline Frame register_layout() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::RegisterLayout, 8);
  frame.tlv_bytes(Tlv::LayoutCanonical, layout().canonical());
  frame.finish();
  return out;
}

inline Frame register_layout_final() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Final, 8);
  StatusWriter status(frame, kWholeRequest, 0);
  status.add(0, {Answer::Ok, Reason::None});
  status.close();
  frame.tlv(Tlv::LayoutHandle, LayoutHandleRecord{.handle = 0, .id = layout().id()});
  frame.tlv(Tlv::Load, LoadRecord{});
  frame.finish();
  return out;
}

inline Frame layout_of() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::LayoutOf, 9);
  frame.tlv(Tlv::NamedLayout, layout().id());
  frame.finish();
  return out;
}

// The first item of three is there already, the third is another writer's; the second comes with the Final.
inline Frame answers() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Answers, 3);
  StatusWriter status(frame, 0, 0);
  status.add(0, {Answer::Ok, Reason::Present});
  status.add(2, {Answer::Throttled, Reason::Pending});
  status.close();
  frame.finish();
  return out;
}

inline Frame cancel() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Cancel, 10);
  frame.tlv(Tlv::CancelTarget, CancelRecord{.request_id = 3});
  frame.finish();
  return out;
}

inline Frame hold() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Hold, 11);
  frame.tlv(Tlv::Batch, Batch{});
  frame.tlv(Tlv::Owner, OwnerRecord{.owner = 0x1122334455667788});
  frame.tlv(Tlv::Until, UntilRecord{.hold_ms = 0, .flags = kHoldPersistent});
  put_section(frame, {}, {}, {kKeys[0], kKeys[1]});
  frame.finish();
  return out;
}

inline Frame create_namespace() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Namespace, 12);
  frame.tlv_bytes(Tlv::NamespaceName, as_bytes("tenant-a"));
  frame.tlv(Tlv::NamespaceAction, NamespaceRecord{.verb = NamespaceVerb::Create,
                                                  .flags = kNamespaceSlidingTtl,
                                                  .default_ttl_s = 86'400,
                                                  .quota_bytes = uint64_t{1} << 40});
  frame.tlv(Tlv::PinBudget, PinBudgetRecord{.bytes = uint64_t{1} << 30});
  frame.finish();
  return out;
}

// Of key-0 in cells 0 to 3 of every group.
inline Frame explain() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Stat, 13);
  frame.open_tlv(Tlv::KeyQuestion);
  frame.value().put(KeyQuestionHead{.flags = kQuestionEveryGroup, .range_count = 1, .key_bytes = 5});
  frame.value().put(ComponentRange{.first = 0, .count = 4});
  frame.value().put_bytes(as_bytes(kKeys[0]));
  frame.close_tlv();
  frame.finish();
  return out;
}

inline Frame explain_final() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Final, 13);
  StatusWriter status(frame, kWholeRequest, 0);
  status.add(0, {Answer::Ok, Reason::None});
  status.close();
  frame.tlv_bytes(Tlv::Explanation, as_bytes("{\"now_s\":1800000000,\"blocks\":[]}"));
  frame.tlv(Tlv::Load, LoadRecord{});
  frame.finish();
  return out;
}

inline Frame stat_page() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Stat, 14);
  frame.tlv(Tlv::Cursor, CursorRecord{.position = 5});
  frame.finish();
  return out;
}

inline Frame get_decodable() {
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Get, 15);
  frame.tlv(Tlv::Batch, Batch{.flags = kBatchDecodable});
  put_section(frame, {.first_component = Component::of(1, 0, 7).value}, {}, {"coded"});
  frame.finish();
  return out;
}

// What that get brings: one run of all four parts, with the table that the put of the same block had, but for the raw parts'
// checksums, which are those of their bytes.
inline Frame chunk_coded() {
  constexpr uint32_t kStored[] = {3072, 2048, 3072, 2048};
  std::vector<std::byte> bytes(10240);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  const uint32_t number = name_number(layout().id(), Component::of(1, 0, 7), as_bytes("coded"));
  std::vector<uint32_t> sums;
  std::vector<uint32_t> checks;
  size_t at = 0;
  for (uint32_t part = 0; part < 4; ++part) {
    sums.push_back(crc32c(ConstBytes(bytes).subspan(at, kStored[part])));
    checks.push_back(wire_check(sums.back(), number, part));
    at += kStored[part];
  }
  Frame out;
  FrameWriter frame(out);
  frame.begin(Opcode::Chunk, 15);
  put_part_table(frame, 0, 0,
                 {{.codec = 3, .stored_bytes = 3072, .raw_bytes = 4096, .raw_crc = 1},
                  {.codec = 0, .stored_bytes = 2048, .raw_bytes = 2048, .raw_crc = sums[1]},
                  {.codec = 3, .stored_bytes = 3072, .raw_bytes = 4096, .raw_crc = 3},
                  {.codec = 0, .stored_bytes = 2048, .raw_bytes = 2048, .raw_crc = sums[3]}});
  put_runs(frame, {{.flags = kRunCoded, .part_count = 4, .bytes = 10240, .block_bytes = 12288, .check_count = 4}}, checks);
  frame.finish(static_cast<uint32_t>(bytes.size()));
  out.insert(out.end(), bytes.begin(), bytes.end());
  return out;
}

inline std::vector<std::pair<std::string, Frame>> all() {
  return {{"hello", hello()},
          {"hello_final", hello_final()},
          {"get", get()},
          {"put", put()},
          {"put_coded", put_coded()},
          {"put_choices", put_choices()},
          {"want", want()},
          {"chunk", chunk()},
          {"final", final()},
          {"match_final", match_final()},
          {"list_final", list_final()},
          {"hello_authenticated", hello_authenticated()},
          {"wrong_shard_final", wrong_shard_final()},
          {"register_layout", register_layout()},
          {"register_layout_final", register_layout_final()},
          {"layout_of", layout_of()},
          {"answers", answers()},
          {"cancel", cancel()},
          {"hold", hold()},
          {"create_namespace", create_namespace()},
          {"explain", explain()},
          {"explain_final", explain_final()},
          {"stat_page", stat_page()},
          {"stat_final", stat_final()},
          {"get_decodable", get_decodable()},
          {"chunk_coded", chunk_coded()}};
}

// What follows a frame's header, without its payload.
inline ConstBytes body_of(ConstBytes frame) { return frame.subspan(kHeaderBytes, load_le<Header>(frame.data()).body_bytes); }

}  // namespace halfstep::wire::samples
