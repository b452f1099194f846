#include "store/names.h"

#include <algorithm>

namespace halfstep::store {
namespace {

// What a sweep frees at least, as a share of the quota: puts come in batches, and a sweep for each block would find less and
// less that is old.
constexpr uint64_t kSweepShare = 16;

}  // namespace

bool Names::refresh(const HeaderState& header) {
  const auto alive_count = [this] {
    return std::count_if(scopes_.begin(), scopes_.end(), [](const Scope& scope) { return scope.layout != nullptr; });
  };
  auto retired = alive_count();
  scopes_.resize(header.fixed.next_scope);
  for (const format::ScopeRecord& s : header.scopes) retired -= alive(s.scope) ? 1 : 0;
  for (Scope& scope : scopes_) scope.layout.reset();
  for (const format::ScopeRecord& s : header.scopes) {
    scopes_[s.scope].layout = header.layouts[s.layout];
    scopes_[s.scope].namespace_number = s.namespace_number;
  }
  const std::vector<Space> before = std::move(spaces_);
  spaces_.assign(header.fixed.next_namespace, {});
  for (const StoredNamespace& n : header.namespaces) {
    Space& space = spaces_[n.record.number];
    space.quota_bytes = share_of(n.record.quota_bytes, header.fixed.shards);
    space.pin_budget_bytes = n.record.pin_budget_bytes / std::max(header.fixed.shards, 1U);
    space.default_ttl_s = n.record.default_ttl_s;
    space.sliding = (n.record.flags & format::kNamespaceSliding) != 0;
    // A quota that was lowered, or that a restart finds broken, is swept for; one under way goes on.
    if (space.quota_bytes != 0) space.sweep_to_bytes = space.quota_bytes;
    if (n.record.number < before.size()) {
      space.sweeping = before[n.record.number].sweeping;
      space.sweep_to_bytes = std::min(space.sweep_to_bytes, before[n.record.number].sweep_to_bytes);
    }
  }
  leased_bytes_ = 0;
  for (const Scope& scope : scopes_) {
    if (scope.layout == nullptr) continue;
    Account& account = spaces_[scope.namespace_number].account;
    account.live += scope.account.live;
    account.unwritten += scope.account.unwritten;
    account.pinned += scope.account.pinned;
    account.leased += scope.account.leased;
    leased_bytes_ += scope.account.leased;
  }
  return retired > 0;
}

uint32_t Names::default_ttl_s(uint32_t scope) const noexcept {
  const Space* space = space_of(scope);
  return space != nullptr ? space->default_ttl_s : 0;
}

uint32_t Names::sliding_ttl_s(uint32_t scope) const noexcept {
  const Space* space = space_of(scope);
  return space != nullptr && space->sliding ? space->default_ttl_s : 0;
}

uint64_t Names::quota_bytes(uint32_t scope) const noexcept {
  const Space* space = space_of(scope);
  return space != nullptr ? space->quota_bytes : 0;
}

uint64_t Names::used_bytes(uint32_t namespace_number) const noexcept {
  return namespace_number < spaces_.size() ? spaces_[namespace_number].account.used() : 0;
}

bool Names::over_quota(uint32_t scope, uint64_t bytes) const noexcept {
  const Space* space = space_of(scope);
  return space != nullptr && space->quota_bytes != 0 && space->account.used() + bytes > space->quota_bytes;
}

void Names::want_room(uint32_t scope, uint64_t bytes) noexcept {
  if (!alive(scope)) return;
  Space& space = spaces_[scopes_[scope].namespace_number];
  const uint64_t room = std::min(std::max(bytes, space.quota_bytes / kSweepShare), space.quota_bytes);
  space.sweep_to_bytes = std::min(space.sweep_to_bytes, space.quota_bytes - room);
}

bool Names::any_wants_sweep() const noexcept {
  return std::any_of(spaces_.begin(), spaces_.end(), [](const Space& s) { return s.wants_sweep(); });
}

void Names::begin_sweep() noexcept {
  for (Space& space : spaces_) space.sweeping = space.wants_sweep();
}

bool Names::sweeps(uint32_t scope) const noexcept {
  const Space* space = space_of(scope);
  return space != nullptr && space->sweeping;
}

bool Names::any_sweeps() const noexcept {
  return std::any_of(spaces_.begin(), spaces_.end(), [](const Space& s) { return s.sweeping; });
}

void Names::end_sweep() noexcept {
  for (Space& space : spaces_) space.sweeping = false;
}

uint64_t Names::pinned_bytes(uint32_t namespace_number) const noexcept {
  return namespace_number < spaces_.size() ? spaces_[namespace_number].account.pinned : 0;
}

bool Names::pin_fits(uint32_t scope, uint64_t bytes) const noexcept {
  const Space* space = space_of(scope);
  return space != nullptr && space->account.pinned + bytes <= space->pin_budget_bytes;
}

uint64_t Names::leased_bytes(uint32_t namespace_number) const noexcept {
  return namespace_number < spaces_.size() ? spaces_[namespace_number].account.leased : 0;
}

bool Names::lease_fits(uint32_t scope, uint64_t bytes) const noexcept {
  const Space* space = space_of(scope);
  if (space == nullptr || leased_bytes_ + bytes > leases_max_bytes_) return false;
  const uint64_t after = space->account.leased + bytes;
  if (space->quota_bytes != 0 && after > space->quota_bytes / 2) return false;
  return after <= 2 * (leases_max_bytes_ - leased_bytes_ - bytes);
}

void Names::add(uint32_t scope, int64_t bytes, uint64_t Account::*what) noexcept {
  if (scope >= scopes_.size()) return;
  scopes_[scope].account.*what += static_cast<uint64_t>(bytes);
  if (!alive(scope)) return;
  Space& space = spaces_[scopes_[scope].namespace_number];
  space.account.*what += static_cast<uint64_t>(bytes);
  if (what == &Account::leased) leased_bytes_ += static_cast<uint64_t>(bytes);
  if (bytes >= 0 || space.wants_sweep()) return;
  // What was asked for is there: the next sweep is asked for by whoever is refused then.
  space.sweep_to_bytes = UINT64_MAX;
  space.sweeping = false;
}

}  // namespace halfstep::store
