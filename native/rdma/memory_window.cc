#include "rdma/memory_window.h"

#include <cerrno>

namespace halfstep::rdma {
namespace {

// The part of a key that is its owner's to choose. The rest is the device's.
constexpr uint32_t kOwnBits = 0xFF;

}  // namespace

Fault MemoryWindow::make(std::shared_ptr<Device> device, MemoryWindow* out) {
  errno = 0;
  MemoryWindow made;
  made.window_ = device->verbs().alloc_mw(device->pd());
  if (made.window_ == nullptr) {
    const int error = errno != 0 ? errno : EIO;
    return {{Code::NoSpace, -error}, device->name() + ": a memory window: " + errno_name(error)};
  }
  made.device_ = std::move(device);
  *out = std::move(made);
  return {};
}

void MemoryWindow::reset() noexcept {
  if (window_ != nullptr) (void)device_->verbs().dealloc_mw(window_);
  window_ = nullptr;
  device_ = nullptr;
}

void MemoryWindow::bind(const MemoryRegion& region, Bytes bytes, int access, abi::SendRequest* request) noexcept {
  key_ = (window_->rkey & ~kOwnBits) | ((window_->rkey + 1) & kOwnBits);
  request->opcode = abi::kBindWindow;
  request->bind = {.window = window_,
                   .key = key_,
                   .region = region.handle(),
                   .address = reinterpret_cast<uint64_t>(bytes.data()),
                   .bytes = bytes.size(),
                   .access = static_cast<unsigned>(access)};
}

void MemoryWindow::invalidate(abi::SendRequest* request) const noexcept {
  request->opcode = abi::kInvalidate;
  request->imm_data = key_;
}

}  // namespace halfstep::rdma
