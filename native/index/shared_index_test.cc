// Readers on other threads while the shard's thread changes the index. Runs under ThreadSanitizer, too (scripts/sanitize.sh):
// the suite's name is what selects it there.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "index/index_fixture.h"

namespace halfstep::index {
namespace {

constexpr uint64_t kSeed = 20261121;

// What `readers` threads do, round and round, until the writer is done.
template <typename Read, typename Write>
void with_readers(size_t readers, Read&& read, Write&& write) {
  std::atomic<bool> done = false;
  std::barrier start(static_cast<ptrdiff_t>(readers) + 1);
  std::vector<std::thread> threads;
  for (size_t reader = 0; reader < readers; ++reader) {
    threads.emplace_back([&, reader] {
      Prng prng(kSeed + reader);
      start.arrive_and_wait();
      do {
        read(prng);
      } while (!done.load(std::memory_order_relaxed));
    });
  }
  start.arrive_and_wait();
  write();
  done.store(true, std::memory_order_relaxed);
  for (std::thread& thread : threads) thread.join();
}

TEST(SharedIndex, ReadersFindEveryEntryThatStaysAndOnlyWholeOnes) {
  constexpr uint64_t kBuckets = 16;
  constexpr size_t kStaying = 30;
  constexpr int kChanges = 60'000;
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
  uint64_t refused = 0;
  const auto write = [&] {
    uint64_t pages = kStaying;
    for (int change = 0; change < kChanges; ++change) {
      if (prng.chance(0.3)) {
        const Found stays = index.find(staying[prng.below(staying.size())]);
        ASSERT_TRUE(index.replace(stays.handle, stays.entry.location(), entry_of(++pages)));
        continue;
      }
      const Hash128& key = passing[prng.below(passing.size())];
      if (const Found passes = index.find(key)) {
        ASSERT_TRUE(index.erase(passes.handle, passes.entry.location()));
      } else {
        refused += index.insert(key, entry_of(++pages)) == Code::NoSpace;
      }
    }
  };
  with_readers(2, read, write);
  EXPECT_EQ(lost, 0U);
  EXPECT_EQ(torn, 0U);
  // It was as busy as it had to be.
  EXPECT_GT(met, 0U);
  EXPECT_GT(index.moves(), 1'000U);
  EXPECT_LT(refused, static_cast<uint64_t>(kChanges));
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
  with_readers(
      2, [&](Prng& own) { found += static_cast<bool>(index.find_shared(never[own.below(never.size())])); },
      [&] {
        for (uint64_t page = 0; page < 40'000; ++page) {
          const Hash128& key = passing[prng.below(passing.size())];
          const Found here = index.find(key);
          if (here) {
            index.erase(here.handle, here.entry.location());
          } else {
            (void)index.insert(key, entry_of(page));
          }
        }
      });
  EXPECT_EQ(found, 0U);
}

}  // namespace
}  // namespace halfstep::index
