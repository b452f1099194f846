#include "net/socket.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

namespace halfstep::net {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr size_t kUnixPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;
constexpr int kBacklog = 1024;  // the kernel lowers it to net.core.somaxconn
constexpr mode_t kUnixMode = 0660;
// A peer that lost its power is noticed within half a minute: by what it does not acknowledge where something is sent, else by
// probes. Without the first, retransmissions go on for a quarter of an hour and keep the probes from being sent.
constexpr int kUnacknowledgedMs = 30'000;
constexpr int kKeepIdleS = 15;
constexpr int kKeepIntervalS = 5;
constexpr int kKeepProbes = 3;
static_assert((kKeepIdleS + kKeepIntervalS * kKeepProbes) * 1000 == kUnacknowledgedMs, "the kernel ends probes by that, too");

Fault fault(Code code, int error, std::string what) { return {Status(code, -error), std::move(what)}; }

class Descriptor {
 public:
  explicit Descriptor(int descriptor) noexcept : descriptor_(descriptor) {}
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return descriptor_; }
  int release() noexcept { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

struct Resolved {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
};

bool loopback_v4(in_addr address) noexcept { return (ntohl(address.s_addr) >> 24) == 127; }

bool loopback_v6(const in6_addr& address) noexcept {
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

bool loopback_address(const sockaddr* address) noexcept {
  switch (address->sa_family) {
    case AF_UNIX: return true;
    case AF_INET: return loopback_v4(reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
    case AF_INET6: return loopback_v6(reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
    default: return false;
  }
}

Address address_of(const sockaddr* address) {
  Address out;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(address);
    out.port = ntohs(in->sin_port);
    if (::inet_ntop(AF_INET, &in->sin_addr, text.data(), text.size()) != nullptr) out.host = text.data();
  } else if (address->sa_family == AF_INET6) {
    const auto* in = reinterpret_cast<const sockaddr_in6*>(address);
    out.port = ntohs(in->sin6_port);
    if (::inet_ntop(AF_INET6, &in->sin6_addr, text.data(), text.size()) != nullptr) out.host = text.data();
  }
  return out;
}

Fault resolve(const Address& address, bool to_listen, Resolved* out) {
  if (address.is_unix) {
    auto* un = reinterpret_cast<sockaddr_un*>(&out->storage);
    un->sun_family = AF_UNIX;
    if (address.host.empty() || address.host.size() > kUnixPathBytesMax) {
      return fault(Code::Invalid, ENAMETOOLONG,
                   address.text() + ": the path of a unix socket has 1 to " + std::to_string(kUnixPathBytesMax) +
                       " bytes, this one has " + std::to_string(address.host.size()) + "; choose a shorter one");
    }
    std::memcpy(un->sun_path, address.host.data(), address.host.size());
    out->bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.host.size() + 1);
    return {};
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  // The daemon's default is 127.0.0.1; "localhost" may resolve to ::1 first, where nobody listens.
  if (address.host == "localhost") hints.ai_family = AF_INET;
  addrinfo* list = nullptr;
  const std::string port = std::to_string(address.port);
  const int result = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &list);
  if (result != 0) {
    return {Status(Code::Invalid), address.text() + ": " + ::gai_strerror(result) +
                                       "; give an address such as 127.0.0.1 or [::1], or a name that resolves here"};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, &::freeaddrinfo);
  std::memcpy(&out->storage, list->ai_addr, list->ai_addrlen);
  out->bytes = list->ai_addrlen;
  return {};
}

// Best effort, all of it: a kernel that refuses one of these still gives a working socket.
void set_options(int descriptor, const sockaddr* peer) noexcept {
  if (peer->sa_family == AF_UNIX) return;
  const auto set = [descriptor](int level, int name, int value) {
    (void)::setsockopt(descriptor, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleS);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalS);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMs);
  if (loopback_address(peer)) {
    // bbr paces to a rate that it measures; over loopback that halves the speed.
    constexpr std::string_view kCubic = "cubic";
    (void)::setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, kCubic.data(), kCubic.size());
  }
}

// ---- Who holds a port ----------------------------------------------------------------------------------------------------

std::string command_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/comm");
  std::string name;
  std::getline(file, name);
  return "pid " + pid + (name.empty() ? "" : " (" + name + ")");
}

// The inode of a socket that listens on `port`, from /proc/net/tcp or tcp6.
std::optional<std::string> listening_inode(uint16_t port) {
  constexpr std::string_view kListen = "0A";
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
      const size_t colon = local.rfind(':');
      if (state != kListen || colon == std::string::npos || inode.empty()) continue;
      if (std::strtoul(local.c_str() + colon + 1, nullptr, 16) == port) return inode;
    }
  }
  return std::nullopt;
}

// Ourselves, too: an address that was given twice, or a port that the next shard took.
std::string in_use(const Address& address, const std::string& holder, const std::string& another) {
  const bool ours = holder.starts_with("pid " + std::to_string(::getpid()) + " ");
  return address.text() + ": in use by " + holder +
         (ours ? ", which is this process: it was given twice, or another shard listens there; choose another "
               : "; stop it or choose another ") +
         another;
}

struct CloseDirectory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

bool holds_inode(const std::string& pid, const std::string& link) {
  const std::string folder = "/proc/" + pid + "/fd";
  const Directory open(::opendir(folder.c_str()));
  if (open == nullptr) return false;  // another user's process
  while (const dirent* entry = ::readdir(open.get())) {
    std::array<char, 64> target{};
    const ssize_t bytes = ::readlinkat(::dirfd(open.get()), entry->d_name, target.data(), target.size());
    if (bytes > 0 && std::string_view(target.data(), static_cast<size_t>(bytes)) == link) return true;
  }
  return false;
}

std::string port_holder(uint16_t port) {
  const std::optional<std::string> inode = listening_inode(port);
  if (!inode) return "another socket";
  const std::string link = "socket:[" + *inode + "]";
  const Directory processes(::opendir("/proc"));
  if (processes != nullptr) {
    while (const dirent* entry = ::readdir(processes.get())) {
      const std::string pid = entry->d_name;
      if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
      if (holds_inode(pid, link)) return command_of(pid);
    }
  }
  return "a process that this user may not inspect (as root: ss -ltnp 'sport = :" + std::to_string(port) + "')";
}

// ---- Unix sockets --------------------------------------------------------------------------------------------------------

enum class Occupant { Nobody, Stale, Alive, NotASocket };

Occupant occupant_of(const Resolved& target, const std::string& path, std::string* holder) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0) return Occupant::Nobody;
  if (!S_ISSOCK(facts.st_mode)) return Occupant::NotASocket;
  const Descriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (::connect(probe.get(), target.get(), target.bytes) != 0 && errno == ECONNREFUSED) return Occupant::Stale;
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (::getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.pid > 0) {
    *holder = command_of(std::to_string(peer.pid));
  } else {
    *holder = "another process";
  }
  return Occupant::Alive;
}

// Where to listen is the operator's choice: what does not work about it is Invalid, not a device's fault.
Fault bind_unix(int descriptor, const Address& address, const Resolved& target) {
  const std::string& path = address.host;
  std::string holder;
  switch (occupant_of(target, path, &holder)) {
    case Occupant::Alive: return fault(Code::Invalid, EADDRINUSE, in_use(address, holder, "path"));
    case Occupant::NotASocket:
      return fault(Code::Invalid, EEXIST, address.text() + ": exists and is not a socket; choose another path");
    case Occupant::Stale:
      if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
        return fault(Code::Invalid, errno,
                     address.text() + ": nobody listens there any more, and it cannot be removed: " + errno_name(errno) +
                         "; remove it or choose another path");
      }
      break;
    case Occupant::Nobody: break;
  }
  if (::bind(descriptor, target.get(), target.bytes) != 0) {
    const int error = errno;
    const std::string folder = path.substr(0, path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    return fault(Code::Invalid, error,
                 address.text() + ": " + errno_name(error) +
                     (error == ENOENT ? "; create the directory " + folder : "; choose a path that this user may write"));
  }
  // Before listen(): nobody can have connected under the umask's mode.
  if (::chmod(path.c_str(), kUnixMode) != 0) {
    return fault(Code::Invalid, errno, address.text() + ": mode 0660 cannot be set: " + errno_name(errno));
  }
  return {};
}

Fault bind_tcp(int descriptor, const Address& address, const Resolved& target) {
  const int on = 1;
  (void)::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  set_options(descriptor, target.get());  // accepted sockets inherit them; congestion_control() of the listener is theirs
  if (::bind(descriptor, target.get(), target.bytes) == 0) return {};
  const int error = errno;
  std::string what = address.text() + ": " + errno_name(error);
  switch (error) {
    case EADDRINUSE: what = in_use(address, port_holder(address.port), "port"); break;
    case EADDRNOTAVAIL: what += "; no interface of this machine has that address (ip address)"; break;
    case EACCES:
      what += "; ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE; choose a higher one";
      break;
    default: break;
  }
  return fault(Code::Invalid, error, std::move(what));
}

Fault open_socket(const Address& address, const Resolved& target, int* out) {
  *out = ::socket(target.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (*out >= 0) return {};
  const int error = errno;
  std::string what = address.text() + ": socket: " + errno_name(error);
  if (error == EMFILE) what += "; raise the limit of open files (ulimit -n)";
  if (error == EAFNOSUPPORT) what += "; this kernel or container has no such addresses";
  return fault(Code::IoError, error, std::move(what));
}

}  // namespace

// ---- Addresses -----------------------------------------------------------------------------------------------------------

Fault Address::parse(const std::string& text, Address* out) {
  *out = {};
  if (text.starts_with(kUnixPrefix)) {
    out->is_unix = true;
    out->host = text.substr(kUnixPrefix.size());
    Resolved unused;
    return resolve(*out, false, &unused);  // checks the length
  }
  const auto malformed = [&text](std::string_view why) {
    return Fault(Status(Code::Invalid),
                 "'" + text + "': " + std::string(why) + "; write 127.0.0.1:7350, [::1]:7350, name:7350 or unix:/path");
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return malformed("the port is missing");
  std::string host = text.substr(0, colon);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return malformed("an IPv6 address ends with ']'");
    host = host.substr(1, host.size() - 2);
    in6_addr unused{};
    if (::inet_pton(AF_INET6, host.c_str(), &unused) != 1) return malformed("not an IPv6 address");
  } else if (host.find(':') != std::string::npos) {
    return malformed("an IPv6 address stands in brackets");
  }
  if (host.empty()) return malformed("the host is missing");
  if (host.find('\0') != std::string::npos) return malformed("the host holds a zero byte");
  const char* const last = text.data() + text.size();
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data() + colon + 1, last, port);
  if (error != std::errc() || end != last) return malformed("the port is a number from 0 to 65535");
  out->host = std::move(host);
  out->port = port;
  return {};
}

std::string Address::text() const {
  if (is_unix) return std::string(kUnixPrefix) + host;
  const bool brackets = host.find(':') != std::string::npos;
  return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool Address::loopback() const {
  if (is_unix || host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return loopback_v4(v4);
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && loopback_v6(v6);
}

std::string unix_path_of_shard(const std::string& path, uint32_t shard) {
  return shard == 0 ? path : path + "." + std::to_string(shard);
}

// ---- Sockets -------------------------------------------------------------------------------------------------------------

Fault listen_on(const Address& address, int* descriptor, Address* bound) {
  Resolved target;
  if (Fault bad = resolve(address, true, &target); !bad.ok()) return bad;
  int opened = -1;
  if (Fault bad = open_socket(address, target, &opened); !bad.ok()) return bad;
  Descriptor listener(opened);
  Fault bad = address.is_unix ? bind_unix(opened, address, target) : bind_tcp(opened, address, target);
  if (!bad.ok()) return bad;
  if (::listen(opened, kBacklog) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {  // two may bind with SO_REUSEADDR, only one may listen
      return fault(Code::Invalid, error,
                   address.text() + ": in use by " + port_holder(address.port) + "; stop it or choose another port");
    }
    return fault(Code::Invalid, error, address.text() + ": listen: " + errno_name(error));
  }
  *bound = address;
  if (!address.is_unix) {
    Resolved real;
    real.bytes = sizeof(real.storage);
    if (::getsockname(opened, real.get(), &real.bytes) == 0) *bound = address_of(real.get());
  }
  *descriptor = listener.release();
  return {};
}

SocketFile::SocketFile(int descriptor) {
  sockaddr_un bound{};
  socklen_t bytes = sizeof(bound);
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &bytes) != 0 || bound.sun_family != AF_UNIX) return;
  struct stat facts {};
  if (::lstat(bound.sun_path, &facts) != 0) return;
  path_ = bound.sun_path;
  device_ = facts.st_dev;
  inode_ = facts.st_ino;
}

void SocketFile::remove() noexcept {
  struct stat facts {};
  if (path_.empty() || ::lstat(path_.c_str(), &facts) != 0) return;
  if (facts.st_dev == device_ && facts.st_ino == inode_) (void)::unlink(path_.c_str());
  path_.clear();
}

bool is_unix_socket(int descriptor) noexcept {
  int domain = 0;
  socklen_t bytes = sizeof(domain);
  return ::getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX;
}

Status accept_on(int listener, Accepted* out) {
  Resolved peer;
  int descriptor = -1;
  do {  // a caller that gave up while it waited is no error of ours
    peer.bytes = sizeof(peer.storage);
    descriptor = ::accept4(listener, peer.get(), &peer.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
  } while (descriptor < 0 && (errno == EINTR || errno == ECONNABORTED));
  if (descriptor < 0) {
    switch (errno) {
      case EAGAIN: return Code::Throttled;
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM: return {Code::NoSpace, -errno};
      default: return {Code::IoError, -errno};
    }
  }
  *out = {};
  out->descriptor = descriptor;
  out->peer_loopback = loopback_address(peer.get());
  set_options(descriptor, peer.get());
  if (peer.storage.ss_family == AF_UNIX) {
    out->is_unix = true;
    ucred credentials{};
    socklen_t bytes = sizeof(credentials);
    if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0) {
      out->peer_uid = credentials.uid;
      out->peer = "unix pid " + std::to_string(credentials.pid) + " uid " + std::to_string(credentials.uid);
    } else {
      out->peer = "unix";
    }
  } else {
    out->peer = address_of(peer.get()).text();
  }
  return {};
}

Fault start_connect(const Address& address, int* descriptor) {
  Resolved target;
  if (Fault bad = resolve(address, false, &target); !bad.ok()) return bad;
  int opened = -1;
  if (Fault bad = open_socket(address, target, &opened); !bad.ok()) return bad;
  Descriptor socket(opened);
  set_options(opened, target.get());  // before the handshake, so that both directions start with them
  int result = 0;
  do {
    result = ::connect(opened, target.get(), target.bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EINPROGRESS) {
    const int error = errno;
    std::string what = address.text() + ": " + errno_name(error);
    struct stat facts {};
    const bool no_socket = address.is_unix && ::stat(address.host.c_str(), &facts) == 0 && !S_ISSOCK(facts.st_mode);
    if (no_socket || error == ENOTDIR) {
      what += "; there is no socket at that path: correct the address";
    } else if (error == ECONNREFUSED || error == ENOENT) {
      what += "; nobody listens there: start halfstepd or correct the address";
    }
    if (error == EACCES) what += "; this user may not open the socket: it has mode 0660";
    return fault(error == EAGAIN ? Code::Throttled : Code::Closed, error, std::move(what));
  }
  *descriptor = socket.release();
  return {};
}

Status connect_result(int descriptor) noexcept {
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  return error == 0 ? Status() : Status(Code::Closed, -error);
}

std::string congestion_control(int descriptor) {
  std::array<char, 32> name{};
  socklen_t bytes = name.size() - 1;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name.data(), &bytes) != 0) return "none";
  return name.data();
}

}  // namespace halfstep::net
