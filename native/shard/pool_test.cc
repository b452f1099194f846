#include "shard/pool.h"

#include <gtest/gtest.h>

namespace halfstep::shard {
namespace {

struct Counted {
  Counted() { ++alive; }
  ~Counted() { --alive; }
  static inline int alive = 0;
};

TEST(Pool, FreesWhatABurstHasLeftAndKeepsWhatIsTaken) {
  Pool<Counted> pool;
  std::vector<Counted*> taken;
  for (int i = 0; i < 10'000; ++i) taken.push_back(pool.take());
  while (taken.size() > 100) {
    pool.give(taken.back());
    taken.pop_back();
  }
  EXPECT_EQ(Counted::alive, 10'000);
  EXPECT_TRUE(pool.trim());
  EXPECT_EQ(Counted::alive, 200);
  EXPECT_EQ(pool.taken(), 100U);
  EXPECT_FALSE(pool.trim()) << "there is nothing more to free";
  for (Counted* object : taken) pool.give(object);
  EXPECT_EQ(pool.taken(), 0U);
}

TEST(Pool, UsesWhatWasGivenBack) {
  Pool<Counted> pool;
  Counted* first = pool.take();
  pool.give(first);
  EXPECT_EQ(pool.take(), first);
  pool.give(first);
}

}  // namespace
}  // namespace halfstep::shard
