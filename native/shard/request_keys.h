// request_keys.h — commands about keys that move no payload: match, release, delete, cancel.
// match, release and cancel are answered at once; a delete is answered when its tombstones are on media.
// Thread: the shard's.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/request.h"
#include "store/store.h"
#include "wire/records.h"

namespace halfstep::shard {

// Every layout is one that this connection registered and whose scope is alive, and every key is this shard's. Otherwise the
// request is answered as a whole (with the shard map where that is the remedy), and false comes back.
bool check_names(Connection& connection, wire::Opcode command, uint64_t request_id, const wire::RequestView& view);

void answer_match(Connection& connection, uint64_t id, ConstBytes body);
void answer_release(Connection& connection, uint64_t id, ConstBytes body);
void answer_cancel(Connection& connection, uint64_t id, ConstBytes body);

class DeleteRequest final : public Request {
 public:
  void start(Connection& connection, uint64_t id, ConstBytes body);
  void end(wire::AnswerReason with) override;

 private:
  static constexpr size_t kRemovesKept = 1024;
  static void on_removed(store::Remove& remove);
  void on_drop() override {}  // the store has the removes, and says when each is done
  void recycle() override;

  std::vector<store::Remove> removes_;
  std::vector<wire::AnswerReason> answers_;
  std::vector<uint32_t> section_items_;
  uint32_t open_ = 0;
};

}  // namespace halfstep::shard
