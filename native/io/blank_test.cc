// What may be made a store without asking: a device that holds nothing.
#include "io/blank.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "io/test_fixtures.h"

namespace halfstep::io {
namespace {

// A sparse file stands for a device: what reads it cannot tell.
class BlankTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = directory_.path() + "/device";
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT, 0600);
    ASSERT_GE(file_, 0);
  }
  void TearDown() override { ::close(file_); }
  void make(uint64_t bytes) {
    ASSERT_EQ(::ftruncate(file_, 0), 0);
    ASSERT_EQ(::ftruncate(file_, static_cast<off_t>(bytes)), 0);
    bytes_ = bytes;
  }
  void put(uint64_t at, const std::string& what) {
    ASSERT_EQ(::pwrite(file_, what.data(), what.size(), static_cast<off_t>(at)), static_cast<ssize_t>(what.size()));
  }
  std::optional<uint64_t> look() {
    std::optional<uint64_t> at;
    const Fault fault = look_for_data(file_, bytes_, "device", nullptr, &at);
    EXPECT_TRUE(fault.ok()) << fault.what;
    return at;
  }
  TemporaryDirectory directory_;
  int file_ = -1;
  uint64_t bytes_ = 0;
};

TEST_F(BlankTest, OneByteAnywhereOfASmallDeviceIsFound) {
  make(64 * MiB + kPageBytes);
  EXPECT_EQ(look(), std::nullopt);
  for (const uint64_t at : {uint64_t{0}, uint64_t{511}, MiB, 2 * MiB - 1, 33 * MiB + 12'345, 64 * MiB + kPageBytes - 1}) {
    make(64 * MiB + kPageBytes);
    put(at, "x");
    EXPECT_EQ(look(), at);
  }
}

TEST_F(BlankTest, TheReadsOfALargeDeviceAreBoundedAndCoverItEvenly) {
  for (const uint64_t bytes : {2 * GiB, 2 * GiB + kPageBytes, 3 * GiB, 100 * GiB, 4096 * GiB, 60'000 * GiB}) {
    SCOPED_TRACE(bytes);
    const std::vector<BlankRange> ranges = blank_ranges(bytes);
    uint64_t end = 0;
    uint64_t gap = 0;
    uint64_t sum = 0;
    for (const BlankRange& range : ranges) {
      ASSERT_GE(range.offset, end);
      ASSERT_GT(range.bytes, 0U);
      ASSERT_EQ(range.offset % kPageBytes, 0U);
      ASSERT_EQ(range.bytes % kPageBytes, 0U);
      gap = std::max(gap, range.offset - end);
      end = range.offset + range.bytes;
      sum += range.bytes;
    }
    EXPECT_EQ(end, bytes);
    EXPECT_LE(sum, kBlankReadBytes + 16 * MiB);
    EXPECT_LE(gap, bytes / 4096) << "nothing longer than this can hide";
  }
}

TEST_F(BlankTest, APartitionOrASpareSuperblockOfALargeDeviceIsFound) {
  make(40 * GiB);
  if (HasFailure()) GTEST_SKIP() << "no sparse file of 40 GiB here";
  EXPECT_EQ(look(), std::nullopt);
  put(7 * 128 * MiB, "ext4");
  EXPECT_EQ(look(), 7 * 128 * MiB);
  make(40 * GiB);
  put(20 * GiB, std::string(40 * GiB / 4096, 'x'));
  EXPECT_TRUE(look().has_value());
}

TEST_F(BlankTest, ItStopsWhenAskedTo) {
  make(64 * MiB);
  std::optional<uint64_t> at;
  uint64_t last = 0;
  const Fault fault = look_for_data(
      file_, bytes_, "device",
      [&](uint64_t done, uint64_t total) {
        EXPECT_EQ(total, 64 * MiB);
        last = done;
        return done < 3 * MiB;
      },
      &at);
  EXPECT_EQ(fault.status, Code::Cancelled);
  EXPECT_EQ(last, 3 * MiB);
}

TEST_F(BlankTest, WhatDoesNotReadIsNotTakenForNothing) {
  make(4 * MiB);
  bytes_ = 8 * MiB;  // the file ends before
  std::optional<uint64_t> at;
  EXPECT_EQ(look_for_data(file_, bytes_, "device", nullptr, &at).status, Code::IoError);
}

// Both ends, and what lies where file systems keep spare superblocks.
TEST_F(BlankTest, WhatIsMadeBlankIsFoundBlank) {
  for (const uint64_t bytes : {64 * MiB + kPageBytes, 300 * GiB}) {
    make(bytes);
    for (const uint64_t at : {uint64_t{0}, uint64_t{1080}, 64 * MiB + 7, bytes / 2, bytes - 1}) put(at, "x");
    if (bytes > 256 * GiB) put(256 * GiB + 4, "_BHRfS_M");
    EXPECT_EQ(look(), 0U);
    const Fault fault = make_blank(file_, bytes_, false, "device", nullptr);
    ASSERT_TRUE(fault.ok()) << fault.what;
    EXPECT_EQ(look(), std::nullopt);
  }
}

TEST_F(BlankTest, BlankingThatIsStoppedSaysSo) {
  make(64 * MiB);
  put(0, "x");
  const Fault fault = make_blank(file_, bytes_, true, "device", [](uint64_t done, uint64_t) { return done < 4 * MiB; });
  EXPECT_EQ(fault.status, Code::Cancelled) << fault.what;
  EXPECT_EQ(look(), std::nullopt) << "a mebibyte after the other, from the first";
}

TEST_F(BlankTest, ADeviceThatTakesNoWritesIsNamed) {
  make(64 * MiB);
  put(5 * MiB, "x");
  const int reader = ::open((directory_.path() + "/device").c_str(), O_RDONLY);
  const Fault fault = make_blank(reader, bytes_, false, "device", nullptr);
  ::close(reader);
  EXPECT_EQ(fault.status, Status(Code::IoError, -EBADF));
  EXPECT_NE(fault.what.find("blanking device at 5242880: EBADF"), std::string::npos) << fault.what;
}

}  // namespace
}  // namespace halfstep::io
