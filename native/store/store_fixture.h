// store_fixture.h — a store on a memory device, driven turn by turn, for the tests of this folder.
// Every block's bytes follow from its key, so that any answer can be checked without remembering what was written.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/crc.h"
#include "base/prng.h"
#include "io/memory_engine.h"
#include "store/durable/blocking_io.h"
#include "store/format/geometry.h"
#include "store/format/page.h"
#include "store/store.h"

namespace halfstep::store {

class TestClock final : public Clock {
 public:
  uint64_t now_us() const noexcept override { return us; }
  uint64_t wall_s() const noexcept override { return wall; }
  void pause_us(uint64_t pause) const noexcept override {
    us += pause;
    if (on_pause) on_pause();
  }
  std::function<void()> on_pause;  // what happens while somebody waits
  mutable uint64_t us = 1'000'000;
  uint64_t wall = 1'800'000'000;
};

inline std::vector<std::byte> bytes_of_key(std::string_view key, uint32_t count) {
  Prng prng(xxh3_64(as_bytes(key)));
  std::vector<std::byte> bytes(count);
  prng.fill(bytes);
  return bytes;
}

// Groups: 0 opaque 256 KiB parts; 1 four plain parts of 4 KiB; 2 parts of 1,000 and 3,000 bytes in turn until the end;
// 3 one part of one byte; 4 sixteen plain parts of 16 KiB.
inline wire::Layout test_layout(const std::string& model = "test") {
  const auto shape = [](uint16_t parts, std::vector<uint32_t> sizes) {
    wire::GroupShape group;
    group.part_count = parts;
    group.size_count = static_cast<uint16_t>(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) group.part_bytes[i] = sizes[i];
    return group;
  };
  wire::Layout layout;
  const Status status = wire::Layout::make(
      {{"model", model}},
      {shape(0, {wire::kOpaquePartBytes}), shape(4, {4096}), shape(0, {1000, 3000}), shape(1, {1}), shape(16, {16384})},
      &layout);
  EXPECT_TRUE(status.ok());
  return layout;
}

inline constexpr uint32_t kGroupOpaque = 0, kGroupPlain = 1, kGroupRagged = 2, kGroupByte = 3, kGroupLarge = 4;

// Between a store and its engine: a test sees each request before it is taken, may shorten it, and decides what becomes of it.
class TapEngine final : public io::Engine {
 public:
  enum class Fate : uint8_t { Pass, Fail, LastToArrive, Hold };

  explicit TapEngine(io::MemoryEngine& inner) : inner_(inner) {}
  std::function<Fate(io::Request&)> tap;

  void submit(io::Request& request) noexcept override {
    const Fate fate = dead_ ? Fate::Fail : tap ? tap(request) : Fate::Pass;
    request.device = fate == Fate::Fail ? kNoDevice : uint8_t{0};
    dead_ = dead_ || fate == Fate::LastToArrive;
    if (fate == Fate::Hold) {
      held.push_back(&request);
    } else {
      inner_.submit(request);
    }
  }
  std::vector<io::Request*> held;  // null: gone on
  void let_go(size_t at) { inner_.submit(*std::exchange(held.at(at), nullptr)); }
  void let_all_go() {
    for (size_t at = 0; at < held.size(); ++at) {
      if (held[at] != nullptr) let_go(at);
    }
    held.clear();
  }
  bool dead() const noexcept { return dead_; }
  void hurry(io::Request& request) noexcept override { hurried.push_back(&request); }
  std::vector<const io::Request*> hurried;
  void flush_submissions() noexcept override { inner_.flush_submissions(); }
  size_t poll() noexcept override { return inner_.poll(); }
  void wait() noexcept override { inner_.wait(); }
  int wake_descriptor() const noexcept override { return -1; }
  uint32_t in_flight() const noexcept override { return inner_.in_flight(); }
  uint64_t device_bytes(uint8_t device) const noexcept override { return inner_.device_bytes(device); }
  io::DiscardLimits discard_limits(uint8_t device) const noexcept override { return inner_.discard_limits(device); }
  const io::EngineFacts& facts() const noexcept override { return inner_.facts(); }
  const io::EngineCounters& counters() const noexcept override { return inner_.counters(); }

 private:
  static constexpr uint8_t kNoDevice = 9;
  io::MemoryEngine& inner_;
  bool dead_ = false;
};

class StoreBed {
 public:
  static constexpr uint64_t kSegmentBytes = 2 * MiB;

  explicit StoreBed(uint64_t seed = 1, uint32_t segments = 8, uint64_t arena_bytes = 8 * MiB) : seed_(seed) {
    geometry = {0, kSegmentBytes, segments, 1, static_cast<uint32_t>(block_bytes_max_of(kSegmentBytes))};
    geometry.device_bytes = 8 * MiB;
    while (!places_of(geometry).valid()) geometry.device_bytes += MiB;
    EXPECT_TRUE(Arena::create(arena_bytes, false, &arena).ok());
    device = std::make_unique<io::MemoryDevice>(geometry.device_bytes);
    restart_engine();
    const Fault fault = Store::format(*engine, *arena, clock, geometry);
    EXPECT_TRUE(fault.ok()) << fault.what;
  }

  void restart_engine() {
    store.reset();
    slots.reset();
    tap.reset();
    io::MemoryConfig config;
    config.seed = ++seed_;
    config.faults = faults;
    engine = std::make_unique<io::MemoryEngine>(config, std::vector<io::MemoryDevice*>{device.get()});
    tap = std::make_unique<TapEngine>(*engine);
    slots = std::make_unique<SlotPool>(*arena);
  }

  // The same bytes on a backing of another size.
  void resize_device(uint64_t bytes) {
    auto other = std::make_unique<io::MemoryDevice>(bytes);
    io::MemoryEngine to({}, {other.get()});
    BlockingIo io(to);
    PageBuffer page(1);
    for (uint64_t at = 0; at < std::min(bytes, device->bytes()); at += kPageBytes) {
      device->read(at, page.bytes());
      ASSERT_TRUE(io.write(at, page.bytes()).ok());
    }
    ASSERT_TRUE(io.flush().ok());
    store.reset();
    tap.reset();
    engine.reset();
    device = std::move(other);
    restart_engine();
  }

  void open() {
    const Fault fault = Store::open(*tap, *slots, clock, options, &store);
    ASSERT_TRUE(fault.ok()) << fault.what;
    register_layout();
  }
  void register_layout(const std::string& model = "test") {
    scope = 0;
    bool done = false;
    store->register_layout("default", test_layout(model), [&](Status status, uint32_t got) {
      EXPECT_TRUE(status.ok());
      scope = got;
      done = true;
    });
    while (!done) pump();
  }
  void close() {
    ASSERT_TRUE(store->close().ok());
    store.reset();
  }
  void reopen() {
    close();
    restart_engine();
    open();
  }
  // The process or the machine dies; what was only in memory is gone.
  void crash(io::MemoryEngine::Crash how) {
    engine->crash(how);
    restart_engine();
  }

  void pump() {
    engine->poll();
    store->turn();
    engine->flush_submissions();
    clock.us += 100;
  }
  // Until the device and the store have been at rest for some turns; for so many at most.
  void settle() {
    int quiet = 0;
    for (int turns = 0; quiet < 4 && turns < 10'000; ++turns) {
      pump();
      quiet = engine->in_flight() == 0 && store->next_turn_us() > clock.us ? quiet + 1 : 0;
    }
  }

  IndexKey key(std::string_view name, uint32_t group = kGroupPlain) const {
    return store->key_of({scope, wire::Component::of(group, 0, 0), as_bytes(name)});
  }

  struct Put {
    Write write;
    bool done = false;
  };
  // begin + fill + commit; `put` must live until it is done.
  Status begin_put(Put& put, std::string_view name, uint32_t group, uint32_t bytes, bool persist,
                   std::span<const PartInfo> coded = {}) {
    Write& write = put.write;
    write.name = {scope, wire::Component::of(group, 0, 0), as_bytes(name)};
    write.key = store->key_of(write.name);
    write.block_bytes = bytes;
    write.coded_parts = coded;
    write.persist = persist;
    write.owner = &put;
    write.done = [](Write& w) { static_cast<Put*>(w.owner)->done = true; };
    const Status status = store->begin_write(write);
    if (!status.ok()) return status;
    const std::vector<std::byte> content = bytes_of_key(name, write.stored_bytes);
    size_t at = 0;
    write.slot->for_range(0, write.stored_bytes, [&](Bytes piece) {
      std::memcpy(piece.data(), content.data() + at, piece.size());
      at += piece.size();
    });
    for (PartInfo& part : write.parts) part.stored_crc = crc32c(ConstBytes(content).subspan(part.offset, part.stored_bytes));
    store->commit_write(write);
    return {};
  }
  Status put(std::string_view name, uint32_t group = kGroupPlain, uint32_t bytes = 16384, bool persist = false,
             uint32_t ttl_s = 0) {
    Put put;
    put.write.ttl_s = ttl_s;
    Status status;
    for (int tries = 0; tries < 2000; ++tries) {
      status = begin_put(put, name, group, bytes, persist);
      const bool wait =
          status == Code::Throttled && (status.detail() == kThrottledMemory || status.detail() == kThrottledPending);
      if (!wait) break;
      pump();
    }
    if (!status.ok()) return status;
    for (int turns = 0; !put.done; ++turns) {
      if (turns > 100'000) {
        ADD_FAILURE() << "a put never ended";
        std::abort();
      }
      pump();
    }
    return put.write.status;
  }

  struct Got {
    Status status;
    std::vector<std::byte> bytes;
    std::vector<PartInfo> parts;
  };
  Got get(const IndexKey& wanted, uint32_t group = kGroupPlain) {
    struct Waiter {
      StoreBed* bed;
      Got got;
      bool done = false;
    } waiter{this, {}, false};
    Read read;
    read.key = wanted;
    read.component = wire::Component::of(group, 0, 0);
    read.owner = &waiter;
    read.complete = [](Read& r) {
      auto& w = *static_cast<Waiter*>(r.owner);
      w.done = true;
      w.got.status = r.status;
      if (!r.status.ok()) return;
      const auto parts = r.resident->parts();
      w.got.parts.assign(parts.begin(), parts.end());
      const uint32_t stored = parts.back().offset + parts.back().stored_bytes;
      r.resident->slot().for_range(0, stored,
                                   [&](Bytes piece) { w.got.bytes.insert(w.got.bytes.end(), piece.begin(), piece.end()); });
      w.bed->store->unpin(r.resident);
    };
    Read* window[] = {&read};
    Status status;
    for (int tries = 0; tries < 2000; ++tries) {
      status = store->begin_reads(window);
      if (!(status == Code::Throttled)) break;
      pump();
    }
    if (!status.ok()) return {status, {}, {}};
    for (int turns = 0; !waiter.done; ++turns) {
      if (turns > 100'000) {
        ADD_FAILURE() << "a get never ended";
        std::abort();
      }
      pump();
    }
    return waiter.got;
  }
  // Ok only with exactly the bytes of this key.
  Status get(std::string_view name, uint32_t group = kGroupPlain) {
    const Got got = get(key(name, group), group);
    if (got.status.ok()) {
      EXPECT_EQ(got.bytes, bytes_of_key(name, static_cast<uint32_t>(got.bytes.size()))) << "wrong bytes for " << name;
      for (const PartInfo& part : got.parts) {
        EXPECT_EQ(part.stored_crc, crc32c(ConstBytes(got.bytes).subspan(part.offset, part.stored_bytes)));
      }
    }
    return got.status;
  }

  // One piece of the list; returns the next cursor.
  uint64_t list(std::string_view name, uint64_t cursor, uint32_t limit, const std::function<void(const Listed&)>& visit) {
    struct Waiter {
      const std::function<void(const Listed&)>& visit;
      bool done = false;
    } waiter{visit};
    Listing listing;
    listing.name_space = name;
    listing.cursor = cursor;
    listing.limit = limit;
    listing.owner = &waiter;
    listing.visit = [](Listing& l, const Listed& listed) { static_cast<Waiter*>(l.owner)->visit(listed); };
    listing.done = [](Listing& l) { static_cast<Waiter*>(l.owner)->done = true; };
    store->list(listing);
    for (int turns = 0; !waiter.done; ++turns) {
      if (turns > 100'000) {
        ADD_FAILURE() << "a list never ended";
        std::abort();
      }
      pump();
    }
    return listing.next;
  }

  // Runs one change of a block's life to its answer.
  Status change(std::string_view name, uint32_t group, uint64_t holder, uint64_t for_s, void (Store::*verb)(Change&)) {
    Change change;
    bool done = false;
    change.key = key(name, group);
    change.holder = holder;
    change.for_s = for_s;
    change.owner = &done;
    change.done = [](Change& c) { *static_cast<bool*>(c.owner) = true; };
    ((*store).*verb)(change);
    for (int turns = 0; !done; ++turns) {
      if (turns > 100'000) {
        ADD_FAILURE() << "a change never ended";
        std::abort();
      }
      pump();
    }
    return change.status;
  }
  Status remove(std::string_view name, uint32_t group = kGroupPlain) { return change(name, group, 0, 0, &Store::remove); }
  Status pin(std::string_view name, uint64_t holder, uint64_t for_s = 0) {
    return change(name, kGroupPlain, holder, for_s, &Store::hold);
  }
  Status release(std::string_view name, uint64_t holder) { return change(name, kGroupPlain, holder, 0, &Store::release); }
  Status release_all(uint64_t holder) { return change("any", kGroupPlain, holder, 0, &Store::release_all); }
  Status expire(std::string_view name, uint64_t for_s) { return change(name, kGroupPlain, 0, for_s, &Store::expire); }
  // Runs one change of the store's header to its answer.
  Status change_names(const std::function<void(std::function<void(Status)>)>& verb) {
    Status answer;
    bool done = false;
    verb([&](Status status) {
      answer = status;
      done = true;
    });
    while (!done) pump();
    return answer;
  }
  Status limit(const NamespaceInfo& info) {
    return change_names([&](auto done) { store->limit_namespace(info, done); });
  }
  NamespaceInfo account(std::string_view name = "default") const {
    for (const NamespaceInfo& n : store->namespaces()) {
      if (n.name == name) return n;
    }
    return {};
  }

  uint64_t seed_;
  Geometry geometry;
  Options options;
  TestClock clock;
  io::MemoryFaults faults;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<io::MemoryDevice> device;
  std::unique_ptr<io::MemoryEngine> engine;
  std::unique_ptr<TapEngine> tap;
  std::unique_ptr<SlotPool> slots;
  std::unique_ptr<Store> store;
  uint32_t scope = 0;
};

}  // namespace halfstep::store
