// Two shards of one store, driven turn by turn on one thread: places of their own, names and limits in common.
#include <gtest/gtest.h>

#include <array>

#include "store/account/events.h"
#include "store/durable/header_keeper.h"
#include "store/recover/fsck.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace shards_test {

constexpr uint32_t kShards = 2;
constexpr uint32_t kSegments = 8;  // of each

class ShardsTest : public ::testing::Test {
 protected:
  // A shard as StoreBed has one: its store, engine and memory; the device is everybody's.
  struct One {
    std::unique_ptr<Arena> arena;
    std::unique_ptr<io::MemoryEngine> engine;
    std::unique_ptr<SlotPool> slots;
    std::unique_ptr<Store> store;
    uint32_t scope = 0;
    int woken = 0;
    bool closed = false;
  };

  void SetUp() override {
    geometry_ = {8 * MiB, 2 * MiB, kSegments * kShards, kShards, static_cast<uint32_t>(block_bytes_max_of(2 * MiB))};
    while (!places_of(geometry_).valid()) geometry_.device_bytes += MiB;
    device_ = std::make_unique<io::MemoryDevice>(geometry_.device_bytes);
    for (One& one : shards_) ASSERT_TRUE(Arena::create(8 * MiB, false, &one.arena).ok());
    make_engines();
    const Fault fault = Store::format(*shards_[0].engine, *shards_[0].arena, clock_, geometry_);
    ASSERT_TRUE(fault.ok()) << fault.what;
    open();
  }
  void make_engines() {
    for (One& one : shards_) {
      one.store = nullptr;
      one.slots = nullptr;
      one.closed = false;
      one.engine = std::make_unique<io::MemoryEngine>(io::MemoryConfig{.seed = ++seed_, .queue_depth = 64, .faults = {}},
                                                      std::vector<io::MemoryDevice*>{device_.get()});
      one.slots = std::make_unique<SlotPool>(*one.arena);
    }
  }
  void open() {
    std::shared_ptr<HeaderKeeper> keeper;
    ASSERT_TRUE(HeaderKeeper::load(*shards_[0].engine, &keeper).ok());
    for (uint32_t number = 0; number < kShards; ++number) {
      One& one = shards_[number];
      const ShardPlace place{keeper, number, [&one] { ++one.woken; }, [this, number] { pump_others(number); }};
      const Fault fault = Store::open_shard(*one.engine, *one.slots, clock_, options_, place, &one.store);
      ASSERT_TRUE(fault.ok()) << fault.what;
    }
    register_layout(0);
    for (One& one : shards_) one.scope = one.store->find_scope("default", test_layout().id());
    ASSERT_NE(shards_[0].scope, 0U);
    ASSERT_EQ(shards_[0].scope, shards_[1].scope);
  }
  void close() {
    for (One& one : shards_) {
      ASSERT_TRUE(one.store->close().ok());
      one.closed = true;
    }
    make_engines();
  }
  // The process is gone, its device is not.
  void kill() {
    for (One& one : shards_) one.engine->crash(io::MemoryEngine::Crash::Killed);
    make_engines();
  }
  void pump_one(uint32_t number) {
    One& one = shards_[number];
    one.engine->poll();
    one.store->turn();
    one.engine->flush_submissions();
    clock_.us += 100;
  }
  // Those that have not been closed.
  void pump_others(uint32_t than) {
    for (uint32_t number = 0; number < kShards; ++number) {
      if (number != than && !shards_[number].closed) pump_one(number);
    }
  }
  void pump() {
    for (uint32_t number = 0; number < kShards; ++number) pump_one(number);
  }
  template <typename Done>
  void pump_until(Done&& done) {
    for (int turns = 0; !done(); ++turns) {
      ASSERT_LT(turns, 100'000);
      pump();
    }
  }
  void register_layout(uint32_t number) {
    bool done = false;
    shards_[number].store->register_layout("default", test_layout(), [&](Status status, uint32_t) {
      EXPECT_TRUE(status.ok());
      done = true;
    });
    pump_until([&] { return done; });
  }
  // Runs a change of names on one shard; `at_the_answer` is called from inside it.
  template <typename Verb, typename Then>
  Status change_names(uint32_t number, Verb&& verb, Then&& at_the_answer) {
    Status answer;
    bool done = false;
    verb(*shards_[number].store, [&](Status status) {
      answer = status;
      done = true;
      at_the_answer();
    });
    pump_until([&] { return done; });
    return answer;
  }
  IndexKey key(uint32_t number, std::string_view name) const {
    const One& one = shards_[number];
    return one.store->key_of({one.scope, wire::Component::of(kGroupPlain, 0, 0), as_bytes(name)});
  }
  bool there(uint32_t number, std::string_view name) { return shards_[number].store->find(key(number, name)).present; }
  struct Put {
    Write write;
    bool done = false;
  };
  // begin + fill + commit; `put` lives until it is done.
  Status begin_put(Put& put, uint32_t number, std::string_view name, bool persist = true) {
    One& one = shards_[number];
    Write& write = put.write;
    write.name = {one.scope, wire::Component::of(kGroupPlain, 0, 0), as_bytes(name)};
    write.key = one.store->key_of(write.name);
    write.block_bytes = kBlockBytes;
    write.persist = persist;
    write.owner = &put;
    write.done = [](Write& w) { static_cast<Put*>(w.owner)->done = true; };
    if (const Status status = one.store->begin_write(write); !status.ok()) return status;
    const std::vector<std::byte> content = content_of(number, name);
    size_t at = 0;
    write.slot->for_range(0, kBlockBytes, [&](Bytes piece) {
      std::memcpy(piece.data(), content.data() + at, piece.size());
      at += piece.size();
    });
    for (PartInfo& part : write.parts) part.stored_crc = crc32c(ConstBytes(content).subspan(part.offset, part.stored_bytes));
    one.store->commit_write(write);
    return {};
  }
  Status put(uint32_t number, std::string_view name, bool persist = true) {
    Put put;
    if (const Status status = begin_put(put, number, name, persist); !status.ok()) return status;
    pump_until([&] { return put.done; });
    return put.write.status;
  }
  // Until it has sent one more flush, which has not been carried out.
  void pump_to_flush(uint32_t number) {
    const uint64_t before = shards_[number].store->counters().flushes;
    for (int turns = 0; shards_[number].store->counters().flushes == before; ++turns) {
      ASSERT_LT(turns, 100'000);
      pump_one(number);
    }
  }
  // Ok only with this shard's bytes of that name.
  Status get(uint32_t number, std::string_view name) {
    One& one = shards_[number];
    struct Waiter {
      Store* store;
      std::vector<std::byte> bytes;
      bool done = false;
    } waiter{one.store.get(), {}, false};
    Read read;
    read.key = key(number, name);
    read.component = wire::Component::of(kGroupPlain, 0, 0);
    read.owner = &waiter;
    read.complete = [](Read& r) {
      auto& w = *static_cast<Waiter*>(r.owner);
      w.done = true;
      if (!r.status.ok()) return;
      r.resident->slot().for_range(0, kBlockBytes,
                                   [&](Bytes piece) { w.bytes.insert(w.bytes.end(), piece.begin(), piece.end()); });
      w.store->unpin(r.resident);
    };
    Read* window[] = {&read};
    EXPECT_TRUE(one.store->begin_reads(window).ok());
    pump_until([&] { return waiter.done; });
    if (read.status.ok()) {
      EXPECT_EQ(waiter.bytes, content_of(number, name));
    }
    return read.status;
  }
  static std::vector<std::byte> content_of(uint32_t number, std::string_view name) {
    return bytes_of_key(std::string(name) + " of shard " + std::to_string(number), kBlockBytes);
  }
  NamespaceInfo account(uint32_t number) const {
    for (const NamespaceInfo& info : shards_[number].store->namespaces()) {
      if (info.name == "default") return info;
    }
    return {};
  }
  FsckReport check() {
    FsckReport report;
    const Fault fault = fsck(*shards_[0].engine, clock_, {}, &report);
    EXPECT_TRUE(fault.ok()) << fault.what;
    return report;
  }

  static constexpr uint32_t kBlockBytes = 16384;
  uint64_t seed_ = 0;
  TestClock clock_;
  Options options_;
  Geometry geometry_;
  std::unique_ptr<io::MemoryDevice> device_;
  std::array<One, kShards> shards_;
};

// The same names on both, which no client asks for: whatever one writes where the other reads would show.
TEST_F(ShardsTest, EachKeepsItsOwnBlocksOverACleanStopAndAKill) {
  const auto fill = [&](const std::string& prefix) {
    for (int i = 0; i < 300; ++i) {
      for (uint32_t number = 0; number < kShards; ++number) ASSERT_TRUE(put(number, prefix + std::to_string(i)).ok());
    }
  };
  const auto look = [&](const std::string& prefix) {
    for (int i = 0; i < 300; ++i) {
      for (uint32_t number = 0; number < kShards; ++number) ASSERT_TRUE(get(number, prefix + std::to_string(i)).ok()) << i;
    }
  };
  fill("a");
  close();
  open();
  EXPECT_EQ(shards_[0].store->recovery().blocks, 300U);
  EXPECT_EQ(shards_[1].store->recovery().blocks, 300U);
  look("a");
  fill("b");
  kill();
  open();
  EXPECT_EQ(shards_[1].store->recovery().blocks, 600U);
  EXPECT_EQ(shards_[1].store->recovery().pages_bad, 0U);
  look("a");
  look("b");
}

TEST_F(ShardsTest, ADeleteOnOneSaysNothingToTheOtherAndStaysAfterAKill) {
  for (uint32_t number = 0; number < kShards; ++number) ASSERT_TRUE(put(number, "k").ok());
  Change change;
  bool done = false;
  change.key = key(1, "k");
  change.owner = &done;
  change.done = [](Change& c) { *static_cast<bool*>(c.owner) = true; };
  shards_[1].store->remove(change);
  pump_until([&] { return done; });
  EXPECT_TRUE(change.status.ok());
  kill();
  open();
  EXPECT_TRUE(there(0, "k"));
  EXPECT_FALSE(there(1, "k"));
}

TEST_F(ShardsTest, ANameMadeOnOneIsKnownToTheOtherBeforeItIsAnswered) {
  bool known = false;
  const NamespaceInfo tenant{.name = "tenant"};
  EXPECT_TRUE(change_names(
                  1, [&](Store& store, auto done) { store.create_namespace(tenant, done); },
                  [&] { known = shards_[0].store->has_namespace("tenant"); })
                  .ok());
  EXPECT_TRUE(known);
  EXPECT_GT(shards_[0].woken, 0);
  // While one has the pen, the other one waits for it, and both changes are there.
  int answered = 0;
  shards_[0].store->create_namespace({.name = "x"}, [&](Status status) { answered += status.ok() ? 1 : 100; });
  shards_[1].store->create_namespace({.name = "y"}, [&](Status status) { answered += status.ok() ? 1 : 100; });
  pump_until([&] { return answered >= 2; });
  EXPECT_EQ(answered, 2);
  kill();
  open();
  for (const One& one : shards_) {
    for (const char* name : {"default", "tenant", "x", "y"}) EXPECT_TRUE(one.store->has_namespace(name)) << name;
  }
}

TEST_F(ShardsTest, TheSameLayoutRegisteredOnBothHasOneScope) {
  std::array<uint32_t, kShards> scopes{};
  for (uint32_t number = 0; number < kShards; ++number) {
    shards_[number].store->register_layout("default", test_layout("other"),
                                           [&, number](Status, uint32_t scope) { scopes[number] = scope; });
  }
  pump_until([&] { return scopes[0] != 0 && scopes[1] != 0; });
  EXPECT_EQ(scopes[0], scopes[1]);
}

TEST_F(ShardsTest, AClearOnOneIsInForceOnTheOtherBeforeItIsAnswered) {
  for (uint32_t number = 0; number < kShards; ++number) ASSERT_TRUE(put(number, "k").ok());
  bool gone = false;
  EXPECT_TRUE(change_names(
                  0, [&](Store& store, auto done) { store.clear("default", test_layout().id(), done); },
                  [&] { gone = !there(0, "k") && !there(1, "k"); })
                  .ok());
  EXPECT_TRUE(gone);
  bool told = false;
  (void)shards_[1].store->events().poll(
      0, 1000, [&](const Event& event, ConstBytes) { told = told || event.reason == EventReason::LayoutCleared; });
  EXPECT_TRUE(told) << "whoever follows the other shard hears of it";
  kill();
  open();
  EXPECT_FALSE(there(0, "k"));
  EXPECT_FALSE(there(1, "k"));
}

// A shard whose thread does nothing keeps the answer back: it might still serve what was cleared.
TEST_F(ShardsTest, AChangeWaitsForAShardThatHasNotHeardOfIt) {
  bool done = false;
  shards_[0].store->create_namespace({.name = "tenant"}, [&](Status) { done = true; });
  for (int turns = 0; turns < 1000; ++turns) pump_one(0);
  EXPECT_FALSE(done);
  EXPECT_TRUE(shards_[0].store->has_namespace("tenant"));
  pump_one(1);
  pump_one(0);
  EXPECT_TRUE(done);
}

TEST_F(ShardsTest, AQuotaIsSharedAndNeverExceeded) {
  constexpr uint64_t kQuota = 10 * kBlockBytes;
  const auto limit = [&](uint64_t quota, uint64_t pins) {
    const NamespaceInfo info{.name = "default", .quota_bytes = quota, .pin_budget_bytes = pins};
    ASSERT_TRUE(change_names(
                    0, [&](Store& store, auto done) { store.limit_namespace(info, done); }, [] {})
                    .ok());
  };
  limit(kQuota, 0);
  for (int i = 0; i < 60; ++i) {
    for (uint32_t number = 0; number < kShards; ++number) {
      while (put(number, "k" + std::to_string(i)) == Code::Throttled) pump();
      ASSERT_LE(account(0).used_bytes + account(1).used_bytes, kQuota);
    }
  }
  EXPECT_EQ(account(0).quota_bytes, kQuota) << "it is the store's";
  EXPECT_GT(account(1).used_bytes, 0U);
  limit(1, 0);
  EXPECT_EQ(put(1, "next"), Code::TooLarge) << "half of next to nothing is not a limit that is off";
}

TEST_F(ShardsTest, APinBudgetIsShared) {
  for (uint32_t number = 0; number < kShards; ++number) ASSERT_TRUE(put(number, "k").ok());
  const auto pin = [&](uint32_t number) {
    Change change;
    bool done = false;
    change.key = key(number, "k");
    change.holder = 7;
    change.owner = &done;
    change.done = [](Change& c) { *static_cast<bool*>(c.owner) = true; };
    shards_[number].store->hold(change);
    pump_until([&] { return done; });
    return change.status;
  };
  for (const uint64_t budget : {uint64_t{kBlockBytes}, uint64_t{2 * kBlockBytes}}) {
    const NamespaceInfo info{.name = "default", .pin_budget_bytes = budget};
    ASSERT_TRUE(change_names(
                    0, [&](Store& store, auto done) { store.limit_namespace(info, done); }, [] {})
                    .ok());
    EXPECT_EQ(pin(1).ok(), budget == 2 * kBlockBytes);
  }
}

TEST_F(ShardsTest, TheLastToCloseMarksACleanStop) {
  ASSERT_TRUE(shards_[0].store->close().ok());
  EXPECT_TRUE(put(1, "late").ok()) << "the others go on meanwhile";
  shards_[0].store = nullptr;
  EXPECT_FALSE(check().clean_stop);
  ASSERT_TRUE(shards_[1].store->close().ok());
  make_engines();
  EXPECT_TRUE(check().clean_stop);
  open();
  ASSERT_TRUE(shards_[1].store->close().ok());
  shards_[0].engine->crash(io::MemoryEngine::Crash::Killed);
  make_engines();
  EXPECT_FALSE(check().clean_stop);
}

TEST_F(ShardsTest, AnotherOwnerStopsAllOfThem) {
  // Another process takes the store, which its lock would not allow.
  io::MemoryEngine engine(io::MemoryConfig{}, {device_.get()});
  std::shared_ptr<HeaderKeeper> other;
  ASSERT_TRUE(HeaderKeeper::load(engine, &other).ok());
  ASSERT_TRUE(other->start(engine, clock_).ok());
  EXPECT_EQ(change_names(
                1, [](Store& store, auto done) { store.create_namespace({.name = "x"}, done); }, [] {}),
            Code::Closed);
  pump();
  for (uint32_t number = 0; number < kShards; ++number) EXPECT_EQ(put(number, "k"), Code::Closed);
  // And a close waits for nobody.
  Status answer;
  shards_[0].store->create_namespace({.name = "y"}, [&](Status status) { answer = status; });
  EXPECT_EQ(answer, Code::Closed);
  for (uint32_t number = 0; number < kShards; ++number) EXPECT_EQ(shards_[number].store->close(), Code::Closed);
}

// What one shard's flush lost, another's does not tell of.
TEST_F(ShardsTest, AFlushThatFailsOnOneFailsForBoth) {
  Put put_of_cache;
  ASSERT_TRUE(begin_put(put_of_cache, 1, "k", false).ok());
  // Until it has landed in the device's cache, and not a turn longer: no flush of its own has begun.
  while (device_->cached_pages() == 0) pump_one(1);
  for (int turns = 0; turns < 8; ++turns) pump_one(1);
  ASSERT_TRUE(there(1, "k"));
  shards_[0].engine->inject({.op = io::Op::Flush, .times = 1});
  (void)put(0, "other");
  ASSERT_EQ(shards_[0].engine->fault_counters().flush_errors, 1U);
  pump_until([&] { return !there(1, "k"); });
  // Nobody can say whether it is on media: it is gone for good.
  for (int turns = 0; turns < 1000; ++turns) pump();
  kill();
  open();
  EXPECT_FALSE(there(1, "k"));
}

// The device told one of them alone that pages were lost, and it has not heard that yet.
TEST_F(ShardsTest, AFlushIsNoAnswerWhileAnotherThatItOverlapsMayStillTurnOutToHaveFailed) {
  std::array<Put, kShards> puts;
  for (uint32_t number = 0; number < kShards; ++number) ASSERT_TRUE(put(number, "before").ok());  // opens a segment
  for (uint32_t number = 0; number < kShards; ++number) {
    ASSERT_TRUE(begin_put(puts[number], number, "k").ok());
    pump_to_flush(number);
  }
  ASSERT_GT(device_->cached_pages(), 0U);
  shards_[0].engine->inject({.op = io::Op::Flush, .times = 1});
  shards_[0].engine->wait();
  ASSERT_EQ(shards_[0].engine->fault_counters().flush_errors, 1U);
  const int woken = shards_[1].woken;
  for (int turns = 0; turns < 100; ++turns) pump_one(1);
  EXPECT_FALSE(puts[1].done);
  pump_one(0);
  EXPECT_GT(shards_[1].woken, woken) << "nobody else would make it turn";
  pump_until([&] { return puts[0].done && puts[1].done; });
  for (const Put& put : puts) EXPECT_EQ(put.write.status, Code::IoError);
  EXPECT_TRUE(put(1, "after").ok());
}

TEST_F(ShardsTest, AFlushWaitsForNoneThatBeganAfterItHadEnded) {
  Put first;
  Put second;
  for (uint32_t number = 0; number < kShards; ++number) ASSERT_TRUE(put(number, "before").ok());
  ASSERT_TRUE(begin_put(first, 0, "k").ok());
  pump_to_flush(0);
  shards_[0].engine->wait();  // carried out, not heard of
  ASSERT_TRUE(begin_put(second, 1, "k").ok());
  pump_to_flush(1);
  // Each is under way as the other ends.
  for (int turns = 0; turns < 100; ++turns) pump_one(1);
  EXPECT_FALSE(second.done);
  for (int turns = 0; turns < 100 && !first.done; ++turns) pump_one(0);
  EXPECT_TRUE(first.done) << "the other one's has ended";
  pump_until([&] { return second.done; });
  EXPECT_TRUE(first.write.status.ok());
  EXPECT_TRUE(second.write.status.ok());
}

TEST_F(ShardsTest, FsckLooksAtEveryShard) {
  for (int i = 0; i < 50; ++i) {
    for (uint32_t number = 0; number < kShards; ++number) ASSERT_TRUE(put(number, "k" + std::to_string(i)).ok());
  }
  close();
  FsckReport report = check();
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(report.blocks_live, 100U);
  EXPECT_EQ(report.payloads_checked, 100U);
  EXPECT_EQ(report.segments.size(), size_t{kShards} * kSegments);
  // A byte of the second shard's first block in each of its segments.
  const Places places = places_of(geometry_).of_shard(1);
  for (uint32_t number = 0; number < kSegments; ++number) device_->flip_bit(places.segment(number) + 2 * kPageBytes + 77, 1);
  report = check();
  EXPECT_EQ(report.payloads_bad, 1U);
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].where.find("shard 1, segment "), 0U) << report.findings[0].where;
  // Both copies of the second shard's log.
  for (const uint32_t copy : {0U, 1U}) {
    for (const uint32_t half : {0U, 1U}) device_->flip_bit(places.log(copy, 1, half) + 200, 1);
  }
  report = check();
  EXPECT_TRUE(report.has(FsckKind::Loss));
  EXPECT_EQ(report.blocks_live, 50U) << "the first shard has lost nothing";
}

TEST_F(ShardsTest, OneShardIsNotOpenedAsIfItWereAll) {
  close();
  std::unique_ptr<Store> store;
  const Fault fault = Store::open(*shards_[0].engine, *shards_[0].slots, clock_, options_, &store);
  EXPECT_EQ(fault.status, Code::Unsupported);
  EXPECT_NE(fault.what.find("shards=2"), std::string::npos);
}

}  // namespace shards_test
}  // namespace halfstep::store
