#include "io/uring_cmd_engine.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

#include "base/check.h"
#include "io/backing.h"
#include "io/finished.h"
#include "io/nvme_ring.h"
#include "io/polled_nvme_queue.h"

namespace halfstep::io {
namespace {

constexpr uint32_t kTryTag = UINT32_MAX;
constexpr size_t kReapedAtOnce = 64;

std::byte* page_aligned(size_t bytes) { return new (std::align_val_t{kPageBytes}) std::byte[bytes](); }
void free_page_aligned(std::byte* at) { ::operator delete[](at, std::align_val_t{kPageBytes}); }

size_t own_bytes(uint32_t slots) { return kPageBytes + round_up(uint64_t{slots} * sizeof(NvmeRange), kPageBytes); }

}  // namespace

// ---- Start and end ---------------------------------------------------------------------------------------------------------

Fault UringCmdEngine::open(const EngineConfig& config, Arena& arena, const std::vector<Backing*>& backings,
                           std::unique_ptr<Engine>* out) {
  if (backings.size() != 1 || backings[0]->nvme() == nullptr) {
    return {Code::Invalid, "devices=" + std::to_string(backings.size()) + ": an NVMe namespace is an engine's only device"};
  }
  const NvmeNamespace& drive = *backings[0]->nvme();
  if (config.polled && !drive.facts().why_not_polled.empty()) {
    return {Code::Unsupported, "completions=polled: " + drive.facts().why_not_polled};
  }
  const MakeCarrier make = [&](const std::vector<Bytes>& regions, Carrier* carrier) -> Fault {
    std::unique_ptr<NvmeRing> ring;
    const NvmeRing::Options options{
        .descriptor = drive.descriptor(), .entries = config.queue_depth, .polled = config.polled, .regions = regions};
    if (Fault fault = NvmeRing::open(options, &ring); !fault.ok()) return fault;
    carrier->why_unregistered = ring->why_unregistered();
    carrier->features = ring->features();
    carrier->queue = std::move(ring);
    if (!config.polled) return {};
    const NvmeRing::Options beside{
        .descriptor = drive.descriptor(), .entries = config.queue_depth, .polled = false, .regions = {}};
    if (Fault fault = NvmeRing::open(beside, &ring); !fault.ok()) return fault;
    carrier->queue = std::make_unique<PolledNvmeQueue>(std::move(carrier->queue), std::move(ring));
    return {};
  };
  return open_on(config, arena, {drive.facts(), backings[0]->facts().discard}, make, out);
}

Fault UringCmdEngine::open_on(const EngineConfig& config, Arena& arena, Drive drive, const MakeCarrier& make,
                              std::unique_ptr<Engine>* out) {
  std::unique_ptr<UringCmdEngine> engine(new UringCmdEngine(config, arena, std::move(drive)));
  if (Fault fault = engine->set_up(make); !fault.ok()) return fault;
  *out = std::move(engine);
  return {};
}

UringCmdEngine::UringCmdEngine(const EngineConfig& config, Arena& arena, Drive drive)
    : arena_(arena),
      drive_(std::move(drive)),
      own_pages_(page_aligned(own_bytes(config.queue_depth)), &free_page_aligned),
      pieces_(config.queue_depth),
      taken_back_(config.queue_depth) {
  for (uint32_t slot = config.queue_depth; slot > 0; --slot) free_.push_back(static_cast<uint16_t>(slot - 1));
  again_.reserve(config.queue_depth);
  facts_.name = "uring_cmd";
  facts_.queue_depth = config.queue_depth;
  facts_.polled = config.polled;
  const auto piece = [](uint64_t bytes) { return static_cast<uint32_t>(std::min<uint64_t>(bytes, 1 * GiB)); };
  small_piece_bytes_ = piece(drive_.facts.scattered_bytes_max);
  const bool all_large = arena.facts().large_bytes >= arena.facts().bytes;
  large_piece_bytes_ = all_large ? piece(drive_.facts.transfer_bytes_max) : small_piece_bytes_;
  facts_.command_bytes_max = large_piece_bytes_;
  facts_.placements = static_cast<uint32_t>(drive_.facts.placements.size());
  facts_.why_no_placements = drive_.facts.why_no_placements;
  const bool deallocates = drive_.facts.controller.deallocates && drive_.discard.taken();
  if (deallocates) discard_ = drive_.discard;
  facts_.discard = deallocates ? "deallocate command" : "none";
}

Fault UringCmdEngine::set_up(const MakeCarrier& make) {
  std::vector<Bytes> regions;
  for (uint32_t i = 0; i < arena_.facts().regions; ++i) regions.push_back(arena_.region(i));
  regions.emplace_back(own_pages_.get(), own_bytes(facts_.queue_depth));
  Carrier carrier;
  if (Fault fault = make(regions, &carrier); !fault.ok()) return fault;
  queue_ = std::move(carrier.queue);
  facts_.ring_features = carrier.features;
  facts_.why_unregistered = carrier.why_unregistered;
  facts_.registered_buffers = carrier.why_unregistered.empty();
  // Before a request depends on it: what the drive answers is the drive's affair, what the kernel does is this engine's.
  const Bytes own(own_pages_.get(), kPageBytes);
  const int32_t error = try_to_read(own, NvmeQueue::kUnregistered);
  if (error >= 0 && facts_.registered_buffers && !takes_registered()) {
    facts_.registered_buffers = false;
    facts_.why_unregistered =
        "this kernel takes no registered memory of this size in NVMe commands (Linux 6.0 none, and 6.1 counts all of it as the "
        "pages of each command): the pages of each request are pinned anew";
  }
  // The loop is to hear of requests alone.
  eventfd_t told = 0;
  (void)::eventfd_read(queue_->wake_descriptor(), &told);
  if (error >= 0) return {};
  std::string what = "a read by an NVMe command: " + errno_name(error);
  if (error == -EACCES || error == -EPERM) {
    what += "; let this user read and write the device, and on Linux before 6.2 grant CAP_SYS_ADMIN";
  }
  if (error == -EOPNOTSUPP || error == -EINVAL) what += "; Linux 5.19 or newer is needed";
  return {{Code::Unsupported, error}, std::move(what)};
}

// With memory of the arena, for a small region proves nothing. What was there is there again.
bool UringCmdEngine::takes_registered() noexcept {
  const Bytes page = arena_.bytes().first(kPageBytes);
  const std::vector<std::byte> before(page.begin(), page.end());
  const int32_t error = try_to_read(page, 0);
  std::copy(before.begin(), before.end(), page.begin());
  return error >= 0;
}

// A negative errno of the kernel, or what the drive answered.
int32_t UringCmdEngine::try_to_read(Bytes into, int32_t region) noexcept {
  const nvme_uring_cmd command = nvme_read(drive_.facts.target, 0, into);
  if (!queue_->push(command, region, kTryTag)) return -EAGAIN;
  std::array<NvmeDone, 1> done;
  for (;;) {
    const int taken = queue_->wait();
    if (queue_->reap(done) == 1) return done[0].result;
    if (taken < 0 && taken != -EAGAIN) {
      (void)queue_->take_back(taken_back_);
      return taken;
    }
  }
}

UringCmdEngine::~UringCmdEngine() {
  queue_ = nullptr;  // the drive touches no memory of requests, nor own_pages_, any more
}

// Cannot fail: the counter ends at 2^64 - 2.
void UringCmdEngine::wake() noexcept { (void)::eventfd_write(queue_->wake_descriptor(), 1); }

// ---- There -----------------------------------------------------------------------------------------------------------------

void UringCmdEngine::submit(Request& request) noexcept {
  request.engine_done_bytes = 0;
  request.engine_pieces = 0;
  ++in_flight_;
  request.error = request.device == 0 ? refusal(request, drive_.facts.format.bytes, discard_.taken()) : -EINVAL;
  const bool idle = request.op == Op::Flush && !drive_.facts.controller.volatile_cache;
  if (request.error == 0 && !idle) return waiting_.push_back(request);
  finish(request);
  wake();
}

// Memory of the arena is registered region by region: a command that would straddle two goes as ordinary memory.
bool UringCmdEngine::in_region(const std::byte* data, uint32_t bytes, int32_t* region) const noexcept {
  const Bytes arena = arena_.bytes();
  if (data < arena.data() || data + bytes > arena.data() + arena.size()) return false;
  const uint32_t first = arena_.region_of(data);
  if (!facts_.registered_buffers || first != arena_.region_of(data + bytes - 1)) return false;
  *region = static_cast<int32_t>(first);
  return true;
}

// Even ones, so that the last is no scrap.
uint32_t UringCmdEngine::piece_bytes(const Request& request) const noexcept {
  const Bytes arena = arena_.bytes();
  const bool large = request.data >= arena.data() && request.data + request.bytes <= arena.data() + arena.size();
  const uint32_t most = large ? large_piece_bytes_ : small_piece_bytes_;
  const uint32_t pieces = (request.bytes + most - 1) / most;
  return static_cast<uint32_t>(round_up((request.bytes + pieces - 1) / pieces, kPageBytes));
}

bool UringCmdEngine::push(uint16_t slot) noexcept {
  const Piece& piece = pieces_[slot];
  const Request& request = *piece.request;
  const NvmeTarget& target = drive_.facts.target;
  const Bytes memory(request.data + piece.at, piece.bytes);
  int32_t region = NvmeQueue::kUnregistered;
  nvme_uring_cmd command{};
  switch (request.op) {
    case Op::Read:
      (void)in_region(memory.data(), piece.bytes, &region);
      command = nvme_read(target, request.offset + piece.at, memory);
      break;
    case Op::Write: {
      (void)in_region(memory.data(), piece.bytes, &region);
      const std::vector<uint16_t>& ids = drive_.facts.placements;
      const int32_t placement = ids.empty() ? kNoPlacement : ids[request.placement % ids.size()];
      command = nvme_write(target, request.offset + piece.at, memory, placement);
      break;
    }
    case Op::Flush: command = nvme_flush(target); break;
    case Op::Discard: {
      auto* range = reinterpret_cast<NvmeRange*>(own_pages_.get() + kPageBytes) + slot;
      command = nvme_deallocate(target, request.offset, request.bytes, range);
      break;
    }
  }
  if (!queue_->push(command, region, slot)) return false;
  ++out_;
  return true;
}

// The next pieces of a request. False: there is no room for all of them now.
bool UringCmdEngine::issue(Request& request) noexcept {
  const bool moves = request.op == Op::Read || request.op == Op::Write;
  const uint32_t most = moves ? piece_bytes(request) : request.bytes;
  do {
    if (free_.empty()) return false;
    const uint16_t slot = free_.back();
    pieces_[slot] = {.request = &request,
                     .at = request.engine_done_bytes,
                     .bytes = std::min(most, request.bytes - request.engine_done_bytes),
                     .retries = 0};
    if (!push(slot)) return false;
    free_.pop_back();
    ++request.engine_pieces;
    request.engine_done_bytes += pieces_[slot].bytes;
  } while (request.engine_done_bytes < request.bytes);
  return true;
}

void UringCmdEngine::fill() noexcept {
  while (!again_.empty()) {
    if (!push(again_.back())) return;
    again_.pop_back();
  }
  while (Request* request = waiting_.front()) {
    if (!issue(*request)) return;
    (void)waiting_.pop_front();
  }
}

void UringCmdEngine::flush_submissions() noexcept {
  const uint32_t before = out_;
  fill();
  if (out_ == before && !unsubmitted_) return;
  const int result = queue_->submit();
  counters_.submissions += result == 0 ? 1 : 0;
  submitted(result);
}

void UringCmdEngine::submitted(int result) noexcept {
  unsubmitted_ = result == -EAGAIN;
  if (result == 0) return;
  if (result == -EAGAIN) return wake();  // another turn of the loop tries again
  const size_t count = queue_->take_back(taken_back_);
  for (size_t at = 0; at < count; ++at) {
    --out_;
    landed(static_cast<uint16_t>(taken_back_[at]), result);
  }
  wake();
}

// ---- Back ------------------------------------------------------------------------------------------------------------------

void UringCmdEngine::landed(uint16_t slot, int32_t error) noexcept {
  Piece& piece = pieces_[slot];
  Request& request = *piece.request;
  const bool passing = error == -EAGAIN || error == -EINTR;
  if (passing && request.error == 0 && piece.retries++ < kRetriesMax) return again_.push_back(slot);
  piece.request = nullptr;
  free_.push_back(slot);
  --request.engine_pieces;
  if (error != 0 && request.error == 0) request.error = error;
  // Its other pieces have no use any more.
  if (request.error != 0 && waiting_.front() == &request) (void)waiting_.pop_front();
  const bool all_issued = request.error != 0 || request.engine_done_bytes == request.bytes;
  if (all_issued && request.engine_pieces == 0) finish(request);
}

void UringCmdEngine::reap() noexcept {
  std::array<NvmeDone, kReapedAtOnce> done;
  size_t count = 0;
  do {
    count = queue_->reap(done);
    for (size_t at = 0; at < count; ++at) {
      HALFSTEP_CHECK(done[at].tag < pieces_.size() && pieces_[done[at].tag].request != nullptr, done[at].tag);
      --out_;
      landed(static_cast<uint16_t>(done[at].tag), nvme_error(done[at].result));
    }
  } while (count == done.size());
}

size_t UringCmdEngine::poll() noexcept {
  reap();
  return complete_all(done_, in_flight_, counters_);
}

void UringCmdEngine::wait() noexcept {
  flush_submissions();
  reap();
  while (done_.empty() && in_flight_ > 0) {
    fill();
    submitted(queue_->wait());
    reap();
  }
}

}  // namespace halfstep::io
