// get_outcomes.h — what a get says of each of its items, and how many parts of it were queued by then.
// Invariants: an item is answered once, and stays pending until then; its parts are queued in order, so the first of those that
// are selected are ok; all that is sent of a block is of one version of it. Thread: the shard's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "shard/metrics.h"
#include "shard/reply.h"
#include "store/store.h"
#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::shard {

class GetOutcomes {
 private:
  struct Outcome {
    wire::AnswerReason status;
    uint32_t parts = 0;
    uint64_t version = 0;  // that it is read from; 0: not known yet
  };

 public:
  // Statuses are told per selected part: this many of a request, or answering it would hold up the others.
  static constexpr uint64_t kSelectedPartsMax = uint64_t{1} << 20;
  static constexpr size_t kItemBytes = sizeof(Outcome);

  // All items of `view` are pending. TooLarge: it selects more than kSelectedPartsMax.
  Status begin(const wire::RequestView& view);
  void clear() noexcept;

  size_t items() const noexcept { return outcomes_.size(); }
  // Over all sections.
  uint32_t number_of(uint32_t section, uint32_t index) const noexcept { return sections_[section].first_number + index; }
  bool pending(uint32_t number) const noexcept { return outcomes_[number].status.answer == wire::Answer::Pending; }

  // It will not be sent, or no more of it. A section that stops at a miss skips the keys behind it. What is answered stays so:
  // another round may have missed it already, or all that was asked of it is sent, and what failed is the rest.
  void miss(uint32_t section, uint32_t index, wire::AnswerReason status);
  // Behind a miss in a section that stops at one.
  bool behind_miss(uint32_t section, uint32_t index) const noexcept {
    const Section& of = sections_[section];
    return of.stops_at_miss && index / of.components > of.first_missed_key;
  }
  void skip(uint32_t section, uint32_t index) noexcept;
  // So many of its parts are queued now, of those that are selected.
  void note_queued(uint32_t number, uint32_t parts, uint32_t selected) noexcept {
    Outcome& outcome = outcomes_[number];
    HALFSTEP_DCHECK(parts == outcome.parts + 1 && parts <= selected, parts, outcome.parts, selected);
    outcome.parts = parts;
    if (parts != selected || outcome.status.answer != wire::Answer::Pending) return;
    outcome.status = {wire::Answer::Ok, wire::Reason::None};
  }
  // Whether this is the block that the item was first read from. It can be deleted or expire, and be put again, between two
  // reads: the parts of both are no block.
  bool is_same_version(uint32_t number, const store::Resident& resident) noexcept {
    const uint64_t version = uint64_t{resident.checksum()} << 32 | resident.block_bytes();
    uint64_t& known = outcomes_[number].version;
    if (known == 0) known = version;
    return known == version;
  }

  // What is pending is `rest`.
  void write(Reply& reply, Counts& counts, wire::AnswerReason rest) const;

 private:
  struct Section {
    uint32_t first_number = 0;
    uint32_t items = 0;
    uint32_t components = 1;
    uint32_t parts_per_item = 0;  // 0: all parts of a block
    bool stops_at_miss = false;
    uint32_t first_missed_key = UINT32_MAX;  // of a section that stops at a miss
  };
  Outcome& at(uint32_t section, uint32_t index) noexcept { return outcomes_[number_of(section, index)]; }

  std::vector<Section> sections_;
  std::vector<Outcome> outcomes_;
};

}  // namespace halfstep::shard
