// model.h — the oracle: for every name, which of its puts a get may answer now, and whether there must be an answer.
// Each key has its puts in order of commit. What was deleted with an answer is dead for good; what is left is what a restart
// may find. While a process serves, one of them is current, or none; after a restart that is unknown until somebody looks.
// Invariants: judges by answers, counters and hits alone (placements.h), never by what the store has inside.
// Thread: one.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/content.h"
#include "sim/history.h"
#include "sim/placements.h"
#include "sim/rules.h"
#include "store/store.h"

namespace halfstep::sim {

// Bounds of what the store's clock says. It is at least the wall clock, but for one that has jumped ahead by more than a day
// less than an hour ago, which a running store does not believe; then it has gone on from before. It is at most what the same
// rule makes of every value that the wall clock ever had. first: the lowest that it had.
class StoreTime {
 public:
  void sample(const Clock& clock) noexcept;
  // The store may know of it from now on, though it need not: before a turn in which it looks at the clock.
  void may_be(const Clock& clock) noexcept;
  uint64_t low_s() const noexcept { return low_s_; }
  uint64_t high_s() const noexcept { return high_s_; }
  uint64_t first_s() const noexcept { return first_s_; }

 private:
  void follow(uint64_t wall_s, uint64_t now_us) noexcept;

  uint64_t first_s_ = UINT64_MAX;
  uint64_t low_s_ = 0;
  uint64_t sure_s_ = 0;  // the wall clock when it was last believed for sure, and when that was
  uint64_t sure_us_ = 0;
  bool doubted_ = false;
  uint64_t doubted_shift_s_ = 0;
  uint64_t doubted_since_us_ = 0;
  uint64_t high_s_ = 0;
  uint64_t base_us_ = 0;
};

struct Put {
  Version version;
  uint64_t expiry_low_s = 0;  // 0: never
  uint64_t expiry_high_s = 0;
  uint64_t expiry_kept_s = 0;   // the low one, as a restart may find it: uses since may be forgotten
  uint64_t expiry_changes = 0;  // begun
  uint32_t sliding_ttl_s = 0;   // 0: its end does not slide
  bool slides_surely = false;   // nobody has begun to give it another end
  bool removed = false;         // a remove was begun since
};

struct Key {
  uint32_t number = 0;
  uint32_t name_space = 0;
  uint32_t layout = 0;
  uint32_t group = 0;
  std::string name;

  uint32_t scope = 0;  // 0: its namespace or layout is not there
  store::IndexKey index_key;
  wire::Component component() const noexcept { return wire::Component::of(group, 0, number); }
  store::Sought sought() const noexcept { return {index_key, component()}; }
  uint64_t life = 0;  // grows whenever what is below begins anew

  enum class View : uint8_t { None, Known, Unsure };
  std::vector<Put> puts;
  size_t dead_below = 0;  // puts before it were deleted, and that was acknowledged
  View view = View::None;
  size_t current = 0;  // when Known
  bool seen = false;   // Unsure: it was found in this process
  bool must = false;   // there has to be an answer: this put, or a later one
  size_t must_from = 0;
  bool clean_must = false;             // `must` stems from a clean stop alone
  size_t stale_below = 0;              // puts before it were there when the shard's log was lost (log_was_lost)
  uint32_t filling = 0;                // writes begun and not committed
  uint64_t changes = 0;                // commits and removes
  uint8_t hint = 0;                    // of its last put
  bool was_used = false;               // since then
  std::map<uint64_t, uint64_t> holds;  // owner -> until, by the monotonic clock
};

// Of the put that was there, known to be `put`, or nobody knows which.
struct ExpiryChange {
  bool found = false;
  bool known = false;
  size_t put = 0;
  uint64_t number = 0;  // among the changes of that put
  uint64_t low_s = 0;   // 0: never
  uint64_t high_s = 0;
};

// What is known of a key when a read begins: what the read may answer.
struct Expectation {
  bool found = false;
  bool recovering = false;  // what is found may still give way to a newer put
  bool filling = false;
  size_t low = 0;  // puts [low, high)
  size_t high = 0;
  size_t oldest = 0;  // of them, if nothing that was persisted is lost
  uint64_t life = 0;
  uint64_t changes = 0;
  uint64_t wall_s = 0;
};

// What excuses the store, as far as it says so itself.
struct Evidence {
  store::Counters counters;
  uint64_t flush_errors = 0;       // in this process
  bool open_flush_failed = false;  // recovery's: what it found is uncertain, and whoever puts it again writes it again
  bool log_crowded = false;        // it may be
  bool recovering = false;         // what is not found may be found later
};

class Model {
 public:
  Model(const History& history, const Placements& placements, const Clock& clock);

  std::vector<Key>& keys() noexcept { return keys_; }
  StoreTime& time() noexcept { return time_; }
  const std::optional<Violation>& violation() const noexcept { return violation_; }
  void fail(Rule rule, std::string what);
  void set_step(uint32_t step) noexcept { step_ = step; }

  // Names
  void set_scope(Key& key, uint32_t scope, const store::IndexKey& index_key);
  // Blocks
  size_t committed(Key& key, Version version, uint32_t ttl_s, bool sliding);
  // Somebody has just used what is there: an end that slides has moved on.
  // By a request that began so many seconds ago.
  void used(Key& key, uint64_t seconds_ago = 0);
  void persisted(Key& key, size_t put);
  void persisted_whatever_is_there(Key& key);
  // Returns what remove_answered() wants to be told.
  size_t remove_begun(Key& key);
  void remove_answered(Key& key, size_t puts_then);
  // In force from here on, for good when it is answered; until then a restart may find either.
  ExpiryChange expiry_begun(Key& key, bool found, uint64_t for_s);
  void expiry_answered(Key& key, const ExpiryChange& change);
  // The store says that its bytes were lost, and that this is on media: no restart brings it back.
  void buried(Key& key);
  Expectation expect(const Key& key, bool found) const noexcept;
  // So many of the first parts were handed out before the rest.
  void parts_landed(const Key& key, const Expectation& expected, const store::Resident& resident, uint32_t parts);
  // `asked`: the parts that the read named.
  void read_answered(Key& key, const Expectation& expected, const store::Resident& resident, store::PartSpan asked);
  void read_missed(Key& key, const Expectation& expected, Status status);
  void looked(Key& key, const store::Found& found, const Evidence& evidence);
  // Processes
  void process_began() noexcept;
  // The process is dead, and its memory says that the block was gone: it was evicted, and may come back.
  void missing_at_death(Key& key) noexcept;
  void process_died();
  void process_stopped_cleanly();
  // Media faults hit both copies of this shard's record log: it may start empty, or without its last deletes, or believe what
  // an earlier generation of a segment says that has been written over: what is found so is a miss when it is read.
  void log_was_lost(uint32_t shard) noexcept;

  // Whether every block that there can be has been found or not: nothing expires and no name is gone.
  bool exact(const Key& key) const noexcept;

 private:
  uint64_t low_end_s(uint64_t for_s) const noexcept;
  bool may_have_expired(const Key& key) const noexcept;
  // The oldest put that may be what is there.
  static size_t oldest_put(const Key& key) noexcept;
  bool held(const Key& key) const noexcept;
  void gone(Key& key, const Evidence& evidence);
  std::string text_of(const Key& key) const;

  const Placements& placements_;
  const Clock& clock_;
  const uint32_t shards_;
  StoreTime time_;
  std::vector<Key> keys_;
  uint64_t lost_ = 0;  // in this process, without another excuse than eviction or a failed write
  uint64_t lost_persisted_ = 0;
  std::vector<std::byte> scratch_;
  std::optional<Violation> violation_;
  uint32_t step_ = 0;
};

}  // namespace halfstep::sim
