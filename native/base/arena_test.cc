#include "base/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace halfstep {
namespace {

// How many 2 MiB pages the pool still has.
uint64_t free_huge_pages() {
  std::ifstream in("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  uint64_t pages = 0;
  in >> pages;
  return pages;
}

TEST(Arena, IsRoundedUpZeroedAndThereFromTheStart) {
  std::unique_ptr<Arena> arena;
  const Fault fault = Arena::create(3 * MiB + 1, false, &arena);
  ASSERT_TRUE(fault.ok()) << fault.what;
  EXPECT_EQ(arena->facts().bytes, 4 * MiB);
  EXPECT_EQ(arena->facts().regions, 1U);
  EXPECT_EQ(arena->facts().large_bytes, 0U);
  EXPECT_FALSE(arena->facts().reserved);
  const Bytes bytes = arena->bytes();
  EXPECT_EQ(bytes.size(), 4 * MiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % kPageBytes, 0U);
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
  std::vector<unsigned char> there(4 * MiB / static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  ASSERT_EQ(mincore(bytes.data(), bytes.size(), there.data()), 0);
  EXPECT_TRUE(std::all_of(there.begin(), there.end(), [](unsigned char page) { return (page & 1U) != 0; }));
}

// The kernel writes into it at any time: a page that a fork() made two of would get its bytes in one of them.
TEST(Arena, AChildOfTheProcessHasNoneOfIt) {
  std::unique_ptr<Arena> arena;
  ASSERT_TRUE(Arena::create(4 * MiB, true, &arena).ok());
  const Bytes bytes = arena->bytes();
  bytes[0] = std::byte{0xa5};
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // A sanitizer's runtime maps memory of its own as a child begins, and may take the place that came free. Read by way of
    // the kernel, which says so where nothing is.
    int ends[2] = {};
    std::byte seen{};
    if (pipe(ends) != 0) _exit(2);
    const bool there = write(ends[1], bytes.data(), 1) == 1 && read(ends[0], &seen, 1) == 1;
    _exit(there && seen == std::byte{0xa5} ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  bytes[0] = std::byte{1};
}

TEST(Arena, TakesHugePagesWhereThereAreSomeAndOthersWhereThereAreNot) {
  const uint64_t before = free_huge_pages();
  std::unique_ptr<Arena> arena;
  const Fault fault = Arena::create(4 * MiB, true, &arena);
  ASSERT_TRUE(fault.ok()) << fault.what;
  arena->bytes()[4 * MiB - 1] = std::byte{1};
  if (before >= 2) {
    EXPECT_TRUE(arena->facts().reserved);
    EXPECT_EQ(arena->facts().large_bytes, 4 * MiB);
    EXPECT_LE(free_huge_pages() + 2, before);
    arena.reset();
    EXPECT_EQ(free_huge_pages(), before);
  } else {
    EXPECT_FALSE(arena->facts().reserved);
    EXPECT_LE(arena->facts().large_bytes, 4 * MiB);
    EXPECT_EQ(arena->facts().large_bytes % (2 * MiB), 0U);
  }
}

TEST(Arena, FallsBackWhenThePoolIsTooSmall) {
  const uint64_t more_than_the_pool = std::max<uint64_t>((free_huge_pages() + 1) * 2 * MiB, 2 * MiB);
  if (more_than_the_pool > 256 * MiB) GTEST_SKIP() << "the pool of huge pages is too large to be exceeded cheaply";
  std::unique_ptr<Arena> arena;
  const Fault fault = Arena::create(more_than_the_pool, true, &arena);
  ASSERT_TRUE(fault.ok()) << fault.what;
  EXPECT_FALSE(arena->facts().reserved);
  arena->bytes().back() = std::byte{1};
}

TEST(Arena, NamesTheBoundsThatItRefuses) {
  std::unique_ptr<Arena> arena;
  for (const uint64_t bytes : {uint64_t{0}, kArenaBytesMax + 1, UINT64_MAX}) {
    const Fault fault = Arena::create(bytes, false, &arena);
    EXPECT_TRUE(fault.status == Code::Invalid) << bytes;
    EXPECT_NE(fault.what.find("arena="), std::string::npos) << fault.what;
    EXPECT_NE(fault.what.find(std::to_string(kArenaBytesMax)), std::string::npos) << fault.what;
    EXPECT_EQ(arena, nullptr);
  }
}

TEST(Arena, RegionsCoverItOnceInOrder) {
  for (const uint64_t bytes : {6 * MiB, kArenaRegionBytesMax, kArenaRegionBytesMax + 2 * MiB}) {
    const uint64_t available = static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    if (available < 2 * bytes) GTEST_SKIP() << "less than " << 2 * bytes << " bytes of memory are free";
    std::unique_ptr<Arena> arena;
    const Fault fault = Arena::create(bytes, false, &arena);
    ASSERT_TRUE(fault.ok()) << fault.what;
    ASSERT_EQ(arena->facts().regions, div_up(bytes, kArenaRegionBytesMax));
    const std::byte* next = arena->bytes().data();
    uint64_t covered = 0;
    for (uint32_t i = 0; i < arena->facts().regions; ++i) {
      const Bytes region = arena->region(i);
      EXPECT_EQ(region.data(), next);
      EXPECT_LE(region.size(), kArenaRegionBytesMax);
      EXPECT_EQ(arena->region_of(region.data()), i);
      EXPECT_EQ(arena->region_of(region.data() + region.size() - 1), i);
      next += region.size();
      covered += region.size();
    }
    EXPECT_EQ(covered, arena->facts().bytes);
  }
}

}  // namespace
}  // namespace halfstep
