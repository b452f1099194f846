#include "bind/peer_batch.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

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

// Empty, and without the room that they had: `= {}` keeps a vector's.
template <typename... Memories>
void drop(Memories&... memories) {
  (Memories().swap(memories), ...);
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

void Region::close() {
  if (uses > 0) throw Refused("region: " + std::to_string(uses) + " batches still use it");
  memory.reset();
}

void Template::add(nb::object region, uint64_t offset, int64_t row_stride, uint32_t inner_count, uint32_t inner_bytes,
                   int64_t inner_stride) {
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

Batch::Batch(uint32_t operation) {
  batch_.struct_bytes = sizeof(hs_batch);
  batch_.operation = operation;
  section_.component_count = 1;
}

void Batch::check_open() const {
  if (submitted_) throw Refused("batch: it was submitted and cannot be changed any more");
}

uint32_t Batch::set_keys(int layout, nb::handle keys, uint32_t first_component, uint32_t component_count, bool stop_at_miss) {
  check_open();
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
  section_.layout = layout;
  section_.first_component = first_component;
  section_.component_count = component_count;
  section_.flags = stop_at_miss ? HS_STOP_AT_MISS : 0;
  section_.key_count = count;
  section_.keys_bytes = static_cast<uint32_t>(packed_keys_.size());
  section_.keys = reinterpret_cast<const uint8_t*>(packed_keys_.data());
  batch_.section_count = 1;
  return count;
}

void Batch::set_ranges(const std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>& ranges) {
  check_open();
  ranges_.clear();
  for (const auto& [start, count, stride] : ranges) ranges_.push_back({.start = start, .count = count, .stride = stride});
  section_.ranges = ranges_.data();
  section_.range_count = static_cast<uint32_t>(ranges_.size());
}

void Batch::add_pieces(nb::handle item, bool writable, const char* role) {
  uint32_t pieces = 0;
  const auto add = [&](nb::handle piece) {
    held_.push_back(Memory::of(piece, writable, role));
    iovecs_.push_back({.base = held_.back().data(), .bytes = held_.back().bytes()});
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

void Batch::split(nb::handle buffer, bool writable, const char* role) {
  held_.push_back(Memory::of(buffer, writable, role));
  const Memory& memory = held_.back();
  const uint32_t items = item_count();
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

void Batch::place(nb::handle target, bool writable, const char* role) {
  check_open();
  iovecs_.clear();
  iovec_counts_.clear();
  if (is_list(target)) {
    const Entries entries(target, role);
    if (entries.size() != item_count()) {
      throw Refused(std::string(role) + ": a list of " + std::to_string(entries.size()) + " for " +
                    std::to_string(item_count()) +
                    " blocks; it needs one entry per block (key-major: all components of the first key, then of the second)");
    }
    held_.reserve(entries.size());
    iovecs_.reserve(entries.size());
    iovec_counts_.reserve(entries.size());
    for (nb::handle item : entries.all()) add_pieces(item, writable, role);
    entries.check_unchanged();
  } else {
    split(target, writable, role);
  }
  section_.target_kind = HS_TARGET_IOVEC;
}

void Batch::set_target(nb::handle target) { place(target, true, "target"); }

void Batch::set_block_bytes(nb::handle block_bytes) {
  block_bytes_ = elements<uint32_t>(block_bytes, item_count(), "block_bytes");
}

// A source may be larger than the block in it (a table of rows of the largest size): the core wants exactly the block.
void Batch::trim_pieces() {
  size_t piece = 0;
  for (uint32_t item = 0; item < item_count(); ++item) {
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

void Batch::set_source(nb::handle source, nb::handle block_bytes) {
  place(source, false, "source");
  if (!block_bytes.is_none()) {
    set_block_bytes(block_bytes);
    trim_pieces();
    return;
  }
  block_bytes_.clear();
  size_t piece = 0;
  for (uint32_t item = 0; item < item_count(); ++item) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < iovec_counts_[item]; ++i, ++piece) bytes += iovecs_[piece].bytes;
    if (bytes > std::numeric_limits<uint32_t>::max()) {
      throw Refused("source: block " + std::to_string(item) + " has " + std::to_string(bytes) + " bytes; at most 2^32 - 1");
    }
    block_bytes_.push_back(static_cast<uint32_t>(bytes));
  }
}

void Batch::set_rows(nb::object rows_template, nb::handle rows, bool is_source, nb::handle block_bytes) {
  check_open();
  const auto& from = *nb::inst_ptr<Template>(rows_template);
  for (const auto& region : from.regions) {
    const auto& owner = *nb::inst_ptr<Region>(region);
    if (!owner.usable()) throw Refused("region is closed");
    if (!is_source && !owner.is_writable) {
      throw Refused("target: the region is read-only; register writable memory to get into it");
    }
  }
  rows_ = elements<int64_t>(rows, item_count(), "rows");
  section_.target_kind = HS_TARGET_ROWS;
  template_ = std::move(rows_template);
  if (!is_source) return;
  if (!block_bytes.is_none()) {
    set_block_bytes(block_bytes);
  } else if (from.block_bytes() > std::numeric_limits<uint32_t>::max()) {
    throw Refused("template: a row of " + std::to_string(from.block_bytes()) + " bytes; at most 2^32 - 1");
  } else {
    block_bytes_.assign(item_count(), static_cast<uint32_t>(from.block_bytes()));
  }
}

void Batch::set_offer(nb::handle parents, nb::handle depths, uint32_t ttl_s, uint8_t hint) {
  check_open();
  if (!parents.is_none()) parents_ = elements<uint64_t>(parents, item_count(), "parents");
  if (!depths.is_none()) depths_ = elements<uint16_t>(depths, item_count(), "depths");
  section_.ttl_s = ttl_s;
  section_.hint = hint;
}

size_t Batch::answer_count() const noexcept {
  size_t selected = 0;
  for (const auto& range : ranges_) selected += range.count;
  return item_count() * (ranges_.empty() ? 1 : selected);
}

void Batch::set_outputs(bool lengths) {
  check_open();
  answers_.resize(answer_count());
  section_.answers = answers_.data();
  if (!lengths) return;
  lengths_.resize(item_count());
  section_.lengths = lengths_.data();
  batch_.wants_lengths = batch_.operation == HS_OP_MATCH ? 1 : 0;
}

void Batch::set_options(uint64_t deadline_us, uint8_t order, uint8_t durability, uint8_t priority, bool wants_progress) {
  check_open();
  batch_.deadline_us = static_cast<uint32_t>(std::min<uint64_t>(deadline_us, std::numeric_limits<uint32_t>::max()));
  batch_.order = order;
  batch_.durability = durability;
  batch_.priority = priority;
  batch_.wants_progress = wants_progress ? 1 : 0;
}

uint32_t Batch::set_get(int layout, nb::handle keys, uint32_t first_component, uint32_t component_count, bool stop_at_miss,
                        const std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>& ranges, nb::handle target, bool in_rows,
                        uint64_t deadline_us, uint8_t order, uint8_t priority, bool wants_progress) {
  const uint32_t count = set_keys(layout, keys, first_component, component_count, stop_at_miss);
  set_ranges(ranges);
  if (!in_rows) set_target(target);
  set_outputs(true);
  set_options(deadline_us, order, 0, priority, wants_progress);
  return count;
}

void Batch::set_hold(uint64_t owner, uint32_t ms) {
  check_open();
  batch_.hold_owner = owner;
  batch_.hold_ms = ms;
}

void Batch::set_list(uint64_t cursor, uint32_t limit) {
  check_open();
  batch_.cursor = cursor;
  batch_.limit = limit;
}

void Batch::set_namespace(std::string name, uint64_t quota_bytes, uint64_t pin_budget_bytes, uint32_t default_ttl_s,
                          bool sliding_ttl) {
  check_open();
  text_ = std::move(name);
  batch_.text = text_.c_str();
  batch_.value = quota_bytes;
  batch_.pin_budget_bytes = pin_budget_bytes;
  batch_.default_ttl_s = default_ttl_s;
  batch_.sliding_ttl = sliding_ttl ? 1 : 0;
}

void Batch::set_life(uint64_t value, bool persistent) {
  check_open();
  batch_.value = value;
  batch_.persistent = persistent ? 1 : 0;
}

void Batch::set_prefetch(uint64_t keep_ms, bool follow) {
  check_open();
  batch_.value = keep_ms;
  batch_.follow = follow ? 1 : 0;
}

void Batch::set_layout_id(nb::bytes id) {
  check_open();
  if (id.size() != layout_id_.size()) {
    throw Refused("layout id: " + std::to_string(id.size()) + " bytes; it has " + std::to_string(layout_id_.size()));
  }
  std::memcpy(layout_id_.data(), id.c_str(), layout_id_.size());
  batch_.layout_id = layout_id_.data();
}

void Batch::set_question(nb::bytes question) {
  check_open();
  text_.assign(question.c_str(), question.size());
  batch_.question = reinterpret_cast<const uint8_t*>(text_.data());
  batch_.question_bytes = text_.size();
}

nb::object Batch::ok() const {
  nb::object told = nb::steal(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(answers_.size())));
  if (!told.is_valid()) throw nb::python_error();
  char* const to = PyByteArray_AsString(told.ptr());
  for (size_t i = 0; i < answers_.size(); ++i) to[i] = answers_[i].answer == HS_OK ? 1 : 0;
  return told;
}

nb::bytes Batch::packed_keys() const { return nb::bytes(packed_keys_.data(), packed_keys_.size()); }

hs_batch Batch::prepared(uint64_t user_data) {
  check_open();
  const bool has_section = batch_.section_count > 0;
  if (has_section && section_.layout < 0) throw Lacking("no client core could be made when the batch was built");
  // Setters ran Python code between them: what they left has to be of one batch.
  const auto is_per_item = [this](size_t count) { return count == item_count(); };
  const bool whole = (section_.target_kind != HS_TARGET_IOVEC || is_per_item(iovec_counts_.size())) &&
                     (section_.target_kind != HS_TARGET_ROWS || is_per_item(rows_.size())) &&
                     (block_bytes_.empty() || is_per_item(block_bytes_.size())) &&
                     (parents_.empty() || is_per_item(parents_.size())) && (depths_.empty() || is_per_item(depths_.size())) &&
                     (lengths_.empty() || is_per_item(lengths_.size())) &&
                     (section_.answers == nullptr || answers_.size() == answer_count());
  if (has_section && !whole)
    throw Refused("batch: its keys or ranges were changed after its targets, sources or outputs were set");
  if (section_.target_kind == HS_TARGET_IOVEC) {
    section_.iovecs = iovecs_.data();
    section_.iovec_counts = iovec_counts_.data();
  } else if (section_.target_kind == HS_TARGET_ROWS) {
    const auto& from = *nb::inst_ptr<Template>(template_);
    // One that was closed since the batch was built has let go of its memory.
    for (const auto& region : from.regions) {
      if (!nb::inst_ptr<Region>(region)->usable()) throw Refused("region is closed");
    }
    section_.parts = from.parts.data();
    section_.part_descriptor_count = static_cast<uint32_t>(from.parts.size());
    section_.rows = rows_.data();
  }
  section_.block_bytes = block_bytes_.empty() ? nullptr : block_bytes_.data();
  section_.parents = parents_.empty() ? nullptr : parents_.data();
  section_.depths = depths_.empty() ? nullptr : depths_.data();
  batch_.sections = has_section ? &section_ : nullptr;
  batch_.user_data = user_data;
  batch_.cursor_out = &cursor_;
  batch_.outcome = &outcome_;
  batch_.sink = &Batch::append_record;
  batch_.sink_context = this;
  return batch_;
}

void Batch::started(nb::object owner) {
  submitted_ = true;
  owner_ = std::move(owner);
  if (template_.is_valid() && !uses_regions_) {
    uses_regions_ = true;
    for (const auto& region : nb::inst_ptr<Template>(template_)->regions) ++nb::inst_ptr<Region>(region)->uses;
  }
}

void Batch::refused() noexcept {
  submitted_ = false;
  const Remains remains = release();
}

Batch::Remains::~Remains() {
  in_python([this] {
    held.clear();
    Py_XDECREF(rows_template.release().ptr());
    Py_XDECREF(owner.release().ptr());
    Py_XDECREF(batch.release().ptr());
  });
}

Batch::Remains Batch::release() {
  if (uses_regions_) {
    uses_regions_ = false;
    for (const auto& region : nb::inst_ptr<Template>(template_)->regions) --nb::inst_ptr<Region>(region)->uses;
  }
  Remains remains;
  remains.held = std::move(held_);
  remains.rows_template = std::move(template_);
  remains.owner = std::move(owner_);
  drop(held_, iovecs_, iovec_counts_, rows_);
  return remains;
}

Batch::Remains Batch::finish(uint32_t items_ok) {
  done_ = true;
  items_ok_ = items_ok;
  // A result may keep the batch, for its answers alone.
  drop(packed_keys_, ranges_, block_bytes_, parents_, depths_);
  return release();
}

Batch::Remains Batch::finish_unseen() {
  const size_t items = std::max<size_t>(item_count(), 1);
  const size_t units = std::max<size_t>(answers_.size() / items, 1);
  uint32_t items_ok = 0;
  for (size_t i = 0; i + units <= answers_.size(); i += units) {
    const auto ok = [](const hs_answer& answer) { return answer.answer == HS_OK; };
    items_ok +=
        std::all_of(answers_.begin() + static_cast<ptrdiff_t>(i), answers_.begin() + static_cast<ptrdiff_t>(i + units), ok);
  }
  return finish(items_ok);
}

Batch::Remains Batch::finish_forked() {
  constexpr uint16_t kForked = 83;  // wire::Reason::Forked
  constexpr hs_answer forked{.answer = HS_CANCELLED, .zero = 0, .reason = kForked};
  if (outcome_.answer == HS_PENDING) outcome_ = forked;
  for (hs_answer& answer : answers_) {
    if (answer.answer == HS_PENDING) answer = forked;
  }
  return finish(0);
}

nb::list Batch::records() const {
  nb::list list;
  if (!done_) return list;
  for (const auto& [record, name] : records_) {
    list.append(nb::make_tuple(nb::bytes(record.data(), record.size()), nb::bytes(name.data(), name.size())));
  }
  return list;
}

int Batch::traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<Batch>(self)->owner_.ptr());
  return 0;
}

void Batch::append_record(void* context, const void* record, size_t record_bytes, const void* name, size_t name_bytes) {
  static_cast<Batch*>(context)->records_.emplace_back(std::string(static_cast<const char*>(record), record_bytes),
                                                      std::string(static_cast<const char*>(name), name_bytes));
}

}  // namespace halfstep::bind
