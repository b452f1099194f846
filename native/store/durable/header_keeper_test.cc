// The header that shards share: one pen, news for everybody before an answer, and a wake for whoever waits. Threads wait for
// their wake alone, without a time limit: one that does not come hangs these tests.
#include "store/durable/header_keeper.h"

#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

using Snapshot = HeaderKeeper::Snapshot;
using Seat = HeaderKeeper::Seat;

std::shared_ptr<HeaderKeeper> make_keeper() {
  StoreBed bed;
  std::shared_ptr<HeaderKeeper> keeper;
  EXPECT_TRUE(HeaderKeeper::load(*bed.engine, &keeper).ok());
  EXPECT_TRUE(keeper->start(*bed.engine, bed.clock).ok());
  return keeper;
}

HeaderState with_sequence(uint64_t sequence, const HeaderState& of) {
  HeaderState state = of;
  state.fixed.sequence = sequence;
  return state;
}

TEST(HeaderKeeper, ANewSnapshotIsKnownToAllBeforeItsWriterIsDone) {
  auto keeper = make_keeper();
  std::array<int, 3> woken{};
  Seat a(keeper, [&] { ++woken[0]; });
  Seat b(keeper, [&] { ++woken[1]; });
  Seat c(keeper, [&] { ++woken[2]; });
  EXPECT_EQ(a.news(), nullptr);
  ASSERT_TRUE(a.take_pen());
  a.publish(with_sequence(77, *a.take_first()));
  EXPECT_EQ(woken, (std::array{0, 1, 1}));
  EXPECT_EQ(a.news()->fixed.sequence, 77U);
  EXPECT_FALSE(a.all_know());
  EXPECT_TRUE(b.called());
  EXPECT_FALSE(b.called()) << "once";
  EXPECT_EQ(b.news()->fixed.sequence, 77U);
  EXPECT_EQ(b.news(), nullptr) << "once";
  EXPECT_FALSE(a.all_know());
  EXPECT_EQ(woken[0], 0);
  EXPECT_EQ(c.news()->fixed.sequence, 77U);
  EXPECT_TRUE(a.all_know());
  EXPECT_EQ(woken[0], 1) << "the last to hear of it wakes the writer";
}

TEST(HeaderKeeper, ThePenIsGivenOnInTheOrderOfAsking) {
  auto keeper = make_keeper();
  std::vector<char> woken;
  Seat a(keeper, [&] { woken.push_back('a'); });
  Seat b(keeper, [&] { woken.push_back('b'); });
  Seat c(keeper, [&] { woken.push_back('c'); });
  ASSERT_TRUE(a.take_pen());
  EXPECT_FALSE(c.take_pen());
  EXPECT_FALSE(b.take_pen());
  EXPECT_FALSE(c.take_pen()) << "asking again is the same asking";
  a.give_pen();
  EXPECT_EQ(woken, std::vector<char>{'c'});
  EXPECT_FALSE(a.take_pen());
  EXPECT_FALSE(b.take_pen());
  EXPECT_TRUE(c.take_pen());
  c.give_pen();
  EXPECT_TRUE(b.take_pen());
  b.give_pen();
  EXPECT_TRUE(a.take_pen());
}

TEST(HeaderKeeper, WhoLeavesIsNotWaitedForAndLeavesThePen) {
  auto keeper = make_keeper();
  int woken = 0;
  Seat a(keeper, [&] { ++woken; });
  auto b = std::make_unique<Seat>(keeper, nullptr);
  ASSERT_TRUE(a.take_pen());
  a.publish(with_sequence(5, *a.take_first()));
  EXPECT_NE(a.news(), nullptr);
  EXPECT_FALSE(a.all_know());
  b = nullptr;
  EXPECT_TRUE(a.all_know());
  EXPECT_EQ(woken, 1);
  a.give_pen();
  auto c = std::make_unique<Seat>(keeper, nullptr);
  EXPECT_EQ(c->take_first()->fixed.sequence, 5U) << "who comes later knows the newest";
  ASSERT_TRUE(c->take_pen());
  EXPECT_FALSE(a.take_pen());
  c = nullptr;
  EXPECT_EQ(woken, 2);
  EXPECT_TRUE(a.take_pen());
}

TEST(HeaderKeeper, TheLastToLeaveHearsWhetherAllLeftCleanly) {
  for (const bool first_clean : {true, false}) {
    auto keeper = make_keeper();
    Seat a(keeper, nullptr);
    Seat b(keeper, nullptr);
    bool clean = first_clean;
    EXPECT_FALSE(a.leave(&clean));
    clean = true;
    EXPECT_TRUE(b.leave(&clean));
    EXPECT_EQ(clean, first_clean);
    EXPECT_TRUE(b.take_pen()) << "it stays, to write that down";
  }
  auto keeper = make_keeper();
  auto gone = std::make_unique<Seat>(keeper, nullptr);
  Seat b(keeper, nullptr);
  gone = nullptr;  // without a word
  bool clean = true;
  EXPECT_TRUE(b.leave(&clean));
  EXPECT_FALSE(clean);
}

TEST(HeaderKeeper, AStoreThatIsLostIsLostToAll) {
  auto keeper = make_keeper();
  int woken = 0;
  Seat a(keeper, nullptr);
  Seat b(keeper, [&] { ++woken; });
  EXPECT_FALSE(b.lost());
  a.lose();
  EXPECT_EQ(woken, 1);
  EXPECT_TRUE(b.called());
  EXPECT_TRUE(b.lost());
}

TEST(HeaderKeeper, OwnershipIsTakenOnceAndItsOutcomeToldToAll) {
  StoreBed bed;
  std::shared_ptr<HeaderKeeper> keeper;
  ASSERT_TRUE(HeaderKeeper::load(*bed.engine, &keeper).ok());
  const uint64_t before = keeper->newest()->fixed.start_number;
  ASSERT_TRUE(keeper->start(*bed.engine, bed.clock).ok());
  ASSERT_TRUE(keeper->start(*bed.engine, bed.clock).ok());
  EXPECT_EQ(keeper->newest()->fixed.start_number, before + 1);

  ASSERT_TRUE(HeaderKeeper::load(*bed.engine, &keeper).ok());
  bed.engine->inject({.op = io::Op::Write});
  EXPECT_EQ(keeper->start(*bed.engine, bed.clock).status, Code::IoError);
  EXPECT_EQ(keeper->start(*bed.engine, bed.clock).status, Code::IoError);
}

// Of what an earlier process wrote: whoever recovers it must not call it durable.
TEST(HeaderKeeper, AFlushThatFailsAsOwnershipIsTakenIsCounted) {
  StoreBed bed;
  std::shared_ptr<HeaderKeeper> keeper;
  ASSERT_TRUE(HeaderKeeper::load(*bed.engine, &keeper).ok());
  bed.engine->inject({.op = io::Op::Flush, .times = 1});
  ASSERT_TRUE(keeper->start(*bed.engine, bed.clock).ok());
  EXPECT_EQ(FlushBoard::Place(keeper->flushes(), {}).failures(), 1U);
}

// ---- Changes that fail -----------------------------------------------------------------------------------------------------

// A delete that failed at both ends, of which a copy may say that it took place.
class FailedDelete : public testing::Test {
 protected:
  void SetUp() override {
    bed_.open();
    ASSERT_TRUE(bed_.put("before", kGroupPlain, 16384, true).ok());
    bed_.engine->inject({.op = io::Op::Flush, .times = 2});
    ASSERT_EQ(bed_.change_names([&](auto done) { bed_.store->delete_namespace("default", done); }), Code::IoError);
    ASSERT_TRUE(bed_.store->has_namespace("default"));
  }

  StoreBed bed_{41, 8};
};

TEST_F(FailedDelete, NothingIsCalledDurableBeforeTheHeaderHasBeenWrittenAgain) {
  EXPECT_EQ(bed_.put("meanwhile", kGroupPlain, 16384, true), Code::IoError);
  StoreBed::Put again;
  EXPECT_EQ(bed_.begin_put(again, "meanwhile", kGroupPlain, 16384, true), Status(Code::Throttled, kThrottledPending));
  for (int turns = 0; turns < 20'000; ++turns) bed_.pump();  // two seconds
  EXPECT_EQ(bed_.put("meanwhile", kGroupPlain, 16384, true), Code::Present);
  ASSERT_TRUE(bed_.put("afterwards", kGroupPlain, 16384, true).ok());
  bed_.crash(io::MemoryEngine::Crash::PowerCut);
  bed_.open();
  for (const char* name : {"meanwhile", "afterwards"}) EXPECT_EQ(bed_.get(name), Code::Ok) << name;
}

TEST_F(FailedDelete, ACleanStopWritesWhatIsKnown) {
  bed_.reopen();
  EXPECT_TRUE(bed_.store->has_namespace("default"));
}

// A shard as the keeper sees one: a thread that does nothing until it is woken, or asked.
class Walker {
 public:
  Walker(std::shared_ptr<HeaderKeeper> keeper, int changes)
      : seat_(std::move(keeper), [this] { post(nullptr); }), known_(seat_.take_first()), changes_left_(changes) {
    thread_ = std::thread([this] { walk(); });
  }
  // What it knows now, asked as a client would: by a message.
  uint64_t ask() {
    std::promise<uint64_t> answer;
    post([&] { answer.set_value(known_->fixed.sequence); });
    return answer.get_future().get();
  }
  // After each of its changes, before it goes on.
  std::function<void(uint64_t sequence)> on_answer;
  void begin() {
    post([this] { begun_ = true; });
  }
  void wait_all_changes() { all_done_.get_future().wait(); }
  void end() {
    post([this] { ended_ = true; });
    thread_.join();
  }

 private:
  void post(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(call));
    changed_.notify_one();
  }
  void walk() {
    while (!ended_) {
      std::function<void()> call;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !posted_.empty(); });
        call = std::move(posted_.front());
        posted_.pop_front();
      }
      if (call) call();
      turn();
    }
  }
  void turn() {
    if (seat_.called()) take_news();
    for (;;) {
      if (telling_ && !seat_.all_know()) return;
      if (telling_) {
        telling_ = false;
        seat_.give_pen();
        on_answer(known_->fixed.sequence);
        if (--changes_left_ == 0) all_done_.set_value();
      }
      if (!begun_ || changes_left_ == 0 || !seat_.take_pen()) return;
      take_news();
      seat_.publish(with_sequence(known_->fixed.sequence + 1, *known_));
      take_news();
      telling_ = true;
    }
  }
  void take_news() {
    const Snapshot next = seat_.news();
    if (next == nullptr) return;
    EXPECT_GT(next->fixed.sequence, known_->fixed.sequence);
    known_ = next;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  Seat seat_;
  Snapshot known_;
  int changes_left_;
  bool begun_ = false;
  bool telling_ = false;
  bool ended_ = false;
  std::promise<void> all_done_;
  std::thread thread_;
};

TEST(HeaderKeeper, ThreadsChangeItSideBySideAndNoChangeIsAnsweredBeforeAllKnowIt) {
  constexpr int kChanges = 200;
  constexpr int kWalkers = 4;
  auto keeper = make_keeper();
  const uint64_t first = keeper->newest()->fixed.sequence;
  Walker witness(keeper, 0);  // changes nothing itself
  std::vector<std::unique_ptr<Walker>> walkers;
  for (int i = 0; i < kWalkers; ++i) {
    walkers.push_back(std::make_unique<Walker>(keeper, kChanges));
    walkers.back()->on_answer = [&](uint64_t sequence) { EXPECT_GE(witness.ask(), sequence); };
  }
  for (const auto& walker : walkers) walker->begin();
  for (const auto& walker : walkers) walker->wait_all_changes();
  EXPECT_EQ(keeper->newest()->fixed.sequence, first + kWalkers * kChanges) << "no change took another's place";
  for (const auto& walker : walkers) walker->end();
  witness.end();
}

TEST(HeaderKeeper, WhoWaitsInAShutdownIsCalledToo) {
  auto keeper = make_keeper();
  Seat a(keeper, nullptr);
  Seat b(keeper, nullptr);
  std::thread other([&] {
    b.wait_called();
    EXPECT_NE(b.news(), nullptr);
  });
  ASSERT_TRUE(a.take_pen());
  a.publish(with_sequence(9, *a.take_first()));
  EXPECT_NE(a.news(), nullptr);
  while (!a.all_know()) a.wait_called();
  other.join();
}

}  // namespace
}  // namespace halfstep::store
