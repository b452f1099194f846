// header_io.h — the two copies of the store header on the device: rewritten in place while serving (header_load.h reads them).
// What takes long is done in steps, so that nobody waits for it: a change of a full header hashes a mebibyte.
// Invariants: one copy is always whole on media: the second is touched only after the first was written and flushed, and
// the first is the damaged or older one, if one is. Before every rewrite both are read: another start number means that
// another daemon owns the store, and nothing is written again. Where shards share the header, the one that has the pen writes
// (header_keeper.h).
// Thread: the shard's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "store/durable/blocking_io.h"
#include "store/durable/flusher.h"
#include "store/durable/header_keeper.h"
#include "store/durable/header_load.h"
#include "store/format/header.h"
#include "store/format/page.h"

namespace halfstep::store {

// Writes both copies, the damaged or older one first, each flushed. Ok when at least one is on media; `bad_copies` counts the
// others, and `flush_failed` and `bytes_written`, which may be null, say what happened to the device.
Status write_header_now(io::Engine& engine, HeaderState& state, uint32_t* bad_copies, bool* flush_failed = nullptr,
                        uint64_t* bytes_written = nullptr);

class HeaderWriter {
 public:
  // `adopt` takes a new snapshot over, whoever wrote it.
  HeaderWriter(io::Engine& engine, Flusher& flusher, const Clock& clock, const HeaderState& current, HeaderKeeper::Seat& seat,
               std::function<void(const HeaderState&)> adopt);

  // `change` edits a copy of the state (and may refuse); when the copy is on media, every shard takes it over, and then `done`
  // is called.
  void submit(std::function<Status(HeaderState&)> change, std::function<void(Status)> done);
  void turn();
  bool busy() const noexcept { return step_ != Step::Idle || !queue_.empty(); }
  // It is another shard's turn, for the pen or to hear of a change.
  bool waits_for_others() const noexcept { return step_ == Step::Telling || (step_ == Step::Idle && !queue_.empty()); }
  bool lost() const noexcept { return lost_; }  // another owner was seen
  // A change that failed may be on media: the header is written again, until that is certain.
  uint64_t next_turn_us() const noexcept {
    if (step_ == Step::Hashing) return 0;
    return restates() ? restate_at_us_ : UINT64_MAX;
  }
  uint64_t bytes_written() const noexcept { return bytes_written_; }

 private:
  enum class Step : uint8_t { Idle, Checking, Hashing, WritingFirst, FlushingFirst, WritingSecond, FlushingSecond, Telling };
  struct Change {
    std::function<Status(HeaderState&)> apply;
    std::function<void(Status)> done;
    Status status;
  };

  bool restates() const noexcept { return restate_ && !lost_ && !busy() && seat_.names_uncertain(); }
  void take_news();
  void give_up();
  void begin();
  void checked();
  // Whether both copies are what the newest snapshot says: seen at a glance, but for a damaged one.
  bool both_as_written() const noexcept;
  void apply();
  void hash_some();
  void write_copy(uint32_t copy);
  void copy_written(Status status);
  void tell(HeaderState next, Status status);
  void finish(Status status);
  static void on_request(io::Request& request);

  io::Engine& engine_;
  Flusher& flusher_;
  const Clock& clock_;
  const HeaderState& current_;
  HeaderKeeper::Seat& seat_;
  const std::function<void(const HeaderState&)> adopt_;
  HeaderState next_;
  std::vector<Change> queue_;
  std::vector<Change> running_;
  std::vector<std::byte> encoded_;
  Sha256Stream hash_;
  size_t hashed_bytes_ = 0;
  PageBuffer image_;
  PageBuffer seen_;  // both copies as they are on media
  io::Request requests_[2];
  FlushWaiter flush_;
  Step step_ = Step::Idle;
  uint32_t outstanding_ = 0;
  uint32_t first_copy_ = 0;  // written before the other one
  uint32_t copies_good_ = 0;
  uint64_t failures_before_ = 0;  // of the flusher, when this copy was submitted
  Status told_;                   // what came of the change that the others are told of
  bool lost_ = false;
  uint64_t bytes_written_ = 0;
  bool restate_ = false;
  uint64_t restate_at_us_ = 0;
};

}  // namespace halfstep::store
