// request_get.h — a get: blocks are read in windows, and sent in the order that was asked for while later ones are read.
// Key-major: steps of up to a quarter of the connection's credit are read ahead, and each item is sent when those before it
// are. Layer-major: a window is as many blocks as the credit holds, in key order; part p of all of them goes before part p + 1.
// A layer-major request that needs more than the credit takes half of it for each window, and reads one while the one before is
// sent. It goes in rounds: as many parts of each block as make half a mebibyte, or less where a round of all keys makes one
// window then, of all keys, window by window, before the next ones. So what it reads of a block in one round is what it sends;
// within each window parts are in order, and across windows rounds are. Blocks of less than four rounds stand in windows whole
// instead.
// Invariants: all that is sent of a block is of one version of it; a step's memory is reserved all at once or not at all; a
// block is pinned from its read until the last of its bytes has left; what is not queued when the deadline passes is late;
// items are answered in no order but told in Final. Thread: the shard's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shard/request.h"
#include "store/store.h"
#include "wire/records.h"

namespace halfstep::shard {

class GetRequest;

// One block between the plan to read it and the moment when nothing refers to it any more. Pooled.
struct GetItem {
  enum class State : uint8_t { Reading, Ready, Dead };  // Ready: some of its parts are there

  store::Read read;
  GetRequest* request = nullptr;
  uint64_t credit_bytes = 0;
  uint32_t section = 0;
  uint32_t index = 0;   // within the section
  uint32_t number = 0;  // over all sections
  uint32_t name_number = 0;
  uint32_t selected = 0;  // parts to send
  uint32_t end = 0;       // of them, those before it in its round
  uint32_t ordinal = 0;   // of them, how many are queued
  uint32_t part_offset = 0;
  uint32_t references = 0;  // queued Chunks
  State state = State::Reading;
  bool reading = true;  // the read is the store's
  bool left_window = false;
  bool coded = false;       // known, as `selected` is, once it is ready
  bool table_sent = false;  // of a coded one
  bool in_chunk = false;    // of the Chunk being built

  // What there is to send from, once it is ready.
  store::Resident& resident() const noexcept { return read.resident != nullptr ? *read.resident : *read.early; }
};

class GetRequest final : public Request {
 public:
  void start(Connection& connection, uint64_t id, ConstBytes body);

  void end(wire::AnswerReason with) override;
  bool send_chunk() override;
  uint64_t bytes_to_send() const noexcept override;
  void resume() override { advance(); }
  uint64_t memory_wanted() const noexcept override { return step_bytes_; }

  static void chunk_left(void* sent_chunk, uint64_t shard);

 private:
  // How far an item came. Parts are queued in order, so the first `parts` of those selected are ok.
  struct Outcome {
    wire::AnswerReason status;
    uint32_t parts = 0;
    uint64_t version = 0;  // that it is read from; 0: not known yet
  };
  struct SectionPlan {
    uint32_t scope = 0;
    wire::LayoutId layout{};
    uint32_t first_number = 0;
    uint32_t parts_per_item = 0;             // 0: all parts of a block
    store::PartSpan parts;                   // that this round wants, from the first to the last
    uint32_t first_missed_key = UINT32_MAX;  // of a section that stops at a miss
  };

  // Layer by layer all of them are in work at once.
  size_t more_item_bytes(const wire::RequestView& view) const noexcept override {
    return view.batch.order == wire::Order::LayerMajor ? sizeof(GetItem) : 0;
  }
  void on_drop() override;
  void recycle() override;
  bool plan_sections();

  // Reading.
  void advance();
  bool plan_step();
  void look_ahead();
  bool plan_item(ConstBytes key, uint64_t step_bytes_max);
  void begin_pass() noexcept;
  uint64_t step_bytes() const noexcept;
  bool begin_again();
  bool begin_rounds();
  bool rounds_pay();
  bool next_round();
  uint32_t round_end_of(uint32_t section) const noexcept;
  const wire::GroupShape* shape_of(uint32_t section) const noexcept;
  bool begin_reads();
  static void on_read(store::Read& read);
  static void on_landed(store::Read& read);
  void be_ready(GetItem& item);
  bool is_same_version(const GetItem& item, const store::Resident& resident) noexcept;
  Status count_parts(GetItem& item) const;
  void miss(uint32_t section, uint32_t index, wire::AnswerReason status);

  // Sending.
  bool fill_key_major();
  bool fill_layer_major();
  void end_pass();
  void begin_ahead();
  void look_over(GetItem& item);
  bool skipped(const GetItem& item) const noexcept;
  bool add_part(GetItem& item);
  void leave_window(GetItem& item);
  void release_unused(GetItem& item);
  void release(GetItem& item);
  void close_window();
  bool reading_done() const noexcept { return planned_all_ && step_at_ == step_.size(); }
  // Whether reads may begin that stand in no window yet.
  bool may_read() const noexcept { return !layer_major() || window_.empty() || (exceeds_credit_ && ahead_.empty()); }
  void send_final(wire::AnswerReason rest);
  uint32_t part_of(const GetItem& item) const noexcept;
  bool layer_major() const noexcept { return view_.batch.order == wire::Order::LayerMajor; }

  std::vector<std::byte> body_;
  wire::RequestView view_;
  std::vector<SectionPlan> plans_;
  std::vector<Outcome> outcomes_;

  // The next item to plan.
  uint32_t section_ = 0;
  uint32_t key_ = 0;
  uint32_t cell_ = 0;
  wire::KeyCursor keys_{ConstBytes()};
  ConstBytes key_bytes_;
  // That item and those after it in its section, looked up together.
  std::vector<store::Sought> sought_;
  std::vector<store::Found> found_;
  size_t found_at_ = 0;  // the item's place among them
  bool planned_all_ = true;

  // Layer-major: the ordinals that are planned for all keys before any others.
  uint32_t round_first_ = 0;
  uint32_t round_end_ = UINT32_MAX;
  uint64_t round_bytes_ = 0;  // of each block
  bool exceeds_credit_ = false;
  bool rounds_ = false;
  bool round_is_last_ = true;  // as far as it was looked up
  bool step_begun_ = false;    // some step has

  store::Moment moment_;        // when its blocks are used
  std::vector<GetItem*> step_;  // planned; from step_at_ on not yet being read
  size_t step_at_ = 0;
  size_t step_bound_ = SIZE_MAX;  // reads to begin at once, less after a window was too large for memory
  uint64_t step_bytes_ = 0;
  uint32_t planned_items_ = 0;  // that are there, and
  uint64_t planned_bytes_ = 0;  // how long they are together
  uint64_t queued_bytes_ = 0;
  bool step_has_credit_ = false;

  std::vector<GetItem*> window_;  // being read or sent, in order; from window_at_ on
  size_t window_at_ = 0;
  // Layer-major: the ordinal that is being sent, the one that its window began with, and what is read after that window.
  uint32_t pass_ = 0;
  uint32_t window_first_ = 0;
  std::vector<GetItem*> ahead_;
};

}  // namespace halfstep::shard
