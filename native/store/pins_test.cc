// Persistent holds and expiry changes: budget, log, compactions, restarts and power cuts.
#include <gtest/gtest.h>

#include "store/durable/record_log.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace pins_test {

using Crash = io::MemoryEngine::Crash;

std::string name_of(uint64_t number) { return "block " + std::to_string(number); }

constexpr uint64_t kBlockBytes = 16384;

class Pins : public ::testing::Test {
 protected:
  void open(uint64_t budget_blocks, uint32_t segments = 6) {
    bed_.emplace(1, segments);
    bed_->open();
    ASSERT_EQ(bed_->limit({"default", 0, 0, budget_blocks * kBlockBytes}), Code::Ok);
  }
  void put(std::string_view name) { ASSERT_EQ(bed_->put(name, kGroupPlain, kBlockBytes, true), Code::Ok); }
  void restart(Crash how = Crash::PowerCut) {
    bed_->crash(how);
    bed_->open();
  }
  // Writes all segments over, several times.
  void churn(uint64_t blocks = 3000) {
    for (uint64_t i = 0; i < blocks; ++i) ASSERT_EQ(bed_->put("churn " + name_of(next_++)), Code::Ok);
  }
  uint64_t pinned() const { return bed_->account().pinned_bytes / kBlockBytes; }

  std::optional<StoreBed> bed_;
  uint64_t next_ = 0;
};

TEST_F(Pins, OutlivePowerCutsAndEvictionUntilTheyAreReleased) {
  open(2);
  put("pinned");
  ASSERT_EQ(bed_->pin("pinned", 7), Code::Ok);
  EXPECT_EQ(bed_->pin("absent", 7), Code::NotFound);
  for (int start = 0; start < 3; ++start) {
    restart();
    EXPECT_EQ(bed_->store->recovery().pins, 1U);
    EXPECT_EQ(bed_->store->gauges().pins, 1U);
    EXPECT_EQ(pinned(), 1U);
    churn();
    ASSERT_EQ(bed_->get("pinned"), Code::Ok) << start;
  }
  ASSERT_EQ(bed_->release("pinned", 7), Code::Ok);
  EXPECT_EQ(pinned(), 0U);
  restart();
  EXPECT_EQ(bed_->store->recovery().pins, 0U);
  churn();
  EXPECT_EQ(bed_->get("pinned"), Code::NotFound);
}

TEST_F(Pins, KeepToTheBudgetAndCountABlockOnceHoweverManyPinIt) {
  open(2);
  for (uint64_t i = 0; i < 3; ++i) put(name_of(i));
  ASSERT_EQ(bed_->pin(name_of(0), 1), Code::Ok);
  ASSERT_EQ(bed_->pin(name_of(0), 2), Code::Ok);
  ASSERT_EQ(bed_->pin(name_of(1), 1), Code::Ok);
  EXPECT_EQ(pinned(), 2U);
  EXPECT_EQ(bed_->pin(name_of(2), 1), Status(Code::Throttled, kThrottledPins));
  ASSERT_EQ(bed_->release(name_of(0), 1), Code::Ok);
  EXPECT_EQ(pinned(), 2U) << "its other owner pins it still";
  ASSERT_EQ(bed_->release_all(2), Code::Ok);
  EXPECT_EQ(pinned(), 1U);
  EXPECT_EQ(bed_->pin(name_of(2), 1), Code::Ok);
  // A lower budget takes nothing away, and gives nothing.
  ASSERT_EQ(bed_->limit({"default", 0, 0, 0}), Code::Ok);
  restart();
  EXPECT_EQ(pinned(), 2U);
  EXPECT_EQ(bed_->pin(name_of(0), 1), Status(Code::Throttled, kThrottledPins));
}

TEST_F(Pins, OfAnOwnerAreReleasedTogetherForGood) {
  open(100);
  for (uint64_t i = 0; i < 20; ++i) {
    put(name_of(i));
    ASSERT_EQ(bed_->pin(name_of(i), 1 + i % 2), Code::Ok);
  }
  ASSERT_EQ(bed_->release_all(1), Code::Ok);
  ASSERT_EQ(bed_->pin(name_of(0), 1), Code::Ok);  // afterwards
  restart(Crash::Killed);
  EXPECT_EQ(bed_->store->gauges().pins, 11U);
  EXPECT_EQ(pinned(), 11U);
}

TEST_F(Pins, EndAtTheirTimeAlsoWhileNobodyServes) {
  open(3);
  for (uint64_t i = 0; i < 3; ++i) put(name_of(i));
  ASSERT_EQ(bed_->pin(name_of(0), 1, 100), Code::Ok);
  ASSERT_EQ(bed_->pin(name_of(1), 1, 1000), Code::Ok);
  ASSERT_EQ(bed_->pin(name_of(2), 1), Code::Ok);
  bed_->clock.us += 101'000'000;
  bed_->clock.wall += 101;
  bed_->pump();
  EXPECT_EQ(pinned(), 2U);
  bed_->close();
  bed_->clock.wall += 1000;
  bed_->restart_engine();
  bed_->open();
  EXPECT_EQ(bed_->store->recovery().pins, 1U);
  EXPECT_EQ(pinned(), 1U);
}

TEST_F(Pins, ALeaseOfTheSameOwnerDoesNotWeakenThem) {
  open(1);
  put("both");
  ASSERT_EQ(bed_->pin("both", 7), Code::Ok);
  ASSERT_EQ(bed_->store->hold(bed_->key("both"), 7, bed_->clock.us + 1000), Code::Ok);
  EXPECT_EQ(bed_->store->renew(7, bed_->clock.us + 2000), 0U) << "it has no lease";
  bed_->clock.us += 200'000'000;
  bed_->pump();
  EXPECT_EQ(pinned(), 1U);
  restart();
  EXPECT_EQ(pinned(), 1U);
}

TEST_F(Pins, EndWithTheirBlockAndDoNotTouchItsSuccessor) {
  open(2);
  put("deleted");
  put("evicted");
  ASSERT_EQ(bed_->pin("deleted", 7), Code::Ok);
  ASSERT_EQ(bed_->remove("deleted"), Code::Ok);
  EXPECT_EQ(pinned(), 0U);
  put("deleted");
  restart();
  EXPECT_EQ(pinned(), 0U) << "a record applies to births below its own sequence";
  EXPECT_EQ(bed_->store->gauges().pins, 0U);
}

TEST_F(Pins, OfAClearedLayoutGiveTheirBudgetBack) {
  open(1);
  put("pinned");
  ASSERT_EQ(bed_->pin("pinned", 7), Code::Ok);
  ASSERT_EQ(bed_->change_names([&](auto done) { bed_->store->clear("default", test_layout().id(), done); }), Code::Ok);
  EXPECT_EQ(pinned(), 0U);
  bed_->register_layout();
  put("other");
  EXPECT_EQ(bed_->pin("other", 7), Code::Ok);
  restart();
  EXPECT_EQ(pinned(), 1U);
  EXPECT_EQ(bed_->store->gauges().pins, 1U);
}

TEST_F(Pins, SurviveManyCompactionsOfTheLog) {
  open(40, 8);
  for (uint64_t i = 0; i < 40; ++i) {
    put(name_of(i));
    ASSERT_EQ(bed_->pin(name_of(i), i + 1, i % 2 == 0 ? 0 : 100'000), Code::Ok);
  }
  // A half has 32 pages: each of these takes one.
  for (uint64_t i = 0; i < 200; ++i) {
    ASSERT_EQ(bed_->put("short", kGroupByte, 1), Code::Ok);
    ASSERT_EQ(bed_->remove("short", kGroupByte), Code::Ok);
    if (i % 50 == 0) {
      ASSERT_EQ(bed_->release(name_of(i / 50), i / 50 + 1), Code::Ok);
    }
  }
  restart();
  EXPECT_EQ(bed_->store->recovery().pins, 36U);
  for (uint64_t i = 4; i < 40; ++i) EXPECT_EQ(bed_->get(name_of(i)), Code::Ok);
}

TEST_F(Pins, FillAtMostAQuarterOfTheLogAndLeaveDeletesTheirRoom) {
  open(100'000, 8);
  put("popular");
  // One block, many owners: 31 of 32 pages of 62 records would not leave room for a single delete.
  Status status;
  uint64_t taken = 0;
  for (; status.ok() && taken < 5000; ++taken) status = bed_->pin("popular", taken + 1);
  EXPECT_EQ(status, Status(Code::Throttled, kThrottledLog));
  EXPECT_GT(taken, 450U);
  EXPECT_LT(taken, 500U);
  EXPECT_EQ(bed_->expire("popular", 100), Status(Code::Throttled, kThrottledLog));
  for (uint64_t i = 0; i < 1500; ++i) {
    ASSERT_EQ(bed_->put(name_of(i), kGroupByte, 1), Code::Ok);
    ASSERT_EQ(bed_->remove(name_of(i), kGroupByte), Code::Ok);
  }
  EXPECT_EQ(bed_->get("popular"), Code::Ok);
  // What is released makes room at once.
  ASSERT_EQ(bed_->release("popular", 1), Code::Ok);
  ASSERT_EQ(bed_->release("popular", 2), Code::Ok);
  bed_->settle();
  EXPECT_EQ(bed_->pin("popular", 1), Code::Ok);
  restart();
  EXPECT_EQ(bed_->store->gauges().pins, taken - 2);
}

TEST_F(Pins, WhoseRecordFailedAreNone) {
  open(2);
  put("pinned");
  const Places places = places_of(bed_->geometry);
  bed_->tap->tap = [&](io::Request& request) {
    const bool log =
        request.op == io::Op::Write && (request.offset < places.touch_map(0) || request.offset >= places.log(1, 0, 0));
    return log ? TapEngine::Fate::Fail : TapEngine::Fate::Pass;
  };
  EXPECT_EQ(bed_->pin("pinned", 7).code(), Code::IoError);
  EXPECT_EQ(pinned(), 0U);
  EXPECT_EQ(bed_->store->gauges().pins, 0U);
  bed_->tap->tap = nullptr;
  bed_->settle();
  EXPECT_EQ(bed_->pin("pinned", 7), Code::Ok);
  restart();
  EXPECT_EQ(pinned(), 1U);
}

// ---- Expiry ----------------------------------------------------------------------------------------------------------------

TEST_F(Pins, AnExpiryChangeSurvivesAPowerCutAndReclaimOfItsRecord) {
  open(0);
  for (const char* name : {"sooner", "later", "never", "as it was"}) {
    ASSERT_EQ(bed_->put(name, kGroupPlain, kBlockBytes, true, 1000), Code::Ok);
  }
  ASSERT_EQ(bed_->expire("sooner", 10), Code::Ok);
  ASSERT_EQ(bed_->expire("later", 500), Code::Ok);
  ASSERT_EQ(bed_->expire("later", 5000), Code::Ok);  // the newest counts
  ASSERT_EQ(bed_->expire("never", 0), Code::Ok);
  EXPECT_EQ(bed_->expire("absent", 10), Code::NotFound);
  restart();
  bed_->clock.wall += 11;
  EXPECT_EQ(bed_->get("sooner"), Code::NotFound);
  bed_->clock.us += 2'000'000;
  bed_->settle();
  EXPECT_EQ(bed_->store->counters().blocks_evicted_expired, 1U);
  restart();
  EXPECT_EQ(bed_->get("sooner"), Code::NotFound) << "its entry on flash says 1000 s";
  bed_->clock.wall += 2000;
  EXPECT_EQ(bed_->get("as it was"), Code::NotFound);
  EXPECT_EQ(bed_->get("later"), Code::Ok);
  EXPECT_EQ(bed_->get("never"), Code::Ok);
  bed_->clock.wall += 5000;
  EXPECT_EQ(bed_->get("later"), Code::NotFound);
  EXPECT_EQ(bed_->get("never"), Code::Ok);
}

TEST_F(Pins, AnExpiryChangeDoesNotTouchTheSuccessorOfADeletedBlock) {
  open(0);
  put("reborn");
  ASSERT_EQ(bed_->expire("reborn", 10), Code::Ok);
  ASSERT_EQ(bed_->remove("reborn"), Code::Ok);
  put("reborn");
  restart();
  bed_->clock.wall += 100;
  EXPECT_EQ(bed_->get("reborn"), Code::Ok);
}

TEST_F(Pins, ABlockThatIsNotInAFrameYetTakesItsNewExpiryAlong) {
  open(0);
  StoreBed::Put put;
  ASSERT_TRUE(bed_->begin_put(put, "fresh", kGroupPlain, kBlockBytes, true).ok());
  Change change;
  bool done = false;
  change.key = bed_->key("fresh");
  change.for_s = 10;
  change.owner = &done;
  change.done = [](Change& c) { *static_cast<bool*>(c.owner) = true; };
  bed_->store->expire(change);
  while (!done || !put.done) bed_->pump();
  bed_->clock.wall += 11;
  EXPECT_EQ(bed_->get("fresh"), Code::NotFound);
}

TEST_F(Pins, AnExpiryChangeHoldsForWhatIsStillInMemoryToo) {
  open(2);
  put("sooner");
  ASSERT_EQ(bed_->put("later", kGroupPlain, kBlockBytes, true, 10), Code::Ok);
  ASSERT_EQ(bed_->expire("sooner", 10), Code::Ok);
  ASSERT_EQ(bed_->expire("later", 1000), Code::Ok);
  bed_->clock.wall += 11;
  EXPECT_EQ(bed_->get("sooner"), Code::NotFound);
  EXPECT_EQ(bed_->get("later"), Code::Ok);
  EXPECT_EQ(bed_->store->counters().hits_flash, 0U) << "it was to be answered from memory";
}

// A power cut after any write of a history of pins, releases and expiries: what was answered holds.
TEST_F(Pins, PowerCutAfterAnyWriteLosesNothingThatWasAnswered) {
  for (uint64_t at = 1;; ++at) {
    SCOPED_TRACE("cut after write " + std::to_string(at));
    open(100, 8);
    for (uint64_t i = 0; i < 4; ++i) put(name_of(i));
    bed_->settle();
    const uint64_t before = bed_->engine->counters().writes;
    const auto cut = [&] { return bed_->engine->counters().writes - before >= at; };
    struct Step {
      const char* what;
      uint64_t block;
    };
    constexpr Step kSteps[] = {{"pin", 0},    {"pin", 1}, {"expire", 2},      {"release", 0},
                               {"expire", 3}, {"pin", 0}, {"release_all", 0}, {"pin", 1}};
    // Of each block the state before and after the step that is running when it ends.
    uint64_t done_steps = 0;
    Change change;
    bool done = true;
    for (const Step& step : kSteps) {
      const std::string name = name_of(step.block);
      change = {};
      done = false;
      change.key = bed_->key(name);
      change.holder = 7;
      change.owner = &done;
      change.done = [](Change& c) { *static_cast<bool*>(c.owner) = true; };
      const std::string_view what = step.what;
      if (what == "pin") bed_->store->hold(change);
      if (what == "release") bed_->store->release(change);
      if (what == "release_all") bed_->store->release_all(change);
      change.for_s = 10;
      if (what == "expire") bed_->store->expire(change);
      while (!done && !cut()) bed_->pump();
      if (!done) break;
      ASSERT_EQ(change.status, Code::Ok);
      ++done_steps;
      if (cut()) break;
    }
    const bool finished = done_steps == std::size(kSteps) && !cut();
    restart();
    // After n steps: which of blocks 0 and 1 are pinned, and which of 2 and 3 end soon.
    const auto expected = [&](uint64_t steps) {
      std::array<bool, 4> state{};
      for (uint64_t i = 0; i < steps; ++i) {
        const std::string_view what = kSteps[i].what;
        if (what == "pin" || what == "expire") state[kSteps[i].block] = true;
        if (what == "release") state[kSteps[i].block] = false;
        if (what == "release_all") state[0] = state[1] = false;
      }
      return state;
    };
    bed_->clock.wall += 11;
    const std::array<bool, 4> seen{false, false, !bed_->store->find(bed_->key(name_of(2))).present,
                                   !bed_->store->find(bed_->key(name_of(3))).present};
    const auto agrees = [&](const std::array<bool, 4>& state) {
      const uint64_t pins = (state[0] ? 1U : 0U) + (state[1] ? 1U : 0U);
      return bed_->store->gauges().pins == pins && seen[2] == state[2] && seen[3] == state[3];
    };
    const uint64_t most = std::min<uint64_t>(done_steps + 1, std::size(kSteps));
    EXPECT_TRUE(agrees(expected(done_steps)) || agrees(expected(most))) << done_steps << " steps were answered";
    if (finished || HasFailure()) return;
  }
}

}  // namespace pins_test
}  // namespace halfstep::store
