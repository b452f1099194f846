// store_names.cc — namespaces, layouts and their scopes: all of it is in the store header.
#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "store/format/mutant.h"
#include "store/store_impl.h"

namespace halfstep::store {
namespace {

// Whether a namespace may have one more layout: within its own bounds, and within what it leaves to the others. So the header
// is never full for all: whoever comes last finds half of what is left.
bool layout_fits(const HeaderState& state, uint32_t namespace_number, const wire::Layout& layout) {
  uint32_t count = 1;
  uint64_t bytes = layout.canonical().size();
  for (const format::ScopeRecord& scope : state.scopes) {
    if (scope.namespace_number != namespace_number) continue;
    ++count;
    bytes += state.layouts[scope.layout]->canonical().size();
  }
  if (count > format::kNamespaceLayoutsMax || bytes > format::kNamespaceLayoutBytesMax) return false;
  const uint64_t after =
      header_bytes(state) + sizeof(format::LayoutRecord) + layout.canonical().size() + sizeof(format::ScopeRecord);
  return after + bytes <= format::kHeaderReserveBytes;
}

// The longest known of the namespace's layouts that have no block gives its place up: its scope is closed before, and added to
// `closed`. False: there is none.
bool give_place_up(HeaderState& state, uint32_t namespace_number, ScopeUse& use, std::vector<uint32_t>& closed) {
  std::vector<uint32_t> oldest_first;
  for (const format::ScopeRecord& s : state.scopes) {
    if (s.namespace_number == namespace_number) oldest_first.push_back(s.scope);
  }
  std::sort(oldest_first.begin(), oldest_first.end());
  const auto found = std::find_if(oldest_first.begin(), oldest_first.end(),
                                  [&](uint32_t scope) { return use.close_if_empty(scope, state.fixed.shards); });
  if (found == oldest_first.end()) return false;
  closed.push_back(*found);
  std::erase_if(state.scopes, [&](const format::ScopeRecord& s) { return s.scope == *found; });
  state.drop_unused_layouts();
  return true;
}

wire::CodingRecord coding_of(const format::NamespaceRecord& record) noexcept {
  return {.policy = static_cast<uint16_t>(record.flags >> format::kNamespacePolicyShift & format::kNamespacePolicyMax),
          .step_limit = static_cast<uint16_t>(record.flags >> format::kNamespaceStepLimitShift)};
}

// A block's names as its index key is made of them.
using NameBytes = std::array<std::byte, 9 + format::kEngineKeyBytesMax>;
ConstBytes bytes_of(const BlockName& name, NameBytes& bytes) noexcept {
  HALFSTEP_CHECK(!name.engine_key.empty() && name.engine_key.size() <= format::kEngineKeyBytesMax, name.engine_key.size());
  store_le(bytes.data(), HALFSTEP_MUTANT(NoKeyInCheck) ? 0U : name.scope);
  store_le(bytes.data() + 4, name.component.value);
  bytes[8] = static_cast<std::byte>(name.engine_key.size());
  std::memcpy(bytes.data() + 9, name.engine_key.data(), name.engine_key.size());
  return ConstBytes(bytes).first(9 + name.engine_key.size());
}

void set_limits(format::NamespaceRecord& record, const NamespaceInfo& info) noexcept {
  record.quota_bytes = info.quota_bytes;
  record.default_ttl_s = info.default_ttl_s;
  record.pin_budget_bytes = info.pin_budget_bytes;
  HALFSTEP_CHECK(info.coding.policy <= format::kNamespacePolicyMax, info.coding.policy);
  record.flags = (info.sliding_ttl ? format::kNamespaceSliding : 0) |
                 uint32_t{info.coding.policy} << format::kNamespacePolicyShift |
                 uint32_t{info.coding.step_limit} << format::kNamespaceStepLimitShift;
}

}  // namespace

// ---- Names -----------------------------------------------------------------------------------------------------------------

std::vector<NamespaceInfo> StoreImpl::namespaces() const {
  std::vector<NamespaceInfo> out;
  for (const StoredNamespace& n : header_.namespaces) {
    const uint32_t number = n.record.number;
    out.push_back({n.name, n.record.quota_bytes, n.record.default_ttl_s, n.record.pin_budget_bytes,
                   (n.record.flags & format::kNamespaceSliding) != 0, coding_of(n.record), names_.used_bytes(number),
                   names_.pinned_bytes(number), names_.leased_bytes(number), holds_.of_namespace(number), number});
  }
  return out;
}

std::vector<NamespaceStock> StoreImpl::stocks() const {
  std::map<std::tuple<uint32_t, bool, uint16_t, uint64_t>, NamespaceStock> by_kind;
  for (const Stock& stock : catalog_.stocks()) {
    const ScopeSlots::Kind& kind = stock.kind;
    const uint32_t number = names_.namespace_of(kind.scope);
    if (number == 0) continue;  // it was cleared, or its namespace deleted: nobody's any more
    const uint16_t group = kind.any ? uint16_t{0} : kind.group;
    const uint64_t codecs = kind.any ? 0 : kind.codecs;
    NamespaceStock& to = by_kind[{number, kind.any, group, codecs}];
    to.number = number;
    to.group = group;
    to.any = kind.any;
    to.codecs = codecs;
    to.blocks += stock.blocks;
    to.logical_bytes += stock.logical_bytes;
    to.stored_bytes += stock.stored_bytes;
    to.flash_bytes += stock.flash_bytes;
  }
  std::vector<NamespaceStock> out;
  for (auto& [key, stock] : by_kind) {
    for (const StoredNamespace& n : header_.namespaces) {
      if (n.record.number == stock.number) stock.name_space = n.name;
    }
    out.push_back(std::move(stock));
  }
  return out;
}

void StoreImpl::change_header(std::function<Status(HeaderState&)> change, std::function<void(Status)> done) {
  header_writer_.submit(
      [this, change = std::move(change)](HeaderState& state) {
        state.fixed.store_time_s = std::max(believable_s(state.fixed.store_time_s), store_time_.now_s());
        return change(state);
      },
      std::move(done));
}

void StoreImpl::adopt_header(const HeaderState& next) {
  std::vector<RetiredScope> retired = retired_by(next);
  header_ = next;
  names_.refresh(header_);
  if (retired.empty()) return;
  note_cleared(std::move(retired));
  sweeper_.want_pass();
}

ScopeName StoreImpl::name_of(uint32_t scope) const {
  if (names_.alive(scope)) {
    for (const StoredNamespace& n : header_.namespaces) {
      if (n.record.number == names_.namespace_of(scope)) return {n.name, names_.layout(scope)->id()};
    }
  }
  for (const RetiredScope& retired : events_.retired()) {
    if (retired.scope == scope) return retired.name;
  }
  return {};
}

// Scopes that are alive and will not be. Of one that gave its place up and never had a block here nothing is to be said.
std::vector<RetiredScope> StoreImpl::retired_by(const HeaderState& next) const {
  std::vector<uint32_t> kept;
  kept.reserve(next.scopes.size());
  for (const format::ScopeRecord& s : next.scopes) kept.push_back(s.scope);
  std::sort(kept.begin(), kept.end());
  std::vector<RetiredScope> retired;
  for (const format::ScopeRecord& s : header_.scopes) {
    if (std::binary_search(kept.begin(), kept.end(), s.scope)) continue;
    const auto same = [&](const StoredNamespace& n) { return n.record.number == s.namespace_number; };
    const bool deleted = std::none_of(next.namespaces.begin(), next.namespaces.end(), same);
    const bool cleared = next.find_scope(s.namespace_number, header_.layouts[s.layout]->id()) != 0;
    if (!deleted && !cleared && !names_.used(s.scope)) continue;
    retired.push_back({0, 0, s.scope, s.namespace_number, name_of(s.scope), {}});
  }
  return retired;
}

void StoreImpl::note_cleared(std::vector<RetiredScope> retired) {
  const auto& spaces = header_.namespaces;
  for (RetiredScope& scope : retired) {
    const auto same = [&](const StoredNamespace& n) { return n.record.number == scope.namespace_number; };
    const bool kept = std::any_of(spaces.begin(), spaces.end(), same);
    scope.reason = kept ? EventReason::LayoutCleared : EventReason::NamespaceDeleted;
    scope.time_s = store_time_.now_s();
    events_.note_cleared(scope);
  }
}

void StoreImpl::create_namespace(const NamespaceInfo& info, std::function<void(Status)> done) {
  if (info.name.empty() || info.name.size() > format::kNamespaceNameBytesMax) return done(Code::Invalid);
  if (has_namespace(info.name)) return done(Code::Present);
  change_header(
      [info](HeaderState& state) -> Status {
        if (state.find_namespace(info.name) != nullptr) return Code::Present;
        StoredNamespace& added = state.namespaces.emplace_back();
        added.name = info.name;
        added.record.number = state.fixed.next_namespace++;
        set_limits(added.record, info);
        return {};
      },
      std::move(done));
}

void StoreImpl::limit_namespace(const NamespaceInfo& info, std::function<void(Status)> done) {
  change_header(
      [info](HeaderState& state) -> Status {
        const auto same = [&](const StoredNamespace& n) { return n.name == info.name; };
        const auto found = std::find_if(state.namespaces.begin(), state.namespaces.end(), same);
        if (found == state.namespaces.end()) return Code::NotFound;
        set_limits(found->record, info);
        return {};
      },
      std::move(done));
}

void StoreImpl::delete_namespace(std::string_view name, std::function<void(Status)> done) {
  if (!has_namespace(name)) return done(Code::NotFound);
  change_header(
      [name = std::string(name)](HeaderState& state) -> Status {
        const StoredNamespace* found = state.find_namespace(name);
        if (found == nullptr) return Code::NotFound;
        const uint32_t number = found->record.number;
        std::erase_if(state.scopes, [&](const format::ScopeRecord& s) { return s.namespace_number == number; });
        std::erase_if(state.namespaces, [&](const StoredNamespace& n) { return n.record.number == number; });
        state.drop_unused_layouts();
        return {};
      },
      std::move(done));
}

void StoreImpl::clear(std::string_view name, const wire::LayoutId& layout, std::function<void(Status)> done) {
  if (find_scope(name, layout) == 0) return done(Code::NotFound);
  change_header(
      [name = std::string(name), layout](HeaderState& state) -> Status {
        const StoredNamespace* space = state.find_namespace(name);
        const uint32_t scope = space != nullptr ? state.find_scope(space->record.number, layout) : 0;
        if (scope == 0) return Code::NotFound;
        if (state.fixed.next_scope == UINT32_MAX) return Code::NoSpace;
        for (format::ScopeRecord& s : state.scopes) {
          if (s.scope == scope) s.scope = state.fixed.next_scope;
        }
        ++state.fixed.next_scope;
        return {};
      },
      std::move(done));
}

uint32_t StoreImpl::find_scope(std::string_view name, const wire::LayoutId& layout) const noexcept {
  const StoredNamespace* space = header_.find_namespace(name);
  return space != nullptr ? header_.find_scope(space->record.number, layout) : 0;
}

void StoreImpl::register_layout(std::string_view name, const wire::Layout& layout, std::function<void(Status, uint32_t)> done) {
  const StoredNamespace* space = header_.find_namespace(name);
  if (space == nullptr) return done(Code::NotFound, 0);
  const uint32_t number = space->record.number;
  if (const uint32_t scope = header_.find_scope(number, layout.id()); scope != 0) return done({}, scope);
  auto shared = std::make_shared<const wire::Layout>(layout);
  ScopeUse* use = &scope_use_;
  auto closed = std::make_shared<std::vector<uint32_t>>();
  change_header(
      [shared, number, use, closed](HeaderState& state) -> Status {
        const auto same = [&](const StoredNamespace& n) { return n.record.number == number; };
        if (std::none_of(state.namespaces.begin(), state.namespaces.end(), same)) return Code::NotFound;
        if (state.find_scope(number, shared->id()) != 0) return {};
        while (!layout_fits(state, number, *shared)) {
          if (!give_place_up(state, number, *use, *closed)) return Code::NoSpace;
        }
        uint32_t place = 0;
        while (place < state.layouts.size() && state.layouts[place]->id() != shared->id()) ++place;
        if (place == state.layouts.size()) state.layouts.push_back(shared);
        if (state.fixed.next_scope == UINT32_MAX) return Code::NoSpace;
        state.scopes.push_back({state.fixed.next_scope++, number, place, 0});
        if (HALFSTEP_MUTANT(ScopeReused)) state.fixed.next_scope = static_cast<uint32_t>(state.scopes.size()) + 1;
        return {};
      },
      [this, shared, number, use, closed, done = std::move(done)](Status status) {
        for (const uint32_t scope : *closed) use->reopen(scope);  // now every shard knows what became of it
        const uint32_t scope = status.ok() ? header_.find_scope(number, shared->id()) : 0;
        // None: the namespace was deleted by a change that went to media together with this one.
        done(status.ok() && scope == 0 ? Status(Code::NotFound) : status, scope);
      });
}

IndexKey StoreImpl::key_of(const BlockName& name) const noexcept {
  NameBytes bytes;
  const Hash128 hash = keyed_hash(index_secret_, bytes_of(name, bytes));
  return {hash.low, hash.high};
}

void StoreImpl::keys_of(std::span<const BlockName> names, std::span<IndexKey> out) const noexcept {
  constexpr size_t kAtOnce = 32;
  std::array<NameBytes, kAtOnce> bytes;
  std::array<ConstBytes, kAtOnce> messages;
  std::array<Hash128, kAtOnce> hashes;
  for (size_t first = 0; first < names.size(); first += kAtOnce) {
    const size_t now = std::min(kAtOnce, names.size() - first);
    for (size_t i = 0; i < now; ++i) messages[i] = bytes_of(names[first + i], bytes[i]);
    keyed_hash_many(index_secret_, std::span(messages).first(now), std::span(hashes).first(now));
    for (size_t i = 0; i < now; ++i) out[first + i] = {hashes[i].low, hashes[i].high};
  }
}

}  // namespace halfstep::store
