#include "bind/peer_section.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "bind/interpreter.h"

namespace halfstep::bind {
namespace {

constexpr size_t kKeyBytesMax = 255;

// Reads an array of T, one element per `wanted`, into a vector.
template <typename T>
std::vector<T> elements(nb::handle array, size_t wanted, const char* name) {
  const Memory memory = Memory::of(array, false, name);
  if (memory.bytes() != wanted * sizeof(T)) {
    throw Refused(std::string(name) + ": has " + std::to_string(memory.bytes()) + " bytes; " + std::to_string(wanted) +
                  " elements of " + std::to_string(sizeof(T)) + " bytes are needed, one per item");
  }
  std::vector<T> values(wanted);
  if (wanted > 0) std::memcpy(values.data(), memory.data(), memory.bytes());
  return values;
}

bool is_list(nb::handle object) { return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()); }

// What a list or tuple has as the call begins. To ask one of its entries for memory may run Python code and gives the GIL away:
// the list may have other entries, or fewer, when that returns. It is never indexed; and one that was changed meanwhile is
// refused, because nobody can say which of its states was meant.
class Entries {
 public:
  Entries(nb::handle list, const char* role) : list_(list), role_(role) {
    PyObject* entries = in_python([&] { return PySequence_Tuple(list.ptr()); });
    if (entries == nullptr) throw nb::python_error();
    entries_ = nb::steal<nb::tuple>(entries);
  }

  const nb::tuple& all() const noexcept { return entries_; }
  size_t size() const { return entries_.size(); }
  void check_unchanged() const {
    if (!PyList_CheckExact(list_.ptr())) return;
    bool same = static_cast<size_t>(PyList_Size(list_.ptr())) == size();
    Py_ssize_t at = 0;
    for (nb::handle entry : entries_) {
      if (same) same = PyList_GetItem(list_.ptr(), at++) == entry.ptr();
    }
    if (!same) throw Refused(std::string(role_) + ": the list was changed during the call; pass a tuple, or a copy");
  }

 private:
  const nb::handle list_;
  const char* const role_;
  nb::tuple entries_;
};

void append_key(std::string& packed, const char* key, size_t bytes, size_t index) {
  if (bytes < 1 || bytes > kKeyBytesMax) {
    throw Refused("keys[" + std::to_string(index) + "]: " + std::to_string(bytes) +
                  " bytes; an engine key has 1 to 255, hash longer names first");
  }
  packed.push_back(static_cast<char>(bytes));
  packed.append(key, bytes);
}

uint32_t pack_list(std::string& packed, nb::handle keys) {
  size_t count = 0;
  const Entries entries(keys, "keys");
  bool asked = false;
  for (nb::handle key : entries.all()) {
    char* bytes = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_Check(key.ptr()) && PyBytes_AsStringAndSize(key.ptr(), &bytes, &size) == 0) {
      append_key(packed, bytes, static_cast<size_t>(size), count);
    } else {
      asked = true;
      const Memory memory = Memory::of_bytes(key, "key");
      append_key(packed, reinterpret_cast<const char*>(memory.data()), memory.bytes(), count);
    }
    ++count;
  }
  if (asked) entries.check_unchanged();
  return static_cast<uint32_t>(count);
}

struct ReleaseView {
  void operator()(Py_buffer* view) const noexcept {
    in_python([view] { PyBuffer_Release(view); });
  }
};

uint32_t pack_array(std::string& packed, nb::handle keys) {
  Py_buffer view;
  if (in_python([&] { return PyObject_GetBuffer(keys.ptr(), &view, PyBUF_STRIDED_RO); }) != 0) throw nb::python_error();
  const std::unique_ptr<Py_buffer, ReleaseView> release(&view);
  if (view.ndim != 2 || view.itemsize != 1) {
    throw Refused("keys (" + name_of_type(keys) + "): " + std::to_string(view.ndim) + " dimensions of " +
                  std::to_string(view.itemsize) +
                  "-byte elements; pass a list of bytes, or an array of uint8 with shape [keys, key_bytes]");
  }
  const Py_ssize_t count = view.shape[0], key_bytes = view.shape[1];
  if (count > std::numeric_limits<uint32_t>::max()) throw Refused("keys: more than 2^32 - 1");
  packed.reserve(static_cast<size_t>(count) * static_cast<size_t>(key_bytes + 1));
  std::string key(static_cast<size_t>(key_bytes), '\0');
  for (Py_ssize_t i = 0; i < count; ++i) {
    const char* from = static_cast<const char*>(view.buf) + i * view.strides[0];
    for (Py_ssize_t b = 0; b < key_bytes; ++b) key[static_cast<size_t>(b)] = from[b * view.strides[1]];
    append_key(packed, key.data(), key.size(), static_cast<size_t>(i));
  }
  return static_cast<uint32_t>(count);
}

}  // namespace

void Region::End::operator()(hs_region* region) const noexcept {
  const Unlocked unlocked;
  hs_region_close(region);
}

void Region::register_with(const std::shared_ptr<hs_client>& client) {
  if (!is_direct || bytes() == 0) return;
  // With clients that are gone. They end when the list is whole again, since that lets other threads run.
  const auto gone =
      std::partition(registrations_.begin(), registrations_.end(), [](const Registration& of) { return !of.client.expired(); });
  const std::vector<Registration> over(std::make_move_iterator(gone), std::make_move_iterator(registrations_.end()));
  registrations_.erase(gone, registrations_.end());
  for (const Registration& registration : registrations_) {
    if (registration.client.lock() == client) return;
  }
  // Where there is no room for it, its bytes come through the rings, and the client's facts say why.
  hs_region* made = nullptr;
  std::byte* const at = memory->data();
  const size_t bytes = memory->bytes();
  const auto cuda_device = static_cast<uint32_t>(device() + 1);
  {
    const Unlocked unlocked;  // a device may have to be opened
    if (hs_region_open(client.get(), at, bytes, cuda_device, &made, nullptr, 0) != 0) return;
  }
  std::unique_ptr<hs_region, End> opened(made);
  if (this->bytes() == 0) return;  // closed by another thread meanwhile
  for (const Registration& registration : registrations_) {
    if (registration.client.lock() == client) return;  // registered by one
  }
  registrations_.push_back({client, std::move(opened)});
}

void Region::close() {
  if (uses > 0) throw Refused("region: " + std::to_string(uses) + " batches still use it");
  std::exchange(registrations_, {}).clear();  // before the memory may go
  memory.reset();
}

void Template::add(nb::object region, uint64_t offset, int64_t row_stride, uint32_t inner_count, uint32_t inner_bytes,
                   int64_t inner_stride) {
  if (given) throw Refused("template: a batch has it already; make another one");
  const auto& owner = *nb::inst_ptr<Region>(region);
  if (!owner.usable()) throw Refused("region is closed");
  parts.push_back({.base = owner.memory->data(),
                   .base_bytes = owner.memory->bytes(),
                   .offset = offset,
                   .row_stride = row_stride,
                   .inner_count = inner_count,
                   .inner_bytes = inner_bytes,
                   .inner_stride = inner_stride});
  regions.push_back(std::move(region));
}

uint64_t Template::block_bytes() const noexcept {
  uint64_t bytes = 0;
  for (const auto& part : parts) bytes += uint64_t{part.inner_count} * part.inner_bytes;
  return bytes;
}

uint32_t Section::set_keys(int layout, nb::handle keys, uint32_t first_component, uint32_t component_count, bool stop_at_miss) {
  packed_keys_.clear();
  uint32_t count = 0;
  if (is_list(keys)) {
    count = pack_list(packed_keys_, keys);
  } else if (!PyBytes_Check(keys.ptr()) && !PyByteArray_Check(keys.ptr()) && PyObject_CheckBuffer(keys.ptr())) {
    count = pack_array(packed_keys_, keys);
  } else {
    throw Refused(
        "keys (" + name_of_type(keys) +
        "): must be a list or tuple of bytes, or an array of uint8 with shape [keys, key_bytes]; put a single key into a "
        "list");
  }
  if (packed_keys_.size() > std::numeric_limits<uint32_t>::max()) throw Refused("keys: more than 4 GiB; split the batch");
  if (component_count == 0) throw Refused("components=0: must be at least 1");
  if (uint64_t{count} * component_count > std::numeric_limits<uint32_t>::max()) {
    throw Refused("keys x components is over 2^32 - 1; split the batch");
  }
  header_.layout = layout;
  header_.first_component = first_component;
  header_.component_count = component_count;
  header_.flags = stop_at_miss ? HS_STOP_AT_MISS : 0;
  header_.key_count = count;
  header_.keys_bytes = static_cast<uint32_t>(packed_keys_.size());
  return count;
}

void Section::set_ranges(const std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>& ranges) {
  ranges_.clear();
  for (const auto& [start, count, stride] : ranges) ranges_.push_back({.start = start, .count = count, .stride = stride});
}

void Section::add_pieces(nb::handle item, bool writable, const char* role) {
  uint32_t pieces = 0;
  const auto add = [&](nb::handle piece) {
    kept_.memories.push_back(Memory::of_any(piece, writable, role));
    set_device(kept_.memories.back().device(), iovecs_.empty(), role);
    iovecs_.push_back({.base = kept_.memories.back().data(), .bytes = kept_.memories.back().bytes()});
    ++pieces;
  };
  if (is_list(item)) {
    const Entries entries(item, role);
    for (nb::handle piece : entries.all()) add(piece);
    entries.check_unchanged();
  } else {
    add(item);
  }
  iovec_counts_.push_back(pieces);
}

void Section::split(nb::handle buffer, bool writable, const char* role) {
  kept_.memories.push_back(Memory::of_any(buffer, writable, role));
  const Memory& memory = kept_.memories.back();
  set_device(memory.device(), true, role);
  const uint32_t items = this->items();
  if (items == 0) return;
  if (memory.bytes() % items != 0) {
    throw Refused(std::string(role) + " (" + name_of_type(buffer) + "): " + std::to_string(memory.bytes()) +
                  " bytes do not divide evenly over " + std::to_string(items) +
                  " blocks; pass a buffer whose first dimension is the blocks, or a list with one buffer per block");
  }
  const size_t bytes = memory.bytes() / items;
  iovecs_.reserve(items);
  for (uint32_t i = 0; i < items; ++i) iovecs_.push_back({.base = memory.data() + i * bytes, .bytes = bytes});
  iovec_counts_.assign(items, 1);
}

void Section::set_device(int device, bool first, const char* role) {
  const auto number = static_cast<uint32_t>(device + 1);
  if (first) header_.cuda_device = number;
  if (header_.cuda_device == number) return;
  throw Refused(std::string(role) + ": memory of " + (device < 0 ? "the host" : "cuda:" + std::to_string(device)) +
                " beside memory of another place; make a section for each");
}

void Section::place(nb::handle target, bool writable, const char* role) {
  iovecs_.clear();
  iovec_counts_.clear();
  if (is_list(target)) {
    const Entries entries(target, role);
    if (entries.size() != items()) {
      throw Refused(std::string(role) + ": a list of " + std::to_string(entries.size()) + " for " + std::to_string(items()) +
                    " blocks; it needs one entry per block (key-major: all components of the first key, then of the second)");
    }
    kept_.memories.reserve(entries.size());
    iovecs_.reserve(entries.size());
    iovec_counts_.reserve(entries.size());
    for (nb::handle item : entries.all()) add_pieces(item, writable, role);
    entries.check_unchanged();
  } else {
    split(target, writable, role);
  }
  header_.target_kind = HS_TARGET_IOVEC;
}

void Section::set_target(nb::handle target) { place(target, true, "target"); }

void Section::set_block_bytes(nb::handle block_bytes) {
  block_bytes_ = elements<uint32_t>(block_bytes, items(), "block_bytes");
}

// A source may be larger than the block in it (a table of rows of the largest size): the core wants exactly the block.
void Section::trim_pieces() {
  size_t piece = 0;
  for (uint32_t item = 0; item < items(); ++item) {
    size_t left = block_bytes_[item];
    for (uint32_t i = 0; i < iovec_counts_[item]; ++i, ++piece) {
      iovecs_[piece].bytes = std::min(iovecs_[piece].bytes, left);
      left -= iovecs_[piece].bytes;
    }
    if (left > 0) {
      throw Refused("source: block " + std::to_string(item) + " has " + std::to_string(block_bytes_[item] - left) +
                    " bytes; block_bytes says " + std::to_string(block_bytes_[item]));
    }
  }
}

void Section::set_source(nb::handle source, nb::handle block_bytes) {
  place(source, false, "source");
  if (!block_bytes.is_none()) {
    set_block_bytes(block_bytes);
    trim_pieces();
    return;
  }
  sum_pieces();
}

// Blocks are as long as their pieces.
void Section::sum_pieces() {
  block_bytes_.clear();
  size_t piece = 0;
  for (uint32_t item = 0; item < items(); ++item) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < iovec_counts_[item]; ++i, ++piece) bytes += iovecs_[piece].bytes;
    if (bytes > std::numeric_limits<uint32_t>::max()) {
      throw Refused("source: block " + std::to_string(item) + " has " + std::to_string(bytes) + " bytes; at most 2^32 - 1");
    }
    block_bytes_.push_back(static_cast<uint32_t>(bytes));
  }
}

void Section::set_rows(nb::object rows_template, nb::handle rows, bool is_source, nb::handle block_bytes) {
  auto& from = *nb::inst_ptr<Template>(rows_template);
  from.given = true;
  for (const auto& region : from.regions) {
    const auto& owner = *nb::inst_ptr<Region>(region);
    if (!owner.usable()) throw Refused("region is closed");
    if (!is_source && !owner.is_writable) {
      throw Refused("target: the region is read-only; register writable memory to get into it");
    }
    set_device(owner.device(), region.is(from.regions.front()), "rows");
  }
  rows_ = elements<int64_t>(rows, items(), "rows");
  header_.target_kind = HS_TARGET_ROWS;
  const nb::object before = std::exchange(kept_.rows_template, std::move(rows_template));  // dies last: it may run Python code
  if (!is_source) return;
  if (!block_bytes.is_none()) {
    set_block_bytes(block_bytes);
  } else if (from.block_bytes() > std::numeric_limits<uint32_t>::max()) {
    throw Refused("template: a row of " + std::to_string(from.block_bytes()) + " bytes; at most 2^32 - 1");
  } else {
    block_bytes_.assign(items(), static_cast<uint32_t>(from.block_bytes()));
  }
}

void Section::set_addresses(nb::handle regions, nb::handle addresses, nb::handle lengths, bool is_source) {
  const char* const role = is_source ? "source" : "target";
  struct Span {
    uint64_t begin, end;
    nb::object region;
  };
  std::vector<Span> spans;
  const Entries named(regions, "regions");
  for (nb::handle region : named.all()) {
    if (!nb::isinstance<Region>(region)) throw Refused("regions (" + name_of_type(region) + "): must be regions");
    const auto& owner = *nb::inst_ptr<Region>(region);
    if (!owner.usable()) throw Refused("region is closed");
    if (!is_source && !owner.is_writable) {
      throw Refused("target: the region is read-only; register writable memory to get into it");
    }
    set_device(owner.device(), spans.empty(), role);
    spans.push_back({owner.address(), owner.address() + owner.bytes(), nb::borrow(region)});
  }
  std::sort(spans.begin(), spans.end(), [](const Span& one, const Span& other) { return one.begin < other.begin; });
  const Memory count_of = Memory::of(addresses, false, "addresses");
  const size_t pieces = count_of.bytes() / sizeof(uint64_t);
  const auto at = elements<uint64_t>(addresses, pieces, "addresses");
  const auto sizes = elements<uint32_t>(lengths, pieces, "lengths");
  if (items() == 0 ? pieces != 0 : pieces % items() != 0) {
    throw Refused(std::string(role) + ": " + std::to_string(pieces) + " addresses do not divide evenly over " +
                  std::to_string(items()) + " blocks");
  }
  iovecs_.clear();
  iovecs_.reserve(pieces);
  for (size_t i = 0; i < pieces; ++i) {
    // Regions may overlap: of those that begin in time, any that reaches far enough.
    const uint64_t begin = at[i], end = begin + sizes[i];
    const auto after = std::upper_bound(spans.begin(), spans.end(), begin,
                                        [](uint64_t address, const Span& span) { return address < span.begin; });
    const bool inside = end >= begin && std::any_of(spans.begin(), after, [&](const Span& span) { return end <= span.end; });
    if (!inside) {
      throw Refused(std::string(role) + ": address " + std::to_string(i) + " (" + std::to_string(begin) + ", " +
                    std::to_string(sizes[i]) + " bytes) is not within one of the " + std::to_string(spans.size()) + " regions");
    }
    iovecs_.push_back({.base = reinterpret_cast<void*>(begin), .bytes = sizes[i]});
  }
  iovec_counts_.assign(items(), items() == 0 ? 0 : static_cast<uint32_t>(pieces / items()));
  header_.target_kind = HS_TARGET_IOVEC;
  if (is_source) sum_pieces();
  std::vector<nb::object> named_regions;
  for (Span& span : spans) named_regions.push_back(std::move(span.region));
  kept_.regions.swap(named_regions);  // those before die last: that may run Python code
}

void Section::set_offer(nb::handle parents, nb::handle depths, uint32_t ttl_s, uint8_t hint) {
  if (!parents.is_none()) parents_ = elements<uint64_t>(parents, items(), "parents");
  if (!depths.is_none()) depths_ = elements<uint16_t>(depths, items(), "depths");
  header_.ttl_s = ttl_s;
  header_.hint = hint;
}

size_t Section::answer_count() const noexcept {
  size_t selected = 0;
  for (const auto& range : ranges_) selected += range.count;
  return items() * (ranges_.empty() ? 1 : selected);
}

const hs_section& Section::prepared(hs_answer* answers, uint32_t* lengths, float* error_bounds, uint32_t* unchecked) {
  if (header_.layout < 0) throw Lacking("no client core could be made when the batch was built");
  // Setters ran Python code between them: what they left has to be of one section.
  const auto is_per_item = [this](size_t count) { return count == items(); };
  const bool whole = (header_.target_kind != HS_TARGET_IOVEC || is_per_item(iovec_counts_.size())) &&
                     (header_.target_kind != HS_TARGET_ROWS || is_per_item(rows_.size())) &&
                     (block_bytes_.empty() || is_per_item(block_bytes_.size())) &&
                     (parents_.empty() || is_per_item(parents_.size())) && (depths_.empty() || is_per_item(depths_.size()));
  if (!whole) throw Refused("batch: its keys or ranges were changed after its targets, sources or outputs were set");
  // One that was closed since the batch was built has let go of its memory.
  each_region([](const Region& region) {
    if (!region.usable()) throw Refused("region is closed");
  });
  header_.keys = reinterpret_cast<const uint8_t*>(packed_keys_.data());
  header_.ranges = ranges_.data();
  header_.range_count = static_cast<uint32_t>(ranges_.size());
  if (header_.target_kind == HS_TARGET_IOVEC) {
    header_.iovecs = iovecs_.data();
    header_.iovec_counts = iovec_counts_.data();
  } else if (header_.target_kind == HS_TARGET_ROWS) {
    if (!kept_.rows_template.is_valid()) throw Refused("batch: it was refused before; make another one");
    const auto& from = *nb::inst_ptr<Template>(kept_.rows_template);
    header_.parts = from.parts.data();
    header_.part_descriptor_count = static_cast<uint32_t>(from.parts.size());
    header_.rows = rows_.data();
  }
  header_.block_bytes = block_bytes_.empty() ? nullptr : block_bytes_.data();
  header_.parents = parents_.empty() ? nullptr : parents_.data();
  header_.depths = depths_.empty() ? nullptr : depths_.data();
  header_.answers = answers;
  header_.lengths = lengths;
  header_.error_bounds = error_bounds;
  header_.unchecked = unchecked;
  return header_;
}

template <typename Do>
void Section::each_region(Do&& act) const {
  if (kept_.rows_template.is_valid()) {
    for (const auto& region : nb::inst_ptr<Template>(kept_.rows_template)->regions) act(*nb::inst_ptr<Region>(region));
  }
  for (const auto& region : kept_.regions) act(*nb::inst_ptr<Region>(region));
}

void Section::register_regions(const std::shared_ptr<hs_client>& client) const {
  each_region([&](Region& region) { region.register_with(client); });
}

void Section::started() {
  if (uses_regions_) return;
  uses_regions_ = true;
  each_region([](Region& region) { ++region.uses; });
}

Section::Kept Section::release() {
  if (uses_regions_) {
    uses_regions_ = false;
    each_region([](Region& region) { --region.uses; });
  }
  drop(iovecs_, iovec_counts_, rows_);
  Kept kept;
  kept.memories.swap(kept_.memories);
  kept.regions.swap(kept_.regions);
  kept.rows_template = std::move(kept_.rows_template);
  return kept;
}

void Section::forget() { drop(packed_keys_, ranges_, block_bytes_, parents_, depths_); }

}  // namespace halfstep::bind
