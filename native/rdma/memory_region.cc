#include "rdma/memory_region.h"

#include <cerrno>

namespace halfstep::rdma {

Fault MemoryRegion::make(std::shared_ptr<Device> device, Bytes memory, Access access, MemoryRegion* out) {
  const int bits = access == Access::RemoteWrite ? abi::kAccessLocalWrite | abi::kAccessRemoteWrite : 0;
  errno = 0;
  MemoryRegion made;
  made.region_ = device->verbs().reg_mr(device->pd(), memory.data(), memory.size(), bits);
  if (made.region_ == nullptr) {
    const int error = errno != 0 ? errno : EIO;
    return {{Code::NoSpace, -error},
            device->name() + ": registering " + std::to_string(memory.size()) + " bytes: " + errno_name(error) +
                (error == ENOMEM || error == EAGAIN ? "; raise the limit of locked memory (ulimit -l, LimitMEMLOCK=)" : "")};
  }
  made.device_ = std::move(device);
  *out = std::move(made);
  return {};
}

void MemoryRegion::reset() noexcept {
  if (region_ != nullptr) (void)device_->verbs().dereg_mr(region_);
  region_ = nullptr;
  device_ = nullptr;
}

}  // namespace halfstep::rdma
