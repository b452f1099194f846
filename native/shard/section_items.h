// section_items.h — the items of a request's sections with their index keys, some at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "store/store.h"
#include "wire/records.h"

namespace halfstep::shard {

// How many index keys are derived, and how many blocks looked for, side by side.
inline constexpr uint32_t kItemsAtOnce = 64;

// Calls visit(names, index keys) for the items of a section, kItemsAtOnce of them at a time and in order, until it says false:
// one after the other, the hash of a key costs more than its lookup.
template <typename Visit>
void for_items(const store::Store& store, uint32_t scope, const wire::SectionView& section, Visit&& visit) {
  std::array<store::BlockName, kItemsAtOnce> names;
  std::array<store::IndexKey, kItemsAtOnce> index_keys;
  size_t gathered = 0;
  const auto show = [&] {
    const std::span<const store::BlockName> some(names.data(), gathered);
    store.keys_of(some, std::span(index_keys).first(gathered));
    gathered = 0;
    return visit(some, std::span<const store::IndexKey>(index_keys.data(), some.size()));
  };
  wire::KeyCursor keys(section.keys);
  ConstBytes key;
  while (keys.next(&key)) {
    for (uint32_t c = 0; c < section.head.component_count; ++c) {
      names[gathered++] = {scope, {section.head.first_component + c}, key};
      if (gathered == kItemsAtOnce && !show()) return;
    }
  }
  if (gathered != 0) (void)show();
}

// The same over all sections of a request, which whoever has it may leave and come back to: `view`, and the body that it refers
// to, stay as they are meanwhile.
class ItemWalk {
 public:
  void begin(const wire::RequestView& view) {
    section_ = cell_ = 0;
    key_ = {};
    keys_ = wire::KeyCursor(view.section_count != 0 ? view.sections[0].keys : ConstBytes());
  }
  // Gathers the next kItemsAtOnce, or fewer where a section ends, as names() and index_keys(). False: none is left.
  // scope_of(section) -> the scope of its layout.
  template <typename ScopeOf>
  bool next(const store::Store& store, const wire::RequestView& view, ScopeOf&& scope_of) {
    gathered_ = 0;
    for (; section_ < view.section_count; ++section_) {
      if (gathered_ == 0) taken_section_ = section_;
      const wire::SectionHead& head = view.sections[section_].head;
      while (gathered_ < kItemsAtOnce && (!key_.empty() || keys_.next(&key_))) {
        names_[gathered_++] = {scope_of(section_), {head.first_component + cell_}, key_};
        if (++cell_ < head.component_count) continue;
        cell_ = 0;
        key_ = {};
      }
      if (gathered_ != 0) break;
      if (section_ + 1 < view.section_count) keys_ = wire::KeyCursor(view.sections[section_ + 1].keys);
    }
    if (gathered_ != 0) store.keys_of(names(), std::span(index_keys_).first(gathered_));
    return gathered_ != 0;
  }
  uint32_t section() const noexcept { return taken_section_; }
  std::span<const store::BlockName> names() const noexcept { return {names_.data(), gathered_}; }
  std::span<const store::IndexKey> index_keys() const noexcept { return {index_keys_.data(), gathered_}; }

 private:
  uint32_t section_ = 0;
  uint32_t cell_ = 0;
  uint32_t taken_section_ = 0;
  ConstBytes key_;  // empty: of the next key
  wire::KeyCursor keys_{ConstBytes()};
  size_t gathered_ = 0;
  std::array<store::BlockName, kItemsAtOnce> names_;
  std::array<store::IndexKey, kItemsAtOnce> index_keys_;
};

}  // namespace halfstep::shard
