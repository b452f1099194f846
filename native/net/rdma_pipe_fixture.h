// rdma_pipe_fixture.h — for tests: both ends of a connection as pipes, without a stream around them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "net/rdma_fixture.h"
#include "net/rdma_pipe.h"
#include "net/stream_fixture.h"

namespace halfstep::net {

inline constexpr uint32_t kPipeRingBytes = 64 * KiB;

// Every payload lies in one block of memory that is registered with the first device.
class Payload final : public RegisteredMemory {
 public:
  bool local_key(const rdma::Device&, ConstBytes bytes, uint32_t* key) noexcept override {
    if (!region.made()) return false;
    const auto at = reinterpret_cast<uint64_t>(bytes.data());
    *key = region.local_key();
    return at >= region.address() && at + bytes.size() <= region.address() + memory.size();
  }
  Octets memory = random_octets(2 * MiB, 77);
  rdma::MemoryRegion region;
};

class Pipes : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(loop_.open().ok());
    sockets_ = tcp_pair();
    RdmaEnds ends = rdma_ends(rdma_.rings, sockets_);
    server_ = std::make_unique<RdmaPipe>(std::move(ends.server), payload_, counts_, false);
    client_ = std::make_unique<RdmaPipe>(std::move(ends.client), payload_, counts_, true);
  }
  void TearDown() override {
    server_ = nullptr;
    client_ = nullptr;
    payload_.region.reset();
    for (const int socket : sockets_) ::close(socket);
    EXPECT_EQ(rdma_.verbs.live(), 0U);
    EXPECT_TRUE(rdma_.verbs.faults().empty()) << rdma_.verbs.faults().front();
  }
  static ssize_t write(RdmaPipe& to, ConstBytes bytes, bool more = false) {
    const iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return to.write(&vector, 1, more);
  }
  static Octets read(RdmaPipe& from, size_t most = SIZE_MAX) {
    Octets all;
    std::array<std::byte, 4096> some;
    while (all.size() < most) {
      const iovec vector{some.data(), std::min(some.size(), most - all.size())};
      const ssize_t got = from.read(&vector, 1);
      if (got <= 0) break;
      append(all, ConstBytes(some).first(static_cast<size_t>(got)));
    }
    return all;
  }
  static int error_of_read(RdmaPipe& from) {
    std::byte one;
    const iovec vector{&one, 1};
    return static_cast<int>(from.read(&vector, 1));
  }

  ManualClock clock_;
  Loop loop_{clock_};
  FakeRdma rdma_{loop_, kPipeRingBytes};
  Payload payload_;
  RdmaCounts counts_;
  std::array<int, 2> sockets_{-1, -1};
  std::unique_ptr<RdmaPipe> server_;
  std::unique_ptr<RdmaPipe> client_;
};

}  // namespace halfstep::net
