// pair_server.h — the server of pair_bench: blocks by number from one table in memory. Thread: one.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <utility>
#include <vector>

#include "pair_stream.h"

namespace halfstep::bench::pair {

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

}  // namespace halfstep::bench::pair
