#include "rdma/memory_region.h"

#include <cerrno>

namespace halfstep::rdma {

int MemoryRegion::bits_of(Access access) noexcept {
  int bits = access == Access::Local ? 0 : abi::kAccessLocalWrite;
  if (access == Access::RemoteWrite || access == Access::Remote) bits |= abi::kAccessRemoteWrite;
  if (access == Access::Remote) bits |= abi::kAccessRemoteRead;
  if (access == Access::Windows) bits |= abi::kAccessWindowBind;
  return bits;
}

Fault MemoryRegion::make(std::shared_ptr<Device> device, Bytes memory, Access access, MemoryRegion* out) {
  errno = 0;
  MemoryRegion made;
  made.region_ = device->verbs().reg_mr(device->pd(), memory.data(), memory.size(), bits_of(access));
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

Fault MemoryRegion::make(std::shared_ptr<Device> device, const DmaBuf& memory, Access access, MemoryRegion* out) {
  errno = 0;
  MemoryRegion made;
  made.region_ = device->verbs().reg_dmabuf_mr(device->pd(), memory.offset, memory.bytes, memory.address, memory.descriptor,
                                               bits_of(access));
  if (made.region_ == nullptr) {
    const int error = errno != 0 ? errno : EIO;
    const bool none = error == EOPNOTSUPP || error == ENOSYS;
    return {{none ? Code::Unsupported : Code::NoSpace, -error},
            device->name() + ": registering " + std::to_string(memory.bytes) + " bytes of a GPU: " + errno_name(error) +
                (none ? "; its driver takes no dma-buf, or libibverbs is older than rdma-core 34" : "")};
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
