// decode_pool.h — threads of the daemon that decode for clients without a codec; all shards share them (decoder.h).
// A unit takes longer than a shard may stand still. Invariants: a job is the pool's from submit() until its owner is told,
// once; between these a worker reads what `in` names and writes what `out` names, and nothing else; a job that is abandoned
// begins no further part. Thread: submit() and abandon() any; Owner::decoded() a worker's.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "compress/unit.h"

namespace halfstep::shard {

class DecodePool {
 public:
  static constexpr uint32_t kThreadsMax = 4;

  struct Job;
  class Owner {
   public:
    virtual void decoded(Job& job) noexcept = 0;

   protected:
    ~Owner() = default;
  };
  struct Part {
    uint8_t codec = 0;
    uint32_t stored_bytes = 0;
    uint32_t raw_bytes = 0;
    uint32_t raw_crc = 0;  // of what comes out
    uint32_t in = 0;       // its first piece, of `in` and of `out`; the last is before the next part's
    uint32_t out = 0;
  };
  struct Job {
    Owner* owner = nullptr;
    std::vector<Part> parts;
    std::vector<ConstBytes> in;
    std::vector<Bytes> out;
    std::atomic<bool> abandoned{false};
    // Ok; Corrupt: a part is no unit, or has another checksum; NoSpace: no memory to work in; Cancelled: it was abandoned.
    Status status;
  };

  DecodePool() = default;
  ~DecodePool();
  DecodePool(const DecodePool&) = delete;
  DecodePool& operator=(const DecodePool&) = delete;

  // A quarter of the machine's processors, at least one.
  Status start();
  uint32_t threads() const noexcept { return static_cast<uint32_t>(threads_.size()); }
  void submit(Job& job);

 private:
  // What a worker keeps between jobs.
  struct Bench {
    compress::Scratch scratch;
    std::vector<std::byte> stored;  // of a part whose bytes are in pieces
    std::vector<std::byte> raw;
  };
  void run();
  static Status decode(Job& job, Bench& bench);
  static Status decode_part(const Job& job, size_t number, Bench& bench);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job*> queue_;  // these are guarded by mutex_
  bool stopping_ = false;
};

}  // namespace halfstep::shard
