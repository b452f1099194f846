#include "base/numa.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <thread>

#include "base/mapping.h"
#include "base/numa_fixture.h"

namespace halfstep::numa {
namespace {

using Numbers = std::vector<uint32_t>;

class NumaDirectory : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "numa.XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST(NumaList, ReadsWhatTheKernelWrites) {
  Numbers numbers;
  EXPECT_TRUE(parse_list("0-3,8\n", 16, &numbers));
  EXPECT_EQ(numbers, (Numbers{0, 1, 2, 3, 8}));
  EXPECT_TRUE(parse_list("\n", 16, &numbers));
  EXPECT_TRUE(numbers.empty());
  EXPECT_TRUE(parse_list("15", 16, &numbers));
  EXPECT_EQ(numbers, Numbers{15});
}

TEST(NumaList, RefusesWhatIsNoListAndWhatIsTooMuch) {
  for (const char* text : {"16", "0-16", "3-1", "a", "1,", ",1", "1-", "1--2", "0,,2", "-1", "1 2", "99999999999", "0-9,0-9"}) {
    Numbers numbers{7};
    EXPECT_FALSE(parse_list(text, 16, &numbers)) << text;
    EXPECT_TRUE(numbers.empty()) << text;
  }
}

TEST_F(NumaDirectory, TellsNodesTheirCoresAndWhichHaveMemory) {
  write_node(directory_, 10, "");
  write_node(directory_, 1, "4-7,12");
  write_node(directory_, 0, "0-3");
  write_memory(directory_, "0,10");
  std::filesystem::create_directory(directory_ + "/node");
  std::filesystem::create_directory(directory_ + "/node1x");
  std::filesystem::create_directory(directory_ + "/node1024");
  std::filesystem::create_directory(directory_ + "/power");
  const std::vector<Node> nodes = read_nodes(directory_);
  ASSERT_EQ(nodes.size(), 3U);
  EXPECT_EQ(nodes[0].number, 0U);
  EXPECT_EQ(nodes[0].cores, (Numbers{0, 1, 2, 3}));
  EXPECT_TRUE(nodes[0].has_memory);
  EXPECT_EQ(nodes[1].number, 1U);
  EXPECT_EQ(nodes[1].cores, (Numbers{4, 5, 6, 7, 12}));
  EXPECT_FALSE(nodes[1].has_memory);
  EXPECT_EQ(nodes[2].number, 10U);
  EXPECT_TRUE(nodes[2].cores.empty());
  EXPECT_TRUE(nodes[2].has_memory);
}

TEST_F(NumaDirectory, TakesOlderKernelsWordForMemoryAndNothingForNone) {
  write_node(directory_, 0, "0");
  write_node(directory_, 1, "1");
  std::ofstream(directory_ + "/has_normal_memory") << "1\n";
  EXPECT_FALSE(read_nodes(directory_)[0].has_memory);
  EXPECT_TRUE(read_nodes(directory_)[1].has_memory);
  std::filesystem::remove(directory_ + "/has_normal_memory");
  EXPECT_TRUE(read_nodes(directory_)[0].has_memory);
  EXPECT_TRUE(read_nodes(directory_ + "/none").empty());
}

// What a kernel without memory nodes, or one that is not asked, cannot show.
bool allowed() {
  int node = -1;
  return preferred(nullptr, &node).ok() && !read_nodes().empty();
}

// Policies of the thread end with it.
template <typename Body>
void in_thread(Body body) {
  std::thread(body).join();
}

TEST(Numa, MemoryComesFromTheNodeThatItPrefers) {
  if (!allowed()) GTEST_SKIP() << "the calls about memory nodes are refused here";
  const uint32_t node = read_nodes().front().number;
  Mapping mapping;
  ASSERT_TRUE(Mapping::create({.bytes = 4 * MiB, .large_pages = false, .what = "test"}, &mapping).ok());
  int told = 7;
  EXPECT_TRUE(preferred(mapping.bytes().data(), &told).ok());
  EXPECT_EQ(told, -1);
  ASSERT_TRUE(prefer(mapping.bytes(), node).ok());
  EXPECT_TRUE(preferred(mapping.bytes().data(), &told).ok());
  EXPECT_EQ(told, static_cast<int>(node));

  Pages pages;
  ASSERT_TRUE(sample_pages(mapping.bytes(), 16, &pages).ok());
  EXPECT_EQ(pages.absent, 16U) << "nobody has touched it";
  std::fill(mapping.bytes().begin(), mapping.bytes().end(), std::byte{1});
  ASSERT_TRUE(sample_pages(mapping.bytes(), 16, &pages).ok());
  EXPECT_EQ(pages.absent, 0U);
  uint32_t counted = 0;
  for (const auto& [number, count] : pages.by_node) counted += count;
  EXPECT_EQ(counted, 16U);
  ASSERT_TRUE(sample_pages(mapping.bytes().first(3 * 4096), 16, &pages).ok());
  EXPECT_EQ(pages.by_node.begin()->second, 3U) << "no more than there are";
}

TEST(Numa, AThreadPrefersANodeForItselfAlone) {
  if (!allowed()) GTEST_SKIP() << "the calls about memory nodes are refused here";
  const uint32_t node = read_nodes().front().number;
  in_thread([node] {
    int told = -1;
    ASSERT_TRUE(prefer_for_thread(node).ok());
    EXPECT_TRUE(preferred(nullptr, &told).ok());
    EXPECT_EQ(told, static_cast<int>(node));
  });
  int told = 7;
  EXPECT_TRUE(preferred(nullptr, &told).ok());
  EXPECT_EQ(told, -1);
}

TEST(Numa, SharedMemoryFollowsItsMakerWhoeverTouchesIt) {
  if (!allowed()) GTEST_SKIP() << "the calls about memory nodes are refused here";
  const uint32_t node = read_nodes().front().number;
  const int descriptor = ::memfd_create("numa", MFD_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(::ftruncate(descriptor, 2 * MiB), 0);
  const auto map = [descriptor] { return ::mmap(nullptr, 2 * MiB, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0); };
  void* const makers = map();
  void* const others = map();
  int told = 7;
  in_thread([&] {
    EXPECT_TRUE(prefer_as_thread({static_cast<std::byte*>(makers), 2 * MiB}).ok());
    EXPECT_TRUE(preferred(others, &told).ok());
    EXPECT_EQ(told, -1) << "the thread prefers none";
    ASSERT_TRUE(prefer_for_thread(node).ok());
    EXPECT_TRUE(prefer_as_thread({static_cast<std::byte*>(makers), 2 * MiB}).ok());
  });
  EXPECT_TRUE(preferred(others, &told).ok());
  EXPECT_EQ(told, static_cast<int>(node));
  ::munmap(makers, 2 * MiB);
  ::munmap(others, 2 * MiB);
  ::close(descriptor);
}

TEST(Numa, ANodeThatIsNotThereIsRefusedByTheKernelOrByUs) {
  if (!allowed()) GTEST_SKIP() << "the calls about memory nodes are refused here";
  Mapping mapping;
  ASSERT_TRUE(Mapping::create({.bytes = 2 * MiB, .large_pages = false, .what = "test"}, &mapping).ok());
  for (const uint32_t node : {kNodesMax - 1, kNodesMax, UINT32_MAX}) {
    if (node < kNodesMax && read_nodes().back().number == node) continue;
    EXPECT_EQ(prefer(mapping.bytes(), node).detail(), -EINVAL) << node;
    EXPECT_EQ(prefer_for_thread(node).detail(), -EINVAL) << node;
  }
}

TEST(Numa, CallsThatAreRefusedSayHow) {
  Mapping mapping;
  ASSERT_TRUE(Mapping::create({.bytes = 2 * MiB, .large_pages = false, .what = "test"}, &mapping).ok());
  EXPECT_EXIT(
      {
        if (!refuse_node_calls()) ::_exit(2);
        int node = 7;
        Pages pages;
        const bool right = prefer(mapping.bytes(), 0).detail() == -EPERM && prefer_for_thread(0).detail() == -EPERM &&
                           prefer_as_thread(mapping.bytes()).detail() == -EPERM &&
                           preferred(nullptr, &node).detail() == -EPERM && node == -1 &&
                           sample_pages(mapping.bytes(), 4, &pages).detail() == -EPERM && pages.by_node.empty();
        ::_exit(right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace halfstep::numa
