// request.h — one request between its frame and the moment when nothing refers to it any more.
// Life: admitted (its connection finds it by id, its deadline runs) -> finished (Final is queued, or the connection is gone)
// -> recycled, once the store and the send queue have given back all that they hold of it.
// Invariants: exactly one Final per admitted request whose connection lives; a finished request sends nothing and waits in no
// list; it keeps its connection's credit until each piece is given back.
// Thread: the shard's.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "net/loop.h"
#include "shard/waiter.h"
#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::shard {

class Client;
class Credit;
class RequestHost;

// Of a get or put that names no deadline: what it holds, others wait for.
inline constexpr uint32_t kDeadlineUsDefault = 60'000'000;

class Request : public Waiter {
 public:
  enum class Waits : uint8_t { Nothing, Credit, Memory };

  Request() noexcept : deadline_timer_(&Request::on_deadline, this) {}

  uint64_t id() const noexcept { return id_; }
  wire::Opcode opcode() const noexcept { return opcode_; }
  uint8_t priority() const noexcept { return priority_; }
  uint64_t started_us() const noexcept { return started_us_; }
  bool finished() const noexcept { return finished_; }
  Waits waits() const noexcept { return waits_; }
  Client* client() const noexcept { return client_; }

  // Everything without an answer gets this one; Final goes out.
  virtual void end(wire::AnswerReason with) = 0;
  // Queues one Chunk. False: nothing is ready, or nothing is left.
  virtual bool send_chunk() { return false; }
  // About how much it has still to send.
  virtual uint64_t bytes_to_send() const noexcept { return 0; }
  void resume() override {}
  uint64_t memory_wanted() const noexcept override { return 0; }
  // The next step of what would take longer than a turn (Client::leave_work). False: that was all.
  virtual bool go_on() { return false; }
  // At the end of the turn, after mark_dirty(): what has gathered goes out in one frame.
  virtual void flush() {}
  // The connection is gone: gives back what is its own, answers nobody.
  void drop();

 protected:
  // The connection starts to know it; the latency counts from here. 0: no deadline.
  void admit(Client& client, wire::Opcode opcode, uint64_t id, uint32_t deadline_us, uint8_t priority);
  // Parses `body`, which `view` refers to afterwards, and admits what it asks for, until `deadline_us_default` where it names
  // no deadline and `deadline_us_max` at most. False: it was answered as a whole, and the request may be recycled.
  // It, its body and `item_bytes` for each item count in the memory of requests until it is recycled.
  bool admit_parsed(Client& client, wire::Opcode opcode, uint64_t id, ConstBytes body, size_t item_bytes,
                    wire::RequestView* view, uint32_t deadline_us_default, uint32_t deadline_us_max = UINT32_MAX);
  // False: there is not so much memory of requests for it, and it was answered as a whole.
  bool charge(uint64_t bytes);
  // Before it waits for blocks that others may store: what it was charged counts in the memory of those who wait, too. False:
  // there is not so much for it. More than once is once.
  bool charge_wait();
  // After Final was queued. The request may be recycled when this returns.
  void finish();
  // What the store or the send queue holds of it.
  void retain(uint32_t count = 1) noexcept { outstanding_ += count; }
  void let_go();
  // The list to wait in; Nothing leaves it.
  void set_waits(Waits waits, Credit* credit = nullptr);
  void mark_dirty();
  RequestHost& host() const noexcept { return *host_; }
  uint64_t deadline_us() const noexcept { return deadline_us_; }

  // What each of its items takes beyond `item_bytes` of admit_parsed(), by what it asks for.
  virtual size_t more_item_bytes(const wire::RequestView&) const noexcept { return 0; }

  virtual void on_drop() = 0;
  // Back to its pool, as good as new. Called once, with nothing outstanding.
  virtual void recycle() = 0;

  static constexpr uint64_t kNoDeadline = UINT64_MAX;
  // What a request has beside its body and items, about: the object, its small vectors, the heads of its answers.
  static constexpr uint64_t kOwnBytes = 4 * 1024;
  // A pooled body keeps its memory up to this.
  static constexpr size_t kBodyBytesKept = 64 * 1024;
  static void keep_body(std::vector<std::byte>& kept, ConstBytes body) { kept.assign(body.begin(), body.end()); }
  static void forget_body(std::vector<std::byte>& kept);

 private:
  friend class Shard;  // its list of what is dirty

  static void on_deadline(void* self);
  void leave_lists();
  void end_wait() noexcept;
  bool take_memory(uint64_t bytes) noexcept;
  void retire();

  RequestHost* host_ = nullptr;
  Client* client_ = nullptr;
  Credit* waits_for_ = nullptr;
  net::Timer deadline_timer_;
  uint64_t id_ = 0;
  uint64_t started_us_ = 0;
  uint64_t deadline_us_ = kNoDeadline;
  uint64_t memory_bytes_ = 0;
  uint64_t wait_bytes_ = 0;  // memory_bytes_ once it has waited
  size_t dirty_at_ = 0;      // in the shard's list, while dirty_
  uint32_t outstanding_ = 0;
  wire::Opcode opcode_ = wire::Opcode::Hello;
  uint8_t priority_ = 0;
  Waits waits_ = Waits::Nothing;
  bool finished_ = true;
  bool dirty_ = false;
};

}  // namespace halfstep::shard
