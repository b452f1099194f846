#include "store/read/stager.h"

#include "base/check.h"
#include "store/format/mutant.h"
#include "store/format/options.h"
#include "store/memory/staleness.h"

namespace halfstep::store {

// ---- The queue -------------------------------------------------------------------------------------------------------------

void Stager::stage(Stage& stage) {
  stage.status = {};
  stage.was_there = false;
  stage.store_state = Queued;
  queue_.push_back(stage);
}

bool Stager::withdraw(Stage& stage) noexcept {
  if (stage.store_state != Queued && stage.store_state != Waiting) return false;
  (stage.store_state == Queued ? queue_ : waiting_).erase(stage);
  stage.store_state = Idle;
  return true;
}

// ---- Turns -----------------------------------------------------------------------------------------------------------------

// One is always under way: gets that never end must not end prefetches.
bool Stager::room_under_way() const noexcept {
  if (reads_under_way_ == 0) return true;
  const bool others = reader_.in_flight() > reads_under_way_;
  return bytes_under_way_ < (others ? kAheadBytesBehindGets : kAheadBytesMax);
}

void Stager::turn() {
  const uint64_t now_us = clock_.now_us();
  staged_.turn(now_us);
  if (stopped_) {
    while (Stage* stage = queue_.empty() ? waiting_.first() : queue_.first()) {
      (void)withdraw(*stage);
      finish(*stage, {Code::Throttled, kThrottledMemory});
    }
    return;
  }
  if (now_us < retry_at_us_) return;
  for (uint32_t begun = 0; begun < kBegunInTurn && room_under_way(); ++begun) {
    // Who waits for room goes first, as soon as some came free.
    const bool freed = !waiting_.empty() && staged_.freed() != waited_since_;
    StageQueue& queue = freed ? waiting_ : queue_;
    Stage* const first = queue.first();
    if (first == nullptr) return;
    Stage& stage = *first;
    queue.erase(stage);
    stage.store_state = Idle;
    switch (begin(stage)) {
      case Begun::Yes: break;
      case Begun::NoRoom:
        if (!stage.follow) {
          finish(stage, {Code::Throttled, kThrottledMemory});
          break;
        }
        if (freed || waiting_.empty()) waited_since_ = staged_.freed();
        stage.store_state = Waiting;
        freed ? waiting_.push_front(stage) : waiting_.push_back(stage);
        break;
      case Begun::NoMemory:  // gets and puts have all of it just now
        stage.store_state = freed ? Waiting : Queued;
        queue.push_front(stage);
        retry_at_us_ = now_us + kRetryUs;
        return;
    }
  }
}

uint64_t Stager::next_turn_us() const noexcept {
  const bool queued = !queue_.empty() || (!waiting_.empty() && staged_.freed() != waited_since_);
  const uint64_t due_us = staged_.next_due_us();
  if (queued && (stopped_ || room_under_way())) return stopped_ ? 0 : std::min(retry_at_us_, due_us);
  return due_us;
}

void Stager::stop() {
  stopped_ = true;
  staged_.let_all_go();
}

// ---- Blocks ----------------------------------------------------------------------------------------------------------------

Stager::Begun Stager::begin(Stage& stage) {
  Extent* extent = resident(catalog_, memory_, stage.key);
  uint64_t bytes = 0;
  bool there = false;
  if (extent != nullptr) {
    there = extent->state != ExtentState::Filling && names_.alive(extent->entry.scope) &&
            !store_time_.expired(extent->entry.expiry_s);
    bytes = extent->slot().held_bytes();
  } else if (const Block block = catalog_.find(stage.key); block) {
    there = names_.alive(block.scope) && !store_time_.expired(block.expiry_s);
    bytes = SlotPool::held_bytes(block.extent_bytes());
  }
  if (!there) {
    finish(stage, Code::NotFound);
    return Begun::Yes;
  }
  if (!staged_.ever_fits(bytes)) {
    finish(stage, Code::TooLarge);
    return Begun::Yes;
  }
  const bool has_room = extent != nullptr && extent->staged != Extent::Staged::No;  // it is kept, or on its way
  if (!has_room && !staged_.fits(bytes)) return Begun::NoRoom;

  if (unused_.empty()) unused_.push_back(&aheads_.emplace_back());
  Ahead& ahead = *unused_.back();
  unused_.pop_back();
  ahead = {};
  ahead.stager = this;
  ahead.stage = &stage;
  ahead.bytes = bytes;
  ahead.own = extent == nullptr;
  ahead.read.key = stage.key;
  ahead.read.component = stage.component;
  ahead.read.ahead = true;
  ahead.read.owner = &ahead;
  ahead.read.complete = &Stager::on_read;
  stage.store_state = Reading;
  if (extent == nullptr) {
    staged_.reserve(bytes);
  } else {
    stage.was_there = extent->state != ExtentState::Reading;
    staged_.wanted_too(*extent);
  }
  bytes_under_way_ += bytes;
  ++reads_under_way_;
  Read* const window[] = {&ahead.read};
  const Status status = reader_.begin(window);
  if (!status.ok()) {
    if (ahead.own) staged_.give_back(bytes);
    HALFSTEP_CHECK(bytes <= bytes_under_way_, bytes, bytes_under_way_);
    bytes_under_way_ -= bytes;
    --reads_under_way_;
    unused_.push_back(&ahead);
    stage.store_state = Idle;
    if (status == Code::Throttled) return Begun::NoMemory;
    finish(stage, status);
    return Begun::Yes;
  }
  // What is still under way here is what this read has begun: if it has ended already, its place may be another's.
  if (ahead.stage == &stage && ahead.own && ahead.read.store_own != nullptr) {
    staged_.coming(*static_cast<Extent*>(ahead.read.store_own), stage.kind);
  }
  return Begun::Yes;
}

void Stager::on_read(Read& read) {
  auto& ahead = *static_cast<Ahead*>(read.owner);
  ahead.stager->arrived(ahead);
}

void Stager::arrived(Ahead& ahead) {
  Stage& stage = *ahead.stage;
  const Status status = ahead.read.status;
  const uint64_t until_us = clock_.now_us() + std::min(stage.keep_us, UINT64_MAX / 4);
  bool keeps = false;
  if (status.ok()) {
    Extent& extent = Extent::of(*ahead.read.resident);
    if (ahead.own) {
      ++counters_.staged;
      counters_.staged_bytes += extent.slot().held_bytes();
      counters_.staged_kinds[stage.kind].bytes += extent.slot().held_bytes();
    }
    switch (extent.staged) {
      case Extent::Staged::Kept:
        if (HALFSTEP_MUTANT(StagedTwice)) staged_.reserve(ahead.bytes);
        staged_.keep_until(extent, until_us);
        break;
      case Extent::Staged::Late:
        if (ahead.own) extent.staged = Extent::Staged::No;
        break;
      case Extent::Staged::Coming:
        keeps = ahead.own;
        if (!keeps) staged_.keep_until(extent, until_us);  // by the one that reads it, who is told last
        break;
      case Extent::Staged::No: keeps = ahead.own || staged_.fits(ahead.bytes); break;
    }
    if (keeps && !stopped_) {
      if (!ahead.own) staged_.reserve(ahead.bytes);
      staged_.keep(extent, until_us, stage.kind);
    } else {
      keeps = false;
      if (ahead.own) extent.staged = Extent::Staged::No;
      memory_.unpin(extent);
    }
  }
  if (!keeps && ahead.own) staged_.give_back(ahead.bytes);
  HALFSTEP_CHECK(ahead.bytes <= bytes_under_way_, ahead.bytes, bytes_under_way_);
  bytes_under_way_ -= ahead.bytes;
  --reads_under_way_;
  ahead.stage = nullptr;
  unused_.push_back(&ahead);
  finish(stage, status);
}

void Stager::finish(Stage& stage, Status status) {
  stage.store_state = Idle;
  stage.status = status;
  stage.done(stage);
}

}  // namespace halfstep::store
