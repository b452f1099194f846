#include "net/loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include "base/check.h"

namespace halfstep::net {
namespace {

constexpr int kEventsPerTurn = 128;  // what is left over is ready in the next turn: epoll goes round
constexpr uint64_t kUsPerSecond = 1'000'000;
constexpr uint64_t kWaitUsMax = 3600 * kUsPerSecond;

epoll_event event_for(int descriptor, uint32_t epoll_events, uint32_t serial) noexcept {
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = (uint64_t{serial} << 32) | static_cast<uint32_t>(descriptor);
  return event;
}

}  // namespace

Timer::~Timer() {
  if (loop_ != nullptr) loop_->disarm(*this);
}

Loop::~Loop() {
  for (Timer* timer : heap_) timer->loop_ = nullptr;
  if (wake_ >= 0) ::close(wake_);
  if (epoll_ >= 0) ::close(epoll_);
}

Status Loop::open() {
  HALFSTEP_DCHECK(epoll_ < 0, epoll_);
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return {Code::IoError, -errno};
  wake_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_ < 0) return {Code::IoError, -errno};
  epoll_event event = event_for(wake_, EPOLLIN, 0);
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) != 0) return {Code::IoError, -errno};
  scratch_ = std::make_unique_for_overwrite<std::byte[]>(kLoopScratchBytes);
  return {};
}

Loop::Entry* Loop::entry_of(int descriptor) noexcept {
  const auto at = static_cast<size_t>(descriptor);
  return descriptor >= 0 && at < entries_.size() ? &entries_[at] : nullptr;
}

Status Loop::add(int descriptor, uint32_t epoll_events, Watch* watch) {
  if (descriptor < 0 || watch == nullptr) return {Code::Invalid, -EBADF};
  const auto at = static_cast<size_t>(descriptor);
  if (at >= entries_.size()) entries_.resize(at + 1);
  if (entries_[at].watch != nullptr) return {Code::Invalid, -EEXIST};
  if (++serial_ == 0) ++serial_;
  epoll_event event = event_for(descriptor, epoll_events, serial_);
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) return {Code::IoError, -errno};
  entries_[at] = {watch, serial_};
  return {};
}

Status Loop::change(int descriptor, uint32_t epoll_events, Watch* watch) {
  const Entry* entry = entry_of(descriptor);
  if (entry == nullptr || entry->watch != watch) return {Code::Invalid, -ENOENT};
  epoll_event event = event_for(descriptor, epoll_events, entry->serial);
  if (::epoll_ctl(epoll_, EPOLL_CTL_MOD, descriptor, &event) != 0) return {Code::IoError, -errno};
  return {};
}

void Loop::remove(int descriptor, Watch* watch) {
  Entry* entry = entry_of(descriptor);
  if (entry == nullptr || entry->watch != watch || watch == nullptr) return;
  *entry = {};
  // Fails only if the descriptor was closed before, and then the kernel has dropped it already.
  epoll_event unused{};
  (void)::epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, &unused);
}

// How many are ready; -1 with EINTR among others.
int Loop::wait(epoll_event* events, int events_max, uint64_t wait_us) noexcept {
#ifdef SYS_epoll_pwait2
  if (fine_waits_) {
    const timespec limit{.tv_sec = static_cast<time_t>(wait_us / kUsPerSecond),
                         .tv_nsec = static_cast<long>(wait_us % kUsPerSecond * 1000)};
    const long count = ::syscall(SYS_epoll_pwait2, epoll_, events, events_max, &limit, nullptr, size_t{0});
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return static_cast<int>(count);
    fine_waits_ = false;  // an older kernel, or a profile that does not know the call
  }
#endif
  return ::epoll_wait(epoll_, events, events_max, static_cast<int>((wait_us + 999) / 1000));
}

// As wait(), awake, for a part of *wait_us, which it takes off.
int Loop::look(epoll_event* events, int events_max, uint64_t* wait_us, BusyPoll& busy_poll) noexcept {
  static const bool alone = ::sysconf(_SC_NPROCESSORS_ONLN) == 1;
  return alone ? 0 : busy_poll.look(wait_us, [&] { return wait(events, events_max, 0); });
}

void Loop::dispatch(const epoll_event& event) {
  const auto descriptor = static_cast<int>(event.data.u64 & UINT32_MAX);
  if (descriptor == wake_) {
    uint64_t count = 0;
    // EAGAIN if an earlier turn has taken it: a wake-up is a level, not a count.
    (void)!::read(wake_, &count, sizeof(count));
    return;
  }
  const Entry* entry = entry_of(descriptor);
  if (entry == nullptr || entry->watch == nullptr) return;
  if (entry->serial != static_cast<uint32_t>(event.data.u64 >> 32)) return;
  entry->watch->on_ready(event.events);
}

void Loop::turn(uint64_t wait_us_max, BusyPoll& busy_poll) {
  HALFSTEP_DCHECK(!turning_ && epoll_ >= 0, epoll_);
  turning_ = true;
  uint64_t wait_us = std::min(wait_us_max, kWaitUsMax);
  if (!turns_.empty()) wait_us = 0;
  if (wait_us != 0 && !heap_.empty()) {
    const uint64_t due = heap_.front()->due_us_;
    // Often it was due when timers last fired, and the clock need not be asked.
    const uint64_t now = due <= fired_at_us_ ? due : now_us();
    wait_us = due <= now ? 0 : std::min(wait_us, due - now);
  }
  epoll_event events[kEventsPerTurn];
  int ready = look(events, kEventsPerTurn, &wait_us, busy_poll);
  if (ready == 0) ready = wait(events, kEventsPerTurn, wait_us);  // EINTR is a turn without events
  ran_before_ = std::exchange(ran_, static_cast<uint64_t>(std::max(ready, 0)));
  for (int i = 0; i < ready; ++i) dispatch(events[i]);
  fire_due();
  turning_ = false;
}

void Loop::wake() noexcept {
  const int saved = errno;
  const uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof(one));
  errno = saved;
}

bool Loop::await_wake(uint64_t wait_us) noexcept {
  pollfd wanted{.fd = wake_, .events = POLLIN, .revents = 0};
  return ::poll(&wanted, 1, static_cast<int>((std::min(wait_us, kWaitUsMax) + 999) / 1000)) > 0;
}

// arm() makes no timer due before `fired_at_us_`, so that all that is armed from here on stands behind what was armed before.
void Loop::fire_due() {
  if (heap_.empty() && turns_.empty()) return;
  fired_at_us_ = now_us();
  const uint64_t armed_before = armed_count_;
  while (!heap_.empty()) {
    Timer* timer = heap_.front();
    if (timer->due_us_ > fired_at_us_ || timer->order_ >= armed_before) break;
    disarm(*timer);
    ++ran_;
    timer->fire_(timer->owner_);  // may destroy the timer
  }
  ran_ = std::max<uint64_t>(ran_, turns_.run(clock_, fired_at_us_, kTurnsUs));
}

void Loop::arm(Timer& timer, uint64_t due_us) {
  HALFSTEP_CHECK(timer.loop_ == nullptr || timer.loop_ == this);
  disarm(timer);
  timer.loop_ = this;
  timer.due_us_ = std::max(due_us, fired_at_us_);
  timer.order_ = armed_count_++;
  heap_.push(timer);
}

void Loop::disarm(Timer& timer) noexcept {
  if (timer.loop_ == nullptr) return;
  HALFSTEP_CHECK(timer.loop_ == this && heap_.has(timer), timer.loop_);
  timer.loop_ = nullptr;
  heap_.remove(timer);
}

}  // namespace halfstep::net
