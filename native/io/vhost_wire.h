// vhost_wire.h — the socket of a vhost-user target, the front end's side: messages out, with descriptors, and their answers.
// (QEMU, docs/interop/vhost-user; numbers and layouts are its.)
// Invariants: each call ends after kVhostPatience, or soon after `give_up` is set; an answer is the one that was asked for, of
// the size that was asked for, or the socket is of no use any more; descriptors that the target sends are not taken. Thread:
// one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace halfstep::io {

inline constexpr auto kVhostPatience = std::chrono::seconds(5);

enum class VhostMessage : uint32_t {
  GetFeatures = 1,
  SetFeatures = 2,
  SetOwner = 3,
  SetMemoryTable = 5,
  SetRingEntries = 8,
  SetRingAddresses = 9,
  SetRingBase = 10,
  GetRingBase = 11,
  SetRingKick = 12,
  SetRingCall = 13,
  GetProtocolFeatures = 15,
  SetProtocolFeatures = 16,
  GetQueueCount = 17,
  SetRingEnable = 18,
  GetConfig = 24,
};
const char* name_of(VhostMessage message) noexcept;

class VhostWire {
 public:
  VhostWire() = default;
  ~VhostWire() { close(); }
  VhostWire(const VhostWire&) = delete;
  VhostWire& operator=(const VhostWire&) = delete;

  // 0 or a negative errno.
  int connect(const std::string& path, const std::atomic<bool>& give_up);
  bool open() const noexcept { return socket_ >= 0; }
  int descriptor() const noexcept { return socket_; }
  void close() noexcept;

  // From now on messages that have no answer of their own are acknowledged (REPLY_ACK).
  void acknowledge_all() noexcept { acknowledged_ = true; }
  // 0 or a negative errno; -EPROTO: what came is no answer; -EREMOTEIO: the target refused it.
  int tell(VhostMessage message, ConstBytes payload, std::span<const int> descriptors = {});
  // `answer`: as long as the answer has to be.
  int ask(VhostMessage message, ConstBytes payload, Bytes answer);
  int ask(VhostMessage message, uint64_t* answer);

 private:
  int send(VhostMessage message, uint32_t flags, ConstBytes payload, std::span<const int> descriptors);
  int receive(VhostMessage message, Bytes answer);
  int receive_all(Bytes bytes);
  int wait_for(short events);

  int socket_ = -1;
  bool acknowledged_ = false;
  const std::atomic<bool>* give_up_ = nullptr;
  std::chrono::steady_clock::time_point until_;
};

}  // namespace halfstep::io
