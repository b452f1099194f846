#include "sim/content.h"

#include <algorithm>
#include <cstring>

namespace halfstep::sim {
namespace {

wire::GroupShape group_of(uint16_t parts, std::initializer_list<uint32_t> sizes) {
  wire::GroupShape group;
  group.part_count = parts;
  group.size_count = static_cast<uint16_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), group.part_bytes.begin());
  return group;
}

const std::vector<wire::GroupShape>& groups() {
  static const std::vector<wire::GroupShape> shapes = {group_of(0, {wire::kOpaquePartBytes}), group_of(4, {4096}),
                                                       group_of(0, {1000, 3000}), group_of(1, {1}), group_of(8, {16384})};
  return shapes;
}

uint32_t bytes_of(uint32_t group, Prng& prng, uint32_t bytes_max) {
  switch (group) {
    case 0: {
      const uint64_t kind = prng.below(4);
      if (kind == 0) return bytes_max - static_cast<uint32_t>(prng.below(3));
      if (kind == 1) return kPageBytes * static_cast<uint32_t>(1 + prng.below(bytes_max / kPageBytes));
      return 1 + static_cast<uint32_t>(prng.below(bytes_max / 2));
    }
    case 1: return 4 * 4096;
    case 2: return prng.chance(0.2) ? 8192 : 1 + static_cast<uint32_t>(prng.below(30'000));
    case 3: return 1;
    default: return 8 * 16384;
  }
}

}  // namespace

wire::Layout layout_number(uint32_t number) {
  wire::Layout layout;
  (void)wire::Layout::make({{"model", "simulated " + std::to_string(number)}}, groups(), &layout);
  return layout;
}

uint64_t Version::extent_bytes() const noexcept {
  store::ExtentShape shape = store::shape_of(coded, stored_bytes);
  shape.parts = parts;
  return shape.extent_bytes();
}

Version make_version(uint32_t group, bool coded, uint64_t seed, uint32_t bytes_max) {
  Prng prng(seed ^ 0x5EED);
  Version version;
  version.seed = seed;
  version.group = group;
  version.raw_bytes = bytes_of(group, prng, coded ? bytes_max / 2 : bytes_max);
  version.parts = groups()[group].parts_of(version.raw_bytes);
  version.stored_bytes = version.raw_bytes;
  if (!coded) return version;
  std::vector<store::PartInfo> cut(version.parts);
  store::cut_parts(groups()[group], version.raw_bytes, cut);
  version.stored_bytes = 0;
  for (store::PartInfo& part : cut) {
    part.codec = prng.chance(0.8) ? 1 : 0;
    if (part.codec != 0) part.stored_bytes = 1 + static_cast<uint32_t>(prng.below(uint64_t{part.raw_bytes} + 64));
    part.raw_crc = static_cast<uint32_t>(prng.next());
    version.stored_bytes += part.stored_bytes;
  }
  version.coded = std::move(cut);
  return version;
}

namespace {

// Its parts as they lie in its extent. What a plain one was given to say of its sums is nobody's.
std::vector<store::PartInfo> table_of(const Version& version) {
  std::vector<store::PartInfo> table = version.coded;
  if (table.empty()) {
    table.resize(version.parts);
    store::cut_parts(groups()[version.group], version.raw_bytes, table);
  }
  uint32_t at = 0;
  for (store::PartInfo& part : table) {
    part.offset = at;
    at += part.stored_bytes;
  }
  return table;
}

bool same_bytes(const store::Resident& resident, const store::PartInfo& part, const std::byte* wanted) {
  bool equal = true;
  resident.slot().for_range(part.offset, part.stored_bytes, [&](Bytes piece) {
    equal = equal && std::memcmp(piece.data(), wanted, piece.size()) == 0;
    wanted += piece.size();
  });
  return equal;
}

bool same_record(const store::PartInfo& got, const store::PartInfo& wanted) {
  if (got.codec != wanted.codec || got.stored_bytes != wanted.stored_bytes || got.raw_bytes != wanted.raw_bytes) return false;
  return wanted.codec == 0 || got.raw_crc == wanted.raw_crc;
}

// The bytes of these parts, and of no others; of a block with a trailer what the others are is there to be read.
bool same_parts(const store::Resident& resident, const Version& version, store::PartSpan asked,
                std::vector<std::byte>& scratch) {
  const std::vector<store::PartInfo> table = table_of(version);
  const bool trailer = store::shape_of(version.coded, version.stored_bytes).trailer;
  scratch.resize(version.stored_bytes);
  version.fill(scratch);
  for (uint32_t p = 0; p < version.parts; ++p) {
    const store::PartInfo& part = resident.parts()[p];
    const bool wanted = p >= asked.first && p - asked.first < asked.count;
    if (part.is_there() != wanted || ((wanted || trailer) && !same_record(part, table[p]))) return false;
    if (wanted && !same_bytes(resident, part, scratch.data() + table[p].offset)) return false;
  }
  return true;
}

}  // namespace

bool same_first(const store::Resident& resident, const Version& version, uint32_t parts, std::vector<std::byte>& scratch) {
  if (resident.block_bytes() != version.raw_bytes || parts > version.parts) return false;
  if (resident.parts().size() != version.parts) return false;
  const std::vector<store::PartInfo> table = table_of(version);
  scratch.resize(version.stored_bytes);
  version.fill(scratch);
  for (uint32_t p = 0; p < parts; ++p) {
    const store::PartInfo& part = resident.parts()[p];
    if (!same_record(part, table[p]) || !same_bytes(resident, part, scratch.data() + table[p].offset)) return false;
  }
  return true;
}

bool same(const store::Resident& resident, const Version& version, store::PartSpan asked, std::vector<std::byte>& scratch) {
  const auto parts = resident.parts();
  if (resident.block_bytes() != version.raw_bytes || parts.size() != version.parts) return false;
  const bool some = std::ranges::any_of(parts, [](const store::PartInfo& part) { return !part.is_there(); });
  if (some) return asked.count > 0 && same_parts(resident, version, asked, scratch);
  if (parts.back().offset + parts.back().stored_bytes != version.stored_bytes) return false;
  for (size_t i = 0; i < version.coded.size(); ++i) {
    if (!same_record(parts[i], version.coded[i])) return false;
  }
  scratch.resize(version.stored_bytes);
  version.fill(scratch);
  size_t at = 0;
  bool equal = true;
  resident.slot().for_range(0, version.stored_bytes, [&](Bytes piece) {
    equal = equal && std::memcmp(piece.data(), scratch.data() + at, piece.size()) == 0;
    at += piece.size();
  });
  return equal;
}

}  // namespace halfstep::sim
