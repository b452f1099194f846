// fake_daemon.h — for tests: a daemon in memory on a thread for each connection, with a hook before every answer.
// It speaks the protocol properly by itself; a test that wants lies, delays or deaths says so in `hook`.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "peer/fake_answers.h"
#include "wire/records.h"

namespace halfstep::peer {

class FakeDaemon final : public FakeAnswers {
 public:
  // True: answered, or not to be. Runs on the connection's thread.
  using Hook = std::function<bool(Connection&, const Frame&)>;

  explicit FakeDaemon(uint16_t port = 0, uint32_t shards = 1) : shards_(shards) {
    Prng(port + 17).fill(std::as_writable_bytes(std::span(boot_id)));
    for (uint32_t s = 0; s < shards; ++s) listeners_.push_back(open_listener(s == 0 ? port : uint16_t{0}));
  }
  ~FakeDaemon() { stop(); }
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  uint16_t port(uint32_t shard = 0) const { return ports_[shard]; }
  // Serves from here on: what a test sets, it sets before.
  std::string address() {
    start();
    return "127.0.0.1:" + std::to_string(port());
  }
  void start() {
    if (!threads_.empty()) return;
    for (uint32_t s = 0; s < shards_; ++s) {
      threads_.emplace_back([this, s] { accept_all(s); });
    }
  }

  // Dies: every connection ends, nobody listens.
  void stop() {
    stopping_ = true;
    for (const int listener : listeners_) ::shutdown(listener, SHUT_RDWR);
    end_connections();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    for (;;) {
      std::vector<std::thread> threads;
      {
        const std::lock_guard lock(mutex_);
        threads.swap(connection_threads_);
      }
      if (threads.empty()) break;
      for (std::thread& thread : threads) thread.join();
    }
    for (const int listener : listeners_) ::close(listener);
    listeners_.clear();
  }
  void end_connections() {
    const std::lock_guard lock(mutex_);
    for (Connection* connection : connections_) connection->end();
  }

  // Set before address() is asked for.
  Hook hook;
  std::atomic<uint32_t> accepted{0};

 private:
  int open_listener(uint16_t port) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    socklen_t length = sizeof(address);
    if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener, 64) != 0) std::abort();
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    ports_.push_back(ntohs(address.sin_port));
    return listener;
  }

  void accept_all(uint32_t shard) {
    const int listener = listeners_[shard];
    for (;;) {
      const int descriptor = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (descriptor < 0 || stopping_) {
        if (descriptor >= 0) ::close(descriptor);
        return;
      }
      const int one = 1;
      ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
      const std::lock_guard lock(mutex_);
      connection_threads_.emplace_back([this, descriptor, shard] { serve(descriptor, shard); });
    }
  }

  void serve(int descriptor, uint32_t shard) {
    Connection connection(*this, descriptor, accepted.fetch_add(1));
    connection.shard = shard;
    connection.prng = Prng(connection.number + 1);
    {
      const std::lock_guard lock(mutex_);
      connections_.insert(&connection);
      if (stopping_) connection.end();
    }
    Frame frame;
    while (receive(connection, &frame)) {
      if (hook && hook(connection, frame)) continue;
      answer(connection, frame);
    }
    const std::lock_guard lock(mutex_);
    connections_.erase(&connection);
    ::close(descriptor);
  }

  static bool receive(Connection& connection, Frame* frame) {
    std::array<std::byte, wire::kHeaderBytes> head;
    if (!connection.receive(head) || !wire::parse_header(head, &frame->header).ok()) return false;
    frame->body.resize(frame->header.body_bytes);
    frame->payload.resize(frame->header.payload_bytes);
    return connection.receive(frame->body) && connection.receive(frame->payload) &&
           wire::check_body(frame->header, frame->body).ok();
  }

  const uint32_t shards_;
  std::vector<int> listeners_;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::vector<std::thread> connection_threads_;
  std::set<Connection*> connections_;
};

}  // namespace halfstep::peer
