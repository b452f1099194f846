#include "store/catalog/names.h"

#include <algorithm>

#include "base/check.h"
#include "store/format/options.h"

namespace halfstep::store {
namespace {

// What a sweep frees at least, as a share of the quota: puts come in batches, and a sweep for each block would find less and
// less that is old.
constexpr uint64_t kSweepShare = 16;

}  // namespace

void Names::refresh(const HeaderState& header) {
  scopes_end_ = header.fixed.next_scope;
  pages_.resize(scopes_end_ / kPageScopes + 1);
  for (const uint32_t scope : living_) at(scope)->layout.reset();
  living_.clear();
  for (const format::ScopeRecord& s : header.scopes) {
    auto& page = pages_[s.scope / kPageScopes];
    if (page == nullptr) page = std::make_unique<Page>();
    Scope& scope = *at(s.scope);
    scope.layout = header.layouts[s.layout];
    scope.namespace_number = s.namespace_number;
    living_.push_back(s.scope);
  }
  const std::vector<Space> before = std::move(spaces_);
  spaces_.assign(header.fixed.next_namespace, {});
  for (const StoredNamespace& n : header.namespaces) {
    Space& space = spaces_[n.record.number];
    space.quota_bytes = share_of(n.record.quota_bytes, header.fixed.shards);
    space.pin_budget_bytes = n.record.pin_budget_bytes / std::max(header.fixed.shards, 1U);
    space.default_ttl_s = n.record.default_ttl_s;
    space.step_limit = n.record.flags >> format::kNamespaceStepLimitShift;
    space.sliding = (n.record.flags & format::kNamespaceSliding) != 0;
    // A quota that was lowered, or that a restart finds broken, is swept for; one under way goes on.
    if (space.quota_bytes != 0) space.sweep_to_bytes = space.quota_bytes;
    if (n.record.number < before.size()) {
      space.sweeping = before[n.record.number].sweeping;
      space.sweep_to_bytes = std::min(space.sweep_to_bytes, before[n.record.number].sweep_to_bytes);
    }
  }
  leased_bytes_ = 0;
  for (const uint32_t number : living_) {
    const Scope& scope = *at(number);
    Account& account = spaces_[scope.namespace_number].account;
    account.live += scope.account.live;
    account.unwritten += scope.account.unwritten;
    account.pinned += scope.account.pinned;
    account.leased += scope.account.leased;
    leased_bytes_ += scope.account.leased;
  }
  const auto over = [](const Scope& scope) { return scope.layout == nullptr && scope.account.empty(); };
  for (auto& page : pages_) {
    if (page != nullptr && std::all_of(page->begin(), page->end(), over)) page.reset();
  }
}

uint32_t Names::default_ttl_s(uint32_t scope) const noexcept {
  const Space* space = space_of(scope);
  return space != nullptr ? space->default_ttl_s : 0;
}

uint32_t Names::sliding_ttl_s(uint32_t scope) const noexcept {
  const Space* space = space_of(scope);
  return space != nullptr && space->sliding ? space->default_ttl_s : 0;
}

bool Names::lossy_fits(uint32_t scope) const noexcept {
  const Space* space = space_of(scope);
  if (space == nullptr || space->step_limit == 0) return true;
  const uint32_t step = at(scope)->layout->coarsest_step();
  return step != 0 && step <= space->step_limit;
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
  Space& space = spaces_[at(scope)->namespace_number];
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
  Scope* known = at(scope);
  if (known == nullptr) return;
  const bool had_blocks = known->account.used() != 0;
  known->account.*what += static_cast<uint64_t>(bytes);
  const bool has_blocks = known->account.used() != 0;
  known->used = known->used || has_blocks;
  if (use_ != nullptr && has_blocks != had_blocks) has_blocks ? use_->enter(scope) : use_->leave(scope);
  if (known->layout == nullptr) return;
  Space& space = spaces_[known->namespace_number];
  space.account.*what += static_cast<uint64_t>(bytes);
  if (what == &Account::leased) leased_bytes_ += static_cast<uint64_t>(bytes);
  if (bytes >= 0 || space.wants_sweep()) return;
  // What was asked for is there: the next sweep is asked for by whoever is refused then.
  space.sweep_to_bytes = UINT64_MAX;
  space.sweeping = false;
}

void Names::check_invariants(const std::vector<Account>& accounts) const {
  // Of what is no scope any more nothing is counted, by nobody.
  for (uint32_t scope = 0; scope < std::max<size_t>(accounts.size(), scopes_end_); ++scope) {
    if (at(scope) == nullptr) continue;
    const Account& kept = at(scope)->account;
    const Account walked = scope < accounts.size() ? accounts[scope] : Account();
    HALFSTEP_CHECK(kept == walked, scope, kept.live, walked.live, kept.unwritten, walked.unwritten, kept.pinned, walked.pinned,
                   kept.leased, walked.leased);
  }
  std::vector<Account> sums(spaces_.size());
  uint64_t leased_bytes = 0;
  for (const uint32_t number : living_) {
    const Scope& scope = *at(number);
    Account& sum = sums[scope.namespace_number];
    sum.live += scope.account.live;
    sum.unwritten += scope.account.unwritten;
    sum.pinned += scope.account.pinned;
    sum.leased += scope.account.leased;
    leased_bytes += scope.account.leased;
  }
  for (size_t number = 0; number < spaces_.size(); ++number) HALFSTEP_CHECK(spaces_[number].account == sums[number], number);
  HALFSTEP_CHECK(leased_bytes == leased_bytes_, leased_bytes, leased_bytes_);
}

}  // namespace halfstep::store
