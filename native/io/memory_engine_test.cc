// Each fault of the model is asked for alone and proven to fire; then what the model promises is
// held against it.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "io/memory_engine_fixture.h"

namespace halfstep::io {
namespace {

TEST(MemoryEngine, KeepsOrderWithoutFaults) {
  Harness h(none());
  for (int i = 0; i < 32; ++i) h.start(i, Op::Write, static_cast<uint64_t>(i), 1);
  EXPECT_EQ(h.engine().poll(), 32U);
  EXPECT_TRUE(std::is_sorted(h.order().begin(), h.order().end()));
  EXPECT_EQ(h.engine().fault_counters().reordered, 0U);
}

TEST(MemoryEngine, ShufflesCompletions) {
  MemoryFaults faults;
  Harness h(faults);
  for (int i = 0; i < 32; ++i) h.start(i, Op::Write, static_cast<uint64_t>(i), 1);
  EXPECT_EQ(h.engine().poll(), 32U);
  EXPECT_FALSE(std::is_sorted(h.order().begin(), h.order().end()));
  EXPECT_GT(h.engine().fault_counters().reordered, 0U);
}

TEST(MemoryEngine, DelaysWithinTheBound) {
  MemoryFaults faults = none();
  faults.delay_polls_max = 5;
  Harness h(faults);
  for (int i = 0; i < 60; ++i) h.start(i, Op::Write, static_cast<uint64_t>(i), 1);
  size_t completed = 0;
  std::vector<size_t> per_poll;
  for (int turn = 0; turn < 6; ++turn) completed += per_poll.emplace_back(h.engine().poll());
  EXPECT_EQ(completed, 60U) << "none may take longer than delay_polls_max";
  EXPECT_LT(per_poll.front(), 60U);
  EXPECT_EQ(h.engine().fault_counters().delayed, 60 - per_poll.front());
}

TEST(MemoryEngine, AStalledRequestIsPassedByAllOthers) {
  MemoryFaults faults = none();
  faults.stall_chance = 1;
  Harness h(faults);
  h.start(0, Op::Write, 0, 1);
  h.engine().set_faults(none());
  for (int i = 1; i < 5; ++i) h.start(i, Op::Write, static_cast<uint64_t>(i), 1);
  EXPECT_EQ(h.engine().poll(), 4U);
  for (uint32_t turn = 2; turn <= kStallPolls; ++turn) EXPECT_EQ(h.engine().poll(), 0U);
  EXPECT_EQ(h.engine().poll(), 1U);
  EXPECT_EQ(h.engine().fault_counters().stalled, 1U);
}

TEST(MemoryEngine, WhatIsToldLateWasDoneBefore) {
  MemoryFaults faults;
  faults.completion_polls_max = 50;
  Harness h(faults);
  for (uint64_t page = 0; page < kPages; ++page) {
    Harness::label(h.memory() + page * kPageBytes, page, 1);
    h.start(static_cast<int>(page), Op::Write, page, 1);
  }
  h.engine().poll();
  EXPECT_GT(h.engine().fault_counters().told_late, 0U);
  EXPECT_GT(h.engine().in_flight(), 0U);
  for (uint64_t page = 0; page < kPages; ++page) EXPECT_EQ(h.version_on_device(page), 1U);
  for (int polls = 0; polls < 60; ++polls) h.engine().poll();
  EXPECT_EQ(h.engine().in_flight(), 0U);
}

TEST(MemoryEngine, ALostCompletionIsAnErrorThatComesLateAndLeavesTheEffect) {
  MemoryFaults faults;
  faults.lost_completion_chance = 1;
  Harness h(faults);
  Harness::label(h.memory(), 0, 1);
  h.start(0, Op::Write, 0, 1);
  for (uint32_t polls = 0; polls < kLostPolls; ++polls) h.engine().poll();
  EXPECT_EQ(h.engine().in_flight(), 1U) << "it is given up before its time";
  EXPECT_EQ(h.version_on_device(0), 1U);
  EXPECT_EQ(h.write(0, 1, 2), -ETIMEDOUT);
  EXPECT_EQ(h.engine().fault_counters().lost_completions, 2U);
  EXPECT_EQ(h.version_on_device(0), 2U);
}

TEST(MemoryEngine, SameSeedGivesTheSameRun) {
  const auto run = [](uint64_t seed) {
    MemoryFaults faults;
    faults.delay_polls_max = 3;
    faults.read_error_chance = faults.write_error_chance = faults.flush_error_chance = 0.1;
    faults.bit_flip_chance = faults.misdirected_read_chance = 0.1;
    faults.cut_survival_chance = 0.5;
    faults.torn_writes = true;
    Harness h(faults, seed);
    Prng work(99);  // the same work for every seed
    for (int i = 0; i < 400; ++i) {
      const uint64_t page = work.below(kPages);
      const auto pages = static_cast<uint32_t>(work.below(4) + 1);
      const uint64_t kind = work.below(8);
      if (kind < 4) {
        for (uint64_t at = page; at < page + pages; ++at) {
          Harness::label(h.memory() + at * kPageBytes, at, static_cast<uint64_t>(i) + 1);
        }
        h.start(i, Op::Write, page, pages);
      } else if (kind < 7) {
        h.start(i, Op::Read, 128 + page, pages);
      } else {
        h.start(i, Op::Flush, 0, 0);
      }
      if (i % 3 == 0) h.engine().poll();
      h.engine().flush_submissions();
    }
    h.engine().crash(MemoryEngine::Crash::PowerCut);
    const auto image = aligned_bytes(kMemoryDeviceBytes);
    h.device().read(0, {image.get(), kMemoryDeviceBytes});
    uint64_t sum = 0;
    for (uint64_t at = 0; at < kMemoryDeviceBytes; at += 8) sum = sum * 31 + load_le<uint64_t>(image.get() + at);
    const EngineCounters& c = h.engine().counters();
    return std::tuple(sum, h.order(), c.errors, c.reads, c.writes, c.flushes);
  };
  const auto first = run(5);
  EXPECT_EQ(first, run(5));
  EXPECT_NE(first, run(6));
}

TEST(MemoryEngine, InjectedErrorHitsItsRangeOperationAndCountAlone) {
  Harness h(none());
  h.engine().inject({Op::Read, 0, 8 * kPageBytes, 2 * kPageBytes, -EIO, 2});
  h.engine().inject({Op::Write, 0, 20 * kPageBytes, kPageBytes, -ENOSPC, UINT32_MAX});
  h.engine().inject({Op::Flush, 0, 0, UINT64_MAX, -EIO, 1});
  EXPECT_EQ(h.run(Op::Read, 7, 1), 0);
  EXPECT_EQ(h.run(Op::Read, 10, 1), 0);
  EXPECT_EQ(h.write(8, 2, 1), 0);
  EXPECT_EQ(h.run(Op::Read, 7, 2), -EIO);
  EXPECT_EQ(h.run(Op::Read, 9, 4), -EIO);
  EXPECT_EQ(h.run(Op::Read, 8, 1), 0) << "two times were asked for";
  EXPECT_EQ(h.write(18, 3, 1), -ENOSPC);
  EXPECT_EQ(h.write(20, 1, 1), -ENOSPC);
  EXPECT_EQ(h.write(21, 1, 1), 0);
  EXPECT_EQ(h.flush(), -EIO);
  EXPECT_EQ(h.flush(), 0);
  const MemoryFaultCounters& counters = h.engine().fault_counters();
  EXPECT_EQ(counters.read_errors, 2U);
  EXPECT_EQ(counters.no_space_errors, 2U);
  EXPECT_EQ(counters.flush_errors, 1U);
  EXPECT_EQ(h.engine().counters().errors, 5U);
}

TEST(MemoryEngine, FailedReadLeavesNoiseInsteadOfTheRightBytes) {
  MemoryFaults faults = none();
  Harness h(faults);
  ASSERT_EQ(h.write(3, 1, 7), 0);
  faults.read_error_chance = 1;
  h.engine().set_faults(faults);
  EXPECT_EQ(h.run(Op::Read, 3, 1), -EIO);
  EXPECT_FALSE(Harness::labelled(h.memory() + 3 * kPageBytes, 3, 7));
  EXPECT_EQ(h.engine().fault_counters().read_errors, 1U);
}

TEST(MemoryEngine, FailedWriteMayLeaveAnyPartOfItself) {
  MemoryFaults faults = none();
  Harness h(faults);
  ASSERT_EQ(h.write(0, kPages, 1), 0);
  faults.write_error_chance = 1;
  h.engine().set_faults(faults);
  EXPECT_EQ(h.write(0, kPages, 2), -EIO);
  uint32_t news = 0;
  for (uint64_t page = 0; page < kPages; ++page) {
    const uint64_t version = h.version_on_device(page);
    EXPECT_TRUE(version == 1 || version == 2) << "page " << page;
    news += version == 2 ? 1 : 0;
  }
  EXPECT_GT(news, 0U);
  EXPECT_LT(news, kPages);
  EXPECT_EQ(h.engine().fault_counters().write_errors, 1U);
}

TEST(MemoryEngine, FailedFlushLosesPagesThatNoLaterFlushBringsBack) {
  MemoryFaults faults = none();
  Harness h(faults);
  ASSERT_EQ(h.write(0, 64, 1), 0);
  faults.flush_error_chance = 1;
  h.engine().set_faults(faults);
  EXPECT_EQ(h.flush(), -EIO);
  h.engine().set_faults(none());
  EXPECT_EQ(h.flush(), 0);
  uint32_t lost = 0;
  for (uint64_t page = 0; page < 64; ++page) lost += h.version_on_device(page) == 0 ? 1 : 0;
  EXPECT_GT(lost, 0U);
  EXPECT_LT(lost, 64U);
  EXPECT_EQ(h.engine().fault_counters().flush_errors, 1U);
}

TEST(MemoryEngine, BitFlipIsGoneAtTheNextRead) {
  MemoryFaults faults = none();
  Harness h(faults);
  ASSERT_EQ(h.write(2, 1, 9), 0);
  faults.bit_flip_chance = 1;
  h.engine().set_faults(faults);
  ASSERT_EQ(h.run(Op::Read, 2, 1), 0);
  EXPECT_FALSE(Harness::labelled(h.memory() + 2 * kPageBytes, 2, 9));
  h.engine().set_faults(none());
  ASSERT_EQ(h.run(Op::Read, 2, 1), 0);
  EXPECT_TRUE(Harness::labelled(h.memory() + 2 * kPageBytes, 2, 9));
  EXPECT_EQ(h.engine().fault_counters().bit_flips, 1U);
}

TEST(MemoryEngine, BitRotStaysAndIsWhereItSays) {
  Harness h(none());
  ASSERT_EQ(h.write(2, 1, 9), 0);
  const uint64_t bit = h.engine().rot(0, 2 * kPageBytes, kPageBytes);
  EXPECT_EQ(bit / 8 / kPageBytes, 2U);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(h.run(Op::Read, 2, 1), 0);
    EXPECT_FALSE(Harness::labelled(h.memory() + 2 * kPageBytes, 2, 9));
    h.memory()[bit / 8] ^= std::byte{static_cast<unsigned char>(1U << (bit % 8))};
    EXPECT_TRUE(Harness::labelled(h.memory() + 2 * kPageBytes, 2, 9)) << "one bit, the one that was named";
    ASSERT_EQ(h.flush(), 0);
  }
  EXPECT_EQ(h.engine().fault_counters().rotted_bits, 1U);
}

TEST(MemoryEngine, MisdirectedReadBringsAnotherPlacesBytes) {
  MemoryFaults faults = none();
  Harness h(faults);
  for (uint64_t page = 0; page < kMemoryDeviceBytes / kPageBytes; ++page) ASSERT_EQ(h.write(page, 1, 1), 0);
  faults.misdirected_read_chance = 1;
  h.engine().set_faults(faults);
  ASSERT_EQ(h.run(Op::Read, 5, 1), 0);
  const auto from = load_le<uint64_t>(h.memory() + 5 * kPageBytes);
  EXPECT_TRUE(Harness::labelled(h.memory() + 5 * kPageBytes, from, 1)) << "a whole page of another place";
  EXPECT_NE(from, 5U);
  EXPECT_EQ(h.engine().fault_counters().misdirected_reads, 1U);
}

TEST(MemoryEngine, MisdirectedWriteLeavesItsPlaceAsItWasAndSaysBothPlaces) {
  MemoryFaults faults = none();
  faults.misdirected_write_chance = 1;
  Harness h(none(), 4);
  EXPECT_EQ(h.write(8, 1, 1), 0);
  std::vector<MemoryFault> told;
  h.engine().on_fault([&](const MemoryFault& fault) { told.push_back(fault); });
  h.engine().set_faults(faults);
  EXPECT_EQ(h.write(8, 1, 2), 0) << "the device says that it was done";
  EXPECT_EQ(h.engine().fault_counters().misdirected_writes, 1U);
  EXPECT_EQ(h.version_on_device(8), 1U);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].offset, 8 * kPageBytes);
  EXPECT_NE(told[1].offset, 8 * kPageBytes);
  const auto page = aligned_bytes(kPageBytes);
  h.device().read(told[1].offset, {page.get(), kPageBytes});
  EXPECT_TRUE(Harness::labelled(page.get(), 8, 2));
}

TEST(MemoryEngine, AWriteWithoutSpaceLeavesNothingOfItself) {
  MemoryFaults faults = none();
  faults.no_space_chance = 1;
  Harness h(faults);
  EXPECT_EQ(h.write(8, 4, 1), -ENOSPC);
  EXPECT_EQ(h.engine().fault_counters().no_space_errors, 1U);
  for (uint64_t page = 8; page < 12; ++page) EXPECT_EQ(h.version_on_device(page), 0U);
}

// What the pages of a range are after a discard of it: as they were, zeroes, something else.
struct Leftovers {
  uint32_t kept = 0, zeroes = 0, noise = 0;
};
Leftovers leftovers(const Harness& harness, uint64_t page, uint32_t pages, uint64_t version) {
  Leftovers left;
  for (uint64_t i = page; i < page + pages; ++i) {
    const uint64_t there = harness.version_on_device(i);
    ++(there == version ? left.kept : there == 0 ? left.zeroes : left.noise);
  }
  return left;
}

TEST(MemoryEngine, ADiscardLeavesOldPagesZeroesAndNoiseAndTouchesNothingBesideIt) {
  MemoryDevice device(kMemoryDeviceBytes);
  device.take_discards();
  Harness harness(none(), 1, &device);
  EXPECT_TRUE(harness.engine().discard_limits(0).taken());
  ASSERT_EQ(harness.write(0, 200, 1), 0);
  ASSERT_EQ(harness.run(Op::Discard, 50, 100), 0);
  const Leftovers left = leftovers(harness, 50, 100, 1);
  EXPECT_GT(left.kept, 0U);
  EXPECT_GT(left.zeroes, 0U);
  EXPECT_GT(left.noise, 0U);
  EXPECT_EQ(leftovers(harness, 0, 50, 1).kept, 50U);
  EXPECT_EQ(leftovers(harness, 150, 50, 1).kept, 50U);
  EXPECT_EQ(harness.engine().fault_counters().discarded_pages, left.zeroes + left.noise);
  EXPECT_EQ(harness.engine().counters().discard_bytes, 100 * kPageBytes);
}

TEST(MemoryEngine, NoFlushAndNoPowerCutBringsBackWhatWasDiscarded) {
  MemoryDevice device(kMemoryDeviceBytes);
  device.take_discards();
  Harness harness(none(), 1, &device);
  ASSERT_EQ(harness.write(0, 100, 1), 0);
  ASSERT_EQ(harness.flush(), 0);
  ASSERT_EQ(harness.write(0, 100, 2), 0);
  ASSERT_EQ(harness.run(Op::Discard, 0, 100), 0);
  const uint32_t kept = leftovers(harness, 0, 100, 2).kept;
  harness.engine().crash(MemoryEngine::Crash::PowerCut);
  const Leftovers left = leftovers(harness, 0, 100, 1);
  EXPECT_EQ(left.kept, kept) << "those alone were left in the cache, and are lost with it";
  EXPECT_GT(left.zeroes + left.noise, 0U);
}

TEST(MemoryEngine, AWriteAfterADiscardIsSafeFromItAndOneBesideItIsNot) {
  MemoryDevice device(kMemoryDeviceBytes);
  device.take_discards();
  Harness after(none(), 1, &device);
  ASSERT_EQ(after.run(Op::Discard, 0, 100), 0);
  ASSERT_EQ(after.write(0, 100, 1), 0);
  EXPECT_EQ(leftovers(after, 0, 100, 1).kept, 100U);
  bool hit = false;
  for (uint64_t seed = 0; seed < 20 && !hit; ++seed) {
    MemoryFaults faults = none();
    faults.shuffle = true;
    Harness beside(faults, seed, &device);
    beside.start(1, Op::Discard, 0, 100);
    ASSERT_EQ(beside.write(0, 100, 2), 0);
    hit = leftovers(beside, 0, 100, 2).kept < 100;
  }
  EXPECT_TRUE(hit);
}

TEST(MemoryEngine, AFailedDiscardHasDoneAnyPartOfItself) {
  MemoryDevice device(kMemoryDeviceBytes);
  device.take_discards();
  MemoryFaults faults = none();
  faults.discard_error_chance = 1;
  Harness harness(faults, 1, &device);
  ASSERT_EQ(harness.write(0, 100, 1), 0);
  EXPECT_EQ(harness.run(Op::Discard, 0, 100), -EIO);
  EXPECT_LT(leftovers(harness, 0, 100, 1).kept, 100U);
  EXPECT_EQ(harness.engine().fault_counters().discard_errors, 1U);
  EXPECT_EQ(harness.engine().counters().discards, 0U);
}

TEST(MemoryEngine, ADiscardInTheQueueAtACrashIsDoneInAnyPart) {
  MemoryDevice device(kMemoryDeviceBytes);
  device.take_discards();
  Harness harness(none(), 1, &device);
  ASSERT_EQ(harness.write(0, 100, 1), 0);
  ASSERT_EQ(harness.flush(), 0);
  harness.start(1, Op::Discard, 0, 100);
  harness.engine().crash(MemoryEngine::Crash::PowerCut);
  EXPECT_GT(leftovers(harness, 0, 100, 1).kept, 0U);
  EXPECT_LT(leftovers(harness, 0, 100, 1).kept, 100U);
}

}  // namespace
}  // namespace halfstep::io
