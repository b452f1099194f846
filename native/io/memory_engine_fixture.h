// memory_engine_fixture.h — for tests of the memory engine: one device, pages that say who wrote them, requests by hand.
#pragma once

#include <memory>
#include <vector>

#include "base/bytes.h"
#include "io/memory_engine.h"
#include "io/test_fixtures.h"

namespace halfstep::io {

inline constexpr uint64_t kMemoryDeviceBytes = 1 * MiB;
inline constexpr uint32_t kPages = 16;

class Harness {
 public:
  explicit Harness(const MemoryFaults& faults, uint64_t seed = 1, MemoryDevice* device = nullptr)
      : device_(device != nullptr ? device : &own_device_),
        engine_(MemoryConfig{seed, 64, faults}, std::vector<MemoryDevice*>{device_}) {}

  MemoryEngine& engine() { return engine_; }
  MemoryDevice& device() { return *device_; }
  std::byte* memory() { return memory_.get(); }
  const std::vector<int>& order() const { return order_; }

  // A page whose every word says which page it is and which write put it there.
  static void label(std::byte* page, uint64_t number, uint64_t version) {
    for (uint32_t at = 0; at < kPageBytes; at += 16) {
      store_le(page + at, number);
      store_le(page + at + 8, version);
    }
  }
  static bool labelled(const std::byte* page, uint64_t number, uint64_t version) {
    for (uint32_t at = 0; at < kPageBytes; at += 16) {
      if (load_le<uint64_t>(page + at) != number || load_le<uint64_t>(page + at + 8) != version) return false;
    }
    return true;
  }

  void start(int tag, Op op, uint64_t page, uint32_t pages) {
    auto& pending = pending_.emplace_back(std::make_unique<Pending>());
    pending->owner = this;
    pending->tag = tag;
    pending->request.op = op;
    pending->request.offset = page * kPageBytes;
    pending->request.bytes = pages * kPageBytes;
    const bool moves = op == Op::Read || op == Op::Write;
    pending->request.data = moves ? memory() + page * kPageBytes : nullptr;
    pending->request.complete = [](Request& request) {
      auto& self = *static_cast<Pending*>(request.owner);
      self.owner->order_.push_back(self.tag);
    };
    pending->request.owner = pending.get();
    engine_.submit(pending->request);
    engine_.flush_submissions();
  }
  int32_t run(Op op, uint64_t page, uint32_t pages) {
    start(0, op, page, pages);
    const Request& request = pending_.back()->request;
    while (engine_.in_flight() > 0) {
      engine_.wait();
      engine_.poll();
    }
    return request.error;
  }
  int32_t write(uint64_t page, uint32_t pages, uint64_t version) {
    for (uint64_t i = page; i < page + pages; ++i) label(memory() + i * kPageBytes, i, version);
    return run(Op::Write, page, pages);
  }
  int32_t flush() { return run(Op::Flush, 0, 0); }
  // 0: never written; UINT64_MAX: not a whole page of ours.
  uint64_t version_on_device(uint64_t page) const {
    const auto bytes = aligned_bytes(kPageBytes);
    device_->read(page * kPageBytes, {bytes.get(), kPageBytes});
    const auto version = load_le<uint64_t>(bytes.get() + 8);
    if (version == 0) return labelled(bytes.get(), 0, 0) ? 0 : UINT64_MAX;
    return labelled(bytes.get(), page, version) ? version : UINT64_MAX;
  }

 private:
  struct Pending {
    Request request;
    Harness* owner = nullptr;
    int tag = 0;
  };
  MemoryDevice own_device_{kMemoryDeviceBytes};
  MemoryDevice* device_;
  std::unique_ptr<std::byte[], AlignedDelete> memory_ = aligned_bytes(kMemoryDeviceBytes);
  std::vector<std::unique_ptr<Pending>> pending_;
  std::vector<int> order_;
  MemoryEngine engine_;
};

inline MemoryFaults none() {
  MemoryFaults faults;
  faults.shuffle = false;
  return faults;
}

}  // namespace halfstep::io
