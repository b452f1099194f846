// names.h — scopes and what they stand for, looked up per block; the names themselves are in the store header (header.h).
// Invariants: a scope is alive if and only if the header on media lists it; layouts stay at their address while alive.
// Thread: the shard's.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "store/header.h"

namespace halfstep::store {

class Names {
 public:
  // Takes over what the header says now; call after every change of it. True when a scope is not alive any more.
  bool refresh(const HeaderState& header);

  bool alive(uint32_t scope) const noexcept { return scope < scopes_.size() && scopes_[scope].layout != nullptr; }
  const wire::Layout* layout(uint32_t scope) const noexcept {
    return scope < scopes_.size() ? scopes_[scope].layout.get() : nullptr;
  }
  // Null when the layout has no such group.
  const wire::GroupShape* group(uint32_t scope, wire::Component component) const noexcept {
    const wire::Layout* found = layout(scope);
    return found != nullptr && component.group() < found->groups().size() ? &found->groups()[component.group()] : nullptr;
  }
  uint32_t namespace_of(uint32_t scope) const noexcept { return alive(scope) ? scopes_[scope].namespace_number : 0; }
  uint32_t default_ttl_s(uint32_t scope) const noexcept;
  // Whether `bytes` more would break the quota of the scope's namespace.
  bool over_quota(uint32_t scope, uint64_t bytes) const noexcept;
  void add_live_bytes(uint32_t scope, int64_t bytes) noexcept;

 private:
  struct Scope {
    std::shared_ptr<const wire::Layout> layout;
    uint32_t namespace_number = 0;
    uint64_t live_bytes = 0;
  };
  struct Space {
    uint64_t quota_bytes = 0;
    uint64_t live_bytes = 0;
    uint32_t default_ttl_s = 0;
  };
  std::vector<Scope> scopes_;  // by scope number
  std::vector<Space> spaces_;  // by namespace number
};

}  // namespace halfstep::store
