#include "bind/peer_batch.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "bind/interpreter.h"

namespace halfstep::bind {
Batch::Batch(uint32_t operation) {
  batch_.struct_bytes = sizeof(hs_batch);
  batch_.operation = operation;
}

void Batch::check_open() const {
  if (submitted_) throw Refused("batch: it was submitted and cannot be changed any more");
}

uint32_t Batch::set_keys(int layout, nb::handle keys, uint32_t first_component, uint32_t component_count, bool stop_at_miss) {
  const Setting setting(*this);
  Section& section = *now_;
  const uint32_t count = section.set_keys(layout, keys, first_component, component_count, stop_at_miss);
  batch_.section_count = 1 + static_cast<uint32_t>(more_.size());
  return count;
}

void Batch::set_ranges(const std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>& ranges) {
  const Setting setting(*this);
  now_->set_ranges(ranges);
}

void Batch::set_target(nb::handle target) {
  const Setting setting(*this);
  now_->set_target(target);
}

void Batch::set_source(nb::handle source, nb::handle block_bytes) {
  const Setting setting(*this);
  now_->set_source(source, block_bytes);
}

void Batch::set_rows(nb::object rows_template, nb::handle rows, bool is_source, nb::handle block_bytes) {
  const Setting setting(*this);
  now_->set_rows(std::move(rows_template), rows, is_source, block_bytes);
}

void Batch::set_addresses(nb::handle regions, nb::handle addresses, nb::handle lengths, bool is_source) {
  const Setting setting(*this);
  now_->set_addresses(regions, addresses, lengths, is_source);
}

void Batch::set_offer(nb::handle parents, nb::handle depths, uint32_t ttl_s, uint8_t hint) {
  const Setting setting(*this);
  now_->set_offer(parents, depths, ttl_s, hint);
}

void Batch::next_section() {
  const Setting setting(*this);
  if (batch_.section_count == 0) throw Refused("batch: its first section has no keys yet");
  more_.push_back(std::make_unique<Section>());
  now_ = more_.back().get();
  now_->outputs.answers_at = answers_.size();
  now_->outputs.lengths_at = lengths_.size();
  batch_.section_count = 1 + static_cast<uint32_t>(more_.size());
}

uint32_t Batch::item_count() const noexcept {
  uint32_t items = first_.items();
  for (const auto& section : more_) items += section->items();
  return items;
}

void Batch::set_outputs(bool lengths) {
  const Setting setting(*this);
  Section::Outputs& outputs = now_->outputs;
  answers_.resize(outputs.answers_at + now_->answer_count());
  outputs.answers = true;
  if (!lengths) return;
  lengths_.resize(outputs.lengths_at + now_->items());
  if (batch_.operation == HS_OP_GET) error_bounds_.resize(lengths_.size());
  outputs.lengths = true;
  batch_.wants_lengths = batch_.operation == HS_OP_MATCH ? 1 : 0;
}

void Batch::set_options(uint64_t deadline_us, uint8_t order, uint8_t durability, uint8_t priority, bool wants_progress) {
  const Setting setting(*this);
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
  const Setting setting(*this);
  batch_.hold_owner = owner;
  batch_.hold_ms = ms;
}

void Batch::set_list(uint64_t cursor, uint32_t limit) {
  const Setting setting(*this);
  batch_.cursor = cursor;
  batch_.limit = limit;
}

void Batch::set_namespace(std::string name, uint64_t quota_bytes, uint64_t pin_budget_bytes, uint32_t default_ttl_s,
                          bool sliding_ttl) {
  const Setting setting(*this);
  text_ = std::move(name);
  batch_.text = text_.c_str();
  batch_.value = quota_bytes;
  batch_.pin_budget_bytes = pin_budget_bytes;
  batch_.default_ttl_s = default_ttl_s;
  batch_.sliding_ttl = sliding_ttl ? 1 : 0;
}

void Batch::set_coding(uint16_t policy, uint16_t step_limit) {
  const Setting setting(*this);
  batch_.sets_coding = 1;
  batch_.policy = policy;
  batch_.step_limit = step_limit;
}

void Batch::set_life(uint64_t value, bool persistent) {
  const Setting setting(*this);
  batch_.value = value;
  batch_.persistent = persistent ? 1 : 0;
}

void Batch::set_prefetch(uint64_t keep_ms, bool follow, uint32_t kind) {
  const Setting setting(*this);
  batch_.value = keep_ms;
  batch_.follow = follow ? 1 : 0;
  batch_.prefetch_kind = kind;
}

void Batch::set_wait() {
  const Setting setting(*this);
  batch_.wait = 1;
}

void Batch::set_streams(std::vector<uint64_t> streams) {
  const Setting setting(*this);
  streams_ = std::move(streams);
}

void Batch::set_layout_id(nb::bytes id) {
  const Setting setting(*this);
  if (id.size() != layout_id_.size()) {
    throw Refused("layout id: " + std::to_string(id.size()) + " bytes; it has " + std::to_string(layout_id_.size()));
  }
  std::memcpy(layout_id_.data(), id.c_str(), layout_id_.size());
  batch_.layout_id = layout_id_.data();
}

void Batch::set_question(nb::bytes question) {
  const Setting setting(*this);
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

const hs_section& Batch::prepared(Section& section) {
  const Section::Outputs& outputs = section.outputs;
  const bool placed = outputs.lengths && batch_.operation == HS_OP_GET && section.on_device();
  if (placed) unchecked_.resize(lengths_.size());
  return section.prepared(outputs.answers ? answers_.data() + outputs.answers_at : nullptr,
                          outputs.lengths ? lengths_.data() + outputs.lengths_at : nullptr,
                          outputs.lengths && !error_bounds_.empty() ? error_bounds_.data() + outputs.lengths_at : nullptr,
                          placed ? unchecked_.data() + outputs.lengths_at : nullptr);
}

// Setters ran Python code between them: what they left has to be of one batch.
void Batch::check_outputs() const {
  size_t answers = 0, lengths = 0;
  bool whole = true;
  const auto add = [&](const Section& section) {
    const Section::Outputs& outputs = section.outputs;
    whole = whole && outputs.answers_at == answers && outputs.lengths_at == lengths;
    if (outputs.answers) answers += section.answer_count();
    if (outputs.lengths) lengths += section.items();
  };
  add(first_);
  for (const auto& section : more_) add(*section);
  if (whole && answers == answers_.size() && lengths == lengths_.size()) return;
  throw Refused("batch: its keys or ranges were changed after its targets, sources or outputs were set");
}

hs_batch Batch::prepared(uint64_t user_data) {
  check_open();
  if (setting_ != 0) throw Refused("batch: it is being set; submit it afterwards");
  check_outputs();
  if (batch_.section_count == 1) {
    batch_.sections = &prepared(first_);
  } else if (batch_.section_count > 1) {
    headers_.clear();
    headers_.push_back(prepared(first_));
    for (const auto& section : more_) headers_.push_back(prepared(*section));
    batch_.sections = headers_.data();
  }
  bool on_device = first_.on_device();
  for (const auto& section : more_) on_device = on_device || section->on_device();
  batch_.streams = on_device ? streams_.data() : nullptr;
  batch_.stream_count = on_device ? static_cast<uint32_t>(streams_.size()) : 0;
  batch_.user_data = user_data;
  batch_.cursor_out = &cursor_;
  batch_.outcome = &outcome_;
  batch_.sink = &Batch::append_record;
  batch_.sink_context = this;
  return batch_;
}

void Batch::register_regions(const std::shared_ptr<hs_client>& client) const {
  first_.register_regions(client);
  for (const auto& section : more_) section->register_regions(client);
}

void Batch::started(nb::object owner) {
  submitted_ = true;
  owner_ = std::move(owner);
  first_.started();
  for (const auto& section : more_) section->started();
}

void Batch::refused() noexcept {
  submitted_ = false;
  const Remains remains = release();
}

Batch::Remains::~Remains() {
  in_python([this] {
    first = {};
    more.clear();
    Py_XDECREF(owner.release().ptr());
    Py_XDECREF(batch.release().ptr());
  });
}

Batch::Remains Batch::release() {
  Remains remains;
  remains.first = first_.release();
  remains.more.reserve(more_.size());
  for (const auto& section : more_) remains.more.push_back(section->release());
  remains.owner = std::move(owner_);
  return remains;
}

Batch::Remains Batch::finish(uint32_t items_ok) {
  done_ = true;
  items_ok_ = items_ok;
  first_.forget();
  for (const auto& section : more_) section->forget();
  return release();
}

Batch::Remains Batch::finish_unseen() {
  uint32_t items_ok = 0;
  const auto count = [&](const Section& section) {
    const Section::Outputs& outputs = section.outputs;
    const size_t answers = outputs.answers ? section.answer_count() : 0;
    const size_t units = std::max<size_t>(answers / std::max<uint32_t>(section.items(), 1), 1);
    const auto ok = [](const hs_answer& answer) { return answer.answer == HS_OK; };
    for (size_t at = 0; at + units <= answers; at += units) {
      const auto first = answers_.begin() + static_cast<ptrdiff_t>(outputs.answers_at + at);
      items_ok += std::all_of(first, first + static_cast<ptrdiff_t>(units), ok);
    }
  };
  count(first_);
  for (const auto& section : more_) count(*section);
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
