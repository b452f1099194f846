#include "store/account/events.h"

#include <algorithm>
#include <cstring>

namespace halfstep::store {

const char* event_kind_name(EventKind kind) noexcept {
  switch (kind) {
    case EventKind::Stored: return "stored";
    case EventKind::Removed: return "removed";
    case EventKind::Cleared: return "cleared";
    case EventKind::Unnamed: return "unnamed";
  }
  return "";
}

const char* event_reason_name(EventReason reason) noexcept {
  switch (reason) {
    case EventReason::Put: return "put";
    case EventReason::Deleted: return "deleted";
    case EventReason::Expired: return "expired";
    case EventReason::Evicted: return "evicted";
    case EventReason::Quota: return "quota";
    case EventReason::Corrupt: return "corrupt";
    case EventReason::Io: return "io";
    case EventReason::LayoutCleared: return "layout_cleared";
    case EventReason::NamespaceDeleted: return "namespace_deleted";
    case EventReason::Unnamed: return "unnamed";
  }
  return "";
}

EventKind kind_of(EventReason reason) noexcept {
  if (reason == EventReason::Put) return EventKind::Stored;
  if (reason == EventReason::Unnamed) return EventKind::Unnamed;
  return reason >= EventReason::LayoutCleared ? EventKind::Cleared : EventKind::Removed;
}

Events::Events(uint32_t events_max)
    : enabled_(events_max > 0),
      events_max_(std::max<uint32_t>(events_max, 1)),
      keys_max_(std::max<size_t>(size_t{events_max_} * kKeyBytesPerEvent, 256)),
      keys_(std::make_unique_for_overwrite<std::byte[]>(keys_max_)) {
  ring_.reserve(events_max_);
}

Event& Events::append(EventReason reason, uint64_t time_s) {
  if (newest_ < events_max_) ring_.emplace_back();
  Event& event = ring_[newest_++ % events_max_];
  if (event.number != 0) ++forgotten_[static_cast<size_t>(event.reason)];
  ++counted_[static_cast<size_t>(reason)];
  event = {};
  event.number = newest_;
  event.time_s = time_s;
  event.reason = reason;
  return event;
}

void Events::keep_key(Event& event, ConstBytes engine_key) {
  const size_t at = keys_end_ % keys_max_;
  if (at + engine_key.size() > keys_max_) keys_end_ += keys_max_ - at;
  event.key_at = keys_end_;
  event.key_bytes = static_cast<uint8_t>(engine_key.size());
  if (!engine_key.empty()) std::memcpy(keys_.get() + keys_end_ % keys_max_, engine_key.data(), engine_key.size());
  keys_end_ += engine_key.size();
}

ConstBytes Events::engine_key(const Event& event) const noexcept {
  if (event.key_bytes == 0 || keys_end_ - event.key_at > keys_max_) return {};
  return ConstBytes(keys_.get(), keys_max_).subspan(event.key_at % keys_max_, event.key_bytes);
}

void Events::note(EventReason reason, const EventOf& of, uint64_t time_s) {
  if (!enabled_) return;
  Event& event = append(reason, time_s);
  event.key = of.key;
  event.scope = of.scope;
  event.component = of.component;
  event.block_bytes = of.block_bytes;
  event.parent_kind = of.parent_kind;
  event.parent = of.parent;
  keep_key(event, of.engine_key);
}

void Events::note_unnamed(uint64_t blocks, uint64_t time_s) {
  if (enabled_) append(EventReason::Unnamed, time_s).parent = blocks;
}

void Events::note_cleared(RetiredScope scope) {
  ++cleared_;
  if (!enabled_) return;
  Event& event = append(scope.reason, scope.time_s);
  event.scope = scope.scope;
  scope.number = event.number;
  if (retired_.size() == kRetiredMax) retired_.pop_front();
  retired_.push_back(scope);
}

}  // namespace halfstep::store
