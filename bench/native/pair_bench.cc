// pair_bench.cc — the least that a block server and its client can be: what a daemon is measured against.
// Usage: halfstep_pair_bench [--rw get|put] [--bs N] [--batch N] [--iodepth N] [--connections N] [--size N] [--check 0|1]
//                            [--runtime MS] [--congestion NAME] [--server-core N] [--client-core N] [--seed N] [--look 0|1]
//                            [--rate N]
// One JSON document on stdout; bench/minimal.py reads it.
//
// Two processes over TCP on loopback, one thread each, on epoll. A request names a batch of blocks by number; a get is answered
// with their bytes from one table in memory, a put brings them and is answered with a word. Nothing else: no names, no index,
// no flash, no deadlines, no credit, no errors but the end of the process. With --check 1 whoever receives runs CRC32C over
// every byte, as Halfstep does, piece by piece while it is in the cache, and compares each block with what it has to be: a get
// with what the block was when it was made, a put with the sum that follows each block, which nobody but the client can have
// made; --check 0 leaves both away.
// Who waits looks first, as Halfstep's loops do and as long as they (--look 0: sleeps at once).
// With --rate so many calls a second are due at moments with exponential gaps, over one connection, and a latency counts from
// when its call was due, as in open_loop.h: what this machine's own pauses do to the simplest client of the simplest server.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "arrivals.h"
#include "base/crc.h"
#include "base/prng.h"
#include "net/busy_poll.h"
#include "program.h"

namespace halfstep {
namespace {

using bench::fail;
using bench::fail_errno;
using Clock = std::chrono::steady_clock;

constexpr size_t kPieceBytes = size_t{256} << 10;
constexpr size_t kSummedBytes = size_t{512} << 10;  // and then sent, in one call
constexpr uint64_t kWarmUpMs = 100;
constexpr size_t kBatchMax = 1024;
constexpr uint64_t kRateMax = 1'000'000;
constexpr std::chrono::nanoseconds kLook(bench::kLookNs);

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
  uint64_t server_core = bench::kAnyCore;
  uint64_t client_core = bench::kAnyCore;
  std::string congestion;
};

Options options_of(int count, char** arguments) {
  Options options;
  std::string rw = "get";
  const bench::Number numbers[] = {
      {"--bs", &options.bs},
      {"--batch", &options.batch},
      {"--iodepth", &options.iodepth},
      {"--connections", &options.connections},
      {"--size", &options.size},
      {"--check", &options.check},
      {"--runtime", &options.runtime},
      {"--seed", &options.seed},
      {"--look", &options.look},
      {"--rate", &options.rate},
      {"--server-core", &options.server_core},
      {"--client-core", &options.client_core},
  };
  const bench::Text texts[] = {{"--rw", &rw}, {"--congestion", &options.congestion}};
  bench::read_options(count, arguments, numbers, texts);
  options.put = rw == "put";
  if ((rw != "get" && !options.put) || options.bs < 1 || options.bs > (uint64_t{64} << 20) || options.batch < 1 ||
      options.batch > kBatchMax || options.iodepth < 1 || options.iodepth > 64 || options.connections < 1 ||
      options.connections > 64 || options.size > (uint64_t{64} << 30) || options.runtime < 1) {
    fail("out of bounds: rw get or put, bs to 64 MiB, batch to 1024, iodepth and connections to 64, size to 64 GiB");
  }
  if (options.rate > kRateMax || (options.rate > 0 && (options.put || options.connections > 1))) {
    fail("out of bounds: rate to 1000000, of gets over one connection");
  }
  options.size = std::max(options.size / options.bs, options.batch) * options.bs;
  return options;
}

Bytes mapped(uint64_t bytes) {
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

int tcp_socket(const Options& options) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (descriptor < 0 || ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) fail_errno("socket");
  if (!options.congestion.empty() && ::setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, options.congestion.data(),
                                                  static_cast<socklen_t>(options.congestion.size())) != 0) {
    fail_errno(options.congestion.c_str());
  }
  return descriptor;
}

void watch(int poll, int operation, int descriptor, uint32_t events, size_t tag) {
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

// ---- The server
// --------------------------------------------------------------------------------------------------------------

class Server {
 public:
  Server(const Options& options, Bytes table, const std::vector<uint32_t>& expected, int listener)
      : options_(options), table_(table), poll_(::epoll_create1(EPOLL_CLOEXEC)) {
    for (size_t i = 0; i < options.connections; ++i) {
      const int descriptor = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (descriptor < 0) fail_errno("accept");
      connections_.emplace_back(descriptor, Receiver(options, expected));
      watch(poll_, EPOLL_CTL_ADD, descriptor, EPOLLIN, i);
    }
  }
  void run() {
    size_t open = connections_.size();
    Waiter waiter(poll_, options_.look != 0);
    while (open > 0) {
      epoll_event events[64];
      const int count = waiter.wait(events);
      for (int i = 0; i < count; ++i) {
        Connection& connection = connections_[events[i].data.u64];
        if (!serve(connection, events[i].data.u64)) {
          ::close(connection.descriptor);
          --open;
        }
      }
    }
  }

 private:
  struct Connection {
    Connection(int socket, Receiver of) : descriptor(socket), receiver(std::move(of)) {}
    int descriptor;
    Request request;
    size_t have = 0;
    Receiver receiver;
    Sender answer;
    bool sending = false;
    bool waits_to_send = false;
    uint64_t done = 0;
  };

  // False at the end of the connection.
  bool serve(Connection& connection, size_t tag) {
    while (true) {
      if (connection.sending) {
        if (!connection.answer.send(connection.descriptor)) return wait_for(connection, tag, true);
        connection.sending = false;
        connection.have = 0;
      }
      const size_t wanted = connection.have < 16 ? 16 : connection.request.bytes();
      if (connection.have < wanted) {
        auto* into = reinterpret_cast<std::byte*>(&connection.request) + connection.have;
        const ssize_t got = ::recv(connection.descriptor, into, wanted - connection.have, MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN) return wait_for(connection, tag, false);
        if (got <= 0) return false;
        connection.have += static_cast<size_t>(got);
        if (connection.have < 16) continue;
        if (connection.request.count > options_.batch) fail("a request is malformed");
        if (connection.have == connection.request.bytes() && connection.have > 16) begin(connection);
        continue;
      }
      if (!connection.receiver.done() && !connection.receiver.receive(connection.descriptor)) {
        return wait_for(connection, tag, false);
      }
      if (connection.receiver.done()) answer(connection);
    }
  }
  void begin(Connection& connection) {
    targets_.clear();
    for (size_t i = 0; i < connection.request.count; ++i) {
      if (connection.request.numbers[i] >= table_.size() / options_.bs) fail("a request is malformed");
      targets_.push_back(table_.data() + connection.request.numbers[i] * options_.bs);
    }
    if (connection.request.put != 0) {
      connection.receiver.begin(connection.request, targets_);
    } else {
      answer(connection);
    }
  }
  void answer(Connection& connection) {
    if (connection.request.put != 0) {
      connection.done = connection.request.count;
      connection.answer.add(reinterpret_cast<std::byte*>(&connection.done), sizeof connection.done, nullptr);
    } else {
      for (std::byte* block : targets_) connection.answer.add(block, options_.bs, nullptr);
    }
    connection.sending = true;
  }
  bool wait_for(Connection& connection, size_t tag, bool to_send) {
    if (connection.waits_to_send != to_send) {
      watch(poll_, EPOLL_CTL_MOD, connection.descriptor, to_send ? EPOLLOUT : EPOLLIN, tag);
      connection.waits_to_send = to_send;
    }
    return true;
  }

  const Options& options_;
  Bytes table_;
  int poll_;
  std::deque<Connection> connections_;
  std::vector<std::byte*> targets_;
};

// ---- The client
// --------------------------------------------------------------------------------------------------------------

class Client {
 public:
  Client(const Options& options, Bytes table, const std::vector<uint32_t>& expected, const sockaddr_in& address)
      : options_(options), table_(table), prng_(options.seed), poll_(::epoll_create1(EPOLL_CLOEXEC)) {
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

  // The calls of the time that counts.
  bench::Calls run() {
    const Clock::time_point begin = Clock::now() + std::chrono::milliseconds(kWarmUpMs);
    end_ = begin + std::chrono::milliseconds(options_.runtime);
    for (size_t i = 0; i < lanes_.size(); ++i) ask(lanes_[i], i % connections_.size());
    Clock::time_point first{};
    Clock::time_point last{};
    Waiter waiter(poll_, options_.look != 0);
    while (asked_ > 0) {
      epoll_event events[64];
      const int count = waiter.wait(events);
      for (int i = 0; i < count; ++i) {
        const size_t number = events[i].data.u64;
        Connection& connection = connections_[number];
        if (connection.waits_to_send) send(connection, number);
        while (!connection.waiting.empty() && take(connection)) {
          Lane& lane = *connection.waiting.front();
          connection.waiting.pop_front();
          --asked_;
          ++calls_ever_;
          const Clock::time_point now = Clock::now();
          if (first != Clock::time_point{}) {
            latencies_.push_back(std::chrono::duration<double, std::micro>(now - lane.begun).count());
            last = now;
          } else if (now >= begin) {
            first = now;
          }
          if (now < end_ || latencies_.empty()) ask(lane, number);
        }
      }
    }
    return {std::move(latencies_), std::chrono::duration<double>(last - first).count(), options_.batch, options_.bs};
  }
  // Of those that were due in the time that counts. A client that cannot keep up is stopped after as long again.
  bench::Calls run_at_rate() {
    Prng gaps(options_.seed);
    const double seconds = static_cast<double>(kWarmUpMs + options_.runtime) / 1e3;
    const std::vector<uint64_t> due = bench::due_ns(gaps, static_cast<double>(options_.rate), seconds);
    const Clock::time_point started = Clock::now();
    const auto at = [&](size_t call) { return started + std::chrono::nanoseconds(due[call]); };
    const Clock::time_point first = started + std::chrono::milliseconds(kWarmUpMs);
    const Clock::time_point give_up = started + std::chrono::nanoseconds(2 * bench::ns_of(seconds));
    end_ = started + std::chrono::nanoseconds(bench::ns_of(seconds));
    std::deque<Lane*> ready;
    for (Lane& lane : lanes_) ready.push_back(&lane);
    Connection& connection = connections_.front();
    Clock::time_point last = first;
    for (size_t next = 0; next < due.size() || asked_ > 0;) {
      Clock::time_point now = Clock::now();
      for (; now >= give_up && next < due.size(); ++next) ++arrivals_.due;
      while (next < due.size() && !ready.empty() && at(next) <= now) {
        const bool counts = at(next) >= first;
        arrivals_.due += counts ? 1 : 0;
        arrivals_.begun += counts && now < end_ ? 1 : 0;
        ask(*ready.front(), 0);
        ready.front()->begun = at(next++);
        ready.pop_front();
        now = Clock::now();
      }
      if (asked_ == 0 && next == due.size()) break;
      if (asked_ == 0 && at(next) > now + kLook) {
        std::this_thread::sleep_until(at(next) - kLook);
        continue;
      }
      ::sched_yield();
      epoll_event event;
      if (::epoll_wait(poll_, &event, 1, 0) != 1) continue;
      if (connection.waits_to_send) send(connection, 0);
      // Whoever is due in between does not wait for all that has come.
      do {
        if (connection.waiting.empty() || !take(connection)) break;
        Lane& lane = *connection.waiting.front();
        connection.waiting.pop_front();
        --asked_;
        ++calls_ever_;
        last = Clock::now();
        if (lane.begun >= first) latencies_.push_back(std::chrono::duration<double, std::micro>(last - lane.begun).count());
        ready.push_back(&lane);
      } while (next == due.size() || at(next) > last);
    }
    return {std::move(latencies_), std::chrono::duration<double>(last - first).count(), options_.batch, options_.bs};
  }
  struct Arrivals {
    uint64_t due = 0;
    uint64_t begun = 0;  // in time
  };
  const Arrivals& arrivals() const noexcept { return arrivals_; }
  // Warm-up included: what the CPU time was spent on.
  uint64_t bytes_ever() const noexcept { return calls_ever_ * options_.batch * options_.bs; }
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
    Clock::time_point begun;
  };
  struct Connection {
    int descriptor;
    std::deque<Lane*> waiting;
    Sender out;
    bool waits_to_send;
  };

  void ask(Lane& lane, size_t number) {
    lane.request.put = options_.put ? 1 : 0;
    lane.request.count = options_.batch;
    const uint64_t batches = table_.size() / options_.bs / options_.batch;
    const uint64_t first = prng_.below(batches) * options_.batch;
    for (size_t i = 0; i < options_.batch; ++i) lane.request.numbers[i] = first + i;
    lane.answered = 0;
    if (!options_.put) lane.receiver.begin(lane.request, lane.targets);
    lane.begun = Clock::now();
    Connection& connection = connections_[number];
    connection.waiting.push_back(&lane);
    ++asked_;
    connection.out.add(reinterpret_cast<const std::byte*>(&lane.request), lane.request.bytes(), nullptr);
    lane.sums.resize(options_.batch);
    for (size_t i = 0; options_.put && i < options_.batch; ++i) {
      const std::byte* const block = table_.data() + lane.request.numbers[i] * options_.bs;
      connection.out.add(block, options_.bs, options_.check != 0 ? &lane.sums[i] : nullptr);
    }
    send(connection, number);
  }
  void send(Connection& connection, size_t number) {
    const bool waits = !connection.out.send(connection.descriptor);
    if (waits != connection.waits_to_send) {
      watch(poll_, EPOLL_CTL_MOD, connection.descriptor, waits ? EPOLLIN | EPOLLOUT : EPOLLIN, number);
      connection.waits_to_send = waits;
    }
  }
  // Whether the answer of the one that waits longest is whole.
  bool take(Connection& connection) const {
    Lane& lane = *connection.waiting.front();
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
  std::vector<Connection> connections_;
  std::deque<Lane> lanes_;
  size_t asked_ = 0;
  uint64_t calls_ever_ = 0;
  Clock::time_point end_;
  Arrivals arrivals_;
  std::vector<double> latencies_;
};

int run(const Options& options) {
  const Bytes table = mapped(options.size);
  Prng(options.seed).fill(table);
  std::vector<uint32_t> expected;
  for (uint64_t at = 0; at < table.size(); at += options.bs) expected.push_back(crc32c(table.subspan(at, options.bs)));

  const int listener = tcp_socket(options);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), length) != 0 || ::listen(listener, 64) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail_errno("listen");
  }
  const pid_t server = ::fork();
  if (server < 0) fail_errno("fork");
  if (server == 0) {
    bench::pin(options.server_core);
    // A put writes: into memory of its own, whose pages are there.
    const Bytes own = options.put ? mapped(options.size) : table;
    Server(options, own, expected, listener).run();
    ::_exit(0);
  }
  ::close(listener);
  bench::pin(options.client_core);
  const double cpu_before = bench::own_cpu_seconds();
  Client client(options, table, expected, address);
  const bench::Calls calls = options.rate > 0 ? client.run_at_rate() : client.run();
  const double of_client = bench::own_cpu_seconds() - cpu_before;
  client.close();
  int status = 0;
  rusage of_server{};
  if (::wait4(server, &status, 0, &of_server) < 0 || status != 0) fail("the server failed");
  const double gib = static_cast<double>(client.bytes_ever()) / static_cast<double>(1 << 30);
  const std::string rate = options.rate == 0
                               ? std::string("null")
                               : "{\"calls_due\": " + std::to_string(client.arrivals().due) +
                                     ", \"calls_begun_in_time\": " + std::to_string(client.arrivals().begun) + "}";
  bench::print_document(calls, ", \"rate\": " + rate +
                                   ", \"cpu_s_per_gib\": {\"server\": " + std::to_string(bench::cpu_seconds(of_server) / gib) +
                                   ", \"client\": " + std::to_string(of_client / gib) + "}");
  return 0;
}

}  // namespace
}  // namespace halfstep

int main(int count, char** arguments) { return halfstep::run(halfstep::options_of(count, arguments)); }
