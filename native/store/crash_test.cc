// What must hold after a process or a machine died at any moment: no wrong byte, no persisted block lost, no deleted block
// back, and whatever find() reports can be read. Workloads and crashes follow from a seed that is printed on failure.
#include <gtest/gtest.h>

#include <map>

#include "store/format/format.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

using Crash = io::MemoryEngine::Crash;

constexpr uint32_t kKeys = 24;

// What a key may look like after a crash, given what was acknowledged before it.
enum class Expect { Anything, Present, Absent };

class Workload {
 public:
  Workload(StoreBed& bed, uint64_t seed) : bed_(bed), prng_(seed) {}

  // Starts random operations, one or two a turn, until `stop` says so; nothing waits for anything.
  template <typename Stop>
  void run(uint32_t operations, Stop&& stop) {
    for (uint32_t started = 0; !stop();) {
      if (started < operations && running_.size() < 8 && prng_.chance(0.7)) {
        start();
        ++started;
      }
      bed_.pump();
      reap();
      if (started == operations && running_.empty()) break;
    }
  }
  // Those that were not answered may have happened or not.
  void forget_running() {
    reap();
    for (auto& op : running_) expect_[op->key] = Expect::Anything;
    running_.clear();
  }

  void check() {
    for (uint32_t key = 0; key < kKeys; ++key) {
      const std::string name = name_of(key);
      const bool found = bed_.store->find(bed_.key(name, group_of(key))).present;
      const Status status = bed_.get(name, group_of(key));  // checks the bytes
      EXPECT_EQ(found, status.ok()) << name << ": find() and get() disagree";
      if (expect_[key] == Expect::Present) {
        EXPECT_TRUE(found) << name << " was persisted and is lost";
      }
      if (expect_[key] == Expect::Absent) {
        EXPECT_FALSE(found) << name << " was deleted and is back";
      }
      if (expect_[key] == Expect::Anything) expect_[key] = Expect::Anything;
    }
  }

 private:
  struct Op {
    uint32_t key = 0;
    std::string name;
    bool removing = false;
    bool done = false;
    StoreBed::Put put;
    Remove remove;
  };

  static std::string name_of(uint32_t key) {
    return key % 3 == 0 ? "key with a name of more than thirty-two bytes " + std::to_string(key) : "key " + std::to_string(key);
  }
  static uint32_t group_of(uint32_t key) { return key % 5 == 0 ? kGroupRagged : key % 7 == 0 ? kGroupOpaque : kGroupPlain; }
  static uint32_t bytes_of(uint32_t key) { return key % 5 == 0 ? 9000 + key : key % 7 == 0 ? 300'000 : 16384; }

  void start() {
    const auto key = static_cast<uint32_t>(prng_.below(kKeys));
    for (const auto& op : running_) {
      if (op->key == key) return;
    }
    auto op = std::make_unique<Op>();
    op->key = key;
    op->name = name_of(key);
    op->removing = prng_.chance(0.4);
    if (op->removing) {
      op->remove.key = bed_.key(op->name, group_of(key));
      op->remove.owner = op.get();
      op->remove.done = [](Remove& r) { static_cast<Op*>(r.owner)->done = true; };
      expect_[key] = Expect::Anything;
      bed_.store->remove(op->remove);
    } else {
      const bool persist = prng_.chance(0.5);
      const Status status = bed_.begin_put(op->put, op->name, group_of(key), bytes_of(key), persist);
      if (!status.ok()) return;
      if (expect_[key] != Expect::Present) expect_[key] = Expect::Anything;
    }
    running_.push_back(std::move(op));
  }

  void reap() {
    std::erase_if(running_, [this](const std::unique_ptr<Op>& op) {
      if (!op->done && !op->put.done) return false;
      if (op->removing) {
        const bool gone = op->remove.status.ok() || op->remove.status == Code::NotFound;
        if (gone) expect_[op->key] = Expect::Absent;
      } else if (op->put.write.persist && op->put.write.status.ok()) {
        expect_[op->key] = Expect::Present;
      }
      return true;
    });
  }

  StoreBed& bed_;
  Prng prng_;
  std::vector<std::unique_ptr<Op>> running_;
  std::map<uint32_t, Expect> expect_;
};

void crash_at_every_write(Crash how, double survival, bool torn) {
  for (uint64_t at = 1;; ++at) {
    SCOPED_TRACE("crash after write " + std::to_string(at));
    StoreBed bed(7, 8);
    bed.faults.cut_survival_chance = survival;
    bed.faults.torn_writes = torn;
    bed.restart_engine();
    bed.open();
    Workload work(bed, 11);
    const uint64_t before = bed.engine->counters().writes;
    bool reached = false;
    work.run(60, [&] { return reached = bed.engine->counters().writes - before >= at; });
    work.forget_running();
    bed.crash(how);
    bed.open();
    work.check();
    if (::testing::Test::HasFailure()) return;
    bed.reopen();
    work.check();
    if (!reached || ::testing::Test::HasFailure()) return;
  }
}

TEST(Crash, PowerCutAfterAnyWriteLosesNothingThatWasPersisted) { crash_at_every_write(Crash::PowerCut, 0, false); }
TEST(Crash, PowerCutWithTornSurvivorsLosesNothingThatWasPersisted) { crash_at_every_write(Crash::PowerCut, 0.5, true); }
TEST(Crash, KilledProcessAfterAnyWriteLosesNothingThatWasPersisted) { crash_at_every_write(Crash::Killed, 0, true); }

TEST(Crash, RandomWorkSurvivesCrashAfterCrash) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    StoreBed bed(seed, 12);
    bed.faults.cut_survival_chance = static_cast<double>(prng.below(3)) / 2;
    bed.faults.torn_writes = prng.chance(0.5);
    bed.faults.delay_polls_max = static_cast<uint32_t>(prng.below(8));
    bed.restart_engine();
    bed.open();
    Workload work(bed, seed);
    for (int round = 0; round < 4; ++round) {
      uint64_t turns = 20 + prng.below(400);
      work.run(200, [&] { return turns-- == 0; });
      if (prng.chance(0.2)) {
        bed.reopen();  // answers everything
        work.forget_running();
      } else {
        work.forget_running();
        bed.crash(prng.chance(0.5) ? Crash::PowerCut : Crash::Killed);
        bed.open();
      }
      work.check();
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(Crash, FailingWritesAndFlushesNeverLoseWhatWasAcknowledgedAsPersisted) {
  uint64_t write_errors = 0;
  uint64_t flush_errors = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    StoreBed bed(seed, 12);
    bed.open();
    io::MemoryFaults faults;
    faults.write_error_chance = 0.03;
    faults.flush_error_chance = seed % 2 == 0 ? 0.03 : 0;
    faults.torn_writes = true;
    bed.engine->set_faults(faults);
    Workload work(bed, seed);
    work.run(150, [] { return false; });
    write_errors += bed.engine->fault_counters().write_errors;
    flush_errors += bed.engine->fault_counters().flush_errors;
    work.forget_running();
    bed.crash(seed % 3 == 0 ? Crash::Killed : Crash::PowerCut);
    bed.open();
    work.check();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(write_errors, 0U);
  EXPECT_GT(flush_errors, 0U);
}

// ---- One fault, then one more ----------------------------------------------------------------------------------------------

using Fate = TapEngine::Fate;

// A header of several pages, so that one can be torn.
void register_many_layouts(StoreBed& bed) {
  for (int i = 0; i < 60; ++i) bed.register_layout("model " + std::to_string(i));
  bed.register_layout();
}
// The next write of a header copy arrives with one page only, and nothing after it.
void tear_next_header_write(StoreBed& bed) {
  bed.tap->tap = [&bed, end = bed.geometry.device_bytes - format::kHeaderReserveBytes](io::Request& request) {
    if (request.op != io::Op::Write || (request.offset != 0 && request.offset != end)) return Fate::Pass;
    EXPECT_GT(request.bytes, kPageBytes);
    request.bytes = kPageBytes;
    return Fate::LastToArrive;
  };
}

TEST(Crash, ATornHeaderWriteNeverMeetsTheOnlyGoodCopy) {
  for (const bool damage_end : {false, true}) {
    for (const bool at_start : {false, true}) {
      SCOPED_TRACE(std::string(damage_end ? "copy at the end" : "copy at the start") + (at_start ? ", start" : ", change"));
      StoreBed bed(31);
      bed.open();
      register_many_layouts(bed);
      ASSERT_EQ(bed.put("kept", kGroupPlain, 16384, true), Code::Ok);
      if (at_start) {
        bed.close();
        bed.restart_engine();
      }
      bed.device->flip_bit((damage_end ? bed.geometry.device_bytes - format::kHeaderReserveBytes : 0) + 600, 1);
      tear_next_header_write(bed);
      if (at_start) {
        EXPECT_FALSE(Store::open(*bed.tap, *bed.slots, bed.clock, bed.options, &bed.store).ok());
      } else {
        bed.store->register_layout("default", test_layout("one more"), [](Status, uint32_t) {});
        bed.settle();
      }
      ASSERT_TRUE(bed.tap->dead());
      bed.crash(Crash::Killed);
      bed.open();
      if (::testing::Test::HasFailure()) return;
      EXPECT_EQ(bed.get("kept"), Code::Ok);
    }
  }
}

bool is_first_log_page(const Places& places, const io::Request& request) {
  if (request.op != io::Op::Write || request.bytes != kPageBytes) return false;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    for (uint32_t half = 0; half < 2; ++half) {
      if (request.offset == places.log(copy, 0, half)) return true;
    }
  }
  return false;
}

TEST(Crash, ALogWhoseCommitFailedAndWhoseRetryWasKilledIsReadFromTheOtherHalf) {
  StoreBed bed(32);
  bed.open();
  for (int i = 0; i < 800; ++i) ASSERT_EQ(bed.put("small " + std::to_string(i), kGroupByte, 1), Code::Ok);
  ASSERT_EQ(bed.put("kept", kGroupPlain, 16384, true), Code::Ok);
  enum class Stage : uint8_t { Before, Committing, Failed } stage = Stage::Before;
  bed.tap->tap = [&](io::Request& request) {
    const bool first_page = is_first_log_page(places_of(bed.geometry), request);
    if (stage == Stage::Before && first_page) {
      stage = Stage::Committing;
    } else if (stage == Stage::Committing && request.op == io::Op::Flush) {
      stage = Stage::Failed;
      return Fate::Fail;
    } else if (stage == Stage::Failed && request.op == io::Op::Flush) {
      return Fate::LastToArrive;  // of the retry's other pages: its first page is still the failed one's
    }
    return Fate::Pass;
  };
  std::vector<Remove> removes(800);
  for (int i = 0; i < 800 && !bed.tap->dead(); ++i) {
    removes[i].key = bed.key("small " + std::to_string(i), kGroupByte);
    removes[i].done = [](Remove&) {};
    bed.store->remove(removes[i]);
    for (int turns = 0; turns < 8; ++turns) bed.pump();
  }
  ASSERT_TRUE(bed.tap->dead());
  bed.crash(Crash::Killed);
  bed.open();
  EXPECT_EQ(bed.get("kept"), Code::Ok);
  EXPECT_FALSE(bed.store->find(bed.key("small 0", kGroupByte)).present);
}

TEST(Crash, ALogCopyThatMissedAWriteIsMadeWholeBeforeTheOtherOneIsNeeded) {
  StoreBed bed(33);
  bed.open();
  const Places places = places_of(bed.geometry);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(bed.put("small " + std::to_string(i), kGroupByte, 1), Code::Ok);
  ASSERT_EQ(bed.put("kept", kGroupPlain, 16384, true), Code::Ok);
  uint64_t missed = 0;
  bed.tap->tap = [&](io::Request& request) {
    const bool second_copy = request.offset >= places.log(1, 0, 0) && request.offset < places.header(1);
    if (missed != 0 || request.op != io::Op::Write || !second_copy) return Fate::Pass;
    missed = request.offset;
    return Fate::Fail;
  };
  for (int i = 0; i < 6; ++i) ASSERT_EQ(bed.remove("small " + std::to_string(i), kGroupByte), Code::Ok);
  ASSERT_NE(missed, 0U);
  bed.crash(Crash::Killed);
  bed.device->flip_bit(missed - places.log(1, 0, 0) + places.log(0, 0, 0) + 200, 3);
  bed.open();
  EXPECT_EQ(bed.get("kept"), Code::Ok);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(bed.store->find(bed.key("small " + std::to_string(i), kGroupByte)).present, i >= 6);
}

TEST(Crash, AFlushThatFailsDuringRecoveryMakesNothingDurable) {
  StoreBed bed(34);
  bed.open();
  for (int i = 0; i < 40; ++i) ASSERT_EQ(bed.put("key " + std::to_string(i)), Code::Ok);
  for (int turns = 0; turns < 6; ++turns) bed.pump();
  bed.crash(Crash::Killed);
  int flushes = 0;  // two of the header, then the one before the footer
  bed.tap->tap = [&](io::Request& request) {
    if (request.op == io::Op::Flush && ++flushes == 3) bed.engine->inject({io::Op::Flush, 0, 0, UINT64_MAX, -EIO, 1});
    return Fate::Pass;
  };
  bed.open();
  ASSERT_EQ(bed.engine->fault_counters().flush_errors, 1U);
  for (int i = 0; i < 40; ++i) {
    const std::string name = "key " + std::to_string(i);
    const Status status = bed.put(name, kGroupPlain, 16384, true);
    EXPECT_TRUE(status.ok() || status == Code::Present) << name;
    EXPECT_EQ(bed.get(name), Code::Ok) << name;
  }
  bed.crash(Crash::PowerCut);
  bed.open();
  for (int i = 0; i < 40; ++i) EXPECT_EQ(bed.get("key " + std::to_string(i)), Code::Ok);
}

// ---- What the store does not know of at that moment ------------------------------------------------------------------------

// Where the first page of a plain block of ours lies.
uint64_t place_of(const StoreBed& bed, std::string_view name) {
  const std::vector<std::byte> wanted = bytes_of_key(name, kPageBytes);
  const Places places = places_of(bed.geometry);
  std::vector<std::byte> page(kPageBytes);
  for (uint64_t at = places.segment(0); at < places.segment(bed.geometry.segments); at += kPageBytes) {
    bed.device->read(at, page);
    if (page == wanted) return at;
  }
  ADD_FAILURE() << name << " is nowhere";
  return places.segment(0);
}

TEST(Crash, ABlockThatIsDeletedWhileItsSegmentIsReclaimedStaysAway) {
  StoreBed bed(35, 4);
  bed.open();
  std::vector<std::string> names;
  while (bed.store->counters().segments_reclaimed == 0) {
    ASSERT_LT(names.size(), 2000U);
    names.push_back("block " + std::to_string(names.size()));
    StoreBed::Put put;
    while (bed.begin_put(put, names.back(), kGroupPlain, 16384, true) == Code::Throttled) bed.pump();
    while (!put.done && bed.store->counters().segments_reclaimed == 0) bed.pump();
    if (bed.store->counters().segments_reclaimed > 0) {
      // The new generation is not on media yet.
      ASSERT_FALSE(bed.store->find(bed.key(names.front())).present);
      EXPECT_EQ(bed.remove(names.front()), Code::NotFound);
      bed.crash(Crash::PowerCut);
      bed.open();
      EXPECT_FALSE(bed.store->find(bed.key(names.front())).present);
      return;
    }
  }
}

TEST(Crash, ABlockThatCouldNotBeReadAtAStartAndWasDeletedStaysAway) {
  StoreBed bed(36);
  bed.open();
  ASSERT_EQ(bed.put("lost for a while", kGroupPlain, 16384), Code::Ok);
  bed.settle();
  bed.crash(Crash::Killed);
  const uint64_t place = place_of(bed, "lost for a while");
  bed.device->flip_bit(place, 0);
  // Without a footer, the entry stays where the next start finds it.
  bed.tap->tap = [&](io::Request& request) {
    const Places places = places_of(bed.geometry);
    const bool in_segments = request.offset >= places.segment(0) && request.offset < places.log(1, 0, 0);
    return request.op == io::Op::Write && in_segments ? Fate::Fail : Fate::Pass;
  };
  bed.open();
  ASSERT_EQ(bed.store->recovery().blocks_dropped_corrupt, 1U);
  EXPECT_EQ(bed.remove("lost for a while"), Code::NotFound);
  bed.crash(Crash::PowerCut);
  bed.device->flip_bit(place, 0);
  bed.open();
  EXPECT_FALSE(bed.store->find(bed.key("lost for a while")).present);
}

TEST(Crash, ABlockThatFailedItsCheckAtAStartIsNotFoundWhenTheFooterThatSaysSoIsDamaged) {
  StoreBed bed(38);
  bed.open();
  ASSERT_EQ(bed.put("bad", kGroupPlain, 16384), Code::Ok);
  bed.settle();
  bed.crash(Crash::Killed);
  const Places places = places_of(bed.geometry);
  const uint64_t place = place_of(bed, "bad");
  bed.device->flip_bit(place, 0);
  bed.open();
  ASSERT_EQ(bed.store->recovery().blocks_dropped_corrupt, 1U);
  bed.crash(Crash::Killed);
  const uint64_t into = (place - places.segment(0)) % StoreBed::kSegmentBytes;
  bed.device->flip_bit(place - into + StoreBed::kSegmentBytes - 2 * kPageBytes + 200, 0);  // the entries, not the tail
  bed.open();
  EXPECT_EQ(bed.store->recovery().segments_by_frames, 1U);
  EXPECT_FALSE(bed.store->find(bed.key("bad")).present);
}

TEST(Crash, ATombstoneOutlivesAStartThatDidNotSeeTheSegmentOfItsBlock) {
  StoreBed bed(39);
  bed.open();
  ASSERT_EQ(bed.put("deleted", kGroupPlain, 16384, true), Code::Ok);
  ASSERT_EQ(bed.remove("deleted"), Code::Ok);
  const uint64_t magic = place_of(bed, "deleted") - 2 * kPageBytes + 8;  // of its frame: entry, table, block
  for (int start = 0; start < 2; ++start) {
    bed.crash(Crash::PowerCut);
    bed.device->flip_bit(magic, 0);  // as if it had been read wrongly, and then rightly
    bed.open();
    EXPECT_FALSE(bed.store->find(bed.key("deleted")).present);
  }
}

TEST(Crash, ADeleteOfWhatWasSweptAwayHoldsThoughTheClockGoesBack) {
  StoreBed bed(41);
  bed.open();
  ASSERT_EQ(bed.put("short", kGroupPlain, 16384, true, 5), Code::Ok);
  bed.clock.wall += 10;
  bed.clock.us += 10'000'000;
  for (int turns = 0; turns < 10'000 && bed.store->counters().blocks_evicted_expired == 0; ++turns) bed.pump();
  ASSERT_EQ(bed.store->counters().blocks_evicted_expired, 1U);
  ASSERT_EQ(bed.remove("short"), Code::NotFound);
  bed.crash(Crash::PowerCut);
  bed.clock.wall -= 100;
  bed.open();
  EXPECT_FALSE(bed.store->find(bed.key("short")).present) << "deleted, and back";
}

TEST(Crash, ASegmentThatWasSealedAtAStartIsNotVerifiedAtTheNext) {
  StoreBed bed(37);
  bed.open();
  ASSERT_EQ(bed.put("kept", kGroupPlain, 16384, true), Code::Ok);
  bed.crash(Crash::Killed);
  bed.open();
  ASSERT_EQ(bed.store->recovery().segments_by_frames, 1U);
  bed.crash(Crash::Killed);
  bed.device->flip_bit(place_of(bed, "kept"), 0);
  bed.open();
  EXPECT_EQ(bed.store->recovery().segments_by_footer, 1U);
  EXPECT_EQ(bed.store->recovery().blocks_dropped_corrupt, 0U) << "that is for the reader to find";
}

}  // namespace
}  // namespace halfstep::store
