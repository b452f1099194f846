// Tombstones are tried until they are on media, and a delete counts for what recovery has not found yet.
#include "store/durable/tombstones.h"

#include <gtest/gtest.h>

#include <utility>

#include "io/memory_engine.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

class TombstonesTest : public ::testing::Test {
 protected:
  TombstonesTest() {
    LogContents contents;
    EXPECT_TRUE(log_.format_now().ok());
    EXPECT_TRUE(log_.load(&contents).ok());
    EXPECT_TRUE(log_.restart(contents, {}, contents.segments, sequence_.draw()).ok());
  }

  // Until all that was appended is answered.
  void drive() {
    while (log_.busy()) {
      log_.turn(0, sequence_.draw(), 1);
      flusher_.turn();
      engine_.flush_submissions();
      engine_.wait();
      engine_.poll();
    }
  }
  void fail_writes(bool fail) {
    engine_.set_outage([fail](const io::Request& request) { return fail && request.op == io::Op::Write ? -EIO : 0; });
  }

  const Geometry geometry_{32 * MiB, 2 * MiB, 8, 1, 256 * KiB};
  const Places places_ = places_of(geometry_);
  io::MemoryDevice device_{geometry_.device_bytes};
  io::MemoryEngine engine_{{}, {&device_}};
  uint64_t flushes_ = 0;
  Flusher flusher_{engine_, flushes_};
  RecordLog log_{{&engine_, &flusher_, places_, HashKey{3, 4}}};
  Sequence sequence_;
  TestClock clock_;
  Tombstones tombstones_{log_, sequence_, clock_};
};

TEST_F(TombstonesTest, OneThatFailedIsLoggedAgainWithItsSequence) {
  const IndexKey key{1, 2};
  fail_writes(true);
  tombstones_.bury(key);
  const uint64_t drawn = sequence_.last();
  drive();
  EXPECT_FALSE(tombstones_.all_buried());
  EXPECT_EQ(log_.tombstone_count(), 0U);
  EXPECT_EQ(tombstones_.next_turn_us(), clock_.us + 100'000);

  fail_writes(false);
  tombstones_.turn();
  EXPECT_FALSE(log_.busy()) << "not before it is due";
  clock_.us += 100'000;
  tombstones_.turn();
  drive();
  EXPECT_TRUE(tombstones_.all_buried());
  EXPECT_EQ(tombstones_.next_turn_us(), UINT64_MAX);
  ASSERT_EQ(log_.tombstone_count(), 1U);
  EXPECT_EQ(log_.tombstones().front().key, key);
  EXPECT_EQ(log_.tombstones().front().sequence, drawn) << "the block may have been put again since";
}

TEST_F(TombstonesTest, WhoeverStopsTheStoreDoesNotWaitUntilOneIsDue) {
  fail_writes(true);
  tombstones_.bury({1, 2});
  drive();
  fail_writes(false);
  tombstones_.bury_now();
  EXPECT_TRUE(tombstones_.all_buried()) << "none is left to be logged";
  drive();
  EXPECT_EQ(log_.tombstone_count(), 1U);
}

TEST_F(TombstonesTest, WhoLogsOneHearsThatItFailedAndItIsTriedAgain) {
  struct Asked {
    Tombstones* tombstones;
    Status status;
  } asked{&tombstones_, {}};
  fail_writes(true);
  tombstones_.log(
      {5, 6},
      [](RecordLog::Pending& pending, Status status) {
        auto& of = *static_cast<Asked*>(pending.owner);
        of.status = status;
        of.tombstones->answered(pending, status);
      },
      &asked);
  drive();
  EXPECT_EQ(asked.status, Code::IoError);
  EXPECT_FALSE(tombstones_.all_buried());
}

TEST_F(TombstonesTest, WhileRecoveringADeleteCountsForWhatIsFoundLater) {
  const IndexKey before{1, 2};
  const IndexKey now{3, 4};
  EXPECT_FALSE(tombstones_.recovering());
  index::Table known;
  known.put(hash_of(before), 7);
  tombstones_.begin_recovery(std::move(known));
  EXPECT_TRUE(tombstones_.recovering());
  EXPECT_EQ(tombstones_.newest(before), 7U);
  EXPECT_EQ(tombstones_.newest(now), index::Table::kNone);
  tombstones_.bury(now);
  EXPECT_EQ(tombstones_.newest(now), sequence_.last());
  drive();
  tombstones_.end_recovery();
  EXPECT_FALSE(tombstones_.recovering());
}

}  // namespace
}  // namespace halfstep::store
