// point.h — for tests with threads: a place in the course of one that others wait for.
#pragma once

#include <condition_variable>
#include <mutex>

namespace halfstep::peer {

// A point that one thread reaches and another waits for.
class Point {
 public:
  void reach() {
    const std::lock_guard lock(mutex_);
    reached_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
};

}  // namespace halfstep::peer
