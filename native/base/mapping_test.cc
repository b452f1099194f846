#include "base/mapping.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace halfstep {
namespace {

TEST(Mapping, MovesAndIsAligned) {
  Mapping a;
  ASSERT_TRUE(Mapping::create(1, false, "index", &a).ok());
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
  ASSERT_TRUE(Mapping::create(8 * MiB, true, "index", &mapping).ok());
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
    const Fault fault = Mapping::create(bytes, false, "index", &mapping);
    EXPECT_TRUE(fault.status == Code::Invalid);
    EXPECT_NE(fault.what.find("index_bytes=" + std::to_string(bytes)), std::string::npos) << fault.what;
    EXPECT_TRUE(mapping.bytes().empty());
  }
}

}  // namespace
}  // namespace halfstep
