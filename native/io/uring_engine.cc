#include "io/uring_engine.h"

#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <span>
#include <string>

#include "base/check.h"
#include "io/backing.h"
#include "io/finished.h"
#include "io/ring_refusal.h"

namespace halfstep::io {
namespace {

// IORING_OP_READV_FIXED and IORING_OP_WRITEV_FIXED, Linux 6.15; headers may be older than the kernel.
constexpr uint8_t kReadVectorFixed = 60;
constexpr uint8_t kWriteVectorFixed = 61;
// One that is so large ends its submission. Of what is submitted together the kernel makes larger requests where they are
// neighbours, of up to 4 MiB; several of 1 MiB come and go faster than those (docs/lab/device-request-size.md), and a system
// call for each is little beside it.
constexpr uint64_t kSubmittedBytesMin = 512 * KiB;
constexpr uint64_t kIsGather = 1;  // in user_data; addresses are even

struct Rung {
  unsigned flags;
  const char* features;
};

// In the order of Features, best first. A kernel that does not know a flag answers EINVAL, and the
// next rung is tried.
constexpr Rung kLadder[] = {
    // 6.1: completions are run when we ask for them, in our thread, in batches. TASKRUN_FLAG tells
    // without a system call that
    // there are some; SUBMIT_ALL (5.18) does not stop at a bad SQE.
    {IORING_SETUP_CLAMP | IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_TASKRUN_FLAG |
         IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
     "single_issuer defer_taskrun"},
    // 6.0
    {IORING_SETUP_CLAMP | IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_TASKRUN_FLAG |
         IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN,
     "single_issuer coop_taskrun"},
    // 5.19
    {IORING_SETUP_CLAMP | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_COOP_TASKRUN, "coop_taskrun"},
    {IORING_SETUP_CLAMP, ""},
};

}  // namespace

Fault UringEngine::open(const EngineConfig& config, Arena& arena, const std::vector<Backing*>& backings,
                        std::unique_ptr<Engine>* out, Features features, const DiscardProbe& probe) {
  std::unique_ptr<UringEngine> engine(new UringEngine(arena));
  for (const Backing* backing : backings) {
    const std::string& waits_for = backing->facts().submission_waits_for;
    engine->devices_.push_back({backing->descriptor(), backing->facts().bytes, {}, DiscardMethod::None, !waits_for.empty()});
    if (!waits_for.empty()) {
      engine->facts_.why_async = backing->facts().path + " lies on " + waits_for +
                                 ", which a request may wait for as it is handed over: the kernel's threads carry them all";
    }
  }
  if (const int error = try_to_enter_ring(); error != 0) {
    return {{Code::Unsupported, error}, explain_ring_refusal(error, "io_uring_enter")};
  }
  engine->facts_.name = "uring";
  engine->facts_.queue_depth = config.queue_depth;
  if (const int error = engine->set_up_ring(config.queue_depth, features); error != 0) {
    return {{Code::Unsupported, error}, explain_ring_refusal(error, "io_uring_setup")};
  }
  engine->event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (engine->event_ < 0) return {{Code::IoError, -errno}, "eventfd for the ring: " + errno_name(errno)};
  // A ring under DEFER_TASKRUN never wakes an epoll wait on its own descriptor; its eventfd does.
  if (const int error = io_uring_register_eventfd(&engine->ring_, engine->event_); error != 0) {
    return {{Code::Unsupported, error}, "registering the ring's eventfd: " + errno_name(error)};
  }
  engine->register_resources();
  engine->set_up_discard(backings, probe);
  *out = std::move(engine);
  return {};
}

// 0 or a negative errno.
int UringEngine::set_up_ring(uint32_t entries, Features features) {
  int error = 0;
  for (const Rung& rung : std::span(kLadder).subspan(static_cast<size_t>(features))) {
    io_uring_params params{};
    params.flags = rung.flags;
    error = io_uring_queue_init_params(entries, &ring_, &params);
    if (error == -EINVAL) continue;
    if (error != 0) return error;
    ring_open_ = true;
    disabled_ = (rung.flags & IORING_SETUP_R_DISABLED) != 0;
    facts_.ring_features = rung.features;
    if (io_uring_probe* probe = io_uring_get_probe_ring(&ring_); probe != nullptr) {
      gathers_registered_ =
          io_uring_opcode_supported(probe, kReadVectorFixed) != 0 && io_uring_opcode_supported(probe, kWriteVectorFixed) != 0;
      io_uring_free_probe(probe);
    }
    return 0;
  }
  return error;
}

// Both registrations save work per request and neither is needed: a refusal is said, not returned.
void UringEngine::register_resources() {
  std::vector<iovec> regions;
  for (uint32_t i = 0; i < arena_.facts().regions; ++i) {
    const Bytes region = arena_.region(i);
    regions.push_back({region.data(), region.size()});
  }
  int error = io_uring_register_buffers(&ring_, regions.data(), static_cast<unsigned>(regions.size()));
  facts_.registered_buffers = error == 0;
  if (error != 0) {
    facts_.why_unregistered = "registering the arena's " + std::to_string(arena_.facts().bytes) +
                              " bytes with the ring: " + errno_name(error) + "; the memlock limit is " + memlock_limit() +
                              ": raise it (LimitMEMLOCK=) or grant CAP_IPC_LOCK";
  }
  std::vector<int> files;
  for (const Device& device : devices_) files.push_back(device.descriptor);
  error = io_uring_register_files(&ring_, files.data(), static_cast<unsigned>(files.size()));
  facts_.registered_files = error == 0;
  if (error != 0) {
    if (!facts_.why_unregistered.empty()) facts_.why_unregistered += "; ";
    facts_.why_unregistered += "registering " + std::to_string(files.size()) + " files: " + errno_name(error) +
                               "; raise the limit of open files (ulimit -n)";
  }
}

// A ring without the command needs a thread: no other request of it discards, for its fallocate writes zeroes.
void UringEngine::set_up_discard(const std::vector<Backing*>& backings, const DiscardProbe& probe) {
  std::vector<int> descriptors;
  for (const Device& device : devices_) descriptors.push_back(device.descriptor);
  DiscardMethod in_use = DiscardMethod::None;
  for (size_t i = 0; i < backings.size(); ++i) {
    Device& device = devices_[i];
    const DiscardLimits& limits = backings[i]->facts().discard;
    DiscardChoice choice = choose_discard(limits, device.descriptor, probe);
    if (choice.method == DiscardMethod::Ioctl && discard_worker_ == nullptr) {
      if (Fault fault = DiscardWorker::start(descriptors, event_, &discard_worker_); !fault.ok()) {
        choice = {DiscardMethod::None, std::move(fault.what)};
      }
    }
    facts_.why_no_discard += choice.why_none;
    if (choice.method == DiscardMethod::None) continue;
    device.discard = limits;
    device.discard_method = in_use = choice.method;
  }
  facts_.discard = name_of(in_use);
}

UringEngine::~UringEngine() {
  discard_worker_ = nullptr;  // writes to the eventfd
  if (ring_open_) {
    // What the kernel has not taken goes down with the ring; what it has, it may still write
    // through: wait for it.
    uint32_t held = active_ - io_uring_sq_ready(&ring_);
    while (held > 0) {
      unsigned head = 0;
      unsigned count = 0;
      io_uring_cqe* cqe = nullptr;
      io_uring_for_each_cqe(&ring_, head, cqe) { ++count; }
      io_uring_cq_advance(&ring_, count);
      held -= count;
      if (held == 0) break;
      io_uring_cqe* next = nullptr;
      // EEXIST: another thread issued and has ended. The kernel finished its requests then, or is
      // about to; their CQEs come without our help.
      if (io_uring_wait_cqe(&ring_, &next) == -EEXIST) {
        const timespec pause{0, 1'000'000};
        nanosleep(&pause, nullptr);
      }
    }
    io_uring_queue_exit(&ring_);
  }
  if (event_ >= 0) close(event_);
}

void UringEngine::wake() noexcept {
  // Cannot fail: the counter ends at 2^64 - 2.
  (void)eventfd_write(event_, 1);
}

void UringEngine::submit(Request& request) noexcept {
  request.engine_done_bytes = 0;
  request.engine_retries = 0;
  ++in_flight_;
  request.error = -EINVAL;
  if (request.device < devices_.size()) {
    const Device& device = devices_[request.device];
    request.error = refusal(request, device.bytes, device.discard.taken());
  }
  if (request.error != 0) {
    finish(request);
    wake();
    return;
  }
  if (request.op == Op::Discard && devices_[request.device].discard_method == DiscardMethod::Ioctl) {
    return discard_worker_->submit(request);
  }
  waiting_.push_back(request);
}

bool UringEngine::enable() noexcept {
  const int error = io_uring_enable_rings(&ring_);
  disabled_ = false;
  if (error >= 0) return true;
  // Not seen on any kernel; without a ring every request fails alike, now and later (submitted()
  // answers for the later ones).
  while (Request* request = waiting_.pop_front()) {
    request->error = error;
    finish(*request);
  }
  wake();
  return false;
}

// A fixed buffer must hold a whole transfer, so one that would straddle two regions goes as ordinary memory.
bool UringEngine::registered(const Bytes& memory, uint32_t* region) const noexcept {
  const Bytes arena = arena_.bytes();
  if (!facts_.registered_buffers || memory.data() < arena.data() ||
      memory.data() + memory.size() > arena.data() + arena.size()) {
    return false;
  }
  *region = arena_.region_of(memory.data());
  return *region == arena_.region_of(memory.data() + memory.size() - 1);
}

void UringEngine::prepare(io_uring_sqe& sqe, Request& request) const noexcept {
  switch (request.op) {
    case Op::Read:
    case Op::Write: {
      const Bytes memory(request.data + request.engine_done_bytes, request.bytes - request.engine_done_bytes);
      prepare_transfer(sqe, request, memory, request.offset + request.engine_done_bytes);
      break;
    }
    case Op::Flush: io_uring_prep_fsync(&sqe, file_of(request.device), IORING_FSYNC_DATASYNC); break;
    case Op::Discard:
      io_uring_prep_rw(IORING_OP_URING_CMD, &sqe, file_of(request.device), nullptr, 0, 0);
      sqe.cmd_op = kRingCommandDiscard;
      sqe.addr = request.offset;
      sqe.addr3 = request.bytes;
      break;
  }
  finish_sqe(sqe, request.device);
  io_uring_sqe_set_data(&sqe, &request);
}

void UringEngine::finish_sqe(io_uring_sqe& sqe, uint8_t device) const noexcept {
  unsigned flags = facts_.registered_files ? IOSQE_FIXED_FILE : 0;
  if (devices_[device].async) flags |= IOSQE_ASYNC;
  if (flags != 0) io_uring_sqe_set_flags(&sqe, flags);
}

// Of one piece of memory, as what `like` is.
void UringEngine::prepare_transfer(io_uring_sqe& sqe, const Request& like, Bytes memory, uint64_t offset) const noexcept {
  const int file = file_of(like.device);
  const auto bytes = static_cast<unsigned>(memory.size());
  uint32_t region = 0;
  const bool fixed = registered(memory, &region);
  if (like.op == Op::Read) {
    fixed ? io_uring_prep_read_fixed(&sqe, file, memory.data(), bytes, offset, static_cast<int>(region))
          : io_uring_prep_read(&sqe, file, memory.data(), bytes, offset);
  } else {
    fixed ? io_uring_prep_write_fixed(&sqe, file, memory.data(), bytes, offset, static_cast<int>(region))
          : io_uring_prep_write(&sqe, file, memory.data(), bytes, offset);
  }
}

void UringEngine::prepare(io_uring_sqe& sqe, Gather& gather) const noexcept {
  const Request& first = *gather.requests.front();
  const auto memory_of = [](const iovec& piece) { return Bytes(static_cast<std::byte*>(piece.iov_base), piece.iov_len); };
  if (gather.count == 1) {
    prepare_transfer(sqe, first, memory_of(gather.pieces[0]), first.offset);
  } else {
    const int file = file_of(first.device);
    const bool reads = first.op == Op::Read;
    reads ? io_uring_prep_readv(&sqe, file, gather.pieces.data(), gather.count, first.offset)
          : io_uring_prep_writev(&sqe, file, gather.pieces.data(), gather.count, first.offset);
    if (gather.fixed && gathers_registered_) {
      sqe.opcode = reads ? kReadVectorFixed : kWriteVectorFixed;
      sqe.buf_index = static_cast<uint16_t>(gather.region);
    }
  }
  finish_sqe(sqe, first.device);
  sqe.user_data = reinterpret_cast<uintptr_t>(&gather) | kIsGather;
}

bool UringEngine::fits(const Gather& gather, const Request& next) const noexcept {
  uint32_t region = 0;
  const bool fixed = registered({next.data, next.bytes}, &region);
  if (fixed != gather.fixed || (fixed && region != gather.region)) return false;
  if (!fixed || gathers_registered_ || next.bytes <= GatherRun::kSmallBytesMax) return true;
  const iovec& last = gather.pieces[gather.count - 1];
  return static_cast<std::byte*>(last.iov_base) + last.iov_len == next.data;
}

UringEngine::Gather* UringEngine::gather(Request& first) noexcept {
  GatherRun run;
  run.begin(first);
  if (!gather_pause_.gathers() || waiting_.empty() || !run.takes(*waiting_.front())) return nullptr;
  if (idle_gathers_.empty()) {
    all_gathers_.push_back(std::make_unique<Gather>());
    give(*all_gathers_.back());
  }
  Gather& out = *idle_gathers_.back();
  idle_gathers_.pop_back();
  out.pieces[0] = {first.data, first.bytes};
  out.count = 1;
  out.fixed = registered({first.data, first.bytes}, &out.region);
  out.requests.push_back(first);
  out.bytes = first.bytes;
  while (!waiting_.empty() && run.takes(*waiting_.front()) && fits(out, *waiting_.front())) {
    Request& next = *waiting_.pop_front();
    run.add(next);
    out.requests.push_back(next);
    out.bytes += next.bytes;
    iovec& last = out.pieces[out.count - 1];
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == next.data) {
      last.iov_len += next.bytes;
    } else {
      out.pieces[out.count++] = {next.data, next.bytes};
    }
  }
  if (out.requests.front()->engine_next == nullptr) {
    (void)out.requests.pop_front();
    give(out);
    return nullptr;
  }
  out.one_thing = run.owner() != nullptr;
  return &out;
}

void UringEngine::fill_ring() noexcept {
  while (active_ < facts_.queue_depth && !waiting_.empty()) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return;  // what an earlier call left unsubmitted fills the ring
    Request& first = *waiting_.pop_front();
    uint64_t bytes = first.bytes;
    if (Gather* several = gather(first); several != nullptr) {
      bytes = several->bytes;
      prepare(*sqe, *several);
    } else {
      prepare(*sqe, first);
      gather_pause_.passed(1);
    }
    ++active_;
    if (bytes < kSubmittedBytesMin) continue;
    submit_ring();
    if (io_uring_sq_ready(&ring_) != 0) return;  // short of something: in another turn
  }
}

void UringEngine::submit_ring() noexcept {
  const int result = io_uring_submit(&ring_);
  counters_.submissions += result > 0 ? 1 : 0;
  submitted(result);
}

// What io_uring_submit answered. Everything but a passing shortage is final: SQEs that stay in the
// ring would hang for ever.
void UringEngine::submitted(int result) noexcept {
  if (result >= 0 && io_uring_sq_ready(&ring_) == 0) return;
  if (result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY) {
    wake();  // another turn of the loop tries again
    return;
  }
  HALFSTEP_DCHECK(result != -EEXIST && "the ring belongs to another thread");
  fail_unsubmitted(result);
}

void UringEngine::fail_unsubmitted(int32_t error) noexcept {
  // The kernel reads this queue only inside io_uring_enter, so between two calls it may be taken
  // back.
  io_uring_sq& sq = ring_.sq;
  const unsigned head = __atomic_load_n(sq.khead, __ATOMIC_ACQUIRE);
  for (unsigned at = head; at != sq.sqe_tail; ++at) {
    const uint64_t user_data = sq.sqes[at & sq.ring_mask].user_data;
    --active_;
    RequestQueue failed;
    if ((user_data & kIsGather) != 0) {
      auto* several = reinterpret_cast<Gather*>(user_data & ~kIsGather);
      failed.take_all(several->requests);
      give(*several);
    } else {
      failed.push_back(*reinterpret_cast<Request*>(user_data));
    }
    while (Request* request = failed.pop_front()) {
      request->error = error;
      finish(*request);
    }
  }
  sq.sqe_head = sq.sqe_tail = head;
  __atomic_store_n(sq.ktail, head, __ATOMIC_RELEASE);
  wake();
}

void UringEngine::flush_submissions() noexcept {
  if (waiting_.empty() && io_uring_sq_ready(&ring_) == 0) return;
  if (disabled_ && !enable()) return;
  fill_ring();
  if (io_uring_sq_ready(&ring_) != 0) submit_ring();
}

void UringEngine::reap() noexcept {
  if (discard_worker_ != nullptr) discard_worker_->take_done(done_);
  if (active_ == 0) return;
  // Relaxed is enough: where the flag tells of work that nothing else would wake us for, the eventfd is
  // written to after it is set, and again when that becomes CQEs, of which one call may make a part only.
  const unsigned flags = __atomic_load_n(ring_.sq.kflags, __ATOMIC_RELAXED);
  if ((flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0) (void)io_uring_get_events(&ring_);
  unsigned head = 0;
  unsigned count = 0;
  io_uring_cqe* cqe = nullptr;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    ++count;
    landed(cqe->user_data, cqe->res);
  }
  io_uring_cq_advance(&ring_, count);
  active_ -= count;
}

void UringEngine::landed(uint64_t user_data, int32_t result) noexcept {
  if ((user_data & kIsGather) != 0) return landed(*reinterpret_cast<Gather*>(user_data & ~kIsGather), result);
  auto& request = *reinterpret_cast<Request*>(user_data);
  if (advance(request, result) == Step::Finished) {
    finish(request);
  } else {
    waiting_.push_front(request);  // goes on at this turn's flush_submissions()
  }
}

// Who did not get all of his bytes asks once more, alone; but for what is one thing, which is lost with any piece of it.
void UringEngine::landed(Gather& gather, int32_t result) noexcept {
  const bool refused = result == -EINVAL || result == -EOPNOTSUPP;
  if (refused) {
    ++counters_.gathers_refused;
    gather_pause_.refused();
  } else if (result >= 0) {
    gather_pause_.went_well();
  }
  const bool lost = gather.one_thing && result < 0 && !refused && result != -EAGAIN && result != -EINTR;
  uint32_t moved = result > 0 ? static_cast<uint32_t>(result) : 0;
  RequestQueue again;
  while (Request* request = gather.requests.pop_front()) {
    if (lost) {
      request->error = result;
      finish(*request);
    } else if (moved >= request->bytes) {
      moved -= request->bytes;
      (void)advance(*request, request->bytes);
      ++(request->op == Op::Read ? counters_.reads_gathered : counters_.writes_gathered);
      finish(*request);
    } else {
      moved = 0;
      request->engine_retries = 1;
      again.push_back(*request);
    }
  }
  again.take_all(waiting_);
  waiting_.take_all(again);
  give(gather);
}

size_t UringEngine::poll() noexcept {
  reap();
  return complete_all(done_, in_flight_, counters_);
}

void UringEngine::wait() noexcept {
  flush_submissions();
  reap();
  while (done_.empty() && in_flight_ > 0) {
    fill_ring();
    if (!done_.empty()) break;  // the kernel refused them
    if (active_ == 0) {         // all that is under way is the worker's
      discard_worker_->wait();
      reap();
      continue;
    }
    const int result = io_uring_submit_and_wait(&ring_, 1);
    if (result < 0) submitted(result);
    reap();
  }
}

}  // namespace halfstep::io
