#include "io/pread_engine.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "io/backing.h"
#include "io/finished.h"

namespace halfstep::io {

Fault PreadEngine::open(const EngineConfig& config, const std::vector<Backing*>& backings, std::unique_ptr<Engine>* out,
                        const DiscardProbe& probe) {
  std::unique_ptr<PreadEngine> engine(new PreadEngine);
  engine->facts_.name = "pread";
  engine->facts_.discard = name_of(DiscardMethod::None);
  for (const Backing* backing : backings) {
    const BackingFacts& facts = backing->facts();
    const DiscardChoice choice = choose_discard(facts.discard, backing->descriptor(), probe);
    const bool discards = choice.method != DiscardMethod::None;
    engine->devices_.push_back({backing->descriptor(), facts.bytes, discards ? facts.discard : DiscardLimits()});
    if (discards) engine->facts_.discard = name_of(choice.method);
    engine->facts_.why_no_discard += choice.why_none;
  }
  engine->facts_.queue_depth = config.pread_threads;  // what the device can really be made to do at once
  engine->event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (engine->event_ < 0) return {{Code::IoError, -errno}, "eventfd for the pread engine: " + errno_name(errno)};

  // Workers inherit the mask: signals stay with the threads that handle them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  engine->workers_.reserve(config.pread_threads);
  for (uint32_t i = 0; i < config.pread_threads && error == 0; ++i) {
    pthread_t worker{};
    error = pthread_create(&worker, nullptr, run_worker, engine.get());
    if (error == 0) {
      (void)pthread_setname_np(worker, "halfstep-pread");
      engine->workers_.push_back(worker);
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    return {{Code::IoError, -error},
            "starting thread " + std::to_string(engine->workers_.size() + 1) +
                " of pread_threads=" + std::to_string(config.pread_threads) + ": " + errno_name(error) +
                "; lower it or raise the limit of processes (ulimit -u, TasksMax=)"};
  }
  *out = std::move(engine);
  return {};
}

PreadEngine::~PreadEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  for (const pthread_t worker : workers_) pthread_join(worker, nullptr);
  if (event_ >= 0) close(event_);
}

void* PreadEngine::run_worker(void* engine) noexcept {
  static_cast<PreadEngine*>(engine)->work();
  return nullptr;
}

void PreadEngine::work() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_ready_.wait(lock, [this] { return stopping_ || !queued_.empty(); });
    if (stopping_) return;
    Request& request = *queued_.pop_front();
    lock.unlock();
    transfer(request);
    lock.lock();
    done_.push_back(request);
    if (!signalled_) {
      signalled_ = true;
      (void)eventfd_write(event_, 1);
    }
    work_done_.notify_one();
  }
}

void PreadEngine::transfer(Request& request) const noexcept {
  const int descriptor = devices_[request.device].descriptor;
  int64_t result = 0;
  do {
    std::byte* data = request.data + request.engine_done_bytes;
    const size_t bytes = request.bytes - request.engine_done_bytes;
    const auto offset = static_cast<off_t>(request.offset + request.engine_done_bytes);
    switch (request.op) {
      case Op::Read: result = pread(descriptor, data, bytes, offset); break;
      case Op::Write: result = pwrite(descriptor, data, bytes, offset); break;
      case Op::Flush: result = fdatasync(descriptor); break;
      case Op::Discard: result = discard_now(descriptor, request.offset, request.bytes); break;
    }
    if (result < 0 && request.op != Op::Discard) result = -errno;
  } while (advance(request, result) == Step::Again);
}

void PreadEngine::submit(Request& request) noexcept {
  request.engine_done_bytes = 0;
  request.engine_retries = 0;
  ++in_flight_;
  request.error = -EINVAL;
  if (request.device < devices_.size()) {
    const Device& device = devices_[request.device];
    request.error = refusal(request, device.bytes, device.discard.taken());
  }
  (request.error == 0 ? submitted_ : refused_).push_back(request);
}

void PreadEngine::flush_submissions() noexcept {
  if (submitted_.empty() && refused_.empty()) return;
  const std::lock_guard lock(mutex_);
  if (!refused_.empty()) {
    done_.take_all(refused_);
    if (!signalled_) {
      signalled_ = true;
      (void)eventfd_write(event_, 1);
    }
  }
  if (submitted_.empty()) return;
  queued_.take_all(submitted_);
  work_ready_.notify_all();
}

size_t PreadEngine::poll() noexcept {
  RequestQueue done;
  {
    const std::lock_guard lock(mutex_);
    if (signalled_) {
      eventfd_t ignored = 0;
      (void)eventfd_read(event_, &ignored);
      signalled_ = false;
    }
    done.take_all(done_);
  }
  return complete_all(done, in_flight_, counters_);
}

void PreadEngine::wait() noexcept {
  flush_submissions();
  if (in_flight_ == 0) return;
  std::unique_lock lock(mutex_);
  work_done_.wait(lock, [this] { return !done_.empty(); });
}

}  // namespace halfstep::io
