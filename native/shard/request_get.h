// request_get.h — a get: blocks are read in windows, and sent in the order that was asked for while later ones are read.
// What is read next, and in which order, is the planner's to say (get_planner.h); a step of that begins together
// (get_step.h); what leaves next the sender's (get_sender.h); what is said of each item the outcomes' (get_outcomes.h). Here
// they are joined: how much a step may take, what waits for what, and who gives back what.
// Key-major: steps of up to a quarter of the connection's credit are read ahead, and each item is sent when those before it
// are. Layer-major: a window is as many blocks as the credit holds, in key order. A request that needs more than the credit
// takes half of it for each window, and reads one while the one before is sent.
// With kBatchWait what is not there is waited for: it is read, as a step of its own, when somebody has stored it, and is absent
// when that did not happen by the deadline.
// Where the daemon decodes (decoder.h), what the client cannot decode is sent once that is done, as plain blocks are.
// Invariants: a step's memory is reserved all at once or not at all; a block is pinned from its read until the last of its
// bytes has left; what is not queued when the deadline passes is late; items are answered in no order but told in Final.
// Thread: the shard's.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/chunk_builder.h"
#include "shard/get_awaited.h"
#include "shard/get_item.h"
#include "shard/get_outcomes.h"
#include "shard/get_planner.h"
#include "shard/get_sender.h"
#include "shard/get_step.h"
#include "shard/metrics.h"
#include "shard/placement.h"
#include "shard/pool.h"
#include "shard/request.h"
#include "store/store.h"
#include "wire/records.h"

namespace halfstep::shard {

struct GetPools;

class GetRequest final : public Request, private GetSender::Owner, private KeyWaiters::Owner, private Decoder::Waiter {
 public:
  explicit GetRequest(GetPools& pools) noexcept : pools_(pools), sender_(*this, outcomes_) {}
  void start(Client& client, uint64_t id, ConstBytes body);

  void end(wire::AnswerReason with) override;
  bool send_chunk() override;
  uint64_t bytes_to_send() const noexcept override;
  void resume() override { advance(); }
  void flush() override;
  uint64_t memory_wanted() const noexcept override { return step_.bytes(); }

 private:
  // Layer by layer all of them are in work at once.
  size_t more_item_bytes(const wire::RequestView& view) const noexcept override {
    return (view.batch.order == wire::Order::LayerMajor ? sizeof(GetItem) : 0) +
           ((view.batch.flags & wire::kBatchWait) != 0 ? GetAwaited::kItemBytes : 0) + RequestPlaces::kItemBytes;
  }
  void on_drop() override;
  void recycle() override;

  // Reading.
  void advance();
  bool plan_step();
  bool plan_awaited();
  void add_to_step();
  void add_to_step(GetItem& item);
  uint64_t step_bytes(bool two_windows) const noexcept;
  size_t step_items_max() const noexcept;
  bool begin_again();
  bool begin_reads();
  static void on_read(store::Read& read);
  static void on_landed(store::Read& read);

  // Decoding.
  bool decodes(const GetItem& item) const override;
  Status decode(GetItem& item, std::span<const uint32_t> parts) override;
  static void on_decoded(void* item);
  void begin_decodes();
  void go_on_decoding() override { begin_decodes(); }

  // Waiting.
  void await();
  KeyWaiters::Waiter waiter() const noexcept override { return {command_name(opcode()), started_us(), deadline_us()}; }
  uint32_t woken(KeyWaiters::Wait& wait, KeyWaiters::Why why) override;
  void end_waits(bool expired) noexcept;

  // Giving back.
  void release(GetItem& item) override;
  static void chunk_left(void* sent_chunk, uint64_t pools);

  GetPools& pools_;
  std::vector<std::byte> body_;
  wire::RequestView view_;
  GetOutcomes outcomes_;
  GetPlanner planner_;
  GetStep step_;
  RequestPlaces places_;
  GetAwaited awaited_;
  GetSender sender_;
  store::Moment moment_;  // when its blocks are used
  bool planned_all_ = true;
  uint64_t queued_bytes_ = 0;
};

// What the gets of a shard share.
struct GetPools {
  Pool<GetRequest> requests;
  Pool<GetItem> items;
  Pool<SentChunk> chunks;
  // Used within one call, by nobody across calls.
  ChunkBuilder builder;
  std::vector<store::Read*> reads;
};

}  // namespace halfstep::shard
