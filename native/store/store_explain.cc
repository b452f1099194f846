// store_explain.cc — answers a question about one engine key: looks its components up, then walks the events once.
#include <algorithm>
#include <unordered_map>

#include "store/account/explain.h"
#include "store/store_impl.h"

namespace halfstep::store {
namespace {

struct HashOfKey {
  size_t operator()(const IndexKey& key) const noexcept { return static_cast<size_t>(key.low); }  // it is a hash already
};

class Explainer {
 public:
  struct Needs {
    const Names& names;
    const Catalog& catalog;
    const Memory& memory;
    const Holds& holds;
    const Events& events;
    const Clock& clock;
    const StoreTime& store_time;
  };
  Explainer(const Needs& needs, const StoreImpl& store, const KeyQuestion& question)
      : names_(needs.names),
        catalog_(needs.catalog),
        memory_(needs.memory),
        holds_(needs.holds),
        events_(needs.events),
        clock_(needs.clock),
        store_time_(needs.store_time),
        store_(store),
        question_(question) {}

  Explanation run(uint32_t namespace_number) {
    out_.now_s = store_time_.last_s();
    note_horizon();
    for (uint32_t scope = 1; scope < names_.scopes_end(); ++scope) {
      const wire::Layout* layout = names_.layout(scope);
      if (layout == nullptr || names_.namespace_of(scope) != namespace_number) continue;
      scopes_.push_back({scope, layout->id(), static_cast<uint32_t>(layout->groups().size()), false});
    }
    for (const RetiredScope& retired : events_.retired()) {
      if (retired.namespace_number != namespace_number) continue;
      out_.cleared.push_back(retired);
      scopes_.push_back({retired.scope, retired.name.layout, 1, true});
    }
    for (size_t at = 0; at < scopes_.size(); ++at) {
      scope_at_[scopes_[at].number] = at;
      if (!scopes_[at].retired) look_up(scopes_[at]);
    }
    walk_events();
    return std::move(out_);
  }

 private:
  struct Scope {
    uint32_t number = 0;
    wire::LayoutId layout{};
    uint32_t groups = 1;
    bool retired = false;
  };

  void note_horizon() {
    const Events& events = events_;
    out_.oldest_event = events.oldest();
    out_.newest_event = events.newest();
    if (events.oldest() <= events.newest()) out_.oldest_event_s = events.at(events.oldest()).time_s;
    for (size_t reason = 0; reason < kEventReasons; ++reason) {
      out_.forgotten[reason] = events.forgotten(static_cast<EventReason>(reason));
    }
  }

  void look_up(const Scope& scope) {
    const uint32_t groups = question_.every_group ? scope.groups : 1;
    for (uint32_t group = 0; group < groups; ++group) {
      for (const ComponentRange& range : question_.components) {
        for (uint32_t i = 0; i < range.count; ++i) {
          const uint32_t component = (group << 24) + range.first.value + i;
          if (!question_.every_group && wire::Component{component}.group() >= scope.groups) continue;
          if (out_.lookups == KeyQuestion::kLookupsMax) {
            out_.whole = false;
            return;
          }
          ++out_.lookups;
          look_up(scope, {component});
        }
      }
    }
  }

  void look_up(const Scope& scope, wire::Component component) {
    const IndexKey key = store_.key_of({scope.number, component, question_.engine_key});
    if (question_.looked_up) question_.looked_up(key, scope.layout, component);
    const Extent* extent = memory_.find(key);
    if (extent != nullptr && extent->state == ExtentState::Filling) extent = nullptr;
    const Block stored = catalog_.find(key);
    // What memory has of a block that has left the index is nothing any more.
    if (extent != nullptr && !extent->dirty() && !stored) extent = nullptr;
    if (extent == nullptr && !stored) return;
    ExplainedBlock* block = block_of(key, scope, component);
    if (block != nullptr) describe(key, extent, stored, block);
  }

  void describe(const IndexKey& key, const Extent* extent, const Block& block, ExplainedBlock* out) {
    out->in_memory = extent != nullptr && extent->state != ExtentState::Reading;
    out->on_flash = bool{block};
    if (block) {
      const Segment& segment = catalog_.segment(block.location.segment);
      const LogClock& clock = catalog_.clock();
      out->on_media = block.location.page < segment.durable_page;
      out->sealed = segment.state == SegmentState::Sealed;
      out->segment = segment.number;
      out->page = block.location.page;
      out->stream = segment.stream;
      out->block_bytes = catalog_.block_bytes(block, out->component);
      out->extent_bytes = static_cast<uint32_t>(block.extent_bytes());
      out->codecs = catalog_.kind_of(block).codecs;
      out->codecs_known = !catalog_.kind_of(block).any;
      if (extent != nullptr && extent->location() == block.location) out->created_s = extent->entry.created_s;
      out->expiry_s = block.expiry_s;
      out->touch_class = block.touch_class;
      out->hint = block.hint;
      out->touch_age_capacities = static_cast<double>(clock.now() - clock.when(block.touch_stamp)) / kStampsPerCapacity;
    } else {
      out->block_bytes = extent->entry.raw_bytes;
      out->extent_bytes = static_cast<uint32_t>(extent->shape.extent_bytes());
      out->codecs = extent->entry.codecs;
      out->created_s = extent->entry.created_s;
      out->expiry_s = extent->entry.expiry_s;
      out->touch_class = extent->touched ? kTouchedOnce : kUntouched;
      out->hint = extent->entry.hint;
    }
    // One that has expired is not there any more, swept or not.
    out->there = out->expiry_s == 0 || out->expiry_s > out_.now_s;
    const uint64_t now_us = clock_.now_us();
    holds_.for_each_of(key, [&](bool persistent, uint64_t until_us) {
      if (out->holds.size() == KeyQuestion::kHoldsPerBlockMax) return out_.whole = false;
      const bool endless = until_us == Holds::kNoEnd;
      out->holds.push_back({persistent, endless, endless ? 0 : (until_us - std::min(until_us, now_us)) / 1000});
      return true;
    });
  }

  // Null when there is no room for one more.
  ExplainedBlock* block_of(const IndexKey& key, const Scope& scope, wire::Component component) {
    const auto [at, fresh] = places_.try_emplace(key, out_.blocks.size());
    if (!fresh) return &out_.blocks[at->second];
    if (out_.blocks.size() == KeyQuestion::kBlocksMax) {
      places_.erase(at);
      out_.whole = false;
      return nullptr;
    }
    ExplainedBlock& block = out_.blocks.emplace_back();
    block.layout = scope.layout;
    block.component = component;
    block.scope = scope.number;
    block.scope_retired = scope.retired;
    return &block;
  }

  // By its bytes where they are remembered: hashing is ten times the work.
  bool is_about(const Event& event) const noexcept {
    const ConstBytes name = events_.engine_key(event);
    if (!name.empty()) return std::equal(name.begin(), name.end(), question_.engine_key.begin(), question_.engine_key.end());
    return store_.key_of({event.scope, {event.component}, question_.engine_key}) == event.key;
  }

  void note_unnamed(const Event& event) noexcept {
    out_.unnamed += event.blocks();
    out_.unnamed_event = event.number;
    out_.unnamed_s = event.time_s;
  }

  // Also finds components that nobody asked for: an event with this very key, in one of the namespace's scopes, is about it.
  void walk_events() {
    const Events& events = events_;
    for (uint64_t number = events.oldest(); number <= events.newest(); ++number) {
      const Event& event = events.at(number);
      if (event.kind() == EventKind::Unnamed) note_unnamed(event);
      if (event.kind() == EventKind::Cleared || event.kind() == EventKind::Unnamed) continue;
      const auto found = scope_at_.find(event.scope);
      if (found == scope_at_.end()) continue;
      const Scope& scope = scopes_[found->second];
      const bool known = places_.count(event.key) != 0;
      if (!known && !is_about(event)) continue;
      if (!known && !scope.retired) look_up(scope, {event.component});
      ExplainedBlock* block = block_of(event.key, scope, {event.component});
      if (block == nullptr) continue;
      if (block->events.size() == KeyQuestion::kEventsPerBlockMax) block->events.erase(block->events.begin());
      block->events.push_back(event);
    }
  }

  const Names& names_;
  const Catalog& catalog_;
  const Memory& memory_;
  const Holds& holds_;
  const Events& events_;
  const Clock& clock_;
  const StoreTime& store_time_;
  const StoreImpl& store_;
  const KeyQuestion& question_;
  Explanation out_;
  std::vector<Scope> scopes_;
  std::unordered_map<uint32_t, size_t> scope_at_;
  std::unordered_map<IndexKey, size_t, HashOfKey> places_;  // in out_.blocks
};

}  // namespace

Explanation StoreImpl::explain(const KeyQuestion& question) const {
  const StoredNamespace* space = header_.find_namespace(question.name_space);
  if (space == nullptr || question.engine_key.empty() || question.engine_key.size() > format::kEngineKeyBytesMax) return {};
  const Explainer::Needs needs{.names = names_,
                               .catalog = catalog_,
                               .memory = memory_,
                               .holds = holds_,
                               .events = events_,
                               .clock = clock_,
                               .store_time = store_time_};
  return Explainer(needs, *this, question).run(space->record.number);
}

}  // namespace halfstep::store
