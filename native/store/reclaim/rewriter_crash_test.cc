// Crashes at any moment of a reclaim, and copies that cannot be written: what was worth keeping is kept.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "store/rewriter_fixture.h"

namespace halfstep::store {
namespace {

using Crash = io::MemoryEngine::Crash;

// A store that is about to reclaim a segment with blocks worth keeping, and with one that is deleted while it is being copied.
class Reclaim {
 public:
  Reclaim() : bed(22, kSegments) {
    bed.open();
    for (uint64_t i = 0; i < 12; ++i) {
      kept.push_back(i % 3 == 0 ? long_name_of(i) : name_of(i));
      EXPECT_TRUE(bed.put(kept.back(), kGroupPlain, 16384, true).ok());
    }
    EXPECT_TRUE(bed.put("deleted", kGroupPlain, 16384, true).ok());
    std::vector<std::string> touched = kept;
    touched.push_back("deleted");
    touch(bed, touched);
    fill_segment(bed);
    for (uint64_t i = 0; bed.store->gauges().segments_free > 2; ++i) churn(bed, i, 1);
    bed.settle();
    bed.close();
    image_ = std::make_unique<io::MemoryDevice>(*bed.device);
  }
  // From the beginning again, on a device that crashes like this.
  void start(double survival, bool torn) {
    bed.store.reset();
    bed.device = std::make_unique<io::MemoryDevice>(*image_);
    bed.faults.cut_survival_chance = survival;
    bed.faults.torn_writes = torn;
    bed.restart_engine();
    bed.open();
    asked_ = removed = false;
    names_.clear();
    puts_.clear();
    removal_ = {};
    removal_.key = bed.key("deleted");
    removal_.owner = this;
    removal_.done = [](Remove& r) { static_cast<Reclaim*>(r.owner)->removed = true; };
  }
  // Until so many completions from now; false when the second reclaim was over before.
  bool run(uint64_t count) {
    const uint64_t until = completions() + count;
    const uint64_t reclaimed = bed.store->counters().segments_reclaimed + 2;
    while (completions() < until) {
      if (bed.store->counters().segments_reclaimed >= reclaimed && removed) return false;
      if (puts_.empty() || puts_.back()->done) {
        names_.push_back("more " + name_of(names_.size()));
        puts_.push_back(std::make_unique<StoreBed::Put>());
        if (!bed.begin_put(*puts_.back(), names_.back(), kGroupPlain, 16384, false).ok()) puts_.pop_back();
      }
      if (bed.store->counters().blocks_rewritten > 0 && !asked_) {  // its copy is on the way
        asked_ = true;
        bed.store->remove(removal_);
      }
      bed.pump();
    }
    return true;
  }
  void check(const char* when) {
    SCOPED_TRACE(when);
    for (const std::string& name : kept) EXPECT_EQ(bed.get(name), Code::Ok) << name << " was worth keeping and is lost";
    const Status status = bed.get("deleted");
    EXPECT_TRUE(status.ok() || status == Code::NotFound);
    if (removed) {
      EXPECT_EQ(status, Code::NotFound) << "deleted, and back";
    }
  }

  StoreBed bed;
  std::vector<std::string> kept;
  bool removed = false;

 private:
  uint64_t completions() const {
    const io::EngineCounters& c = bed.engine->counters();
    return c.reads + c.writes + c.flushes;
  }

  std::unique_ptr<io::MemoryDevice> image_;
  Remove removal_;
  bool asked_ = false;
  std::deque<std::string> names_;
  std::vector<std::unique_ptr<StoreBed::Put>> puts_;
};

void crash_after_every_completion(Crash how, double survival, bool torn) {
  uint64_t rewritten = 0;
  Reclaim reclaim;
  for (uint64_t count = 1;; ++count) {
    SCOPED_TRACE("crash after completion " + std::to_string(count));
    reclaim.start(survival, torn);
    const bool reached = reclaim.run(count);
    rewritten = std::max(rewritten, reclaim.bed.store->counters().blocks_rewritten);
    reclaim.bed.crash(how);
    reclaim.bed.open();
    reclaim.check("right after the start");
    // What recovery made of it goes on, and holds.
    for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(reclaim.bed.put("after " + name_of(i)), Code::Ok);
    reclaim.bed.reopen();
    reclaim.check("after more puts and another start");
    if (!reached || ::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(rewritten, 10U) << "the crashes never met a reclaim";
}

TEST(RewriterCrash, PowerCutInAnyStepOfAReclaimKeepsWhatWasWorthKeeping) {
  crash_after_every_completion(Crash::PowerCut, 0, false);
}
TEST(RewriterCrash, PowerCutWithTornSurvivorsKeepsWhatWasWorthKeeping) {
  crash_after_every_completion(Crash::PowerCut, 0.5, true);
}
TEST(RewriterCrash, KilledProcessInAnyStepKeepsWhatWasWorthKeeping) { crash_after_every_completion(Crash::Killed, 0, true); }

TEST(RewriterCrash, FailingWritesAndFlushesOfCopiesLoseNothingThatWasPersistedAndIsStillThere) {
  uint64_t rewritten = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    StoreBed bed(seed, kSegments);
    bed.open();
    std::vector<std::string> used;
    for (uint64_t i = 0; i < 10; ++i) {
      used.push_back(name_of(i));
      ASSERT_EQ(bed.put(used.back(), kGroupPlain, 16384, true), Code::Ok);
    }
    io::MemoryFaults faults;
    faults.write_error_chance = 0.01;
    faults.flush_error_chance = seed % 2 == 0 ? 0.01 : 0;
    faults.torn_writes = true;
    bed.engine->set_faults(faults);
    for (uint64_t i = 0; i < 2 * kCapacityBlocks; ++i) {
      const std::string name = "churn " + name_of(i);
      (void)!bed.put(name).ok();
      if (i % 5 == 0) touch(bed, {name});
      if (i % 100 == 0) touch(bed, used);
      if (i % 500 == 250) (void)!bed.remove(used.back()).ok();
    }
    rewritten += bed.store->counters().blocks_rewritten;
    std::set<std::string> there;
    for (const std::string& name : used) {
      const bool found = bed.store->find(bed.key(name)).present;
      EXPECT_EQ(found, bed.get(name).ok()) << name;
      if (found) there.insert(name);
    }
    bed.engine->set_faults({});
    bed.settle();
    bed.crash(Crash::Killed);
    bed.open();
    for (const std::string& name : used) {
      const Status status = bed.get(name);
      EXPECT_TRUE(status.ok() || status == Code::NotFound) << name;
      if (there.count(name) != 0) {
        EXPECT_EQ(status, Code::Ok) << name;
      }
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(rewritten, 100U);
}

}  // namespace
}  // namespace halfstep::store
