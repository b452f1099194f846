#include "io/vhost_wire.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

namespace halfstep::io {
namespace {

constexpr uint32_t kVersion = 1;
constexpr uint32_t kVersionMask = 3;
constexpr uint32_t kIsAnswer = 4;
constexpr uint32_t kWantsAnswer = 8;
constexpr size_t kHeadBytes = 12;
constexpr size_t kDescriptorsMax = 8;
constexpr int kLookEveryMs = 50;  // at `give_up`

}  // namespace

const char* name_of(VhostMessage message) noexcept {
  switch (message) {
    case VhostMessage::GetFeatures: return "GET_FEATURES";
    case VhostMessage::SetFeatures: return "SET_FEATURES";
    case VhostMessage::SetOwner: return "SET_OWNER";
    case VhostMessage::SetMemoryTable: return "SET_MEM_TABLE";
    case VhostMessage::SetRingEntries: return "SET_VRING_NUM";
    case VhostMessage::SetRingAddresses: return "SET_VRING_ADDR";
    case VhostMessage::SetRingBase: return "SET_VRING_BASE";
    case VhostMessage::GetRingBase: return "GET_VRING_BASE";
    case VhostMessage::SetRingKick: return "SET_VRING_KICK";
    case VhostMessage::SetRingCall: return "SET_VRING_CALL";
    case VhostMessage::GetProtocolFeatures: return "GET_PROTOCOL_FEATURES";
    case VhostMessage::SetProtocolFeatures: return "SET_PROTOCOL_FEATURES";
    case VhostMessage::GetQueueCount: return "GET_QUEUE_NUM";
    case VhostMessage::SetRingEnable: return "SET_VRING_ENABLE";
    case VhostMessage::GetConfig: return "GET_CONFIG";
  }
  return "?";
}

int VhostWire::connect(const std::string& path, const std::atomic<bool>& give_up) {
  close();
  give_up_ = &give_up;
  acknowledged_ = false;
  until_ = std::chrono::steady_clock::now() + kVhostPatience;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) return -ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  socket_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket_ < 0) return -errno;
  // A unix socket with a full backlog answers EAGAIN: there is nothing to wait for by poll().
  while (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error != EAGAIN) {
      close();
      return -error;
    }
    if (const int result = wait_for(0); result != 0) {
      close();
      return result;
    }
  }
  return 0;
}

void VhostWire::close() noexcept {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

// 0: go on, after kLookEveryMs at the latest where nothing is waited for.
int VhostWire::wait_for(short events) {
  for (;;) {
    if (give_up_->load(std::memory_order_relaxed)) return -ECANCELED;
    if (std::chrono::steady_clock::now() >= until_) return -ETIMEDOUT;
    pollfd one{socket_, events, 0};
    const int ready = ::poll(events == 0 ? nullptr : &one, events == 0 ? 0 : 1, kLookEveryMs);
    if (ready > 0 || events == 0) return 0;
    if (ready < 0 && errno != EINTR) return -errno;
  }
}

int VhostWire::send(VhostMessage message, uint32_t flags, ConstBytes payload, std::span<const int> descriptors) {
  if (socket_ < 0) return -ENOTCONN;
  if (descriptors.size() > kDescriptorsMax) return -E2BIG;
  std::vector<std::byte> bytes(kHeadBytes + payload.size());
  store_le(bytes.data(), static_cast<uint32_t>(message));
  store_le(bytes.data() + 4, kVersion | flags);
  store_le(bytes.data() + 8, static_cast<uint32_t>(payload.size()));
  if (!payload.empty()) std::memcpy(bytes.data() + kHeadBytes, payload.data(), payload.size());
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kDescriptorsMax)> control{};
  size_t sent = 0;
  while (sent < bytes.size()) {
    iovec piece{bytes.data() + sent, bytes.size() - sent};
    msghdr head{};
    head.msg_iov = &piece;
    head.msg_iovlen = 1;
    if (sent == 0 && !descriptors.empty()) {  // they go with the first byte
      head.msg_control = control.data();
      head.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
      cmsghdr* own = CMSG_FIRSTHDR(&head);
      own->cmsg_level = SOL_SOCKET;
      own->cmsg_type = SCM_RIGHTS;
      own->cmsg_len = CMSG_LEN(descriptors.size_bytes());
      std::memcpy(CMSG_DATA(own), descriptors.data(), descriptors.size_bytes());
    }
    const ssize_t result = ::sendmsg(socket_, &head, MSG_NOSIGNAL);
    if (result > 0) {
      sent += static_cast<size_t>(result);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return -errno;
    if (const int waited = wait_for(POLLOUT); waited != 0) return waited;
  }
  return 0;
}

int VhostWire::receive_all(Bytes bytes) {
  while (!bytes.empty()) {
    // Without room for them, the kernel drops the descriptors that come along.
    const ssize_t got = ::recv(socket_, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
      continue;
    }
    if (got == 0) return -ECONNRESET;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return -errno;
    if (const int waited = wait_for(POLLIN); waited != 0) return waited;
  }
  return 0;
}

int VhostWire::receive(VhostMessage message, Bytes answer) {
  std::array<std::byte, kHeadBytes> head{};
  if (const int error = receive_all(head); error != 0) return error;
  const auto flags = load_le<uint32_t>(head.data() + 4);
  const bool fits = load_le<uint32_t>(head.data()) == static_cast<uint32_t>(message) && (flags & kVersionMask) == kVersion &&
                    (flags & kIsAnswer) != 0 && load_le<uint32_t>(head.data() + 8) == answer.size();
  return fits ? receive_all(answer) : -EPROTO;
}

int VhostWire::tell(VhostMessage message, ConstBytes payload, std::span<const int> descriptors) {
  until_ = std::chrono::steady_clock::now() + kVhostPatience;
  const int error = send(message, acknowledged_ ? kWantsAnswer : 0, payload, descriptors);
  if (error != 0 || !acknowledged_) return error;
  std::array<std::byte, 8> refused{};
  if (const int result = receive(message, refused); result != 0) return result;
  return load_le<uint64_t>(refused.data()) == 0 ? 0 : -EREMOTEIO;
}

int VhostWire::ask(VhostMessage message, ConstBytes payload, Bytes answer) {
  until_ = std::chrono::steady_clock::now() + kVhostPatience;
  const int error = send(message, 0, payload, {});
  return error != 0 ? error : receive(message, answer);
}

int VhostWire::ask(VhostMessage message, uint64_t* answer) {
  std::array<std::byte, 8> bytes{};
  const int error = ask(message, {}, bytes);
  *answer = load_le<uint64_t>(bytes.data());
  return error;
}

}  // namespace halfstep::io
