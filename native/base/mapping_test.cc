#include "base/mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace halfstep {
namespace {

TEST(Mapping, MovesAndIsAligned) {
  Mapping a;
  ASSERT_TRUE(Mapping::create({.bytes = 1, .large_pages = false, .what = "index"}, &a).ok());
  EXPECT_EQ(a.pages(), Mapping::Pages::Ordinary);
  EXPECT_EQ(a.bytes().size(), 2 * MiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.bytes().data()) % (2 * MiB), 0U);
  a.bytes()[0] = std::byte{1};
  a.bytes()[2 * MiB - 1] = std::byte{2};
  Mapping b = std::move(a);
  EXPECT_EQ(b.bytes()[2 * MiB - 1], std::byte{2});
  EXPECT_EQ(b.large_bytes(), 0U);
}

TEST(Mapping, SaysHowMuchOfItLiesInLargePages) {
  Mapping mapping;
  ASSERT_TRUE(Mapping::create({.bytes = 8 * MiB, .large_pages = true, .what = "index"}, &mapping).ok());
  for (size_t at = 0; at < mapping.bytes().size(); at += 4096) mapping.bytes()[at] = std::byte{1};
  EXPECT_LE(mapping.large_bytes(), 8 * MiB);
  EXPECT_EQ(mapping.large_bytes() % (2 * MiB), 0U);
  if (mapping.pages() == Mapping::Pages::Ordinary) {
    EXPECT_EQ(mapping.large_bytes(), 0U);
  }
  if (mapping.pages() == Mapping::Pages::Reserved) {
    EXPECT_EQ(mapping.large_bytes(), 8 * MiB);
  }
}

TEST(Mapping, NamesWhatItWasForAndTheBoundsThatItRefuses) {
  Mapping mapping;
  for (const uint64_t bytes : {uint64_t{0}, UINT64_MAX}) {
    const Fault fault = Mapping::create({.bytes = bytes, .large_pages = false, .what = "index"}, &mapping);
    EXPECT_TRUE(fault.status == Code::Invalid);
    EXPECT_NE(fault.what.find("index=" + std::to_string(bytes)), std::string::npos) << fault.what;
    EXPECT_TRUE(mapping.bytes().empty());
  }
}

// Hands out ordinary memory for reserved pages, and refuses at the first touch as often as it is told.
class Pool final : public MemorySource {
 public:
  std::byte* map(uint64_t bytes, bool reserved) override {
    kinds.push_back(reserved);
    if (reserved) bytes += 2 * MiB;  // a stand-in for a mapping that is aligned
    std::byte* at = MemorySource::map(bytes, false);
    if (!reserved || at == nullptr) return at;
    const uint64_t before = (2 * MiB - reinterpret_cast<uintptr_t>(at) % (2 * MiB)) % (2 * MiB);
    if (before != 0) munmap(at, before);
    if (before != 2 * MiB) munmap(at + bytes - (2 * MiB - before), 2 * MiB - before);
    return at + before;
  }
  int populate(Bytes memory) override {
    ++populated;
    return populated <= refusals.size() ? refusals[populated - 1] : MemorySource::populate(memory);
  }
  std::optional<MemoryLimit> limit() override { return allowed; }

  std::vector<bool> kinds;
  std::vector<int> refusals;
  size_t populated = 0;
  std::optional<MemoryLimit> allowed;
};

TEST(Mapping, PagesThatArePromisedAndRefusedAtTheFirstTouchAreTakenElsewhere) {
  for (const int refusal : {EFAULT, ENOMEM, EHWPOISON}) {
    Pool pool;
    pool.refusals = {refusal};
    uint32_t prepared = 0;
    Mapping mapping;
    const Fault fault = Mapping::create({.bytes = 4 * MiB,
                                         .large_pages = true,
                                         .what = "index",
                                         .prepare =
                                             [&](Bytes) {
                                               ++prepared;
                                               return 0;
                                             },
                                         .source = &pool},
                                        &mapping);
    ASSERT_TRUE(fault.ok()) << fault.what;
    EXPECT_EQ(pool.kinds, (std::vector<bool>{true, false}));
    EXPECT_NE(mapping.pages(), Mapping::Pages::Reserved);
    EXPECT_EQ(prepared, 2U) << "each kind before its first page";
    EXPECT_NE(mapping.why_smaller().find("index"), std::string::npos) << mapping.why_smaller();
    EXPECT_NE(mapping.why_smaller().find("hugetlb.2MB.max"), std::string::npos) << mapping.why_smaller();
    mapping.bytes().back() = std::byte{1};
  }
}

TEST(Mapping, LargePagesThatTheKernelCannotFormAreOrdinaryOnes) {
  Pool pool;
  pool.refusals = {EFAULT, ENOMEM};
  Mapping mapping;
  const Fault fault = Mapping::create({.bytes = 4 * MiB, .large_pages = true, .what = "index", .source = &pool}, &mapping);
  ASSERT_TRUE(fault.ok()) << fault.what;
  EXPECT_EQ(mapping.pages(), Mapping::Pages::Ordinary);
  EXPECT_EQ(pool.populated, 3U);
}

TEST(Mapping, WithoutLargePagesThePoolIsNotAsked) {
  Pool pool;
  Mapping mapping;
  ASSERT_TRUE(Mapping::create({.bytes = 4 * MiB, .large_pages = false, .what = "index", .source = &pool}, &mapping).ok());
  EXPECT_EQ(pool.kinds, std::vector<bool>{false});
  EXPECT_EQ(mapping.pages(), Mapping::Pages::Ordinary);
  EXPECT_TRUE(mapping.why_smaller().empty());
}

TEST(Mapping, AControlGroupThatHasLessIsNamedBeforeAnythingIsTouched) {
  Pool pool;
  pool.allowed = MemoryLimit{"/sys/fs/cgroup/x/memory.max", 3 * MiB, MiB};
  Mapping mapping;
  const Fault fault = Mapping::create({.bytes = 4 * MiB, .large_pages = false, .what = "arena", .source = &pool}, &mapping);
  EXPECT_EQ(fault.status, Code::NoSpace);
  EXPECT_NE(fault.what.find("/sys/fs/cgroup/x/memory.max allows 3145728, of which 1048576"), std::string::npos) << fault.what;
  EXPECT_NE(fault.what.find("lower --arena"), std::string::npos) << fault.what;
  EXPECT_EQ(pool.populated, 0U);
  // Pages of the pool are not the group's.
  ASSERT_TRUE(Mapping::create({.bytes = 4 * MiB, .large_pages = true, .what = "arena", .source = &pool}, &mapping).ok());
}

TEST(Mapping, EveryPageIsThereFromTheStart) {
  for (const bool large : {false, true}) {
    Mapping mapping;
    ASSERT_TRUE(Mapping::create({.bytes = 4 * MiB, .large_pages = large, .what = "index"}, &mapping).ok());
    std::vector<unsigned char> there(4 * MiB / static_cast<size_t>(sysconf(_SC_PAGESIZE)));
    ASSERT_EQ(mincore(mapping.bytes().data(), mapping.bytes().size(), there.data()), 0);
    EXPECT_TRUE(std::all_of(there.begin(), there.end(), [](unsigned char page) { return (page & 1U) != 0; }));
  }
}

}  // namespace
}  // namespace halfstep
