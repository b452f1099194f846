// credit.h — bytes of memory that one connection may have in use for one purpose, and who waits for some, first come first
// served. Invariant: what is given back was taken, here and in what all connections of the shard have together.
// Thread: the shard's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shard/waiter.h"

namespace halfstep::shard {

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
  bool take(const Waiter& by, uint64_t bytes) noexcept;
  // Somebody who has taken some needs so much more than was known: whoever comes next waits for longer.
  void add(uint64_t bytes) noexcept;
  void give(uint64_t bytes) noexcept;

  void join(Waiter& waiter) { waiters_.push_back(&waiter); }
  // True: it stood before others, who may go on now.
  bool leave(const Waiter& waiter) noexcept;
  bool awaited() const noexcept { return !waiters_.empty(); }
  // Lets those at the front go on, until one of them still waits.
  void resume_waiters();

 private:
  uint64_t floor_bytes_ = 0;
  uint64_t limit_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  Common* common_ = nullptr;  // null: always limit_bytes_
  uint64_t* gauge_ = nullptr;
  std::vector<Waiter*> waiters_;
};

}  // namespace halfstep::shard
