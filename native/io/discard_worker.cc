#include "io/discard_worker.h"

#include <signal.h>
#include <sys/eventfd.h>

#include "io/discard.h"

namespace halfstep::io {

Fault DiscardWorker::start(std::vector<int> descriptors, int event, std::unique_ptr<DiscardWorker>* out) {
  std::unique_ptr<DiscardWorker> worker(new DiscardWorker(std::move(descriptors), event));
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited: signals stay with the threads that handle them
  const int error = pthread_create(&worker->thread_, nullptr, run, worker.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    return {
        {Code::IoError, -error},
        "starting the thread that discards: " + errno_name(error) + "; raise the limit of processes (ulimit -u, TasksMax=)"};
  }
  worker->started_ = true;
  (void)pthread_setname_np(worker->thread_, "halfstep-trim");
  *out = std::move(worker);
  return {};
}

DiscardWorker::~DiscardWorker() {
  if (!started_) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_one();
  pthread_join(thread_, nullptr);
}

void* DiscardWorker::run(void* worker) noexcept {
  static_cast<DiscardWorker*>(worker)->work();
  return nullptr;
}

void DiscardWorker::work() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_ready_.wait(lock, [this] { return stopping_ || !queued_.empty(); });
    if (stopping_) return;
    Request& request = *queued_.pop_front();
    lock.unlock();
    while (advance(request, discard_now(descriptors_[request.device], request.offset, request.bytes)) == Step::Again) {
    }
    lock.lock();
    done_.push_back(request);
    work_done_.notify_one();
    (void)eventfd_write(event_, 1);
  }
}

void DiscardWorker::submit(Request& request) noexcept {
  {
    const std::lock_guard lock(mutex_);
    queued_.push_back(request);
  }
  work_ready_.notify_one();
}

void DiscardWorker::take_done(RequestQueue& out) noexcept {
  const std::lock_guard lock(mutex_);
  out.take_all(done_);
}

void DiscardWorker::wait() noexcept {
  std::unique_lock lock(mutex_);
  work_done_.wait(lock, [this] { return !done_.empty(); });
}

}  // namespace halfstep::io
