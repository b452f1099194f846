// world.h — what a run acts on: device, clock, one store process after the other, and what is expected of it.
// world.cc acts upon blocks, world_reads.cc reads them, world_names.cc acts upon namespaces and layouts, world_process.cc
// begins and ends processes, world_scrub.cc waits for the scrub, world_stage.cc brings blocks into memory ahead, world_hints.cc
// looks at what hints promise. Invariants: what a process answers after its crash is not heard. Thread: one.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sim/process.h"
#include "sim/run.h"
#include "sim/sharded_store.h"
#include "store/account/explain.h"

namespace halfstep::sim {

class SimClock final : public Clock {
 public:
  uint64_t now_us() const noexcept override { return us; }
  uint64_t wall_s() const noexcept override { return wall_base_s + us / 1'000'000; }
  void pause_us(uint64_t pause) const noexcept override { us += pause; }
  mutable uint64_t us = 1'000'000;
  uint64_t wall_base_s = 1'800'000'000;
};

std::string text_of(Status status);

class World {
 public:
  explicit World(const History& history);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void begin();  // formats and opens
  void act(const Op& op, uint32_t step);
  void end();  // without further faults: stops, starts, and reads every key once more
  bool over() const noexcept { return over_ || model_.violation().has_value(); }
  Outcome outcome();

 private:
  enum class Known : uint8_t { No, Yes, Maybe };
  struct Space {
    std::string name;
    Known there = Known::No;
    bool creating = false;
    bool deleting = false;
    uint32_t scopes[kLayoutsMax] = {};
  };

  // Of a namespace: 0 is the default one, whose blocks end as their puts say.
  uint32_t sliding_ttl_s(uint32_t number) const noexcept { return number == 0 ? 0 : history_.profile.sliding_ttl_s; }

  // Blocks
  void put(const Op& op, bool commit_now);
  void commit(WriteInFlight& write);
  void abort(WriteInFlight& write);
  WriteInFlight* oldest_begun() noexcept;
  void write_answered(WriteInFlight& write);
  void get(const Op& op);
  bool get_window(std::span<Key* const> asked, uint64_t salt, store::Moment* moment, uint64_t began_s, std::vector<bool>* used);
  uint64_t unread_before(const Key& key);
  std::optional<store::ExplainedBlock> block_on_flash(const Key& key) const;
  void check_stamps(std::span<Key* const> asked, std::span<const std::optional<store::ExplainedBlock>> before,
                    const std::vector<bool>& used);
  void get_as_stranger(const Key& key, uint32_t salt);
  void parts_landed(ReadInFlight& read);
  void give_back_early(ReadInFlight& read);
  void read_answered(ReadInFlight& read);
  bool missed_for_outage(const ReadInFlight& read);
  void unpin(ReadInFlight& read);
  void remove(const Op& op);
  void remove_answered(RemoveInFlight& remove);
  void expire(const Op& op);
  void expire_answered(ExpireInFlight& expire);
  void hold(const Op& op);
  void release(const Op& op);
  void release_all(uint64_t owner);
  store::Change& release_of(uint64_t owner, const store::IndexKey& key);
  bool same_shard(const store::IndexKey& a, const store::IndexKey& b) const noexcept {
    return shard_of(a, history_.profile.shards) == shard_of(b, history_.profile.shards);
  }
  bool usable(const Key& key) const noexcept { return key.scope != 0 && !spaces_[key.name_space].deleting; }
  void forget_answered();
  void check_whole_state() const;
  void pump(uint64_t us);
  void settle();
  void look_at_everything();
  void check_accounting();
  void check_list(uint32_t name_space);
  void listed(uint32_t name_space, const store::Listed& block, std::set<uint32_t>* numbers);
  void rot(const Op& op);
  void fail_next(const Op& op);
  // Outages (world_outage.cc)
  void begin_outage(const Op& op);
  void end_outage() noexcept { outage_.until_us = std::min(outage_.until_us, clock_.us); }
  int32_t outage_error(const io::Request& request);
  bool in_outage() const noexcept { return clock_.us < outage_.until_us; }
  void check_outage();
  void check_retired();
  // Nothing but an outage, or that the process died, can be the cause of what is missing.
  bool strict_outage() const noexcept;
  uint64_t request_turns() const noexcept;
  bool failures_on_their_way() const noexcept;
  bool over_long_ago() const noexcept;
  void check_hints();
  void scrub();
  void stage(const Op& op);
  void stage_answered(StageInFlight& stage);
  void check_staged(bool at_end);
  store::Explanation explain(const Key& key) const;
  bool rotted(const Key& key, const store::ExplainedBlock& block) const;

  // Names
  void create_namespace(uint32_t number);
  void delete_namespace(uint32_t number);
  void register_layouts(uint32_t number, bool certain);
  void layout_answered(uint32_t number, uint32_t layout, Status status, uint32_t scope, bool certain);
  void retire_scopes(uint32_t number);
  void reopen_namespaces();

  // Processes
  void open(uint64_t salt);
  halfstep::Fault open_store();
  bool refusal_excused(uint64_t hits_before) const noexcept;
  void close(uint64_t salt);
  void bury_process();
  const store::Store& shard(uint32_t number) const noexcept;
  void check_reports();
  void check_report(const store::Store& shard);
  uint64_t counted_bytes() const;  // as written, of every cause
  void seen(const io::Request& request);
  void fault_fired(const io::MemoryFault& fault);
  void let_go();
  Evidence evidence(const Key& key) const;
  bool failures_possible() const noexcept;
  bool on(FaultKind fault) const noexcept { return (history_.profile.faults & bit_of(fault)) != 0; }
  bool arm_by_chance(Prng& prng, double chance, uint64_t events_max);
  bool recovering(const Key& key) const noexcept;
  bool at_rest() const noexcept { return process_->engine.in_flight() == 0 && !process_->store->recovering(); }
  bool dead() const noexcept { return process_ == nullptr || process_->crash.dead(); }
  void note(uint64_t value) noexcept { trace_ = ((trace_ ^ value) * 0x9E3779B97F4A7C15U) ^ (trace_ >> 29); }
  uint64_t& count(FaultKind fault) noexcept { return tally_.faults[static_cast<size_t>(fault)]; }

  const History& history_;
  SimClock clock_;
  store::Places places_;
  Placements placements_;
  Model model_;
  Prng random_;  // engines' seeds and the store's secret
  std::unique_ptr<io::MemoryDevice> device_;
  store::Listing listing_;  // the store may still have it when it dies
  std::unique_ptr<Process> process_;
  std::vector<Space> spaces_;
  std::vector<store::IndexKey> ghosts_;  // names of scopes that are retired
  std::vector<uint32_t> retired_scopes_;
  uint64_t crash_salt_ = 0;
  uint64_t wrong_list_until_us_ = 0;
  bool calm_ = false;  // the faults are over
  struct Outage {
    uint64_t until_us = 0;
    uint64_t from_us = 0;
    uint64_t from_turn = 0;
    uint64_t last_turn = 0;  // in which it was there
    uint64_t heard_us = 0;   // at the latest, of the last write that it failed
    uint32_t kinds = 0;
    uint64_t spared_reads = 0;   // the first ones: so that it begins in the middle of a start
    std::vector<bool> segments;  // that it is of; none: of the whole device
  };
  Outage outage_;
  bool fault_is_outage_ = false;  // the one that is told next
  uint64_t unread_ = 0;           // reads that an outage ended
  uint64_t unread_turn_ = 0;      // of the last of them
  uint64_t turns_ = 0;            // of the store, in all its processes
  uint64_t retired_ = 0;          // segments, by earlier processes
  // What check_hints() saw when it looked last.
  struct HintsSeen {
    struct Since {
      uint64_t turn = 0;
      uint64_t victims = 0;  // that were done by then
    };
    uint64_t evicted = 0;
    std::vector<uint32_t> where;               // by key: its segment and 1; 0: not on flash
    std::map<uint32_t, Since> given_up_since;  // segment
  };
  HintsSeen hints_;
  // A write of this copy failed or went elsewhere since both were last written: it may be the older one.
  std::array<bool, 2> header_stale_{};
  bool over_ = false;
  uint64_t trace_ = 0;
  Tally tally_;
};

}  // namespace halfstep::sim
