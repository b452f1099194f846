// discard_worker.h — BLKDISCARD for an engine that must not block: one thread that calls it, a request at a time.
// Invariants: `queued_` and `done_` change under `mutex_` alone; the thread touches a Request from taking it off `queued_` to
// putting it on `done_`, the shard's thread at all other times; the eventfd is written after each. Thread: the shard's, and its
// own, which no signal reaches.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "io/request.h"

namespace halfstep::io {

class DiscardWorker {
 public:
  // `descriptors` by the requests' device. Owns none of them, nor the eventfd.
  static Fault start(std::vector<int> descriptors, int event, std::unique_ptr<DiscardWorker>* out);
  // Waits for the request under way and drops the others.
  ~DiscardWorker();
  DiscardWorker(const DiscardWorker&) = delete;
  DiscardWorker& operator=(const DiscardWorker&) = delete;

  void submit(Request& request) noexcept;
  // Appends what has finished.
  void take_done(RequestQueue& out) noexcept;
  // Blocks until something has. Only while anything is under way here.
  void wait() noexcept;

 private:
  DiscardWorker(std::vector<int> descriptors, int event) : descriptors_(std::move(descriptors)), event_(event) {}
  static void* run(void* worker) noexcept;
  void work() noexcept;

  std::vector<int> descriptors_;
  int event_;
  pthread_t thread_{};
  bool started_ = false;

  std::mutex mutex_;
  std::condition_variable work_ready_;
  std::condition_variable work_done_;
  RequestQueue queued_;
  RequestQueue done_;
  bool stopping_ = false;
};

}  // namespace halfstep::io
