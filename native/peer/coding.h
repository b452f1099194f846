// coding.h — how the parts of a layout's blocks are coded, by what its fields say (docs/compression.md, *In a layout*).
// What is not understood is raw, or nobody says it: another client's codec, or a field that is no list of parts.
// Thread: immutable once read.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "compress/codec.h"
#include "wire/layout.h"

namespace halfstep::peer {

struct PartCoding {
  const compress::Codec* codec = nullptr;  // null: raw
  compress::UnitShape shape;
};

class LayoutCoding {
 public:
  // Raw alone, or a codec that is not among `codecs`: coded() is false.
  explicit LayoutCoding(const wire::Layout& layout, uint64_t codecs = compress::kCodecs);

  bool coded() const noexcept { return codec_ != nullptr; }
  // Of parts that a lossy codec refuses; null: they are raw.
  const compress::Codec* exact() const noexcept { return exact_; }
  bool lossy() const noexcept { return codec_->lossy; }
  // Of a block that so many blocks of its sequence precede. Variants but the first are siblings of it, and exact.
  PartCoding part(wire::Component component, uint32_t part, uint32_t depth) const noexcept;
  // Whether this part may be of a lossy codec: it is the layout's, and there is a step for the part.
  bool allows(uint8_t lossy_codec, wire::Component component, uint32_t part) const noexcept;

 private:
  // Of parts in turn; empty: nobody says. Where layers differ and cells cut them, the parts of all layers: then a cell's
  // begin behind those of the layers before.
  struct Group {
    std::vector<PartCoding> parts;
    uint32_t parts_of_cell = 0;
    uint32_t head_cells = 0;  // 0: all cells are alike
  };
  const PartCoding* find(wire::Component component, uint32_t part) const noexcept;

  const compress::Codec* codec_ = nullptr;
  const compress::Codec* exact_ = nullptr;
  uint32_t exact_blocks_ = 0;  // the first ones of a sequence
  std::vector<Group> groups_;
};

}  // namespace halfstep::peer
