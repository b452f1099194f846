#include "peer/direct_region.h"

#include <algorithm>

namespace halfstep::peer {

Fault DirectRegion::key(const std::shared_ptr<rdma::Device>& device, uint32_t* out) {
  auto known = std::find_if(registrations_.begin(), registrations_.end(),
                            [&](const Registration& registration) { return registration.device == device; });
  if (known == registrations_.end()) {
    Registration made{.device = device, .region = {}, .fault = {}};
    if (!budget_.take(memory_.size())) {
      made.fault = {Code::NoSpace, "regions have " + std::to_string(budget_.used_bytes()) + " of " +
                                       std::to_string(budget_.bytes_max()) + " bytes pinned, and " +
                                       std::to_string(memory_.size()) + " more are needed"};
    } else {
      made.fault = rdma::MemoryRegion::make(device, memory_, rdma::MemoryRegion::Access::RemoteWrite, &made.region);
      if (!made.fault.ok()) budget_.give(memory_.size());
    }
    registrations_.push_back(std::move(made));
    known = registrations_.end() - 1;
  }
  if (!known->fault.ok()) return known->fault;
  *out = known->region.remote_key();
  return {};
}

void DirectRegion::release() noexcept {
  for (const Registration& registration : registrations_) {
    if (registration.region.made()) budget_.give(memory_.size());
  }
  registrations_.clear();
}

}  // namespace halfstep::peer
