// What a power cut and a killed process leave of what was under way, and what of it a device keeps.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "io/memory_engine_fixture.h"

namespace halfstep::io {
namespace {

TEST(MemoryEngine, ACrashNeitherUndoesNorRepeatsWhatWasDoneAndNotTold) {
  MemoryFaults faults;
  faults.lost_completion_chance = 1;
  Harness h(faults);
  Harness::label(h.memory(), 0, 1);
  h.start(0, Op::Write, 0, 1);
  h.engine().poll();
  Harness::label(h.memory(), 0, 2);  // whoever copied it now would copy this
  h.engine().crash(MemoryEngine::Crash::Killed);
  EXPECT_EQ(h.version_on_device(0), 1U);
}

TEST(MemoryEngine, PowerCutLosesWhatWasNotFlushedAndKeepsWhatWas) {
  Harness h(none());
  ASSERT_EQ(h.write(0, kPages, 1), 0);
  ASSERT_EQ(h.flush(), 0);
  ASSERT_EQ(h.write(0, kPages / 2, 2), 0);
  EXPECT_EQ(h.version_on_device(0), 2U) << "the cache is read";
  h.engine().crash(MemoryEngine::Crash::PowerCut);
  for (uint64_t page = 0; page < kPages; ++page) EXPECT_EQ(h.version_on_device(page), 1U);
  EXPECT_EQ(h.engine().fault_counters().lost_writes, 1U);
  EXPECT_EQ(h.device().cached_pages(), 0U);
}

TEST(MemoryEngine, FlushCoversNoWriteThatCompletedAfterItWasHandedOver) {
  MemoryFaults faults = none();
  Harness h(faults);
  // Both are in the queue together: the write takes effect first, and the flush owes it nothing.
  Harness::label(h.memory(), 0, 1);
  h.start(1, Op::Write, 0, 1);
  h.start(2, Op::Flush, 0, 0);
  EXPECT_EQ(h.engine().poll(), 2U);
  h.engine().crash(MemoryEngine::Crash::PowerCut);
  EXPECT_EQ(h.version_on_device(0), 0U);
}

TEST(MemoryEngine, PowerCutSparesWholeWritesUnlessTearingIsAskedFor) {
  for (const bool torn : {false, true}) {
    uint64_t torn_writes = 0;
    uint64_t lost = 0;
    uint64_t surviving = 0;
    for (uint64_t seed = 0; seed < 30; ++seed) {
      MemoryFaults faults = none();
      faults.cut_survival_chance = 0.5;
      faults.torn_writes = torn;
      Harness h(faults, seed);
      for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(h.write(i * 4, 4, 1), 0);
      h.engine().crash(MemoryEngine::Crash::PowerCut);
      uint64_t mixed = 0;
      for (uint64_t i = 0; i < 4; ++i) {
        uint64_t kept = 0;
        for (uint64_t page = i * 4; page < i * 4 + 4; ++page) {
          ASSERT_LE(h.version_on_device(page), 1U) << "a page is never torn in itself";
          kept += h.version_on_device(page);
        }
        mixed += kept != 0 && kept != 4 ? 1 : 0;
      }
      const MemoryFaultCounters& counters = h.engine().fault_counters();
      EXPECT_EQ(counters.torn_writes, mixed);
      torn_writes += counters.torn_writes;
      lost += counters.lost_writes;
      surviving += counters.surviving_writes;
    }
    EXPECT_EQ(torn_writes + lost + surviving, 120U);
    EXPECT_GT(lost, 0U);
    EXPECT_GT(surviving, 0U);
    EXPECT_EQ(torn_writes > 0, torn);
  }
}

TEST(MemoryEngine, PowerCutReordersTwoWritesOfOnePlace) {
  // With survival by coin, the older of two unflushed writes may be what is left.
  std::vector<uint64_t> seen(3);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    MemoryFaults faults = none();
    faults.cut_survival_chance = 0.5;
    Harness h(faults, seed);
    ASSERT_EQ(h.write(0, 1, 1), 0);
    ASSERT_EQ(h.write(0, 1, 2), 0);
    h.engine().crash(MemoryEngine::Crash::PowerCut);
    const uint64_t version = h.version_on_device(0);
    ASSERT_LE(version, 2U);
    ++seen[version];
  }
  for (const uint64_t times : seen) EXPECT_GT(times, 0U);
}

TEST(MemoryEngine, KilledProcessKeepsTheCacheAndLeavesTheQueueToChance) {
  uint64_t arrived = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Harness h(none(), seed);
    ASSERT_EQ(h.write(0, 2, 1), 0);
    for (uint64_t page = 2; page < 4; ++page) Harness::label(h.memory() + page * kPageBytes, page, 1);
    h.start(1, Op::Write, 2, 2);
    h.engine().crash(MemoryEngine::Crash::Killed);
    EXPECT_EQ(h.engine().in_flight(), 0U);
    EXPECT_EQ(h.engine().poll(), 0U) << "what was in flight never completes";
    EXPECT_EQ(h.version_on_device(0), 1U);
    EXPECT_EQ(h.version_on_device(2), h.version_on_device(3)) << "whole or not at all: tearing was not asked for";
    arrived += h.version_on_device(2);
    const MemoryFaultCounters& counters = h.engine().fault_counters();
    EXPECT_EQ(counters.surviving_writes, h.version_on_device(2));
    EXPECT_EQ(counters.lost_writes, 1 - h.version_on_device(2));
  }
  EXPECT_GT(arrived, 0U);
  EXPECT_LT(arrived, 40U);
}

TEST(MemoryEngine, KilledProcessTearsWhatWasInTheQueueWhenAsked) {
  uint64_t torn = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    MemoryFaults faults = none();
    faults.torn_writes = true;
    Harness h(faults, seed);
    for (uint64_t page = 0; page < 8; ++page) Harness::label(h.memory() + page * kPageBytes, page, 1);
    h.start(1, Op::Write, 0, 8);
    h.engine().crash(MemoryEngine::Crash::Killed);
    torn += h.engine().fault_counters().torn_writes;
  }
  EXPECT_GT(torn, 0U);
}

TEST(MemoryEngine, AnswersNothingButNoDeviceAfterACrash) {
  Harness h(none());
  h.engine().crash(MemoryEngine::Crash::PowerCut);
  EXPECT_EQ(h.run(Op::Read, 0, 1), -ENODEV);
  EXPECT_EQ(h.flush(), -ENODEV);
}

TEST(MemoryDevice, IsCarriedIntoANewEngineAndCopiedToBeCrashedAgain) {
  MemoryDevice device(kMemoryDeviceBytes);
  {
    Harness before(none(), 1, &device);
    ASSERT_EQ(before.write(0, 4, 1), 0);
    ASSERT_EQ(before.flush(), 0);
    ASSERT_EQ(before.write(2, 4, 2), 0);
  }
  MemoryDevice copy = device;
  {
    Harness cut(none(), 2, &copy);
    cut.engine().crash(MemoryEngine::Crash::PowerCut);
    EXPECT_EQ(cut.version_on_device(2), 1U);
    EXPECT_EQ(cut.version_on_device(5), 0U);
  }
  Harness after(none(), 3, &device);
  EXPECT_EQ(after.version_on_device(2), 2U) << "the copy's power cut is not the original's";
  ASSERT_EQ(after.run(Op::Read, 5, 1), 0);
  EXPECT_TRUE(Harness::labelled(after.memory() + 5 * kPageBytes, 5, 2));
}

TEST(MemoryDevice, WithoutAVolatileCacheWritesAreDurableAtOnce) {
  MemoryDevice device(kMemoryDeviceBytes, false);
  Harness h(none(), 1, &device);
  ASSERT_EQ(h.write(0, 4, 1), 0);
  EXPECT_EQ(device.cached_pages(), 0U);
  h.engine().crash(MemoryEngine::Crash::PowerCut);
  for (uint64_t page = 0; page < 4; ++page) EXPECT_EQ(h.version_on_device(page), 1U);
}

TEST(MemoryDevice, TakesMemoryForWrittenPagesAlone) {
  constexpr uint64_t kTerabytes = uint64_t{4} << 40;
  MemoryDevice device(kTerabytes);
  const auto page = aligned_bytes(kPageBytes);
  device.read(kTerabytes - kPageBytes, {page.get(), kPageBytes});
  EXPECT_EQ(device.media_pages() + device.cached_pages(), 0U);
}

}  // namespace
}  // namespace halfstep::io
