#include "io/virtqueue.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/units.h"

namespace halfstep::io {
namespace {

// virtio 1.2, 2.7.5 to 2.7.8: all fields are little-endian.
constexpr uint16_t kNext = 1;
constexpr uint16_t kDeviceWrites = 2;
constexpr uint16_t kIndirect = 4;
constexpr uint16_t kNoNotify = 1;  // flags of the used ring
constexpr size_t kDescriptorBytes = 16;
constexpr size_t kIndexAt = 2;  // of both rings, behind their flags
constexpr size_t kRingAt = 4;
constexpr size_t kUsedEntryBytes = 8;
constexpr uint16_t kPerSlot = 3;  // header, piece, status
constexpr size_t kHeaderBytes = 16;
constexpr size_t kHeaderStride = 32;  // the status lies behind the header
constexpr size_t kAlign = 64;
constexpr uint64_t kPieceBytesMax = 1 * MiB;

struct Descriptor {
  uint64_t address;
  uint32_t bytes;
  uint16_t flags;
  uint16_t next;
};
static_assert(sizeof(Descriptor) == kDescriptorBytes);

void put(std::byte* at, const Descriptor& descriptor) noexcept {
  store_le(at, descriptor.address);
  store_le(at + 8, descriptor.bytes);
  store_le(at + 12, descriptor.flags);
  store_le(at + 14, descriptor.next);
}

size_t descriptors_bytes(uint16_t entries) noexcept { return round_up(entries * kDescriptorBytes, kAlign); }
size_t available_bytes(uint16_t entries) noexcept { return round_up(kRingAt + 2U * entries + 2, kAlign); }
size_t used_bytes(uint16_t entries) noexcept { return round_up(kRingAt + kUsedEntryBytes * entries + 2, kAlign); }
size_t tables_bytes(uint16_t slots, bool indirect) noexcept {
  return indirect ? round_up(slots * kPerSlot * kDescriptorBytes, kAlign) : 0;
}

uint64_t address_of(const std::byte* at) noexcept { return reinterpret_cast<uintptr_t>(at); }

uint16_t* index_of(std::byte* ring) noexcept { return reinterpret_cast<uint16_t*>(ring + kIndexAt); }

}  // namespace

uint16_t Virtqueue::entries_for(uint16_t slots, bool indirect) noexcept {
  return std::bit_ceil(static_cast<uint16_t>(indirect ? slots : slots * kPerSlot));
}

uint64_t Virtqueue::memory_bytes(uint16_t slots, bool indirect) noexcept {
  const uint16_t entries = entries_for(slots, indirect);
  return round_up(descriptors_bytes(entries) + available_bytes(entries) + used_bytes(entries) + tables_bytes(slots, indirect) +
                      slots * kHeaderStride,
                  kPageBytes);
}

Virtqueue::Virtqueue(Bytes memory, uint16_t slots, bool indirect) noexcept
    : slots_(slots), indirect_(indirect), entries_(entries_for(slots, indirect)) {
  HALFSTEP_CHECK(slots > 0 && slots <= kVirtqueueSlotsMax, slots);
  HALFSTEP_CHECK(memory.size() >= memory_bytes(slots, indirect), memory.size());
  descriptors_ = memory.data();
  available_ = descriptors_ + descriptors_bytes(entries_);
  used_ = available_ + available_bytes(entries_);
  tables_ = used_ + used_bytes(entries_);
  headers_ = tables_ + tables_bytes(slots, indirect);
}

void Virtqueue::push(uint16_t number, BlockRequest what, uint64_t sector, uint64_t piece_address,
                     uint32_t piece_bytes) noexcept {
  HALFSTEP_CHECK(number < slots_ && !state_[number].out, number);
  Slot& slot = state_[number];
  slot = {.piece_bytes = piece_bytes, .device_writes = what == BlockRequest::Read, .out = true};
  std::byte* header = headers_ + number * kHeaderStride;
  std::byte* status = header + kHeaderBytes;
  store_le(header, static_cast<uint32_t>(what));
  store_le(header + 4, uint32_t{0});
  store_le(header + 8, sector);
  *status = std::byte{0xff};

  // Within an indirect table the entries count from 0.
  const auto first = static_cast<uint16_t>(indirect_ ? 0 : number * kPerSlot);
  std::byte* table = indirect_ ? tables_ + number * kPerSlot * kDescriptorBytes : descriptors_ + first * kDescriptorBytes;
  uint16_t count = 0;
  const auto add = [&](uint64_t address, uint32_t bytes, uint16_t flags, bool last) {
    const auto next = static_cast<uint16_t>(last ? 0 : first + count + 1);
    put(table + count * kDescriptorBytes, {address, bytes, static_cast<uint16_t>(flags | (last ? 0 : kNext)), next});
    ++count;
  };
  add(address_of(header), kHeaderBytes, 0, false);
  if (piece_bytes != 0) add(piece_address, piece_bytes, slot.device_writes ? kDeviceWrites : 0, false);
  add(address_of(status), 1, kDeviceWrites, true);
  uint16_t head = first;
  if (indirect_) {
    head = number;
    put(descriptors_ + number * kDescriptorBytes,
        {address_of(table), static_cast<uint32_t>(count * kDescriptorBytes), kIndirect, 0});
  }
  store_le(available_ + kRingAt + 2 * (pushed_ % entries_), head);
  ++pushed_;
  ++out_count_;
}

bool Virtqueue::publish() noexcept {
  if (pushed_ == published_) return false;
  published_ = pushed_;
  // Descriptors before the index; the index before the look at whether a kick is wanted (2.7.13.4.1).
  __atomic_store_n(index_of(available_), pushed_, __ATOMIC_RELEASE);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  return (__atomic_load_n(reinterpret_cast<const uint16_t*>(used_), __ATOMIC_RELAXED) & kNoNotify) == 0;
}

Virtqueue::Reaped Virtqueue::reap(Done* done) noexcept {
  const uint16_t index = __atomic_load_n(index_of(used_), __ATOMIC_ACQUIRE);
  const auto ready = static_cast<uint16_t>(index - reaped_);
  if (ready == 0) return Reaped::Nothing;
  if (ready > out_count_) return Reaped::Broken;
  const std::byte* entry = used_ + kRingAt + kUsedEntryBytes * (reaped_ % entries_);
  // Each once: the device may write on.
  const uint32_t head = __atomic_load_n(reinterpret_cast<const uint32_t*>(entry), __ATOMIC_RELAXED);
  const uint32_t length = __atomic_load_n(reinterpret_cast<const uint32_t*>(entry + 4), __ATOMIC_RELAXED);
  if (!indirect_ && head % kPerSlot != 0) return Reaped::Broken;
  const uint32_t number = indirect_ ? head : head / kPerSlot;
  if (number >= slots_ || !state_[number].out) return Reaped::Broken;
  Slot& slot = state_[number];
  const uint32_t writable = slot.device_writes ? slot.piece_bytes : 0;
  if (length > uint64_t{writable} + 1) return Reaped::Broken;
  slot.out = false;
  --out_count_;
  ++reaped_;
  done->slot = static_cast<uint16_t>(number);
  done->status = static_cast<uint8_t>(headers_[number * kHeaderStride + kHeaderBytes]);
  done->written_bytes = std::min(length, writable);
  return Reaped::One;
}

std::string parse_block_config(ConstBytes config, uint64_t features, BlockDeviceConfig* out) {
  if (config.size() < kBlockConfigBytes) {
    return "a configuration space of " + std::to_string(config.size()) + " bytes: must be at least " +
           std::to_string(kBlockConfigBytes);
  }
  const auto sectors = load_le<uint64_t>(config.data());
  const auto size_max = load_le<uint32_t>(config.data() + 8);
  const auto queues = load_le<uint16_t>(config.data() + 34);
  constexpr uint64_t kSectorsMax = uint64_t{INT64_MAX} / kSectorBytes;
  if (sectors < kPageBytes / kSectorBytes || sectors > kSectorsMax) {
    return "a capacity of " + std::to_string(sectors) + " sectors: must be " + std::to_string(kPageBytes / kSectorBytes) +
           " to " + std::to_string(kSectorsMax);
  }
  uint64_t piece = kPieceBytesMax;
  // QEMU offers it and says 0, which bounds nothing.
  if ((features & kFeatureSizeMax) != 0 && size_max != 0) {
    if (size_max < kPageBytes) {
      return "pieces of at most " + std::to_string(size_max) + " bytes (size_max): must be at least " +
             std::to_string(kPageBytes);
    }
    piece = std::min<uint64_t>(piece, round_down(uint64_t{size_max}, kPageBytes));
  }
  const bool many = (features & kFeatureMultiQueue) != 0;
  if (many && queues == 0) return "num_queues=0: must be at least 1";
  *out = {.bytes = round_down(sectors * kSectorBytes, kPageBytes),
          .piece_bytes_max = static_cast<uint32_t>(piece),
          .queues = many ? queues : uint16_t{1}};
  return "";
}

}  // namespace halfstep::io
