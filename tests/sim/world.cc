// world.cc — what a run does to blocks, and what it looks at.
#include "sim/world.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/crc.h"
#include "store/recover/lister.h"
#include "store/store_check.h"

namespace halfstep::sim {
namespace {

constexpr uint64_t kTurnUs = 100;
constexpr uint32_t kTurnsToRest = 50'000;
constexpr uint32_t kOwners = 5;
constexpr uint64_t kTurnsBetweenChecks = 4;

}  // namespace

std::string text_of(Status status) { return std::string(code_name(status.code())) + " " + std::to_string(status.detail()); }

void World::act(const Op& op, uint32_t step) {
  model_.set_step(step);
  ++tally_.operations;
  if (process_->recovering) ++tally_.served_recovering;
  note(static_cast<uint64_t>(op.kind));
  switch (op.kind) {
    case OpKind::Put: put(op, true); break;
    case OpKind::Begin: put(op, false); break;
    case OpKind::Commit:
      if (WriteInFlight* write = oldest_begun()) commit(*write);
      break;
    case OpKind::Abort:
      if (WriteInFlight* write = oldest_begun()) abort(*write);
      break;
    case OpKind::Get: get(op); break;
    case OpKind::Remove: remove(op); break;
    case OpKind::Expire: expire(op); break;
    case OpKind::Hold: hold(op); break;
    case OpKind::Release:
    case OpKind::ReleaseAll: release(op); break;
    case OpKind::CreateNamespace: create_namespace(op.key); break;
    case OpKind::DeleteNamespace: delete_namespace(op.key); break;
    case OpKind::Turns:
      for (uint32_t turn = 0; turn < op.count && !dead(); ++turn) pump(op.amount);
      break;
    case OpKind::Settle: settle(); break;
    case OpKind::Pass:
      clock_.us += op.amount * 1'000'000;
      model_.time().may_be(clock_);
      pump(kTurnUs);
      break;
    case OpKind::Jump:
      ++count(FaultKind::ClockJump);
      clock_.wall_base_s += op.flag ? uint64_t{0} - op.amount : op.amount;
      model_.time().may_be(clock_);
      pump(kTurnUs);
      break;
    case OpKind::Rot: rot(op); break;
    case OpKind::FailNext: fail_next(op); break;
    case OpKind::Outage: begin_outage(op); break;
    case OpKind::Stage: stage(op); break;
    case OpKind::Scrub: scrub(); break;
    case OpKind::Restart:
      close(op.salt);
      if (!over()) open(op.salt);
      break;
    case OpKind::Crash:
      ++count(op.flag ? FaultKind::Kill : FaultKind::PowerCut);
      process_->crash.arm(op.flag ? CrashEngine::Crash::Killed : CrashEngine::Crash::PowerCut, op.amount);
      crash_salt_ = op.salt;
      pump(kTurnUs);
      break;
  }
  if (over() || !dead()) return;
  bury_process();
  open(crash_salt_);
}

void World::end() {
  model_.set_step(static_cast<uint32_t>(history_.ops.size()));
  calm_ = true;
  end_outage();
  process_->memory.set_faults({});
  process_->crash.disarm();
  let_go();
  for (uint64_t owner = 0; owner < kOwners; ++owner) release_all(owner);
  for (Key& key : model_.keys()) key.holds.clear();
  // Long enough for every back-off of the store, after what is still to be given up by the device.
  const uint32_t turns = 300 + (on(FaultKind::LostCompletion) ? 2 * io::kLostPolls : 0);
  for (uint32_t turn = 0; turn < turns && !over(); ++turn) pump(10'000);
  settle();
  if (over()) return;
  check_staged(true);
  const bool room = process_->store->gauges().segments_bad == 0;
  for (const auto& write : process_->writes) {
    if (room && write->committed && write->answers == 0) model_.fail(Rule::Stuck, "a write is not answered");
  }
  for (const auto& stage : process_->stages) {
    if (stage->answers == 0) model_.fail(Rule::Stuck, "a stage is not answered");
  }
  for (const auto& remove : process_->removes) {
    if (room && remove->answers == 0) model_.fail(Rule::Stuck, "a remove is not answered");
  }
  for (const auto& expire : process_->expires) {
    if (room && expire->answers == 0) model_.fail(Rule::Stuck, "a change of an expiry is not answered");
  }
  for (int start = 0; start < 2 && !over(); ++start) {
    close(0);
    if (over()) return;
    open(0);
    if (!over()) settle();
    for (uint32_t key = 0; key < model_.keys().size() && !over(); key += 2) {
      get({.kind = OpKind::Get, .key = key, .count = 2});
      settle();
    }
  }
  if (!over()) close(0);
}

Outcome World::outcome() {
  if (process_ != nullptr && !over()) bury_process();
  return {model_.violation(), trace_, tally_};
}

// ---- Writes ----------------------------------------------------------------------------------------------------------------

void World::put(const Op& op, bool commit_now) {
  Key& key = model_.keys()[op.key];
  if (!usable(key)) return;
  auto owned = std::make_unique<WriteInFlight>();
  WriteInFlight& flight = *owned;
  flight.world = this;
  flight.key = &key;
  flight.life = key.life;
  flight.sliding = op.ttl_s == 0 && sliding_ttl_s(key.name_space) != 0;
  flight.ttl_s = flight.sliding ? sliding_ttl_s(key.name_space) : op.ttl_s;
  flight.version = make_version(key.group, op.coded, op.salt, places_.geometry.block_bytes_max);
  store::Write& write = flight.write;
  write.name = {key.scope, key.component(), as_bytes(key.name)};
  write.key = key.index_key;
  write.block_bytes = flight.version.raw_bytes;
  write.coded_parts = flight.version.coded;
  write.ttl_s = op.ttl_s;
  write.persist = op.flag;
  write.hint = op.hint;
  write.owner = &flight;
  write.done = [](store::Write& done) {
    auto& self = *static_cast<WriteInFlight*>(done.owner);
    self.world->write_answered(self);
  };
  const store::Found before = process_->store->find(key.sought());
  model_.looked(key, before, evidence(key));
  const Status status = process_->store->begin_write(write);
  note(static_cast<uint64_t>(status.code()) << 32 | static_cast<uint32_t>(status.detail()));
  ++tally_.puts;
  if (status == Code::Present) {
    if (!before.present) model_.fail(Rule::WrongAnswer, "a put says present, find() says no");
    key.was_used = true;
    if (write.persist) model_.persisted_whatever_is_there(key);
    model_.used(key);
    return;
  }
  if (status == Code::Throttled || (status == Code::IoError && failures_possible() && !over_long_ago())) return;
  if (!status.ok()) return model_.fail(Rule::WrongAnswer, "begin_write: " + text_of(status));
  std::vector<std::byte> content(flight.version.stored_bytes);
  flight.version.fill(content);
  size_t at = 0;
  write.slot->for_range(0, content.size(), [&](Bytes piece) {
    std::memcpy(piece.data(), content.data() + at, piece.size());
    at += piece.size();
  });
  for (store::PartInfo& part : write.parts) {
    part.stored_crc = crc32c(ConstBytes(content).subspan(part.offset, part.stored_bytes));
  }
  ++key.filling;
  process_->writes.push_back(std::move(owned));
  if (commit_now) commit(flight);
}

WriteInFlight* World::oldest_begun() noexcept {
  for (const auto& write : process_->writes) {
    if (!write->committed) return write.get();
  }
  return nullptr;
}

void World::commit(WriteInFlight& flight) {
  flight.committed = true;
  flight.committed_at = turns_;
  flight.committed_us = clock_.us;
  Key& key = *flight.key;
  if (flight.life == key.life) {
    --key.filling;
    model_.looked(key, process_->store->find(key.sought()), evidence(key));
    key.hint = flight.write.hint;
    key.was_used = false;
    flight.put = model_.committed(key, flight.version, flight.ttl_s, flight.sliding);
  }
  process_->store->commit_write(flight.write);
}

void World::abort(WriteInFlight& flight) {
  if (flight.life == flight.key->life) --flight.key->filling;
  process_->store->abort_write(flight.write);
  std::erase_if(process_->writes, [&](const auto& write) { return write.get() == &flight; });
}

void World::write_answered(WriteInFlight& flight) {
  if (dead()) return;
  const Status status = flight.write.status;
  note(static_cast<uint64_t>(status.code()) << 8 | 1);
  if (!flight.committed || flight.answers++ > 0) return model_.fail(Rule::CompletedTwice, "a write");
  if (status == Code::Throttled) process_->gave_up = true;
  if (status == Code::IoError && !failures_possible()) return model_.fail(Rule::WrongAnswer, "a write: " + text_of(status));
  if (!status.ok() && !(status == Code::IoError) && !(status == Code::Throttled)) {
    return model_.fail(Rule::WrongAnswer, "a write: " + text_of(status));
  }
  if (!status.ok() || !flight.write.persist || flight.life != flight.key->life) return;
  ++tally_.persists;
  model_.persisted(*flight.key, flight.put);
}

// ---- Removes, expiries and holds -------------------------------------------------------------------------------------------

void World::remove(const Op& op) {
  Key& key = model_.keys()[op.key];
  if (!usable(key)) return;
  RemoveInFlight& flight = *process_->removes.emplace_back(std::make_unique<RemoveInFlight>());
  flight.world = this;
  flight.key = &key;
  flight.life = key.life;
  flight.remove.key = key.index_key;
  flight.remove.owner = &flight;
  flight.remove.done = [](store::Remove& done) {
    auto& self = *static_cast<RemoveInFlight*>(done.owner);
    self.world->remove_answered(self);
  };
  flight.puts_then = model_.remove_begun(key);
  ++process_->tombstones;
  ++tally_.removes;
  process_->store->remove(flight.remove);
  model_.looked(key, process_->store->find(key.sought()), evidence(key));
}

void World::remove_answered(RemoveInFlight& flight) {
  if (dead()) return;
  const Status status = flight.remove.status;
  note(static_cast<uint64_t>(status.code()) << 8 | 3);
  if (flight.answers++ > 0) return model_.fail(Rule::CompletedTwice, "a remove");
  if (status.ok() || status == Code::NotFound) {
    if (flight.life == flight.key->life) model_.remove_answered(*flight.key, flight.puts_then);
  } else if (!(status == Code::IoError) || !failures_possible()) {
    model_.fail(Rule::WrongAnswer, "a remove: " + text_of(status));
  }
}

void World::expire(const Op& op) {
  Key& key = model_.keys()[op.key];
  if (!usable(key)) return;
  const store::Found before = process_->store->find(key.sought());
  model_.looked(key, before, evidence(key));
  ExpireInFlight& flight = *process_->expires.emplace_back(std::make_unique<ExpireInFlight>());
  flight.world = this;
  flight.key = &key;
  flight.life = key.life;
  if (recovering(key)) {
    flight.expected.found = before.present;  // and will be refused
  } else {
    flight.expected = model_.expiry_begun(key, before.present, op.amount);
  }
  flight.change.key = key.index_key;
  flight.change.for_s = op.amount;
  flight.change.owner = &flight;
  flight.change.done = [](store::Change& done) {
    auto& self = *static_cast<ExpireInFlight*>(done.owner);
    self.world->expire_answered(self);
  };
  process_->store->expire(flight.change);
}

void World::expire_answered(ExpireInFlight& flight) {
  if (dead()) return;
  const Status status = flight.change.status;
  note(static_cast<uint64_t>(status.code()) << 8 | 4);
  if (flight.answers++ > 0) return model_.fail(Rule::CompletedTwice, "a change of an expiry");
  if (status.ok()) {
    ++tally_.expiries;
    if (flight.life == flight.key->life) model_.expiry_answered(*flight.key, flight.expected);
    return;
  }
  if (status == Code::NotFound && !flight.expected.found) return;
  const bool throttled =
      status == Status(Code::Throttled, store::kThrottledLog) || status == Status(Code::Throttled, store::kThrottledRecovery);
  if (!throttled && !(status == Code::IoError && failures_possible())) {
    model_.fail(Rule::WrongAnswer, "a change of an expiry: " + text_of(status));
  }
}

void World::hold(const Op& op) {
  Key& key = model_.keys()[op.key];
  if (!usable(key)) return;
  const uint64_t until_us = clock_.us + op.amount * 1000;
  const bool present = process_->store->find(key.index_key).present;
  const Status status = process_->store->hold(key.index_key, op.count, until_us);
  note(static_cast<uint64_t>(status.code()));
  if (status.ok() != present && !(status == Code::Throttled)) {
    return model_.fail(Rule::WrongAnswer, "hold: " + text_of(status) + ", find() says otherwise");
  }
  if (status.ok()) key.holds[op.count] = std::min(until_us, clock_.us + history_.profile.lease_ms_max * 1000);
}

void World::release(const Op& op) {
  if (op.kind == OpKind::ReleaseAll) {
    release_all(op.count);
    for (Key& key : model_.keys()) key.holds.erase(op.count);
    return;
  }
  Key& key = model_.keys()[op.key];
  if (key.scope == 0) return;
  process_->store->release(release_of(op.count, key.index_key));
  key.holds.erase(op.count);
}

void World::release_all(uint64_t owner) { process_->store->release_all(release_of(owner, {})); }

store::Change& World::release_of(uint64_t owner, const store::IndexKey& key) {
  store::Change& change = process_->releases.emplace_back();
  change.key = key;
  change.holder = owner;
  change.done = [](store::Change&) {};
  return change;
}

// ---- Time ------------------------------------------------------------------------------------------------------------------

// The rules are about what the store says; this is about what it has. A walk of everything costs as much as some turns, and
// most turns change little: a sum that is wrong stays so.
void World::check_whole_state() const {
  if (turns_ % kTurnsBetweenChecks != 0) return;
  for (uint32_t number = 0; number < history_.profile.shards; ++number) store::check_invariants(shard(number));
}

void World::pump(uint64_t us) {
  process_->engine.poll();
  process_->store->turn();
  check_whole_state();
  process_->engine.flush_submissions();
  clock_.us += us;
  model_.time().sample(clock_);
  ++turns_;
  if (dead()) return;
  if (process_->engine.in_flight() == 0) process_->unread_before.clear();
  check_outage();
  check_reports();
  if (history_.profile.hints_decide) check_hints();
  if (process_->recovering && !process_->store->recovering()) {
    process_->recovering = false;
    process_->recovered_at = turns_;
    process_->hits_recovered = placements_.hits();
    if (!over()) look_at_everything();
    if (dead() || over()) return;
  }
  for (const auto& read : process_->reads) {
    if (read->pinned() && read->turns_pinned-- == 0) unpin(*read);
  }
  forget_answered();
}

void World::forget_answered() {
  std::erase_if(process_->writes, [](const auto& write) { return write->answers > 0; });
  std::erase_if(process_->reads, [](const auto& read) { return read->answers > 0 && !read->pinned(); });
  std::erase_if(process_->strangers, [](const auto& stranger) { return stranger->answers > 0; });
  std::erase_if(process_->stages, [](const auto& stage) { return stage->answers > 0; });
  std::erase_if(process_->removes, [](const auto& remove) { return remove->answers > 0; });
  std::erase_if(process_->expires, [](const auto& expire) { return expire->answers > 0; });
}

void World::settle() {
  uint32_t turns = 0;
  for (uint32_t quiet = 0; quiet < 4 && !dead(); quiet = at_rest() ? quiet + 1 : 0) {
    if (over()) return;
    if (++turns > kTurnsToRest) return model_.fail(Rule::Stuck, "the device does not come to rest");
    pump(kTurnUs);
  }
  if (dead() || over()) return;
  look_at_everything();
}

void World::look_at_everything() {
  for (Key& key : model_.keys()) {
    if (!usable(key)) continue;
    const store::Found found = process_->store->find(key.sought());
    note(found.present ? 1 + uint64_t{found.block_bytes} : 0);
    model_.looked(key, found, evidence(key));
  }
  for (const store::IndexKey& ghost : ghosts_) {
    if (process_->store->find(ghost).present) model_.fail(Rule::DeadScope, "a block of a deleted namespace is found");
  }
  check_staged(false);
  if (!over() && !process_->store->recovering()) check_accounting();
}

// Only what is at rest can be counted: blocks that wait for a frame are in no gauge yet.
void World::check_accounting() {
  const store::Gauges gauges = process_->store->gauges();
  const uint64_t segments = gauges.segments_free + gauges.segments_open + gauges.segments_sealed + gauges.segments_bad;
  if (segments != places_.geometry.segments) {
    return model_.fail(Rule::Accounting, std::to_string(segments) + " segments in all states");
  }
  check_retired();
  if (process_->engine.in_flight() > 0) return;
  if (const uint64_t counted = counted_bytes(); counted != process_->device_bytes) {
    return model_.fail(Rule::BytesAddUp, "the device got " + std::to_string(process_->device_bytes) + " bytes, " +
                                             std::to_string(counted) + " are counted");
  }
  if (gauges.memory_pinned_bytes > 0) return;
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  bool exact = !process_->scopes_died;
  bool known = true;
  for (const Key& key : model_.keys()) {
    exact = exact && model_.exact(key) && (key.scope == 0 || usable(key));
    if (!usable(key) || !process_->store->find(key.index_key).present) continue;
    ++blocks;
    known = known && key.view == Key::View::Known;
    if (known) bytes += key.puts[key.current].version.extent_bytes();
  }
  if (exact ? gauges.blocks != blocks : gauges.blocks < blocks) {
    return model_.fail(Rule::Accounting,
                       "the gauge says " + std::to_string(gauges.blocks) + " blocks, find() finds " + std::to_string(blocks));
  }
  if (exact && known && gauges.bytes_live != bytes) {
    return model_.fail(Rule::Accounting, "the gauge says " + std::to_string(gauges.bytes_live) + " bytes, the blocks have " +
                                             std::to_string(bytes));
  }
  for (uint32_t number = 0; number < spaces_.size() && !over(); ++number) {
    if (spaces_[number].there == Known::Yes && !spaces_[number].deleting) check_list(number);
  }
}

void World::listed(uint32_t name_space, const store::Listed& block, std::set<uint32_t>* numbers) {
  const uint32_t number = block.component.cell();
  const bool ours = number < model_.keys().size() && model_.keys()[number].name_space == name_space &&
                    std::ranges::equal(block.engine_key, as_bytes(model_.keys()[number].name));
  if (!ours) return model_.fail(Rule::Accounting, "list() names a block that nobody put");
  if (!numbers->insert(number).second) model_.fail(Rule::Accounting, "list() names a block twice");
}

void World::check_list(uint32_t name_space) {
  struct Seen {
    World* world;
    uint32_t name_space;
    std::set<uint32_t> numbers;
    bool done = false;
  } seen{this, name_space, {}};
  listing_ = {};
  listing_.name_space = spaces_[name_space].name;
  listing_.limit = 7;
  listing_.owner = &seen;
  listing_.visit = [](store::Listing& listing, const store::Listed& block) {
    auto& to = *static_cast<Seen*>(listing.owner);
    to.world->listed(to.name_space, block, &to.numbers);
  };
  listing_.done = [](store::Listing& listing) { static_cast<Seen*>(listing.owner)->done = true; };
  const uint64_t hits_before = placements_.hits() + unread_;
  const uint64_t evicted_before = process_->store->counters().blocks_evicted;
  do {
    seen.done = false;
    process_->store->list(listing_);
    for (uint32_t turns = 0; !seen.done; ++turns) {
      if (turns > kTurnsToRest) return model_.fail(Rule::Stuck, "a list never ends");
      pump(0);
      if (dead() || over()) return;
    }
    listing_.cursor = listing_.next;
  } while (listing_.cursor != 0);
  // What was read wrongly this once is not listed this once, nor as long as it is kept for the next list.
  if (placements_.hits() + unread_ != hits_before) wrong_list_until_us_ = clock_.us + store::Lister::kKeepRollUs;
  if (clock_.us <= wrong_list_until_us_) return;
  for (const Key& key : model_.keys()) {
    if (key.name_space != name_space || !usable(key)) continue;
    const bool found = process_->store->find(key.index_key).present;
    const bool in_list = seen.numbers.contains(key.number);
    // A name that does not fit its entry may be lost with the page that it stands in, by a torn or a failed write, too; the
    // block is not.
    // A start that reads a footer wrongly goes by the frames, which do not say what the footer calls void: an older copy of a
    // block that gave way since, whose bytes are its name's all the same. A list goes by the footer, read rightly.
    const bool voided = key.puts.size() > 1 && process_->hits_recovered != process_->hits_before_open;
    const bool long_name = key.name.size() > store::format::kEngineKeyInline;
    const bool excused = found ? (long_name && history_.profile.faults != 0) || voided || placements_.excuses(key.index_key)
                               : process_->store->counters().blocks_evicted != evicted_before;  // after it was listed
    if (found != in_list && !excused) {
      return model_.fail(Rule::Accounting, "key " + std::to_string(key.number) + " is " + (found ? "found" : "not found") +
                                               ", and " + (in_list ? "listed" : "not listed"));
    }
  }
}

// ---- Faults at a chosen place ----------------------------------------------------------------------------------------------

void World::rot(const Op& op) {
  Prng prng(op.salt);
  if (op.count > 1) {  // a segment that forgets
    for (const Range& block : placements_.blocks_of_one_segment(prng, op.count)) {
      placements_.hit({process_->memory.rot(0, block.offset, block.bytes) / 8, 1});
    }
    return;
  }
  const std::optional<Range> target = placements_.target(prng);
  if (!target.has_value()) return;
  const uint64_t bit = process_->memory.rot(0, target->offset, target->bytes);
  placements_.hit({bit / 8, 1});
}

void World::fail_next(const Op& op) {
  Prng prng(op.salt);
  io::MemoryEngine::Rule rule;
  rule.times = 1;
  const bool no_space = on(FaultKind::NoSpace) && (prng.chance(0.5) || !on(FaultKind::WriteError));
  if (on(FaultKind::FlushError) && (prng.chance(0.3) || (!no_space && !on(FaultKind::WriteError)))) {
    rule.op = io::Op::Flush;
    return process_->memory.inject(rule);
  }
  rule.op = io::Op::Write;
  rule.error = no_space ? -ENOSPC : -EIO;
  const auto copy = static_cast<uint32_t>(prng.below(2));
  switch (prng.below(3)) {
    case 0:
      rule.offset = places_.header(copy);
      rule.bytes = store::format::kHeaderReserveBytes;
      break;
    case 1:
      rule.offset = places_.log(copy, 0, 0);
      rule.bytes = places_.logs_bytes();
      break;
    default: rule.offset = places_.segment(0); rule.bytes = places_.segment(places_.geometry.segments) - rule.offset;
  }
  process_->memory.inject(rule);
}

}  // namespace halfstep::sim
