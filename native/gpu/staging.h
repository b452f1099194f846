// staging.h — pinned host memory in slots of one Chunk, between sockets and GPUs: for gets, and for puts, each within its
// bound.
//
//   gets: a slot is taken when bytes land, and comes back when they have been copied to the device.
//   puts: all slots of a batch are taken at once, and come back when its sockets have let go of them.
//
// The two never wait for each other, and a slot of a get waits for nothing but the device: so every wait for one ends.
// Memory is pinned in slabs, by whoever submits (grow()), because the driver may take its time; it stays until the end, because
// to give it back would wait for all that the device has under way.
// Invariants: slots in use never exceed the bound of their kind; a slab is freed by the destructor alone, and then no slot is
// in use. Thread: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "gpu/copier.h"

namespace halfstep::gpu {

enum class Use : uint8_t { Get, Put };

struct StagingLimits {
  uint32_t get_slots = 64;    // 16 MiB: what a device takes in half a millisecond
  uint32_t put_slots = 1024;  // 256 MiB, as the encoder's
};

class Staging {
 public:
  static constexpr size_t kSlotBytes = 256 * 1024;
  static constexpr uint32_t kSlabSlots = 16;

  explicit Staging(StagingLimits limits) noexcept : limits_{limits.get_slots, limits.put_slots} {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  uint32_t limit(Use use) const noexcept { return limits_[static_cast<size_t>(use)]; }
  // So that `slots` of this kind could be in use at once; no more than the limit. NoSpace: the driver gave no memory.
  Fault grow(const std::shared_ptr<Device>& device, Use use, uint32_t slots);
  // Null: none is free.
  std::byte* take(Use use);
  // All or none. False: fewer are free.
  bool take_all(Use use, uint32_t slots, std::vector<std::byte*>* out);
  void give_back(Use use, std::byte* slot) noexcept;

  uint32_t slots() const;
  uint32_t used() const;

 private:
  struct Slab {
    std::shared_ptr<Device> device;  // whose context made it
    void* memory = nullptr;
  };
  struct Account {
    uint32_t slots = 0;  // that there are
    std::vector<std::byte*> free;
  };

  const std::array<uint32_t, 2> limits_;
  mutable std::mutex mutex_;
  std::vector<Slab> slabs_;
  std::array<Account, 2> accounts_;
};

}  // namespace halfstep::gpu
