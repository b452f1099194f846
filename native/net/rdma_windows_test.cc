// Memory windows of a pipe: by which key who reaches what, and until when.
#include "net/rdma_windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "net/rdma_pipe_fixture.h"

namespace halfstep::net {
namespace {

class Windows : public Pipes {
 protected:
  void SetUp() override {
    Pipes::SetUp();
    ASSERT_TRUE(rdma::MemoryRegion::make(client_->device(), memory_, rdma::MemoryRegion::Access::Windows, &whole_).ok());
    ASSERT_TRUE(
        rdma::MemoryRegion::make(server_->device(), payload_.memory, rdma::MemoryRegion::Access::Local, &payload_.region).ok());
    (void)read(*server_);  // the client has spoken
  }
  void TearDown() override {
    server_ = nullptr;
    client_ = nullptr;
    whole_.reset();
    Pipes::TearDown();
  }
  RemoteWindow open(size_t at, size_t bytes, int access = rdma::abi::kAccessRemoteWrite) {
    RemoteWindow window;
    const Fault fault = client_->open_window(whole_, Bytes(memory_).subspan(at, bytes), access, &window);
    EXPECT_TRUE(fault.ok()) << fault.what;
    return window;
  }
  // The server writes ten bytes there.
  bool reaches(uint32_t key, size_t at) {
    const std::array<ConstBytes, 1> from{ConstBytes(payload_.memory).first(10)};
    const std::array<RemoteRun, 1> to{
        RemoteRun{.address = reinterpret_cast<uint64_t>(memory_.data() + at), .key = key, .bytes = 10}};
    EXPECT_TRUE(server_->place(from, to));
    server_->push();
    server_->poll();
    return server_->error() == 0 && std::equal(from[0].begin(), from[0].end(), memory_.begin() + static_cast<ptrdiff_t>(at));
  }
  std::vector<uint32_t> closed() {
    client_->poll();
    std::vector<uint32_t> all;
    for (uint32_t number = 0; client_->take_closed(&number);) all.push_back(number);
    return all;
  }

  Octets memory_ = Octets(64 * KiB, std::byte{0xA5});
  rdma::MemoryRegion whole_;
};

TEST_F(Windows, AreReachedByTheirKeyWithinTheirBytesUntilTheyAreClosed) {
  const RemoteWindow window = open(1000, 100);
  EXPECT_TRUE(reaches(window.key, 1000));
  EXPECT_TRUE(reaches(window.key, 1090));
  client_->close_window(window.number);
  EXPECT_EQ(closed(), std::vector<uint32_t>{window.number});
  EXPECT_TRUE(closed().empty()) << "told once";
  const RemoteWindow again = open(1000, 100);
  EXPECT_EQ(again.number, window.number);
  EXPECT_NE(again.key, window.key);
  EXPECT_TRUE(reaches(again.key, 1050));
  EXPECT_FALSE(reaches(window.key, 2000)) << "the one before is good for nothing";
}

TEST_F(Windows, ReachNothingBesideTheirBytes) { EXPECT_FALSE(reaches(open(1000, 100).key, 1091)); }
TEST_F(Windows, ForReadingAreNotWrittenTo) { EXPECT_FALSE(reaches(open(1000, 100, rdma::abi::kAccessRemoteRead).key, 1000)); }
TEST_F(Windows, TheRegionItselfIsReachedByNobody) { EXPECT_FALSE(reaches(whole_.remote_key(), 1000)); }

// Nobody is told before the device has done it, and then in order; more than the queue has room for wait their turn.
TEST_F(Windows, AreClosedWhenTheDeviceSaysSo) {
  std::vector<uint32_t> numbers;
  for (size_t i = 0; i < RdmaWindows::kMax; ++i) numbers.push_back(open(i * 10, 10).number);
  RemoteWindow more;
  EXPECT_EQ(client_->open_window(whole_, Bytes(memory_).first(1), 2, &more).status, Code::NoSpace);
  rdma_.verbs.delay(true);
  for (const uint32_t number : numbers) client_->close_window(number);
  EXPECT_TRUE(closed().empty());
  std::vector<uint32_t> told;
  for (int i = 0; i < 10 && told.size() < numbers.size(); ++i) {
    rdma_.verbs.carry_out();
    const std::vector<uint32_t> some = closed();
    told.insert(told.end(), some.begin(), some.end());
  }
  EXPECT_EQ(told, numbers);
  EXPECT_EQ(rdma_.verbs.bound(), 0U);
  rdma_.verbs.delay(false);
  (void)open(0, 10);
}

// Of those that had to wait for room the first sixteen are handed over together, and their completion is of no other.
TEST_F(Windows, ThatWaitedForRoomAreToldByTheirOwnCompletion) {
  std::vector<uint32_t> numbers;
  for (size_t i = 0; i < 20; ++i) numbers.push_back(open(i * 10, 10).number);
  rdma_.verbs.delay(true);
  const Octets byte = random_octets(1, 1);
  while (write(*client_, byte) == 1) {
  }
  for (const uint32_t number : numbers) client_->close_window(number);
  rdma_.verbs.carry_out();
  EXPECT_TRUE(closed().empty()) << "there was no room for them until now";
  rdma_.verbs.carry_out(16);
  EXPECT_EQ(rdma_.verbs.bound(), 4U);
  EXPECT_EQ(closed().size(), 16U);
  rdma_.verbs.carry_out();
  EXPECT_EQ(closed().size(), 4U);
  rdma_.verbs.delay(false);
}

TEST_F(Windows, GoWithTheirPipe) {
  (void)open(0, 10);
  client_->cut();
  EXPECT_EQ(rdma_.verbs.bound(), 0U);
  RemoteWindow none;
  EXPECT_EQ(client_->open_window(whole_, Bytes(memory_).first(10), 2, &none).status, Code::Closed);
}

}  // namespace
}  // namespace halfstep::net
