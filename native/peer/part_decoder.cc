#include "peer/part_decoder.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/crc.h"
#include "compress/codec.h"

namespace halfstep::peer {

Status PartDecoder::decode(const wire::PartRecord& record, ConstBytes stored, const Section& section, uint32_t item,
                           uint32_t part, uint64_t part_at) {
  try {
    return decode_into(record, stored, section, item, part, part_at);
  } catch (const std::bad_alloc&) {
    return Code::NoSpace;
  }
}

Status PartDecoder::decode(const wire::PartRecord& record, ConstBytes stored, Bytes out) {
  const compress::Codec* codec = compress::find_codec(uint32_t{record.codec});
  if (codec == nullptr) return Code::Corrupt;
  if (Status s = codec->decode(stored, scratch_, out); !s.ok()) return s;
  return crc32c(out) == record.raw_crc ? Status() : Status(Code::Corrupt);
}

float PartDecoder::error_bound_of(const wire::PartRecord& record, ConstBytes stored) noexcept {
  const compress::Codec* codec = compress::find_codec(uint32_t{record.codec});
  if (codec == nullptr || !codec->lossy) return 0;
  compress::UnitFacts facts;
  return codec->inspect(stored, &facts).ok() ? facts.step / 2 : 0;
}

Status PartDecoder::decode_into(const wire::PartRecord& record, ConstBytes stored, const Section& section, uint32_t item,
                                uint32_t part, uint64_t part_at) {
  Bytes whole;
  section.target.for_range(item, part, part_at, 0, record.raw_bytes, [&](Bytes piece) {
    if (piece.size() == record.raw_bytes) whole = piece;
  });
  const bool scattered = whole.empty();
  if (scattered) {
    raw_.resize(std::max<size_t>(raw_.size(), record.raw_bytes));
    whole = Bytes(raw_).first(record.raw_bytes);
  }
  if (Status s = decode(record, stored, whole); !s.ok()) return s;
  if (!scattered) return {};
  size_t at = 0;
  section.target.for_range(item, part, part_at, 0, record.raw_bytes, [&](Bytes piece) {
    std::memcpy(piece.data(), whole.data() + at, piece.size());
    at += piece.size();
  });
  return {};
}

}  // namespace halfstep::peer
