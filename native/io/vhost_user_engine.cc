#include "io/vhost_user_engine.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "io/backing.h"
#include "io/finished.h"

namespace halfstep::io {
namespace {

constexpr int kWaitMs = 100;
// Beside the arena: the queue and its bounce pages, twice while they are renewed, and a page to move the arena by.
constexpr uint64_t kSparePages = 8;
// What is under way when the engine ends gets so long; then its memory is taken back.
constexpr auto kEndPatience = std::chrono::seconds(10);

void watch(int epoll, int descriptor) noexcept {
  epoll_event interest{};
  interest.events = EPOLLIN | EPOLLET;
  interest.data.fd = descriptor;
  const int result = ::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &interest);
  HALFSTEP_CHECK(result == 0, errno);
}

}  // namespace

// ---- Start and end ---------------------------------------------------------------------------------------------------------

Fault VhostUserEngine::open(const EngineConfig& config, Arena& arena, const std::vector<Backing*>& backings,
                            std::unique_ptr<Engine>* out) {
  if (backings.size() != 1 || backings[0]->session() == nullptr) {
    return {Code::Invalid, "devices=" + std::to_string(backings.size()) + ": a vhost-user target is an engine's only device"};
  }
  const auto slots = static_cast<uint16_t>(std::min<uint32_t>(config.queue_depth, kVirtqueueSlotsMax));
  std::unique_ptr<VhostUserEngine> engine(new VhostUserEngine(arena, *backings[0]->session(), slots));
  if (Fault fault = engine->set_up(); !fault.ok()) return fault;
  const size_t regions = arena.shared() != nullptr ? 2 : 1;
  if (Fault fault = engine->session_.join(engine->member_, config.engines, regions); !fault.ok()) return fault;
  engine->joined_ = true;
  engine->offer();
  *out = std::move(engine);
  return {};
}

VhostUserEngine::VhostUserEngine(Arena& arena, VhostSession& session, uint16_t slots)
    : arena_(arena), session_(session), slot_count_(slots), slots_(slots) {}

Fault VhostUserEngine::set_up() {
  facts_.name = "vhost_user";
  facts_.queue_depth = slot_count_;
  facts_.registered_buffers = arena_.shared() != nullptr;
  if (!facts_.registered_buffers) facts_.why_unregistered = "the arena is private memory, so each byte is copied once more";
  facts_.ring_features = std::string(session_.indirect() ? "indirect" : "direct") + (session_.flushes() ? " flush" : "");
  facts_.discard = name_of(DiscardMethod::None);
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (wake_ < 0 || epoll_ < 0) return {{Code::IoError, -errno}, "eventfd for the vhost-user engine: " + errno_name(errno)};
  watch(epoll_, wake_);
  member_.wake = wake_;
  const SharedMapping* arena = arena_.shared();
  if (arena != nullptr && session_.takes_reserved_pages_alone() && !arena->reserved()) return no_reserved_pages("the arena");
  if (Fault fault = make_bells(); !fault.ok()) return fault;
  return make_memory();
}

// The target had the ones before, and may do with them what it likes.
Fault VhostUserEngine::make_bells() {
  close_bells();
  int error = member_.kick.open();
  if (error == 0) {
    member_.call = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (member_.call < 0) error = errno;
  }
  if (error != 0) {
    close_bells();
    return {{Code::IoError, -error},
            "eventfd and sockets for the vhost-user engine: " + errno_name(error) + "; raise ulimit -n"};
  }
  watch(epoll_, member_.call);
  return {};
}

void VhostUserEngine::close_bells() noexcept {
  if (member_.call >= 0) {
    // The target may keep it: the epoll would go on watching it.
    (void)::epoll_ctl(epoll_, EPOLL_CTL_DEL, member_.call, nullptr);
    ::close(member_.call);
  }
  member_.kick.close();
  member_.call = -1;
}

// Before the target has had a byte.
Fault VhostUserEngine::no_reserved_pages(const std::string& what) const {
  const uint64_t arena_pages = arena_.shared() != nullptr ? arena_.bytes().size() / (2 * MiB) : 0;
  return {Code::Unsupported, "vhost-user target " + session_.socket() +
                                 ": it offers no EVENT_IDX, as SPDK's does not, and such a target ends by " +
                                 "SIGSEGV when it is given memory in other than reserved 2 MiB pages, which " + what +
                                 " has not: `sudo sysctl " + "vm.nr_hugepages=" + std::to_string(arena_pages + kSparePages) +
                                 "` or more for each shard, without --no-huge-pages"};
}

// All of it new: nothing that is kept here comes from the target.
Fault VhostUserEngine::make_memory() {
  const bool indirect = session_.indirect();
  const uint64_t queue_bytes = Virtqueue::memory_bytes(slot_count_, indirect);
  SharedMapping fresh;
  const bool reserved_alone = session_.takes_reserved_pages_alone();
  const SharedMapping::Request request{.bytes = queue_bytes + uint64_t{kBounces} * kBounceBytes,
                                       .large_pages = arena_.facts().reserved || reserved_alone,
                                       .what = "queue of the vhost-user engine"};
  if (Fault fault = SharedMapping::create(request, &fresh); !fault.ok()) return fault;
  if (reserved_alone && !fresh.reserved()) return no_reserved_pages("the engine's queue");
  own_ = std::move(fresh);
  bounces_ = own_.bytes().data() + queue_bytes;
  queue_ = std::make_unique<Virtqueue>(own_.bytes().first(queue_bytes), slot_count_, indirect);
  free_slots_.clear();
  free_bounces_.clear();
  for (uint16_t number = slot_count_; number > 0; --number) free_slots_.push_back(static_cast<uint16_t>(number - 1));
  for (uint16_t number = kBounces; number > 0; --number) free_bounces_.push_back(static_cast<uint16_t>(number - 1));
  return {};
}

void VhostUserEngine::offer() {
  member_.queue = queue_.get();
  member_.scratch = {bounces_, kBounceBytes};
  member_.shared = 0;
  member_.regions.clear();
  member_.regions.push_back({own_.bytes(), own_.descriptor()});
  if (SharedMapping* arena = arena_.shared(); arena != nullptr) {
    member_.regions.push_back({arena->bytes(), arena->descriptor()});
  }
  session_.offer(member_);
}

VhostUserEngine::~VhostUserEngine() {
  const auto until = std::chrono::steady_clock::now() + kEndPatience;
  while (queue_ != nullptr && queue_->out() > 0 && live() && std::chrono::steady_clock::now() < until) {
    reap();
    epoll_event event{};
    if (queue_->out() > 0) (void)::epoll_wait(epoll_, &event, 1, kWaitMs);
  }
  if (joined_) session_.leave(member_);
  if (SharedMapping* arena = arena_.shared(); arena != nullptr && queue_ != nullptr && queue_->out() > 0) {
    // Whoever has the arena next is not to meet what comes late.
    Status status = arena->renewed() ? arena->renew_begin() : Status();
    while (status.ok() && !arena->renewed()) status = arena->renew_some();
  }
  close_bells();
  if (wake_ >= 0) ::close(wake_);
  if (epoll_ >= 0) ::close(epoll_);
}

// Cannot fail, and cannot block: nobody else has it.
void VhostUserEngine::wake() noexcept { (void)::eventfd_write(wake_, 1); }

// ---- There -----------------------------------------------------------------------------------------------------------------

void VhostUserEngine::submit(Request& request) noexcept {
  request.engine_done_bytes = 0;
  request.engine_retries = 0;
  ++in_flight_;
  request.error = request.device == 0 ? refusal(request, session_.device().bytes, false) : -EINVAL;
  if (request.error == 0 && (request.op != Op::Flush || session_.flushes())) return waiting_.push_back(request);
  finish(request);  // refused; or a flush of a device that has no cache
  wake();
}

bool VhostUserEngine::in_arena(const Request& request) const noexcept {
  if (arena_.shared() == nullptr) return false;
  const Bytes arena = arena_.bytes();
  return request.data >= arena.data() && request.data + request.bytes <= arena.data() + arena.size();
}

// False: there is no place for it now.
bool VhostUserEngine::push(Request& request) noexcept {
  if (free_slots_.empty()) return false;
  const bool moves = request.op != Op::Flush;
  const bool bounces = moves && !in_arena(request);
  if (bounces && free_bounces_.empty()) return false;
  const uint16_t number = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[number];
  slot = {.request = &request};
  if (!moves) {
    queue_->push(number, BlockRequest::Flush, 0, 0, 0);
    return true;
  }
  slot.bytes = std::min(request.bytes - request.engine_done_bytes, session_.device().piece_bytes_max);
  std::byte* memory = request.data + request.engine_done_bytes;
  if (bounces) {
    slot.bounce = free_bounces_.back();
    free_bounces_.pop_back();
    slot.bytes = std::min(slot.bytes, kBounceBytes);
    if (request.op == Op::Write) std::memcpy(bounce(slot.bounce), memory, slot.bytes);
    memory = bounce(slot.bounce);
  }
  const uint64_t sector = (request.offset + request.engine_done_bytes) / kSectorBytes;
  queue_->push(number, request.op == Op::Read ? BlockRequest::Read : BlockRequest::Write, sector,
               reinterpret_cast<uintptr_t>(memory), slot.bytes);
  return true;
}

void VhostUserEngine::fill_queue() noexcept {
  while (Request* request = waiting_.front()) {
    if (!push(*request)) return;
    (void)waiting_.pop_front();
  }
}

void VhostUserEngine::flush_submissions() noexcept {
  if (!live()) {
    if (member_.unreachable.load(std::memory_order_acquire)) fail_waiting();
    return;
  }
  fill_queue();
  if (!queue_->publish()) return;
  ++counters_.kicks;
  member_.kick.kick();
}

// ---- Back ------------------------------------------------------------------------------------------------------------------

void VhostUserEngine::free_slot(uint16_t number) noexcept {
  if (slots_[number].bounce != kNoBounce) free_bounces_.push_back(slots_[number].bounce);
  slots_[number] = {};
  free_slots_.push_back(number);
}

void VhostUserEngine::landed(const Virtqueue::Done& done) noexcept {
  const Slot slot = slots_[done.slot];
  Request& request = *slot.request;
  const bool short_read = request.op == Op::Read && done.written_bytes != slot.bytes;
  const bool good = done.status == Virtqueue::kStatusOk && !short_read;
  if (good && request.op == Op::Read && slot.bounce != kNoBounce) {
    std::memcpy(request.data + request.engine_done_bytes, bounce(slot.bounce), slot.bytes);
  }
  free_slot(done.slot);
  if (advance(request, good ? int64_t{slot.bytes} : int64_t{-EIO}) == Step::Finished) {
    finish(request);
  } else {
    waiting_.push_front(request);  // its next piece, at this turn's flush_submissions()
  }
}

void VhostUserEngine::reap() noexcept {
  const Link link = member_.link.load(std::memory_order_acquire);
  if (link == Link::Lost) return take_back();
  if (link != Link::Live) return;
  Virtqueue::Done done;
  for (;;) {
    switch (queue_->reap(&done)) {
      case Virtqueue::Reaped::Nothing: return;
      case Virtqueue::Reaped::Broken: return session_.broken(member_);  // Lost is what follows
      case Virtqueue::Reaped::One: landed(done);
    }
  }
}

// A piece a call, so that no turn waits for all of it. What fails, for want of memory, is tried again in a later turn.
void VhostUserEngine::take_back() noexcept {
  SharedMapping* arena = member_.shared > 1 ? arena_.shared() : nullptr;  // else no target has had it
  if (!taking_back_) {
    if (arena != nullptr && !arena->renew_begin().ok()) return;
    taking_back_ = true;
    if (member_.shared == member_.regions.size()) ++counters_.losses;
  }
  if (arena != nullptr && !arena->renewed()) {
    if (arena->renew_some().ok()) wake();
    if (!arena->renewed()) return;
  }
  for (Slot& slot : slots_) {
    if (slot.request == nullptr) continue;
    slot.request->error = -EIO;
    finish(*slot.request);
    slot = {};
  }
  wake();
  if (!make_bells().ok() || !make_memory().ok()) return;
  taking_back_ = false;
  offer();
}

void VhostUserEngine::fail_waiting() noexcept {
  if (waiting_.empty()) return;
  while (Request* request = waiting_.pop_front()) {
    request->error = -EIO;
    finish(*request);
  }
  wake();
}

size_t VhostUserEngine::poll() noexcept {
  reap();
  return complete_all(done_, in_flight_, counters_);
}

void VhostUserEngine::wait() noexcept {
  for (;;) {
    flush_submissions();
    reap();
    if (!done_.empty() || in_flight_ == 0) return;
    flush_submissions();  // a request's next piece
    epoll_event event{};
    (void)::epoll_wait(epoll_, &event, 1, kWaitMs);
  }
}

}  // namespace halfstep::io
