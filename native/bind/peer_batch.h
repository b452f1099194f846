// peer_batch.h — one batch from the Python side: what is sent, where bytes go, and all memory that must stay until it is over.
// Invariants: setters only before submit; from submit to finish() the batch's memory is neither released nor moved, whatever
// Python drops; the core writes answers, lengths, the cursor, the outcome and the records only in that time.
// Thread: with the GIL held; append_record runs on the thread that receives, before the terminal event, and touches no Python
// object.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind/peer_section.h"
#include "peer/halfstep.h"

namespace halfstep::bind {

class Batch {
 public:
  // What a batch held until its end. Dropping it may run Python code.
  struct Remains {
    Remains() = default;
    Remains(Remains&&) = default;
    Remains& operator=(Remains&&) = delete;
    ~Remains();
    Section::Kept first;
    std::vector<Section::Kept> more;
    nb::object owner;
    nb::object batch;  // the last reference to it, perhaps
  };

  explicit Batch(uint32_t operation);
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // ---- before submit ----
  // Of the section that is being made; see there.
  uint32_t set_keys(int layout, nb::handle keys, uint32_t first_component, uint32_t component_count, bool stop_at_miss);
  void set_ranges(const std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>& ranges);
  void set_target(nb::handle target);
  void set_source(nb::handle source, nb::handle block_bytes);
  void set_rows(nb::object rows_template, nb::handle rows, bool is_source, nb::handle block_bytes);
  void set_addresses(nb::handle regions, nb::handle addresses, nb::handle lengths, bool is_source);
  void set_offer(nb::handle parents, nb::handle depths, uint32_t ttl_s, uint8_t hint);
  // After keys and ranges: room for what the core answers, and for lengths where they are wanted.
  void set_outputs(bool lengths);
  // What is set of a section from here on is of the next one. Answers and lengths of all follow each other.
  void next_section();
  void set_options(uint64_t deadline_us, uint8_t order, uint8_t durability, uint8_t priority, bool wants_progress);
  // All that a get says, in one call from Python: after each get what that would touch has left the cache. `in_rows`: without a
  // target, set_rows() follows. Returns the number of keys.
  uint32_t set_get(int layout, nb::handle keys, uint32_t first_component, uint32_t component_count, bool stop_at_miss,
                   const std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>& ranges, nb::handle target, bool in_rows,
                   uint64_t deadline_us, uint8_t order, uint8_t priority, bool wants_progress);
  void set_hold(uint64_t owner, uint32_t ms);
  void set_list(uint64_t cursor, uint32_t limit);
  void set_namespace(std::string name, uint64_t quota_bytes, uint64_t pin_budget_bytes, uint32_t default_ttl_s,
                     bool sliding_ttl);
  void set_coding(uint16_t policy, uint16_t step_limit);
  // hold, renew: ms (0 = without end); expire: seconds (0 = never).
  void set_life(uint64_t value, bool persistent);
  void set_prefetch(uint64_t keep_ms, bool follow, uint32_t kind);
  void set_wait();
  // With memory of a CUDA device: what these have under way comes first. Without this call the legacy default stream.
  void set_streams(std::vector<uint64_t> streams);
  void set_question(nb::bytes question);
  void set_layout_id(nb::bytes id);

  uint32_t item_count() const noexcept;
  nb::bytes packed_keys() const { return now_->packed_keys(); }

  // ---- submit and after: for Queue ----
  hs_batch prepared(uint64_t user_data);
  // Its direct regions are that client's, too.
  void register_regions(const std::shared_ptr<hs_client>& client) const;
  // Called before hs_submit, because the terminal event may be polled before hs_submit returns.
  void started(nb::object owner);
  void named(hs_ticket ticket) noexcept { ticket_ = ticket; }
  // Asked to end while hs_submit had not returned its name yet: whoever names it cancels it.
  void want_cancel() noexcept { cancel_wanted_ = true; }
  bool cancel_wanted() const noexcept { return cancel_wanted_; }
  void progressed(uint32_t steps_done) noexcept { steps_done_ = steps_done; }
  const nb::object& owner() const noexcept { return owner_; }
  // The terminal event came. What it held is the caller's to release: that may run Python code.
  [[nodiscard]] Remains finish(uint32_t items_ok);
  // As finish(), for an event that another thread has taken.
  [[nodiscard]] Remains finish_unseen();
  // As finish(), for a batch whose core stayed in the parent process: pending answers become cancelled(forked).
  [[nodiscard]] Remains finish_forked();
  // Undoes started() for a batch that the core refused.
  void refused() noexcept;
  // Its place among the events that nobody has seen; 0: none.
  uint64_t listed = 0;

  // ---- state ----
  bool submitted() const noexcept { return submitted_; }
  bool done() const noexcept { return done_; }
  // Nothing is under way: it is done, or was never begun (refused, or answered without the core).
  bool over() const noexcept { return done_ || !submitted_; }
  hs_ticket ticket() const noexcept { return ticket_; }
  uint32_t steps_done() const noexcept { return steps_done_; }
  uint32_t items_ok() const noexcept { return items_ok_; }
  const hs_answer& outcome() const noexcept { return outcome_; }
  uint64_t cursor() const noexcept { return cursor_; }
  // Once it is done, as a bytearray: 1 for each answer that is ok, else 0.
  nb::object ok() const;
  // Once it is done: an hs_answer per item, or per item and selected part; a uint32 per item.
  nb::bytes answers() const { return nb::bytes(answers_.data(), answers_.size() * sizeof(hs_answer)); }
  nb::bytes lengths() const { return nb::bytes(lengths_.data(), lengths_.size() * sizeof(uint32_t)); }
  // Of gets alone: where the lengths are.
  nb::bytes error_bounds() const { return nb::bytes(error_bounds_.data(), error_bounds_.size() * sizeof(float)); }
  // The same, where a section is on a device; else none.
  nb::bytes unchecked() const { return nb::bytes(unchecked_.data(), unchecked_.size() * sizeof(uint32_t)); }
  // (record, name) as they came.
  nb::list records() const;

  // For Python's collector. Nothing is cleared here: the queue does, once it has fenced.
  static int traverse(PyObject* self, visitproc visit, void* arg);

 private:
  // A setter at work, which may run Python code: what that submits is refused.
  class Setting {
   public:
    explicit Setting(Batch& batch) : batch_(batch) {
      batch.check_open();
      ++batch.setting_;
    }
    ~Setting() { --batch_.setting_; }
    Setting(const Setting&) = delete;
    Setting& operator=(const Setting&) = delete;

   private:
    Batch& batch_;
  };

  void check_open() const;
  void check_outputs() const;
  const hs_section& prepared(Section& section);
  Remains release();
  static void append_record(void* context, const void* record, size_t record_bytes, const void* name, size_t name_bytes);

  hs_batch batch_{};
  // The first in place: most batches have no other.
  Section first_;
  std::vector<std::unique_ptr<Section>> more_;
  Section* now_ = &first_;
  std::vector<hs_section> headers_;
  std::string text_;
  std::vector<uint64_t> streams_ = {0};
  std::array<uint8_t, 16> layout_id_{};
  std::vector<hs_answer> answers_;
  std::vector<uint32_t> lengths_;
  std::vector<float> error_bounds_;
  std::vector<uint32_t> unchecked_;

  nb::object owner_;

  hs_ticket ticket_ = 0;
  uint32_t setting_ = 0;
  bool submitted_ = false;
  bool done_ = false;
  bool cancel_wanted_ = false;
  uint32_t steps_done_ = 0;
  uint32_t items_ok_ = 0;
  hs_answer outcome_{};
  uint64_t cursor_ = 0;
  std::vector<std::pair<std::string, std::string>> records_;
};

}  // namespace halfstep::bind
