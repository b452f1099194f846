#include "wire/layout.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "wire/message.h"
#include "wire/utf8.h"

namespace halfstep::wire {
namespace {

// memcpy(), called. Where g++ 12 knows the most that there can be, it makes `rep movs` of it, and that alone takes three times
// as long as the hash of a short name, which is made of every block that moves.
[[gnu::noinline]] void copy_bytes(std::byte* to, ConstBytes from) noexcept {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

bool usable(const GroupShape& shape) noexcept { return shape.size_count >= 1 && shape.size_count <= kPartSizesMax; }

// Bytes of the first `count` sizes; at most four u32, so 34 bits.
uint64_t prefix_bytes(const GroupShape& shape, uint32_t count) noexcept {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; ++i) bytes += shape.part_bytes[i];
  return bytes;
}

Status take_text(Reader& reader, size_t bytes_min, std::string* out) {
  const auto bytes = reader.take<uint16_t>();
  const ConstBytes text = reader.take_bytes(bytes);
  if (reader.failed() || text.size() < bytes_min || !valid_utf8(text)) return Code::Invalid;
  out->assign(as_text(text));
  return {};
}

Status take_shape(Reader& reader, GroupShape* out) noexcept {
  GroupShape shape;
  shape.part_count = reader.take<uint16_t>();
  shape.size_count = reader.take<uint16_t>();
  if (reader.failed() || !usable(shape) || shape.part_count > kPartsMax) return Code::Invalid;
  for (uint32_t i = 0; i < shape.size_count; ++i) {
    shape.part_bytes[i] = reader.take<uint32_t>();
    if (shape.part_bytes[i] == 0 || shape.part_bytes[i] > kBlockBytesMax) return Code::Invalid;
  }
  if (reader.failed() || shape.offset_of(shape.part_count) > kBlockBytesMax) return Code::Invalid;
  *out = shape;
  return {};
}

// Of a list of parts, "2*(bf16/128/0.03,raw)": the largest number behind a second slash.
uint32_t coarsest_step_of(std::string_view list) noexcept {
  constexpr double kUnits = 10000;
  constexpr double kRounding = 1e-6;  // 0.07 times 10,000 is a little more than 700
  uint32_t coarsest = 0;
  while (!list.empty()) {
    const size_t end = std::min(list.find_first_of(",()*"), list.size());
    const std::string_view word = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    const size_t first = word.find('/');
    const size_t second = first == std::string_view::npos ? first : word.find('/', first + 1);
    if (second == std::string_view::npos) continue;
    double step = 0;
    const char* const word_end = word.data() + word.size();
    const auto [stopped, error] = std::from_chars(word.data() + second + 1, word_end, step);
    const bool sane = error == std::errc() && stopped == word_end && step >= 0 && step * kUnits < UINT32_MAX;
    coarsest = std::max(coarsest, sane ? static_cast<uint32_t>(std::ceil(step * kUnits - kRounding)) : UINT32_MAX);
  }
  return coarsest;
}

}  // namespace

uint64_t GroupShape::offset_of(uint32_t part) const noexcept {
  if (!usable(*this)) return 0;
  return uint64_t{part / size_count} * prefix_bytes(*this, size_count) + prefix_bytes(*this, part % size_count);
}

uint32_t GroupShape::parts_of(uint64_t block_bytes) const noexcept {
  if (!usable(*this) || block_bytes == 0) return 0;
  if (part_count != 0) {
    return part_count <= kPartsMax && offset_of(part_count) == block_bytes ? part_count : 0;
  }
  // Refuses a size of zero inside a cycle too: a part would be empty, and no part ever is.
  const auto sizes_end = part_bytes.begin() + size_count;
  if (std::find(part_bytes.begin(), sizes_end, 0U) != sizes_end) return 0;
  const uint64_t cycle_bytes = prefix_bytes(*this, size_count);
  const uint64_t cycles = block_bytes / cycle_bytes;
  if (cycles > kPartsMax) return 0;
  uint64_t rest = block_bytes % cycle_bytes;
  auto parts = static_cast<uint32_t>(cycles * size_count);
  for (uint32_t i = 0; rest > 0; ++i, ++parts) rest -= std::min<uint64_t>(rest, part_bytes[i]);
  return parts <= kPartsMax ? parts : 0;
}

uint32_t GroupShape::bytes_of(uint32_t part, uint64_t block_bytes) const noexcept {
  if (!usable(*this)) return 0;
  const uint32_t whole = part_bytes[part % size_count];
  const uint64_t from = offset_of(part);
  if (from >= block_bytes) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(whole, block_bytes - from));
}

Status Layout::parse(ConstBytes canonical, Layout* out) {
  if (canonical.size() > kLayoutBytesMax) return Code::Invalid;
  Reader reader(canonical);
  Layout layout;
  if (reader.take<uint16_t>() != kLayoutVersion) return Code::Invalid;

  const auto field_count = reader.take<uint16_t>();
  for (uint32_t i = 0; i < field_count; ++i) {
    std::pair<std::string, std::string> field;
    if (Status s = take_text(reader, 1, &field.first); !s.ok()) return s;
    if (Status s = take_text(reader, 0, &field.second); !s.ok()) return s;
    // std::string orders by unsigned bytes, which is the canonical order.
    if (i > 0 && layout.fields_.back().first >= field.first) return Code::Invalid;
    constexpr std::string_view kCodingOfGroup = "codec.";
    if (field.first.starts_with(kCodingOfGroup)) {
      layout.coarsest_step_ = std::max(layout.coarsest_step_, coarsest_step_of(field.second));
    }
    layout.fields_.push_back(std::move(field));
  }

  const auto group_count = reader.take<uint16_t>();
  if (reader.failed() || group_count == 0 || group_count > kGroupsMax) return Code::Invalid;
  for (uint32_t i = 0; i < group_count; ++i) {
    GroupShape shape;
    if (Status s = take_shape(reader, &shape); !s.ok()) return s;
    layout.groups_.push_back(shape);
  }
  if (!reader.finished()) return Code::Invalid;

  layout.canonical_.assign(canonical.begin(), canonical.end());
  const Sha256 digest = sha256(canonical);
  std::copy_n(digest.begin(), layout.id_.size(), layout.id_.begin());
  *out = std::move(layout);
  return {};
}

Status Layout::make(std::vector<std::pair<std::string, std::string>> fields, std::vector<GroupShape> groups, Layout* out) {
  if (fields.size() > UINT16_MAX || groups.size() > kGroupsMax) return Code::Invalid;
  std::sort(fields.begin(), fields.end());

  std::vector<std::byte> canonical;
  Writer writer(canonical);
  writer.put(kLayoutVersion);
  writer.put(static_cast<uint16_t>(fields.size()));
  for (const auto& [name, value] : fields) {
    for (const std::string* text : {&name, &value}) {
      if (text->size() > kLayoutBytesMax) return Code::Invalid;
      writer.put(static_cast<uint16_t>(text->size()));
      writer.put_bytes(as_bytes(*text));
    }
  }
  writer.put(static_cast<uint16_t>(groups.size()));
  for (const GroupShape& shape : groups) {
    if (!usable(shape)) return Code::Invalid;
    writer.put(shape.part_count);
    writer.put(shape.size_count);
    for (uint32_t i = 0; i < shape.size_count; ++i) writer.put(shape.part_bytes[i]);
  }
  return parse(canonical, out);  // the one place where the rules stand
}

uint32_t name_number(const LayoutId& layout, Component component, ConstBytes engine_key) noexcept {
  HALFSTEP_CHECK(engine_key.size() <= kEngineKeyBytesMax, engine_key.size());
  std::array<std::byte, sizeof(LayoutId) + sizeof(uint32_t) + kEngineKeyBytesMax> name;
  std::memcpy(name.data(), layout.data(), sizeof(LayoutId));
  store_le(name.data() + sizeof(LayoutId), component.value);
  const size_t key_bytes = std::min<size_t>(engine_key.size(), kEngineKeyBytesMax);
  copy_bytes(name.data() + sizeof(LayoutId) + sizeof(uint32_t), engine_key.first(key_bytes));
  const size_t name_bytes = sizeof(LayoutId) + sizeof(uint32_t) + key_bytes;
  return static_cast<uint32_t>(xxh3_64(ConstBytes(name).first(name_bytes)));
}

uint32_t route(ConstBytes engine_key, uint32_t shards) noexcept {
  const uint64_t high = xxh3_64(engine_key, kRouteSeed) >> 32;
  return static_cast<uint32_t>((high * shards) >> 32);
}

}  // namespace halfstep::wire
