// mount_clear.cc — a clear of a layout, over all shards of the mount. A client sends it to one of them.
//   every shard retires the scope, and lets its puts of it end -> the upstream is told -> every shard retires what it was told
//   of the scope meanwhile -> the answer
// So after the answer no shard serves a block that was there before it, and no put of before it reaches the upstream after it.
#include <memory>
#include <utility>

#include "mount/mount_store.h"

namespace halfstep::mount {

void MountStore::clear(std::string_view name, const wire::LayoutId& layout, std::function<void(Status)> done) {
  const uint32_t space = upstream_->space_of(name);
  if (space == UINT32_MAX) return done(Code::NotFound);
  if (closing_) return done(Code::Closed);
  const uint64_t number = ++clears_begun_;
  Clear& clear = clears_[number];
  clear.space = space;
  clear.layout = layout;
  clear.done = std::move(done);
  // A layout that nobody has named here may be the upstream's all the same.
  on_each_shard(number, [space, layout](MountStore& store, std::function<void()> then) {
    store.retire_named(space, layout, std::move(then));
  });
}

// Runs `verb` in every store of the mount; the clear goes on when each has called `then`.
void MountStore::on_each_shard(uint64_t number, const std::function<void(MountStore&, std::function<void()> then)>& verb) {
  const uint32_t shards = siblings_ != nullptr ? siblings_->count() : 1;
  clears_.at(number).open = shards;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    if (shard == shard_) continue;
    const auto answer = [siblings = siblings_, home = shard_, number] {
      // One that has left has answered its clears by itself.
      (void)siblings->post(home, [number](MountStore& store) { store.clear_goes_on(number); });
    };
    // A shard that is not there has nothing of it.
    if (!siblings_->post(shard, [verb, answer](MountStore& store) { verb(store, answer); })) clear_goes_on(number);
  }
  verb(*this, [this, number] { clear_goes_on(number); });
}

void MountStore::clear_goes_on(uint64_t number) {
  const auto at = clears_.find(number);
  if (at == clears_.end() || --at->second.open != 0 || closing_) return;  // close() answers what is left
  Clear& clear = at->second;
  if (clear.was_sent) {
    const auto done = std::move(clear.done);
    const Status status = clear.status;
    clears_.erase(at);
    return done(status);
  }
  clear.was_sent = true;
  auto request = make_request(HS_OP_CLEAR, clear.space);
  request->layout_id = clear.layout;
  request->done = [this, number](UpstreamRequest& of) {
    const auto cleared = clears_.find(number);
    if (cleared == clears_.end()) return;
    cleared->second.status = status_of(of.outcome);
    const uint32_t space = cleared->second.space;
    on_each_shard(number, [space, layout = of.layout_id](MountStore& store, const std::function<void()>& then) {
      store.retire_asked(space, layout);
      then();
    });
  };
  upstream_->submit(std::move(request));
}

// None of its keys is found from here on: what memory has of it gives way in its time. `then`: no put of it is on its way.
void MountStore::retire_named(uint32_t space, const wire::LayoutId& layout, std::function<void()> then) {
  const uint32_t scope = find_scope(options_.namespaces[space], layout);
  if (scope == 0) return then();
  retire(scope);
  if (scopes_[scope - 1].putting == 0) return then();
  Waiting& waiting = waiting_.emplace_back();
  waiting.scope = scope;
  waiting.cleared = std::move(then);
}

// What was asked for since may have been told of before the upstream's clear, and come from before it.
void MountStore::retire_asked(uint32_t space, const wire::LayoutId& layout) {
  const uint32_t scope = find_scope(options_.namespaces[space], layout);
  if (scope != 0 && scopes_[scope - 1].asked) retire(scope);
}

void MountStore::retire(uint32_t scope) {
  Scope& of = scopes_[scope - 1];
  of.alive = false;
  scopes_.push_back({of.space, of.handle, of.layout});
  events_.note_cleared({});  // for those who wait
}

}  // namespace halfstep::mount
