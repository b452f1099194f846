#include "store/durable/header_keeper.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "store/durable/header_io.h"

namespace halfstep::store {
namespace {

// A device that takes nothing for a moment.
constexpr uint32_t kStartTriesMax = 5;
constexpr uint64_t kStartPauseUs = 500'000;

std::string named(const std::array<std::byte, 16>& uuid) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte one : uuid) {
    text += kDigits[std::to_integer<unsigned>(one) >> 4];
    text += kDigits[std::to_integer<unsigned>(one) & 15];
  }
  return text;
}

}  // namespace

// ---- Start -----------------------------------------------------------------------------------------------------------------

Fault HeaderKeeper::load(io::Engine& engine, std::shared_ptr<HeaderKeeper>* out, const HeaderPatience& patience) {
  LoadedHeader loaded;
  if (Fault fault = load_header(engine, &loaded, patience); !fault.ok()) return fault;
  std::shared_ptr<HeaderKeeper> keeper(new HeaderKeeper);
  std::copy(std::begin(loaded.copy_bad), std::end(loaded.copy_bad), keeper->copy_bad_);
  keeper->snapshot_ = std::make_shared<const HeaderState>(std::move(loaded.state));
  *out = std::move(keeper);
  return {};
}

Fault HeaderKeeper::start(io::Engine& engine, const Clock& clock) {
  const std::lock_guard starting(start_mutex_);
  if (started_) return start_fault_;
  started_ = true;
  HeaderState state = *newest();
  begin_ownership(state, clock);
  claimed_ = state.fixed.start_number;
  uint32_t bad_copies = 0;
  bool flush_failed = false;
  uint64_t bytes_written = 0;
  Status status;
  for (uint32_t tries = 0; tries < kStartTriesMax; ++tries) {
    if (tries > 0) clock.pause_us(kStartPauseUs);
    bool failed = false;
    uint64_t bytes = 0;
    status = write_header_now(engine, state, &bad_copies, &failed, &bytes);
    flush_failed = flush_failed || failed;
    bytes_written += bytes;
    if (status.ok()) break;
  }
  start_bytes_ = bytes_written;
  // It may have been told of what an earlier process wrote: then nobody else is.
  if (flush_failed) flushes_.note_failure();
  if (!status.ok()) {
    start_fault_ = {status, "store header: " + errno_name(status.detail()) + " at both ends while taking ownership"};
    return start_fault_;
  }
  const std::lock_guard lock(mutex_);
  snapshot_ = std::make_shared<const HeaderState>(std::move(state));
  if (copy_bad_[0] || copy_bad_[1]) {
    notes_.push_back(std::string("store header: the copy at the ") + (copy_bad_[0] ? "start" : "end") +
                     " was damaged or stale; written anew from the other one");
  }
  if (bad_copies > 0) notes_.push_back("store header: one copy cannot be written; replace the device");
  return {};
}

Fault HeaderKeeper::recognise(const std::function<Status(uint64_t offset, Bytes into)>& read) const {
  const Snapshot ours = newest();
  const std::string wanted = "store " + named(ours->fixed.store_uuid) + " of start " + std::to_string(ours->fixed.start_number);
  const auto other = [&](const std::string& found) {
    return Fault{Code::Unsupported, "holds " + found + ", and " + wanted +
                                        " is served: it is not used; give the target that store's image, or restart the "
                                        "daemon to serve what it has"};
  };
  PageBuffer buffer(kHeaderReservePages);
  uint64_t newest_start = 0;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    const Status status = read(ours->places().header(copy), buffer.bytes());
    if (!status.ok()) return {status, "its store header cannot be read: " + errno_name(status.detail())};
    HeaderState seen;
    const Status decoded = decode_header(buffer.bytes(), &seen);
    if (decoded == Code::Unsupported) return other("a store of another format");
    if (!decoded.ok()) continue;  // damaged: the other one says
    if (seen.fixed.store_uuid != ours->fixed.store_uuid) return other("store " + named(seen.fixed.store_uuid));
    newest_start = std::max(newest_start, seen.fixed.start_number);
  }
  if (newest_start == 0) return other("no store header");
  if (newest_start == ours->fixed.start_number || newest_start == claimed_) return {};
  return other("the same store of start " + std::to_string(newest_start) +
               (newest_start < ours->fixed.start_number ? ", an older copy of it" : ", which another daemon has taken"));
}

std::vector<std::string> HeaderKeeper::take_notes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(notes_, {});
}

HeaderKeeper::Snapshot HeaderKeeper::newest() const {
  const std::lock_guard lock(mutex_);
  return snapshot_;
}

// ---- Seats -----------------------------------------------------------------------------------------------------------------

bool HeaderKeeper::all_know_locked() const noexcept {
  return std::all_of(seats_.begin(), seats_.end(), [this](const Seat* seat) { return seat->known_ == number_; });
}

// Under the lock: once it is given back the seat may be left, and what its wake refers to be gone.
void HeaderKeeper::call(Seat& seat) {
  seat.called_.store(true);
  if (seat.wake_) seat.wake_();
  changed_.notify_all();
}

void HeaderKeeper::give_on() {
  pen_ = nullptr;
  if (waiting_.empty()) return;
  pen_ = waiting_.front();
  waiting_.pop_front();
  call(*pen_);
}

HeaderKeeper::Seat::Seat(std::shared_ptr<HeaderKeeper> keeper, std::function<void()> wake)
    : keeper_(std::move(keeper)), wake_(std::move(wake)) {
  const std::lock_guard lock(keeper_->mutex_);
  first_ = keeper_->snapshot_;
  known_ = keeper_->number_;
  keeper_->seats_.push_back(this);
}

HeaderKeeper::Seat::~Seat() {
  const std::lock_guard lock(keeper_->mutex_);
  if (!seated_) return;
  keeper_->all_clean_ = false;
  leave_locked();
}

void HeaderKeeper::Seat::leave_locked() {
  seated_ = false;
  std::erase(keeper_->seats_, this);
  std::erase(keeper_->waiting_, this);
  if (keeper_->pen_ == this) {
    keeper_->give_on();
  } else if (keeper_->pen_ != nullptr && keeper_->all_know_locked()) {
    keeper_->call(*keeper_->pen_);
  }
}

HeaderKeeper::Snapshot HeaderKeeper::Seat::news() {
  const std::lock_guard lock(keeper_->mutex_);
  if (known_ == keeper_->number_) return nullptr;
  known_ = keeper_->number_;
  if (keeper_->pen_ != nullptr && keeper_->all_know_locked()) keeper_->call(*keeper_->pen_);
  return keeper_->snapshot_;
}

bool HeaderKeeper::Seat::take_pen() {
  const std::lock_guard lock(keeper_->mutex_);
  if (keeper_->pen_ == nullptr) keeper_->pen_ = this;
  if (keeper_->pen_ == this) return true;
  auto& waiting = keeper_->waiting_;
  if (std::find(waiting.begin(), waiting.end(), this) == waiting.end()) waiting.push_back(this);
  return false;
}

void HeaderKeeper::Seat::publish(HeaderState next) {
  auto snapshot = std::make_shared<const HeaderState>(std::move(next));
  const std::lock_guard lock(keeper_->mutex_);
  HALFSTEP_DCHECK(keeper_->pen_ == this, keeper_->pen_);
  keeper_->snapshot_ = std::move(snapshot);
  ++keeper_->number_;
  for (Seat* seat : keeper_->seats_) {
    if (seat != this) keeper_->call(*seat);
  }
}

bool HeaderKeeper::Seat::all_know() const {
  const std::lock_guard lock(keeper_->mutex_);
  return keeper_->all_know_locked();
}

void HeaderKeeper::Seat::give_pen() {
  const std::lock_guard lock(keeper_->mutex_);
  if (keeper_->pen_ == this) keeper_->give_on();
}

void HeaderKeeper::Seat::lose() {
  const std::lock_guard lock(keeper_->mutex_);
  keeper_->lost_ = true;
  for (Seat* seat : keeper_->seats_) keeper_->call(*seat);
}

bool HeaderKeeper::Seat::lost() const {
  const std::lock_guard lock(keeper_->mutex_);
  return keeper_->lost_;
}

void HeaderKeeper::Seat::wait_called() {
  std::unique_lock lock(keeper_->mutex_);
  keeper_->changed_.wait(lock, [this] { return called_.load(); });
}

bool HeaderKeeper::Seat::leave(bool* clean) {
  const std::lock_guard lock(keeper_->mutex_);
  *clean = keeper_->all_clean_ = keeper_->all_clean_ && *clean;
  if (keeper_->seats_.size() == 1) return true;
  leave_locked();
  return false;
}

}  // namespace halfstep::store
