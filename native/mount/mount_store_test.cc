// The order of what a mount passes on, and how much of it waits, while its upstream is away.
#include "mount/mount_store.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "base/units.h"
#include "shard/metrics.h"

namespace halfstep::mount {
namespace {

constexpr uint32_t kBlockBytes = 4096;
constexpr Status kNoAnswer{Code::IoError, shard::kNoAnswer};
// What bounds a hang, not a speed.
constexpr uint64_t kPatienceUs = 60'000'000;

class MountStoreTest : public ::testing::Test {
 protected:
  // Nobody listens there: each request ends at its deadline.
  void SetUp() override {
    ASSERT_TRUE(Arena::create(64 * MiB, false, &arena_).ok());
    slots_ = std::make_unique<SlotPool>(*arena_);
    options_.upstream = "unix:/nonexistent/halfstep.sock";
    options_.upstream_deadline_us = 100'000;
    auto upstream = std::make_unique<Upstream>();
    ASSERT_TRUE(upstream->open(options_).ok());
    upstream_ = upstream.get();
    ASSERT_TRUE(MountStore::open(*slots_, clock_, options_, {}, 0.5, std::move(upstream), &store_).ok());
    ASSERT_TRUE(
        wire::Layout::make({{"model", "mount"}}, {{.part_count = 1, .size_count = 1, .part_bytes = {kBlockBytes}}}, &layout_)
            .ok());
    store_->register_layout("default", layout_, [this](Status, uint32_t scope) { scope_ = scope; });
    ASSERT_NE(scope_, 0U);
  }
  void TearDown() override {
    if (store_ != nullptr) (void)store_->close();
  }

  store::BlockName name_of(std::string_view key) const { return {scope_, {}, as_bytes(key)}; }
  store::IndexKey key_of(std::string_view key) const { return store_->key_of(name_of(key)); }
  void put(std::string_view key) {
    store::Write write;
    write.name = name_of(key);
    write.key = key_of(key);
    write.block_bytes = kBlockBytes;
    write.done = [](store::Write&) {};
    ASSERT_TRUE(store_->begin_write(write).ok());
    store_->commit_write(write);
  }
  // Of one that no fetch can be begun for.
  Status read_of(std::string_view key) {
    store::Read read;
    read.key = key_of(key);
    read.complete = [](store::Read&) {};
    std::array<store::Read*, 1> window = {&read};
    EXPECT_TRUE(store_->begin_reads(window).ok());
    return read.status;
  }
  // Turns until it is so. False: it has not become so.
  template <typename True>
  bool turn_until(True&& true_now) {
    const uint64_t end_us = clock_.now_us() + kPatienceUs;
    while (!true_now()) {
      if (clock_.now_us() > end_us) return false;
      store_->turn();
      if (!true_now()) upstream_->wait(5);
    }
    return true;
  }
  double counted(const std::string& name, const std::string& label) const {
    shard::Metrics metrics;
    store_->collect(&metrics);
    for (const shard::Sample& sample : metrics.counters) {
      if (sample.name == name && !sample.labels.empty() && sample.labels.front().second == label) return sample.value;
    }
    ADD_FAILURE() << name;
    return 0;
  }

  SystemClock clock_;
  Options options_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<SlotPool> slots_;
  std::unique_ptr<MountStore> store_;
  Upstream* upstream_ = nullptr;
  wire::Layout layout_;
  uint32_t scope_ = 0;
};

TEST_F(MountStoreTest, AClearBehindAPutThatHasNotGoneYetIsAnswered) {
  put("k");
  bool cleared = false;
  store_->clear("default", layout_.id(), [&](Status) { cleared = true; });
  EXPECT_TRUE(turn_until([&] { return cleared; }));
}

TEST_F(MountStoreTest, ADeleteBehindAPutOfALayoutThatWasClearedIsAnswered) {
  put("k");
  bool deleted = false;
  store::Change change;
  change.key = key_of("k");
  change.engine_key = as_bytes(std::string_view("k"));
  change.owner = &deleted;
  change.done = [](store::Change& of) { *static_cast<bool*>(of.owner) = true; };
  store_->remove(change);
  EXPECT_FALSE(deleted) << "the put is to come first";
  store_->clear("default", layout_.id(), [](Status) {});
  EXPECT_TRUE(turn_until([&] { return deleted; }));
}

// What was asked for between a clear and its answer may be from before it.
TEST_F(MountStoreTest, NothingThatWasAskedForDuringAClearIsKnownAfterIt) {
  bool cleared = false;
  store_->clear("default", layout_.id(), [&](Status) { cleared = true; });
  const uint32_t during = store_->find_scope("default", layout_.id());
  ASSERT_NE(during, scope_);
  scope_ = during;
  const std::array<store::BlockName, 1> names = {name_of("k")};
  const std::array<store::IndexKey, 1> keys = {key_of("k")};
  shard::Question question{.names = names, .keys = keys, .until_us = clock_.now_us() + 50'000};
  question.done = [](shard::Question&) {};
  ASSERT_TRUE(store_->ask(question));
  ASSERT_TRUE(turn_until([&] { return cleared; }));
  const uint32_t after = store_->find_scope("default", layout_.id());
  EXPECT_NE(after, 0U);
  EXPECT_NE(after, during);
  store_->forget(question);
}

// Requests are pooled: the next one's question stands where the last one's stood.
TEST_F(MountStoreTest, AnAnswerToAForgottenQuestionIsNotTheNextOnes) {
  const std::array<store::BlockName, 1> names = {name_of("k")};
  const std::array<store::IndexKey, 1> keys = {key_of("k")};
  bool done = false;
  shard::Question question;
  const auto ask = [&](uint64_t for_us) {
    question = {.names = names, .keys = keys, .until_us = clock_.now_us() + for_us, .owner = &done};
    question.done = [](shard::Question& of) { *static_cast<bool*>(of.owner) = true; };
    return store_->ask(question);
  };
  ASSERT_TRUE(ask(50'000));
  store_->forget(question);
  ASSERT_TRUE(ask(500'000));
  ASSERT_TRUE(turn_until([&] { return done; }));
  EXPECT_EQ(counted("halfstep_mount_asked_blocks_total", "unknown"), 2) << "answers that had come when it was done";
}

// Nobody has said that it is not there.
TEST_F(MountStoreTest, WhatTheUpstreamWasAskedInVainIsNotCalledAbsent) {
  EXPECT_FALSE(store_->unanswered(key_of("k"))) << "nobody has asked";
  bool done = false;
  const std::array<store::BlockName, 1> names = {name_of("k")};
  const std::array<store::IndexKey, 1> keys = {key_of("k")};
  shard::Question question{.names = names, .keys = keys, .until_us = clock_.now_us() + 100'000, .owner = &done};
  question.done = [](shard::Question& of) { *static_cast<bool*>(of.owner) = true; };
  ASSERT_TRUE(store_->ask(question));
  ASSERT_TRUE(turn_until([&] { return done; }));
  EXPECT_FALSE(store_->find({key_of("k")}).present);
  EXPECT_TRUE(store_->unanswered(key_of("k")));
  EXPECT_EQ(read_of("k"), kNoAnswer);
  EXPECT_EQ(store_->hold(key_of("k"), 7, clock_.now_us() + 60'000'000), kNoAnswer);
  put("k");
  EXPECT_TRUE(store_->find({key_of("k")}).present);
  EXPECT_FALSE(store_->unanswered(key_of("k")));
}

// One that there is no time to ask about is not known to be absent either.
TEST_F(MountStoreTest, WhatThereWasNoTimeToAskAboutIsNotCalledAbsent) {
  const std::array<store::BlockName, 1> names = {name_of("k")};
  const std::array<store::IndexKey, 1> keys = {key_of("k")};
  shard::Question question{.names = names, .keys = keys, .until_us = clock_.now_us()};
  ASSERT_FALSE(store_->ask(question));
  EXPECT_TRUE(store_->unanswered(key_of("k")));
}

TEST_F(MountStoreTest, ADeleteThatTheUpstreamDidNotAnswerSaysSo) {
  store::Change change;
  bool done = false;
  change.key = key_of("k");
  change.engine_key = as_bytes(std::string_view("k"));
  change.owner = &done;
  change.done = [](store::Change& of) { *static_cast<bool*>(of.owner) = true; };
  store_->remove(change);
  ASSERT_TRUE(turn_until([&] { return done; }));
  EXPECT_EQ(change.status, kNoAnswer);
}

// What is remembered of silence is bounded, as all is.
TEST_F(MountStoreTest, NamesThatNobodyAnsweredAboutAreBounded) {
  constexpr size_t kNames = 300'000;
  std::vector<std::string> texts(kNames);
  std::vector<store::BlockName> names;
  for (size_t i = 0; i < kNames; ++i) {
    texts[i] = std::to_string(i);
    names.push_back(name_of(texts[i]));
  }
  std::vector<store::IndexKey> keys(kNames);
  store_->keys_of(names, keys);
  shard::Question question{.names = names, .keys = keys, .until_us = clock_.now_us()};
  ASSERT_FALSE(store_->ask(question));
  EXPECT_FALSE(store_->unanswered(keys.front()));
  EXPECT_TRUE(store_->unanswered(keys.back()));
}

// A client may ask and go, again and again: what is asked of the upstream for it is bounded.
TEST_F(MountStoreTest, QuestionsThatNobodyWaitsForAreBounded) {
  const std::vector<store::BlockName> names(300'000, name_of("k"));
  const std::vector<store::IndexKey> keys(names.size(), key_of("k"));
  shard::Question question{.names = names, .keys = keys, .until_us = clock_.now_us() + 1'000'000};
  question.done = [](shard::Question&) {};
  ASSERT_TRUE(store_->ask(question));
  store_->forget(question);
  EXPECT_FALSE(store_->ask(question)) << "what is not known counts as not there";
  EXPECT_EQ(counted("halfstep_mount_asked_blocks_total", "unknown"), 300'000);
  ASSERT_TRUE(turn_until([&] { return upstream_->in_flight() == 0; }));
  question.until_us = clock_.now_us() + 1'000'000;
  EXPECT_TRUE(store_->ask(question));
  store_->forget(question);
}

TEST_F(MountStoreTest, LeasesThatAnUpstreamDoesNotHearOfAreBounded) {
  put("k");
  constexpr uint64_t kMany = 300'000;
  uint64_t taken = 0;
  while (taken < kMany && store_->hold(key_of("k"), 7, clock_.now_us() + 60'000'000).ok()) ++taken;
  EXPECT_GT(taken, 0U);
  EXPECT_LT(taken, kMany);
  EXPECT_EQ(store_->gauges().holds, 1U);
  EXPECT_EQ(store_->renew(7, clock_.now_us() + 60'000'000), 0U);
}

}  // namespace
}  // namespace halfstep::mount
