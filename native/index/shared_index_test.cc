// Readers on other threads while the shard's thread changes the index. Runs under ThreadSanitizer, too (scripts/sanitize.sh):
// the suite's name is what selects it there.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "index/index_fixture.h"

namespace halfstep::index {
namespace shared_index_test {

constexpr uint64_t kSeed = 20261121;
constexpr int kReaders = 2;
constexpr int kChangesMin = 40'000;
constexpr int kSeenMin = 500;

// change() on this thread and read() on others, until there were enough changes and readers have seen enough of them: how the
// threads are scheduled decides how long it takes, not what is tested. read() says in a number what it saw.
template <typename Read, typename Change>
void with_readers(Read&& read, Change&& change) {
  std::atomic<bool> done = false;
  std::atomic<int> seen = 0;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < kReaders; ++reader) {
    readers.emplace_back([&, reader] {
      Prng prng(kSeed + static_cast<uint64_t>(reader));
      uint64_t last = 0;
      while (!done.load(std::memory_order_relaxed)) {
        const uint64_t now = read(prng);
        if (now != last) seen.fetch_add(1, std::memory_order_relaxed);
        last = now;
      }
    });
  }
  for (int changes = 0; changes < kChangesMin || seen.load(std::memory_order_relaxed) < kSeenMin; ++changes) change();
  done.store(true, std::memory_order_relaxed);
  for (std::thread& reader : readers) reader.join();
}

TEST(SharedIndex, ReadersSeeAnEntryWholeThoughItIsReplacedAllTheTime) {
  SmallIndex small(1);
  BlockIndex& index = small.index;
  const Hash128 key = KeyParts{0, 0x12'3456'789A, 7, 0}.key();
  ASSERT_TRUE(index.insert(key, entry_of(0)).ok());
  std::atomic<uint64_t> lost = 0;
  std::atomic<uint64_t> torn = 0;
  uint64_t page = 0;
  with_readers(
      [&](Prng&) {
        const Found found = index.find_shared(key);
        if (!found) ++lost;
        if (found && !whole(found.entry)) ++torn;
        return found.entry.location().page;
      },
      [&] {
        index.replace(key, entry_of(page).location(), entry_of(page + 1));
        ++page;
      });
  EXPECT_EQ(lost, 0U);
  EXPECT_EQ(torn, 0U);
}

TEST(SharedIndex, ReadersFollowAnEntryThatMovesAllTheTime) {
  // Two buckets. A fingerprint whose top bit is clear has no other bucket: those entries stay where they are and fill the
  // buckets up. The one that moves is sent home when bucket 1 is full, and away when bucket 0 is.
  SmallIndex small(2);
  BlockIndex& index = small.index;
  const Hash128 moves = KeyParts{0, uint64_t{1} << 39, 7, 0}.key();
  const auto stays = [](uint64_t bucket, uint64_t number) { return KeyParts{bucket << 47, number, 8, 0}.key(); };
  for (uint64_t i = 0; i < kSlotsPerBucket; ++i) ASSERT_TRUE(index.insert(stays(0, i), entry_of(10 + i)).ok());
  for (uint64_t i = 0; i < kSlotsPerBucket - 1; ++i) ASSERT_TRUE(index.insert(stays(1, i), entry_of(20 + i)).ok());
  ASSERT_TRUE(index.insert(moves, entry_of(30)).ok());
  ASSERT_EQ(index.strays(), 1U);

  std::atomic<uint64_t> lost = 0;
  std::atomic<uint64_t> torn = 0;
  uint64_t unexpected = 0;
  bool away = true;
  with_readers(
      [&](Prng&) {
        const Found found = index.find_shared(moves);
        if (!found) ++lost;
        if (found && !whole(found.entry)) ++torn;
        return found.handle.place >> 3;
      },
      [&] {
        const auto swap = [&](const Hash128& out, uint64_t out_page, const Hash128& in, uint64_t in_page) {
          unexpected += !index.erase(out, entry_of(out_page).location());
          unexpected += !index.insert(in, entry_of(in_page)).ok();
        };
        away ? swap(stays(0, 0), 10, stays(1, 9), 29) : swap(stays(1, 9), 29, stays(0, 0), 10);
        away = !away;
        unexpected += index.strays() != (away ? 1U : 0U);
      });
  EXPECT_EQ(lost, 0U);
  EXPECT_EQ(torn, 0U);
  EXPECT_EQ(unexpected, 0U);
}

TEST(SharedIndex, ReadersFindEveryEntryThatStaysAndOnlyWholeOnes) {
  constexpr size_t kStaying = 30;
  SmallIndex small(16);
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
  uint64_t pages = kStaying;
  uint64_t unexpected = 0;
  with_readers(
      [&](Prng& own) {
        const Found stays = index.find_shared(staying[own.below(staying.size())]);
        const Found passes = index.find_shared(passing[own.below(passing.size())]);
        if (!stays) ++lost;
        if ((stays && !whole(stays.entry)) || (passes && !whole(passes.entry))) ++torn;
        return passes.entry.location().page;
      },
      [&] {
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
  EXPECT_GT(index.moves(), 500U);
}

}  // namespace shared_index_test
}  // namespace halfstep::index
