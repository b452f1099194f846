// request.h — one request between its frame and the moment when nothing refers to it any more.
// Life: admitted (its connection finds it by id, its deadline runs) -> finished (Final is queued, or the connection is gone)
// -> recycled, once the store and the send queue have given back all that they hold of it.
// Invariants: exactly one Final per admitted request whose connection lives; a finished request sends nothing and waits in no
// list; it keeps its connection's credit until each piece is given back.
// Thread: the shard's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "net/loop.h"
#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::shard {

class Connection;
class Shard;

// Codec numbers that a mask of codecs can name (HelloClient, HelloServer).
inline constexpr uint32_t kCodecs = 64;

// Of a get or put that names no deadline: what it holds, others wait for.
inline constexpr uint32_t kDeadlineUsDefault = 60'000'000;

class Request;

// Bytes of memory that one connection may have in use for one purpose, and who waits for some, first come first served.
class Credit {
 public:
  // What a connection may have of memory that all of a shard have together: four times what nobody has, as a switch divides its
  // buffer among ports (Choudhury and Hahne, 1998). So one alone comes to four fifths of it, and n others and it to
  // 4 / (4 n + 5) each; but never to less than `floor_bytes`, nor to more than `limit_bytes`.
  struct Common {
    uint64_t memory_bytes = 0;
    uint64_t out_bytes = 0;  // of all
  };

  // `gauge` sums what all credits of a shard have out, whatever for.
  void open(uint64_t limit_bytes, uint64_t* gauge) noexcept { open(limit_bytes, limit_bytes, nullptr, gauge); }
  void open(uint64_t floor_bytes, uint64_t limit_bytes, Common* common, uint64_t* gauge) noexcept {
    floor_bytes_ = floor_bytes;
    limit_bytes_ = limit_bytes;
    common_ = common;
    gauge_ = gauge;
  }
  // Another bound for this connection alone.
  void set_limit(uint64_t limit_bytes) noexcept {
    limit_bytes_ = limit_bytes;
    floor_bytes_ = std::min(floor_bytes_, limit_bytes);
  }
  // The connection is gone. What is still out is given back to nobody.
  void close() noexcept { give(used_bytes_); }
  // With so many more out, of anybody's.
  uint64_t limit_bytes(uint64_t more = 0) const noexcept;
  // What one who has nothing out may take in one go and stay within the limit that holds afterwards.
  uint64_t whole_bytes() const noexcept;
  uint64_t used_bytes() const noexcept { return used_bytes_; }
  // One block larger than all of the credit is served alone.
  bool take(const Request& by, uint64_t bytes) noexcept;
  void give(uint64_t bytes) noexcept;

  void join(Request& waiter) { waiters_.push_back(&waiter); }
  // True: it stood before others, who may go on now.
  bool leave(const Request& waiter) noexcept;
  bool awaited() const noexcept { return !waiters_.empty(); }
  // Lets those at the front go on, until one of them still waits.
  void resume_waiters();

 private:
  uint64_t floor_bytes_ = 0;
  uint64_t limit_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  Common* common_ = nullptr;  // null: always limit_bytes_
  uint64_t* gauge_ = nullptr;
  std::vector<Request*> waiters_;
};

class Request {
 public:
  enum class Waits : uint8_t { Nothing, Credit, Memory };

  Request() noexcept : deadline_timer_(&Request::on_deadline, this) {}
  virtual ~Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  uint64_t id() const noexcept { return id_; }
  wire::Opcode opcode() const noexcept { return opcode_; }
  uint8_t priority() const noexcept { return priority_; }
  uint64_t started_us() const noexcept { return started_us_; }
  bool finished() const noexcept { return finished_; }
  Waits waits() const noexcept { return waits_; }
  Connection* connection() const noexcept { return connection_; }

  // Everything without an answer gets this one; Final goes out.
  virtual void end(wire::AnswerReason with) = 0;
  // Queues one Chunk. False: nothing is ready, or nothing is left.
  virtual bool send_chunk() { return false; }
  // About how much it has still to send.
  virtual uint64_t bytes_to_send() const noexcept { return 0; }
  // Credit or memory may be there now.
  virtual void resume() {}
  // How much memory it would take if there was some.
  virtual uint64_t memory_wanted() const noexcept { return 0; }
  // The next step of what would take longer than a turn (Connection::leave_work). False: that was all.
  virtual bool go_on() { return false; }
  // At the end of the turn, after mark_dirty(): what has gathered goes out in one frame.
  virtual void flush() {}
  // The connection is gone: gives back what is its own, answers nobody.
  void drop();

 protected:
  friend class Connection;
  friend class MemoryWaiters;
  friend class Shard;

  // The connection starts to know it; the latency counts from here. 0: no deadline.
  void admit(Connection& connection, wire::Opcode opcode, uint64_t id, uint32_t deadline_us, uint8_t priority);
  // Parses `body`, which `view` refers to afterwards, and admits what it asks for, until `deadline_us_default` where it names
  // no deadline and `deadline_us_max` at most. False: it was answered as a whole, and the request may be recycled.
  // It, its body and `item_bytes` for each item count in the memory of requests until it is recycled.
  bool admit_parsed(Connection& connection, wire::Opcode opcode, uint64_t id, ConstBytes body, size_t item_bytes,
                    wire::RequestView* view, uint32_t deadline_us_default, uint32_t deadline_us_max = UINT32_MAX);
  // After Final was queued. The request may be recycled when this returns.
  void finish();
  // What the store or the send queue holds of it.
  void retain(uint32_t count = 1) noexcept { outstanding_ += count; }
  void let_go();
  // The list to wait in; Nothing leaves it.
  void set_waits(Waits waits, Credit* credit = nullptr);
  void mark_dirty();
  Shard& shard() const noexcept { return *shard_; }
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
  static void on_deadline(void* self);
  void leave_lists();
  bool take_memory(uint64_t bytes) noexcept;
  void retire();

  Shard* shard_ = nullptr;
  Connection* connection_ = nullptr;
  Credit* waits_for_ = nullptr;
  Request* waits_before_ = nullptr;  // among MemoryWaiters
  Request* waits_after_ = nullptr;
  net::Timer deadline_timer_;
  uint64_t id_ = 0;
  uint64_t started_us_ = 0;
  uint64_t deadline_us_ = kNoDeadline;
  uint64_t memory_bytes_ = 0;
  size_t dirty_at_ = 0;  // in the shard's list, while dirty_
  uint32_t outstanding_ = 0;
  wire::Opcode opcode_ = wire::Opcode::Hello;
  uint8_t priority_ = 0;
  Waits waits_ = Waits::Nothing;
  bool finished_ = true;
  bool dirty_ = false;
};

}  // namespace halfstep::shard
