// block_uses.h — what a use of a block changes: its place in the order of eviction, in memory and in the index, and its end, if
// that slides. What one request does with a block, its get, its touches and its repeated offers, is one use of it: memory
// counts the uses of so long a time as one. Thread: the shard's.
#pragma once

#include <algorithm>

#include "base/clock.h"
#include "store/catalog/catalog.h"
#include "store/catalog/names.h"
#include "store/format/store_time.h"
#include "store/memory/memory.h"

namespace halfstep::store {

inline constexpr uint64_t kMomentUs = 1'000'000;

class BlockUses {
 public:
  BlockUses(Catalog& catalog, Memory& memory, const Names& names, const Clock& clock, StoreTime& store_time) noexcept
      : catalog_(catalog), memory_(memory), names_(names), clock_(clock), store_time_(store_time) {}

  // Before the uses of a request.
  void note_moment() noexcept {
    const uint64_t now_us = clock_.now_us();
    if (now_us < moment_ends_us_) return;
    moment_ends_us_ = now_us + kMomentUs;
    memory_.begin_moment();
  }
  Moment moment() noexcept { return {true, catalog_.clock().now(), store_time_.now_s()}; }

  void touch(const IndexKey& key) { touch(key, memory_.find(key), moment()); }
  // `extent`: what memory has of the key.
  void touch(const IndexKey& key, Extent* extent, const Moment& at) {
    if (extent != nullptr) {
      memory_.touch(*extent);
      if (at.log_time < extent->counts_from) return;
    }
    const Used used = catalog_.touch(key, at.log_time);
    if (used == Used::There) {
      if (extent != nullptr && extent->state == ExtentState::Clean) extent->counts_from = at.log_time + 1;
      return;
    }
    if (used == Used::Absent && (extent == nullptr || extent->state != ExtentState::Dirty)) return;
    if (used == Used::Slides) {
      const uint32_t end_s = catalog_.slide(key, at.store_s);
      if (extent != nullptr && extent->state != ExtentState::Filling) extent->entry.expiry_s = end_s;
      return;
    }
    extent->touched = true;
    if ((extent->entry.flags & format::kEntrySliding) != 0) slide_unwritten(extent->entry, at.store_s);
  }

 private:
  // No frame says it yet: its frame will.
  void slide_unwritten(format::Entry& entry, uint64_t used_s) noexcept {
    const uint64_t ttl_s = names_.sliding_ttl_s(entry.scope);
    const uint64_t end_s = std::min<uint64_t>(used_s + ttl_s, UINT32_MAX);
    if (ttl_s != 0) entry.expiry_s = std::max(entry.expiry_s, static_cast<uint32_t>(end_s));
  }

  Catalog& catalog_;
  Memory& memory_;
  const Names& names_;
  const Clock& clock_;
  StoreTime& store_time_;
  uint64_t moment_ends_us_ = 0;
};

}  // namespace halfstep::store
