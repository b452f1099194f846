// store_impl.h — the Store itself: its parts, and which file has which of its verbs.
//   store_parts.cc  what each of them is built from, in order
//   store.cc        blocks: find, put, and what drives it all once per turn
//   store_life.cc   remove, touch, expire, holds
//   store_names.cc  namespaces, layouts, clear
//   store_explain.cc  what is known of one key
//   store_open.cc   format, open, close
//   store_check.cc  the whole state against its invariants
// No part knows it: each is told in its constructor what it depends on. Thread: the shard's.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "store/account/block_events.h"
#include "store/account/events.h"
#include "store/account/evictor.h"
#include "store/account/explain.h"
#include "store/account/holds.h"
#include "store/catalog/catalog.h"
#include "store/catalog/device_health.h"
#include "store/catalog/names.h"
#include "store/durable/flusher.h"
#include "store/durable/header_io.h"
#include "store/durable/header_keeper.h"
#include "store/durable/record_log.h"
#include "store/durable/shard_place.h"
#include "store/durable/tombstones.h"
#include "store/format/geometry.h"
#include "store/format/header.h"
#include "store/format/options.h"
#include "store/format/report.h"
#include "store/format/sequence.h"
#include "store/format/shard_media.h"
#include "store/format/store_time.h"
#include "store/format/transfer.h"
#include "store/memory/block_uses.h"
#include "store/memory/memory.h"
#include "store/memory/staged_blocks.h"
#include "store/read/reader.h"
#include "store/read/stager.h"
#include "store/reclaim/pruner.h"
#include "store/reclaim/rewriter.h"
#include "store/reclaim/segment_source.h"
#include "store/reclaim/sweeper.h"
#include "store/recover/lister.h"
#include "store/recover/recovery.h"
#include "store/recover/scrubber.h"
#include "store/segment/touch_map.h"
#include "store/store.h"
#include "store/write/sealer.h"
#include "store/write/streams.h"

namespace halfstep::store {

class StoreImpl final : public Store {
 public:
  // store_parts.cc
  StoreImpl(io::Engine& engine, SlotPool& slots, const Clock& clock, const Options& options, const ShardPlace& place,
            std::unique_ptr<ReclaimPolicy> policy, std::unique_ptr<index::BlockIndex> index);
  StoreImpl(const StoreImpl&) = delete;
  StoreImpl& operator=(const StoreImpl&) = delete;

  RecoveryReport& report() noexcept { return report_; }
  Fault begin_recovery();
  // By the keeper, while the store was opened.
  void header_bytes_counted(uint64_t bytes) noexcept { counters_.bytes_metadata += bytes; }
  Status flush_at_end();
  void wait_for_flushes();
  // store_check.cc
  void check_invariants() const;

  const Geometry& geometry() const noexcept override { return places_.geometry; }
  const RecoveryReport& recovery() const noexcept override { return report_; }
  bool recovering() const noexcept override { return tombstones_.recovering(); }
  bool lost() const noexcept override { return header_writer_.lost(); }
  std::array<std::byte, 16> uuid() const noexcept override { return header_.fixed.store_uuid; }
  uint64_t start_number() const noexcept override { return header_.fixed.start_number; }

  bool has_namespace(std::string_view name) const noexcept override { return header_.find_namespace(name) != nullptr; }
  std::vector<NamespaceInfo> namespaces() const override;
  std::vector<NamespaceStock> stocks() const override;
  void create_namespace(const NamespaceInfo& info, std::function<void(Status)> done) override;
  void limit_namespace(const NamespaceInfo& info, std::function<void(Status)> done) override;
  void delete_namespace(std::string_view name, std::function<void(Status)> done) override;
  void clear(std::string_view name, const wire::LayoutId& layout, std::function<void(Status)> done) override;
  void register_layout(std::string_view name, const wire::Layout& layout,
                       std::function<void(Status, uint32_t scope)> done) override;
  uint32_t find_scope(std::string_view name, const wire::LayoutId& layout) const noexcept override;
  const wire::Layout* layout_of(uint32_t scope) const noexcept override { return names_.layout(scope); }
  ScopeName name_of(uint32_t scope) const override;
  IndexKey key_of(const BlockName& name) const noexcept override;
  void keys_of(std::span<const BlockName> names, std::span<IndexKey> out) const noexcept override;

  Found find(const Sought& sought) noexcept override;
  void find_many(std::span<const Sought> sought, std::span<Found> out) noexcept override;
  Status begin_reads(std::span<Read* const> window) override { return reader_.begin(window); }
  void unpin(Resident* resident) noexcept override { memory_.unpin(Extent::of(*resident)); }
  void stage(Stage& stage) override { stager_.stage(stage); }
  bool withdraw(Stage& stage) noexcept override { return stager_.withdraw(stage); }
  Status begin_write(Write& write) override;
  void commit_write(Write& write) override;
  void abort_write(Write& write) noexcept override;
  void remove(Change& change) override;
  void touch(std::span<const IndexKey> keys) override;
  void expire(Change& change) override;
  void list(Listing& listing) override { lister_.list(listing); }

  uint64_t owner_of(std::string_view name_space, uint64_t owner) const noexcept override;
  Status hold(const IndexKey& key, uint64_t owner, uint64_t until_us) override;
  void hold(Change& change) override;
  uint64_t renew(uint64_t owner, uint64_t until_us) noexcept override;
  void release(Change& change) override;
  void release_all(Change& change) override;

  void turn() override;
  uint64_t next_turn_us() const noexcept override;
  void set_on_memory(std::function<void()> on_memory) override { on_memory_ = std::move(on_memory); }
  Status close() override;

  const Counters& counters() const noexcept override { return counters_; }
  Gauges gauges() const noexcept override;
  ConstBytes index_memory() const noexcept override { return catalog_.index_memory(); }
  const Events& events() const noexcept override { return events_; }
  Explanation explain(const KeyQuestion& question) const override;

 private:
  static bool born_before(void* store, const IndexKey& key, uint64_t sequence);
  Status cut(Write& write, std::vector<PartInfo>* parts) const;
  // Some part of it may be lossier than its namespace allows.
  bool below_floor(const Write& write) const noexcept;
  bool present(const IndexKey& key) noexcept;
  bool present(const Block& block) noexcept;
  bool present(const Extent& extent) noexcept;
  // Whether these codecs are enough. Of a coded block that only flash has nothing in memory says which it needs: where its
  // scope has blocks that they are not enough for, and it is not plain, it counts as one of those.
  bool decodable(const Extent* extent, const Block& block, uint64_t codecs) const noexcept;
  static Found found(uint32_t block_bytes, uint64_t memory_bytes) noexcept;
  uint64_t parts_bytes(const Block& block, const Sought& sought) const noexcept;
  std::vector<RetiredScope> retired_by(const HeaderState& next) const;
  void note_cleared(std::vector<RetiredScope> retired);
  void adopt_header(const HeaderState& next);
  void change_header(std::function<Status(HeaderState&)> change, std::function<void(Status)> done);
  bool absent_remove_due() const noexcept {
    return !absent_removes_.empty() && absent_removes_.front().tombstones_before <= log_.tombstones_answered();
  }
  void answer_absent_removes();
  void note_removed(const Change& change, bool there);
  bool log_takes_life();
  bool find_dead_pins(const Holds::Held& wanted);
  // What a hold of a present block is taken on.
  Holds::Held held_block(const IndexKey& key) noexcept;
  // Logs the record for the change's key; `change` is answered when it is on media.
  void log_life(format::Record record, Change& change);

  void check_held() const;
  void tend();
  void count_metadata() noexcept;
  void finish_recovery();
  void recovered();
  int32_t refuse_while_recovering() noexcept {
    ++counters_.throttled_recovering;
    return kThrottledRecovery;
  }

  struct LastFlush {
    FlushWaiter waiter;
    Status status;
    bool done = false;
  };

  HeaderKeeper::Seat seat_;
  const std::function<void()> yield_;

  // What the parts are built on
  io::Engine& engine_;
  const Clock& clock_;
  HeaderState header_;
  const Options options_;
  const Places places_;
  const HashKey index_secret_;
  const HashKey page_secret_;
  const HashKey owner_secret_;  // of holds
  const ShardMedia media_;
  Counters counters_;
  Sequence sequence_;
  StoreTime store_time_;
  TransferPool transfers_;
  WriteHealth writes_;
  UnreadBlocks unread_;

  // What is known
  Names names_;
  Catalog catalog_;
  Memory memory_;
  StagedBlocks staged_;
  Holds holds_;
  Events events_;
  BlockEvents block_events_;
  Evictor evictor_;
  BlockUses uses_;

  // What is on media before it is said
  Flusher flusher_;
  const std::atomic<bool>& names_uncertain_;  // nothing is called durable meanwhile (segment_writer.h)
  ScopeUse& scope_use_;
  RecordLog log_;
  Tombstones tombstones_;

  // Who does the work
  std::unique_ptr<Recovery> recovery_;  // while it goes on
  std::unique_ptr<ReclaimPolicy> policy_;
  HeaderWriter header_writer_;
  BlockReader reader_;
  Stager stager_;
  RollReader rolls_;
  Teller teller_;
  SegmentSource source_;
  Streams streams_;
  Rewriter rewriter_;
  Sealer sealer_;
  TouchMap touch_map_;
  Sweeper sweeper_;
  Pruner pruner_;
  Lister lister_;
  Scrubber scrubber_;
  uint64_t header_bytes_counted_ = 0;
  LastFlush last_flush_;
  RecoveryReport report_;
  std::vector<PartInfo> cut_;  // of the write that is being begun
  std::function<void()> on_memory_;
  // Removes of blocks that were not there: answered when all tombstones before them are on media.
  struct AbsentRemove {
    Change* change = nullptr;
    uint64_t tombstones_before = 0;
  };
  std::deque<AbsentRemove> absent_removes_;
  static constexpr uint64_t kTidyUs = 1'000'000;
  uint64_t room_for_life_at_us_ = 0;  // what makes room is not looked for before
  uint64_t dead_pins_at_us_ = 0;
  bool closing_ = false;
#ifndef NDEBUG
  // A walk of everything costs as much as some turns; a sum that is wrong stays so.
  static constexpr uint64_t kTurnsBetweenChecks = 64;
  uint64_t turns_ = 0;
#endif
};

}  // namespace halfstep::store
