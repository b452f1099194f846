// request_catalog.h — commands about what there is: layouts and their clearing, namespaces, the list of blocks, counters.
// Those that change the store's header are answered when it is on media.
// Thread: the shard's.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "shard/pool.h"
#include "shard/request.h"
#include "store/store.h"
#include "wire/layout.h"

namespace halfstep::shard {

// A request that waits for one call of the store.
class StoreCall final : public Request {
 public:
  explicit StoreCall(Pool<StoreCall>& pool) noexcept : pool_(pool) {}
  // bytes: of memory that it takes until the store is done. False: it was refused, and is over.
  bool start(Client& client, wire::Opcode opcode, uint64_t id, uint64_t bytes);
  void end(wire::AnswerReason with) override;
  // What the store answered.
  void done(Status status);
  void layout_done(Status status, uint32_t scope, const wire::LayoutId& layout);
  void list(uint64_t cursor, uint32_t limit);

 private:
  void list_done();
  void stop_listing() noexcept;
  void on_drop() override { stop_listing(); }
  void recycle() override;

  Pool<StoreCall>& pool_;
  store::Listing listing_;
  std::vector<std::byte> entries_;  // of the listing, as they go out
};

void register_layout(Client& client, Pool<StoreCall>& calls, uint64_t id, ConstBytes body);
void clear_layout(Client& client, Pool<StoreCall>& calls, uint64_t id, ConstBytes body);
void change_namespace(Client& client, Pool<StoreCall>& calls, uint64_t id, ConstBytes body);
void answer_layout_of(Client& client, uint64_t id, ConstBytes body);
void answer_list(Client& client, Pool<StoreCall>& calls, uint64_t id, ConstBytes body);
void answer_stat(Client& client, uint64_t id, ConstBytes body);

}  // namespace halfstep::shard
