// Leases of the whole store: one namespace's never stand in the way of another's puts, and owners stay apart.
#include <gtest/gtest.h>

#include <set>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace leases_test {

constexpr uint64_t kBlockBytes = 16384;

uint32_t make_namespace(StoreBed& bed, const std::string& name, uint64_t quota_bytes = 0) {
  EXPECT_EQ(bed.change_names([&](auto done) { bed.store->create_namespace({name, quota_bytes}, done); }), Code::Ok);
  uint32_t scope = 0;
  bool done = false;
  bed.store->register_layout(name, test_layout(), [&](Status status, uint32_t got) {
    EXPECT_TRUE(status.ok());
    scope = got;
    done = true;
  });
  while (!done) bed.pump();
  return scope;
}

TEST(Leases, OfOneNamespaceDoNotThrottleThePutsOfAnother) {
  StoreBed bed(1, 16);
  bed.open();
  const uint32_t own = bed.scope;
  const uint32_t hog = make_namespace(bed, "hog");
  const uint64_t store_bytes = bed.geometry.segments * bed.geometry.segment_bytes;
  const uint64_t owner = bed.store->owner_of("hog", 7);
  uint64_t leased = 0;
  uint64_t refused = 0;
  bed.scope = hog;
  for (uint64_t i = 0; i < 2 * store_bytes / kBlockBytes; ++i) {
    const std::string name = "hog " + std::to_string(i);
    ASSERT_EQ(bed.put(name), Code::Ok) << i;
    const Status held = bed.store->hold(bed.key(name), owner, UINT64_MAX);
    held.ok() ? ++leased : ++refused;
    if (!held.ok()) {
      EXPECT_EQ(held, Status(Code::Throttled, kThrottledLeases));
    }
    (void)bed.store->renew(owner, UINT64_MAX);
  }
  EXPECT_GT(refused, 0U);
  EXPECT_EQ(bed.account("hog").leased_bytes, leased * kBlockBytes);
  EXPECT_LE(leased * kBlockBytes, store_bytes / 2);
  EXPECT_GT(leased * kBlockBytes, store_bytes / 3) << "half of the store is its, alone";
  bed.scope = own;
  for (uint64_t i = 0; i < 2 * store_bytes / kBlockBytes; ++i) {
    ASSERT_EQ(bed.put("other " + std::to_string(i)), Code::Ok) << i;
    (void)bed.store->renew(owner, UINT64_MAX);
  }
  EXPECT_EQ(bed.account("hog").leased_bytes, leased * kBlockBytes);
}

TEST(Leases, AreGivenBackByReleaseExpiryAndClear) {
  StoreBed bed(2, 16);
  bed.open();
  const uint64_t owner = bed.store->owner_of("default", 7);
  ASSERT_EQ(bed.put("a"), Code::Ok);
  ASSERT_TRUE(bed.store->hold(bed.key("a"), owner, UINT64_MAX).ok());
  EXPECT_EQ(bed.account().leased_bytes, kBlockBytes);
  EXPECT_EQ(bed.account().holds, 1U);
  ASSERT_EQ(bed.release("a", owner), Code::Ok);
  EXPECT_EQ(bed.account().leased_bytes, 0U);
  ASSERT_TRUE(bed.store->hold(bed.key("a"), owner, UINT64_MAX).ok());
  bed.clock.us += bed.options.lease_ms_max * 2000;
  bed.pump();
  EXPECT_EQ(bed.account().leased_bytes, 0U);
  EXPECT_EQ(bed.account().holds, 0U);
  ASSERT_TRUE(bed.store->hold(bed.key("a"), owner, UINT64_MAX).ok());
  ASSERT_EQ(bed.change_names([&](auto done) { bed.store->clear("default", test_layout().id(), done); }), Code::Ok);
  EXPECT_EQ(bed.account().leased_bytes, 0U);
}

TEST(Owners, AreKeyedWithTheStoresSecretAndStayTheSameOverARestart) {
  StoreBed bed(3, 16);
  bed.open();
  const uint64_t owner = bed.store->owner_of("bob", 1);
  std::set<uint64_t> others = {owner, bed.store->owner_of("bob", 2), bed.store->owner_of("x", 1), bed.store->owner_of("bo", 1)};
  EXPECT_EQ(others.size(), 4U);
  EXPECT_NE(owner, xxh3_64(as_bytes("bob"), 1)) << "whoever knows the names could find one that meets it";
  bed.reopen();
  EXPECT_EQ(bed.store->owner_of("bob", 1), owner);
  StoreBed another(4, 16);
  another.open();
  EXPECT_NE(another.store->owner_of("bob", 1), owner) << "another store, another secret";
}

}  // namespace leases_test
}  // namespace halfstep::store
