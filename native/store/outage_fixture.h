// outage_fixture.h — for tests of outages: a store on a device that fails requests of one kind, in some places, for a while.
// What an outage costs: misses and time, never segments or blocks. All times are of the bed's clock.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "store/store_fixture.h"

namespace halfstep::store {

inline constexpr uint32_t kOutageBlockBytes = 256 * KiB;

struct OutageBed : StoreBed {
  explicit OutageBed(uint32_t segments = 12, uint64_t seed = 1) : StoreBed(seed, segments, 8 * MiB) {}
  const Counters& counters() const { return store->counters(); }
  Gauges gauges() const { return store->gauges(); }
  Places places() const { return places_of(geometry); }

  // Requests of `op` fail until end_outage(): those that touch segments, or all that there are.
  void fail(io::Op op, int32_t error, bool segments_only) {
    const Places where = places();
    const uint64_t from = where.segment(0), to = where.segment(geometry.segments);
    engine->set_outage([=](const io::Request& request) {
      const bool in_segment = request.offset >= from && request.offset < to;
      return request.op == op && (in_segment || !segments_only) ? error : 0;
    });
  }
  // Of some segments alone.
  void fail_segments(io::Op op, std::set<uint32_t> numbers) {
    const Places where = places();
    engine->set_outage([=, this](const io::Request& request) {
      if (request.op != op) return 0;
      for (const uint32_t number : numbers) {
        if (request.offset >= where.segment(number) && request.offset < where.segment(number) + kSegmentBytes) return -EIO;
      }
      return 0;
    });
  }
  void end_outage() { engine->set_outage({}); }
  void pass(uint64_t us, uint64_t step_us = 10'000) {
    for (uint64_t at = 0; at < us; at += step_us) {
      pump();
      clock.us += step_us;
    }
  }
  // Persisted, all of them.
  void fill(int count, const std::string& prefix = "a") {
    for (int i = 0; i < count; ++i)
      ASSERT_TRUE(put(prefix + std::to_string(i), kGroupOpaque, kOutageBlockBytes, true).ok()) << i;
    settle();
  }
  // Where the block lies, by its bytes.
  uint32_t segment_of(const std::string& name) const {
    const Places where = places();
    const std::vector<std::byte> content = bytes_of_key(name, kPageBytes);
    std::vector<std::byte> page(kPageBytes);
    for (uint64_t at = where.segment(0); at < where.segment(geometry.segments); at += kPageBytes) {
      device->read(at, page);
      if (page == content) return static_cast<uint32_t>((at - where.segment(0)) / kSegmentBytes);
    }
    ADD_FAILURE() << name << " is nowhere";
    return 0;
  }
  int readable(int count, const std::string& prefix = "a") {
    int found = 0;
    for (int i = 0; i < count; ++i) found += get(prefix + std::to_string(i), kGroupOpaque).ok() ? 1 : 0;
    return found;
  }
};

}  // namespace halfstep::store
