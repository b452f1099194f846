// Readers on other threads while the shard's thread changes the index. Runs under ThreadSanitizer, too (scripts/sanitize.sh):
// the suite's name is what selects it there.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "index/index_fixture.h"

namespace halfstep::index {
namespace {

constexpr uint64_t kSeed = 20261121;

constexpr int kReaders = 2;
constexpr int kChangesMin = 40'000;
constexpr int kMeetingsMin = 50;

// change() on this thread and read() on others, until there were enough changes, and enough of them with reads since the last
// one: how the threads are scheduled decides how long it takes, not what is tested.
template <typename Read, typename Change>
void with_readers(Read&& read, Change&& change) {
  std::atomic<bool> done = false;
  std::atomic<int> reads = 0;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < kReaders; ++reader) {
    readers.emplace_back([&, reader] {
      Prng prng(kSeed + static_cast<uint64_t>(reader));
      while (!done.load(std::memory_order_relaxed)) {
        read(prng);
        reads.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  int meetings = 0;
  int reads_before = 0;
  for (int changes = 0; changes < kChangesMin || meetings < kMeetingsMin; ++changes) {
    change();
    const int reads_now = reads.load(std::memory_order_relaxed);
    meetings += reads_now != reads_before;
    reads_before = reads_now;
  }
  done.store(true, std::memory_order_relaxed);
  for (std::thread& reader : readers) reader.join();
}

TEST(SharedIndex, ReadersFindEveryEntryThatStaysAndOnlyWholeOnes) {
  constexpr uint64_t kBuckets = 16;
  constexpr size_t kStaying = 30;
  SmallIndex small(kBuckets);
  BlockIndex& index = small.index;
  Prng prng(kSeed);
  std::vector<Hash128> staying;
  for (size_t i = 0; i < kStaying; ++i) {
    staying.push_back(KeyParts::random(prng).key());
    ASSERT_TRUE(index.insert(staying.back(), entry_of(i)).ok());
  }
  // Those that come and go, and fill the index up so that the staying ones are moved about.
  std::vector<Hash128> passing;
  for (size_t i = 0; i < 60; ++i) passing.push_back(KeyParts::random(prng).key());

  std::atomic<uint64_t> lost = 0;
  std::atomic<uint64_t> torn = 0;
  std::atomic<uint64_t> met = 0;
  const auto read = [&](Prng& own) {
    const Found stays = index.find_shared(staying[own.below(staying.size())]);
    if (!stays) ++lost;
    const Found passes = index.find_shared(passing[own.below(passing.size())]);
    if ((stays && !whole(stays.entry)) || (passes && !whole(passes.entry))) ++torn;
    if (passes) ++met;
  };
  uint64_t pages = kStaying;
  uint64_t unexpected = 0;
  with_readers(read, [&] {
    if (prng.chance(0.3)) {
      const Found stays = index.find(staying[prng.below(staying.size())]);
      unexpected += !index.replace(stays.handle, stays.entry.location(), entry_of(++pages));
      return;
    }
    const Hash128& key = passing[prng.below(passing.size())];
    if (const Found passes = index.find(key)) {
      unexpected += !index.erase(passes.handle, passes.entry.location());
    } else {
      (void)index.insert(key, entry_of(++pages));
    }
  });
  EXPECT_EQ(unexpected, 0U);
  EXPECT_EQ(lost, 0U);
  EXPECT_EQ(torn, 0U);
  // It was as busy as it had to be.
  EXPECT_GT(met, 0U);
  EXPECT_GT(index.moves(), 500U);
}

TEST(SharedIndex, ReadersNeverFindWhatWasNeverThere) {
  SmallIndex small(4);
  BlockIndex& index = small.index;
  // Near misses of all kinds: the same home, tag or fingerprint as keys that come and go.
  std::vector<Hash128> passing;
  std::vector<Hash128> never;
  for (uint64_t i = 0; i < 24; ++i) {
    passing.push_back(KeyParts{i << 43, i % 3, static_cast<uint8_t>(1 + i % 2), 0}.key());
    never.push_back(KeyParts{i << 43, i % 3, static_cast<uint8_t>(3 + i % 2), 0}.key());
    never.push_back(KeyParts{i << 43, 3 + i % 3, static_cast<uint8_t>(1 + i % 2), 0}.key());
  }
  std::atomic<uint64_t> found = 0;
  Prng prng(kSeed);
  uint64_t pages = 0;
  with_readers([&](Prng& own) { found += index.find_shared(never[own.below(never.size())]) ? 1 : 0; },
               [&] {
                 const Hash128& key = passing[prng.below(passing.size())];
                 if (const Found here = index.find(key)) {
                   index.erase(here.handle, here.entry.location());
                 } else {
                   (void)index.insert(key, entry_of(++pages));
                 }
               });
  EXPECT_EQ(found, 0U);
}

}  // namespace
}  // namespace halfstep::index
