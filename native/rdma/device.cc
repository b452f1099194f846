#include "rdma/device.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace halfstep::rdma {
namespace {

Status last_error() noexcept { return {Code::IoError, errno != 0 ? -errno : -EIO}; }

}  // namespace

std::string gid_text(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (::inet_ntop(AF_INET6, gid.data(), text.data(), text.size()) == nullptr) return {};
  return text.data();
}

Fault Device::open(Verbs& verbs, abi::Device* listed, std::shared_ptr<Device>* out) {
  std::shared_ptr<Device> device(new Device(verbs, verbs.get_device_name(listed)));
  const auto failed = [&](const char* what, Status status, const char* remedy) {
    return Fault(status, device->name_ + ": " + what + ": " + errno_name(status.detail()) + remedy);
  };
  errno = 0;
  if ((device->context_ = verbs.open_device(listed)) == nullptr) {
    return failed("open", last_error(), "; /dev/infiniband/uverbs* must be readable and writable for this user");
  }
  if (const int error = verbs.query_device(device->context_, &device->attributes_); error != 0) {
    return failed("query", {Code::IoError, -error}, "");
  }
  if ((device->pd_ = verbs.alloc_pd(device->context_)) == nullptr) return failed("protection domain", last_error(), "");
  *out = std::move(device);
  return {};
}

Device::~Device() {
  if (pd_ != nullptr) (void)verbs_.dealloc_pd(pd_);
  if (context_ != nullptr) (void)verbs_.close_device(context_);
}

Fault Devices::look(const std::shared_ptr<Device>& device, const Gid& gid, Path* out) {
  const uint8_t ports = device->attributes().phys_port_cnt;
  uint32_t silent_ports = 0;
  int error = 0;
  for (uint32_t port = 1; port <= ports; ++port) {
    abi::PortAttributes attributes;
    if (const int failure = verbs_.query_port(device->context(), static_cast<uint8_t>(port), &attributes); failure != 0) {
      ++silent_ports;
      error = failure;
      continue;
    }
    if (attributes.state != abi::kPortActive) continue;
    // The index of an address travels in 8 bits (struct ibv_global_route).
    const auto gids = static_cast<uint32_t>(std::clamp(attributes.gid_tbl_len, 0, 256));
    for (uint32_t index = 0; index < gids; ++index) {
      abi::GidEntry entry{};
      if (verbs_.query_gid(device->context(), port, index, &entry) != 0) continue;
      if (entry.gid_type != abi::kGidRoceV2 || entry.gid != gid) continue;
      *out = {.device = device,
              .gid = gid,
              .port = static_cast<uint8_t>(port),
              .gid_index = static_cast<uint8_t>(index),
              .mtu_bytes = mtu_bytes(attributes.active_mtu),
              .message_bytes_max = attributes.max_msg_sz};
      if (out->mtu_bytes == 0 || out->message_bytes_max == 0) {
        return {Code::Unsupported, device->name() + " port " + std::to_string(port) + ": MTU number " +
                                       std::to_string(attributes.active_mtu) + ", messages of " +
                                       std::to_string(attributes.max_msg_sz) + " bytes: not usable"};
      }
      return {};
    }
  }
  if (silent_ports == 0 || silent_ports < ports) return {Code::NotFound, {}};
  return {{Code::IoError, -error}, device->name() + ": ports: " + errno_name(-error)};
}

std::shared_ptr<Device> Devices::known(const std::string& name) {
  for (const auto& open : open_) {
    if (auto held = open.lock(); held->name() == name) return held;
  }
  return nullptr;
}

bool Devices::any_open() noexcept {
  std::erase_if(open_, [](const auto& device) { return device.expired(); });
  return !open_.empty();
}

std::vector<std::shared_ptr<Device>> Devices::gone() {
  int count = 0;
  abi::Device** list = verbs_.get_device_list(&count);
  if (list == nullptr) return {};  // that says nothing of them
  std::vector<std::shared_ptr<Device>> gone;
  for (const auto& open : open_) {
    std::shared_ptr<Device> device = open.lock();
    const bool listed = std::any_of(list, list + count, [&](abi::Device* one) {
      return device == nullptr || verbs_.get_device_name(one) == device->name();
    });
    if (device != nullptr && !listed) gone.push_back(std::move(device));
  }
  verbs_.free_device_list(list);
  std::erase_if(open_, [&](const auto& open) { return std::find(gone.begin(), gone.end(), open.lock()) != gone.end(); });
  return gone;
}

Fault Devices::find(const Gid& gid, Path* out) {
  int count = 0;
  errno = 0;
  abi::Device** list = verbs_.get_device_list(&count);
  if (list == nullptr) {
    const Status status = last_error();
    return {{Code::Unsupported, status.detail()},
            "list of RDMA devices: " + errno_name(status.detail()) + "; is ib_uverbs loaded?"};
  }
  std::erase_if(open_, [](const auto& device) { return device.expired(); });
  std::string looked;
  Fault result(Code::NotFound, {});
  for (int i = 0; i < count && result.status == Code::NotFound; ++i) {
    const std::string name = verbs_.get_device_name(list[i]);
    looked += (looked.empty() ? "" : ", ") + name;
    std::shared_ptr<Device> device = known(name);
    bool fresh = device == nullptr;
    for (int tries = 0; tries < 2; ++tries) {
      if (fresh) {
        if (const Fault fault = Device::open(verbs_, list[i], &device); !fault.ok()) {
          looked += " (" + fault.what + ")";
          break;
        }
      }
      result = look(device, gid, out);
      if (result.status.code() != Code::IoError) break;
      if (fresh) looked += " (" + result.what + ")";
      result = Fault(Code::NotFound, {});
      if (fresh) break;
      std::erase_if(open_, [&](const auto& open) { return open.lock() == device; });
      fresh = true;
    }
    if (result.ok() && fresh) open_.push_back(device);
  }
  verbs_.free_device_list(list);
  if (result.status != Code::NotFound) return result;
  return {Code::Unsupported, count == 0 ? "this machine has no RDMA device"
                                        : "no active port of an RDMA device has the RoCE v2 address " + gid_text(gid) +
                                              " of this connection; looked at " + looked};
}

}  // namespace halfstep::rdma
