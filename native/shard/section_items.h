// section_items.h — the items of a section of a request, one by one or with their index keys.
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

}  // namespace halfstep::shard
