// The file of a store: what a start finds at its name, and what it may do with it.
#include "shard/store_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.h"
#include "store/durable/header_keeper.h"

namespace halfstep::shard {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class StoreFileTest : public testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/halfstep-file-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    config_.store_path = directory_ + "/store.hs";
    config_.store_bytes = 132 * MiB;
    config_.arena_bytes = 32 * MiB;
  }
  void TearDown() override { fs::remove_all(directory_); }

  const std::string& path() const { return config_.store_path; }
  std::string grows() const { return path() + ".new"; }
  // Writes what a new store begins with; `starts`: how often a daemon took it.
  static void format(StoreFile& file, uint32_t starts = 0) {
    const SystemClock clock;
    std::unique_ptr<Arena> arena;
    std::unique_ptr<io::Engine> engine;
    io::EngineConfig config;
    config.choice = io::EngineChoice::Pread;
    ASSERT_TRUE(Arena::create(2 * MiB, false, &arena).ok());
    ASSERT_TRUE(io::open_engine(config, *arena, {&file.backing()}, &engine).ok());
    ASSERT_TRUE(store::Store::format(*engine, *arena, clock, *file.to_format()).ok());
    for (uint32_t start = 0; start < starts; ++start) {
      std::shared_ptr<store::HeaderKeeper> keeper;
      ASSERT_TRUE(store::HeaderKeeper::load(*engine, &keeper).ok());
      ASSERT_TRUE(keeper->start(*engine, clock).ok());
    }
  }
  // A whole store by another name, as somebody copies it in, that was started so often.
  void make_store(const std::string& at, uint32_t starts) {
    Config config = config_;
    config.store_path = at;
    StoreFile file;
    const Fault fault = file.open(config);
    ASSERT_TRUE(fault.ok()) << fault.what;
    format(file, starts);
    ASSERT_TRUE(file.publish().ok());
  }
  ino_t inode(const std::string& at) const {
    struct stat about {};
    return ::stat(at.c_str(), &about) == 0 ? about.st_ino : 0;
  }

  Config config_;
  std::string directory_;
};

TEST_F(StoreFileTest, ANewStoreGetsItsNameWhenItIsWhole) {
  {
    StoreFile file;
    ASSERT_TRUE(file.open(config_).ok());
    EXPECT_NE(file.to_format(), nullptr);
    EXPECT_FALSE(fs::exists(path()));
    EXPECT_TRUE(fs::exists(grows()));
    format(file);
    ASSERT_TRUE(file.publish().ok());
    EXPECT_TRUE(fs::exists(path()));
    EXPECT_FALSE(fs::exists(grows()));
  }
  {
    StoreFile again;
    ASSERT_TRUE(again.open(config_).ok());
    EXPECT_EQ(again.to_format(), nullptr);
  }
  fs::remove(path());
  {
    StoreFile file;
    ASSERT_TRUE(file.open(config_).ok());
  }
  EXPECT_TRUE(fs::is_empty(directory_)) << "what was not published is gone";
}

TEST_F(StoreFileTest, AStoreUnderTheNameOfANewOneIsNeverRemoved) {
  make_store(grows(), 3);
  const ino_t before = inode(grows());
  for (int tries = 0; tries < 2; ++tries) {
    StoreFile file;
    const Fault fault = file.open(config_);
    EXPECT_EQ(fault.status, Code::Present);
    EXPECT_TRUE(contains(fault.what, grows() + ": holds a store")) << fault.what;
    EXPECT_TRUE(contains(fault.what, "rename it to " + path())) << fault.what;
  }
  EXPECT_EQ(inode(grows()), before);
  EXPECT_FALSE(fs::exists(path()));
}

TEST_F(StoreFileTest, AHeaderThatIsWholeAtOneEndProtectsAStoreThatWasCut) {
  make_store(grows(), 3);
  fs::resize_file(grows(), 40 * MiB + 7);  // half copied
  StoreFile file;
  const Fault fault = file.open(config_);
  EXPECT_TRUE(contains(fault.what, "holds a store")) << fault.what;
  EXPECT_EQ(fs::file_size(grows()), 40 * MiB + 7);
}

TEST_F(StoreFileTest, WhatAFirstStartLeftWholeAndEmptyIsGivenItsName) {
  for (const uint32_t starts : {0U, 1U}) {
    SCOPED_TRACE(starts);
    make_store(grows(), starts);
    const ino_t before = inode(grows());
    StoreFile file;
    const Fault fault = file.open(config_);
    ASSERT_TRUE(fault.ok()) << fault.what;
    EXPECT_EQ(file.to_format(), nullptr) << "it is one already";
    EXPECT_EQ(inode(path()), before);
    EXPECT_FALSE(fs::exists(grows()));
    fs::remove(path());
  }
}

TEST_F(StoreFileTest, WhatHasNoHeaderIsMadeAnew) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{9}, uint64_t{4096}, 132 * MiB, 132 * MiB + 5}) {
    SCOPED_TRACE(bytes);
    std::ofstream(grows()) << "garbage";
    fs::resize_file(grows(), bytes);
    StoreFile file;
    const Fault fault = file.open(config_);
    ASSERT_TRUE(fault.ok()) << fault.what;
    EXPECT_NE(file.to_format(), nullptr);
    EXPECT_EQ(fs::file_size(grows()), 132 * MiB);
  }
}

TEST_F(StoreFileTest, WhatIsNoFileUnderTheNameOfANewOneIsLeftAlone) {
  fs::create_symlink(directory_ + "/elsewhere", grows());
  StoreFile file;
  Fault fault = file.open(config_);
  EXPECT_TRUE(contains(fault.what, "is no regular file")) << fault.what;
  EXPECT_TRUE(fs::is_symlink(grows()));
  fs::remove(grows());
  fs::create_directory(grows());
  fault = file.open(config_);
  EXPECT_TRUE(contains(fault.what, "is no regular file")) << fault.what;
}

TEST_F(StoreFileTest, ALinkToADriveThatIsAwayIsNotReplaced) {
  fs::create_symlink(directory_ + "/nvme/store.hs", path());
  StoreFile file;
  const Fault fault = file.open(config_);
  EXPECT_FALSE(fault.ok());
  EXPECT_TRUE(contains(fault.what, "links to " + directory_ + "/nvme/store.hs, which is not there")) << fault.what;
  EXPECT_TRUE(fs::is_symlink(path()));
  EXPECT_FALSE(fs::exists(grows()));
}

// Two first starts at once: the second one looks at every step of the first.
TEST_F(StoreFileTest, TheLoserOfTwoFirstStartsIsToldWhoHasTheStore) {
  std::string told;
  Config first = config_;
  first.progress = [&](const char*, uint64_t, uint64_t) {
    if (told.empty()) {
      StoreFile loser;
      const Fault fault = loser.open(config_);
      EXPECT_EQ(fault.status, Code::Present);
      told = fault.what;
    }
    return true;
  };
  StoreFile winner;
  ASSERT_TRUE(winner.open(first).ok());
  EXPECT_TRUE(contains(told, "locked by process " + std::to_string(getpid()))) << told;
  format(winner);
  {
    StoreFile loser;
    EXPECT_EQ(loser.open(config_).status, Code::Present) << "between its creation and its name";
  }
  EXPECT_TRUE(fs::exists(grows()));
  ASSERT_TRUE(winner.publish().ok());
  StoreFile loser;
  const Fault fault = loser.open(config_);
  EXPECT_EQ(fault.status, Code::Present);
  EXPECT_TRUE(contains(fault.what, path() + ": locked by process")) << fault.what;
}

TEST_F(StoreFileTest, AStoreThatAppearsWhileAnotherIsMadeIsNotReplaced) {
  make_store(directory_ + "/other", 3);
  StoreFile file;
  ASSERT_TRUE(file.open(config_).ok());
  format(file);
  fs::rename(directory_ + "/other", path());
  const ino_t before = inode(path());
  const Fault fault = file.publish();
  EXPECT_EQ(fault.status, Code::Present);
  EXPECT_TRUE(contains(fault.what, path())) << fault.what;
  EXPECT_EQ(inode(path()), before);
}

}  // namespace
}  // namespace halfstep::shard
