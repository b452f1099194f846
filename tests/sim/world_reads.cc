// world_reads.cc — gets of a run: requests of one window or of two, and what is read in them.
#include <algorithm>

#include "base/crc.h"
#include "sim/world.h"
#include "store/format/touch.h"

namespace halfstep::sim {
namespace {

uint32_t crc_of(const store::Resident& resident, size_t parts = SIZE_MAX) {
  uint32_t crc = 0;
  for (const store::PartInfo& part : resident.parts().first(std::min(parts, resident.parts().size()))) {
    if (!part.is_there()) continue;
    resident.slot().for_range(part.offset, part.stored_bytes, [&](Bytes piece) { crc = crc32c(piece, crc); });
  }
  return crc;
}

// One or two of them, of one block in three.
store::PartSpan parts_of(uint64_t salt, uint32_t key) {
  if ((salt + key) % 3 != 0) return {};
  return {static_cast<uint32_t>((salt >> 2) % 8), 1 + static_cast<uint32_t>((salt >> 5) % 2)};
}

// Of what is handed out part by part.
constexpr uint32_t kPieceBytes = 16384;

}  // namespace

// The salt says how long its blocks are pinned, whether what it asks for comes in one window or in two, and of which blocks
// only some parts are wanted.
void World::get(const Op& op) {
  std::vector<Key>& keys = model_.keys();
  std::vector<Key*> asked;
  for (uint32_t i = 0; i < std::min<size_t>(op.count, keys.size()); ++i) {
    Key& key = keys[(op.key + i) % keys.size()];
    // A request is of one shard.
    if (usable(key) && (asked.empty() || same_shard(key.index_key, asked.front()->index_key))) asked.push_back(&key);
  }
  if (asked.empty()) return;
  const bool in_two = asked.size() > 1 && (op.salt >> 8) % 2 == 0;
  const std::span<Key*> all(asked);
  store::Moment moment;
  const uint64_t began_s = model_.time().low_s();
  std::vector<bool> used;
  if (!get_window(in_two ? all.first(1) : all, op.salt, &moment, began_s, &used)) return;
  if (in_two) {
    std::vector<std::optional<store::ExplainedBlock>> before;
    for (const Key* key : asked) before.push_back(block_on_flash(*key));
    // Time for what has been put to be written: the clock of the log goes on.
    for (uint64_t turns = (op.salt >> 16) % 16; turns > 0 && !dead() && !over(); --turns) pump(100);
    if (dead() || over() || !std::ranges::all_of(all, [this](const Key* key) { return usable(*key); })) return;
    if (!get_window(all.subspan(1), op.salt, &moment, began_s, &used)) return;
    check_stamps(all, before, used);
  }
  if (op.count % 4 == 0) get_as_stranger(keys[op.key % keys.size()], op.key);
}

// False: it was refused, or nothing may go on.
bool World::get_window(std::span<Key* const> asked, uint64_t salt, store::Moment* moment, uint64_t began_s,
                       std::vector<bool>* used) {
  std::vector<std::unique_ptr<ReadInFlight>> flights;
  std::vector<store::Read*> window;
  for (Key* key : asked) {
    ReadInFlight& flight = *flights.emplace_back(std::make_unique<ReadInFlight>());
    flight.world = this;
    flight.key = key;
    flight.expected = model_.expect(*key, process_->store->find(key->index_key).present);
    flight.expected.recovering = recovering(*key);
    flight.unread_then = unread_before(*key);
    flight.turns_pinned = static_cast<uint32_t>(salt % 8);
    flight.asked = parts_of(salt >> 24, key->number);
    flight.read.parts = flight.asked;
    flight.read.key = key->index_key;
    flight.read.component = key->component();
    flight.read.moment = moment;
    if ((salt >> 12) % 2 == 0) {
      flight.read.piece_bytes = kPieceBytes;
      flight.read.landed = [](store::Read& landed) {
        auto& self = *static_cast<ReadInFlight*>(landed.owner);
        self.world->parts_landed(self);
      };
    }
    flight.read.owner = &flight;
    flight.read.complete = [](store::Read& done) {
      auto& self = *static_cast<ReadInFlight*>(done.owner);
      self.world->read_answered(self);
    };
    window.push_back(&flight.read);
  }
  const Status status = process_->store->begin_reads(window);
  note(static_cast<uint64_t>(status.code()));
  if (!status.ok()) {
    if (!(status == Code::Throttled) && !(status == Code::TooLarge)) {
      model_.fail(Rule::WrongAnswer, "begin_reads: " + text_of(status));
    }
    return false;
  }
  for (auto& flight : flights) {
    flight->read.moment = nullptr;
    used->push_back(flight->expected.found && !flight->expected.filling);
    if (used->back()) model_.used(*flight->key, model_.time().low_s() - began_s);
    process_->reads.push_back(std::move(flight));
  }
  return !over();
}

uint64_t World::unread_before(const Key& key) { return process_->unread_before.emplace(&key, unread_).first->second; }

std::optional<store::ExplainedBlock> World::block_on_flash(const Key& key) const {
  for (const store::ExplainedBlock& block : explain(key).blocks) {
    if (block.there && block.on_flash && block.scope == key.scope) return block;
  }
  return std::nullopt;
}

// Of the blocks that one request used, and that were on flash, at the same place, all the time: none is younger than one before
// it.
void World::check_stamps(std::span<Key* const> asked, std::span<const std::optional<store::ExplainedBlock>> before,
                         const std::vector<bool>& used) {
  double youngest = 0;
  for (size_t i = 0; i < asked.size(); ++i) {
    const std::optional<store::ExplainedBlock> now = block_on_flash(*asked[i]);
    const bool stayed = used[i] && now.has_value() && before[i].has_value() && now->segment == before[i]->segment &&
                        now->page == before[i]->page && now->touch_class != store::kUntouched;
    if (!stayed) continue;
    if (now->touch_age_capacities < youngest) {
      return model_.fail(Rule::AncestorOlder, "key " + std::to_string(asked[i]->number) + ", number " + std::to_string(i) +
                                                  " of its request, was used " +
                                                  std::to_string(youngest - now->touch_age_capacities) +
                                                  " capacities later than one before it");
    }
    youngest = now->touch_age_capacities;
  }
}

void World::get_as_stranger(const Key& key, uint32_t salt) {
  // With a fault beside it such a read is a media error to the store, and the block is lost for nothing.
  if (history_.profile.faults != 0 || !usable(key)) return;
  StrangerInFlight& flight = *process_->strangers.emplace_back(std::make_unique<StrangerInFlight>());
  flight.world = this;
  flight.read.key = {key.index_key.low, key.index_key.high ^ (1U + salt)};
  flight.read.component = key.component();
  flight.read.parts = parts_of(salt, key.number);
  flight.read.owner = &flight;
  flight.read.complete = [](store::Read& done) {
    auto& self = *static_cast<StrangerInFlight*>(done.owner);
    ++self.answers;
    if (self.world->dead() || !done.status.ok()) return;
    self.world->model_.fail(Rule::WrongBytes, "a get by another key is answered");
    self.world->process_->store->unpin(done.resident);
  };
  store::Read* window[] = {&flight.read};
  if (!process_->store->begin_reads(window).ok()) process_->strangers.pop_back();
}

void World::parts_landed(ReadInFlight& flight) {
  if (dead()) return;
  if (flight.answers > 0) return model_.fail(Rule::CompletedTwice, "parts of a read that has ended");
  ++tally_.parts_landed;
  model_.parts_landed(*flight.key, flight.expected, *flight.read.early, flight.read.parts_landed);
  flight.early_crc = crc_of(*flight.read.early, flight.read.parts_landed);
  note(flight.early_crc);
}

void World::give_back_early(ReadInFlight& flight) {
  if (flight.read.early == nullptr) return;
  if (crc_of(*flight.read.early, flight.read.parts_landed) != flight.early_crc) {
    model_.fail(Rule::PinnedChanged, "parts of key " + std::to_string(flight.key->number) + " that were handed out first");
  }
  process_->store->unpin(flight.read.early);
  flight.read.early = nullptr;
}

void World::read_answered(ReadInFlight& flight) {
  if (dead()) {
    flight.read.resident = flight.read.early = nullptr;  // nobody will give them back
    return;
  }
  const Status status = flight.read.status;
  note(static_cast<uint64_t>(status.code()) << 8 | 2);
  if (flight.answers++ > 0) return model_.fail(Rule::CompletedTwice, "a read");
  Key& key = *flight.key;
  if (!status.ok()) {
    ++tally_.misses;
    give_back_early(flight);
    if (unread_ != flight.unread_then && missed_for_outage(flight)) return;
    return model_.read_missed(key, flight.expected, status);
  }
  ++tally_.hits;
  const auto parts = flight.read.resident->parts();
  tally_.part_hits += std::ranges::any_of(parts, [](const store::PartInfo& part) { return !part.is_there(); }) ? 1 : 0;
  model_.read_answered(key, flight.expected, *flight.read.resident, flight.asked);
  flight.pinned_crc = crc_of(*flight.read.resident);
  note(flight.pinned_crc);
}

// What an outage ended is a miss, and the block is there. But the store may ask for the bytes once more, and who does that
// finds nothing of a block that has left meanwhile: whether it was allowed to leave is another rule.
bool World::missed_for_outage(const ReadInFlight& flight) {
  const Status status = flight.read.status;
  if (status == Code::IoError) return true;
  Key& key = *flight.key;
  if (!(status == Code::NotFound) || flight.expected.life != key.life) return false;
  if (!usable(key)) return true;
  const store::Found now = process_->store->find(key.sought());
  model_.looked(key, now, evidence(key));
  return !now.present || flight.expected.changes != key.changes;
}

void World::unpin(ReadInFlight& flight) {
  if (crc_of(*flight.read.resident) != flight.pinned_crc) {
    model_.fail(Rule::PinnedChanged, "key " + std::to_string(flight.key->number));
  }
  process_->store->unpin(flight.read.resident);
  flight.read.resident = nullptr;
  give_back_early(flight);
}

}  // namespace halfstep::sim
