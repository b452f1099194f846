// get_planner.h — which blocks a get reads next, and which of their parts: item by item in the order of the request, over all
// items once, or, where that pays, in rounds.
// Rounds are for a get in layer order that needs more memory than its client may have. A round is as many parts of each block
// as make half a mebibyte, or less where a round of all keys makes one window then; it goes over all keys before the next
// begins. So what is read of a block in one round is what is sent of it then. Blocks of less than four rounds are read whole.
// Invariants: an item that is not there, is answered, or stands behind a miss is not planned; in a round each item is planned
// once; rounds follow each other without a gap. What was found may be gone when it is read: then the read says so.
// Thread: the shard's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shard/client.h"
#include "shard/get_awaited.h"
#include "shard/get_item.h"
#include "shard/get_outcomes.h"
#include "store/store.h"
#include "wire/layout.h"
#include "wire/records.h"

namespace halfstep::shard {

class GetPlanner {
 public:
  // `view` and what it refers to, and the store, stay until the last call.
  // With kBatchWait next() stops at items that are not there, too, and all are read whole.
  void begin(const wire::RequestView& view, std::span<const Client::Handle> handles, store::Store& store);
  void clear() noexcept;

  // Moves to the next item that is to be read, and answers those before it that are not. False: this round has none.
  bool next(GetOutcomes& outcomes);
  // Whether that item is there, or else is to be waited for.
  bool is_there();
  // Of that item: the memory that its read takes.
  uint64_t memory_bytes() const noexcept { return found_[found_at_].memory_bytes; }
  // Says in `item` what is to be read of it, and moves behind it.
  void take(GetItem& item, const GetOutcomes& outcomes);

  // The item is waited for: says in `item` what it is, and moves behind it.
  void take_awaited(GetAwaited::Item& item);
  // Of one that was taken so: whether it is there now, and what is to be read of it, as take() says it. False: it is not.
  store::Found find_awaited(const GetAwaited::Item& item);
  void take(GetItem& item, const GetAwaited::Item& awaited, const store::Found& found, const GetOutcomes& outcomes);
  // Its layout was cleared, or its namespace deleted: it will never be there.
  bool is_hopeless(const GetAwaited::Item& item) const noexcept {
    return store_->layout_of(sections_[item.section].scope) == nullptr;
  }

  // Whether the section's layout says that its blocks are coded by this codec.
  bool names_codec(uint32_t section, std::string_view codec) const;

  // Begins the next round. False: there are none, or this one was the last.
  bool next_round();
  // As far as it was planned.
  bool is_last_round() const noexcept { return round_is_last_; }
  // The get does not fit its credit, as its first step has shown: begins again from the first item, in rounds where those pay.
  // Of a block in a round as much is read as `step_bytes` have for each item.
  void begin_again(std::span<GetItem* const> first_step, uint64_t step_bytes, size_t items);
  bool begun_again() const noexcept { return begun_again_; }

  // The length of blocks that were planned, on average; what is to come is not known. 0: none was.
  uint64_t block_bytes_mean() const noexcept { return planned_items_ == 0 ? 0 : planned_bytes_ / planned_items_; }

 private:
  struct Section {
    uint32_t scope = 0;
    wire::LayoutId layout{};
    uint32_t parts_per_item = 0;  // 0: all parts of a block
    store::PartSpan parts;        // that this round wants, from the first to the last
  };

  void begin_pass() noexcept;
  bool step_to_next_key();
  void step_over() noexcept;
  void look_ahead();
  bool wanted(GetOutcomes& outcomes);
  const wire::SectionHead& head() const noexcept { return view_->sections[section_].head; }
  store::Sought sought_of(const store::IndexKey& key, wire::Component component, uint32_t section) const noexcept;
  void count_planned(const store::Found& found) noexcept {
    ++planned_items_;
    planned_bytes_ += found.block_bytes;
  }
  uint32_t index() const noexcept { return key_ * head().component_count + cell_; }
  uint32_t places() const noexcept;

  bool begin_rounds(std::span<GetItem* const> first_step, uint64_t step_bytes, size_t items);
  bool rounds_pay(std::span<GetItem* const> first_step);
  void set_parts() noexcept;
  const wire::GroupShape* shape_of(uint32_t section) const noexcept;
  uint32_t round_end_of(uint32_t section) const noexcept;

  const wire::RequestView* view_ = nullptr;
  store::Store* store_ = nullptr;
  std::vector<Section> sections_;

  // The next item.
  uint32_t section_ = 0;
  uint32_t key_ = 0;
  uint32_t cell_ = 0;
  wire::KeyCursor keys_{ConstBytes()};
  ConstBytes key_bytes_;  // empty: of the next key
  // That item and those after it in its section, looked up together.
  std::vector<store::Sought> sought_;
  std::vector<store::Found> found_;
  size_t found_at_ = 0;  // the item's place among them

  // The places of parts (part_places.h) that are planned for all keys before any others.
  uint32_t round_first_ = 0;
  uint32_t round_end_ = UINT32_MAX;
  uint64_t round_bytes_ = 0;  // of each block
  bool rounds_ = false;
  bool round_is_last_ = true;
  bool begun_again_ = false;
  bool waits_ = false;

  uint32_t planned_items_ = 0;
  uint64_t planned_bytes_ = 0;
};

}  // namespace halfstep::shard
