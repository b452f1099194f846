#include "peer/coding.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace halfstep::peer {
namespace {

constexpr std::string_view kField = "codec";
constexpr std::string_view kRawPart = "raw";
constexpr std::string_view kZstdPart = "zstd";
// Of a list, written out: the parts of 25 cells of the most parts. A layout itself ends at 16 KiB.
constexpr size_t kListedMax = size_t{1} << 16;
constexpr uint32_t kNestedMax = 4;

std::string_view value_of(const wire::Layout& layout, std::string_view name) {
  for (const auto& [field, value] : layout.fields()) {
    if (field == name) return value;
  }
  return {};
}

// The text up to the next slash, which it loses.
std::string_view take_word(std::string_view* text) {
  const size_t slash = text->find('/');
  const std::string_view word = text->substr(0, slash);
  *text = slash == std::string_view::npos ? std::string_view() : text->substr(slash + 1);
  return word;
}

// 0 for what is no number.
template <typename Number>
Number number_of(std::string_view text) {
  Number out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() ? out : 0;
}

// list = item *("," item); item = [count "*"] (part / "(" list ")"); part = "raw", "zstd", "bf16", "bf16/1024" or
// "bf16/1024/0.1".
class ListReader {
 public:
  struct Codecs {
    const compress::Codec* lossy;
    const compress::Codec* exact;
    const compress::Codec* zstd;
  };
  ListReader(std::string_view text, const Codecs& codecs) : text_(text), codecs_(codecs) {}

  // Empty: it is no such list.
  std::vector<PartCoding> read() {
    std::vector<PartCoding> parts;
    if (text_.empty() || !take_list(&parts, 0) || !text_.empty()) parts.clear();
    return parts;
  }

 private:
  bool take(char wanted) {
    if (text_.empty() || text_.front() != wanted) return false;
    text_.remove_prefix(1);
    return true;
  }

  bool take_list(std::vector<PartCoding>* out, uint32_t depth) {
    do {
      if (!take_item(out, depth)) return false;
    } while (take(','));
    return true;
  }

  bool take_item(std::vector<PartCoding>* out, uint32_t depth) {
    size_t count = 1;
    const size_t digits = std::min(text_.find_first_not_of("0123456789"), text_.size());
    if (digits > 0 && digits < text_.size() && text_[digits] == '*') {
      count = number_of<uint32_t>(text_.substr(0, digits));
      text_.remove_prefix(digits + 1);
    }
    const size_t from = out->size();
    if (take('(')) {
      if (depth == kNestedMax || !take_list(out, depth + 1) || !take(')')) return false;
    } else {
      const size_t end = std::min(text_.find_first_of(",()*"), text_.size());
      out->push_back(part_of(text_.substr(0, end)));
      text_.remove_prefix(end);
    }
    const size_t size = out->size() - from;
    if (count == 0 || count > kListedMax || from + size * count > kListedMax) return false;
    out->reserve(from + size * count);
    for (size_t i = size; i < size * count; ++i) out->push_back((*out)[from + i % size]);
    return true;
  }

  PartCoding part_of(std::string_view text) const {
    if (text == kRawPart) return {};
    if (text == kZstdPart) return {codecs_.zstd, {}};
    compress::UnitShape shape{.element = compress::element_of(take_word(&text))};
    shape.row_values = number_of<uint32_t>(take_word(&text));
    shape.step = number_of<float>(text);
    return {codecs_.lossy != nullptr && shape.step > 0 ? codecs_.lossy : codecs_.exact, shape};
  }

  std::string_view text_;
  Codecs codecs_;
};

}  // namespace

LayoutCoding::LayoutCoding(const wire::Layout& layout, uint64_t codecs) {
  const compress::Codec* codec = compress::find_codec(value_of(layout, kField));
  if (codec == nullptr || codec->number == compress::kRaw || (codecs >> codec->number & 1) == 0) return;
  codec_ = codec;
  const auto spoken = [codecs](uint32_t number) {
    return (codecs >> number & 1) != 0 ? compress::find_codec(number) : nullptr;
  };
  exact_ = codec->lossy ? spoken(compress::kBfx) : codec;
  const ListReader::Codecs of_parts{codec->lossy ? codec : nullptr, exact_, spoken(compress::kZstd)};
  const std::string field(kField);
  exact_blocks_ = number_of<uint32_t>(value_of(layout, field + ".exact_blocks"));
  for (size_t g = 0; g < layout.groups().size(); ++g) {
    const std::string name = field + "." + std::to_string(g);
    ListReader reader(value_of(layout, name), of_parts);
    groups_.push_back(
        {reader.read(), layout.groups()[g].part_count, number_of<uint32_t>(value_of(layout, name + ".head_cells"))});
  }
}

const PartCoding* LayoutCoding::find(wire::Component component, uint32_t part) const noexcept {
  const Group& group = groups_[component.group()];
  if (group.parts.empty()) return nullptr;
  uint64_t at = part;
  if (group.head_cells > 0) at += uint64_t{component.cell() / group.head_cells} * group.parts_of_cell;
  return &group.parts[at % group.parts.size()];
}

PartCoding LayoutCoding::part(wire::Component component, uint32_t part, uint32_t depth) const noexcept {
  const PartCoding* found = find(component, part);
  PartCoding coding = found != nullptr ? *found : PartCoding{exact_, {}};
  const bool exact = component.variant() != 0 || depth < exact_blocks_;
  if (exact && coding.codec != nullptr && coding.codec->lossy) coding.codec = exact_;
  return coding;
}

bool LayoutCoding::allows(uint8_t lossy_codec, wire::Component component, uint32_t part) const noexcept {
  if (component.variant() != 0) return false;
  const PartCoding* found = find(component, part);
  return found != nullptr && found->codec != nullptr && found->codec->lossy && found->codec->number == lossy_codec;
}

}  // namespace halfstep::peer
