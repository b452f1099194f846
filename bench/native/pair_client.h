// pair_client.h — the client of pair_bench: gets or puts of batches, as many at once as it has lanes. Thread: one.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <deque>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "call_loop.h"
#include "pair_stream.h"

namespace halfstep::bench::pair {

inline constexpr uint64_t kWarmUpMs = 100;
inline constexpr int kEventsMax = 64;

class Client final : private Caller {
 public:
  Client(const Options& options, Bytes table, const std::vector<uint32_t>& expected, const sockaddr_in& address)
      : options_(options),
        table_(table),
        prng_(options.seed),
        poll_(::epoll_create1(EPOLL_CLOEXEC)),
        waiter_(poll_, options.look != 0) {
    for (size_t i = 0; i < options.connections; ++i) {
      const int descriptor = tcp_socket(options);
      if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail_errno("connect");
      if (::fcntl(descriptor, F_SETFL, O_NONBLOCK) != 0) fail_errno("connect");
      connections_.push_back({descriptor, {}, {}, false});
      watch(poll_, EPOLL_CTL_ADD, descriptor, EPOLLIN, i);
    }
    for (size_t i = 0; i < options.iodepth; ++i) {
      const Bytes memory = mapped(options.batch * options.bs);
      Lane& lane = lanes_.emplace_back(Receiver(options, expected));
      for (size_t block = 0; block < options.batch; ++block) lane.targets.push_back(memory.data() + block * options.bs);
    }
  }

  // The calls of the time that counts: at a rate those that were due in it.
  LoopTime run() {
    const Span span{.warm_up_ns = kWarmUpMs * 1'000'000, .run_ns = options_.runtime * 1'000'000};
    if (options_.rate == 0) return closed_loop(*this, lanes_.size(), span);
    Prng gaps(options_.seed);
    const double seconds = static_cast<double>(kWarmUpMs + options_.runtime) / 1e3;
    return open_loop(*this, lanes_.size(), due_ns(gaps, static_cast<double>(options_.rate), seconds), span);
  }
  // Of its calls.
  std::vector<double> take_latencies_us() { return std::move(latencies_us_); }
  void close() {
    for (const Connection& connection : connections_) ::close(connection.descriptor);
  }

 private:
  struct Lane {
    explicit Lane(Receiver of) : receiver(std::move(of)) {}
    Request request;
    std::vector<std::byte*> targets;
    Receiver receiver;
    std::vector<uint32_t> sums;  // of the blocks that are put
    uint64_t answer = 0;
    size_t answered = 0;
  };
  struct Connection {
    int descriptor;
    std::deque<uint64_t> waiting;  // places
    Sender out;
    bool waits_to_send;
  };

  // Caller; a place is a lane.
  void prepare(size_t place) override {
    Lane& lane = lanes_[place];
    lane.request.put = options_.put ? 1 : 0;
    lane.request.count = options_.batch;
    const uint64_t batches = table_.size() / options_.bs / options_.batch;
    const uint64_t first = prng_.below(batches) * options_.batch;
    for (size_t i = 0; i < options_.batch; ++i) lane.request.numbers[i] = first + i;
    lane.answered = 0;
    if (!options_.put) lane.receiver.begin(lane.request, lane.targets);
  }
  void submit(size_t place) override {
    Lane& lane = lanes_[place];
    const size_t number = place % connections_.size();
    Connection& connection = connections_[number];
    connection.waiting.push_back(place);
    ++asked_;
    connection.out.add(reinterpret_cast<const std::byte*>(&lane.request), lane.request.bytes(), nullptr);
    lane.sums.resize(options_.batch);
    for (size_t i = 0; options_.put && i < options_.batch; ++i) {
      const std::byte* const block = table_.data() + lane.request.numbers[i] * options_.bs;
      connection.out.add(block, options_.bs, options_.check != 0 ? &lane.sums[i] : nullptr);
    }
    send(connection, number);
  }
  // One at a time: to take an answer is to receive and to sum up its bytes, and another call may be due meanwhile.
  std::span<const uint64_t> poll() override {
    if (const auto one = take_next(); !one.empty()) return one;
    note(::epoll_wait(poll_, events_, kEventsMax, 0));
    return take_next();
  }
  std::span<const uint64_t> wait(uint64_t timeout_ns) override {
    if (options_.rate != 0) return look(timeout_ns);
    if (const auto one = take_next(); !one.empty()) return one;
    note(waiter_.wait(events_));
    return take_next();
  }
  void ended(size_t /*place*/, uint64_t latency_ns) override { latencies_us_.push_back(static_cast<double>(latency_ns) / 1e3); }
  // Every block was looked at as it came.
  void check(size_t /*place*/, bool /*counts*/) override {}

  // At a rate nobody sleeps while a call is under way: what the kernel takes to wake a thread is no part of what is measured.
  std::span<const uint64_t> look(uint64_t timeout_ns) {
    if (asked_ == 0) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(timeout_ns));
      return {};
    }
    ::sched_yield();
    return poll();
  }
  void note(int count) {
    for (int i = 0; i < count; ++i) {
      const size_t number = events_[i].data.u64;
      if (connections_[number].waits_to_send) send(connections_[number], number);
      readable_.push_back(number);
    }
  }
  // The next place whose answer is whole.
  std::span<const uint64_t> take_next() {
    for (; !readable_.empty(); readable_.pop_front()) {
      Connection& connection = connections_[readable_.front()];
      if (connection.waiting.empty() || !take(connection)) continue;
      ended_ = connection.waiting.front();
      connection.waiting.pop_front();
      --asked_;
      return {&ended_, 1};
    }
    return {};
  }
  void send(Connection& connection, size_t number) {
    const bool waits = !connection.out.send(connection.descriptor);
    if (waits != connection.waits_to_send) {
      watch(poll_, EPOLL_CTL_MOD, connection.descriptor, waits ? EPOLLIN | EPOLLOUT : EPOLLIN, number);
      connection.waits_to_send = waits;
    }
  }
  // Whether the answer of the one that waits longest is whole.
  bool take(Connection& connection) {
    Lane& lane = lanes_[connection.waiting.front()];
    if (options_.put) {
      const ssize_t got = ::recv(connection.descriptor, reinterpret_cast<std::byte*>(&lane.answer) + lane.answered,
                                 sizeof lane.answer - lane.answered, MSG_DONTWAIT);
      if (got < 0 && errno == EAGAIN) return false;
      if (got <= 0) fail("the server ended before its time");
      lane.answered += static_cast<size_t>(got);
      if (lane.answered == sizeof lane.answer && lane.answer != options_.batch) fail("the server stored something else");
      return lane.answered == sizeof lane.answer;
    }
    while (!lane.receiver.done()) {
      if (!lane.receiver.receive(connection.descriptor)) return false;
    }
    return true;
  }

  const Options& options_;
  Bytes table_;
  Prng prng_;
  int poll_;
  Waiter waiter_;
  std::vector<Connection> connections_;
  std::deque<Lane> lanes_;
  size_t asked_ = 0;
  epoll_event events_[kEventsMax];
  std::deque<size_t> readable_;  // connections, until they have nothing more for now
  uint64_t ended_ = 0;
  std::vector<double> latencies_us_;
};

}  // namespace halfstep::bench::pair
