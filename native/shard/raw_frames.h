// raw_frames.h — for tests: frames as bytes, as a client says them, and what is in those of a server.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/crc.h"
#include "base/prng.h"
#include "wire/coding_choices.h"
#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Opcode;
using wire::Reason;
using wire::Tlv;

inline constexpr AnswerReason kOk{Answer::Ok, Reason::None};

// What a block's bytes are in tests: they follow from its name.
inline std::vector<std::byte> block_bytes_of(const std::string& key, uint32_t component, uint32_t bytes) {
  std::vector<std::byte> out(bytes);
  Prng(xxh3_64(as_bytes(key), component)).fill(out);
  return out;
}

struct SectionSpec {
  uint16_t layout = 0;
  uint16_t flags = 0;
  uint32_t first_component = 0;
  uint16_t components = 1;
  std::vector<wire::PartRange> ranges;
  std::vector<std::string> keys;
  std::vector<wire::Offer> offers;
  std::vector<std::byte> choices;  // put: by item, and none where it is empty
  std::vector<std::byte> places;   // get, put: the value of a Places or a PlaceRows
  bool by_rows = false;
};

inline wire::Offer offer_of(uint32_t bytes) {
  wire::Offer offer;
  offer.block_bytes = offer.stored_bytes = bytes;
  return offer;
}

// Frames as bytes.
inline std::vector<std::byte> request_frame(Opcode opcode, uint64_t id, const wire::Batch& batch,
                                            const std::vector<SectionSpec>& sections, uint64_t owner = 0,
                                            const std::function<void(wire::FrameWriter&)>& more = {}) {
  std::vector<std::byte> out;
  wire::FrameWriter frame(out);
  frame.begin(opcode, id);
  frame.tlv(Tlv::Batch, batch);
  if (owner != 0) frame.tlv(Tlv::Owner, wire::OwnerRecord{.owner = owner});
  if (more) more(frame);
  for (size_t s = 0; s < sections.size(); ++s) {
    const SectionSpec& spec = sections[s];
    uint32_t keys_bytes = 0;
    for (const std::string& key : spec.keys) keys_bytes += 1 + static_cast<uint32_t>(key.size());
    frame.open_tlv(Tlv::Section);
    frame.value().put(wire::SectionHead{.layout = spec.layout,
                                        .flags = spec.flags,
                                        .first_component = spec.first_component,
                                        .component_count = spec.components,
                                        .range_count = static_cast<uint16_t>(spec.ranges.size()),
                                        .key_count = static_cast<uint32_t>(spec.keys.size()),
                                        .keys_bytes = keys_bytes});
    for (const wire::PartRange& range : spec.ranges) frame.value().put(range);
    for (const std::string& key : spec.keys) {
      frame.value().put(static_cast<uint8_t>(key.size()));
      frame.value().put_bytes(as_bytes(key));
    }
    frame.close_tlv();
    if (!spec.places.empty()) frame.tlv_bytes(spec.by_rows ? Tlv::PlaceRows : Tlv::Places, spec.places);
    if (opcode != Opcode::Put) continue;
    frame.open_tlv(Tlv::Offers);
    frame.value().put(static_cast<uint16_t>(s));
    frame.value().put(uint16_t{0});
    frame.value().put(static_cast<uint32_t>(spec.offers.size()));
    for (const wire::Offer& offer : spec.offers) frame.value().put(offer);
    frame.close_tlv();
    if (spec.choices.empty()) continue;
    frame.open_tlv(Tlv::CodingChoices);
    frame.value().put(static_cast<uint16_t>(s));
    frame.value().put(uint16_t{0});
    frame.value().put(static_cast<uint32_t>(spec.choices.size()));
    frame.value().put(wire::CodingKnown{.encode_bytes_per_s = 5000, .link_bytes_per_s = 200, .ratio_milli = 1480});
    frame.value().put_bytes(spec.choices);
    frame.close_tlv();
  }
  frame.finish();
  return out;
}

struct RunSpec {
  wire::Run run;
  std::vector<uint32_t> checks;
  std::vector<std::byte> bytes;
};

// Placed: of a put, whose bytes stay where they are.
inline std::vector<std::byte> chunk_frame(uint64_t id, const std::vector<RunSpec>& runs, Opcode opcode = Opcode::Chunk) {
  std::vector<std::byte> out;
  wire::FrameWriter frame(out);
  frame.begin(opcode, id);
  frame.open_tlv(Tlv::Runs);
  uint32_t checks = 0;
  uint32_t payload = 0;
  for (const RunSpec& spec : runs) checks += static_cast<uint32_t>(spec.checks.size());
  frame.value().put(static_cast<uint32_t>(runs.size()));
  frame.value().put(checks);
  for (const RunSpec& spec : runs) {
    wire::Run run = spec.run;
    run.bytes = static_cast<uint32_t>(spec.bytes.size());
    run.check_count = static_cast<uint32_t>(spec.checks.size());
    payload += run.bytes;
    frame.value().put(run);
  }
  for (const RunSpec& spec : runs) {
    for (const uint32_t check : spec.checks) frame.value().put(check);
  }
  frame.close_tlv();
  if (opcode == Opcode::Placed) payload = 0;
  frame.finish(payload);
  if (payload == 0) return out;
  for (const RunSpec& spec : runs) out.insert(out.end(), spec.bytes.begin(), spec.bytes.end());
  return out;
}

struct Frame {
  wire::Header header;
  std::vector<std::byte> body;
  std::vector<std::byte> payload;
  Opcode opcode() const { return static_cast<Opcode>(header.opcode); }
};

// A frame's body, taken apart.
struct Said {
  std::map<std::pair<uint16_t, uint32_t>, AnswerReason> statuses;  // by section and number
  std::optional<AnswerReason> whole;
  std::string reason;
  std::map<uint16_t, std::vector<bool>> matched;
  std::map<uint16_t, std::vector<uint32_t>> lengths;
  std::vector<wire::ItemRange> grants;
  uint64_t credit_bytes = 0;
  std::optional<wire::HelloServer> hello;
  std::vector<uint16_t> ports;  // of the shard map
  std::optional<uint64_t> map_epoch;
  std::optional<wire::AuthenticationHead> authentication;
  std::vector<std::byte> canonical;
  std::optional<wire::LayoutHandleRecord> handle;
  std::optional<wire::LoadRecord> load;
  std::optional<wire::CodingRecord> coding;
  std::optional<wire::RdmaAnswerView> rdma;
  wire::RdmaReadsRecord rdma_reads;  // 0: there was none
  std::optional<wire::CursorRecord> cursor;
  std::vector<std::string> listed;
  std::map<std::string, uint64_t> counters;
  bool malformed = false;

  AnswerReason at(uint16_t section, uint32_t number) const {
    const auto found = statuses.find({section, number});
    return found != statuses.end() ? found->second : whole.value_or(AnswerReason());
  }
};

inline void take_apart(ConstBytes body, Said* said) {
  wire::TlvReader reader(body);
  wire::TlvView tlv;
  const auto keep = [said](Status status) { said->malformed |= !status.ok(); };
  while (reader.next(&tlv)) {
    switch (static_cast<Tlv>(tlv.kind)) {
      case Tlv::Statuses:
        keep(wire::for_status_runs(tlv.value, [said](uint16_t section, uint16_t, const wire::StatusRun& run) {
          for (uint32_t i = 0; i < run.count; ++i) {
            if (section == wire::kWholeRequest) {
              said->whole = {run.answer, run.reason};
            } else {
              said->statuses[{section, run.first + i}] = {run.answer, run.reason};
            }
          }
        }));
        break;
      case Tlv::MatchBits: {
        wire::MatchBitsView view;
        keep(wire::parse_match_bits(tlv.value, &view));
        for (uint32_t k = 0; k < view.key_count; ++k) said->matched[view.section].push_back(view[k]);
        break;
      }
      case Tlv::Lengths: {
        wire::LengthsView view;
        keep(wire::parse_lengths(tlv.value, &view));
        for (uint32_t i = 0; i < view.block_bytes.size(); ++i) said->lengths[view.section].push_back(view.block_bytes[i]);
        break;
      }
      case Tlv::Grant: {
        wire::GrantView view;
        keep(wire::parse_grant(tlv.value, &view));
        said->credit_bytes += view.head.credit_bytes;
        for (uint32_t i = 0; i < view.ranges.size(); ++i) said->grants.push_back(view.ranges[i]);
        break;
      }
      case Tlv::HelloServer: keep(wire::parse_hello_server(tlv.value, &said->hello.emplace())); break;
      case Tlv::ShardMap: {
        wire::PackedArray<wire::ShardAddress> map;
        keep(wire::parse_shard_map(tlv.value, &map));
        for (uint32_t s = 0; s < map.size(); ++s) said->ports.push_back(map[s].port);
        break;
      }
      case Tlv::ShardHosts: {
        wire::ShardHostsView hosts;
        keep(wire::parse_shard_hosts(tlv.value, &hosts));
        said->map_epoch = hosts.epoch;
        break;
      }
      case Tlv::Authentication:
        said->malformed |= tlv.value.size() != sizeof(wire::AuthenticationHead);
        if (!said->malformed) said->authentication = load_le<wire::AuthenticationHead>(tlv.value.data());
        break;
      case Tlv::LayoutCanonical: said->canonical.assign(tlv.value.begin(), tlv.value.end()); break;
      case Tlv::LayoutHandle: keep(wire::parse_layout_handle(tlv.value, &said->handle.emplace())); break;
      case Tlv::Load: keep(wire::parse_load(tlv.value, &said->load.emplace())); break;
      case Tlv::Cursor: keep(wire::parse_cursor(tlv.value, &said->cursor.emplace())); break;
      case Tlv::Reason: said->reason = std::string(as_text(tlv.value)); break;
      case Tlv::NamespaceCoding: keep(wire::parse_coding(tlv.value, &said->coding.emplace())); break;
      case Tlv::RdmaAnswer: keep(wire::parse_rdma_answer(tlv.value, &said->rdma.emplace())); break;
      case Tlv::RdmaReads: keep(wire::parse_rdma_reads(tlv.value, &said->rdma_reads)); break;
      case Tlv::Entries:
        keep(wire::for_entries(tlv.value,
                               [said](const wire::EntryRecord&, ConstBytes key) { said->listed.emplace_back(as_text(key)); }));
        break;
      case Tlv::Counters:
        keep(wire::for_counters(tlv.value,
                                [said](std::string_view name, uint64_t value) { said->counters[std::string(name)] = value; }));
        break;
      default: break;
    }
  }
  said->malformed |= !reader.status().ok();
}

}  // namespace halfstep::shard
