// decoder.h — blocks of one shard that are decoded for clients without their codec, by the daemon's pool (decode_pool.h), into
// memory that is set aside for it: what is sent of them lies there until it has left.
// Invariants: memory is taken when decoding begins, and given back when its DecodedBlock goes, which is not while a worker has
// it; who waits for memory goes on in the order of asking; what is read from, stays pinned meanwhile: its owner sees to it.
// Thread: the shard's, but decoded(), which a worker calls.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "base/slots.h"
#include "base/status.h"
#include "shard/decode_pool.h"
#include "store/store.h"

namespace halfstep::shard {

class Decoder;

// A block as if it had been stored plain; of parts that were not asked for it has none.
class DecodedBlock final : public store::Resident {
 public:
  // Nobody wants it any more: a worker that has it begins no further part.
  void abandon() noexcept { job_.abandoned.store(true, std::memory_order_relaxed); }
  Status status() const noexcept { return job_.status; }

 private:
  friend class Decoder;
  struct Job : DecodePool::Job {
    DecodedBlock* block = nullptr;
  };
  void (*done_)(void* owner) = nullptr;
  void* owner_ = nullptr;
  Job job_;
};

class Decoder final : private DecodePool::Owner {
 public:
  struct Counts {
    uint64_t blocks = 0;   // decoded
    uint64_t corrupt = 0;  // of which a part was no unit, or had another checksum than its table says
    uint64_t failed = 0;   // for want of memory to work in
    uint64_t throttled = 0;
    uint64_t waits = 0;
    uint64_t stored_bytes = 0;  // of what was decoded
    uint64_t raw_bytes = 0;
    uint64_t memory_bytes = 0;    // gauge
    uint64_t capacity_bytes = 0;  // gauge
  };
  // Who waits for memory.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    virtual void go_on_decoding() = 0;

   private:
    friend class Decoder;
    bool waits_ = false;
  };

  // wake: the shard turns soon; any thread.
  Decoder(DecodePool& pool, Arena& arena, std::function<void()> wake) : pool_(pool), slots_(arena), wake_(std::move(wake)) {}
  ~Decoder() { wait_idle(); }

  // Those whose parts it decodes.
  static uint64_t codecs() noexcept { return compress::kCodecs; }

  // Decodes these parts of `from`, in ascending order; done(owner) comes from turn(). Throttled: there is no memory now, or
  // others wait for it; TooLarge: there never is so much.
  Status begin(const store::Resident& from, std::span<const uint32_t> parts, void (*done)(void* owner), void* owner,
               std::unique_ptr<DecodedBlock>* out);
  // A block that was begun has gone.
  void note_freed() noexcept { freed_ = true; }
  void wait(Waiter& waiter);
  void leave(Waiter& waiter) noexcept;

  // Tells of what is done. Once a turn, and for the last time after wait_idle().
  void turn();
  // Lets go on who waits, where some memory has come back.
  void resume();
  // No worker has any of its blocks.
  void wait_idle();

  Counts& counts() noexcept { return counts_; }
  Counts counts_now() const noexcept;

 private:
  void decoded(DecodePool::Job& job) noexcept override;

  DecodePool& pool_;
  SlotPool slots_;
  const std::function<void()> wake_;
  Counts counts_;
  std::vector<Waiter*> waiting_;
  bool freed_ = false;
  bool resuming_ = false;  // the first of those who wait, who stands in the list no more

  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t running_ = 0;  // these are guarded by mutex_
  std::vector<DecodePool::Job*> done_;
  std::vector<DecodePool::Job*> taken_;  // used within turn()
};

}  // namespace halfstep::shard
