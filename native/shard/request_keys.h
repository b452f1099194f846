// request_keys.h — commands about keys that move no payload: touch, renew and cancel, which are answered at once;
// delete, hold, release and expire, whose keys are answered when what a restart has to know of them is on media. Those change
// kItemsAtOnce keys in a step, and others have their turn between two steps. Thread: the shard's.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/item_answers.h"
#include "shard/pool.h"
#include "shard/request.h"
#include "shard/section_items.h"
#include "store/store.h"
#include "wire/records.h"

namespace halfstep::shard {

void answer_touch(Client& client, uint64_t id, ConstBytes body);
void answer_renew(Client& client, uint64_t id, ConstBytes body);
void answer_cancel(Client& client, uint64_t id, ConstBytes body);

// Delete, Hold, Release or Expire: a change for each item; a Release of all that an owner has is one change.
class ChangeRequest final : public Request {
 public:
  explicit ChangeRequest(Pool<ChangeRequest>& pool) noexcept : pool_(pool) {}
  void start(Client& client, wire::Opcode opcode, uint64_t id, ConstBytes body);
  void end(wire::AnswerReason with) override;
  bool go_on() override;

 private:
  static constexpr size_t kChangesKept = 1024;
  void begin(store::Change& change);
  static void on_changed(store::Change& change);
  // The store has the changes that were begun, and says when each is done.
  void on_drop() override { give_up_rest(); }
  void give_up_rest();
  void recycle() override;

  Pool<ChangeRequest>& pool_;
  std::vector<std::byte> body_;
  wire::RequestView view_;
  ItemWalk walk_;
  std::vector<store::Change> changes_;
  uint32_t begun_ = 0;  // of them
  ItemAnswers answers_;
  uint64_t lease_until_us_ = 0;  // of a hold that is not persistent
  uint32_t open_ = 0;
  int32_t refused_ = 0;  // store::kThrottled… of a hold that a budget refused
};

}  // namespace halfstep::shard
