// header.h — the store header as a value: what it says, its bytes, and who owns the store
// (docs/on-flash-format.md, *Store header*).
// Invariants: decode_header() accepts only a whole snapshot whose SHA-256 fits and whose numbers and references agree;
// a scope number is listed at most once and is below next_scope.
// Thread: any; a value.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "store/format/format.h"
#include "store/format/geometry.h"
#include "wire/layout.h"

namespace halfstep::store {

struct StoredNamespace {
  format::NamespaceRecord record;
  std::string name;
};

struct HeaderState {
  format::StoreHeader fixed;
  std::vector<format::DeviceRecord> devices;
  std::vector<StoredNamespace> namespaces;
  std::vector<std::shared_ptr<const wire::Layout>> layouts;
  std::vector<format::ScopeRecord> scopes;

  const StoredNamespace* find_namespace(std::string_view name) const noexcept;
  // The live scope of a namespace and a layout, 0 = none.
  uint32_t find_scope(uint32_t namespace_number, const wire::LayoutId& layout) const noexcept;
  // Layouts that no scope names any more leave the table.
  void drop_unused_layouts();

  HashKey index_secret() const noexcept { return load_le<HashKey>(fixed.secret.data()); }
  HashKey page_secret() const noexcept { return load_le<HashKey>(fixed.secret.data() + 16); }
  Places places() const noexcept;
};

// What it takes of its reserve.
uint64_t header_bytes(const HeaderState& state) noexcept;
// NoSpace when it would be longer than its reserve. `out` is whole pages.
Status encode_header(HeaderState& state, std::vector<std::byte>* out);
// The same in steps, since the checksum of a full one takes milliseconds. begin: all but the checksum, over which the first
// `header_bytes` of `out` are to be hashed as they are; seal: the checksum's place in `out`, and in `state`.
Status begin_encode(HeaderState& state, std::vector<std::byte>* out);
void seal_encoded(const Sha256& checksum, HeaderState& state, std::vector<std::byte>* out) noexcept;

// NotFound: no magic. Unsupported: a newer version or incompatible features (`out->fixed` is set). Corrupt: anything else.
Status decode_header(ConstBytes bytes, HeaderState* out);

// Who runs this process, for the header's owner fields.
void sign_owner(format::StoreHeader& header);
// The next start: another start number, this process as its owner, not stopped cleanly yet.
void begin_ownership(HeaderState& state, const Clock& clock);
// "pid 812 on host flash3", for people.
std::string owner_text(const format::StoreHeader& header);

}  // namespace halfstep::store
