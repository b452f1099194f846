#include "shard/memory_place.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>

#include "base/mapping.h"
#include "base/numa_fixture.h"

namespace halfstep::shard {
namespace {

class MemoryPlacesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "places.XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    config_.node_directory = name;
  }
  void TearDown() override { std::filesystem::remove_all(config_.node_directory); }
  // Two sockets, and memory without cores behind a link.
  void write_three() {
    numa::write_node(config_.node_directory, 0, "0-3");
    numa::write_node(config_.node_directory, 1, "4-7");
    numa::write_node(config_.node_directory, 2, "");
    numa::write_memory(config_.node_directory, "0-2");
  }
  MemoryPlace place(uint32_t shard, int core) {
    MemoryPlaces places;
    const Fault fault = MemoryPlaces::make(config_, &places);
    EXPECT_TRUE(fault.ok()) << fault.what;
    return places.of(shard, core);
  }
  std::string refusal() {
    MemoryPlaces places;
    const Fault fault = MemoryPlaces::make(config_, &places);
    EXPECT_TRUE(fault.status == Code::Invalid);
    return fault.what;
  }
  MemoryConfig config_;
};

TEST_F(MemoryPlacesTest, AutomaticallyAShardIsWhereItsCoreIs) {
  write_three();
  EXPECT_EQ(place(0, 2).node, 0);
  EXPECT_EQ(place(0, 7).node, 1);
  EXPECT_EQ(place(5, 4).node, 1);
  EXPECT_EQ(place(0, 4).why, "");
}

TEST_F(MemoryPlacesTest, AutomaticallyNoneIsPreferredWhereThatSaysNothing) {
  EXPECT_EQ(place(0, 0).node, -1);
  EXPECT_EQ(place(0, 0).why, "the kernel tells of no memory nodes");
  write_three();
  EXPECT_EQ(place(0, -1).node, -1);
  EXPECT_NE(place(0, -1).why.find("not bound to cores"), std::string::npos);
  EXPECT_EQ(place(0, 9).why, "core 9 belongs to no memory node");
  numa::write_memory(config_.node_directory, "0,2");
  EXPECT_EQ(place(0, 4).node, -1);
  EXPECT_EQ(place(0, 4).why, "node 1 of core 4 has no memory; name one with --numa: 0, 2");
  numa::write_memory(config_.node_directory, "0");
  EXPECT_EQ(place(0, 2).node, -1);
  EXPECT_EQ(place(0, 2).why, "this machine has one memory node");
}

TEST_F(MemoryPlacesTest, ListedNodesAreGoneRound) {
  write_three();
  config_.automatic = false;
  config_.nodes = {1, 0, 2};
  EXPECT_EQ(place(0, -1).node, 1);
  EXPECT_EQ(place(1, 7).node, 0) << "whatever the core's is";
  EXPECT_EQ(place(2, 7).node, 2);
  EXPECT_EQ(place(3, 7).node, 1);
  config_.nodes = {};
  EXPECT_EQ(place(0, 4).node, -1);
  EXPECT_EQ(place(0, 4).why, "off");
}

TEST_F(MemoryPlacesTest, RefusesANodeThatIsNotThereOrHasNoMemory) {
  config_.automatic = false;
  config_.nodes = {0};
  EXPECT_EQ(refusal(), "numa=0: " + config_.node_directory + " tells of no memory nodes; leave --numa at auto");
  write_three();
  config_.nodes = {0, 3};
  EXPECT_EQ(refusal(), "numa=3: there is no such node; nodes with memory are 0, 1, 2; name some of these, or auto or off");
  numa::write_memory(config_.node_directory, "0-1");
  config_.nodes = {2};
  EXPECT_EQ(refusal(), "numa=2: has no memory; nodes with memory are 0, 1; name some of these, or auto or off");
}

TEST(MemoryFacts, SayWhatWasRefusedAndHow) {
  Mapping mapping;
  ASSERT_TRUE(Mapping::create({.bytes = 2 * MiB, .large_pages = false, .what = "test"}, &mapping).ok());
  const Status none;
  const Status eperm(Code::IoError, -EPERM);
  const Status einval(Code::IoError, -EINVAL);
  const ConstBytes memory = mapping.bytes();
  EXPECT_EQ(look_at_memory({-1, "off"}, none, none, memory, memory).why_no_node, "off");
  const std::string arena = look_at_memory({1, ""}, eperm, eperm, memory, memory).why_no_node;
  EXPECT_NE(arena.find("node 1: mbind: EPERM"), std::string::npos) << arena;
  EXPECT_NE(arena.find("seccomp profile"), std::string::npos) << arena;
  const std::string thread = look_at_memory({1, ""}, none, einval, memory, memory).why_no_node;
  EXPECT_NE(thread.find("node 1: set_mempolicy: EINVAL"), std::string::npos) << thread;
  EXPECT_NE(thread.find("cpuset.mems"), std::string::npos) << thread;
}

TEST(MemoryFacts, NameNoNodeThatTheThreadDoesNotPrefer) {
  int node = -1;
  if (!numa::preferred(nullptr, &node).ok()) GTEST_SKIP() << "get_mempolicy is refused here";
  const std::vector<numa::Node> nodes = numa::read_nodes();
  if (nodes.empty()) GTEST_SKIP() << "the kernel tells of no memory nodes";
  Mapping mapping;
  ASSERT_TRUE(Mapping::create({.bytes = 2 * MiB, .large_pages = false, .what = "test"}, &mapping).ok());
  ASSERT_TRUE(numa::prefer(mapping.bytes(), nodes.front().number).ok());
  EXPECT_EQ(look_at_memory({0, ""}, {}, {}, mapping.bytes(), {}).node, -1);
}

}  // namespace
}  // namespace halfstep::shard
