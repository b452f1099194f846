// The ring alone: every byte once and in order whatever the sizes, no bell missed between two threads, and no lie believed.
#include "net/shm_ring.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <functional>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/prng.h"

namespace halfstep::net {
namespace {

using Octets = std::vector<std::byte>;

Octets random_octets(size_t count, uint64_t seed) {
  Octets out(count);
  Prng(seed).fill(out);
  return out;
}

class ShmRing : public testing::Test {
 protected:
  static constexpr size_t kSize = 4096;

  void SetUp() override {
    to_reader_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    to_writer_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    writer_ = std::make_unique<RingWriter>(control_, data_, to_reader_);
    reader_ = std::make_unique<RingReader>(control_, data_, to_writer_);
  }
  void TearDown() override {
    ::close(to_reader_);
    ::close(to_writer_);
  }
  ssize_t write(ConstBytes bytes) {
    const iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return writer_->write(&vector, 1);
  }
  ssize_t read(Bytes into) {
    const iovec vector{into.data(), into.size()};
    return reader_->read(&vector, 1);
  }
  // Whether the bell was rung since the last look.
  static bool rung(int bell) {
    uint64_t count = 0;
    return ::read(bell, &count, sizeof(count)) == sizeof(count);
  }
  static void wait_for(int bell) {
    pollfd wanted{.fd = bell, .events = POLLIN, .revents = 0};
    while (!rung(bell)) ASSERT_GE(::poll(&wanted, 1, 60'000), 1) << "a bell was missed";
  }

  RingControl control_{};
  Octets data_ = Octets(kSize);
  int to_reader_ = -1;
  int to_writer_ = -1;
  std::unique_ptr<RingWriter> writer_;
  std::unique_ptr<RingReader> reader_;
};

TEST_F(ShmRing, GivesEveryByteOnceInOrderWhateverTheSizes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Prng prng(seed);
    const Octets sent = random_octets(20'000, seed);
    Octets got;
    size_t at = 0;
    control_.tail = control_.head = 0;
    writer_ = std::make_unique<RingWriter>(control_, data_, to_reader_);
    reader_ = std::make_unique<RingReader>(control_, data_, to_writer_);
    while (got.size() < sent.size()) {
      if (prng.chance(0.5)) {
        const ConstBytes rest = ConstBytes(sent).subspan(at);
        const size_t first = std::min<size_t>(rest.size(), prng.below(3000));
        const size_t second = std::min<size_t>(rest.size() - first, prng.below(3000));
        const iovec vectors[] = {
            {const_cast<std::byte*>(rest.data()), first}, {nullptr, 0}, {const_cast<std::byte*>(rest.data()) + first, second}};
        const ssize_t count = writer_->write(vectors, 3);
        ASSERT_TRUE(count >= 0 || count == -EAGAIN);
        if (count > 0) at += static_cast<size_t>(count);
      } else {
        Octets first(prng.below(3000));
        Octets second(1 + prng.below(3000));
        const iovec vectors[] = {{first.data(), first.size()}, {second.data(), second.size()}};
        const ssize_t count = reader_->read(vectors, 2);
        ASSERT_TRUE(count >= 0 || count == -EAGAIN);
        if (count <= 0) continue;
        first.insert(first.end(), second.begin(), second.end());
        got.insert(got.end(), first.begin(), first.begin() + count);
      }
    }
    ASSERT_TRUE(got == sent) << "seed " << seed;
  }
}

// Who checks what came has to come between two steps.
TEST(ShmRingStep, ARoundOfReadingTakesOneStep) {
  RingControl control{};
  Octets data(4 * kRingStepBytes);
  RingWriter writer(control, data, -1);
  RingReader reader(control, data, -1);
  const Octets sent = random_octets(2 * kRingStepBytes + 100, 1);
  const iovec from{const_cast<std::byte*>(sent.data()), sent.size()};
  ASSERT_EQ(writer.write(&from, 1), static_cast<ssize_t>(sent.size()));
  Octets got(sent.size());
  const iovec to[] = {{got.data(), 50}, {got.data() + 50, got.size() - 50}};
  EXPECT_EQ(reader.read(to, 2), static_cast<ssize_t>(kRingStepBytes));
  const iovec next{got.data() + kRingStepBytes, got.size() - kRingStepBytes};
  EXPECT_EQ(reader.read(&next, 1), static_cast<ssize_t>(kRingStepBytes));
  const iovec last{got.data() + 2 * kRingStepBytes, 100};
  EXPECT_EQ(reader.read(&last, 1), 100);
  EXPECT_EQ(reader.read(&last, 1), -EAGAIN);
  EXPECT_TRUE(got == sent);
}

TEST(ShmRingStep, AWriterThatWaitsIsToldWhenHalfOfSeveralStepsIsFree) {
  RingControl control{};
  Octets data(4 * kRingStepBytes);
  const int bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ASSERT_GE(bell, 0);
  RingWriter writer(control, data, -1);
  RingReader reader(control, data, bell);
  Octets bytes(data.size() + 1);
  const iovec vector{bytes.data(), bytes.size()};
  ASSERT_EQ(writer.write(&vector, 1), static_cast<ssize_t>(data.size()));
  ASSERT_EQ(writer.write(&vector, 1), -EAGAIN);
  uint64_t rung = 0;
  ASSERT_EQ(reader.read(&vector, 1), static_cast<ssize_t>(kRingStepBytes));
  EXPECT_EQ(::read(bell, &rung, sizeof rung), -1) << "a quarter is free";
  ASSERT_EQ(reader.read(&vector, 1), static_cast<ssize_t>(kRingStepBytes));
  EXPECT_EQ(::read(bell, &rung, sizeof rung), static_cast<ssize_t>(sizeof rung)) << "half is";
  EXPECT_EQ(writer.write(&vector, 1), static_cast<ssize_t>(2 * kRingStepBytes));
  ::close(bell);
}

TEST_F(ShmRing, NobodyRingsWhoIsNotWaitedFor) {
  Octets into(100);
  ASSERT_EQ(write(random_octets(50, 1)), 50);
  EXPECT_FALSE(rung(to_reader_)) << "the reader has not said that it waits";
  ASSERT_EQ(read(into), 50);
  EXPECT_FALSE(rung(to_writer_));
  ASSERT_EQ(read(into), -EAGAIN);
  ASSERT_EQ(write(random_octets(50, 1)), 50);
  EXPECT_TRUE(rung(to_reader_));
  ASSERT_EQ(write(random_octets(50, 1)), 50);
  EXPECT_FALSE(rung(to_reader_)) << "once is enough";
}

TEST_F(ShmRing, AWriterThatWaitsIsToldWhenHalfIsFree) {
  ASSERT_EQ(write(random_octets(kSize + 1, 1)), static_cast<ssize_t>(kSize));
  ASSERT_EQ(write(random_octets(1, 1)), -EAGAIN);
  Octets into(kSize / 2 - 1);
  ASSERT_EQ(read(into), static_cast<ssize_t>(into.size()));
  EXPECT_FALSE(rung(to_writer_));
  ASSERT_EQ(read(Bytes(into).first(1)), 1);
  EXPECT_TRUE(rung(to_writer_));
  EXPECT_EQ(write(random_octets(kSize, 1)), static_cast<ssize_t>(kSize / 2));
}

TEST_F(ShmRing, TwoThreadsLoseNoBellAndNoByte) {
  constexpr size_t kBytes = 8 << 20;
  const Octets sent = random_octets(kBytes, 7);
  std::thread producer([&] {
    Prng prng(8);
    for (ConstBytes rest = sent; !rest.empty();) {
      const ssize_t count = write(rest.first(std::min<size_t>(rest.size(), 1 + prng.below(prng.chance(0.5) ? 64 : 9000))));
      if (count > 0) rest = rest.subspan(static_cast<size_t>(count));
      if (count == -EAGAIN) wait_for(to_writer_);
    }
  });
  Octets got(kBytes);
  Prng prng(9);
  for (Bytes rest = got; !rest.empty();) {
    const ssize_t count = read(rest.first(std::min<size_t>(rest.size(), 1 + prng.below(prng.chance(0.5) ? 64 : 9000))));
    if (count > 0) rest = rest.subspan(static_cast<size_t>(count));
    if (count == -EAGAIN) wait_for(to_reader_);
  }
  producer.join();
  EXPECT_TRUE(got == sent);
}

// The moment between a side's look at the ring and its word that it waits: that word is on a page which cannot be written to
// at first, and while the side stands at the fault the other one takes its step. Nobody rings for it, as nobody waits yet.
class ShmRingMoment : public testing::Test {
 protected:
  static constexpr size_t kSize = 4096;

  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer holds locks of its own where the page fault comes";
#endif
    page_bytes_ = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    void* mapped = ::mmap(nullptr, 2 * page_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    memory_ = static_cast<std::byte*>(mapped);
    late_page_ = memory_ + page_bytes_;
    auto* control = new (late_page_ - offsetof(RingControl, reader_waits)) RingControl{};
    bell_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    writer_ = std::make_unique<RingWriter>(*control, data_, bell_);
    reader_ = std::make_unique<RingReader>(*control, data_, bell_);
    struct sigaction action {};
    action.sa_sigaction = &ShmRingMoment::on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ASSERT_EQ(::sigaction(SIGSEGV, &action, &before_), 0);
    ASSERT_EQ(::mprotect(late_page_, page_bytes_, PROT_READ), 0);
  }
  void TearDown() override {
    if (memory_ == nullptr) return;  // it was skipped
    ::sigaction(SIGSEGV, &before_, nullptr);
    step_ = nullptr;
    ::munmap(memory_, 2 * page_bytes_);
    ::close(bell_);
  }
  bool rung() const {
    uint64_t count = 0;
    return ::read(bell_, &count, sizeof(count)) == sizeof(count);
  }

  static inline std::function<void()> step_;
  Octets data_ = Octets(kSize);
  std::unique_ptr<RingWriter> writer_;
  std::unique_ptr<RingReader> reader_;

 private:
  static void on_fault(int, siginfo_t* at, void*) {
    const auto* address = static_cast<const std::byte*>(at->si_addr);
    if (step_ == nullptr || address < late_page_ || address >= late_page_ + page_bytes_) {
      ::signal(SIGSEGV, SIG_DFL);  // another fault: it comes again, and ends the test
      return;
    }
    ::mprotect(late_page_, page_bytes_, PROT_READ | PROT_WRITE);
    std::exchange(step_, nullptr)();
  }

  static inline size_t page_bytes_ = 0;
  static inline std::byte* late_page_ = nullptr;
  std::byte* memory_ = nullptr;
  int bell_ = -1;
  struct sigaction before_ {};
};

TEST_F(ShmRingMoment, AWriterSeesRoomThatCameBeforeItSaidThatItWaits) {
  const Octets sent = random_octets(kSize + 10, 1);
  Octets got(kSize);
  step_ = [&] {
    const iovec all{got.data(), got.size()};
    EXPECT_EQ(reader_->read(&all, 1), static_cast<ssize_t>(kSize));
  };
  const iovec more{const_cast<std::byte*>(sent.data()), sent.size()};
  EXPECT_EQ(writer_->write(&more, 1), static_cast<ssize_t>(sent.size()));
  EXPECT_EQ(step_, nullptr) << "the moment never came";
  EXPECT_FALSE(rung());
  EXPECT_TRUE(std::equal(got.begin(), got.end(), sent.begin()));
}

TEST_F(ShmRingMoment, AReaderSeesBytesThatCameBeforeItSaidThatItWaits) {
  const Octets sent = random_octets(10, 2);
  step_ = [&] {
    const iovec all{const_cast<std::byte*>(sent.data()), sent.size()};
    EXPECT_EQ(writer_->write(&all, 1), static_cast<ssize_t>(sent.size()));
  };
  Octets got(sent.size());
  const iovec into{got.data(), got.size()};
  EXPECT_EQ(reader_->read(&into, 1), static_cast<ssize_t>(got.size()));
  EXPECT_EQ(step_, nullptr) << "the moment never came";
  EXPECT_FALSE(rung());
  EXPECT_EQ(got, sent);
}

TEST_F(ShmRing, AReaderBelievesNoImpossibleTail) {
  Octets into(100);
  for (const uint64_t lie : {uint64_t{kSize + 11}, uint64_t{9}, uint64_t{0}, UINT64_MAX, uint64_t{1} << 63}) {
    control_.tail = control_.head = 0;
    writer_ = std::make_unique<RingWriter>(control_, data_, to_reader_);
    reader_ = std::make_unique<RingReader>(control_, data_, to_writer_);
    ASSERT_EQ(write(random_octets(10, 1)), 10);
    ASSERT_EQ(read(into), 10);
    control_.tail = lie;
    EXPECT_EQ(read(into), -EPROTO) << lie;
    control_.tail = 10;
    EXPECT_EQ(read(into), -EPROTO) << "a broken ring stays so";
  }
}

TEST_F(ShmRing, AWriterBelievesNoImpossibleHead) {
  for (const uint64_t lie : {uint64_t{11}, uint64_t{3}, uint64_t{kSize + 11}, UINT64_MAX}) {
    control_.tail = control_.head = 0;
    writer_ = std::make_unique<RingWriter>(control_, data_, to_reader_);
    reader_ = std::make_unique<RingReader>(control_, data_, to_writer_);
    Octets into(4);
    ASSERT_EQ(write(random_octets(10, 1)), 10);
    ASSERT_EQ(read(into), 4);
    ASSERT_EQ(writer_->unread(), 6U);
    control_.head = lie;
    EXPECT_EQ(writer_->unread(), 0U) << lie;
    EXPECT_EQ(write(random_octets(kSize, 1)), -EPROTO) << lie;
  }
}

// Whatever stands in the control words, nothing outside the data and the target is touched (sanitizers look on) and no call
// moves more than was asked.
TEST_F(ShmRing, AnythingMayStandInTheControlWords) {
  Prng prng(3);
  Octets into(5000);
  const Octets from = random_octets(5000, 4);
  for (int round = 0; round < 20'000; ++round) {
    if (round % 8 == 0) {
      control_.tail = control_.head = 0;
      writer_ = std::make_unique<RingWriter>(control_, data_, -1);
      reader_ = std::make_unique<RingReader>(control_, data_, -1);
    }
    if (prng.chance(0.5)) control_.tail = prng.chance(0.5) ? prng.below(2 * kSize) : prng.next();
    if (prng.chance(0.5)) control_.head = prng.chance(0.5) ? prng.below(2 * kSize) : prng.next();
    control_.reader_waits = static_cast<uint32_t>(prng.next());
    control_.writer_waits = static_cast<uint32_t>(prng.next());
    const size_t count = prng.below(5000);
    EXPECT_LE(write(ConstBytes(from).first(count)), static_cast<ssize_t>(count));
    EXPECT_LE(read(Bytes(into).first(count)), static_cast<ssize_t>(count));
  }
}

}  // namespace
}  // namespace halfstep::net
