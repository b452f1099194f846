#include "wire/message.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "base/crc.h"

namespace halfstep::wire {
namespace {

constexpr size_t kTlvHeadBytes = 8;
constexpr size_t kTlvAlign = 8;
constexpr uint32_t kHeaderCrcBytes = offsetof(Header, header_crc);

bool lengths_allowed(const Header& header) noexcept {
  if (header.opcode == static_cast<uint8_t>(Opcode::Chunk)) {
    return header.body_bytes <= kChunkBodyBytesMax && header.payload_bytes <= kChunkBytesMax;
  }
  const uint32_t body_bytes_max = header.opcode == static_cast<uint8_t>(Opcode::Placed) ? kChunkBodyBytesMax : kBodyBytesMax;
  return header.body_bytes <= body_bytes_max && header.payload_bytes == 0;
}

}  // namespace

void seal_header(Header& header, ConstBytes body) noexcept {
  header.body_bytes = static_cast<uint32_t>(body.size());
  header.body_crc = crc32c(body);
  header.header_crc = crc32c(object_bytes(header).first(kHeaderCrcBytes));
}

Status parse_header(ConstBytes from, Header* out) noexcept {
  if (from.size() < kHeaderBytes) return Code::Invalid;
  const auto header = load_le<Header>(from.data());
  if (header.magic != kMagic) return Code::Invalid;
  if (header.header_crc != crc32c(from.first(kHeaderCrcBytes))) return Code::Invalid;
  if (header.flags != 0 || header.reserved != 0) return Code::Invalid;
  *out = header;
  return lengths_allowed(header) ? Status() : Status(Code::TooLarge);
}

Status check_body(const Header& header, ConstBytes body) noexcept {
  if (body.size() != header.body_bytes) return Code::Invalid;
  return crc32c(body) == header.body_crc ? Status() : Status(Code::Corrupt);
}

bool TlvReader::next(TlvView* out) noexcept {
  if (!status_.ok() || reader_.left() == 0) return false;
  const auto kind = reader_.take<uint16_t>();
  const auto reserved = reader_.take<uint16_t>();
  const auto bytes = reader_.take<uint32_t>();
  const ConstBytes value = reader_.take_bytes(bytes);
  const ConstBytes padding = reader_.take_bytes((kTlvAlign - bytes % kTlvAlign) % kTlvAlign);
  const bool padded = std::all_of(padding.begin(), padding.end(), [](std::byte byte) { return byte == std::byte{0}; });
  if (reader_.failed() || reserved != 0 || !padded) {
    status_ = Code::Invalid;
    return false;
  }
  *out = {kind, value};
  return true;
}

void FrameWriter::begin(Opcode opcode, uint64_t request_id) {
  frame_at_ = out_.size();
  Header header;
  header.opcode = static_cast<uint8_t>(opcode);
  header.request_id = request_id;
  writer_.put(header);
}

void FrameWriter::open_tlv(Tlv kind) {
  tlv_at_ = out_.size();
  writer_.put(kind);
  writer_.put(uint16_t{0});
  writer_.put(uint32_t{0});  // patched by close_tlv
}

void FrameWriter::close_tlv() {
  const size_t bytes = out_.size() - tlv_at_ - kTlvHeadBytes;
  writer_.patch(tlv_at_ + sizeof(Tlv) + sizeof(uint16_t), static_cast<uint32_t>(bytes));
  // Relative to the TLV, so that a frame may start anywhere in `out`.
  out_.resize(out_.size() + (kTlvAlign - bytes % kTlvAlign) % kTlvAlign);
}

void FrameWriter::finish(uint32_t payload_bytes) {
  auto header = load_le<Header>(out_.data() + frame_at_);
  header.payload_bytes = payload_bytes;
  seal_header(header, ConstBytes(out_).subspan(frame_at_ + kHeaderBytes));
  HALFSTEP_DCHECK(lengths_allowed(header));
  writer_.patch(frame_at_, header);
}

}  // namespace halfstep::wire
