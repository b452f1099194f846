// explain.h — what the store knows of one engine key in one namespace: of its blocks that are there, where they are and what
// keeps them; of those that went, when and why, as far as the events reach.
// A key alone does not find its blocks: their components and layouts are a part of their names. So whoever asks says which
// components to look up, in every layout of the namespace; beside them those are found that an event tells of.
// Invariants: what belongs to another namespace is never told; the work of one question is bounded (kLookupsMax, and one walk
// over the remembered events); an answer that is not whole says so.
// Thread: the shard's.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "store/account/events.h"

namespace halfstep::store {

struct ComponentRange {
  wire::Component first;
  uint32_t count = 1;  // consecutive numbers
};

struct KeyQuestion {
  // Lookups in all layouts together, and blocks told of.
  static constexpr uint32_t kLookupsMax = 16'384;
  static constexpr uint32_t kBlocksMax = 256;
  static constexpr uint32_t kEventsPerBlockMax = 8;
  static constexpr uint32_t kHoldsPerBlockMax = 32;  // a block may have as many as there are owners

  std::string_view name_space;
  ConstBytes engine_key;
  std::span<const ComponentRange> components;
  bool every_group = false;  // the ranges name cells and variants of group 0, and mean those of every group
  // Told of each name that is looked up, whether there is a block of it or not.
  std::function<void(const IndexKey& key, const wire::LayoutId& layout, wire::Component component)> looked_up;
};

// A block of the key: one that is there, or one that an event tells of.
struct ExplainedBlock {
  struct Hold {
    bool persistent = false;
    bool endless = false;
    uint64_t ends_in_ms = 0;
  };

  wire::LayoutId layout{};
  wire::Component component;
  uint32_t scope = 0;
  bool scope_retired = false;
  bool there = false;
  // Of one that is there:
  bool in_memory = false;
  bool on_flash = false;  // in a frame, which may still be on its way
  bool on_media = false;  // covered by a flush
  bool sealed = false;    // its segment is
  uint32_t segment = 0;
  uint32_t page = 0;
  uint8_t stream = 0;
  uint32_t block_bytes = 0;
  uint32_t extent_bytes = 0;
  uint64_t codecs = 0;       // bit c: a part has codec c; 0: all are raw
  bool codecs_known = true;  // false: its scope has more kinds of blocks than are told apart
  uint64_t created_s = 0;    // 0: nothing in memory says it
  uint64_t expiry_s = 0;     // 0 = never
  uint8_t touch_class = 0;
  uint8_t hint = 0;                 // hint.h, as it was put; a copy of what was used has none
  double touch_age_capacities = 0;  // since the last touch, or since it was written
  std::vector<Hold> holds;

  std::vector<Event> events;  // about it, the newest kEventsPerBlockMax, oldest first
};

struct Explanation {
  std::vector<ExplainedBlock> blocks;
  bool whole = true;  // false: there was more to look up, or to tell, than the bounds allow
  uint32_t lookups = 0;
  uint64_t now_s = 0;
  // How far memory reaches: events since this number and time are all known; of those before only their count is.
  uint64_t oldest_event = 0;
  uint64_t oldest_event_s = 0;
  uint64_t newest_event = 0;
  std::array<uint64_t, kEventReasons> forgotten{};
  uint64_t unnamed = 0;  // blocks of any key that went nobody knows which, as far as the events reach; the last of them:
  uint64_t unnamed_event = 0;
  uint64_t unnamed_s = 0;
  std::vector<RetiredScope> cleared;  // of this namespace
};

}  // namespace halfstep::store
