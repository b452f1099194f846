// What a control group allows, as version 1 and version 2 write it down.
#include "base/memory_limit.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace halfstep {
namespace {

namespace fs = std::filesystem;

class MemoryLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/halfstep-groups-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    at_ = directory;
    files_ = {at_ + "/cgroup", at_ + "/fs"};
  }
  void TearDown() override { fs::remove_all(at_); }
  void write(const std::string& name, const std::string& text) {
    const fs::path path = fs::path(at_) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::string at_;
  ControlGroupFiles files_;
};

TEST_F(MemoryLimitTest, NoGroupHasNoLimit) {
  EXPECT_FALSE(memory_limit(files_));
  write("cgroup", "0::/system.slice/halfstepd.service\n");
  EXPECT_FALSE(memory_limit(files_));
  write("fs/system.slice/halfstepd.service/memory.max", "max\n");
  EXPECT_FALSE(memory_limit(files_));
}

TEST_F(MemoryLimitTest, TheTightestOfAGroupAndThoseAboveItCounts) {
  write("cgroup", "0::/system.slice/halfstepd.service\n");
  write("fs/system.slice/halfstepd.service/memory.max", "1000000\n");
  write("fs/system.slice/halfstepd.service/memory.stat", "anon 100\nfile 999999\nkernel 10\nshmem 1000\nanon_thp 7\n");
  auto limit = memory_limit(files_);
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->limit_bytes, 1'000'000U);
  EXPECT_EQ(limit->used_bytes, 1100U) << "page cache and slabs give way";
  EXPECT_EQ(limit->left_bytes(), 998'900U);
  EXPECT_EQ(limit->file, at_ + "/fs/system.slice/halfstepd.service/memory.max");
  write("fs/system.slice/memory.max", "2000\n");
  write("fs/system.slice/memory.stat", "anon 5000\n");
  limit = memory_limit(files_);
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->limit_bytes, 2000U);
  EXPECT_EQ(limit->left_bytes(), 0U);
}

TEST_F(MemoryLimitTest, AContainerSeesItsOwnGroupAtTheRoot) {
  write("cgroup", "0::/kubepods/pod7/abc\n");
  write("fs/memory.max", "4096\n");
  const auto limit = memory_limit(files_);
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->limit_bytes, 4096U);
}

TEST_F(MemoryLimitTest, VersionOneIsReadWhereItsControllerIsMounted) {
  write("cgroup", "9:name=systemd:/\n5:cpu,memory:/a/b\n0::/\n");
  write("fs/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");  // none
  write("fs/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(memory_limit(files_));
  write("fs/memory/a/memory.limit_in_bytes", "65536\n");
  write("fs/memory/a/memory.stat", "rss 1\ntotal_rss 4096\ntotal_cache 9999\n");
  const auto limit = memory_limit(files_);
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->limit_bytes, 65'536U);
  EXPECT_EQ(limit->used_bytes, 4096U);
}

}  // namespace
}  // namespace halfstep
