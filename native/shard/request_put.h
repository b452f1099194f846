// request_put.h — a put: slots are reserved for its items in order, bytes land in them in any order, and an item becomes
// visible, and is answered, when its last part is verified.
// Slots are reserved when the offer arrives, before the bytes behind it are read; so early bytes find a slot or an item that is
// answered already. An item that has to wait for memory or credit while its early bytes arrive loses them: it is throttled.
// Invariants: an item that has no slot costs nothing but its offer; what lands for it goes to scratch, within the early credit;
// slots that await parts count against the connection's credit and go back when the deadline passes, 60 s at the latest, or
// when what was granted came slower than 64 KiB/s for 5 s, but those that a device writes into only when it has ended, or the
// connection has; waiting for memory so long ends it too.
// Thread: the shard's.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/placement.h"
#include "shard/pool.h"
#include "shard/request.h"
#include "store/store.h"
#include "wire/records.h"

namespace halfstep::shard {

class PutRequest;
struct PutPools;

// Of a part, what has come or is coming: from its start on, all of it the same way.
struct PutClaim {
  uint32_t bytes = 0;
  bool pulled = false;
};

// One block between the reservation of its slot and the store's last word on it. Pooled.
struct PutItem {
  enum class State : uint8_t { Open, Doomed, Committed };  // Doomed: answered, its slot goes back when nothing lands in it

  store::Write write;
  PutRequest* request = nullptr;
  uint64_t credit_bytes = 0;
  uint32_t number = 0;  // over all sections
  uint32_t name_number = 0;
  uint32_t parts_left = 0;
  uint32_t landing_runs = 0;  // of the Chunk that is landing, and of those that are being pulled
  uint32_t pulled_runs = 0;   // of them: a device may write into its slot
  uint32_t landed_bytes = 0;
  State state = State::Open;
  std::vector<PutClaim> claimed;       // by part
  std::vector<store::PartInfo> table;  // of a coded block, until its slot is reserved
};

class PutRequest final : public Request {
 public:
  explicit PutRequest(PutPools& pools) noexcept : pools_(pools), idle_timer_(&PutRequest::on_idle, this) {}
  void start(Client& client, uint64_t id, ConstBytes body);

  void end(wire::AnswerReason with) override;
  void resume() override { reserve(); }
  uint64_t memory_wanted() const noexcept override { return wanted_bytes_; }
  void flush() override;
  // Granted, and not come.
  uint64_t awaited_bytes() const noexcept;
  // Ends what was granted and has not come, and waiting for memory.
  void expire();

  // For Pulls. Where the bytes of this run, of an item that is not coded, lie in the client's memory, appended to `out`. False:
  // it has not said so, or `out` has got more than runs_max.
  bool find_places(const wire::Run& run, size_t runs_max, std::vector<net::RemoteRun>& out) const;
  // A device begins to read there, and has ended: until then there is no Final, and slots that it writes into stay.
  void pull_begun() noexcept;
  void pull_ended();

  // For ChunkLanding.
  // pulled: a device reads the run's bytes. Item null: they are not wanted. Throttled: over the credit; Invalid: no such item.
  Status claim(const wire::Run& run, bool pulled, PutItem** item);
  void note_landed(PutItem& item, uint32_t bytes) noexcept;
  void part_landed(PutItem& item, uint32_t part, uint32_t check);
  void run_landed(PutItem& item);

 private:
  struct ItemState {
    PutItem* open = nullptr;
    wire::AnswerReason answer;
    bool granted = false;
  };
  struct SectionPlan {
    uint32_t scope = 0;
    wire::LayoutId layout{};
    uint32_t first_number = 0;
    uint32_t first_key = 0;
  };
  static constexpr size_t kItemsKept = 1024;
  // With its answer and, where a parent of the batch is named, its key; and its places.
  static constexpr size_t kItemBytes = sizeof(ItemState) + sizeof(uint32_t) + sizeof(ConstBytes) + RequestPlaces::kItemBytes;

  void on_drop() override;
  void recycle() override;

  void reserve();
  bool reserve_next();
  bool step_to_next_key();
  Status describe(PutItem& item, const wire::Offer& offer, wire::AnswerReason* refused);
  void set_parent(store::Write& write, const wire::Offer& offer);
  ConstBytes key_at(uint64_t ordinal);
  bool codecs_known() const noexcept;
  void take_table(PutItem& item);
  void grant(PutItem& item);

  bool fits(const PutItem& item, const wire::Run& run, bool pulled) const noexcept;
  void doom(PutItem& item, wire::AnswerReason with);
  void commit(PutItem& item);
  static void on_written(store::Write& write);

  bool take_early(uint64_t bytes) noexcept;
  void give_early() noexcept;

  void watch_headway();
  static void on_idle(void* self);

  void answer(uint32_t number, wire::AnswerReason with);
  void give_credit(PutItem& item);
  void free(PutItem& item);
  void leave_to_pull(PutItem& item);
  void write_answers(wire::FrameWriter& frame);
  uint32_t section_of(uint32_t number) const noexcept;

  PutPools& pools_;
  std::vector<std::byte> body_;
  wire::RequestView view_;
  std::vector<SectionPlan> plans_;
  std::vector<ItemState> items_;
  uint64_t offered_bytes_ = 0;
  uint64_t received_bytes_ = 0;
  uint64_t early_bytes_ = 0;  // for items without a slot
  uint64_t early_held_ = 0;   // before the first Want, out of the connection's early credit
  bool wanted_ = false;       // the first Want was sent
  uint32_t open_ = 0;         // items without an answer
  RequestPlaces places_;
  uint32_t pulls_ = 0;  // under way
  net::Timer idle_timer_;
  uint64_t slots_granted_ = 0;
  uint64_t landed_bytes_ = 0;
  uint64_t slots_mark_ = 0;
  uint64_t landed_mark_ = 0;
  uint64_t awaited_mark_ = 0;  // bytes that were granted and had not come
  uint64_t wanted_bytes_ = 0;  // of the next item, while it waits for memory

  // The next item to reserve a slot for.
  uint32_t next_ = 0;
  uint32_t section_ = 0;
  uint32_t index_ = 0;  // within the section
  wire::KeyCursor keys_{ConstBytes()};
  ConstBytes key_bytes_;
  std::vector<ConstBytes> batch_keys_;  // filled when a parent in the batch is named
  uint32_t table_at_ = 0;               // of view_.part_tables

  // Since the last flush.
  std::vector<wire::ItemRange> grants_;
  uint64_t granted_bytes_ = 0;
  std::vector<uint32_t> fresh_;  // numbers of items that were answered
};

// What the puts of a shard share.
struct PutPools {
  Pool<PutRequest> requests;
  Pool<PutItem> items;
};

}  // namespace halfstep::shard
