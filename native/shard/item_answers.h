// item_answers.h — what a request says of each of its items: it comes in any order, and goes out in that of the sections.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shard/metrics.h"
#include "shard/reply.h"
#include "wire/records.h"

namespace halfstep::shard {

class ItemAnswers {
 public:
  // One for each item, all pending. Answers how many; a request without sections is one item.
  uint32_t open(const wire::RequestView& view) {
    section_items_.clear();
    uint32_t items = 0;
    for (uint32_t s = 0; s < view.section_count; ++s) {
      section_items_.push_back(view.sections[s].item_count());
      items += section_items_.back();
    }
    items = std::max(items, 1U);
    answers_.assign(items, {});
    return items;
  }
  wire::AnswerReason& operator[](size_t item) noexcept { return answers_[item]; }
  auto begin() const noexcept { return answers_.begin(); }
  auto end() const noexcept { return answers_.end(); }
  // What is still pending is this.
  void fill(wire::AnswerReason with) noexcept {
    for (wire::AnswerReason& answer : answers_) {
      if (answer.answer == wire::Answer::Pending) answer = with;
    }
  }
  void write(Reply& reply, Counts& counts, wire::Opcode command) const {
    size_t number = 0;
    for (size_t s = 0; s < section_items_.size(); ++s) {
      wire::StatusWriter statuses(reply.frame(), static_cast<uint16_t>(s), 0);
      for (uint32_t i = 0; i < section_items_[s]; ++i, ++number) {
        counts.answer(command, answers_[number]);
        statuses.add(i, answers_[number]);
      }
      statuses.close();
    }
  }
  void clear() noexcept { answers_.clear(); }

 private:
  std::vector<wire::AnswerReason> answers_;
  std::vector<uint32_t> section_items_;
};

}  // namespace halfstep::shard
