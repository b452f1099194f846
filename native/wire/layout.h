// layout.h — what a block's bytes mean, in canonical form, and how a group's shape cuts a block into parts
// (docs/wire-protocol.md, *Names*).
//
// Canonical form, little-endian, no padding:
//   u16 version = 1
//   u16 field_count    then per field, sorted bytewise by name: u16 length, name; u16 length, value   (UTF-8, names unique)
//   u16 group_count    then per group: u16 part_count, u16 size_count (1-4), u32 part_bytes[size_count]
// part p of a group has part_bytes[p % size_count] bytes. part_count 0: parts follow until the block's length ends, the last
// one may be shorter; otherwise a block has exactly part_count parts and exactly their sum of bytes.
// The layout id is the first 16 bytes of the canonical form's SHA-256.
// Thread: immutable once parsed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/status.h"
#include "base/units.h"

namespace halfstep::wire {

inline constexpr uint16_t kLayoutVersion = 1;
inline constexpr uint32_t kLayoutBytesMax = 16 * KiB;
inline constexpr uint32_t kGroupsMax = 256;  // a component has 8 bits for it
inline constexpr uint32_t kPartSizesMax = 4;
inline constexpr uint32_t kPartsMax = 2560;  // of one block, on flash (docs/on-flash-format.md, *Device*)
inline constexpr uint32_t kOpaquePartBytes = 256 * KiB;
inline constexpr uint32_t kBlockBytesMax = 256 * MiB - 256 * KiB;  // whatever the store's segments

using LayoutId = std::array<std::byte, 16>;

struct GroupShape {
  uint16_t part_count = 0;  // 0: until the length ends
  uint16_t size_count = 1;
  std::array<uint32_t, kPartSizesMax> part_bytes{};

  // How many parts a block of `block_bytes` has; 0 when no block of this group can have that length.
  uint32_t parts_of(uint64_t block_bytes) const noexcept;
  // Bytes of `part`, and where it starts, in a block of `block_bytes`. part < parts_of(block_bytes).
  uint32_t bytes_of(uint32_t part, uint64_t block_bytes) const noexcept;
  uint64_t offset_of(uint32_t part) const noexcept;
  bool operator==(const GroupShape&) const noexcept = default;
};

class Layout {
 public:
  // Refuses what is not canonical (unsorted, duplicate, trailing bytes, a zero or oversized part, too many groups).
  static Status parse(ConstBytes canonical, Layout* out);
  // Sorts the fields; Invalid on duplicates, oversize or a bad shape.
  static Status make(std::vector<std::pair<std::string, std::string>> fields, std::vector<GroupShape> groups, Layout* out);

  ConstBytes canonical() const noexcept { return canonical_; }
  const LayoutId& id() const noexcept { return id_; }
  const std::vector<std::pair<std::string, std::string>>& fields() const noexcept { return fields_; }
  const std::vector<GroupShape>& groups() const noexcept { return groups_; }
  // Of the steps that its fields name (docs/compression.md, *In a layout*), the largest, in 1/10,000 and rounded up; what is no
  // number is the largest there is. 0: it names none, and its blocks are exact.
  uint32_t coarsest_step() const noexcept { return coarsest_step_; }

 private:
  std::vector<std::byte> canonical_;
  LayoutId id_{};
  std::vector<std::pair<std::string, std::string>> fields_;
  std::vector<GroupShape> groups_;
  uint32_t coarsest_step_ = 0;
};

// A component of a key (docs/wire-protocol.md, *Names*): group 8 bits, variant 4, cell 20, from the high bits down.
struct Component {
  uint32_t value = 0;
  constexpr uint32_t group() const noexcept { return value >> 24; }
  constexpr uint32_t variant() const noexcept { return (value >> 20) & 0xFU; }
  constexpr uint32_t cell() const noexcept { return value & 0xFFFFFU; }
  static constexpr Component of(uint32_t group, uint32_t variant, uint32_t cell) noexcept {
    return {(group << 24) | ((variant & 0xFU) << 20) | (cell & 0xFFFFFU)};
  }
};

// n of docs/wire-protocol.md, *Checksums*: low 32 bits of xxh3_64(layout id, component, engine key). The wire check of part p
// is crc32c(part) xor (n + p * 0x9E3779B1), so that the right payload under a wrong name fails.
uint32_t name_number(const LayoutId& layout, Component component, ConstBytes engine_key) noexcept;
constexpr uint32_t wire_check(uint32_t part_crc, uint32_t name_number, uint32_t part) noexcept {
  return part_crc ^ (name_number + part * 0x9E3779B1U);
}

// Which shard of `shards` holds every component of a key: xxh3_64 with a fixed seed (docs/wire-protocol.md, *Names*).
inline constexpr uint64_t kRouteSeed = 0x48414C4653544550U;  // "HALFSTEP"
uint32_t route(ConstBytes engine_key, uint32_t shards) noexcept;

}  // namespace halfstep::wire
