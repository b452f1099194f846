#include "peer/ticket.h"

#include <algorithm>

#include "base/check.h"

namespace halfstep::peer {
namespace {

constexpr uint32_t kWordBits = 64;
uint32_t words_of(uint32_t bits) noexcept { return (bits + kWordBits - 1) / kWordBits; }

bool test_and_set(uint64_t* words, uint32_t bit) noexcept {
  const uint64_t mask = uint64_t{1} << (bit % kWordBits);
  const bool before = (words[bit / kWordBits] & mask) != 0;
  words[bit / kWordBits] |= mask;
  return before;
}

hs_answer out_of(wire::AnswerReason answer) noexcept {
  return {static_cast<uint8_t>(answer.answer), 0, static_cast<uint16_t>(answer.reason)};
}

}  // namespace

void Ticket::reset() {
  queue = nullptr;
  operation = 0;
  deadline_us = 0;
  batch = {};
  wants_progress = false;
  user_data = 0;
  section_count = 0;
  items.clear();
  units.clear();
  owner = cursor = value = pin_budget_bytes = 0;
  default_ttl_s = 0;
  sliding_ttl = persistent = sets_coding = false;
  layout_id = {};
  cursor_out = nullptr;
  limit = 0;
  text.clear();
  question.clear();
  sink = nullptr;
  sink_context = nullptr;
  outcome = nullptr;
  state = State::Submitted;
  HALFSTEP_CHECK(requests.empty() && payload_references == 0 && !timer.armed(), payload_references);
  HALFSTEP_CHECK(placements == 0 && regions.empty(), placements);
  previous = next = nullptr;
  dispatching = asked = false;
  HALFSTEP_CHECK(copies == 0 && staging.slots.empty(), copies);
  device = -1;
  gates.clear();
  staging = {};
  encoding.reset();
  fence.clear();
  end = whole = {};
  seen.clear();
  step_left.clear();
  steps_done = steps_told = items_settled = items_ok = 0;
  next_event = nullptr;
  event_listed = done = false;
  event_steps = 0;
}

bool Ticket::codes() const noexcept {
  if (!is_put()) return false;
  for (uint32_t s = 0; s < section_count; ++s) {
    if (sections[s].coding != nullptr) return true;
  }
  return false;
}

void Ticket::shed() {
  sections = std::vector<Section>();
  items = {};
  units = {};
  seen = {};
  step_left = {};
}

void Ticket::prepare() {
  uint32_t item_count = 0;
  uint32_t unit_count = 0;
  bool steps_known = is_get() && batch.order == wire::Order::LayerMajor;
  uint32_t step_count = 0;
  for (uint32_t s = 0; s < section_count; ++s) {
    Section& section = sections[s];
    section.first_item = item_count;
    section.first_unit = unit_count;
    section.units_per_item = section.selection.all() ? 1 : section.selection.count(0);
    item_count += section.item_count;
    unit_count += section.item_count * section.units_per_item;
    steps_known = steps_known && (section.shape.part_count != 0 || !section.selection.all());
    step_count = std::max(step_count, section.selection.count(section.shape.part_count));
    const uint32_t answers = section.item_count * section.units_per_item;
    if (section.answers != nullptr) std::fill_n(section.answers, answers, hs_answer{});
    if (section.lengths != nullptr) std::fill_n(section.lengths, section.item_count, 0U);
    if (section.error_bounds != nullptr) std::fill_n(section.error_bounds, section.item_count, 0.0F);
    if (section.unchecked != nullptr) std::fill_n(section.unchecked, section.item_count, 0U);
  }
  if (outcome != nullptr) *outcome = {};
  items.resize(item_count);
  units.resize(unit_count);
  if (steps_known) step_left.assign(step_count, 0);
  for (uint32_t s = 0; s < section_count; ++s) {
    Section& section = sections[s];
    for (uint32_t i = 0; i < section.item_count; ++i) {
      item(section, i).units_left = section.units_per_item;
      if (is_put()) item(section, i).open_part = 0;
    }
    if (!steps_known) continue;
    const uint32_t selected = section.selection.count(section.shape.part_count);
    for (uint32_t o = 0; o < selected; ++o) step_left[o] += section.item_count;
  }
}

Status Ticket::say(Section& section, uint32_t number, wire::AnswerReason answer) {
  for (uint32_t o = 0; o < section.units_per_item; ++o) {
    if (Status s = say_unit(section, number, o, answer); !s.ok()) return s;
  }
  return {};
}

Status Ticket::say_unit(Section& section, uint32_t number, uint32_t ordinal, wire::AnswerReason answer) {
  Unit& to = unit(section, number, ordinal);
  if (to.said != wire::Answer::Pending || answer.answer == wire::Answer::Pending) return Code::Invalid;
  to.said = answer.answer;
  to.reason = answer.reason;
  settle_if_known(section, number, ordinal);
  return {};
}

void Ticket::fail_item(Section& section, uint32_t number, wire::AnswerReason answer) {
  for (uint32_t o = 0; o < section.units_per_item; ++o) {
    if (!unit(section, number, o).settled) settle(section, number, o, answer);
  }
}

Status Ticket::announce(Section& section, uint32_t number, uint32_t block_bytes) {
  Item& of = item(section, number);
  const uint32_t parts = section.shape.parts_of(block_bytes);
  if (parts == 0 || parts < section.selection.part_end()) return Code::Invalid;
  of.block_bytes = block_bytes;
  of.parts_left = section.selection.count(parts);
  of.seen_at = static_cast<uint32_t>(seen.size());
  // Announced parts, then arrived ones. At most kPartsMax bits each: the sender's number is bounded by the shape.
  seen.resize(seen.size() + size_t{2} * words_of(of.parts_left));
  if (section.target.fits(number, block_bytes, section.shape, section.selection)) {
    of.flags |= Item::kFits;
  } else {
    fail_item(section, number, {wire::Answer::Miss, wire::Reason::Length});
  }
  return {};
}

bool Ticket::mark_seen(Section& section, uint32_t number, uint32_t part) {
  const uint32_t ordinal = section.selection.ordinal(part);
  return ordinal != Selection::kNone && !test_and_set(seen.data() + item(section, number).seen_at, ordinal);
}

void Ticket::part_arrived(Section& section, uint32_t number, uint32_t part, bool verified) {
  Item& of = item(section, number);
  const uint32_t ordinal = section.selection.ordinal(part);
  HALFSTEP_CHECK(of.parts_left > 0, of.parts_left);
  --of.parts_left;
  if (!step_left.empty()) {
    const uint32_t words = words_of(section.selection.count(section.shape.parts_of(of.block_bytes)));
    if (!test_and_set(seen.data() + of.seen_at + words, ordinal)) count_step(ordinal);
  }
  const uint32_t at = section.selection.all() ? 0 : ordinal;
  Unit& to = unit(section, number, at);
  // The last that was to come, beside some that are on their way to a device.
  if (section.selection.all() && of.parts_left > 0) to.landed = of.parts_copying == of.parts_left;
  if (!verified && !to.settled) settle(section, number, at, {wire::Answer::Miss, wire::Reason::Corrupt});
  if (!section.selection.all() || of.parts_left == 0) {
    to.arrived = true;
    settle_if_known(section, number, at);
  }
}

void Ticket::part_landed(Section& section, uint32_t number, uint32_t part) {
  Item& of = item(section, number);
  ++of.parts_copying;
  HALFSTEP_CHECK(of.parts_copying <= of.parts_left, of.parts_copying, of.parts_left);
  if (section.selection.all()) {
    unit(section, number, 0).landed = of.parts_copying == of.parts_left;
  } else {
    unit(section, number, section.selection.ordinal(part)).landed = true;
  }
}

void Ticket::part_copied(Section& section, uint32_t number, uint32_t part) {
  Item& of = item(section, number);
  HALFSTEP_CHECK(of.parts_copying > 0, of.parts_copying);
  --of.parts_copying;
  part_arrived(section, number, part, true);
}

void Ticket::fail_part(Section& section, uint32_t number, uint32_t part, wire::AnswerReason answer) {
  const uint32_t at = section.selection.all() ? 0 : section.selection.ordinal(part);
  if (!unit(section, number, at).settled) settle(section, number, at, answer);
}

bool Ticket::untouched(const Section& section, uint32_t number) const noexcept {
  if (is_get() && items[section.first_item + number].block_bytes != 0) return false;
  for (uint32_t o = 0; o < section.units_per_item; ++o) {
    const Unit& of = units[section.first_unit + number * section.units_per_item + o];
    if (of.said != wire::Answer::Pending || of.settled) return false;
  }
  return true;
}

bool Ticket::item_open(const Section& section, uint32_t number) const noexcept {
  for (uint32_t o = 0; o < section.units_per_item; ++o) {
    const Unit& of = units[section.first_unit + number * section.units_per_item + o];
    if (of.said == wire::Answer::Pending || !(of.settled || of.landed)) return true;
  }
  return false;
}

void Ticket::settle_if_known(Section& section, uint32_t number, uint32_t ordinal) {
  const Unit& of = unit(section, number, ordinal);
  if (of.settled || of.said == wire::Answer::Pending) return;
  if (is_get() && of.said == wire::Answer::Ok && !of.arrived) return;
  settle(section, number, ordinal, {of.said, of.reason});
}

wire::AnswerReason Ticket::in_truth(wire::AnswerReason answer) const noexcept {
  const bool open = answer.answer == wire::Answer::Late || answer.answer == wire::Answer::Cancelled;
  if (open && asked && changes_store() && !is_put()) answer.reason = wire::Reason::OutcomeUnknown;
  return answer;
}

void Ticket::settle(Section& section, uint32_t number, uint32_t ordinal, wire::AnswerReason answer) {
  answer = in_truth(answer);
  Unit& to = unit(section, number, ordinal);
  Item& of = item(section, number);
  HALFSTEP_CHECK(!to.settled && of.units_left > 0, of.units_left);
  to.settled = true;
  if (answer.answer != wire::Answer::Ok) of.flags |= Item::kFailed;
  if (section.answers != nullptr) section.answers[number * section.units_per_item + ordinal] = out_of(answer);
  if (--of.units_left > 0) return;
  if (section.lengths != nullptr) section.lengths[number] = of.block_bytes;
  if (section.error_bounds != nullptr) section.error_bounds[number] = of.error_bound;
  if (section.unchecked != nullptr) section.unchecked[number] = of.unchecked;
  ++items_settled;
  if (!of.has(Item::kFailed)) ++items_ok;
  if (step_left.empty()) {
    steps_done = items_settled;
  } else {
    count_all_steps(section, number);
  }
}

void Ticket::count_step(uint32_t ordinal) noexcept {
  HALFSTEP_CHECK(step_left[ordinal] > 0, step_left[ordinal]);
  --step_left[ordinal];
  while (steps_done < step_left.size() && step_left[steps_done] == 0) ++steps_done;
}

// An item that is over holds up no step, whatever of it is still to come.
void Ticket::count_all_steps(Section& section, uint32_t number) noexcept {
  Item& of = item(section, number);
  const uint32_t selected = section.selection.count(section.shape.part_count);
  if (of.block_bytes == 0) {
    for (uint32_t o = 0; o < selected; ++o) count_step(o);
    return;
  }
  const uint32_t count = section.selection.count(section.shape.parts_of(of.block_bytes));
  uint64_t* arrived = seen.data() + of.seen_at + words_of(count);
  for (uint32_t o = 0; o < count; ++o) {
    if (!test_and_set(arrived, o)) count_step(o);
  }
}

// Its bytes are all there and verified: the daemon, which waits for others, has only not said so yet.
void Ticket::keep_arrived(Section& section, uint32_t number) {
  if (item(section, number).has(Item::kVoid)) return;
  for (uint32_t o = 0; o < section.units_per_item; ++o) {
    const Unit& of = unit(section, number, o);
    const bool open = !of.settled && of.said == wire::Answer::Pending;
    if (open && of.arrived) settle(section, number, o, {wire::Answer::Ok, wire::Reason::None});
  }
}

void Ticket::finish() {
  const bool late = end.answer == wire::Answer::Late || end.answer == wire::Answer::Cancelled;
  const bool waits = is_get() && late && (batch.flags & wire::kBatchWait) != 0;
  for (uint32_t s = 0; s < section_count; ++s) {
    Section& section = sections[s];
    for (uint32_t i = 0; i < section.item_count; ++i) {
      if (waits) keep_arrived(section, i);
      if (item(section, i).units_left > 0) fail_item(section, i, end);
    }
  }
  if (outcome != nullptr) *outcome = out_of(in_truth(whole.answer == wire::Answer::Pending ? end : whole));
  state = State::Finished;
}

}  // namespace halfstep::peer
