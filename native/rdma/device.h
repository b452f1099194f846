// device.h — RDMA devices of this machine that are in use, found by the address of a connection.
// The route that the kernel chose for a TCP connection says which device to take: the one whose RoCE v2 GID is the
// connection's own address. So no device is named in any configuration, and one that cannot reach the peer is not tried.
// Invariants: a device is opened when it is first found and closed when nobody has it any more, after everything that was made
// of it; one that does not answer any more (its driver was reloaded) is left to those who have it, and opened afresh. Whoever
// takes a device away waits until nobody has it open: so gone() tells of those that are listed no more. Thread:
// one, the loop's, for Devices; a Device's own members never change.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "rdma/verbs.h"

namespace halfstep::rdma {

using abi::Gid;

// An IPv4 address as a GID: ::ffff:a.b.c.d.
std::string gid_text(const Gid& gid);

// An open device and the protection domain in which its memory and queue pairs are.
class Device {
 public:
  static Fault open(Verbs& verbs, abi::Device* listed, std::shared_ptr<Device>* out);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Verbs& verbs() const noexcept { return verbs_; }
  const std::string& name() const noexcept { return name_; }
  abi::Context* context() const noexcept { return context_; }
  abi::Pd* pd() const noexcept { return pd_; }
  const abi::DeviceAttributes& attributes() const noexcept { return attributes_; }
  // Whether it has memory windows of type 2 (memory_window.h).
  bool has_windows() const noexcept {
    return (attributes_.device_cap_flags & (abi::kDeviceWindows2A | abi::kDeviceWindows2B)) != 0;
  }

 private:
  Device(Verbs& verbs, std::string name) : verbs_(verbs), name_(std::move(name)) {}

  Verbs& verbs_;
  const std::string name_;
  abi::Context* context_ = nullptr;
  abi::Pd* pd_ = nullptr;
  abi::DeviceAttributes attributes_{};
};

// One port of a device, and the address that it has there.
struct Path {
  std::shared_ptr<Device> device;
  Gid gid{};
  uint8_t port = 0;
  uint8_t gid_index = 0;
  uint32_t mtu_bytes = 0;
  uint32_t message_bytes_max = 0;
};

class Devices {
 public:
  explicit Devices(Verbs& verbs) noexcept : verbs_(verbs) {}
  Verbs& verbs() const noexcept { return verbs_; }

  // Unsupported: no device has this address, with what was looked at. Devices that come and go are seen each time.
  Fault find(const Gid& gid, Path* out);
  // Some are open.
  bool any_open() noexcept;
  // Those that are open and not listed any more: each is told of once, and is not found again.
  std::vector<std::shared_ptr<Device>> gone();

 private:
  // NotFound: it has not the address. IoError: it tells nothing of any port.
  Fault look(const std::shared_ptr<Device>& device, const Gid& gid, Path* out);
  std::shared_ptr<Device> known(const std::string& name);

  Verbs& verbs_;
  std::vector<std::weak_ptr<Device>> open_;
};

}  // namespace halfstep::rdma
