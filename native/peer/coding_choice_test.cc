// When a block is coded and when it stays as it is: each line is one set of measurements and what follows of it.
#include "peer/coding_choice.h"

#include <gtest/gtest.h>

namespace halfstep::peer {
namespace {

constexpr uint64_t kMB = 1'000'000;

struct Row {
  const char* what;
  CodingMode mode;
  uint64_t encode_mb_s;
  uint64_t decode_mb_s;
  uint64_t link_mb_s;
  uint64_t service_mb_s;
  uint32_t block_bytes;
  uint32_t parts;
  uint32_t ratio_milli;
  CodingReason reason;
};

constexpr auto kAlways = CodingMode::Always;
constexpr auto kAuto = CodingMode::Auto;
constexpr auto kNever = CodingMode::Never;
constexpr uint32_t kMiB = 1U << 20;

constexpr Row kRows[] = {
    {"asked for", kAlways, 1, 1, 100'000, 100'000, 4096, 1, 1000, CodingReason::Always},
    {"asked not to", kNever, 9000, 9000, 1, 1, kMiB, 12, 1500, CodingReason::Never},
    {"nothing is known", kAuto, 0, 0, 0, 0, kMiB, 12, 0, CodingReason::Unmeasured},
    {"no path is known", kAuto, 5000, 9000, 0, 0, kMiB, 12, 1480, CodingReason::Unmeasured},
    {"no encoder is known", kAuto, 0, 9000, 200, 0, kMiB, 12, 1480, CodingReason::Unmeasured},
    {"no reader is known", kAuto, 5000, 0, 200, 0, kMiB, 12, 1480, CodingReason::Unmeasured},
    {"no ratio is known", kAuto, 5000, 9000, 200, 0, kMiB, 12, 0, CodingReason::Unmeasured},
    {"a slow link", kAuto, 5000, 9000, 200, 6000, kMiB, 12, 1480, CodingReason::Faster},
    {"a slow drive behind a fast link", kAuto, 5000, 9000, 50'000, 600, kMiB, 12, 1480, CodingReason::Faster},
    {"the link alone is known", kAuto, 5000, 9000, 200, 0, kMiB, 12, 1480, CodingReason::Faster},
    {"the drive alone is known", kAuto, 5000, 9000, 0, 200, kMiB, 12, 1480, CodingReason::Faster},
    {"coder and path alike", kAuto, 1000, 1000, 1000, 0, kMiB, 12, 1480, CodingReason::Faster},
    {"shared memory, and a drive behind it", kAuto, 5000, 9000, 20'000, 3000, kMiB, 12, 1480, CodingReason::Faster},
    {"shared memory of which nothing is known", kAuto, 5000, 9000, 0, 0, kMiB, 12, 1480, CodingReason::Unmeasured},
    {"shared memory, and blocks in memory", kAuto, 9000, 9000, 20'000, 20'000, kMiB, 12, 1480, CodingReason::SlowDecode},
    {"shared memory, and a reader that keeps up", kAuto, 9000, 20'000, 20'000, 20'000, kMiB, 12, 1480, CodingReason::Room},
    {"a reader that is hardly too slow", kAuto, 9000, 999, 1000, 0, kMiB, 12, 1480, CodingReason::SlowDecode},
    {"a slow reader, and a put that is faster for it", kAuto, 9000, 500, 1000, 0, kMiB, 12, 4000, CodingReason::SlowDecode},
    {"an encoder hardly too slow to be faster", kAuto, 999, 20'000, 1000, 0, kMiB, 12, 2000, CodingReason::Room},
    {"an encoder as slow as may be", kAuto, 250, 20'000, 1000, 0, kMiB, 12, 2000, CodingReason::Room},
    {"an encoder that is slower", kAuto, 249, 20'000, 1000, 0, kMiB, 12, 2000, CodingReason::SlowEncode},
    {"a small ratio leaves room, too", kAuto, 900, 9000, 1000, 0, kMiB, 12, 1040, CodingReason::Room},
    {"one page, and no speed is known", kAuto, 0, 0, 0, 0, 4096, 1, 1480, CodingReason::Pages},
    {"a block of one page", kAuto, 5000, 9000, 200, 0, 4096, 1, 4000, CodingReason::Pages},
    {"two pages that stay two", kAuto, 5000, 9000, 200, 0, 8192, 1, 1480, CodingReason::Pages},
    {"two pages that become one", kAuto, 5000, 9000, 200, 0, 8192, 1, 2100, CodingReason::Faster},
    {"trailers of many parts", kAuto, 5000, 9000, 200, 0, 65'536, 900, 1480, CodingReason::Pages},
    {"what hardly gets smaller", kAuto, 5000, 9000, 200, 0, kMiB, 12, 1001, CodingReason::Pages},
};

TEST(CodingChoice, FollowsFromWhatWasMeasured) {
  for (const Row& row : kRows) {
    const CodingInputs inputs{.encode_bytes_per_s = row.encode_mb_s * kMB,
                              .decode_bytes_per_s = row.decode_mb_s * kMB,
                              .link_bytes_per_s = row.link_mb_s * kMB,
                              .service_bytes_per_s = row.service_mb_s * kMB,
                              .block_bytes = row.block_bytes,
                              .parts = row.parts,
                              .ratio_milli = row.ratio_milli};
    EXPECT_EQ(coding_reason_name(choose_coding(row.mode, inputs)), coding_reason_name(row.reason)) << row.what;
  }
}

TEST(CodingChoice, HasANameForEachReason) {
  for (uint32_t i = 0; i < kCodingReasons; ++i) EXPECT_NE(coding_reason_name(static_cast<CodingReason>(i)), "") << i;
  EXPECT_EQ(coding_reason_name(static_cast<CodingReason>(kCodingReasons)), "");
}

}  // namespace
}  // namespace halfstep::peer
