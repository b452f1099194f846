#include "gpu/peer_writes.h"

#include <string>

namespace halfstep::gpu {

Fault PeerWrites::open(std::shared_ptr<Device> device, std::unique_ptr<PeerWrites>* out) {
  Cuda& cuda = device->cuda();
  const auto ask = [&](int attribute) {
    int value = 0;
    return cuda.device_get_attribute(&value, attribute, device->number()) == kSuccess ? value : 0;
  };
  if (ask(kAttributeDmaBuf) == 0) {
    return {Code::Unsupported, device->name() + " hands out no dma-buf; NVIDIA's open kernel modules of 515 or newer do"};
  }
  const bool ordered = ask(kAttributeWritesOrdering) >= kWritesOrderedForOwner;
  if (!ordered && (ask(kAttributeFlushOptions) & kFlushByHost) == 0) {
    return {Code::Unsupported, device->name() + " neither orders what a card writes nor lets it be flushed"};
  }
  out->reset(new PeerWrites(std::move(device), !ordered));
  return {};
}

Fault PeerWrites::export_memory(DevicePointer at, size_t bytes, DmaBuf* out) const {
  const Entered entered(device_->cuda(), device_->context());
  if (entered.error() != kSuccess) return {Code::Unsupported, device_->text_of("cuCtxPushCurrent", entered.error())};
  DevicePointer base = 0;
  size_t size = 0;
  if (const int error = device_->cuda().mem_get_address_range(&base, &size, at); error != kSuccess) {
    return {Code::Invalid, device_->text_of("cuMemGetAddressRange", error)};
  }
  if (at < base || at - base > size || bytes > size - (at - base)) {
    return {Code::Invalid, "region of " + std::to_string(bytes) + " bytes on cuda:" + std::to_string(device_->ordinal()) +
                               ": it is of several allocations; make a region of each"};
  }
  // A dma-buf begins and ends with a page of the host's.
  const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const DevicePointer from = at / page_bytes * page_bytes;
  const DevicePointer end = (at + bytes + page_bytes - 1) / page_bytes * page_bytes;
  int descriptor = -1;
  if (const int error = device_->cuda().mem_get_handle_for_address_range(&descriptor, from, end - from, kHandleDmaBuf);
      error != kSuccess) {
    return {Code::Unsupported, device_->text_of("cuMemGetHandleForAddressRange", error)};
  }
  *out = DmaBuf(descriptor, at - from);
  return {};
}

Fault PeerWrites::settle() const {
  if (!flushes_) return {};
  const Entered entered(device_->cuda(), device_->context());
  if (entered.error() != kSuccess) return {Code::IoError, device_->text_of("cuCtxPushCurrent", entered.error())};
  const int error = device_->cuda().flush_gpu_direct_rdma_writes(kFlushCurrentContext, kWritesOrderedForOwner);
  if (error != kSuccess) return {Code::IoError, device_->text_of("cuFlushGPUDirectRDMAWrites", error)};
  return {};
}

}  // namespace halfstep::gpu
