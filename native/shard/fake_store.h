// fake_store.h — a store in RAM for the shard's tests: real slots, no device, and every delay and refusal on command.
// Thread: the shard's, commands included.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/crc.h"
#include "base/hash.h"
#include "store/account/explain.h"
#include "store/store.h"

namespace halfstep::shard {

class FakeStore final : public store::Store {
 public:
  explicit FakeStore(SlotPool& slots) : slots_(slots) {
    geometry_.segment_bytes = 64 * MiB;
    geometry_.block_bytes_max = 4 * MiB;
  }
  ~FakeStore() override { finish_reads(); }

  // Commands of tests -------------------------------------------------------------------------------------------------------
  bool hold_reads = false;   // reads wait for finish_reads()
  bool hold_writes = false;  // commits wait for finish_writes()
  bool hold_removes = false;
  bool throttle_reads = false;  // Throttled until release_memory()
  bool refuse_holds = false;
  bool refuse_layouts = false;
  bool hold_layouts = false;               // those that are new wait for finish_layouts()
  int32_t throttle_writes = 0;             // kThrottled…
  uint64_t window_bytes_max = UINT64_MAX;  // TooLarge beyond
  std::set<std::string> corrupt;           // engine keys whose reads find wrong bytes
  bool parts_alone = false;                // reads of some parts bring no others
  bool reads_again = false;                // what was told of in parts ends in other memory
  uint64_t reads_begun = 0;
  uint64_t parts_read = 0;  // alone
  std::vector<store::IndexKey> touched;
  bool hold_lists = false;     // until finish_lists()
  uint64_t list_later_us = 0;  // that each takes
  uint64_t removes_begun = 0;
  std::function<void()> at_remove;  // as each begins
  std::function<void()> at_find;    // of many keys

  void finish_lists() {
    hold_lists = false;
    for (store::Listing* listing : std::exchange(held_lists_, {})) list(*listing);
  }
  void remember_no_events() { events_ = store::Events(0); }
  void finish_reads() {
    std::deque<store::Read*> held;
    held.swap(held_reads_);
    for (store::Read* read : held) complete(*read);
  }
  // So many of the first parts are there, of one key or of all that are being read.
  void land_parts(uint32_t count, std::string_view name = {}) {
    for (store::Read* read : held_reads_) {
      Block& block = *blocks_.at(pair_of(read->key));
      if (read->landed == nullptr || (!name.empty() && block.name != name)) continue;
      if (read->early == nullptr) ++block.pins;
      read->early = &block;
      read->parts_landed = count;
      read->landed(*read);
    }
  }
  // Deleted, and put again with other bytes of the same length.
  void replace(std::string_view name) {
    for (auto& [key, block] : blocks_) {
      if (block->name == name) block->be_another();
    }
  }
  // Its last part is said to be coded, in the table that readers see.
  void mark_coded(std::string_view name) {
    for (auto& [key, block] : blocks_) {
      if (block->name == name) block->writable_parts().back().codec = 3;
    }
  }
  void finish_last_reads(size_t count) {
    std::deque<store::Read*> held;
    held.swap(held_reads_);
    const auto first = held.end() - static_cast<ptrdiff_t>(std::min(count, held.size()));
    held_reads_.assign(held.begin(), first);
    for (auto read = first; read != held.end(); ++read) complete(**read);
  }
  void finish_writes() {
    std::deque<store::Write*> held;
    held.swap(held_writes_);
    for (store::Write* write : held) finish(*write);
  }
  void finish_removes() {
    std::deque<store::Remove*> held;
    held.swap(held_removes_);
    for (store::Remove* remove : held) remove->done(*remove);
  }
  void release_memory() {
    throttle_reads = false;
    throttle_writes = 0;
    if (on_memory_) on_memory_();
  }
  void release_read_memory() {
    throttle_reads = false;
    if (on_memory_) on_memory_();
  }
  uint64_t free_bytes() const noexcept { return slots_.free_bytes(); }
  uint64_t open_writes() const noexcept { return writing_.size(); }
  uint64_t pinned() const noexcept {
    uint64_t pins = 0;
    for (const auto& [key, block] : blocks_) pins += block->pins;
    for (const auto& [address, block] : deleted_) pins += block->pins;
    return pins + alone_.size();
  }
  uint64_t holds() const noexcept { return holds_.size(); }
  uint64_t pins() const noexcept {
    return static_cast<uint64_t>(
        std::count_if(holds_.begin(), holds_.end(), [](const auto& h) { return h.second.persistent; }));
  }
  std::map<std::string, uint64_t> expires_in_s;        // engine key -> of its last expire
  std::map<std::string, store::NamespaceInfo> limits;  // as they were last given
  Status change_status;                                // of persistent holds, releases and expiries
  uint64_t renewed_until_us = 0;
  uint64_t blocks() const noexcept { return blocks_.size(); }

  // store::Store ----------------------------------------------------------------------------------------------------------
  const store::Geometry& geometry() const noexcept override { return geometry_; }
  const store::RecoveryReport& recovery() const noexcept override { return recovery_; }
  bool recovering() const noexcept override { return false; }
  bool lost() const noexcept override { return is_lost; }
  std::array<std::byte, 16> uuid() const noexcept override { return {std::byte{7}}; }
  uint64_t start_number() const noexcept override { return 1; }

  bool has_namespace(std::string_view name) const noexcept override { return names_.count(std::string(name)) != 0; }
  std::vector<store::NamespaceInfo> namespaces() const override {
    std::vector<store::NamespaceInfo> out;
    for (const auto& [name, info] : limits) {
      out.push_back(info);
      out.back().number = static_cast<uint32_t>(out.size());
    }
    return out;
  }
  void limit_namespace(const store::NamespaceInfo& info, std::function<void(Status)> done) override {
    if (names_.count(info.name) == 0) return done(Code::NotFound);
    limits[info.name] = info;
    done({});
  }
  void clear(std::string_view name, const wire::LayoutId& layout, std::function<void(Status)> done) override {
    const uint32_t scope = find_scope(name, layout);
    if (scope == 0) return done(Code::NotFound);
    const wire::Layout kept = scopes_[scope - 1].layout;
    scopes_[scope - 1].alive = false;
    store::RetiredScope retired;
    retired.scope = scope;
    events_.note_cleared(retired);
    scopes_.push_back({std::string(name), kept, true});
    done({});
  }
  uint32_t find_scope(std::string_view name, const wire::LayoutId& layout) const noexcept override {
    for (size_t i = 0; i < scopes_.size(); ++i) {
      if (scopes_[i].alive && scopes_[i].name == name && scopes_[i].layout.id() == layout) return static_cast<uint32_t>(i + 1);
    }
    return 0;
  }
  void create_namespace(const store::NamespaceInfo& info, std::function<void(Status)> done) override {
    limits.insert({info.name, info});
    done(names_.insert(info.name).second ? Status() : Status(Code::Present));
  }
  void delete_namespace(std::string_view name, std::function<void(Status)> done) override {
    const bool there = names_.erase(std::string(name)) != 0;
    for (Scope& scope : scopes_) scope.alive = scope.alive && scope.name != name;
    done(there ? Status() : Status(Code::NotFound));
  }
  void register_layout(std::string_view name, const wire::Layout& layout, std::function<void(Status, uint32_t)> done) override {
    for (size_t i = 0; i < scopes_.size(); ++i) {
      if (scopes_[i].alive && scopes_[i].name == name && scopes_[i].layout.id() == layout.id()) {
        return done({}, static_cast<uint32_t>(i + 1));
      }
    }
    if (refuse_layouts) return done(Code::NoSpace, 0);
    if (hold_layouts) return held_layouts_.push_back(std::move(done));
    scopes_.push_back({std::string(name), layout, true});
    done({}, static_cast<uint32_t>(scopes_.size()));
  }
  void finish_layouts() {
    for (const auto& done : std::exchange(held_layouts_, {})) done(Code::NoSpace, 0);
  }
  const wire::Layout* layout_of(uint32_t scope) const noexcept override {
    return scope != 0 && scope <= scopes_.size() && scopes_[scope - 1].alive ? &scopes_[scope - 1].layout : nullptr;
  }
  store::IndexKey key_of(const store::BlockName& name) const noexcept override {
    const Hash128 hash = keyed_hash({name.scope, name.component.value}, name.engine_key);
    return {hash.low, hash.high};
  }
  void keys_of(std::span<const store::BlockName> names, std::span<store::IndexKey> out) const noexcept override {
    for (size_t i = 0; i < names.size(); ++i) out[i] = key_of(names[i]);
  }

  store::Found find(const store::Sought& sought) noexcept override {
    const auto at = blocks_.find(pair_of(sought.key));
    if (at == blocks_.end() || !at->second->decodable(sought.codecs)) return {};
    const uint32_t bytes = at->second->block_bytes();
    const uint64_t read = parts_alone && sought.parts.count != 0 ? at->second->bytes_of(sought.parts) : bytes;
    return {true, bytes, SlotPool::held_bytes(std::max<uint64_t>(read, 1))};
  }
  void find_many(std::span<const store::Sought> sought, std::span<store::Found> out) noexcept override {
    if (at_find) at_find();
    for (size_t i = 0; i < sought.size(); ++i) out[i] = find(sought[i]);
  }
  Status begin_reads(std::span<store::Read* const> window) override {
    uint64_t bytes = 0;
    for (const store::Read* read : window) bytes += find(read->key).block_bytes;
    if (bytes > window_bytes_max) return Code::TooLarge;
    if (throttle_reads) return Code::Throttled;
    reads_begun += window.size();
    for (store::Read* read : window) {
      if (hold_reads) {
        held_reads_.push_back(read);
      } else {
        complete(*read);
      }
    }
    return {};
  }
  void stage(store::Stage& stage) override { staging_.insert(&stage); }
  bool withdraw(store::Stage& stage) noexcept override { return !hold_stages && staging_.erase(&stage) != 0; }
  // Ends the stages that were begun, each with what is said of its key.
  void end_stages() {
    std::set<store::Stage*> ended;
    ended.swap(staging_);
    for (store::Stage* stage : ended) {
      stage->status = find(stage->key).present ? Status() : Status(Code::NotFound);
      stage->done(*stage);
    }
  }
  size_t stages() const noexcept { return staging_.size(); }
  const std::set<store::Stage*>& staging() const noexcept { return staging_; }
  bool is_lost = false;
  bool hold_stages = false;  // they are being read: nobody gets them back
  void unpin(store::Resident* resident) noexcept override {
    if (alone_.erase(resident) != 0) return;
    if (--static_cast<Block*>(resident)->pins == 0) deleted_.erase(resident);
  }
  Status begin_write(store::Write& write) override {
    store::Sought sought(write.key);
    sought.codecs = write.codecs;
    if (find(sought).present) return Code::Present;
    if (writing_.count(pair_of(write.key)) != 0) return {Code::Throttled, store::kThrottledPending};
    if (throttle_writes != 0) return {Code::Throttled, throttle_writes};
    const wire::Layout* layout = layout_of(write.name.scope);
    const wire::GroupShape& shape = layout->groups()[write.name.component.group()];
    auto block = std::make_unique<Block>();
    if (!block->cut(shape, write)) return Code::Invalid;
    block->take(slots_, write.stored_bytes);
    if (block->slot().empty()) return {Code::Throttled, store::kThrottledMemory};
    block->name = std::string(as_text(write.name.engine_key));
    block->component = write.name.component;
    block->layout = layout->id();
    write.parts = block->writable_parts();
    write.slot = block->writable_slot();
    writing_[pair_of(write.key)] = std::move(block);
    return {};
  }
  void commit_write(store::Write& write) override {
    if (hold_writes) {
      held_writes_.push_back(&write);
    } else {
      finish(write);
    }
  }
  void abort_write(store::Write& write) noexcept override {
    writing_.erase(pair_of(write.key));
    if (on_memory_) on_memory_();
  }
  void remove(store::Change& remove) override {
    ++removes_begun;
    if (at_remove) at_remove();
    auto removed = blocks_.extract(pair_of(remove.key));
    remove.status = removed.empty() ? Status(Code::NotFound) : Status();
    // A read that was answered goes on sending it.
    if (!removed.empty() && removed.mapped()->pins != 0) deleted_[removed.mapped().get()] = std::move(removed.mapped());
    if (hold_removes) {
      held_removes_.push_back(&remove);
    } else {
      remove.done(remove);
    }
  }
  void touch(std::span<const store::IndexKey> keys) override { touched.insert(touched.end(), keys.begin(), keys.end()); }
  void list(store::Listing& listing) override {
    if (hold_lists) return held_lists_.push_back(&listing);
    uint64_t at = 0;
    listing.next = listing.listed = 0;
    listing.later_us = list_later_us;
    for (const auto& [key, block] : blocks_) {
      if (at++ < listing.cursor) continue;
      if (listing.listed == listing.limit) {
        listing.next = at - 1;
        break;
      }
      ++listing.listed;
      listing.visit(listing, {block->layout, block->component, as_bytes(block->name), block->block_bytes(),
                              static_cast<uint32_t>(block->parts().size()), 1, 0});
    }
    listing.done(listing);
  }
  void expire(store::Change& change) override {
    const auto at = blocks_.find(pair_of(change.key));
    if (at != blocks_.end() && change_status.ok()) expires_in_s[at->second->name] = change.for_s;
    answer(change, at == blocks_.end() ? Status(Code::NotFound) : change_status);
  }
  uint64_t owner_of(std::string_view name_space, uint64_t owner) const noexcept override {
    return keyed_hash({1, owner}, as_bytes(name_space)).low;
  }
  Status hold(const store::IndexKey& key, uint64_t owner, uint64_t until_us) override {
    if (refuse_holds) return {Code::Throttled, store::kThrottledPins};
    if (blocks_.count(pair_of(key)) == 0) return Code::NotFound;
    holds_[{pair_of(key), owner}] = {until_us, false};
    return {};
  }
  void hold(store::Change& change) override {
    if (blocks_.count(pair_of(change.key)) == 0) return answer(change, Code::NotFound);
    if (change_status.ok()) holds_[{pair_of(change.key), change.holder}] = {change.for_s, true};
    answer(change, change_status);
  }
  uint64_t renew(uint64_t owner, uint64_t until_us) noexcept override {
    renewed_until_us = until_us;
    uint64_t renewed = 0;
    for (auto& [pair, hold] : holds_) renewed += pair.second == owner && !hold.persistent ? 1 : 0;
    return renewed;
  }
  void release(store::Change& change) override {
    holds_.erase({pair_of(change.key), change.holder});
    answer(change, change_status);
  }
  void release_all(store::Change& change) override {
    std::erase_if(holds_, [&](const auto& hold) { return hold.first.second == change.holder; });
    answer(change, change_status);
  }
  void turn() override {}
  uint64_t next_turn_us() const noexcept override { return UINT64_MAX; }
  void set_on_memory(std::function<void()> on_memory) override { on_memory_ = std::move(on_memory); }
  Status close() override {
    finish_reads();
    finish_writes();
    finish_removes();
    finish_lists();
    return {};
  }
  store::ScopeName name_of(uint32_t scope) const override { return {scopes_[scope - 1].name, scopes_[scope - 1].layout.id()}; }
  const store::Events& events() const noexcept override { return events_; }
  store::Explanation explain(const store::KeyQuestion& question) const override {
    store::Explanation out;
    out.lookups = static_cast<uint32_t>(question.components.size());
    return out;
  }
  const store::Counters& counters() const noexcept override { return counters_; }
  store::Gauges gauges() const noexcept override { return {}; }
  ConstBytes index_memory() const noexcept override { return {}; }

 private:
  using Key = std::pair<uint64_t, uint64_t>;
  static Key pair_of(const store::IndexKey& key) noexcept { return {key.low, key.high}; }

  struct Block final : store::Resident {
    bool decodable(uint64_t codecs) const noexcept {
      return std::all_of(parts_.begin(), parts_.end(),
                         [codecs](const store::PartInfo& part) { return (store::codec_bit(part.codec) & ~codecs) == 0; });
    }
    bool coded() const noexcept {
      return std::any_of(parts_.begin(), parts_.end(), [](const store::PartInfo& part) { return part.codec != 0; });
    }
    bool cut(const wire::GroupShape& shape, store::Write& write) {
      block_bytes_ = write.block_bytes;
      const auto& coded = write.coded_parts;
      parts_.reset(coded.empty() ? shape.parts_of(write.block_bytes) : coded.size());
      std::copy(coded.begin(), coded.end(), parts_.begin());
      for (uint32_t p = 0; coded.empty() && p < parts_.size(); ++p) {
        const uint32_t bytes = shape.bytes_of(p, write.block_bytes);
        parts_[p] = {.stored_bytes = bytes, .raw_bytes = bytes};
      }
      write.stored_bytes = 0;
      for (store::PartInfo& part : parts_) {
        part.offset = write.stored_bytes;
        write.stored_bytes += part.stored_bytes;
      }
      return !parts_.empty();
    }
    void be_another() noexcept { ++checksum_; }
    static bool has(store::PartSpan span, size_t part) noexcept { return part >= span.first && part - span.first < span.count; }
    uint64_t bytes_of(store::PartSpan span) const noexcept {
      uint64_t bytes = 0;
      for (size_t p = 0; p < parts_.size(); ++p) bytes += has(span, p) ? parts_[p].stored_bytes : 0;
      return bytes;
    }
    // These parts of another one, and no more; of a coded one what the others are.
    void take_parts(SlotPool& slots, const Block& from, store::PartSpan span) {
      block_bytes_ = from.block_bytes_;
      checksum_ = from.checksum_;
      parts_.reset(from.parts_.size());
      slot_ = slots.take(std::max<uint64_t>(from.bytes_of(span), 1));
      uint32_t at = 0;
      for (size_t p = 0; p < parts_.size(); ++p) {
        if (from.coded() || has(span, p)) parts_[p] = from.parts_[p];
        parts_[p].offset = store::PartInfo::kElsewhere;
        if (!has(span, p)) continue;
        parts_[p].offset = at;
        from.slot_.for_range(from.parts_[p].offset, from.parts_[p].stored_bytes, [&](Bytes piece) {
          ConstBytes left = piece;
          slot_.for_range(at, left.size(), [&](Bytes to) {
            std::memcpy(to.data(), left.data(), to.size());
            left = left.subspan(to.size());
          });
          at += static_cast<uint32_t>(piece.size());
        });
      }
    }
    void take(SlotPool& slots, uint32_t bytes) { slot_ = slots.take(bytes); }
    Slot* writable_slot() noexcept { return &slot_; }
    std::span<store::PartInfo> writable_parts() noexcept { return parts_; }
    std::string name;
    wire::Component component;
    wire::LayoutId layout{};
    uint64_t pins = 0;
  };
  struct Scope {
    std::string name;
    wire::Layout layout;
    bool alive = true;
  };

  void answer(store::Change& change, Status status) {
    change.status = status;
    if (hold_removes) {
      held_removes_.push_back(&change);
    } else {
      change.done(change);
    }
  }
  struct Hold {
    uint64_t until = 0;
    bool persistent = false;
  };
  void complete(store::Read& read) {
    const auto at = blocks_.find(pair_of(read.key));
    read.resident = nullptr;
    if (at == blocks_.end()) {
      read.status = Code::NotFound;
    } else if (corrupt.count(at->second->name) != 0) {
      read.status = Code::Corrupt;
    } else if ((parts_alone && read.parts.count != 0) || (reads_again && read.early != nullptr)) {
      auto parts = std::make_unique<Block>();
      const bool all = read.parts.count == 0;
      const auto count = static_cast<uint32_t>(at->second->parts().size());
      parts->take_parts(slots_, *at->second, all ? store::PartSpan{0, count} : read.parts);
      parts_read += all ? 0 : 1;
      read.status = {};
      read.resident = parts.get();
      alone_.emplace(parts.get(), std::move(parts));
    } else {
      read.status = {};
      read.resident = at->second.get();
      ++at->second->pins;
    }
    read.complete(read);
  }
  void finish(store::Write& write) {
    auto node = writing_.extract(pair_of(write.key));
    write.status = {};
    blocks_[node.key()] = std::move(node.mapped());
    write.done(write);
  }

  SlotPool& slots_;
  store::Events events_{16};
  store::Geometry geometry_;
  store::RecoveryReport recovery_;
  store::Counters counters_;
  std::set<std::string> names_{"default"};
  std::vector<Scope> scopes_;
  std::vector<std::function<void(Status, uint32_t)>> held_layouts_;
  std::map<Key, std::unique_ptr<Block>> blocks_;
  std::map<Key, std::unique_ptr<Block>> writing_;
  std::map<store::Resident*, std::unique_ptr<Block>> deleted_;  // while they are pinned
  std::map<store::Resident*, std::unique_ptr<Block>> alone_;
  std::map<std::pair<Key, uint64_t>, Hold> holds_;
  std::deque<store::Read*> held_reads_;
  std::set<store::Stage*> staging_;
  std::deque<store::Write*> held_writes_;
  std::deque<store::Remove*> held_removes_;
  std::deque<store::Listing*> held_lists_;
  std::function<void()> on_memory_;
};

}  // namespace halfstep::shard
