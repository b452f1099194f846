#include "io/drive_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace halfstep::io {
namespace {

using std::chrono::milliseconds;

std::optional<DriveWatch::Seen> seen_when(const DriveWatch& watch, const std::function<bool(const DriveWatch::Seen&)>& is) {
  for (int turn = 0; turn < 30'000; ++turn) {
    if (const auto seen = watch.seen(); seen && is(*seen)) return seen;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return watch.seen();
}

TEST(DriveWatch, TellsWhatWasWrittenSinceItsFirstLook) {
  std::atomic<uint64_t> looks = 0;
  std::unique_ptr<DriveWatch> watch;
  const auto read = [&](NvmeWritten* out) -> Fault {
    const uint64_t look = looks++;
    *out = {.host_bytes = 1000 + 100 * look, .media_bytes = 5000 + 150 * look};
    return {};
  };
  ASSERT_TRUE(DriveWatch::start(read, &watch, milliseconds(1)).ok());
  const auto seen = seen_when(*watch, [](const auto& one) { return one.last.host_bytes > 1200; });
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->first.host_bytes, 1000U);
  ASSERT_TRUE(seen->amplification());
  EXPECT_DOUBLE_EQ(*seen->amplification(), 1.5);
}

TEST(DriveWatch, KeepsTheLastCountsOfADriveThatStopsAnswering) {
  std::atomic<uint64_t> looks = 0;
  std::unique_ptr<DriveWatch> watch;
  const auto read = [&](NvmeWritten* out) -> Fault {
    if (looks++ != 1) return {Code::IoError, "gone"};
    *out = {.host_bytes = 7, .media_bytes = 0};
    return {};
  };
  ASSERT_TRUE(DriveWatch::start(read, &watch, milliseconds(1)).ok());
  for (int turn = 0; looks < 5 && turn < 30'000; ++turn) std::this_thread::sleep_for(milliseconds(1));
  ASSERT_TRUE(watch->seen());
  EXPECT_EQ(watch->seen()->last.host_bytes, 7U);
  EXPECT_FALSE(watch->seen()->amplification()) << "it does not tell what it wrote to its media";
}

TEST(DriveWatch, EndsBetweenLooksAtOnce) {
  std::unique_ptr<DriveWatch> watch;
  ASSERT_TRUE(DriveWatch::start([](NvmeWritten*) { return Fault(); }, &watch, std::chrono::hours(24)).ok());
  watch = nullptr;
}

}  // namespace
}  // namespace halfstep::io
