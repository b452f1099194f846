// sharded_store.h — several shards of one store, driven as if they were one: the real ones, over one device and one header,
// which they share through its keeper as the threads of a daemon do. They take their turns one after the other on one thread.
// A block belongs to the shard that its index key says; a daemon's clients go by the engine key, which is no better and no
// worse. Not told as one: events, which are those of the first
// shard; and an explanation says of a block where it lies within its own. Thread: one.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/slots.h"
#include "store/account/explain.h"
#include "store/store.h"

namespace halfstep::sim {

inline uint32_t shard_of(const store::IndexKey& key, uint32_t shards) noexcept {
  return static_cast<uint32_t>(key.low % shards);
}

class ShardedStore final : public store::Store {
 public:
  // An arena for each shard.
  static Fault open(io::Engine& engine, const std::vector<Arena*>& arenas, const Clock& clock, const store::Options& options,
                    std::unique_ptr<store::Store>* out);

  const store::Geometry& geometry() const noexcept override { return first().geometry(); }
  const store::RecoveryReport& recovery() const noexcept override;
  bool recovering() const noexcept override;  // any of them
  const store::Store& shard(uint32_t number) const noexcept { return *shards_[number].store; }
  bool lost() const noexcept override { return first().lost(); }
  std::array<std::byte, 16> uuid() const noexcept override { return first().uuid(); }
  uint64_t start_number() const noexcept override { return first().start_number(); }

  bool has_namespace(std::string_view name) const noexcept override { return any().has_namespace(name); }
  std::vector<store::NamespaceInfo> namespaces() const override;
  void create_namespace(const store::NamespaceInfo& info, std::function<void(Status)> done) override {
    of(info.name).create_namespace(info, std::move(done));
  }
  void limit_namespace(const store::NamespaceInfo& info, std::function<void(Status)> done) override {
    of(info.name).limit_namespace(info, std::move(done));
  }
  void delete_namespace(std::string_view name, std::function<void(Status)> done) override {
    of(name).delete_namespace(name, std::move(done));
  }
  void clear(std::string_view name, const wire::LayoutId& layout, std::function<void(Status)> done) override {
    of(name).clear(name, layout, std::move(done));
  }
  void register_layout(std::string_view name, const wire::Layout& layout,
                       std::function<void(Status, uint32_t scope)> done) override {
    of(name).register_layout(name, layout, std::move(done));
  }
  uint32_t find_scope(std::string_view name, const wire::LayoutId& layout) const noexcept override {
    return any().find_scope(name, layout);
  }
  const wire::Layout* layout_of(uint32_t scope) const noexcept override { return any().layout_of(scope); }
  store::ScopeName name_of(uint32_t scope) const override { return any().name_of(scope); }
  store::IndexKey key_of(const store::BlockName& name) const noexcept override { return any().key_of(name); }
  void keys_of(std::span<const store::BlockName> names, std::span<store::IndexKey> out) const noexcept override {
    any().keys_of(names, out);
  }

  store::Found find(const store::Sought& sought) noexcept override { return of(sought.key).find(sought); }
  void find_many(std::span<const store::Sought> sought, std::span<store::Found> out) noexcept override {
    for (size_t i = 0; i < sought.size(); ++i) out[i] = find(sought[i]);
  }
  // All of one shard.
  Status begin_reads(std::span<store::Read* const> window) override { return of(window.front()->key).begin_reads(window); }
  void unpin(store::Resident* resident) noexcept override;
  void stage(store::Stage& stage) override { of(stage.key).stage(stage); }
  bool withdraw(store::Stage& stage) noexcept override { return of(stage.key).withdraw(stage); }
  Status begin_write(store::Write& write) override { return of(write.key).begin_write(write); }
  void commit_write(store::Write& write) override { of(write.key).commit_write(write); }
  void abort_write(store::Write& write) noexcept override { of(write.key).abort_write(write); }
  void remove(store::Change& change) override { of(change.key).remove(change); }
  void touch(std::span<const store::IndexKey> keys) override {
    for (const store::IndexKey& key : keys) of(key).touch({&key, 1});
  }
  void expire(store::Change& change) override { of(change.key).expire(change); }
  void list(store::Listing& listing) override;

  uint64_t owner_of(std::string_view name_space, uint64_t owner) const noexcept override {
    return first().owner_of(name_space, owner);
  }
  Status hold(const store::IndexKey& key, uint64_t owner, uint64_t until_us) override {
    return of(key).hold(key, owner, until_us);
  }
  void hold(store::Change& change) override { of(change.key).hold(change); }
  uint64_t renew(uint64_t owner, uint64_t until_us) noexcept override;
  void release(store::Change& change) override { of(change.key).release(change); }
  void release_all(store::Change& change) override;

  void turn() override;
  uint64_t next_turn_us() const noexcept override;
  void set_on_memory(std::function<void()> on_memory) override;
  Status close() override;

  const store::Counters& counters() const noexcept override;
  store::Gauges gauges() const noexcept override;
  ConstBytes index_memory() const noexcept override { return first().index_memory(); }
  const store::Events& events() const noexcept override { return first().events(); }
  store::Explanation explain(const store::KeyQuestion& question) const override;

 private:
  ShardedStore(io::Engine& engine, std::vector<Arena*> arenas) : engine_(engine), arenas_(std::move(arenas)) {}
  struct One {
    std::unique_ptr<SlotPool> slots;
    std::unique_ptr<store::Store> store;
  };
  struct ReleaseOfAll {
    store::Change* asked = nullptr;
    std::deque<store::Change> parts;
    uint32_t open = 0;
  };
  store::Store& first() const noexcept { return *shards_.front().store; }
  // Changes of one namespace take place in the order in which they are asked for, of one shard alone.
  store::Store& of(std::string_view name_space) const noexcept {
    return *shards_[xxh3_64(as_bytes(name_space)) % shards_.size()].store;
  }
  // Names are everybody's: each question is put to another one.
  store::Store& any() const noexcept { return *shards_[asked_++ % shards_.size()].store; }
  store::Store& of(const store::IndexKey& key) const noexcept {
    return *shards_[shard_of(key, static_cast<uint32_t>(shards_.size()))].store;
  }

  io::Engine& engine_;
  std::vector<One> shards_;
  mutable size_t asked_ = 0;
  size_t closed_ = 0;  // so many of them have been
  std::vector<Arena*> arenas_;
  std::deque<ReleaseOfAll> releases_;
  // Of the one listing that is under way.
  store::Listing* listing_ = nullptr;
  store::Listing inner_;
  uint64_t listed_shard_ = 0;
  mutable store::Counters counters_;
  mutable store::RecoveryReport report_;
};

}  // namespace halfstep::sim
