#include "shard/get_planner.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/units.h"
#include "shard/part_places.h"
#include "shard/unanswered.h"

namespace halfstep::shard {
namespace {

// Of each block in a round: a device's large read, beside which the header of its frame does not count; or as little as half of
// it, where the round of all keys is one window then.
constexpr uint64_t kRoundBytes = 512 * KiB;
constexpr uint64_t kRoundBytesMin = 256 * KiB;
// What is read with them: the header of their frame, and what the pages at both ends hold of others; rounded up as memory is.
constexpr uint64_t kRoundHeaderBytes = 64 * KiB;
constexpr uint64_t kRoundsMin = 4;
constexpr size_t kLookAheadItems = 64;  // memory is asked for these side by side

}  // namespace

void GetPlanner::begin(const wire::RequestView& view, std::span<const Client::Handle> handles, store::Store& store) {
  view_ = &view;
  store_ = &store;
  sections_.clear();
  for (uint32_t s = 0; s < view.section_count; ++s) {
    const wire::SectionView& section = view.sections[s];
    const Client::Handle& handle = handles[section.head.layout];
    sections_.push_back({handle.scope, handle.layout, places_of(section), {}});
  }
  round_first_ = 0;
  round_end_ = UINT32_MAX;
  rounds_ = begun_again_ = false;
  waits_ = (view.batch.flags & wire::kBatchWait) != 0;
  planned_items_ = 0;
  planned_bytes_ = 0;
  set_parts();
  begin_pass();
}

void GetPlanner::clear() noexcept {
  sections_.clear();
  key_bytes_ = {};
  planned_items_ = 0;
  planned_bytes_ = 0;
}

// Over all items.
void GetPlanner::begin_pass() noexcept {
  found_.clear();
  found_at_ = 0;
  section_ = key_ = cell_ = 0;
  keys_ = wire::KeyCursor(view_->sections[0].keys);
  key_bytes_ = {};
  round_is_last_ = true;
}

// ---- Items ---------------------------------------------------------------------------------------------------------------

bool GetPlanner::next(GetOutcomes& outcomes) {
  while (step_to_next_key()) {
    if (found_at_ == found_.size()) look_ahead();
    if (wanted(outcomes)) return true;
    step_over();
  }
  return false;
}

// To the section and key of the next item. False: none is left.
bool GetPlanner::step_to_next_key() {
  while (section_ < view_->section_count) {
    if (key_ != view_->sections[section_].head.key_count) {
      return cell_ != 0 || !key_bytes_.empty() || keys_.next(&key_bytes_);  // parse_request found them whole
    }
    if (++section_ < view_->section_count) keys_ = wire::KeyCursor(view_->sections[section_].keys);
    key_ = 0;
  }
  return false;
}

void GetPlanner::step_over() noexcept {
  ++found_at_;
  if (++cell_ != head().component_count) return;
  cell_ = 0;
  ++key_;
  key_bytes_ = {};
}

void GetPlanner::look_ahead() {
  const wire::SectionHead& head = view_->sections[section_].head;
  std::array<store::BlockName, kLookAheadItems> names;
  std::array<store::IndexKey, kLookAheadItems> index_keys;
  size_t gathered = 0;
  found_at_ = 0;
  wire::KeyCursor keys = keys_;
  ConstBytes key = key_bytes_;
  for (uint32_t k = key_, cell = cell_; gathered < kLookAheadItems;) {
    const wire::Component component{head.first_component + cell};
    names[gathered++] = {sections_[section_].scope, component, key};
    if (++cell < head.component_count) continue;
    cell = 0;
    if (++k == head.key_count || !keys.next(&key)) break;
  }
  store_->keys_of(std::span(names).first(gathered), std::span(index_keys).first(gathered));
  sought_.clear();
  for (size_t i = 0; i < gathered; ++i) {
    sought_.push_back(sought_of(index_keys[i], names[i].component, section_));
  }
  found_.resize(gathered);
  store_->find_many(sought_, found_);
}

store::Sought GetPlanner::sought_of(const store::IndexKey& key, wire::Component component, uint32_t section) const noexcept {
  store::Sought sought(key, component);
  sought.parts = sections_[section].parts;
  sought.to_read = true;
  return sought;
}

// Whether the item is to be read; if not, and that is news, it is answered.
bool GetPlanner::wanted(GetOutcomes& outcomes) {
  const uint32_t index = this->index();
  if (begun_again_ && !outcomes.pending(outcomes.number_of(section_, index))) return false;
  if (outcomes.behind_miss(section_, index)) {
    outcomes.skip(section_, index);
    return false;
  }
  if (!found_[found_at_].present) {
    if (waits_) return true;
    outcomes.miss(section_, index, answer_of_absent(elsewhere_of(*store_), sought_[found_at_].key));
    return false;
  }
  // Else all of it is on its way.
  return !rounds_ || shape_of(section_) == nullptr || places() > round_first_;
}

// How many parts of the item are selected; 0: all of them, and how many those are is not known.
uint32_t GetPlanner::places() const noexcept {
  const uint32_t selected = sections_[section_].parts_per_item;
  const wire::GroupShape* const shape = rounds_ && selected == 0 ? shape_of(section_) : nullptr;
  return shape != nullptr ? shape->parts_of(found_[found_at_].block_bytes) : selected;
}

void GetPlanner::take(GetItem& item, const GetOutcomes& outcomes) {
  const Section& of = sections_[section_];
  const store::Found& found = found_[found_at_];
  HALFSTEP_DCHECK(found.present);
  item.read.key = sought_[found_at_].key;
  const wire::Component component{head().first_component + cell_};
  item.read.component = component;
  item.read.parts = of.parts;
  item.read.goes_on = round_first_ != 0;
  item.ordinal = round_first_;
  item.end = round_end_;
  item.credit_bytes = found.memory_bytes;
  item.section = section_;
  item.index = index();
  item.number = outcomes.number_of(section_, item.index);
  item.name_number = wire::name_number(of.layout, component, key_bytes_);
  if (rounds_) round_is_last_ = round_is_last_ && places() <= round_end_;
  count_planned(found);
  step_over();
}

// ---- Items that are waited for -------------------------------------------------------------------------------------------

// It may have come since it was looked for.
bool GetPlanner::is_there() {
  store::Found& found = found_[found_at_];
  if (!found.present && waits_) found = store_->find(sought_[found_at_]);
  return found.present;
}

void GetPlanner::take_awaited(GetAwaited::Item& item) {
  item.key = sought_[found_at_].key;
  item.component = {head().first_component + cell_};
  item.section = section_;
  item.index = index();
  item.name_number = wire::name_number(sections_[section_].layout, item.component, key_bytes_);
  step_over();
}

store::Found GetPlanner::find_awaited(const GetAwaited::Item& item) {
  return store_->find(sought_of(item.key, item.component, item.section));
}

void GetPlanner::take(GetItem& item, const GetAwaited::Item& awaited, const store::Found& found, const GetOutcomes& outcomes) {
  HALFSTEP_DCHECK(found.present && !rounds_);
  item.read.key = awaited.key;
  item.read.component = awaited.component;
  item.read.parts = sections_[awaited.section].parts;
  item.end = UINT32_MAX;
  item.credit_bytes = found.memory_bytes;
  item.section = awaited.section;
  item.index = awaited.index;
  item.number = outcomes.number_of(awaited.section, awaited.index);
  item.name_number = awaited.name_number;
  count_planned(found);
}

// ---- Rounds --------------------------------------------------------------------------------------------------------------

void GetPlanner::begin_again(std::span<GetItem* const> first_step, uint64_t step_bytes, size_t items) {
  HALFSTEP_DCHECK(!begun_again_);
  begun_again_ = true;
  // Rounds go over all items in step, and one that is waited for keeps none.
  const bool large = !waits_ && planned_bytes_ >= kRoundsMin * kRoundBytes * planned_items_;
  const bool in_rounds = large && begin_rounds(first_step, step_bytes, items);
  planned_items_ = 0;
  planned_bytes_ = 0;
  if (!in_rounds) begin_pass();
}

// False: its layout has just gone, or they do not pay.
bool GetPlanner::begin_rounds(std::span<GetItem* const> first_step, uint64_t step_bytes, size_t items) {
  for (uint32_t s = 0; s < view_->section_count; ++s) {
    if (shape_of(s) == nullptr) return false;
  }
  const uint64_t of_each = step_bytes / items;
  round_bytes_ = std::clamp(of_each - std::min(of_each, kRoundHeaderBytes), kRoundBytesMin, kRoundBytes);
  rounds_ = true;
  round_end_ = 0;
  if (next_round() && rounds_pay(first_step)) return true;
  rounds_ = false;
  round_first_ = 0;
  round_end_ = UINT32_MAX;
  set_parts();
  return false;
}

// Whether most of the first step's blocks can be read in parts, for this round. Small ones cannot, and what is in memory is
// pinned whole.
bool GetPlanner::rounds_pay(std::span<GetItem* const> first_step) {
  sought_.clear();
  for (const GetItem* item : first_step) {
    sought_.emplace_back(item->read.key, item->read.component).parts = sections_[item->section].parts;
  }
  found_.resize(sought_.size());
  store_->find_many(sought_, found_);
  uint64_t in_round_bytes = 0;
  uint64_t whole_bytes = 0;
  for (const store::Found& found : found_) {
    in_round_bytes += found.memory_bytes;
    whole_bytes += found.block_bytes;
  }
  found_.clear();
  return in_round_bytes * 2 <= whole_bytes;
}

bool GetPlanner::next_round() {
  if (!rounds_ || (round_end_ != 0 && round_is_last_)) return false;
  round_first_ = round_end_;
  for (uint32_t s = 0; s < view_->section_count; ++s) round_end_ = std::max(round_end_, round_end_of(s));
  if (round_end_ == round_first_) return false;
  set_parts();
  begin_pass();
  return true;
}

void GetPlanner::set_parts() noexcept {
  for (uint32_t s = 0; s < view_->section_count; ++s) {
    sections_[s].parts = span_of(view_->sections[s], round_first_, round_end_);
  }
}

const wire::GroupShape* GetPlanner::shape_of(uint32_t section) const noexcept {
  const wire::Layout* const layout = store_->layout_of(sections_[section].scope);
  const uint32_t group = wire::Component{view_->sections[section].head.first_component}.group();
  return layout != nullptr && group < layout->groups().size() ? &layout->groups()[group] : nullptr;
}

// The place after the parts that a round sends of each block, from round_first_ on.
uint32_t GetPlanner::round_end_of(uint32_t section) const noexcept {
  const wire::GroupShape* const shape = shape_of(section);
  return shape != nullptr ? end_of_round(view_->sections[section], *shape, round_first_, round_bytes_) : round_first_;
}

bool GetPlanner::names_codec(uint32_t section, std::string_view codec) const {
  const wire::Layout* layout = store_->layout_of(sections_[section].scope);
  if (layout == nullptr) return false;
  return std::any_of(layout->fields().begin(), layout->fields().end(),
                     [codec](const auto& field) { return field.first == "codec" && field.second == codec; });
}

}  // namespace halfstep::shard
