// What a stream allocates: nothing in the steady state, little when idle, and never by the sender's number. This executable
// counts every allocation of its process (noinline: g++ must not see malloc() meet delete).
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <new>

#include "base/units.h"
#include "net/stream.h"
#include "net/stream_fixture.h"

#if defined(__SANITIZE_THREAD__)
#define HALFSTEP_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HALFSTEP_COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef HALFSTEP_COUNTS_ALLOCATIONS
#define HALFSTEP_COUNTS_ALLOCATIONS 1
#endif

namespace {

uint64_t allocations = 0;
int64_t live_bytes = 0;
size_t largest_bytes = 0;

}  // namespace

#if HALFSTEP_COUNTS_ALLOCATIONS
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  ++allocations;
  live_bytes += static_cast<int64_t>(::malloc_usable_size(memory));
  largest_bytes = std::max(largest_bytes, bytes);
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
#endif

namespace halfstep::net {
namespace {

using wire::Opcode;

// Lands every payload in one place and allocates nothing itself.
class Plain final : public FrameSink {
 public:
  explicit Plain(Bytes memory) : memory_(memory) {}
  Status on_frame(const wire::Header& header, ConstBytes, Landing* landing) override {
    for (size_t left = header.payload_bytes; left != 0;) {
      const size_t piece = std::min<size_t>(left, 4 * KiB);
      landing->to(memory_.first(piece));
      left -= piece;
    }
    ++frames;
    return {};
  }
  void on_landed(ConstBytes, size_t) override {}
  Status on_chunk_end() override {
    ++chunks;
    return {};
  }
  void on_sendable() override {}
  void on_closed(Status) override { closed = true; }

  uint64_t frames = 0;
  uint64_t chunks = 0;
  bool closed = false;

 private:
  Bytes memory_;
};

class StreamMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (HALFSTEP_COUNTS_ALLOCATIONS == 0) {
      GTEST_SKIP() << "ThreadSanitizer brings its own operator new, so nothing is counted";
    }
    ASSERT_TRUE(loop_.open().ok());
    connect();
  }
  void connect() {
    const auto pair = unix_pair();
    near_ = std::make_unique<FrameStream>(loop_, pair[0], near_sink_);
    far_ = std::make_unique<FrameStream>(loop_, pair[1], far_sink_);
    ASSERT_TRUE(near_->start().ok());
    ASSERT_TRUE(far_->start().ok());
  }
  void exchange(int count) {
    const ConstBytes payload = ConstBytes(memory_).first(256 * KiB);
    for (int i = 0; i < count; ++i) {
      near_->send(request_);
      far_->send_chunk(head_, {&payload, 1}, nullptr, nullptr, 0);
      const uint64_t wanted = near_sink_.chunks + 1;
      while (near_sink_.chunks < wanted) loop_.turn(0);
    }
  }

  ManualClock clock_;
  Loop loop_{clock_};
  Octets memory_ = random_octets(256 * KiB, 1);
  Octets request_ = frame(Opcode::Match, 1, random_octets(40 * KiB, 2));
  Octets head_ = frame(Opcode::Chunk, 1, random_octets(12 * KiB, 3), 256 * KiB);
  Octets other_memory_ = Octets(256 * KiB);
  Plain near_sink_{Bytes(other_memory_)};
  Plain far_sink_{Bytes(other_memory_)};
  std::unique_ptr<FrameStream> near_;
  std::unique_ptr<FrameStream> far_;
};

TEST_F(StreamMemory, AllocatesNothingInTheSteadyState) {
  exchange(50);
  const uint64_t before = allocations;
  exchange(500);
  EXPECT_EQ(allocations, before);
}

TEST_F(StreamMemory, AnIdleConnectionKeepsAtMost16KiB) {
  const int64_t before_traffic = live_bytes;
  exchange(50);
  EXPECT_GT(live_bytes - before_traffic, static_cast<int64_t>(16 * KiB)) << "the traffic needed buffers";
  for (int i = 0; i < 4; ++i) {
    clock_.us += 200'000;
    loop_.turn(0);
  }
  const int64_t two_streams = live_bytes - before_traffic + int64_t{2 * sizeof(FrameStream)};
  EXPECT_LE(two_streams, static_cast<int64_t>(2 * 16 * KiB));
  exchange(2);
}

TEST_F(StreamMemory, AnnouncedBytesAreNotAllocated) {
  const auto pair = unix_pair();
  Plain sink{Bytes(other_memory_)};
  FrameStream stream(loop_, pair[1], sink);
  ASSERT_TRUE(stream.start().ok());
  const Octets large = frame(Opcode::Put, 1, random_octets(wire::kBodyBytesMax - 8, 1));
  const int64_t live_before = live_bytes;
  largest_bytes = 0;
  ASSERT_EQ(::send(pair[0], large.data(), wire::kHeaderBytes + 10, 0), static_cast<ssize_t>(wire::kHeaderBytes + 10));
  loop_.turn(0);
  loop_.turn(0);
  EXPECT_LT(largest_bytes, 1 * KiB);
  EXPECT_LT(live_bytes - live_before, static_cast<int64_t>(1 * KiB));
  // As the rest trickles in, what is held stays in proportion to what has come.
  for (size_t at = wire::kHeaderBytes + 10; at + 1000 < large.size() / 8; at += 1000) {
    ASSERT_EQ(::send(pair[0], large.data() + at, 1000, 0), 1000);
    loop_.turn(0);
    ASSERT_LE(largest_bytes, 3 * at + 4000);
  }
  ::close(pair[0]);
}

}  // namespace
}  // namespace halfstep::net
