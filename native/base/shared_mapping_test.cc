#include "base/shared_mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/arena.h"
#include "base/prng.h"

namespace halfstep {
namespace {

// What another process has: its own descriptor and its own mapping.
class Other {
 public:
  explicit Other(const SharedMapping& mapping) : descriptor_(dup(mapping.descriptor())), bytes_(mapping.bytes().size()) {
    at_ = static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0));
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  ~Other() {
    munmap(at_, bytes_);
    close(descriptor_);
  }
  std::byte* at(uint64_t offset) const { return at_ + offset; }
  uint64_t pages_bytes() const {
    struct stat about {};
    return fstat(descriptor_, &about) == 0 ? static_cast<uint64_t>(about.st_blocks) * 512 : UINT64_MAX;
  }

 private:
  int descriptor_;
  size_t bytes_;
  std::byte* at_;
};

class SharedMappingTest : public testing::Test {
 protected:
  void SetUp() override {
    const Fault fault = SharedMapping::create({.bytes = 6 * MiB, .large_pages = false, .what = "arena"}, &mapping_);
    ASSERT_TRUE(fault.ok()) << fault.what;
  }
  void renew() {
    ASSERT_TRUE(mapping_.renew_begin().ok());
    while (!mapping_.renewed()) ASSERT_TRUE(mapping_.renew_some().ok());
  }
  SharedMapping mapping_;
};

TEST_F(SharedMappingTest, IsZeroedAlignedAndSeenByWhoeverHasTheDescriptor) {
  const Bytes bytes = mapping_.bytes();
  EXPECT_EQ(bytes.size(), 6 * MiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % (2 * MiB), 0U);
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
  const Other other(mapping_);
  bytes[5 * MiB] = std::byte{0x5a};
  EXPECT_EQ(*other.at(5 * MiB), std::byte{0x5a});
}

TEST_F(SharedMappingTest, RenewedKeepsItsPlaceAndItsBytesAndIsOutOfReachForWhoeverHadIt) {
  const Bytes bytes = mapping_.bytes();
  Prng(7).fill(bytes);
  const std::vector<std::byte> before(bytes.begin(), bytes.end());
  const Other other(mapping_);
  renew();
  EXPECT_EQ(mapping_.bytes().data(), bytes.data());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), bytes.begin()));
  EXPECT_EQ(other.pages_bytes(), 0U) << "memory of the old one was kept";
  std::memset(other.at(0), 0xee, 6 * MiB);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), bytes.begin())) << "the other side wrote into the renewed memory";
  const Other next(mapping_);
  std::memset(next.at(0), 0xdd, 1);
  EXPECT_EQ(bytes[0], std::byte{0xdd});
}

TEST_F(SharedMappingTest, ARenewalThatBeginsAnewLosesNothing) {
  const Bytes bytes = mapping_.bytes();
  Prng(8).fill(bytes);
  const std::vector<std::byte> before(bytes.begin(), bytes.end());
  ASSERT_TRUE(mapping_.renew_begin().ok());
  ASSERT_TRUE(mapping_.renew_some().ok());
  EXPECT_FALSE(mapping_.renewed());
  renew();
  EXPECT_TRUE(std::equal(before.begin(), before.end(), bytes.begin()));
}

TEST(SharedArena, IsAnArenaThatHasADescriptor) {
  std::unique_ptr<Arena> arena;
  const Fault fault = Arena::create_shared(3 * MiB, false, &arena);
  ASSERT_TRUE(fault.ok()) << fault.what;
  EXPECT_TRUE(arena->facts().shared);
  ASSERT_NE(arena->shared(), nullptr);
  EXPECT_EQ(arena->bytes().data(), arena->shared()->bytes().data());
  EXPECT_EQ(arena->bytes().size(), 4 * MiB);
  std::unique_ptr<Arena> ordinary;
  ASSERT_TRUE(Arena::create(3 * MiB, false, &ordinary).ok());
  EXPECT_EQ(ordinary->shared(), nullptr);
}

}  // namespace
}  // namespace halfstep
