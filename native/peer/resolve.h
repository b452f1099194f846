// resolve.h — finds the addresses of a host's name without making the loop wait: a name server that does not answer must not
// hold up the deadlines of calls that have a connection.
// Invariants: the thread that asks holds this object alone, and none of the client's; whoever loses interest just lets go.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/socket.h"

namespace halfstep::peer {

// Those that an address lists: of several network cards of one daemon, in numbers. One, as a rule.
std::vector<std::string> listed_hosts(const net::Address& address);
// Invalid: one of several is no IPv4 address, or they are too many.
Fault check_hosts(const net::Address& address);

class Resolution {
 public:
  // False for numbers, lists of them, unix sockets and "localhost", which need nobody's answer.
  static bool needed(const net::Address& address);
  static std::shared_ptr<Resolution> start(const net::Address& address);

  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  // Once done: addresses in numbers; none, and a sentence, if there are none.
  const std::vector<std::string>& hosts() const noexcept { return hosts_; }
  const std::string& error() const noexcept { return error_; }

 private:
  void ask(const std::string& host);

  std::atomic<bool> done_{false};
  std::vector<std::string> hosts_;
  std::string error_;
};

}  // namespace halfstep::peer
