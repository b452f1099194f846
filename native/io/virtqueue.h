// virtqueue.h — a split virtqueue of a block device, the driver's side (virtio 1.2, section 2.7), over memory that the device
// shares. A slot is a place for one request: header, one piece of memory, status. Its three descriptors never move: they are
// slot n's entries of the table, or an indirect table of its own.
// Invariants: what the device may write, the used ring and the status apart, is written here and never read back; which slots
// are out is known here alone. An index, a slot or a length from the device that cannot be is Broken: nothing of the queue is
// believed any more, and nothing outside the queue was touched. Thread: one.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"

namespace halfstep::io {

constexpr uint64_t kSectorBytes = 512;  // of virtio-blk, whatever the target's blocks are

inline constexpr uint16_t kVirtqueueSlotsMax = 256;

// What a request is, as virtio-blk has it (section 5.2.6).
enum class BlockRequest : uint32_t { Read = 0, Write = 1, Flush = 4 };

class Virtqueue {
 public:
  enum class Reaped : uint8_t { Nothing, One, Broken };
  struct Done {
    uint16_t slot = 0;
    uint8_t status = 0;          // kStatusOk, or what the device says
    uint32_t written_bytes = 0;  // by the device into the piece: at most its size
  };
  static constexpr uint8_t kStatusOk = 0;

  // `memory`: memory_bytes() of zeros, aligned to a page. One that is used anew is zeroed before.
  Virtqueue(Bytes memory, uint16_t slots, bool indirect) noexcept;
  static uint64_t memory_bytes(uint16_t slots, bool indirect) noexcept;
  // Entries of the ring: a power of two.
  static uint16_t entries_for(uint16_t slots, bool indirect) noexcept;

  uint16_t entries() const noexcept { return entries_; }
  const std::byte* descriptors() const noexcept { return descriptors_; }
  const std::byte* available() const noexcept { return available_; }
  const std::byte* used() const noexcept { return used_; }

  // A slot that is not out. `sector`: of 512 bytes. `piece`: where the bytes are, as the device sees them; empty for a flush.
  void push(uint16_t slot, BlockRequest what, uint64_t sector, uint64_t piece_address, uint32_t piece_bytes) noexcept;
  // Shows the device what was pushed. True: it wants to be kicked.
  bool publish() noexcept;
  Reaped reap(Done* done) noexcept;
  uint16_t out() const noexcept { return out_count_; }

 private:
  struct Slot {
    uint32_t piece_bytes = 0;
    bool device_writes = false;  // into the piece
    bool out = false;
  };

  const uint16_t slots_;
  const bool indirect_;
  const uint16_t entries_;
  std::byte* descriptors_ = nullptr;
  std::byte* available_ = nullptr;
  std::byte* used_ = nullptr;
  std::byte* tables_ = nullptr;   // indirect: of three descriptors for each slot
  std::byte* headers_ = nullptr;  // of each slot: the request's header, then its status
  uint16_t pushed_ = 0;           // index of the available ring
  uint16_t published_ = 0;
  uint16_t reaped_ = 0;  // index of the used ring
  uint16_t out_count_ = 0;
  std::array<Slot, kVirtqueueSlotsMax> state_{};
};

// What a vhost-user target says of its device: feature bits and the configuration space, as far as it is used.
struct BlockDeviceConfig {
  uint64_t bytes = 0;            // of the device, whole pages
  uint32_t piece_bytes_max = 0;  // of a request: a multiple of the page
  uint16_t queues = 1;
};

inline constexpr uint64_t kFeatureSizeMax = 1ULL << 1;
inline constexpr uint64_t kFeatureReadOnly = 1ULL << 5;
inline constexpr uint64_t kFeatureFlush = 1ULL << 9;
inline constexpr uint64_t kFeatureMultiQueue = 1ULL << 12;
inline constexpr uint64_t kFeatureIndirect = 1ULL << 28;
inline constexpr uint64_t kFeatureEventIndex = 1ULL << 29;
inline constexpr uint64_t kFeatureProtocol = 1ULL << 30;
inline constexpr uint64_t kFeatureVersion1 = 1ULL << 32;

inline constexpr size_t kBlockConfigBytes = 60;
// Empty: it is taken. Else what is wrong with it: the value and the bound.
std::string parse_block_config(ConstBytes config, uint64_t features, BlockDeviceConfig* out);

}  // namespace halfstep::io
