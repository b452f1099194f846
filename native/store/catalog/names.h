// names.h — scopes and what they stand for, looked up per block; the names themselves are in the store header (header.h).
// It also keeps the namespaces' accounts: bytes of live blocks in frames, of blocks that are not in a frame yet (being filled
// or waiting), and of blocks with a persistent hold.
// Invariants: a scope is alive if and only if the header on media lists it; layouts stay at their address while alive; a
// namespace's account is the sum of its living scopes', so that a retired scope stops counting at once. Quotas and pin budgets
// are the store's: of several shards each has an equal share, so that together they never have more. A namespace leases at most
// half of its quota, and so much that all together never lease three quarters of the shard, and none is left without.
// Thread: the shard's.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "store/durable/scope_use.h"
#include "store/format/header.h"

namespace halfstep::store {

class Names {
 public:
  // `leases_max_bytes`: what all namespaces together never lease; one alone has two thirds of it.
  // `use`: told of scopes that get their first block here, or lose their last; may be null.
  explicit Names(uint64_t leases_max_bytes = uint64_t{1} << 60, ScopeUse* use = nullptr) noexcept
      : leases_max_bytes_(leases_max_bytes), use_(use) {}

  // Takes over what the header says now; call after every change of it.
  void refresh(const HeaderState& header);

  bool alive(uint32_t scope) const noexcept { return layout(scope) != nullptr; }
  const wire::Layout* layout(uint32_t scope) const noexcept {
    const Scope* known = at(scope);
    return known != nullptr ? known->layout.get() : nullptr;
  }
  // Null when the layout has no such group.
  const wire::GroupShape* group(uint32_t scope, wire::Component component) const noexcept {
    const wire::Layout* found = layout(scope);
    return found != nullptr && component.group() < found->groups().size() ? &found->groups()[component.group()] : nullptr;
  }
  uint32_t scopes_end() const noexcept { return scopes_end_; }  // above every scope's number
  uint32_t namespace_of(uint32_t scope) const noexcept { return alive(scope) ? at(scope)->namespace_number : 0; }
  uint32_t default_ttl_s(uint32_t scope) const noexcept;
  // The default TTL counts from the last use. 0: it does not, or there is none.
  uint32_t sliding_ttl_s(uint32_t scope) const noexcept;

  // Whether a block with a lossy part may be written: as coarse a step as its layout's is allowed by the namespace.
  bool lossy_fits(uint32_t scope) const noexcept;

  // A scope that has nothing here may be about to be retired.
  bool used_now(uint32_t scope) const noexcept { return at(scope) != nullptr && at(scope)->account.used() != 0; }

  // It has, or has had, blocks since the start: their events speak of it.
  bool used(uint32_t scope) const noexcept { return at(scope) != nullptr && at(scope)->used; }

  // ---- Codecs: bit c of the set is codec c. Those that blocks of a scope have had since the start, or that recovery found
  uint64_t codecs(uint32_t scope) const noexcept { return alive(scope) ? at(scope)->codecs : 0; }
  void note_codecs(uint32_t scope, uint64_t codecs) noexcept {
    if (alive(scope)) at(scope)->codecs |= codecs;
  }

  // ---- Quota: live and unwritten bytes together
  uint64_t quota_bytes(uint32_t scope) const noexcept;  // 0 = none
  uint64_t used_bytes(uint32_t namespace_number) const noexcept;
  // Whether `bytes` more would break the quota of the scope's namespace.
  bool over_quota(uint32_t scope, uint64_t bytes) const noexcept;
  void add_live_bytes(uint32_t scope, int64_t bytes) noexcept { add(scope, bytes, &Account::live); }
  void add_unwritten_bytes(uint32_t scope, int64_t bytes) noexcept { add(scope, bytes, &Account::unwritten); }

  // Somebody was refused so many bytes: the sweep makes room for them, and a little more so that it is not asked at each put.
  void want_room(uint32_t scope, uint64_t bytes) noexcept;
  // A sweep goes from the oldest block on, so that whoever asks while one is under way waits for the next.
  bool any_wants_sweep() const noexcept;
  void begin_sweep() noexcept;
  // The scope's namespace still has more than this sweep is to leave.
  bool sweeps(uint32_t scope) const noexcept;
  bool any_sweeps() const noexcept;
  void end_sweep() noexcept;

  // ---- Pin budget
  uint64_t pinned_bytes(uint32_t namespace_number) const noexcept;
  bool pin_fits(uint32_t scope, uint64_t bytes) const noexcept;
  // ---- Leases
  uint64_t leased_bytes(uint32_t namespace_number) const noexcept;
  // Alone, a namespace may lease half of the shard; each one more finds two thirds of the rest.
  bool lease_fits(uint32_t scope, uint64_t bytes) const noexcept;
  void add_leased_bytes(uint32_t scope, int64_t bytes) noexcept { add(scope, bytes, &Account::leased); }
  void add_pinned_bytes(uint32_t scope, int64_t bytes) noexcept { add(scope, bytes, &Account::pinned); }

  // ---- Accounts, in bytes
  struct Account {
    uint64_t live = 0;
    uint64_t unwritten = 0;
    uint64_t pinned = 0;
    uint64_t leased = 0;
    uint64_t used() const noexcept { return live + unwritten; }
    bool empty() const noexcept { return used() + pinned + leased == 0; }
    bool operator==(const Account&) const noexcept = default;
  };
  // Of a scope, alive or retired.
  Account account(uint32_t scope) const noexcept { return at(scope) != nullptr ? at(scope)->account : Account(); }
  // Ends the process where a namespace's account is not the sum of its living scopes', or `accounts`, by scope, are not theirs.
  void check_invariants(const std::vector<Account>& accounts) const;

 private:
  struct Scope {
    std::shared_ptr<const wire::Layout> layout;
    uint32_t namespace_number = 0;
    bool used = false;  // it has had blocks here
    uint64_t codecs = 0;
    Account account;
  };
  struct Space {
    uint64_t quota_bytes = 0;
    uint64_t pin_budget_bytes = 0;
    uint32_t default_ttl_s = 0;
    uint32_t step_limit = 0;  // in 1/10,000; 0: any
    bool sliding = false;
    uint64_t sweep_to_bytes = UINT64_MAX;
    bool sweeping = false;
    Account account;
    bool wants_sweep() const noexcept { return account.used() > sweep_to_bytes; }
  };

  void add(uint32_t scope, int64_t bytes, uint64_t Account::*what) noexcept;
  const Space* space_of(uint32_t scope) const noexcept {
    return alive(scope) ? &spaces_[at(scope)->namespace_number] : nullptr;
  }

  // Scope numbers only grow, with every layout that comes and goes: those that are nothing any more take no memory.
  static constexpr uint32_t kPageScopes = 256;
  using Page = std::array<Scope, kPageScopes>;
  const Scope* at(uint32_t scope) const noexcept {
    const Page* page = scope < scopes_end_ ? pages_[scope / kPageScopes].get() : nullptr;
    return page != nullptr ? &(*page)[scope % kPageScopes] : nullptr;
  }
  Scope* at(uint32_t scope) noexcept { return const_cast<Scope*>(static_cast<const Names*>(this)->at(scope)); }

  uint32_t scopes_end_ = 0;
  std::vector<std::unique_ptr<Page>> pages_;  // by scope number
  std::vector<uint32_t> living_;              // scopes
  std::vector<Space> spaces_;                 // by namespace number
  uint64_t leases_max_bytes_;
  uint64_t leased_bytes_ = 0;  // by all namespaces
  ScopeUse* use_;
};

}  // namespace halfstep::store
