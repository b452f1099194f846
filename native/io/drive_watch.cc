#include "io/drive_watch.h"

#include <signal.h>

namespace halfstep::io {

std::optional<double> DriveWatch::Seen::amplification() const noexcept {
  if (last.media_bytes == 0 || last.host_bytes <= first.host_bytes || last.media_bytes < first.media_bytes) return {};
  return static_cast<double>(last.media_bytes - first.media_bytes) / static_cast<double>(last.host_bytes - first.host_bytes);
}

Fault DriveWatch::start(Read read, std::unique_ptr<DriveWatch>* out, std::chrono::milliseconds every) {
  std::unique_ptr<DriveWatch> watch(new DriveWatch(std::move(read), every));
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited: signals stay with the threads that handle them
  const int error = pthread_create(&watch->thread_, nullptr, run, watch.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    return {{Code::IoError, -error},
            "starting the thread that asks the drive for its counts: " + errno_name(error) +
                "; raise the limit of processes (ulimit -u, TasksMax=)"};
  }
  watch->started_ = true;
  (void)pthread_setname_np(watch->thread_, "halfstep-drive");
  *out = std::move(watch);
  return {};
}

DriveWatch::~DriveWatch() {
  if (!started_) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_one();
  pthread_join(thread_, nullptr);
}

void* DriveWatch::run(void* watch) noexcept {
  static_cast<DriveWatch*>(watch)->look_until_stopped();
  return nullptr;
}

void DriveWatch::look_until_stopped() {
  std::unique_lock lock(mutex_);
  do {
    lock.unlock();
    NvmeWritten now;
    const bool told = read_(&now).ok();
    lock.lock();
    if (told) seen_ = Seen{.first = seen_ ? seen_->first : now, .last = now};
  } while (!stop_.wait_for(lock, every_, [this] { return stopping_; }));
}

std::optional<DriveWatch::Seen> DriveWatch::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

}  // namespace halfstep::io
