// mount_hold.cc — leases, pins and expiry, as their owners say them, to the upstream.
// Of two requests in flight either may come first. So of each owner one is in flight, and what it says next waits; so does
// whatever names a block whose put is still on its way. What waits goes together when it can.
// An owner's number here is the client's, masked by a secret of its namespace: nobody can name the owner of another one.
#include <algorithm>
#include <utility>

#include "mount/mount_store.h"

namespace halfstep::mount {

using store::IndexKey;

namespace {

constexpr size_t kLeasesMax = 262'144;
// About 150 bytes each. An owner's go one request after the other, so a slow upstream makes a queue of them.
constexpr size_t kSayingsMax = 262'144;
constexpr uint64_t kLeasesEndUs = 1'000'000;

}  // namespace

uint64_t MountStore::mask_of(uint32_t space) const noexcept {
  return keyed_hash(secret_, as_bytes(options_.namespaces[space])).low;
}

uint64_t MountStore::owner_of(std::string_view name_space, uint64_t owner) const noexcept {
  const uint32_t space = upstream_->space_of(name_space);
  return space == UINT32_MAX ? owner : owner ^ mask_of(space);
}

// ---- Leases --------------------------------------------------------------------------------------------------------------

Status MountStore::hold(const IndexKey& key, uint64_t owner, uint64_t until_us) {
  const Known* known = find_known(key);
  if (known == nullptr || layout_of(known->scope) == nullptr) return why_absent(key);
  if (leases_ >= kLeasesMax || sayings_full()) return {Code::Throttled, store::kThrottledHolds};
  const Scope& scope = scopes_[known->scope - 1];
  Holder& holder = holders_[owner];
  holder.space = scope.space;
  holder.until_us = std::max(holder.until_us, until_us);
  if (holder.keys.insert(key).second) ++leases_;
  Saying& saying = say();
  saying.operation = HS_OP_HOLD;
  saying.space = scope.space;
  saying.owner = owner ^ mask_of(scope.space);
  saying.until_us = until_us;
  saying.handle = scope.handle;
  saying.component = {known->component};
  saying.engine_key = known->engine_key;
  saying.key = key;
  return {};
}

uint64_t MountStore::renew(uint64_t owner, uint64_t until_us) noexcept {
  const auto at = holders_.find(owner);
  // Nothing is promised here that the upstream does not hear of.
  if (at == holders_.end() || sayings_full()) return 0;
  at->second.until_us = std::max(at->second.until_us, until_us);
  Saying& saying = say();
  saying.operation = HS_OP_RENEW;
  saying.space = at->second.space;
  saying.owner = owner ^ mask_of(saying.space);
  saying.until_us = until_us;
  return at->second.keys.size();
}

// Those that nobody has renewed.
void MountStore::end_leases() {
  const uint64_t now_us = clock_.now_us();
  if (holders_.empty() || now_us < leases_at_us_) return;
  leases_at_us_ = now_us + kLeasesEndUs;
  std::erase_if(holders_, [&](const auto& of) {
    if (of.second.until_us > now_us) return false;
    leases_ -= of.second.keys.size();
    return true;
  });
}

// ---- What somebody waits for -----------------------------------------------------------------------------------------------

bool MountStore::sayings_full() const noexcept { return sayings_.size() >= kSayingsMax; }

MountStore::Saying& MountStore::say() {
  sayings_news_ = true;
  return sayings_.emplace_back();
}

void MountStore::say_change(store::Change& change, uint32_t operation) {
  if (sayings_full()) return answer(change, {Code::Throttled, store::kThrottledLog});
  const uint32_t number = scope_of_key(change.key, change.component, change.engine_key);
  if (number == 0) return answer(change, Code::NotFound);
  const Scope& scope = scopes_[number - 1];
  Saying& saying = say();
  saying.operation = operation;
  saying.space = scope.space;
  saying.owner = operation == HS_OP_EXPIRE ? 0 : change.holder ^ mask_of(scope.space);
  saying.for_s = change.for_s;
  saying.persist = operation == HS_OP_HOLD;
  saying.handle = scope.handle;
  saying.component = change.component;
  saying.engine_key = std::string(as_text(change.engine_key));
  saying.key = change.key;
  saying.change = &change;
}

void MountStore::expire(store::Change& change) { closing_ ? answer(change, Code::Closed) : say_change(change, HS_OP_EXPIRE); }

void MountStore::hold(store::Change& change) { closing_ ? answer(change, Code::Closed) : say_change(change, HS_OP_HOLD); }

void MountStore::release(store::Change& change) {
  if (closing_) return answer(change, Code::Closed);
  if (const auto at = holders_.find(change.holder); at != holders_.end()) leases_ -= at->second.keys.erase(change.key);
  say_change(change, HS_OP_RELEASE);
}

// Whose they are is known of an owner that has leases here, or where there is one namespace. Others were held before this
// mount began, and lapse.
void MountStore::release_all(store::Change& change) {
  if (closing_) return answer(change, Code::Closed);
  if (sayings_full()) return answer(change, {Code::Throttled, store::kThrottledLog});
  const auto at = holders_.find(change.holder);
  if (at == holders_.end() && upstream_->spaces() != 1) return answer(change, {});
  Saying& saying = say();
  saying.operation = HS_OP_RELEASE;
  saying.space = at != holders_.end() ? at->second.space : 0;
  saying.owner = change.holder ^ mask_of(saying.space);
  saying.change = &change;
  if (at == holders_.end()) return;
  leases_ -= at->second.keys.size();
  holders_.erase(at);
}

// ---- To the upstream -----------------------------------------------------------------------------------------------------

void MountStore::send_sayings() {
  if (!std::exchange(sayings_news_, false)) return;
  const uint64_t now_us = clock_.now_us();
  std::deque<Saying> later;
  std::unordered_set<uint64_t> blocked = saying_;
  std::unique_ptr<UpstreamRequest> request;
  std::vector<store::Change*> changes;
  Saying last;
  const auto send = [&] {
    if (request == nullptr) return;
    if (last.owner != 0) {
      saying_.insert(last.owner);
      blocked.insert(last.owner);
    }
    request->done = [this, changes](UpstreamRequest& of) { said(of, changes); };
    changes.clear();
    upstream_->submit(std::move(request));
  };
  for (Saying& saying : std::exchange(sayings_, {})) {
    const store::Extent* extent = saying.handle >= 0 ? memory_.find(saying.key) : nullptr;
    const bool together = request != nullptr && saying.handle >= 0 && last.handle >= 0 && saying.operation == last.operation &&
                          saying.space == last.space && saying.owner == last.owner && saying.until_us == last.until_us &&
                          saying.for_s == last.for_s && saying.persist == last.persist;
    if (!together) send();
    const bool under_way = extent != nullptr && putting_.count(const_cast<store::Extent*>(extent)) != 0;
    if (under_way || (saying.owner != 0 && blocked.count(saying.owner) != 0)) {
      send();
      if (saying.owner != 0) blocked.insert(saying.owner);
      later.push_back(std::move(saying));
      continue;
    }
    UpstreamSection* section = nullptr;
    if (request != nullptr) section = request->section_for(saying.handle, saying.component.value);
    if (request != nullptr && section == nullptr) {  // it is full: the rest comes behind it
      send();
      if (saying.owner != 0) {
        later.push_back(std::move(saying));
        continue;
      }
    }
    if (request == nullptr) {
      request = make_request(saying.operation, saying.space);
      request->hold_owner = saying.owner;
      request->persist = saying.persist;
      // A lease that has lapsed by now is one of the shortest.
      const uint64_t lease_ms = saying.until_us > now_us ? (saying.until_us - now_us + 999) / 1000 : 1;
      if (saying.operation == HS_OP_EXPIRE) request->value = saying.for_s;
      if (saying.operation == HS_OP_RENEW) request->value = lease_ms;
      if (saying.operation == HS_OP_HOLD) request->value = saying.persist ? saying.for_s * 1000 : lease_ms;
      if (saying.handle >= 0) section = request->section_for(saying.handle, saying.component.value);
    }
    if (section != nullptr) {
      section->add_key(as_bytes(saying.engine_key));
      section->owners.push_back(saying.change);
    } else {
      changes.push_back(saying.change);
    }
    last = std::move(saying);
  }
  send();
  sayings_.insert(sayings_.begin(), std::make_move_iterator(later.begin()), std::make_move_iterator(later.end()));
}

// `changes`: of a request without keys.
void MountStore::said(UpstreamRequest& request, const std::vector<store::Change*>& changes) {
  saying_.erase(request.hold_owner);
  sayings_news_ = true;
  const auto tell = [&](store::Change* change, const hs_answer& of) {
    Status status = status_of(of);
    if (request.operation == HS_OP_HOLD) {
      ++mount_.holds;
      if (!status.ok()) ++mount_.holds_failed;
    }
    if (change == nullptr) return;
    if (status == Code::Throttled) {
      status = {Code::Throttled, request.operation == HS_OP_HOLD ? store::kThrottledPins : store::kThrottledLog};
    }
    answer(*change, status);
  };
  for (UpstreamSection& section : request.sections) {
    for (uint32_t i = 0; i < section.count; ++i) tell(static_cast<store::Change*>(section.owners[i]), section.answers[i]);
  }
  for (store::Change* change : changes) tell(change, request.outcome);
}

}  // namespace halfstep::mount
