// drive_watch.h — what a drive counts as written, asked for every few seconds by a thread that may wait for it.
// Invariants: whoever reads the counts never waits for the drive; a drive that does not answer leaves the last ones.
// Thread: seen() any. The end waits for an answer that is under way, at most as long as the driver does.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "base/status.h"
#include "io/nvme_identify.h"

namespace halfstep::io {

class DriveWatch {
 public:
  using Read = std::function<Fault(NvmeWritten*)>;
  struct Seen {
    NvmeWritten first, last;
    // Bytes written to the media for each one that hosts wrote, since the first look. None: the drive does not tell, or nothing
    // was written.
    std::optional<double> amplification() const noexcept;
  };

  static constexpr auto kEvery = std::chrono::seconds(5);
  static Fault start(Read read, std::unique_ptr<DriveWatch>* out, std::chrono::milliseconds every = kEvery);
  ~DriveWatch();
  DriveWatch(const DriveWatch&) = delete;
  DriveWatch& operator=(const DriveWatch&) = delete;

  // Nothing as long as no look has succeeded.
  std::optional<Seen> seen() const;

 private:
  DriveWatch(Read read, std::chrono::milliseconds every) : read_(std::move(read)), every_(every) {}
  static void* run(void* watch) noexcept;
  void look_until_stopped();

  const Read read_;
  const std::chrono::milliseconds every_;
  pthread_t thread_{};
  bool started_ = false;
  mutable std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::optional<Seen> seen_;
};

}  // namespace halfstep::io
