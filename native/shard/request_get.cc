#include "shard/request_get.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <string>
#include <utility>

#include "base/slots.h"
#include "shard/connection.h"
#include "shard/reply.h"
#include "shard/request_keys.h"
#include "shard/shard.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Opcode;
using wire::Reason;

namespace {

constexpr uint64_t kStepBytesMax = 4 * MiB;
// Of each block in a round: a device's large read, beside which the header of its frame does not count; or as little as half of
// it, where the round of all keys is one window then.
constexpr uint64_t kRoundBytes = 512 * KiB;
constexpr uint64_t kRoundBytesMin = 256 * KiB;
constexpr uint64_t kRoundHeaderBytes = 64 * KiB;
constexpr uint64_t kRoundsMin = 4;
// In layer order, of a block that is read whole: as much of each is read before more of any.
constexpr uint32_t kLayerPieceBytes = 128 * KiB;
constexpr size_t kStepItemsMax = 1024;
constexpr size_t kLookAheadItems = 64;  // memory is asked for these side by side
// Statuses are told per selected part: this many of a request, or answering it would hold up the others.
constexpr uint64_t kSelectedPartsMax = uint64_t{1} << 20;

AnswerReason answer_of_read(Status status) noexcept {
  switch (status.code()) {
    case Code::NotFound: return {Answer::Miss, Reason::Absent};
    case Code::Corrupt: return {Answer::Miss, Reason::Corrupt};
    case Code::IoError: return {Answer::Unavailable, Reason::Media};
    default: return {Answer::Unavailable, Reason::None};
  }
}

// The part that a section selects at this place.
uint64_t part_at(const wire::SectionView& section, uint32_t ordinal) noexcept {
  for (uint32_t r = 0; r < section.head.range_count; ++r) {
    const wire::PartRange range = section.range(r);
    if (ordinal < range.count) return range.start + uint64_t{ordinal} * range.stride;
    ordinal -= range.count;
  }
  return ordinal;
}

uint64_t bytes_between(const wire::GroupShape& shape, uint64_t first_part, uint64_t last_part) noexcept {
  return shape.offset_of(static_cast<uint32_t>(last_part + 1)) - shape.offset_of(static_cast<uint32_t>(first_part));
}

// The parts that it selects at the places first to end - 1, and what lies between them. All of a block: no span.
store::PartSpan span_of(const wire::SectionView& section, uint32_t first, uint32_t end) noexcept {
  if (section.head.range_count == 0) {
    return end == UINT32_MAX ? store::PartSpan() : store::PartSpan{first, end - first};
  }
  uint64_t low = UINT64_MAX;
  uint64_t high = 0;
  uint32_t before = 0;  // places of the ranges so far
  for (uint32_t r = 0; r < section.head.range_count; ++r) {
    const wire::PartRange range = section.range(r);
    const uint32_t from = std::max(first, before) - before;
    const uint32_t to = std::min(std::max(end, before) - before, range.count);
    before += range.count;
    if (from >= to) continue;
    low = std::min(low, range.start + uint64_t{from} * range.stride);
    high = std::max(high, range.start + uint64_t{to - 1} * range.stride);
  }
  // What no block has is for the read to find.
  if (low > high || high >= wire::kPartsMax) return {};
  return {static_cast<uint32_t>(low), static_cast<uint32_t>(high - low + 1)};
}

}  // namespace

void GetRequest::start(Connection& connection, uint64_t id, ConstBytes body) {
  keep_body(body_, body);
  if (!admit_parsed(connection, Opcode::Get, id, body_, &view_, kDeadlineUsDefault)) return;
  if (!plan_sections()) {
    finish();
    return;
  }
  advance();
}

// Resolves layouts and counts what was asked for. False: the request was answered as a whole.
bool GetRequest::plan_sections() {
  Connection& connection = *this->connection();
  plans_.clear();
  uint32_t items = 0;
  uint64_t selected = 0;
  for (uint32_t s = 0; s < view_.section_count; ++s) {
    const wire::SectionView& section = view_.sections[s];
    const Connection::Handle& handle = connection.handles()[section.head.layout];
    SectionPlan plan{
        .scope = handle.scope, .layout = handle.layout, .first_number = items, .parts = span_of(section, 0, UINT32_MAX)};
    for (uint32_t r = 0; r < section.head.range_count; ++r) plan.parts_per_item += section.range(r).count;
    items += section.item_count();
    selected += uint64_t{section.item_count()} * plan.parts_per_item;
    plans_.push_back(plan);
  }
  if (selected > kSelectedPartsMax) {
    answer_whole(connection, Opcode::Get, id(), {Answer::Rejected, Reason::Limit},
                 "items x selected parts: at most 1048576 in one request; ask in several");
    return false;
  }
  outcomes_.assign(items, {});
  round_first_ = 0;
  round_end_ = UINT32_MAX;
  exceeds_credit_ = rounds_ = step_begun_ = false;
  begin_pass();
  moment_ = {};
  return true;
}

// Over all items.
void GetRequest::begin_pass() noexcept {
  found_.clear();
  found_at_ = 0;
  section_ = key_ = cell_ = 0;
  keys_ = wire::KeyCursor(view_.sections[0].keys);
  key_bytes_ = {};
  planned_all_ = false;
  round_is_last_ = true;
}

// ---- Reading -------------------------------------------------------------------------------------------------------------

// Goes on until the credit is in use, memory is short, or everything is under way.
void GetRequest::advance() {
  while (!finished() && may_read()) {
    if (step_at_ == step_.size() && (planned_all_ || !plan_step())) break;
    if (!begin_reads()) return;
  }
  if (finished()) return;
  set_waits(Waits::Nothing);
  // Also when nothing was found: Final follows when it is this request's turn.
  connection()->offer_chunks(*this);
}

// Gathers the next step. False: no item is left, or none of those left is there.
bool GetRequest::plan_step() {
  step_.clear();
  step_at_ = 0;
  step_bytes_ = 0;
  step_has_credit_ = false;
  const uint64_t step_bytes_max = step_bytes();
  while (section_ < view_.section_count) {
    const wire::SectionView& section = view_.sections[section_];
    if (key_ == section.head.key_count) {
      if (++section_ < view_.section_count) keys_ = wire::KeyCursor(view_.sections[section_].keys);
      key_ = 0;
      continue;
    }
    if (cell_ == 0 && key_bytes_.empty() && !keys_.next(&key_bytes_)) break;  // parse_request found them whole
    if (found_at_ == found_.size()) look_ahead();
    if (!plan_item(key_bytes_, step_bytes_max)) {
      if (begin_again()) return plan_step();
      return true;
    }
    ++found_at_;
    if (++cell_ == section.head.component_count) {
      cell_ = 0;
      ++key_;
      key_bytes_ = {};
    }
  }
  // Nothing of the next round stands in a window of this one.
  if (!step_.empty() && !round_is_last_) return true;
  if (next_round()) return plan_step();
  planned_all_ = true;
  return !step_.empty();
}

// Of which a step may take memory at most.
uint64_t GetRequest::step_bytes() const noexcept {
  const uint64_t credit = connection()->get_credit().whole_bytes();
  if (layer_major()) return exceeds_credit_ ? std::max<uint64_t>(credit / 2, 1) : credit;
  return std::min(std::max<uint64_t>(credit / 4, 1), kStepBytesMax);
}

// Instead of a first step that is full, and of which nothing has begun: while one window is sent, the next is read. False: the
// step is as good as any.
bool GetRequest::begin_again() {
  if (!layer_major() || exceeds_credit_ || step_begun_) return false;
  exceeds_credit_ = true;
  const bool large = planned_bytes_ >= kRoundsMin * kRoundBytes * planned_items_;
  const bool in_rounds = large && begin_rounds();
  for (GetItem* item : step_) {
    item->credit_bytes = 0;
    release(*item);
  }
  step_.clear();
  planned_items_ = 0;
  planned_bytes_ = 0;
  if (!in_rounds) begin_pass();
  return true;
}

// ---- Rounds --------------------------------------------------------------------------------------------------------------

const wire::GroupShape* GetRequest::shape_of(uint32_t section) const noexcept {
  const wire::Layout* const layout = shard().store().layout_of(plans_[section].scope);
  const uint32_t group = wire::Component{view_.sections[section].head.first_component}.group();
  return layout != nullptr && group < layout->groups().size() ? &layout->groups()[group] : nullptr;
}

// The place after the parts that a round sends of each block, from round_first_ on.
uint32_t GetRequest::round_end_of(uint32_t section) const noexcept {
  const wire::GroupShape* const shape = shape_of(section);
  if (shape == nullptr) return round_first_;
  uint32_t places = plans_[section].parts_per_item;
  if (places == 0) places = shape->part_count != 0 ? shape->part_count : wire::kPartsMax;
  uint32_t end = round_first_;
  uint64_t low = UINT64_MAX;
  uint64_t high = 0;
  for (uint64_t bytes = 0; end < places; ++end) {
    const uint64_t part = part_at(view_.sections[section], end);
    low = std::min(low, part);
    high = std::max(high, part);
    bytes += shape->part_bytes[part % shape->size_count];
    if (end == round_first_) continue;
    if (bytes > round_bytes_ || high >= wire::kPartsMax) break;
    // What lies between them is read, too.
    if (bytes_between(*shape, low, high) > 2 * round_bytes_) break;
  }
  return end;
}

// False: its layout has just gone.
bool GetRequest::begin_rounds() {
  for (uint32_t s = 0; s < view_.section_count; ++s) {
    if (shape_of(s) == nullptr) return false;
  }
  const uint64_t of_each = step_bytes() / outcomes_.size();
  round_bytes_ = std::clamp(of_each - std::min(of_each, kRoundHeaderBytes), kRoundBytesMin, kRoundBytes);
  rounds_ = true;
  round_end_ = 0;
  if (next_round() && rounds_pay()) return true;
  rounds_ = false;
  round_first_ = 0;
  round_end_ = UINT32_MAX;
  for (uint32_t s = 0; s < view_.section_count; ++s) plans_[s].parts = span_of(view_.sections[s], 0, UINT32_MAX);
  return false;
}

// Whether most of the first step's blocks can be read in parts, for this round. Coded ones cannot, and what is in memory is
// pinned whole.
bool GetRequest::rounds_pay() {
  sought_.clear();
  for (const GetItem* item : step_) {
    sought_.emplace_back(item->read.key, item->read.component).parts = plans_[item->section].parts;
  }
  found_.resize(sought_.size());
  shard().store().find_many(sought_, found_);
  uint64_t in_round_bytes = 0;
  uint64_t whole_bytes = 0;
  for (const store::Found& found : found_) {
    in_round_bytes += found.memory_bytes;
    whole_bytes += found.block_bytes;
  }
  found_.clear();
  return in_round_bytes * 2 <= whole_bytes;
}

bool GetRequest::next_round() {
  if (!rounds_ || (round_end_ != 0 && round_is_last_)) return false;
  round_first_ = round_end_;
  for (uint32_t s = 0; s < view_.section_count; ++s) round_end_ = std::max(round_end_, round_end_of(s));
  if (round_end_ == round_first_) return false;
  for (uint32_t s = 0; s < view_.section_count; ++s) {
    plans_[s].parts = span_of(view_.sections[s], round_first_, round_end_);
  }
  begin_pass();
  return true;
}

// What is found now may be gone, or another, when it is read: then the read says so.
void GetRequest::look_ahead() {
  const wire::SectionHead& head = view_.sections[section_].head;
  std::array<store::BlockName, kLookAheadItems> names;
  std::array<store::IndexKey, kLookAheadItems> index_keys;
  size_t gathered = 0;
  found_at_ = 0;
  wire::KeyCursor keys = keys_;
  ConstBytes key = key_bytes_;
  for (uint32_t k = key_, cell = cell_; gathered < kLookAheadItems;) {
    const wire::Component component{head.first_component + cell};
    names[gathered++] = {plans_[section_].scope, component, key};
    if (++cell < head.component_count) continue;
    cell = 0;
    if (++k == head.key_count || !keys.next(&key)) break;
  }
  shard().store().keys_of(std::span(names).first(gathered), std::span(index_keys).first(gathered));
  sought_.clear();
  for (size_t i = 0; i < gathered; ++i) {
    store::Sought& sought = sought_.emplace_back(index_keys[i], names[i].component);
    sought.parts = plans_[section_].parts;
  }
  found_.resize(gathered);
  shard().store().find_many(sought_, found_);
}

// False: the step is full, and the item stays for the next.
bool GetRequest::plan_item(ConstBytes key, uint64_t step_bytes_max) {
  const SectionPlan& plan = plans_[section_];
  const wire::SectionHead& head = view_.sections[section_].head;
  const uint32_t index = key_ * head.component_count + cell_;
  if (exceeds_credit_ && outcomes_[plan.first_number + index].status.answer != Answer::Pending) return true;
  if (key_ > plan.first_missed_key) {
    outcomes_[plan.first_number + index].status = {Answer::Miss, Reason::Skipped};
    return true;
  }
  const wire::Component component{head.first_component + cell_};
  const store::Found& found = found_[found_at_];
  if (!found.present) {
    miss(section_, index, {Answer::Miss, Reason::Absent});
    return true;
  }
  const wire::GroupShape* const shape = rounds_ ? shape_of(section_) : nullptr;
  const uint32_t places =
      plan.parts_per_item != 0 || shape == nullptr ? plan.parts_per_item : shape->parts_of(found.block_bytes);
  if (shape != nullptr && places <= round_first_) return true;  // all of it is on its way
  const uint64_t bytes = found.memory_bytes;
  const size_t items_max = layer_major() ? wire::kItemsMax : kStepItemsMax;
  if (!step_.empty() && (step_bytes_ + bytes > step_bytes_max || step_.size() == items_max)) return false;
  GetItem* item = shard().get_items().take();
  *item = {};
  item->read.key = sought_[found_at_].key;
  item->read.component = component;
  item->read.parts = plan.parts;
  item->read.goes_on = round_first_ != 0;
  if (layer_major()) {
    item->read.piece_bytes = kLayerPieceBytes;
    item->read.landed = &GetRequest::on_landed;
  }
  item->ordinal = round_first_;
  item->end = round_end_;
  item->read.complete = &GetRequest::on_read;
  item->read.owner = item;
  item->read.moment = &moment_;
  item->request = this;
  item->credit_bytes = bytes;
  item->section = section_;
  item->index = index;
  item->number = plan.first_number + index;
  item->name_number = wire::name_number(plan.layout, component, key);
  round_is_last_ = round_is_last_ && places <= round_end_;
  step_.push_back(item);
  step_bytes_ += bytes;
  ++planned_items_;
  planned_bytes_ += found.block_bytes;
  retain();
  return true;
}

// False: the request waits for credit or memory.
bool GetRequest::begin_reads() {
  if (!step_has_credit_) {
    Credit& credit = connection()->get_credit();
    if (!credit.take(*this, step_bytes_)) {
      set_waits(Waits::Credit, &credit);
      return false;
    }
    set_waits(Waits::Nothing);
    step_has_credit_ = true;
  }
  std::vector<store::Read*>& reads = shard().read_window();
  reads.clear();
  const size_t count = std::min(step_.size() - step_at_, step_bound_);
  for (size_t i = step_at_; i < step_at_ + count; ++i) reads.push_back(&step_[i]->read);
  // What is resident completes inside the call: the items stand in the window before.
  const auto first = step_.begin() + static_cast<ptrdiff_t>(step_at_);
  const bool ahead = layer_major() && !window_.empty();
  std::vector<GetItem*>& window = ahead ? ahead_ : window_;
  const size_t window_before = window.size();
  window.insert(window.end(), first, first + static_cast<ptrdiff_t>(count));
  if (!ahead) pass_ = window_first_ = (*first)->ordinal;
  const Status status = shard().store().begin_reads(reads);
  step_begun_ = true;
  if (status.ok()) {
    step_at_ += count;
    return true;
  }
  window.resize(window_before);
  if (status == Code::TooLarge && count > 1) {
    step_bound_ = count / 2;
    return true;
  }
  if (status == Code::Throttled) {
    set_waits(Waits::Memory);
    return false;
  }
  // One block that will never fit, or a store that has ended.
  GetItem& item = *step_[step_at_++];
  const bool large = status == Code::TooLarge;
  miss(item.section, item.index, {large ? Answer::Rejected : Answer::Unavailable, large ? Reason::TooLarge : Reason::Media});
  release(item);
  return true;
}

void GetRequest::on_read(store::Read& read) {
  auto* item = static_cast<GetItem*>(read.owner);
  GetRequest& request = *item->request;
  item->reading = false;
  if (item->left_window) return request.release_unused(*item);
  if (!read.status.ok()) {
    item->state = GetItem::State::Dead;
    request.miss(item->section, item->index, answer_of_read(read.status));
  } else if (item->state == GetItem::State::Reading) {
    request.be_ready(*item);
  } else if (read.resident != read.early && !request.is_same_version(*item, *read.resident)) {
    // It had to be read again, and was written anew meanwhile.
    request.shard().store().unpin(std::exchange(read.resident, nullptr));
    item->state = GetItem::State::Dead;
    request.miss(item->section, item->index, {Answer::Miss, Reason::Absent});
  }
  request.connection()->offer_chunks(request);
}

void GetRequest::on_landed(store::Read& read) {
  auto* item = static_cast<GetItem*>(read.owner);
  if (item->left_window) return;
  GetRequest& request = *item->request;
  if (item->state == GetItem::State::Reading) request.be_ready(*item);
  request.connection()->offer_chunks(request);
}

// A block can be deleted or expire, and be put again, between two rounds: the parts of both are no block.
bool GetRequest::is_same_version(const GetItem& item, const store::Resident& resident) noexcept {
  const uint64_t version = uint64_t{resident.checksum()} << 32 | resident.block_bytes();
  uint64_t& known = outcomes_[item.number].version;
  if (known == 0) known = version;
  return known == version;
}

void GetRequest::be_ready(GetItem& item) {
  item.state = GetItem::State::Ready;
  if (!is_same_version(item, item.resident())) {
    item.state = GetItem::State::Dead;
    return miss(item.section, item.index, {Answer::Miss, Reason::Absent});
  }
  const Status status = count_parts(item);
  if (status.ok()) return;
  const bool length = status == Code::Invalid;
  item.state = GetItem::State::Dead;
  miss(item.section, item.index, {length ? Answer::Miss : Answer::Rejected, length ? Reason::Length : Reason::Unsupported});
}

// Invalid: a range reaches beyond the block; Unsupported: the client cannot decode it.
Status GetRequest::count_parts(GetItem& item) const {
  const wire::SectionView& section = view_.sections[item.section];
  const auto parts = static_cast<uint32_t>(item.resident().parts().size());
  item.selected = section.head.range_count == 0 ? parts : plans_[item.section].parts_per_item;
  for (uint32_t r = 0; r < section.head.range_count; ++r) {
    const wire::PartRange range = section.range(r);
    if (uint64_t{range.start} + uint64_t{range.count - 1} * range.stride >= parts) return Code::Invalid;
  }
  bool coded = false;
  for (const store::PartInfo& part : item.resident().parts()) {
    if (part.codec >= kCodecs || (connection()->codecs() >> part.codec & 1U) == 0) return Code::Unsupported;
    coded = coded || part.codec != 0;
  }
  item.end = std::min(item.selected, item.end);
  item.table_sent = coded && item.ordinal != 0;  // in the first round
  return {};
}

void GetRequest::miss(uint32_t section, uint32_t index, AnswerReason status) {
  SectionPlan& plan = plans_[section];
  // Another round may have missed it already, or all that was asked of it is sent, and what failed is the rest.
  Outcome& outcome = outcomes_[plan.first_number + index];
  if (outcome.status.answer != Answer::Pending) return;
  outcome.status = status;
  const wire::SectionHead& head = view_.sections[section].head;
  if ((head.flags & wire::kSectionStopAtMiss) != 0) {
    plan.first_missed_key = std::min(plan.first_missed_key, index / head.component_count);
  }
}

// ---- Sending -------------------------------------------------------------------------------------------------------------

bool GetRequest::skipped(const GetItem& item) const noexcept {
  const uint32_t key = item.index / view_.sections[item.section].head.component_count;
  return key > plans_[item.section].first_missed_key;
}

uint32_t GetRequest::part_of(const GetItem& item) const noexcept {
  return static_cast<uint32_t>(part_at(view_.sections[item.section], item.ordinal));
}

// False: the Chunk is full.
bool GetRequest::add_part(GetItem& item) {
  if (!shard().chunk_builder().add(item, part_of(item))) return false;
  if (item.part_offset != 0) return true;
  ++item.ordinal;
  Outcome& outcome = outcomes_[item.number];
  outcome.parts = item.ordinal;
  if (item.ordinal == item.selected && outcome.status.answer == Answer::Pending) outcome.status = {Answer::Ok, Reason::None};
  return true;
}

bool GetRequest::send_chunk() {
  if (shard().loop().now_us() >= deadline_us()) {
    end({Answer::Late, Reason::None});
    return false;
  }
  ChunkBuilder& chunk = shard().chunk_builder();
  assert(chunk.empty());
  const bool full = layer_major() ? fill_layer_major() : fill_key_major();
  const bool sent = !chunk.empty();
  queued_bytes_ += chunk.payload_bytes();
  if (sent) chunk.send(*connection(), id());
  close_window();
  if (window_.empty() && ahead_.empty() && reading_done()) {
    send_final({Answer::Unavailable, Reason::None});
    return false;
  }
  if (window_.empty()) {
    if (!ahead_.empty()) begin_ahead();
    if (waits() == Waits::Nothing) advance();  // asks for another turn
    return false;
  }
  return sent && full;
}

// What has not been looked up yet counts as much as what has, and ranges as whole blocks.
uint64_t GetRequest::bytes_to_send() const noexcept {
  if (planned_items_ == 0) return 0;
  const uint64_t bytes = planned_bytes_ / planned_items_ * outcomes_.size();
  return bytes - std::min(bytes, queued_bytes_);
}

// True: more may be ready.
bool GetRequest::fill_key_major() {
  for (; window_at_ < window_.size(); ++window_at_) {
    GetItem& item = *window_[window_at_];
    if (item.state == GetItem::State::Reading) return false;
    if (item.state == GetItem::State::Ready && skipped(item)) {
      outcomes_[item.number].status = {Answer::Miss, Reason::Skipped};
      item.state = GetItem::State::Dead;
    }
    while (item.state == GetItem::State::Ready && item.ordinal < item.selected) {
      if (!add_part(item)) return true;
    }
    leave_window(item);
  }
  return false;
}

// True: more may be ready.
bool GetRequest::fill_layer_major() {
  while (!window_.empty()) {
    for (; window_at_ < window_.size(); ++window_at_) {
      GetItem& item = *window_[window_at_];
      if (item.state == GetItem::State::Reading) return false;
      if (item.ordinal == window_first_ && item.part_offset == 0) look_over(item);
      // A part that was begun is sent whole, though the read of the others has failed meanwhile.
      if (item.state == GetItem::State::Dead && item.part_offset == 0) continue;
      while (item.ordinal == pass_ && item.ordinal < item.end) {
        if (item.reading && part_of(item) >= item.read.parts_landed) return false;
        if (!add_part(item)) return true;
      }
    }
    end_pass();
  }
  return false;
}

// Before the first of an item's parts in this window: whether any of them is to be sent.
void GetRequest::look_over(GetItem& item) {
  Outcome& outcome = outcomes_[item.number];
  const bool missed = outcome.status.answer != Answer::Pending;  // by another round
  if (item.state != GetItem::State::Ready || (!missed && !skipped(item))) return;
  if (!missed) outcome.status = {Answer::Miss, Reason::Skipped};
  item.state = GetItem::State::Dead;
}

void GetRequest::begin_ahead() {
  window_.swap(ahead_);
  window_at_ = 0;
  pass_ = window_first_ = window_.front()->ordinal;
  connection()->offer_chunks(*this);
}

// Keeps the items that have parts left.
void GetRequest::end_pass() {
  size_t kept = 0;
  for (GetItem* item : window_) {
    if (item->state == GetItem::State::Ready && item->ordinal < item->end) {
      window_[kept++] = item;
    } else {
      leave_window(*item);
    }
  }
  window_.resize(kept);
  window_at_ = 0;
  ++pass_;
}

// Cuts off what fill_key_major() is done with. Each item is moved once at most.
void GetRequest::close_window() {
  if (layer_major() || window_at_ * 2 < window_.size()) return;
  window_.erase(window_.begin(), window_.begin() + static_cast<ptrdiff_t>(window_at_));
  window_at_ = 0;
}

void GetRequest::leave_window(GetItem& item) {
  item.left_window = true;
  release_unused(item);
}

// Once it has left the window.
void GetRequest::release_unused(GetItem& item) {
  if (!item.reading && item.references == 0 && !item.in_chunk) release(item);
}

// May recycle the request.
void GetRequest::release(GetItem& item) {
  assert(item.references == 0);
  if (item.read.resident != nullptr) shard().store().unpin(item.read.resident);
  if (item.read.early != nullptr) shard().store().unpin(item.read.early);
  Connection* connection = this->connection();
  if (connection != nullptr && item.credit_bytes != 0) {
    connection->get_credit().give(item.credit_bytes);
    connection->credit_returned();
  }
  shard().get_items().give(&item);
  let_go();
}

void GetRequest::chunk_left(void* sent_chunk, uint64_t shard_address) {
  auto* chunk = static_cast<SentChunk*>(sent_chunk);
  auto& shard = *reinterpret_cast<Shard*>(static_cast<uintptr_t>(shard_address));
  for (GetItem* item : chunk->items) {
    assert(item->references > 0);
    if (--item->references == 0 && item->left_window) item->request->release_unused(*item);
  }
  chunk->items.clear();
  shard.sent_chunks().give(chunk);
}

// ---- The end -------------------------------------------------------------------------------------------------------------

void GetRequest::end(AnswerReason with) { send_final(with); }

void GetRequest::send_final(AnswerReason rest) {
  Connection& connection = *this->connection();
  Counts& counts = shard().counts();
  Reply reply(connection, id());
  for (uint32_t s = 0; s < view_.section_count; ++s) {
    const SectionPlan& plan = plans_[s];
    wire::StatusWriter statuses(reply.frame(), static_cast<uint16_t>(s), plan.parts_per_item != 0 ? wire::kStatusPerPart : 0);
    for (uint32_t i = 0; i < view_.sections[s].item_count(); ++i) {
      const Outcome& outcome = outcomes_[plan.first_number + i];
      const AnswerReason status = outcome.status.answer == Answer::Pending ? rest : outcome.status;
      counts.answer(Opcode::Get, status);
      if (plan.parts_per_item == 0) statuses.add(i, status);
      for (uint32_t p = 0; p < plan.parts_per_item; ++p) {
        statuses.add(i * plan.parts_per_item + p, p < outcome.parts ? AnswerReason{Answer::Ok, Reason::None} : status);
      }
    }
    statuses.close();
  }
  reply.send();
  retain();  // until all below is given back
  on_drop();
  finish();
  let_go();
}

// Gives back what nobody else refers to; reads under way and queued Chunks give back the rest as they end.
void GetRequest::on_drop() {
  for (size_t i = layer_major() ? 0 : window_at_; i < window_.size(); ++i) leave_window(*window_[i]);
  for (GetItem* item : ahead_) leave_window(*item);
  window_.clear();
  ahead_.clear();
  window_at_ = 0;
  for (size_t i = step_at_; i < step_.size(); ++i) {
    if (!step_has_credit_) step_[i]->credit_bytes = 0;
    release(*step_[i]);
  }
  step_.clear();
  step_at_ = 0;
  planned_all_ = true;
}

void GetRequest::recycle() {
  forget_body(body_);
  plans_.clear();
  outcomes_.clear();
  window_.clear();
  ahead_.clear();
  step_.clear();
  window_at_ = step_at_ = 0;
  step_bound_ = SIZE_MAX;
  planned_items_ = 0;
  planned_bytes_ = queued_bytes_ = 0;
  pass_ = window_first_ = 0;
  key_bytes_ = {};
  shard().gets().give(this);
}

}  // namespace halfstep::shard
