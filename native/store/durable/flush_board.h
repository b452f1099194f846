// flush_board.h — what the shards of one device know of each other's flushes. Of flushes that overlap, one alone may be told
// that writes were lost (Linux reports an error of writing back once an open file; a drive fails one command): so a flush that
// succeeded says something when those that were under way as it ended are known, too.
// Invariants: a failure is counted before anybody is answered who was on the board with it; nobody waits for a flush that
// began after his own had ended, so that none wait for each other. Thread: any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace halfstep::store {

class FlushBoard {
 public:
  // Of one who flushes, one at a time.
  class Place {
   public:
    // `wake`: any thread may call it while the place is there; empty: there is nobody to wake.
    Place(FlushBoard& board, std::function<void()> wake);
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    uint64_t failures() const noexcept { return board_.failures_.load(std::memory_order_acquire); }
    void began();
    void ended(bool failed);
    // Those that were under way when the last one ended here have ended as well. False: wakes when they have.
    bool settled();
    void wait_settled();

   private:
    friend class FlushBoard;
    FlushBoard& board_;
    const std::function<void()> wake_;
    // Guarded by the board's mutex.
    uint64_t under_way_ = 0;  // the number of the flush; 0: none
    uint64_t waits_for_ = 0;  // all up to this number, of the others
    bool to_be_woken_ = false;
  };

  void note_failure() noexcept { failures_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  bool settled_locked(const Place& place) const noexcept;
  void call_waiting();

  std::atomic<uint64_t> failures_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t last_ = 0;
  std::vector<Place*> places_;
};

}  // namespace halfstep::store
