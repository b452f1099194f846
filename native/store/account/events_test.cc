#include "store/account/events.h"

#include <algorithm>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

std::vector<std::string> all(const Events& events, uint64_t after = 0, uint32_t limit = 1000) {
  std::vector<std::string> out;
  (void)events.poll(after, limit, [&](const Event& event, ConstBytes key) {
    out.push_back(std::string(event_reason_name(event.reason)) + " " + std::string(as_text(key)));
  });
  return out;
}

EventOf named(std::string_view name) { return {{1, 2}, 1, 0, 4096, as_bytes(name)}; }

// ---- The ring

TEST(Events, AReaderThatFollowsSeesEachOnceInOrder) {
  Events events(8);
  EXPECT_EQ(events.oldest(), events.newest() + 1);
  for (const char* name : {"a", "b", "c"}) events.note(EventReason::Put, named(name), 7);
  auto polled = events.poll(0, 2, [](const Event&, ConstBytes) {});
  EXPECT_EQ(polled.last, 2U);
  EXPECT_EQ(polled.lost, 0U);
  EXPECT_EQ(all(events, polled.last), (std::vector<std::string>{"put c"}));
  polled = events.poll(3, 2, [](const Event&, ConstBytes) { FAIL() << "there is nothing new"; });
  EXPECT_EQ(polled.last, 3U);
}

TEST(Events, AReaderThatFallsBehindLearnsHowManyItMissed) {
  Events events(4);
  for (int i = 0; i < 10; ++i) events.note(i % 2 == 0 ? EventReason::Put : EventReason::Deleted, named("k"), 7);
  EXPECT_EQ(events.oldest(), 7U);
  const auto polled = events.poll(2, 100, [](const Event&, ConstBytes) {});
  EXPECT_EQ(polled.lost, 4U) << "3 to 6";
  EXPECT_EQ(polled.last, 10U);
  EXPECT_EQ(events.counted(EventReason::Put), 5U);
  EXPECT_EQ(events.forgotten(EventReason::Put), 3U);
  EXPECT_EQ(events.forgotten(EventReason::Deleted), 3U);
}

TEST(Events, ANumberOfAnotherStartIsToldApart) {
  Events events(4);
  events.note(EventReason::Put, named("k"), 7);
  const auto polled = events.poll(99, 100, [](const Event&, ConstBytes) {});
  EXPECT_TRUE(polled.foreign);
  EXPECT_EQ(polled.last, 1U);
}

TEST(Events, LongKeysAreForgottenBeforeTheirEventsAndNeverMixed) {
  Events events(64);
  for (int i = 0; i < 200; ++i) {
    const std::string name(static_cast<size_t>(1 + i * 37 % 255), static_cast<char>('a' + i % 26));
    events.note(EventReason::Put, named(name), 7);
    uint32_t known = 0;
    for (uint64_t n = events.oldest(); n <= events.newest(); ++n) {
      const ConstBytes key = events.engine_key(events.at(n));
      if (key.empty()) continue;
      ++known;
      const auto number = static_cast<int>(n) - 1;
      ASSERT_EQ(as_text(key), std::string(static_cast<size_t>(1 + number * 37 % 255), static_cast<char>('a' + number % 26)));
    }
    ASSERT_GE(known, std::min<uint32_t>(static_cast<uint32_t>(i) + 1, 11)) << "64 x 48 bytes hold at least so many";
  }
}

// ---- Of a store

TEST(Events, PutAndDeleteTellTheKeyAndItsParent) {
  StoreBed bed;
  bed.open();
  StoreBed::Put child;
  child.write.parent_kind = Parent::Known;
  child.write.parent = 77;
  ASSERT_TRUE(bed.begin_put(child, "child", kGroupPlain, 16384, false).ok());
  while (!child.done) bed.pump();
  ASSERT_TRUE(bed.remove("child").ok());
  EXPECT_EQ(bed.remove("child"), Code::NotFound);
  const Events& events = bed.store->events();
  EXPECT_EQ(all(events), (std::vector<std::string>{"put child", "deleted child"}));
  EXPECT_EQ(events.at(1).parent, 77U);
  EXPECT_EQ(events.at(1).key, bed.key("child"));
  EXPECT_EQ(events.at(1).block_bytes, 16384U);
}

TEST(Events, WhatExpiredIsToldWhenItIsSwept) {
  StoreBed bed;
  bed.open();
  ASSERT_TRUE(bed.put("short", kGroupPlain, 16384, true, 5).ok());
  bed.clock.wall += 10;
  bed.clock.us += 10'000'000;
  bed.settle();
  bed.clock.us += 1'000'000;
  bed.settle();
  EXPECT_EQ(all(bed.store->events()), (std::vector<std::string>{"put short", "expired short"}));
}

TEST(Events, WhatExpiredInASealedSegmentIsNamedByItsRoll) {
  StoreBed bed;
  bed.open();
  const std::string name(200, 'n');
  ASSERT_TRUE(bed.put(name, kGroupPlain, 16384, true, 50).ok());
  ASSERT_TRUE(bed.put("stays", kGroupPlain, 16384, true).ok());
  bed.reopen();
  bed.clock.wall += 100;
  bed.clock.us += 100'000'000;
  bed.settle();
  EXPECT_TRUE(all(bed.store->events()).empty()) << "rolls are read with pauses between";
  bed.clock.us += 1'000'000;
  bed.settle();
  EXPECT_EQ(all(bed.store->events()), (std::vector<std::string>{"expired " + name}));
}

TEST(Events, WhatWasStoredAnewBeforeItsEndWasToldIsNotToldAsGone) {
  StoreBed bed;
  bed.open();
  ASSERT_TRUE(bed.put("again", kGroupPlain, 16384, true, 5).ok());
  bed.clock.wall += 10;
  bed.clock.us += 10'000'000;
  bed.settle();
  ASSERT_TRUE(bed.put("again", kGroupPlain, 16384, true).ok());
  bed.clock.us += 1'000'000;
  bed.settle();
  EXPECT_EQ(all(bed.store->events()), (std::vector<std::string>{"put again", "put again"}));
}

TEST(Events, MoreExpiredAtOnceThanAreRememberedAreCounted) {
  StoreBed bed;
  bed.options.events_max = 4;
  bed.open();
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(bed.put("k" + std::to_string(i), kGroupPlain, 16384, true, 5).ok());
  bed.clock.wall += 10;
  bed.clock.us += 10'000'000;
  bed.settle();
  bed.clock.us += 1'000'000;
  bed.settle();
  const Events& events = bed.store->events();
  EXPECT_EQ(events.counted(EventReason::Unnamed), 1U);
  EXPECT_EQ(events.counted(EventReason::Expired), 4U);
  EXPECT_EQ(events.forgotten(EventReason::Unnamed), 1U) << "four came after it";
}

TEST(Events, EvictionTellsEveryBlockThatWent) {
  StoreBed bed;
  bed.open();
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(bed.put("k" + std::to_string(i), kGroupOpaque, 64 * KiB, true).ok());
  const Events& events = bed.store->events();
  EXPECT_GT(events.counted(EventReason::Evicted), 0U);
  EXPECT_EQ(events.counted(EventReason::Evicted), bed.store->counters().blocks_evicted_age);
  EXPECT_EQ(events.counted(EventReason::Put) - events.counted(EventReason::Evicted), bed.store->gauges().blocks);
}

TEST(Events, EvictionOfWhatAnEarlierStartWroteTellsItByName) {
  StoreBed bed;
  bed.open();
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(bed.put("old" + std::to_string(i), kGroupOpaque, 64 * KiB, true).ok());
  bed.reopen();
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(bed.put("k" + std::to_string(i), kGroupOpaque, 64 * KiB, true).ok());
  const std::vector<std::string> told = all(bed.store->events());
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(std::count(told.begin(), told.end(), "evicted old" + std::to_string(i)), 1) << i;
  }
  EXPECT_EQ(bed.store->events().counted(EventReason::Unnamed), 0U);
}

// Footers and frame headers that cannot be read: reclaim goes on, and what it drops is counted.
TEST(Events, ARollThatCannotBeReadStopsNobodyAndIsToldAsUnnamed) {
  StoreBed bed;
  bed.open();
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(bed.put("old" + std::to_string(i), kGroupOpaque, 64 * KiB, true).ok());
  bed.reopen();
  const uint64_t end = bed.device->bytes();
  bed.tap->tap = [&](io::Request& request) {
    const bool segments = request.offset >= places_of(bed.geometry).segment(0) && request.offset < end;
    return request.op == io::Op::Read && segments ? TapEngine::Fate::Fail : TapEngine::Fate::Pass;
  };
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(bed.put("k" + std::to_string(i), kGroupOpaque, 64 * KiB, true).ok()) << i;
  uint64_t unnamed = 0;
  const Events& events = bed.store->events();
  for (uint64_t n = events.oldest(); n <= events.newest(); ++n) {
    if (events.at(n).reason == EventReason::Unnamed) unnamed += events.at(n).blocks();
  }
  EXPECT_GE(unnamed, 60U);
  EXPECT_EQ(unnamed + events.counted(EventReason::Evicted), bed.store->counters().blocks_evicted);
}

TEST(Events, WhereNobodyRemembersNoRollIsRead) {
  StoreBed bed(1, 7);  // too few segments for copies
  bed.options.events_max = 0;
  bed.open();
  uint32_t reads = 0;
  bed.tap->tap = [&](io::Request& request) {
    reads += request.op == io::Op::Read ? 1 : 0;
    return TapEngine::Fate::Pass;
  };
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(bed.put("k" + std::to_string(i), kGroupOpaque, 64 * KiB, true, 5).ok());
  bed.clock.wall += 10;
  bed.clock.us += 10'000'000;
  bed.settle();
  bed.clock.us += 1'000'000;
  bed.settle();
  EXPECT_GT(bed.store->counters().blocks_evicted, 300U);
  EXPECT_EQ(bed.store->events().newest(), 0U);
  EXPECT_EQ(reads, 0U);
}

TEST(Events, RotThatAGetFindsIsToldAsCorrupt) {
  StoreBed bed;
  bed.open();
  ASSERT_TRUE(bed.put("rot", kGroupPlain, 16384, true).ok());
  bed.reopen();
  const std::vector<std::byte> content = bytes_of_key("rot", 16384);
  std::vector<std::byte> page(kPageBytes);
  for (uint64_t at = 0; at < bed.device->bytes(); at += kPageBytes) {
    bed.device->read(at, page);
    if (std::equal(page.begin(), page.end(), content.begin())) bed.device->flip_bit(at + 100, 3);
  }
  EXPECT_EQ(bed.get("rot"), Code::Corrupt);
  EXPECT_EQ(all(bed.store->events()), (std::vector<std::string>{"corrupt rot"}));
}

TEST(Events, AClearedLayoutIsOneEvent) {
  StoreBed bed;
  bed.open();
  for (const char* name : {"a", "b"}) ASSERT_TRUE(bed.put(name).ok());
  const uint32_t scope = bed.scope;
  ASSERT_TRUE(bed.change_names([&](auto done) { bed.store->clear("default", test_layout().id(), done); }).ok());
  bed.settle();
  const Events& events = bed.store->events();
  EXPECT_EQ(all(events), (std::vector<std::string>{"put a", "put b", "layout_cleared "}));
  ASSERT_EQ(events.retired().size(), 1U);
  EXPECT_EQ(events.retired()[0].scope, scope);
  EXPECT_EQ(events.retired()[0].name.layout, test_layout().id());
  EXPECT_EQ(bed.store->name_of(scope).name_space, "default");
}

TEST(Events, ADeletedNamespaceIsToldByName) {
  StoreBed bed;
  bed.open();
  ASSERT_TRUE(bed.change_names([&](auto done) { bed.store->create_namespace({"gone"}, done); }).ok());
  uint32_t scope = 0;
  bed.store->register_layout("gone", test_layout(), [&](Status, uint32_t got) { scope = got; });
  while (scope == 0) bed.pump();
  ASSERT_TRUE(bed.change_names([&](auto done) { bed.store->delete_namespace("gone", done); }).ok());
  EXPECT_EQ(all(bed.store->events()), (std::vector<std::string>{"namespace_deleted "}));
  EXPECT_EQ(bed.store->name_of(scope).name_space, "gone");
}

}  // namespace
}  // namespace halfstep::store
