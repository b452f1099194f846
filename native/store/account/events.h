// events.h — what came and went: numbered events with engine keys, in a ring of a fixed size, for who follows this store (a
// router's map of what is where) and for who asks later why a block is gone.
// Numbers count from 1 at every start and leave none out, so that a reader who falls behind learns how many it missed; a number
// means something together with the boot id alone. A Stored that follows a Stored of the same name says it again: the block
// was written anew. A Cleared stands for all blocks of its scope: they get no event of their own. What a start found on flash
// has none: whoever follows begins with list(). A move by reclaim is none: the block is there before and after. An Unnamed
// says how many blocks went whose names nobody can tell (teller.h): whoever follows asks list() again.
// The keys' bytes are in a ring of their own, which may forget earlier than the events: an event then has its index key alone.
// Invariants: what is remembered is `newest() - oldest() + 1` events without a hole; nothing is allocated per event.
// Thread: the shard's. Memory: 112 bytes an event that can be remembered, 7 MiB by default, and kRetiredMax scopes.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "base/status.h"
#include "store/format/block.h"
#include "store/format/namespace_info.h"
#include "store/format/requests.h"

namespace halfstep::store {

enum class EventKind : uint8_t { Stored = 1, Removed = 2, Cleared = 3, Unnamed = 4 };

enum class EventReason : uint8_t {
  Put,               // stored
  Deleted,           // removed: by a client's wish
  Expired,           // its time was over
  Evicted,           // not worth keeping when its segment was reclaimed
  Quota,             // its namespace had too much
  Corrupt,           // its bytes failed their check
  Io,                // the device could not read or write it
  LayoutCleared,     // cleared: the layout's blocks, by a client's wish
  NamespaceDeleted,  // cleared: with its namespace
  Unnamed,           // evicted or expired, with a segment whose roll could not be read
};
inline constexpr size_t kEventReasons = static_cast<size_t>(EventReason::Unnamed) + 1;

const char* event_kind_name(EventKind kind) noexcept;
const char* event_reason_name(EventReason reason) noexcept;
EventKind kind_of(EventReason reason) noexcept;

struct Event {
  uint64_t number = 0;
  uint64_t time_s = 0;  // store time
  IndexKey key;         // zero in a Cleared and an Unnamed
  uint64_t parent = 0;  // stored: last 8 bytes of the parent's engine key, where that is known; unnamed: how many blocks
  uint64_t key_at = 0;  // of its engine key among all that were ever noted
  uint32_t scope = 0;
  uint32_t component = 0;
  uint32_t block_bytes = 0;
  EventReason reason = EventReason::Put;
  uint8_t key_bytes = 0;  // 0: never known
  Parent parent_kind = Parent::Unknown;
  uint8_t reserved = 0;

  EventKind kind() const noexcept { return kind_of(reason); }
  uint64_t blocks() const noexcept { return kind() == EventKind::Unnamed ? parent : 1; }
};
static_assert(sizeof(Event) == 64);

// What a block was, for its event.
struct EventOf {
  IndexKey key;
  uint32_t scope = 0;
  uint32_t component = 0;
  uint32_t block_bytes = 0;
  ConstBytes engine_key;  // empty: not in memory any more
  Parent parent_kind = Parent::Unknown;
  uint64_t parent = 0;
};

// A scope that was retired: the names of its blocks mean nothing any more, but somebody may still ask for them.
struct RetiredScope {
  uint64_t number = 0;  // of its event
  uint64_t time_s = 0;
  uint32_t scope = 0;
  uint32_t namespace_number = 0;
  ScopeName name;
  EventReason reason = EventReason::LayoutCleared;
};

class Events {
 public:
  static constexpr uint32_t kKeyBytesPerEvent = 48;
  static constexpr size_t kRetiredMax = 1024;

  explicit Events(uint32_t events_max);
  // False: nothing is remembered, nor asked for.
  bool enabled() const noexcept { return enabled_; }

  void note(EventReason reason, const EventOf& of, uint64_t time_s);
  void note_cleared(RetiredScope scope);
  void note_unnamed(uint64_t blocks, uint64_t time_s);

  uint64_t newest() const noexcept { return newest_; }
  // newest() + 1 when nothing is remembered.
  uint64_t oldest() const noexcept { return newest_ - std::min<uint64_t>(newest_, ring_.size()) + 1; }
  const Event& at(uint64_t number) const noexcept { return ring_[(number - 1) % events_max_]; }
  // Empty: it was never known, or its bytes are forgotten.
  ConstBytes engine_key(const Event& event) const noexcept;

  struct Polled {
    uint64_t last = 0;     // what to ask with next time
    uint64_t lost = 0;     // events between the one asked with and the first visited that nobody can tell of any more
    bool foreign = false;  // the number asked with was not given since this start: visited from the oldest on
  };
  // visit(const Event&, ConstBytes engine_key) for those after `after` (0: from the first on), `limit` at most.
  template <typename Visit>
  Polled poll(uint64_t after, uint32_t limit, Visit&& visit) const {
    Polled polled;
    polled.foreign = after > newest_;
    if (polled.foreign) after = 0;
    const uint64_t first = std::max(after + 1, oldest());
    polled.lost = first - (after + 1);
    const uint64_t end = std::min(newest_ + 1, first + limit);
    for (uint64_t number = first; number < end; ++number) visit(at(number), engine_key(at(number)));
    polled.last = end - 1;
    return polled;
  }

  // Since the start, by reason; and how many of those are not in the ring any more.
  uint64_t counted(EventReason reason) const noexcept { return counted_[static_cast<size_t>(reason)]; }
  uint64_t forgotten(EventReason reason) const noexcept { return forgotten_[static_cast<size_t>(reason)]; }
  const std::deque<RetiredScope>& retired() const noexcept { return retired_; }
  // How many scopes were, since the start, also where nothing is remembered.
  uint64_t cleared() const noexcept { return cleared_; }

 private:
  Event& append(EventReason reason, uint64_t time_s);
  void keep_key(Event& event, ConstBytes engine_key);

  bool enabled_;
  uint32_t events_max_;
  std::vector<Event> ring_;  // room for all from the start; memory is touched as they come
  size_t keys_max_;
  std::unique_ptr<std::byte[]> keys_;  // a ring, too, and as little touched
  uint64_t keys_end_ = 0;              // bytes of all that were ever noted, and of what was skipped so that none wraps
  uint64_t newest_ = 0;
  std::array<uint64_t, kEventReasons> counted_{};
  std::array<uint64_t, kEventReasons> forgotten_{};
  std::deque<RetiredScope> retired_;
  uint64_t cleared_ = 0;
};

}  // namespace halfstep::store
