#include "shard/get_outcomes.h"

#include <algorithm>

#include "shard/part_places.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Reason;

Status GetOutcomes::begin(const wire::RequestView& view) {
  sections_.clear();
  uint32_t items = 0;
  uint64_t selected = 0;
  for (uint32_t s = 0; s < view.section_count; ++s) {
    const wire::SectionView& section = view.sections[s];
    sections_.push_back({.first_number = items,
                         .items = section.item_count(),
                         .components = section.head.component_count,
                         .parts_per_item = places_of(section),
                         .stops_at_miss = (section.head.flags & wire::kSectionStopAtMiss) != 0});
    items += section.item_count();
    selected += uint64_t{section.item_count()} * sections_.back().parts_per_item;
  }
  if (selected > kSelectedPartsMax) return Code::TooLarge;
  outcomes_.assign(items, {});
  return {};
}

void GetOutcomes::clear() noexcept {
  sections_.clear();
  outcomes_.clear();
}

void GetOutcomes::miss(uint32_t section, uint32_t index, AnswerReason status) {
  Outcome& outcome = at(section, index);
  if (outcome.status.answer != Answer::Pending) return;
  outcome.status = status;
  Section& of = sections_[section];
  if (of.stops_at_miss) of.first_missed_key = std::min(of.first_missed_key, index / of.components);
}

void GetOutcomes::skip(uint32_t section, uint32_t index) noexcept {
  at(section, index).status = {Answer::Miss, Reason::Skipped};
}

void GetOutcomes::write(Reply& reply, Counts& counts, AnswerReason rest) const {
  for (size_t s = 0; s < sections_.size(); ++s) {
    const Section& section = sections_[s];
    const bool per_part = section.parts_per_item != 0;
    wire::StatusWriter statuses(reply.frame(), static_cast<uint16_t>(s), per_part ? wire::kStatusPerPart : 0);
    for (uint32_t i = 0; i < section.items; ++i) {
      const Outcome& outcome = outcomes_[section.first_number + i];
      const AnswerReason status = outcome.status.answer == Answer::Pending ? rest : outcome.status;
      counts.answer(wire::Opcode::Get, status);
      if (!per_part) statuses.add(i, status);
      for (uint32_t p = 0; p < section.parts_per_item; ++p) {
        statuses.add(i * section.parts_per_item + p, p < outcome.parts ? AnswerReason{Answer::Ok, Reason::None} : status);
      }
    }
    statuses.close();
  }
}

}  // namespace halfstep::shard
