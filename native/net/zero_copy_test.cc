// The accounting of sends without a copy: numbers that wrap, ranges that come late, together, or from nowhere.
#include "net/zero_copy.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"

namespace halfstep::net {
namespace {

void never(void*, uint64_t) { FAIL() << "the ledger calls nothing"; }

std::vector<uint64_t> free_tags(ZeroCopyLedger& ledger) {
  std::vector<uint64_t> tags;
  Release release;
  while (ledger.take_free(&release)) tags.push_back(release.tag);
  return tags;
}

Release payload(uint64_t tag) { return {&never, nullptr, tag}; }

TEST(ZeroCopyLedger, HoldsAPayloadUntilAllSendsBeforeItsEndAreDone) {
  ZeroCopyLedger ledger;
  ledger.sent(100);
  ledger.sent(200);
  ASSERT_TRUE(ledger.hold(payload(7)));
  ledger.sent(300);
  ASSERT_TRUE(ledger.hold(payload(8)));
  EXPECT_EQ(ledger.bytes_under_way(), 600U);
  EXPECT_EQ(ledger.notified(1, 1), 200U) << "out of order";
  EXPECT_TRUE(free_tags(ledger).empty());
  EXPECT_EQ(ledger.notified(0, 0), 100U);
  EXPECT_EQ(free_tags(ledger), std::vector<uint64_t>{7});
  EXPECT_FALSE(ledger.empty());
  EXPECT_EQ(ledger.notified(2, 2), 300U);
  EXPECT_EQ(free_tags(ledger), std::vector<uint64_t>{8});
  EXPECT_TRUE(ledger.empty());
  EXPECT_EQ(ledger.bytes_under_way(), 0U);
}

TEST(ZeroCopyLedger, HoldsNothingWhenNothingIsUnderWay) {
  ZeroCopyLedger ledger;
  EXPECT_FALSE(ledger.hold(payload(1)));
  ledger.sent(5);
  EXPECT_EQ(ledger.notified(0, 0), 5U);
  EXPECT_FALSE(ledger.hold(payload(1)));
  EXPECT_TRUE(ledger.empty());
}

TEST(ZeroCopyLedger, TakesNothingFromARangeThatIsNotUnderWay) {
  ZeroCopyLedger ledger;
  EXPECT_EQ(ledger.notified(0, 0), 0U);
  ledger.sent(1);
  ledger.sent(2);
  ASSERT_TRUE(ledger.hold(payload(1)));
  EXPECT_EQ(ledger.notified(1, 2), 0U) << "beyond the last";
  EXPECT_EQ(ledger.notified(2, 2), 0U);
  EXPECT_EQ(ledger.notified(1, 0), 0U) << "the wrong way round: nearly 2^32 of them";
  EXPECT_EQ(ledger.notified(UINT32_MAX, 0), 0U) << "before the first";
  EXPECT_EQ(ledger.bytes_under_way(), 3U);
  EXPECT_EQ(ledger.notified(0, 0), 1U);
  EXPECT_EQ(ledger.notified(0, 1), 0U) << "some of it was done before";
  EXPECT_EQ(ledger.notified(0, UINT32_MAX), 0U);
  EXPECT_TRUE(free_tags(ledger).empty());
  EXPECT_EQ(ledger.notified(1, 1), 2U);
  EXPECT_EQ(free_tags(ledger).size(), 1U);
}

TEST(ZeroCopyLedger, CountsOnBeyondTheLastNumberOfTheKernel) {
  ZeroCopyLedger ledger(UINT32_MAX - 1);
  for (int i = 0; i < 4; ++i) ledger.sent(10);
  ASSERT_TRUE(ledger.hold(payload(1)));
  EXPECT_EQ(ledger.notified(0, 1), 20U) << "the third and fourth";
  EXPECT_EQ(ledger.notified(0, 0), 0U) << "is done; nothing more is taken off";
  EXPECT_TRUE(free_tags(ledger).empty());
  EXPECT_EQ(ledger.notified(UINT32_MAX - 1, UINT32_MAX), 20U);
  EXPECT_EQ(free_tags(ledger).size(), 1U);
  EXPECT_TRUE(ledger.empty());

  ZeroCopyLedger across(UINT32_MAX);
  across.sent(1);
  across.sent(2);
  EXPECT_EQ(across.notified(UINT32_MAX, 0), 3U) << "one range around the end";
  EXPECT_TRUE(across.empty());
}

TEST(ZeroCopyLedger, GivesEverythingBackInTheEnd) {
  ZeroCopyLedger ledger;
  ledger.sent(1);
  ASSERT_TRUE(ledger.hold(payload(1)));
  ASSERT_TRUE(ledger.hold(payload(2)));
  Release release;
  EXPECT_FALSE(ledger.take_free(&release));
  EXPECT_TRUE(ledger.take_any(&release));
  EXPECT_EQ(release.tag, 1U);
  EXPECT_TRUE(ledger.take_any(&release));
  EXPECT_EQ(release.tag, 2U);
  EXPECT_FALSE(ledger.take_any(&release));
}

// Against a model that keeps every number by itself: sends, payloads, and notifications as the kernel makes them, of random
// ranges in random order, some merged, and some that are nonsense.
TEST(ZeroCopyLedger, AgreesWithAModelWhateverTheKernelSays) {
  struct Sent {
    uint32_t number;
    uint32_t bytes;
    bool done;
  };
  struct Kept {
    uint64_t tag;
    size_t sends;
  };
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Prng prng(seed);
    const auto start = static_cast<uint32_t>(seed % 3 == 0 ? 0 : UINT32_MAX - prng.below(400));
    ZeroCopyLedger ledger(start);
    std::vector<Sent> sends;
    std::vector<Kept> kept;
    size_t freed = 0;
    const auto all_done = [&](size_t count) {
      return std::all_of(sends.begin(), sends.begin() + static_cast<ptrdiff_t>(count), [](const Sent& s) { return s.done; });
    };
    const auto check = [&] {
      uint64_t under_way = 0;
      for (const Sent& sent : sends) under_way += sent.done ? 0 : sent.bytes;
      ASSERT_EQ(ledger.bytes_under_way(), under_way) << "seed " << seed;
      for (const uint64_t tag : free_tags(ledger)) {
        ASSERT_LT(freed, kept.size());
        ASSERT_EQ(tag, kept[freed].tag);
        ASSERT_TRUE(all_done(kept[freed].sends)) << "seed " << seed;
        ++freed;
      }
      if (freed < kept.size()) {
        ASSERT_FALSE(all_done(kept[freed].sends)) << "seed " << seed;
      }
    };
    for (uint64_t step = 0; step < 800; ++step) {
      const auto number = [&](size_t at) { return start + static_cast<uint32_t>(at); };
      if (prng.chance(0.4)) {
        const auto bytes = static_cast<uint32_t>(1 + prng.below(1000));
        sends.push_back({number(sends.size()), bytes, false});
        ledger.sent(bytes);
      } else if (prng.chance(0.4)) {
        const bool under_way = !all_done(sends.size());
        ASSERT_EQ(ledger.hold(payload(step)), under_way);
        if (under_way) kept.push_back({step, sends.size()});
      } else if (prng.chance(0.05)) {
        const uint32_t beyond = number(sends.size() + prng.below(1000));
        ASSERT_EQ(ledger.notified(beyond, beyond), 0U);
        ASSERT_EQ(ledger.notified(start, beyond), 0U);
      } else if (!sends.empty()) {
        size_t first = prng.below(sends.size());
        while (first < sends.size() && sends[first].done) ++first;
        size_t end = first;
        uint64_t bytes = 0;
        for (const size_t most = first + 1 + prng.below(8); end < std::min(most, sends.size()) && !sends[end].done; ++end) {
          sends[end].done = true;
          bytes += sends[end].bytes;
        }
        if (end == first) continue;
        ASSERT_EQ(ledger.notified(number(first), number(end - 1)), bytes) << "seed " << seed;
      }
      ASSERT_NO_FATAL_FAILURE(check());
    }
    for (Sent& sent : sends) {
      if (sent.done) continue;
      sent.done = true;
      ASSERT_EQ(ledger.notified(sent.number, sent.number), sent.bytes);
    }
    ASSERT_NO_FATAL_FAILURE(check());
    ASSERT_EQ(freed, kept.size());
    ASSERT_TRUE(ledger.empty());
  }
}

}  // namespace
}  // namespace halfstep::net
