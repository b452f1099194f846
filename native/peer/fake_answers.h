// fake_answers.h — for tests: the proper answers of a daemon that keeps its blocks in memory (fake_daemon.h serves them).
// Thread: any; each connection is one thread's.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/crc.h"
#include "base/prng.h"
#include "wire/records.h"

namespace halfstep::peer {

using Octets = std::vector<std::byte>;

class FakeAnswers {
 public:
  struct Put {
    Octets body;  // what `view` looks into
    wire::RequestView view;
    std::map<std::pair<uint32_t, uint32_t>, Octets> bytes;  // by section and item
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> arrived;
    std::set<std::pair<uint32_t, uint32_t>> present;
    bool corrupt = false;
  };
  struct Connection {
    Connection(FakeAnswers& of, int socket, uint32_t nth) : answers(of), descriptor(socket), number(nth) {}
    FakeAnswers& answers;
    int descriptor;
    uint32_t number;
    uint32_t shard = 0;
    Prng prng{1};
    std::vector<wire::Layout> layouts;
    std::map<uint64_t, Put> puts;
    std::vector<uint64_t> cancelled;
    uint64_t chunks_received = 0;
    uint64_t payload_received = 0;

    // Whole, in random fragments where the daemon was told so. False: the client is gone.
    bool send(ConstBytes bytes) {
      while (!bytes.empty()) {
        size_t step = bytes.size();
        if (answers.fragment_bytes_max > 0) step = std::min<size_t>(step, 1 + prng.below(answers.fragment_bytes_max));
        const ssize_t sent = ::send(descriptor, bytes.data(), step, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes = bytes.subspan(static_cast<size_t>(sent));
      }
      return true;
    }
    bool receive(Bytes bytes) {
      while (!bytes.empty()) {
        const ssize_t got = ::recv(descriptor, bytes.data(), bytes.size(), 0);
        if (got <= 0) return false;
        bytes = bytes.subspan(static_cast<size_t>(got));
      }
      return true;
    }
    void end() { ::shutdown(descriptor, SHUT_RDWR); }
  };
  struct Frame {
    wire::Header header;
    Octets body;
    Octets payload;
    wire::Opcode opcode() const { return static_cast<wire::Opcode>(header.opcode); }
  };

  // What a test may look at, or set before address() is asked for.
  uint32_t fragment_bytes_max = 0;
  uint32_t chunk_bytes = wire::kChunkBytesMax;
  wire::HelloServer hello{.block_bytes_max = 64U << 20};
  std::function<void(const Connection&, wire::HelloServer&)> greets;  // may change what this connection hears
  std::map<uint32_t, uint16_t> told_ports;                            // by shard, where the map shall not tell the truth
  std::array<uint8_t, 16> boot_id{};

  struct Name {
    wire::LayoutId layout;
    uint32_t component;
    std::string key;
    auto operator<=>(const Name&) const = default;
  };
  std::mutex store_mutex;
  std::map<Name, Octets> store;

  // ---- Pieces of answers, for hooks
  static Octets final(uint64_t id, wire::AnswerReason whole) {
    Octets out;
    wire::FrameWriter frame(out);
    frame.begin(wire::Opcode::Final, id);
    add_status(frame, wire::kWholeRequest, 0, 1, whole);
    frame.tlv(wire::Tlv::Load, wire::LoadRecord{.queue_depth = 3, .queue_us = 5, .bytes_per_s = 7});
    frame.finish();
    return out;
  }
  static void add_status(wire::FrameWriter& frame, uint16_t section, uint32_t first, uint32_t count, wire::AnswerReason answer,
                         uint16_t flags = 0) {
    wire::StatusWriter status(frame, section, flags);
    for (uint32_t i = first; i < first + count; ++i) status.add(i, answer);
    status.close();
  }
  static Octets chunk(uint64_t id, const std::vector<wire::Run>& runs, const std::vector<uint32_t>& checks,
                      ConstBytes payload) {
    Octets out;
    wire::FrameWriter frame(out);
    frame.begin(wire::Opcode::Chunk, id);
    frame.open_tlv(wire::Tlv::Runs);
    frame.value().put(static_cast<uint32_t>(runs.size()));
    frame.value().put(static_cast<uint32_t>(checks.size()));
    for (const wire::Run& run : runs) frame.value().put(run);
    for (const uint32_t check : checks) frame.value().put(check);
    frame.close_tlv();
    frame.finish(static_cast<uint32_t>(payload.size()));
    out.insert(out.end(), payload.begin(), payload.end());
    return out;
  }
  static Name name_of(const Connection& connection, const wire::SectionView& section, uint32_t item) {
    return {connection.layouts.at(section.head.layout).id(), section.head.first_component + item % section.head.component_count,
            std::string(as_text(key_of(section, item / section.head.component_count)))};
  }
  static ConstBytes key_of(const wire::SectionView& section, uint32_t number) {
    wire::KeyCursor cursor(section.keys);
    ConstBytes key;
    for (uint32_t k = 0; k <= number; ++k) (void)cursor.next(&key);
    return key;
  }
  static const wire::GroupShape& shape_of(const Connection& connection, const wire::SectionView& section) {
    return connection.layouts.at(section.head.layout).groups().at(wire::Component{section.head.first_component}.group());
  }
  static uint32_t name_number_of(const Name& name) {
    return wire::name_number(name.layout, wire::Component{name.component}, as_bytes(name.key));
  }

  // The proper answer to a frame.
  void answer(Connection& connection, const Frame& frame) {
    const uint64_t id = frame.header.request_id;
    switch (frame.opcode()) {
      case wire::Opcode::Hello: return on_hello(connection, id);
      case wire::Opcode::RegisterLayout: return on_layout(connection, id, frame.body);
      case wire::Opcode::Put: return on_put(connection, id, frame.body);
      case wire::Opcode::Chunk: return on_chunk(connection, id, frame);
      case wire::Opcode::Get: return on_get(connection, id, frame.body);
      case wire::Opcode::Match: return on_match(connection, id, frame.body);
      case wire::Opcode::Delete: return on_delete(connection, id, frame.body);
      case wire::Opcode::Cancel: return on_cancel(connection, id, frame.body);
      case wire::Opcode::List: return on_list(connection, id, frame.body);
      case wire::Opcode::Stat: return on_stat(connection, id);
      case wire::Opcode::Release:
      case wire::Opcode::Namespace: connection.send(final(id, {wire::Answer::Ok})); return;
      default: connection.send(final(id, {wire::Answer::Rejected, wire::Reason::Unsupported}));
    }
  }

  // All selected parts of all items that are there, as Chunks, then a Final. `spoil` may change a chunk before it goes.
  void on_get(Connection& connection, uint64_t id, ConstBytes body,
              const std::function<void(std::vector<wire::Run>&, std::vector<uint32_t>&, Octets&)>& spoil = {}) {
    wire::RequestView view;
    if (!wire::parse_request(wire::Opcode::Get, body, &view).ok()) {
      connection.send(final(id, {wire::Answer::Rejected, wire::Reason::Malformed}));
      return;
    }
    struct Found {
      uint16_t section;
      uint32_t item;
      Octets bytes;
      std::vector<uint32_t> parts;
      uint32_t name;
    };
    std::vector<Found> found;
    Octets last;
    wire::FrameWriter frame(last);
    frame.begin(wire::Opcode::Final, id);
    for (uint16_t s = 0; s < view.section_count; ++s) {
      const wire::SectionView& section = view.sections[s];
      const wire::GroupShape& shape = shape_of(connection, section);
      uint32_t selected = 0;
      for (uint32_t r = 0; r < section.head.range_count; ++r) selected += section.range(r).count;
      const bool per_part = selected > 0;
      const uint32_t per_item = per_part ? selected : 1;
      wire::StatusWriter status(frame, s, per_part ? wire::kStatusPerPart : 0);
      for (uint32_t i = 0; i < section.item_count(); ++i) {
        const Name name = name_of(connection, section, i);
        Found one{s, i, {}, {}, name_number_of(name)};
        wire::AnswerReason answer{wire::Answer::Miss, wire::Reason::Absent};
        {
          const std::lock_guard lock(store_mutex);
          if (const auto at = store.find(name); at != store.end()) one.bytes = at->second;
        }
        if (!one.bytes.empty()) {
          const uint32_t parts = shape.parts_of(one.bytes.size());
          const Status fits = wire::for_selected_parts(section, parts, [&](uint32_t p) { one.parts.push_back(p); });
          answer =
              fits.ok() ? wire::AnswerReason{wire::Answer::Ok} : wire::AnswerReason{wire::Answer::Miss, wire::Reason::Length};
          if (fits.ok()) found.push_back(std::move(one));
        }
        for (uint32_t o = 0; o < per_item; ++o) status.add(i * per_item + o, answer);
      }
      status.close();
    }
    const uint32_t shard = connection.shard;
    frame.tlv(wire::Tlv::Load, wire::LoadRecord{.queue_depth = 1 + shard, .queue_us = 2 + shard, .bytes_per_s = 3 + shard});
    frame.finish();

    std::vector<wire::Run> runs;
    std::vector<uint32_t> checks;
    Octets payload;
    bool alive = true;
    const auto flush = [&] {
      if (runs.empty()) return;
      if (spoil) spoil(runs, checks, payload);
      alive = alive && connection.send(chunk(id, runs, checks, payload));
      runs.clear();
      checks.clear();
      payload.clear();
    };
    const auto add_part = [&](const Found& one, uint32_t part) {
      const wire::GroupShape& shape = shape_of(connection, view.sections[one.section]);
      const uint32_t bytes = shape.bytes_of(part, one.bytes.size());
      const ConstBytes from = ConstBytes(one.bytes).subspan(shape.offset_of(part), bytes);
      for (uint32_t offset = 0; offset < bytes && alive;) {
        if (payload.size() >= chunk_bytes || runs.size() == wire::kRunsPerChunkMax) flush();
        const auto step = std::min<uint32_t>(bytes - offset, chunk_bytes - static_cast<uint32_t>(payload.size()));
        wire::Run run;
        run.section = one.section;
        run.item = one.item;
        run.part = part;
        run.offset = offset;
        run.bytes = step;
        run.block_bytes = static_cast<uint32_t>(one.bytes.size());
        run.check_count = offset + step == bytes ? 1 : 0;
        if (run.check_count == 1) checks.push_back(wire::wire_check(crc32c(from), one.name, part));
        runs.push_back(run);
        payload.insert(payload.end(), from.begin() + offset, from.begin() + offset + step);
        offset += step;
      }
    };
    if (view.batch.order == wire::Order::KeyMajor) {
      for (const Found& one : found) {
        for (const uint32_t part : one.parts) add_part(one, part);
      }
    } else {
      for (size_t o = 0, some = 1; some != 0; ++o) {
        some = 0;
        for (const Found& one : found) {
          if (o >= one.parts.size()) continue;
          some = 1;
          add_part(one, one.parts[o]);
        }
      }
    }
    flush();
    if (alive) connection.send(last);
  }

 protected:
  std::vector<uint16_t> ports_;  // by shard

 private:
  void on_hello(Connection& connection, uint64_t id) {
    Octets out;
    wire::FrameWriter frame(out);
    frame.begin(wire::Opcode::Final, id);
    add_status(frame, wire::kWholeRequest, 0, 1, {wire::Answer::Ok});
    wire::HelloServer say = hello;
    say.shards = static_cast<uint16_t>(ports_.size());
    say.shard = connection.shard;
    std::memcpy(say.boot_id.data(), boot_id.data(), boot_id.size());
    if (greets) greets(connection, say);
    frame.tlv(wire::Tlv::HelloServer, say);
    frame.open_tlv(wire::Tlv::ShardMap);
    for (uint32_t s = 0; s < ports_.size(); ++s) {
      const auto told = told_ports.find(s);
      frame.value().put(wire::ShardAddress{.port = told == told_ports.end() ? ports_[s] : told->second});
    }
    frame.close_tlv();
    frame.tlv(wire::Tlv::ShardHosts, wire::ShardHostsHead{.epoch = 1});
    frame.tlv(wire::Tlv::Load, wire::LoadRecord{});
    frame.finish();
    connection.send(out);
  }

  void on_layout(Connection& connection, uint64_t id, ConstBytes body) {
    wire::TlvReader reader(body);
    wire::TlvView tlv;
    wire::Layout layout;
    if (!reader.next(&tlv) || !wire::Layout::parse(tlv.value, &layout).ok()) {
      connection.send(final(id, {wire::Answer::Rejected, wire::Reason::Malformed}));
      return;
    }
    connection.layouts.push_back(layout);
    Octets out;
    wire::FrameWriter frame(out);
    frame.begin(wire::Opcode::Final, id);
    add_status(frame, wire::kWholeRequest, 0, 1, {wire::Answer::Ok});
    frame.tlv(wire::Tlv::LayoutHandle,
              wire::LayoutHandleRecord{.handle = static_cast<uint16_t>(connection.layouts.size() - 1), .id = layout.id()});
    frame.finish();
    connection.send(out);
  }

  void on_put(Connection& connection, uint64_t id, const Octets& body) {
    Put& put = connection.puts[id];
    put.body = body;
    if (!wire::parse_request(wire::Opcode::Put, put.body, &put.view).ok()) {
      connection.puts.erase(id);
      connection.send(final(id, {wire::Answer::Rejected, wire::Reason::Malformed}));
      return;
    }
    Octets out;
    wire::FrameWriter frame(out);
    frame.begin(wire::Opcode::Want, id);
    wire::GrantHead grant;
    std::vector<wire::ItemRange> ranges;
    for (uint16_t s = 0; s < put.view.section_count; ++s) {
      const wire::SectionView& section = put.view.sections[s];
      for (uint32_t i = 0; i < section.item_count(); ++i) {
        {
          const std::lock_guard lock(store_mutex);
          if (store.contains(name_of(connection, section, i))) {
            put.present.insert({s, i});
            continue;
          }
        }
        grant.credit_bytes += section.offer(i).stored_bytes;
        ranges.push_back({s, 0, i, 1});
        put.bytes[{s, i}].resize(section.offer(i).block_bytes);
      }
    }
    grant.range_count = static_cast<uint32_t>(ranges.size());
    frame.open_tlv(wire::Tlv::Grant);
    frame.value().put(grant);
    for (const wire::ItemRange& range : ranges) frame.value().put(range);
    frame.close_tlv();
    frame.finish();
    if (!ranges.empty()) connection.send(out);
    finish_put(connection, id);
  }

  void on_chunk(Connection& connection, uint64_t id, const Frame& frame) {
    ++connection.chunks_received;
    connection.payload_received += frame.payload.size();
    const auto at = connection.puts.find(id);
    if (at == connection.puts.end()) return;
    Put& put = at->second;
    wire::RunsView runs;
    if (!wire::parse_chunk(frame.body, frame.header.payload_bytes, &runs).ok()) return connection.end();
    size_t from = 0;
    uint32_t check = 0;
    for (uint32_t r = 0; r < runs.run_count; ++r) {
      const wire::Run run = runs.run(r);
      const auto target = put.bytes.find({run.section, run.item});
      const wire::SectionView& section = put.view.sections[run.section];
      const wire::GroupShape& shape = shape_of(connection, section);
      if (target != put.bytes.end()) {
        Octets& bytes = target->second;
        const uint64_t start = shape.offset_of(run.part) + run.offset;
        std::copy_n(frame.payload.begin() + static_cast<ptrdiff_t>(from), run.bytes,
                    bytes.begin() + static_cast<ptrdiff_t>(start));
        put.arrived[{run.section, run.item}] += run.bytes;
        const uint32_t number = name_number_of(name_of(connection, section, run.item));
        for (uint32_t c = 0; c < run.check_count; ++c) {
          const uint32_t part = run.part + c;
          const ConstBytes whole = ConstBytes(bytes).subspan(shape.offset_of(part), shape.bytes_of(part, bytes.size()));
          put.corrupt = put.corrupt || wire::wire_check(crc32c(whole), number, part) != runs.check(check + c);
        }
      }
      check += run.check_count;
      from += run.bytes;
    }
    finish_put(connection, id);
  }

  void finish_put(Connection& connection, uint64_t id) {
    Put& put = connection.puts.at(id);
    for (const auto& [item, bytes] : put.bytes) {
      if (put.arrived[item] != bytes.size()) return;
    }
    Octets out;
    wire::FrameWriter frame(out);
    frame.begin(wire::Opcode::Final, id);
    for (uint16_t s = 0; s < put.view.section_count; ++s) {
      const wire::SectionView& section = put.view.sections[s];
      wire::StatusWriter status(frame, s, 0);
      for (uint32_t i = 0; i < section.item_count(); ++i) {
        wire::AnswerReason answer{wire::Answer::Ok, wire::Reason::Present};
        if (!put.present.contains({s, i})) {
          answer.reason = wire::Reason::Stored;
          if (put.corrupt) answer = {wire::Answer::Rejected, wire::Reason::Checksum};
          const std::lock_guard lock(store_mutex);
          if (!put.corrupt) store[name_of(connection, section, i)] = put.bytes[{s, i}];
        }
        status.add(i, answer);
      }
      status.close();
    }
    frame.finish();
    connection.puts.erase(id);
    connection.send(out);
  }

  void on_match(Connection& connection, uint64_t id, ConstBytes body) {
    wire::RequestView view;
    if (!wire::parse_request(wire::Opcode::Match, body, &view).ok()) {
      connection.send(final(id, {wire::Answer::Rejected, wire::Reason::Malformed}));
      return;
    }
    Octets out;
    wire::FrameWriter frame(out);
    frame.begin(wire::Opcode::Final, id);
    const std::lock_guard lock(store_mutex);
    for (uint16_t s = 0; s < view.section_count; ++s) {
      const wire::SectionView& section = view.sections[s];
      std::vector<uint32_t> lengths(section.item_count());
      std::vector<uint8_t> bits((section.head.key_count + 7) / 8);
      for (uint32_t k = 0; k < section.head.key_count; ++k) {
        bool all = true;
        for (uint32_t c = 0; c < section.head.component_count; ++c) {
          const uint32_t item = k * section.head.component_count + c;
          const auto at = store.find(name_of(connection, section, item));
          if (at != store.end()) lengths[item] = static_cast<uint32_t>(at->second.size());
          all = all && at != store.end();
        }
        if (all) bits[k / 8] = static_cast<uint8_t>(bits[k / 8] | 1U << (k % 8));
      }
      frame.open_tlv(wire::Tlv::MatchBits);
      frame.value().put(s);
      frame.value().put(uint16_t{0});
      frame.value().put(section.head.key_count);
      for (const uint8_t byte : bits) frame.value().put(byte);
      frame.close_tlv();
      if ((view.batch.flags & wire::kBatchLengths) == 0) continue;
      frame.open_tlv(wire::Tlv::Lengths);
      frame.value().put(s);
      frame.value().put(uint16_t{0});
      frame.value().put(uint32_t{0});
      frame.value().put(static_cast<uint32_t>(lengths.size()));
      frame.value().put(uint32_t{0});
      for (const uint32_t length : lengths) frame.value().put(length);
      frame.close_tlv();
    }
    frame.finish();
    connection.send(out);
  }

  void on_delete(Connection& connection, uint64_t id, ConstBytes body) {
    wire::RequestView view;
    if (!wire::parse_request(wire::Opcode::Delete, body, &view).ok()) return connection.end();
    Octets out;
    wire::FrameWriter frame(out);
    frame.begin(wire::Opcode::Final, id);
    const std::lock_guard lock(store_mutex);
    for (uint16_t s = 0; s < view.section_count; ++s) {
      wire::StatusWriter status(frame, s, 0);
      for (uint32_t i = 0; i < view.sections[s].item_count(); ++i) {
        const bool there = store.erase(name_of(connection, view.sections[s], i)) > 0;
        status.add(i,
                   there ? wire::AnswerReason{wire::Answer::Ok} : wire::AnswerReason{wire::Answer::Miss, wire::Reason::Absent});
      }
      status.close();
    }
    frame.finish();
    connection.send(out);
  }

  void on_cancel(Connection& connection, uint64_t id, ConstBytes body) {
    wire::TlvReader reader(body);
    wire::TlvView tlv;
    wire::CancelRecord cancel;
    if (!reader.next(&tlv) || !wire::parse_cancel(tlv.value, &cancel).ok()) return connection.end();
    connection.cancelled.push_back(cancel.request_id);
    if (connection.puts.erase(cancel.request_id) > 0) {
      connection.send(final(cancel.request_id, {wire::Answer::Cancelled}));
      connection.send(final(id, {wire::Answer::Ok}));
    } else {
      connection.send(final(id, {wire::Answer::Miss, wire::Reason::Absent}));
    }
  }

  void on_list(Connection& connection, uint64_t id, ConstBytes body) {
    wire::TlvReader reader(body);
    wire::TlvView tlv;
    wire::CursorRecord cursor;
    if (!reader.next(&tlv) || !wire::parse_cursor(tlv.value, &cursor).ok()) return connection.end();
    Octets out;
    wire::FrameWriter frame(out);
    frame.begin(wire::Opcode::Final, id);
    add_status(frame, wire::kWholeRequest, 0, 1, {wire::Answer::Ok});
    const std::lock_guard lock(store_mutex);
    const uint64_t limit = cursor.limit == 0 ? 100 : cursor.limit;
    std::vector<std::pair<Name, uint32_t>> page;
    uint64_t at = 0;
    for (const auto& [name, bytes] : store) {
      if (at++ >= cursor.position && page.size() < limit) page.emplace_back(name, static_cast<uint32_t>(bytes.size()));
    }
    frame.open_tlv(wire::Tlv::Entries);
    frame.value().put(static_cast<uint32_t>(page.size()));
    frame.value().put(uint32_t{0});
    for (const auto& [name, bytes] : page) {
      wire::EntryRecord entry;
      entry.layout = name.layout;
      entry.component = name.component;
      entry.block_bytes = bytes;
      entry.parts = 1;
      entry.key_bytes = static_cast<uint8_t>(name.key.size());
      frame.value().put(entry);
      frame.value().put_bytes(as_bytes(name.key));
      for (size_t i = 0; i < (8 - name.key.size() % 8) % 8; ++i) frame.value().put(uint8_t{0});
    }
    frame.close_tlv();
    const uint64_t next = cursor.position + page.size();
    frame.tlv(wire::Tlv::Cursor, wire::CursorRecord{.position = next < store.size() ? next : 0});
    frame.finish();
    connection.send(out);
  }

  void on_stat(Connection& connection, uint64_t id) {
    Octets out;
    wire::FrameWriter frame(out);
    frame.begin(wire::Opcode::Final, id);
    add_status(frame, wire::kWholeRequest, 0, 1, {wire::Answer::Ok});
    frame.open_tlv(wire::Tlv::Counters);
    const std::lock_guard lock(store_mutex);
    frame.value().put(uint16_t{6});
    frame.value().put(uint16_t{0});
    frame.value().put(uint32_t{0});
    frame.value().put(uint64_t{store.size()});
    frame.value().put_bytes(as_bytes("blocks"));
    frame.value().put(uint16_t{0});
    frame.close_tlv();
    frame.finish();
    connection.send(out);
  }
};

}  // namespace halfstep::peer
