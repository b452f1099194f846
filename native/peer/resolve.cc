#include "peer/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <thread>

#include "peer/signals.h"

namespace halfstep::peer {

namespace {

constexpr size_t kHostsMax = 8;

}  // namespace

std::vector<std::string> listed_hosts(const net::Address& address) {
  if (address.is_unix) return {address.host};
  std::vector<std::string> hosts;
  for (size_t from = 0; from <= address.host.size();) {
    const size_t end = std::min(address.host.find(',', from), address.host.size());
    hosts.push_back(address.host.substr(from, end - from));
    from = end + 1;
  }
  return hosts;
}

Fault check_hosts(const net::Address& address) {
  const std::vector<std::string> hosts = listed_hosts(address);
  if (hosts.size() > kHostsMax) {
    return {Code::Invalid, address.text() + ": names " + std::to_string(hosts.size()) + " hosts; at most " +
                               std::to_string(kHostsMax) + ", each a network card of one daemon"};
  }
  for (const std::string& host : hosts) {
    in_addr number;
    if (hosts.size() > 1 && ::inet_pton(AF_INET, host.c_str(), &number) != 1) {
      return {Code::Invalid, address.text() + ": '" + host + "', of several hosts, is no IPv4 address"};
    }
  }
  return {};
}

bool Resolution::needed(const net::Address& address) {
  if (address.is_unix || address.host == "localhost" || address.host.find(',') != std::string::npos) return false;
  std::array<unsigned char, sizeof(in6_addr)> number;
  return ::inet_pton(AF_INET, address.host.c_str(), number.data()) != 1 &&
         ::inet_pton(AF_INET6, address.host.c_str(), number.data()) != 1;
}

std::shared_ptr<Resolution> Resolution::start(const net::Address& address) {
  auto resolution = std::make_shared<Resolution>();
  try {
    const SignalsBlocked blocked;  // it may be a caller's thread that asks
    std::thread([resolution, host = address.host] { resolution->ask(host); }).detach();
  } catch (const std::system_error& error) {
    resolution->error_ = address.host + ": no thread to resolve it: " + error.what();
    resolution->done_.store(true, std::memory_order_release);
  }
  return resolution;
}

void Resolution::ask(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int result = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (result != 0) error_ = host + ": " + ::gai_strerror(result) + "; give an address, or a name that resolves here";
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(one->ai_addr, one->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
      hosts_.emplace_back(text.data());
    }
  }
  if (list != nullptr) ::freeaddrinfo(list);
  if (hosts_.empty() && error_.empty()) error_ = host + ": has no address";
  done_.store(true, std::memory_order_release);
}

}  // namespace halfstep::peer
