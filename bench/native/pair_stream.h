// pair_stream.h — what both ends of pair_bench have: the request, what arrives and what goes out, checked on the way.
// Thread: one an end.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/crc.h"
#include "net/busy_poll.h"
#include "program.h"

namespace halfstep::bench::pair {

inline constexpr size_t kPieceBytes = size_t{256} << 10;
inline constexpr size_t kSummedBytes = size_t{512} << 10;  // and then sent, in one call
inline constexpr size_t kBatchMax = 1024;

struct Options {
  bool put = false;
  uint64_t bs = 1 << 20;
  uint64_t batch = 16;
  uint64_t iodepth = 1;
  uint64_t connections = 1;
  uint64_t size = 64 << 20;
  uint64_t check = 1;
  uint64_t runtime = 1000;
  uint64_t seed = 1;
  uint64_t look = 1;
  uint64_t rate = 0;
  uint64_t server_core = kAnyCore;
  uint64_t client_core = kAnyCore;
  std::string congestion;
};

inline Bytes mapped(uint64_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) fail_errno("memory");
  return {static_cast<std::byte*>(memory), bytes};
}

struct Request {
  uint64_t put = 0;
  uint64_t count = 0;
  uint64_t numbers[kBatchMax];
  size_t bytes() const noexcept { return 16 + 8 * count; }
};

// Scatters or gathers what one sendmsg or recvmsg may take at once.
class Pieces {
 public:
  void clear() { pieces_.clear(), at_ = 0; }
  void add(std::byte* data, size_t bytes) { pieces_.push_back({data, bytes}); }
  bool done() const noexcept { return at_ == pieces_.size(); }
  // The pieces to come, `bytes_max` of them at the most; what follows stays.
  msghdr next(size_t bytes_max) {
    window_.clear();
    for (size_t i = at_; i < pieces_.size() && bytes_max > 0 && window_.size() < 512; ++i) {
      window_.push_back({pieces_[i].iov_base, std::min(pieces_[i].iov_len, bytes_max)});
      bytes_max -= window_.back().iov_len;
    }
    msghdr message{};
    message.msg_iov = window_.data();
    message.msg_iovlen = window_.size();
    return message;
  }
  // visit(data, bytes, whether a piece ends with it)
  template <typename Visit>
  void advance(size_t bytes, Visit&& visit) {
    while (bytes > 0) {
      iovec& piece = pieces_[at_];
      const size_t step = std::min(bytes, piece.iov_len);
      const bool ends = step == piece.iov_len;
      visit(static_cast<std::byte*>(piece.iov_base), step, ends);
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + step;
      piece.iov_len -= step;
      bytes -= step;
      if (ends) ++at_;
    }
  }

 private:
  std::vector<iovec> pieces_;
  std::vector<iovec> window_;
  size_t at_ = 0;
};

// The blocks of a batch as they arrive: sums them up, and compares each with what it has to be.
class Receiver {
 public:
  Receiver(const Options& options, const std::vector<uint32_t>& expected) : options_(options), expected_(expected) {}
  void begin(const Request& request, const std::vector<std::byte*>& targets) {
    pieces_.clear();
    sent_.resize(request.count);
    for (size_t i = 0; i < request.count; ++i) {
      pieces_.add(targets[i], options_.bs);
      if (sums_follow()) pieces_.add(reinterpret_cast<std::byte*>(&sent_[i]), sizeof sent_[i]);
    }
    request_ = &request;
    block_ = 0;
    sum_ = 0;
    at_sum_ = false;
  }
  // False: nothing more to be had for now.
  bool receive(int descriptor) {
    const size_t at_once = options_.check != 0 ? kPieceBytes : SIZE_MAX;
    msghdr message = pieces_.next(at_once);
    const ssize_t got = ::recvmsg(descriptor, &message, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return false;
    if (got <= 0) fail("the other process ended before its time");
    pieces_.advance(static_cast<size_t>(got), [&](std::byte* data, size_t bytes, bool ends) {
      if (options_.check != 0 && !at_sum_) sum_ = crc32c({data, bytes}, sum_);
      if (!ends) return;
      if (sums_follow() && !at_sum_) {
        at_sum_ = true;
        return;
      }
      const uint32_t expected = sums_follow() ? sent_[block_] : expected_[request_->numbers[block_]];
      if (options_.check != 0 && sum_ != expected) fail("a block is wrong");
      sum_ = 0;
      at_sum_ = false;
      ++block_;
    });
    return true;
  }
  bool done() const noexcept { return pieces_.done(); }

 private:
  bool sums_follow() const noexcept { return options_.put && options_.check != 0; }

  const Options& options_;
  const std::vector<uint32_t>& expected_;
  const Request* request_ = nullptr;
  Pieces pieces_;
  std::vector<uint32_t> sent_;  // the sums that follow the blocks of a put
  size_t block_ = 0;
  uint32_t sum_ = 0;
  bool at_sum_ = false;
};

// What goes out: whatever is to be summed is, a piece before it is sent, so that the copy finds it in the cache.
class Sender {
 public:
  // sum: where the sum of these bytes goes, which is sent right after them; null: as they are.
  void add(const std::byte* data, size_t bytes, uint32_t* sum) {
    auto* memory = const_cast<std::byte*>(data);  // an iovec's; nobody writes
    pieces_.add(memory, bytes);
    if (sum != nullptr) pieces_.add(reinterpret_cast<std::byte*>(sum), sizeof *sum);
    to_sum_.push_back({{data, bytes}, sum});
  }
  bool done() const noexcept { return pieces_.done(); }
  // False: the socket takes no more for now.
  bool send(int descriptor) {
    while (!pieces_.done()) {
      while (!to_sum_.empty() && (ready_bytes_ < kSummedBytes || to_sum_.front().into == nullptr)) make_ready();
      const msghdr message = pieces_.next(ready_bytes_);
      const ssize_t sent = ::sendmsg(descriptor, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EAGAIN) return false;
      if (sent < 0) fail_errno("send");
      ready_bytes_ -= static_cast<size_t>(sent);
      pieces_.advance(static_cast<size_t>(sent), [](std::byte*, size_t, bool) {});
    }
    pieces_.clear();
    return true;
  }

 private:
  struct ToSum {
    ConstBytes left;
    uint32_t* into;
    uint32_t sum = 0;
  };
  void make_ready() {
    ToSum& next = to_sum_.front();
    const bool sums = next.into != nullptr;
    const size_t step = sums ? std::min(next.left.size(), kSummedBytes - ready_bytes_) : next.left.size();
    if (sums) next.sum = crc32c(next.left.first(step), next.sum);
    next.left = next.left.subspan(step);
    ready_bytes_ += step;
    if (!next.left.empty()) return;
    if (sums) {
      *next.into = next.sum;
      ready_bytes_ += sizeof next.sum;
    }
    to_sum_.pop_front();
  }

  Pieces pieces_;
  std::deque<ToSum> to_sum_;
  size_t ready_bytes_ = 0;  // the next ones, with their sums
};

inline int tcp_socket(const Options& options) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (descriptor < 0 || ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) fail_errno("socket");
  if (!options.congestion.empty() && ::setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, options.congestion.data(),
                                                  static_cast<socklen_t>(options.congestion.size())) != 0) {
    fail_errno(options.congestion.c_str());
  }
  return descriptor;
}

inline void watch(int poll, int operation, int descriptor, uint32_t events, size_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(poll, operation, descriptor, &event) != 0) fail_errno("epoll");
}

// Waits for events.
class Waiter {
 public:
  Waiter(int poll, bool looks) : poll_(poll), looks_(looks) {}
  int wait(std::span<epoll_event> events) {
    const auto ready = [&](int wait_ms) {
      return ::epoll_wait(poll_, events.data(), static_cast<int>(events.size()), wait_ms);
    };
    uint64_t wait_us = UINT64_MAX;
    const int count = looks_ ? busy_poll_.look(&wait_us, [&] { return ready(0); }) : 0;
    return count != 0 ? count : ready(-1);
  }

 private:
  int poll_;
  bool looks_;
  net::BusyPoll busy_poll_;
};

}  // namespace halfstep::bench::pair
