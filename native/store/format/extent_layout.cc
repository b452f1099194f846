#include "store/format/extent_layout.h"

#include <algorithm>

#include "base/check.h"
#include "base/crc.h"

namespace halfstep::store {
namespace {

uint32_t crc_of_parts(std::span<const PartInfo> parts) noexcept {
  uint32_t crc = 0;
  for (const PartInfo& part : parts) crc = crc32c_combine(crc, part.stored_crc, part.stored_bytes);
  return crc;
}

}  // namespace

ExtentShape shape_of(std::span<const PartInfo> parts, uint32_t stored_bytes) noexcept {
  bool plain = stored_bytes % kPageBytes == 0;
  for (const PartInfo& part : parts) plain = plain && part.codec == 0;
  return {static_cast<uint32_t>(parts.size()), stored_bytes, !plain};
}

void cut_parts(const wire::GroupShape& group, uint32_t block_bytes, std::span<PartInfo> parts) noexcept {
  uint64_t offset = 0;
  for (uint32_t p = 0; p < parts.size(); ++p) {
    const uint32_t bytes = group.bytes_of(p, block_bytes);
    parts[p] = {static_cast<uint32_t>(offset), bytes, bytes, 0, 0, 0};
    offset += bytes;
  }
  HALFSTEP_CHECK(offset == block_bytes, offset, block_bytes);
}

uint32_t finish_extent(const Slot& slot, const ExtentShape& shape, std::span<const PartInfo> parts,
                       uint32_t raw_bytes) noexcept {
  uint32_t crc = crc_of_parts(parts);
  if (!shape.trailer) return crc;

  const uint64_t padding = shape.trailer_offset() - shape.stored_bytes;
  slot.for_range(shape.stored_bytes, padding, [](Bytes piece) { std::memset(piece.data(), 0, piece.size()); });
  crc = crc32c_zeros(crc, padding);

  uint64_t at = shape.trailer_offset();
  const auto append = [&](ConstBytes bytes) {
    slot.for_range(at, bytes.size(), [&](Bytes piece) {
      std::memcpy(piece.data(), bytes.data(), piece.size());
      bytes = bytes.subspan(piece.size());
      at += piece.size();
    });
  };
  for (const PartInfo& part : parts) {
    format::TrailerPart record;
    record.codec = part.codec;
    record.stored_bytes = part.stored_bytes;
    record.raw_bytes = part.raw_bytes;
    record.stored_crc = part.stored_crc;
    record.raw_crc = part.raw_crc;
    append(object_bytes(record));
    crc = crc32c(object_bytes(record), crc);
  }
  format::TrailerTail tail;
  tail.parts = shape.parts;
  tail.stored_bytes = shape.stored_bytes;
  tail.raw_bytes = raw_bytes;
  append(object_bytes(tail));
  HALFSTEP_CHECK(at == slot.bytes(), at, slot.bytes());
  return crc32c(object_bytes(tail), crc);
}

Status parse_trailer(ConstBytes bytes, const ExtentShape& shape, uint32_t raw_bytes, PartTable* out) {
  if (shape.parts == 0 || shape.parts > wire::kPartsMax || bytes.size() != format::trailer_bytes(shape.parts)) {
    return Code::Corrupt;
  }
  const auto tail = load_le<format::TrailerTail>(bytes.data() + bytes.size() - sizeof(format::TrailerTail));
  if (tail.magic != format::kTrailerMagic || tail.parts != shape.parts || tail.stored_bytes != shape.stored_bytes ||
      tail.raw_bytes != raw_bytes || tail.flags != 0 || tail.reserved[0] != 0 || tail.reserved[1] != 0 ||
      tail.reserved[2] != 0) {
    return Code::Corrupt;
  }
  out->reset(shape.parts);
  uint64_t stored = 0;
  uint64_t raw = 0;
  for (uint32_t p = 0; p < shape.parts; ++p) {
    const auto record = load_le<format::TrailerPart>(bytes.data() + p * sizeof(format::TrailerPart));
    if (record.stored_bytes > shape.stored_bytes - stored || record.raw_bytes > raw_bytes - raw) return Code::Corrupt;
    if (record.reserved[0] != 0 || record.reserved[1] != 0 || record.reserved[2] != 0 || record.reserved1 != 0) {
      return Code::Corrupt;
    }
    if (record.codec == 0 && record.stored_bytes != record.raw_bytes) return Code::Corrupt;
    (*out)[p] = {
        static_cast<uint32_t>(stored), record.stored_bytes, record.raw_bytes, record.stored_crc, record.raw_crc, record.codec};
    stored += record.stored_bytes;
    raw += record.raw_bytes;
  }
  if (stored != shape.stored_bytes || raw != raw_bytes) return Code::Corrupt;
  return {};
}

Status open_trailer(ConstBytes bytes, uint64_t extent_bytes, uint32_t raw_bytes, uint32_t checksum, ExtentShape* shape,
                    PartTable* out) {
  if (bytes.size() < sizeof(format::TrailerTail)) return Code::Corrupt;
  const auto tail = load_le<format::TrailerTail>(bytes.data() + bytes.size() - sizeof(format::TrailerTail));
  *shape = {tail.parts, tail.stored_bytes, true};
  if (shape->extent_bytes() != extent_bytes) return Code::Corrupt;
  if (const Status status = parse_trailer(bytes, *shape, raw_bytes, out); !status.ok()) return status;
  uint32_t crc = crc32c_zeros(crc_of_parts(*out), shape->trailer_offset() - shape->stored_bytes);
  crc = crc32c(bytes, crc);
  if (crc != checksum) return Code::Corrupt;
  for (PartInfo& part : *out) {
    if (part.codec == 0) part.raw_crc = part.stored_crc;  // whatever its writer said, as ExtentVerifier has it
  }
  return {};
}

Status read_tail(const Slot& slot, uint64_t extent_bytes, ExtentShape* shape, uint32_t* raw_bytes) {
  format::TrailerTail tail;
  std::byte* to = reinterpret_cast<std::byte*>(&tail);
  slot.for_range(extent_bytes - sizeof(tail), sizeof(tail), [&](Bytes piece) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  });
  if (tail.magic != format::kTrailerMagic || tail.parts == 0 || tail.parts > wire::kPartsMax || tail.raw_bytes == 0) {
    return Code::Corrupt;
  }
  *shape = {tail.parts, tail.stored_bytes, true};
  *raw_bytes = tail.raw_bytes;
  return tail.stored_bytes < extent_bytes && shape->extent_bytes() == extent_bytes ? Status() : Status(Code::Corrupt);
}

void ExtentVerifier::begin(const ExtentShape& shape, PartTable* parts) noexcept {
  shape_ = shape;
  parts_ = parts;
  at_ = 0;
  part_ = 0;
  part_crc_ = 0;
  whole_ = 0;
}

void ExtentVerifier::feed(ConstBytes bytes) noexcept {
  HALFSTEP_CHECK(at_ + bytes.size() <= shape_.extent_bytes(), at_ + bytes.size(), shape_.extent_bytes());
  while (!bytes.empty()) {
    if (part_ == parts_->size()) {  // padding and trailer
      whole_ = crc32c(bytes, whole_);
      at_ += bytes.size();
      return;
    }
    PartInfo& part = (*parts_)[part_];
    const uint64_t left = uint64_t{part.offset} + part.stored_bytes - at_;
    const ConstBytes now = bytes.first(std::min<uint64_t>(left, bytes.size()));
    part_crc_ = crc32c(now, part_crc_);
    at_ += now.size();
    bytes = bytes.subspan(now.size());
    if (now.size() == left) {
      part.stored_crc = part_crc_;
      if (part.codec == 0) part.raw_crc = part_crc_;
      whole_ = crc32c_combine(whole_, part_crc_, part.stored_bytes);
      part_crc_ = 0;
      ++part_;
    }
  }
}

Status verify_extent(const Slot& slot, const ExtentShape& shape, const wire::GroupShape* group, uint32_t raw_bytes,
                     uint32_t checksum, PartTable* parts) {
  std::vector<uint32_t> said;
  if (shape.trailer) {
    std::vector<std::byte> tail;
    tail.reserve(format::trailer_bytes(shape.parts));
    slot.for_range(shape.trailer_offset(), format::trailer_bytes(shape.parts),
                   [&](Bytes piece) { tail.insert(tail.end(), piece.begin(), piece.end()); });
    if (const Status status = parse_trailer(tail, shape, raw_bytes, parts); !status.ok()) return status;
    for (const PartInfo& part : *parts) said.push_back(part.stored_crc);
  } else {
    if (group == nullptr || group->parts_of(raw_bytes) != shape.parts) return Code::Corrupt;
    parts->reset(shape.parts);
    cut_parts(*group, raw_bytes, *parts);
  }
  ExtentVerifier verifier;
  verifier.begin(shape, parts);
  slot.for_range(0, shape.extent_bytes(), [&](Bytes piece) { verifier.feed(piece); });
  if (verifier.checksum() != checksum) return Code::Corrupt;
  for (size_t p = 0; p < said.size(); ++p) {
    if ((*parts)[p].stored_crc != said[p]) return Code::Corrupt;
  }
  return {};
}

}  // namespace halfstep::store
