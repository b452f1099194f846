// request_prefetch.h — a prefetch: blocks are brought into memory ahead of the gets that will ask for them, and each key is
// answered when its block is there or will not come. It moves no payload and needs no credit: what it may take is the store's
// to bound (store/read/stager.h); how many keys may wait for that, the shard's.
// Invariants: what has not begun when the request ends, is cancelled, or loses its connection, is not begun any more; what is
// being read then stays in the store's hands, and the request is recycled after it.
// Thread: the shard's.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/item_answers.h"
#include "shard/pool.h"
#include "shard/request.h"
#include "store/store.h"
#include "wire/records.h"

namespace halfstep::shard {

class PrefetchRequest final : public Request {
 public:
  // Over all requests of a shard: who asks for more is told to come back.
  static constexpr uint64_t kStagesMax = 64 * 1024;

  explicit PrefetchRequest(Pool<PrefetchRequest>& pool) noexcept : pool_(pool) {}
  void start(Client& client, uint64_t id, ConstBytes body);
  void end(wire::AnswerReason with) override;

 private:
  static constexpr size_t kStagesKept = 1024;
  static void on_staged(store::Stage& stage);
  void withdraw();
  void on_drop() override { withdraw(); }
  void recycle() override;

  Pool<PrefetchRequest>& pool_;
  std::vector<store::Stage> stages_;  // they stay where they are until the last is done
  ItemAnswers answers_;
  uint32_t open_ = 0;
};

}  // namespace halfstep::shard
