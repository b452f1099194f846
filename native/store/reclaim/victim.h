// victim.h — the segment that is being reclaimed, from its choice until nothing of it is in use.
//
//   choose() ─▶ Copying ─▶ Naming ─▶ Voided ─▶ end()      what is worth keeping is being copied; the rest is being named
//      │           ▲          │                           (teller.h); its last readers are awaited
//      │           └──────────┘ a hold was taken meanwhile
//      └─────────────────▶ Naming: nothing of it is worth a copy
//
// It may end sooner, and stays what it was, less what was copied: somebody holds a block that no pass could copy.
// Invariants: only these steps are taken; at most kPassesMax passes of copies go over one victim. Thread: the shard's.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "store/catalog/segment.h"

namespace halfstep::store {

class Victim {
 public:
  enum class Stage : uint8_t { None, Chosen, Copying, Naming, Voided };
  static constexpr uint32_t kPassesMax = 3;  // while blocks of it become held, or copies fail

  explicit operator bool() const noexcept { return segment_ != nullptr; }
  Segment& segment() const noexcept {
    HALFSTEP_CHECK(segment_ != nullptr);
    return *segment_;
  }
  Stage stage() const noexcept { return stage_; }
  // Held blocks go, too: the record log is crowded.
  bool forced() const noexcept { return forced_; }
  // It was chosen before its room was needed.
  bool early() const noexcept { return early_; }
  // Ready segments that were wanted and not there when it was chosen.
  uint32_t lacking() const noexcept { return lacking_; }
  // That its first pass was to copy.
  uint64_t keep_pages() const noexcept { return keep_pages_; }

  void choose(Segment& segment, bool forced, bool early, uint32_t lacking) noexcept {
    step(Stage::None, Stage::Chosen);
    segment_ = &segment;
    forced_ = forced;
    early_ = early;
    paused_ = false;
    passes_ = 0;
    lacking_ = lacking;
    keep_pages_ = unread_since_us_ = 0;
  }
  void begin_copies(uint64_t keep_pages) noexcept {
    step(Stage::Chosen, Stage::Copying);
    keep_pages_ = keep_pages;
    begin_pass();
  }
  bool has_passes_left() const noexcept { return passes_ < kPassesMax; }
  // Another pass of copies, also after its blocks were named. True: it is the last one.
  bool begin_pass() noexcept {
    if (stage_ == Stage::Naming) step(Stage::Naming, Stage::Copying);
    HALFSTEP_DCHECK(stage_ == Stage::Copying && has_passes_left(), stage_, passes_);
    return ++passes_ == kPassesMax;
  }
  // Before a pass that follows failures, every other time that it is asked. True: it does.
  bool pause(bool wanted = true) noexcept { return paused_ = !paused_ && wanted; }
  // Blocks that are worth a copy cannot be read. Since when.
  uint64_t note_unread(uint64_t now_us) noexcept {
    if (unread_since_us_ == 0) unread_since_us_ = now_us;
    return unread_since_us_;
  }
  // Its room is needed now.
  void be_late() noexcept { early_ = false; }
  void begin_naming() noexcept {
    HALFSTEP_DCHECK(stage_ == Stage::Chosen || stage_ == Stage::Copying, stage_);
    stage_ = Stage::Naming;
  }
  void note_voided() noexcept {
    step(Stage::Naming, Stage::Voided);
    HALFSTEP_CHECK(segment_->live_blocks == 0, segment_->number, segment_->live_blocks);
  }
  // Nobody's any more.
  void end() noexcept {
    segment_ = nullptr;
    stage_ = Stage::None;
  }

 private:
  void step([[maybe_unused]] Stage from, Stage to) noexcept {
    HALFSTEP_DCHECK(stage_ == from, stage_, from);
    stage_ = to;
  }

  Segment* segment_ = nullptr;
  Stage stage_ = Stage::None;
  bool forced_ = false;
  bool early_ = false;
  bool paused_ = false;
  uint32_t passes_ = 0;
  uint32_t lacking_ = 0;
  uint64_t keep_pages_ = 0;
  uint64_t unread_since_us_ = 0;
};

}  // namespace halfstep::store
