// stager.h — brings blocks into memory ahead of their first read, behind everybody who reads now.
// A queue by priority (stage_queue.h). Blocks come by the same verified reads as any (reader.h); while gets
// read from the device only few are under way. What came is kept for its first read (staged_blocks.h). Where there is no room
// for it: who follows a chain waits until earlier blocks of it were read, anybody else is told at once. Invariants: each stage
// is done exactly once or withdrawn; a block that a get waits for is read once, for both. Thread: the shard's.
#pragma once

#include <deque>

#include "base/clock.h"
#include "store/catalog/catalog.h"
#include "store/catalog/names.h"
#include "store/format/report.h"
#include "store/format/store_time.h"
#include "store/memory/memory.h"
#include "store/memory/staged_blocks.h"
#include "store/read/reader.h"
#include "store/read/stage_queue.h"

namespace halfstep::store {

class Stager {
 public:
  struct Needs {
    const Catalog& catalog;
    Memory& memory;
    StagedBlocks& staged;
    const Names& names;
    const Clock& clock;
    StoreTime& store_time;
    Counters& counters;
  };
  Stager(const Needs& needs, BlockReader& reader)
      : catalog_(needs.catalog),
        memory_(needs.memory),
        staged_(needs.staged),
        names_(needs.names),
        clock_(needs.clock),
        store_time_(needs.store_time),
        counters_(needs.counters),
        reader_(reader) {}

  void stage(Stage& stage);
  bool withdraw(Stage& stage) noexcept;
  void turn();
  uint64_t next_turn_us() const noexcept;
  // Ends what has not begun, and keeps nothing from now on.
  void stop();

 private:
  static constexpr uint64_t kAheadBytesMax = 8 * MiB;         // under way at once
  static constexpr uint64_t kAheadBytesBehindGets = 1 * MiB;  // the same, while gets read
  static constexpr uint32_t kBegunInTurn = 64;
  static constexpr uint64_t kRetryUs = 1'000;  // when memory was short

  enum State : uint8_t { Idle, Queued, Waiting, Reading };
  enum class Begun : uint8_t { Yes, NoRoom, NoMemory };
  // One read ahead. Pooled.
  struct Ahead {
    Read read;
    Stager* stager = nullptr;
    Stage* stage = nullptr;
    uint64_t bytes = 0;
    bool own = false;  // it reads from flash by itself, and has reserved its bytes
  };

  bool room_under_way() const noexcept;
  Begun begin(Stage& stage);
  static void on_read(Read& read);
  void arrived(Ahead& ahead);
  void finish(Stage& stage, Status status);

  const Catalog& catalog_;
  Memory& memory_;
  StagedBlocks& staged_;
  const Names& names_;
  const Clock& clock_;
  StoreTime& store_time_;
  Counters& counters_;
  BlockReader& reader_;
  StageQueue queue_;
  StageQueue waiting_;         // who follow, for room
  uint64_t waited_since_ = 0;  // StagedBlocks::freed() when the first of them found none
  uint64_t retry_at_us_ = 0;
  std::deque<Ahead> aheads_;
  std::vector<Ahead*> unused_;
  uint64_t bytes_under_way_ = 0;
  uint32_t reads_under_way_ = 0;
  bool stopped_ = false;
};

}  // namespace halfstep::store
