#include "store/format/header.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "store/format/store_time.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kKnownIncompatible = 0;
constexpr uint64_t kKnownReadOnly = 0;

Sha256 checksum_of(ConstBytes snapshot) {
  HALFSTEP_CHECK(snapshot.size() >= sizeof(format::StoreHeader), snapshot.size());
  if (snapshot.size() < sizeof(format::StoreHeader)) return {};  // callers checked; said again for the compiler
  std::vector<std::byte> copy(snapshot.begin(), snapshot.end());
  std::memset(copy.data() + offsetof(format::StoreHeader, checksum), 0, sizeof(Sha256));
  return sha256(copy);
}

bool sane(const HeaderState& state) {
  const format::StoreHeader& f = state.fixed;
  if (!state.places().valid() || state.devices.empty()) return false;
  // Sequences start at start number * 2^40 (recovery.cc).
  if (f.sequence >= format::kSequenceLimit || f.start_number >= uint64_t{1} << 22) return false;
  for (const StoredNamespace& n : state.namespaces) {
    if (n.record.number == 0 || n.record.number >= f.next_namespace) return false;
  }
  for (const format::ScopeRecord& s : state.scopes) {
    if (s.scope == 0 || s.scope >= f.next_scope || s.layout >= state.layouts.size()) return false;
    const auto same = [&](const StoredNamespace& n) { return n.record.number == s.namespace_number; };
    if (std::none_of(state.namespaces.begin(), state.namespaces.end(), same)) return false;
  }
  return true;
}

}  // namespace

const StoredNamespace* HeaderState::find_namespace(std::string_view name) const noexcept {
  for (const StoredNamespace& n : namespaces) {
    if (n.name == name) return &n;
  }
  return nullptr;
}

uint32_t HeaderState::find_scope(uint32_t namespace_number, const wire::LayoutId& layout) const noexcept {
  for (const format::ScopeRecord& s : scopes) {
    if (s.namespace_number == namespace_number && layouts[s.layout]->id() == layout) return s.scope;
  }
  return 0;
}

void HeaderState::drop_unused_layouts() {
  std::vector<std::shared_ptr<const wire::Layout>> kept;
  for (uint32_t number = 0; number < layouts.size(); ++number) {
    bool used = false;
    for (format::ScopeRecord& s : scopes) {
      if (s.layout != number) continue;
      s.layout = static_cast<uint32_t>(kept.size());  // never above `number`, so it is not met again
      used = true;
    }
    if (used) kept.push_back(layouts[number]);
  }
  layouts = std::move(kept);
}

Places HeaderState::places() const noexcept {
  Places places;
  places.geometry = {fixed.device_bytes, fixed.segment_bytes, fixed.segments, fixed.shards, fixed.block_bytes_max};
  places.log_half_pages = fixed.log_half_pages;
  places.touch_pages = fixed.touch_pages;
  return places;
}

uint64_t header_bytes(const HeaderState& state) noexcept {
  uint64_t bytes = sizeof(format::StoreHeader) + state.devices.size() * sizeof(format::DeviceRecord) +
                   state.scopes.size() * sizeof(format::ScopeRecord);
  for (const StoredNamespace& n : state.namespaces) bytes += sizeof(format::NamespaceRecord) + n.name.size();
  for (const auto& layout : state.layouts) bytes += sizeof(format::LayoutRecord) + layout->canonical().size();
  return bytes;
}

Status begin_encode(HeaderState& state, std::vector<std::byte>* out) {
  format::StoreHeader& f = state.fixed;
  f.device_count = static_cast<uint32_t>(state.devices.size());
  f.namespace_count = static_cast<uint32_t>(state.namespaces.size());
  f.layout_count = static_cast<uint32_t>(state.layouts.size());
  f.scope_count = static_cast<uint32_t>(state.scopes.size());
  f.wrapped_key_count = 0;
  out->assign(sizeof(f), std::byte{0});
  Writer writer(*out);
  const Sha256 before = f.checksum;
  f.checksum = {};
  writer.patch(0, f);
  f.checksum = before;
  for (const format::DeviceRecord& d : state.devices) writer.put(d);
  for (const StoredNamespace& n : state.namespaces) {
    format::NamespaceRecord record = n.record;
    record.name_bytes = static_cast<uint16_t>(n.name.size());
    writer.put(record);
    writer.put_bytes(as_bytes(n.name));
  }
  for (const auto& layout : state.layouts) {
    format::LayoutRecord record;
    record.bytes = static_cast<uint32_t>(layout->canonical().size());
    writer.put(record);
    writer.put_bytes(layout->canonical());
  }
  for (const format::ScopeRecord& s : state.scopes) writer.put(s);
  if (out->size() > format::kHeaderReserveBytes) return Code::NoSpace;
  HALFSTEP_CHECK(out->size() == header_bytes(state), out->size(), header_bytes(state));
  writer.patch(offsetof(format::StoreHeader, header_bytes), static_cast<uint32_t>(out->size()));
  f.header_bytes = static_cast<uint32_t>(out->size());
  writer.pad_to(kPageBytes);
  return {};
}

void seal_encoded(const Sha256& checksum, HeaderState& state, std::vector<std::byte>* out) noexcept {
  state.fixed.checksum = checksum;
  store_le(out->data() + offsetof(format::StoreHeader, checksum), checksum);
}

Status encode_header(HeaderState& state, std::vector<std::byte>* out) {
  if (const Status status = begin_encode(state, out); !status.ok()) return status;
  seal_encoded(sha256(ConstBytes(*out).first(state.fixed.header_bytes)), state, out);
  return {};
}

Status decode_header(ConstBytes bytes, HeaderState* out) {
  *out = {};
  if (bytes.size() < sizeof(format::StoreHeader)) return Code::Corrupt;
  const auto f = load_le<format::StoreHeader>(bytes.data());
  if (f.magic != format::kHeaderMagic) return Code::NotFound;
  if (f.header_bytes < sizeof(f) || f.header_bytes > bytes.size() || f.header_bytes > format::kHeaderReserveBytes) {
    return Code::Corrupt;
  }
  const ConstBytes snapshot = bytes.first(f.header_bytes);
  if (checksum_of(snapshot) != f.checksum) return Code::Corrupt;
  out->fixed = f;
  if (f.version != format::kVersion || (f.incompatible & ~kKnownIncompatible) != 0 || (f.read_only & ~kKnownReadOnly) != 0) {
    return Code::Unsupported;
  }

  Reader reader(snapshot.subspan(sizeof(f)));
  for (uint32_t i = 0; i < f.device_count && !reader.failed(); ++i) out->devices.push_back(reader.take<format::DeviceRecord>());
  for (uint32_t i = 0; i < f.namespace_count && !reader.failed(); ++i) {
    StoredNamespace& n = out->namespaces.emplace_back();
    n.record = reader.take<format::NamespaceRecord>();
    n.name = as_text(reader.take_bytes(n.record.name_bytes));
  }
  for (uint32_t i = 0; i < f.layout_count && !reader.failed(); ++i) {
    const auto record = reader.take<format::LayoutRecord>();
    wire::Layout layout;
    if (!wire::Layout::parse(reader.take_bytes(record.bytes), &layout).ok()) return Code::Corrupt;
    out->layouts.push_back(std::make_shared<const wire::Layout>(std::move(layout)));
  }
  for (uint32_t i = 0; i < f.scope_count && !reader.failed(); ++i) out->scopes.push_back(reader.take<format::ScopeRecord>());
  if (f.wrapped_key_count != 0 || !reader.finished() || !sane(*out)) return Code::Corrupt;
  return {};
}

void sign_owner(format::StoreHeader& header) {
  header.pid = static_cast<uint32_t>(::getpid());
  header.host.fill(0);
  (void)::gethostname(header.host.data(), header.host.size() - 1);
  header.boot_id.fill(std::byte{0});
  // "6e2c…-…": the kernel's name for this boot. Its first 16 characters tell two boots apart.
  if (const int file = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC); file >= 0) {
    (void)!::read(file, header.boot_id.data(), header.boot_id.size());
    ::close(file);
  }
}

void begin_ownership(HeaderState& state, const Clock& clock) {
  ++state.fixed.start_number;
  sign_owner(state.fixed);
  state.fixed.clean_stop = 0;
  state.fixed.store_time_s = std::max(believable_s(state.fixed.store_time_s), believable_s(clock.wall_s()));
  for (format::DeviceRecord& device : state.devices) device.start_number = state.fixed.start_number;
}

std::string owner_text(const format::StoreHeader& header) {
  const std::string_view host(header.host.data(), ::strnlen(header.host.data(), header.host.size()));
  return "pid " + std::to_string(header.pid) + " on host " + std::string(host);
}

}  // namespace halfstep::store
