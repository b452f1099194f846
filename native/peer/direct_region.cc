#include "peer/direct_region.h"

#include <algorithm>

namespace halfstep::peer {

DirectRegion::Registration& DirectRegion::registered(const std::shared_ptr<rdma::Device>& device, Access access) {
  const auto known = std::find_if(registrations_.begin(), registrations_.end(), [&](const Registration& registration) {
    return registration.device == device && registration.access == access;
  });
  if (known != registrations_.end()) return *known;
  Registration made{.device = device, .access = access, .region = {}, .fault = {}};
  if (gpu_ != nullptr) {
    made.fault = register_gpu(device, access, &made.region);
  } else if (!budget_.take(memory_.size())) {
    made.fault = {Code::NoSpace, "regions have " + std::to_string(budget_.used_bytes()) + " of " +
                                     std::to_string(budget_.bytes_max()) + " bytes pinned, and " +
                                     std::to_string(memory_.size()) + " more are needed"};
  } else {
    made.fault = rdma::MemoryRegion::make(device, memory_, access, &made.region);
    if (!made.fault.ok()) budget_.give(memory_.size());
  }
  registrations_.push_back(std::move(made));
  return registrations_.back();
}

// Its card keeps what it needs of the dma-buf.
Fault DirectRegion::register_gpu(const std::shared_ptr<rdma::Device>& device, Access access, rdma::MemoryRegion* out) {
  if (writes_ == nullptr) {
    if (Fault fault = gpu::PeerWrites::open(gpu_, &writes_); !fault.ok()) return fault;
  }
  const auto at = reinterpret_cast<gpu::DevicePointer>(memory_.data());
  gpu::DmaBuf exported;
  if (Fault fault = writes_->export_memory(at, memory_.size(), &exported); !fault.ok()) return fault;
  return rdma::MemoryRegion::make(
      device,
      rdma::MemoryRegion::DmaBuf{
          .descriptor = exported.descriptor(), .offset = exported.offset(), .address = at, .bytes = memory_.size()},
      access, out);
}

Fault DirectRegion::key(const std::shared_ptr<rdma::Device>& device, uint32_t* out) {
  const Registration& known = registered(device, gpu_ != nullptr ? Access::RemoteWrite : Access::Remote);
  if (!known.fault.ok()) return known.fault;
  *out = known.region.remote_key();
  return {};
}

Fault DirectRegion::for_windows(const std::shared_ptr<rdma::Device>& device, const rdma::MemoryRegion** out) {
  const Registration& known = registered(device, Access::Windows);
  if (!known.fault.ok()) return known.fault;
  *out = &known.region;
  return {};
}

void DirectRegion::let_go(const rdma::Device& device) noexcept {
  std::erase_if(registrations_, [&](const Registration& registration) {
    if (registration.device.get() != &device) return false;
    if (registration.region.made()) budget_.give(pinned_bytes());
    return true;
  });
}

void DirectRegion::release() noexcept {
  for (const Registration& registration : registrations_) {
    if (registration.region.made()) budget_.give(pinned_bytes());
  }
  registrations_.clear();
}

}  // namespace halfstep::peer
