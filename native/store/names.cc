#include "store/names.h"

#include <algorithm>

namespace halfstep::store {

bool Names::refresh(const HeaderState& header) {
  const auto alive_count = [this] {
    return std::count_if(scopes_.begin(), scopes_.end(), [](const Scope& scope) { return scope.layout != nullptr; });
  };
  auto retired = alive_count();
  scopes_.resize(header.fixed.next_scope);
  spaces_.resize(header.fixed.next_namespace);
  for (const format::ScopeRecord& s : header.scopes) retired -= alive(s.scope) ? 1 : 0;
  for (Scope& scope : scopes_) scope.layout.reset();
  for (const format::ScopeRecord& s : header.scopes) {
    scopes_[s.scope].layout = header.layouts[s.layout];
    scopes_[s.scope].namespace_number = s.namespace_number;
  }
  for (Space& space : spaces_) space.live_bytes = 0;
  for (const StoredNamespace& n : header.namespaces) {
    spaces_[n.record.number].quota_bytes = n.record.quota_bytes;
    spaces_[n.record.number].default_ttl_s = n.record.default_ttl_s;
  }
  for (const Scope& scope : scopes_) {
    if (scope.layout != nullptr) spaces_[scope.namespace_number].live_bytes += scope.live_bytes;
  }
  return retired > 0;
}

uint32_t Names::default_ttl_s(uint32_t scope) const noexcept {
  return alive(scope) ? spaces_[scopes_[scope].namespace_number].default_ttl_s : 0;
}

bool Names::over_quota(uint32_t scope, uint64_t bytes) const noexcept {
  if (!alive(scope)) return false;
  const Space& space = spaces_[scopes_[scope].namespace_number];
  return space.quota_bytes != 0 && space.live_bytes + bytes > space.quota_bytes;
}

void Names::add_live_bytes(uint32_t scope, int64_t bytes) noexcept {
  if (scope >= scopes_.size()) return;
  scopes_[scope].live_bytes += static_cast<uint64_t>(bytes);
  if (scopes_[scope].layout != nullptr) spaces_[scopes_[scope].namespace_number].live_bytes += static_cast<uint64_t>(bytes);
}

}  // namespace halfstep::store
