#include "sim/model.h"

#include <algorithm>

#include "sim/sharded_store.h"
#include "store/catalog/expiry_marks.h"
#include "store/format/store_time.h"

namespace halfstep::sim {

namespace {

constexpr uint64_t kDayS = 86'400;
constexpr uint64_t kRoundingS = 2;                  // the store rounds for itself
constexpr uint64_t kBelievedUs = 4'200'000'000ULL;  // an hour, and ten minutes in which it has looked

}  // namespace

void StoreTime::follow(uint64_t wall_s, uint64_t now_us) noexcept {
  const uint64_t expected_s = sure_s_ + (now_us - sure_us_) / 1'000'000;
  const uint64_t shift_s = wall_s - std::min(wall_s, expected_s);
  const bool jumped = sure_s_ != 0 && shift_s + kRoundingS > kDayS;
  if (jumped) {
    const uint64_t change_s = shift_s > doubted_shift_s_ ? shift_s - doubted_shift_s_ : doubted_shift_s_ - shift_s;
    if (!doubted_ || change_s + kRoundingS > kDayS) {
      doubted_shift_s_ = shift_s;
      doubted_since_us_ = now_us;
    }
  }
  doubted_ = jumped;
  if (jumped && now_us - doubted_since_us_ < kBelievedUs) {
    low_s_ = expected_s - kRoundingS;
    return;
  }
  doubted_ = false;
  low_s_ = sure_s_ = wall_s;
  sure_us_ = now_us;
}

void StoreTime::sample(const Clock& clock) noexcept {
  const uint64_t wall_s = clock.wall_s();
  first_s_ = std::min(first_s_, wall_s);
  const uint64_t now_us = clock.now_us();
  // One that no end can express is never taken, and what of the store's time is on media nobody knows here.
  if (store::believable_s(wall_s) == 0) {
    low_s_ = first_s_;
  } else {
    follow(wall_s, now_us);
  }
  may_be(clock);
}

void StoreTime::may_be(const Clock& clock) noexcept {
  const uint64_t wall_s = clock.wall_s();
  const uint64_t now_us = clock.now_us();
  if (wall_s >= high_s_) {
    high_s_ = wall_s;
    base_us_ = now_us;
    return;
  }
  const uint64_t passed_s = (now_us - base_us_) / 1'000'000;
  high_s_ += passed_s;
  base_us_ += passed_s * 1'000'000;
}

Model::Model(const History& history, const Placements& placements, const Clock& clock)
    : placements_(placements), clock_(clock), shards_(history.profile.shards), keys_(history.profile.keys) {
  const Profile& profile = history.profile;
  std::vector<uint32_t> groups;
  for (uint32_t group = 0; group < kGroups; ++group) {
    if ((profile.groups & (1U << group)) != 0) groups.push_back(group);
  }
  Prng prng(history.seed ^ 0x4E414D45);
  for (uint32_t number = 0; number < profile.keys; ++number) {
    Key& key = keys_[number];
    key.number = number;
    key.name_space = number % profile.namespaces;
    key.layout = static_cast<uint32_t>(prng.below(profile.layouts));
    key.group = groups[prng.below(groups.size())];
    // The same name in every namespace and layout, short and long ones.
    key.name = "name " + std::to_string(number / profile.namespaces);
    if (number / profile.namespaces % 3 == 0) key.name += std::string(30 + number % 200, 'x');
  }
  time_.sample(clock);
}

void Model::fail(Rule rule, std::string what) {
  if (!violation_.has_value()) violation_ = Violation{rule, std::move(what), step_};
}

std::string Model::text_of(const Key& key) const {
  return "key " + std::to_string(key.number) + " (namespace " + std::to_string(key.name_space) + ", scope " +
         std::to_string(key.scope) + ", group " + std::to_string(key.group) + ", " + std::to_string(key.puts.size()) + " puts)";
}

// ---- Names -----------------------------------------------------------------------------------------------------------------

void Model::set_scope(Key& key, uint32_t scope, const store::IndexKey& index_key) {
  if (key.scope == scope) return;
  key.scope = scope;
  key.index_key = index_key;
  ++key.life;
  key.puts.clear();
  key.dead_below = 0;
  key.view = Key::View::None;
  key.must = key.seen = key.clean_must = false;
  key.stale_below = 0;
  key.filling = 0;
  key.holds.clear();
}

// ---- Blocks ----------------------------------------------------------------------------------------------------------------

size_t Model::committed(Key& key, Version version, uint32_t ttl_s, bool sliding) {
  Put& put = key.puts.emplace_back();
  put.version = std::move(version);
  if (ttl_s != 0) {
    put.expiry_low_s = time_.low_s() + ttl_s;
    put.expiry_high_s = time_.high_s() + ttl_s;
    put.expiry_kept_s = put.expiry_low_s;
    put.sliding_ttl_s = sliding ? ttl_s : 0;
    put.slides_surely = sliding;
  }
  key.view = Key::View::Known;
  key.current = key.puts.size() - 1;
  ++key.changes;
  return key.current;
}

void Model::persisted(Key& key, size_t put) {
  if (key.puts[put].removed || key.view == Key::View::None) return;
  key.must_from = key.must ? std::max(key.must_from, put) : put;
  key.must = true;
  key.clean_must = false;
}

void Model::persisted_whatever_is_there(Key& key) {
  persisted(key, key.view == Key::View::Known ? key.current : key.dead_below);
}

size_t Model::remove_begun(Key& key) {
  for (Put& put : key.puts) put.removed = true;
  key.view = Key::View::None;
  key.must = false;
  ++key.changes;
  return key.puts.size();
}

void Model::remove_answered(Key& key, size_t puts_then) { key.dead_below = std::max(key.dead_below, puts_then); }

void Model::buried(Key& key) { remove_answered(key, remove_begun(key)); }

// An end counts from when its block was written, with steps of a 128th (store/catalog/expiry_marks.h): it may come so much
// early.
uint64_t Model::low_end_s(uint64_t for_s) const noexcept {
  const uint64_t early_s = (time_.high_s() + for_s - time_.first_s() + store::ExpiryMarks::kStepS) / 128 + 1;
  return std::max(time_.low_s() + for_s, early_s + 1) - early_s;
}

void Model::used(Key& key, uint64_t seconds_ago) {
  const Expectation there = expect(key, true);
  for (size_t at = there.low; at < there.high; ++at) {
    Put& put = key.puts[at];
    if (put.sliding_ttl_s == 0) continue;
    if (put.expiry_high_s != 0) put.expiry_high_s = std::max(put.expiry_high_s, time_.high_s() + put.sliding_ttl_s);
    const bool surely = put.slides_surely && put.expiry_low_s != 0 && key.view == Key::View::Known;
    if (surely) put.expiry_low_s = std::max(put.expiry_low_s + seconds_ago, low_end_s(put.sliding_ttl_s)) - seconds_ago;
  }
}

// A change applies to whatever was born before it: to the current put's forerunners as well, if a restart finds them.
ExpiryChange Model::expiry_begun(Key& key, bool found, uint64_t for_s) {
  ExpiryChange change;
  change.found = found;
  if (!found) return change;
  change.low_s = for_s == 0 ? 0 : low_end_s(for_s);
  change.high_s = for_s == 0 ? 0 : time_.high_s() + for_s;
  for (size_t at = key.dead_below; at < key.puts.size(); ++at) {
    Put& put = key.puts[at];
    ++put.expiry_changes;
    put.expiry_low_s = std::min(put.expiry_low_s - 1, change.low_s - 1) + 1;  // 0 is the latest
    put.expiry_high_s = std::max(put.expiry_high_s - 1, change.high_s - 1) + 1;
    put.expiry_kept_s = std::min(put.expiry_kept_s - 1, change.low_s - 1) + 1;
    put.slides_surely = false;
  }
  change.known = key.view == Key::View::Known;
  change.put = key.current;
  change.number = change.known ? key.puts[key.current].expiry_changes : 0;
  return change;
}

void Model::expiry_answered(Key& key, const ExpiryChange& change) {
  Put& put = key.puts[change.put];
  if (!change.known || put.expiry_changes != change.number) return;
  put.expiry_low_s = change.low_s;
  put.expiry_high_s = change.high_s;
  put.expiry_kept_s = change.low_s;
  put.sliding_ttl_s = 0;
}

Expectation Model::expect(const Key& key, bool found) const noexcept {
  Expectation expected;
  expected.found = found;
  expected.filling = key.filling > 0;
  expected.life = key.life;
  expected.changes = key.changes;
  expected.wall_s = time_.low_s();
  if (key.view == Key::View::Known) {
    expected.low = key.current;
    expected.high = key.current + 1;
  } else if (key.view == Key::View::Unsure) {
    expected.low = key.dead_below;
    expected.high = key.puts.size();
  }
  expected.oldest = oldest_put(key);
  return expected;
}

void Model::parts_landed(const Key& key, const Expectation& expected, const store::Resident& resident, uint32_t parts) {
  if (expected.life != key.life) return;
  for (size_t at = expected.high; at > expected.low; --at) {
    if (same_first(resident, key.puts[at - 1].version, parts, scratch_)) return;
  }
  fail(Rule::WrongBytes, text_of(key) + ": the first " + std::to_string(parts) + " parts of no put that could be there");
}

void Model::read_answered(Key& key, const Expectation& expected, const store::Resident& resident, store::PartSpan asked) {
  if (expected.life != key.life) return;  // its namespace was deleted and made again meanwhile
  size_t at = expected.high;
  while (at > expected.low && !same(resident, key.puts[at - 1].version, asked, scratch_)) --at;
  if (at == expected.low) {
    for (size_t put = 0; put < key.dead_below; ++put) {
      if (same(resident, key.puts[put].version, asked, scratch_))
        return fail(Rule::DeletedReturned, text_of(key) + ": its bytes");
    }
    // What failed its check is looked for once more by its name, and may have been put anew since it was asked for.
    for (size_t put = std::max(expected.high, key.dead_below); expected.found && put < key.puts.size(); ++put) {
      if (same(resident, key.puts[put].version, asked, scratch_)) return;
    }
    for (const Key& other : keys_) {
      for (const Put& put : other.puts) {
        if (put.version.stored_bytes >= 8 && same(resident, put.version, asked, scratch_)) {
          return fail(Rule::WrongBytes, text_of(key) + ": bytes of a put of " + text_of(other));
        }
      }
    }
    return fail(Rule::WrongBytes, text_of(key) + ": bytes of no put that could be there");
  }
  const size_t put = at - 1;
  if (!expected.found) return fail(Rule::MissedButRead, text_of(key) + ": put " + std::to_string(put));
  const uint64_t expiry_s = key.puts[put].expiry_high_s;
  if (expiry_s != 0 && expected.wall_s > expiry_s) {
    return fail(Rule::ExpiredReturned, text_of(key) + ": expired at " + std::to_string(expiry_s));
  }
  if (expected.recovering || expected.changes != key.changes) return;
  if (key.must && put < key.must_from && !placements_.excuses(key.index_key) && !may_have_expired(key)) {
    return fail(Rule::PersistLost,
                text_of(key) + ": put " + std::to_string(put) + " instead of the persisted " + std::to_string(key.must_from));
  }
  key.view = Key::View::Known;
  key.current = put;
}

void Model::read_missed(Key& key, const Expectation& expected, Status status) {
  if (expected.life != key.life || !expected.found) return;
  // Parts that fail their check are read again, whole, and by then its end may have come. At once, it is there.
  if (status == Code::NotFound && time_.low_s() > expected.wall_s && may_have_expired(key)) return;
  // Or somebody has removed it. Without a fault of media nothing is read again.
  const bool removed = expected.high > 0 && key.puts[expected.high - 1].removed && expected.changes != key.changes;
  if (status == Code::NotFound && removed && placements_.hits() > 0) return;
  const bool excused = expected.oldest < key.stale_below || placements_.excuses(key.index_key);
  // An uncertain block that is being written again is found, and not read (store.cc, begin_write).
  if (!excused && !expected.filling) {
    return fail(Rule::FoundButMissed,
                text_of(key) + ": " + std::string(code_name(status.code())) + " " + std::to_string(status.detail()));
  }
  if (!excused || expected.filling || expected.changes != key.changes) return;
  // Dropped is what came and is not what was put. What did not come is kept, until it has failed often enough.
  key.view = status == Code::Corrupt || status == Code::NotFound ? Key::View::None : Key::View::Unsure;
  key.must = key.seen = false;
}

size_t Model::oldest_put(const Key& key) noexcept {
  return key.view == Key::View::Known ? key.current : std::max(key.dead_below, key.must ? key.must_from : 0);
}

bool Model::may_have_expired(const Key& key) const noexcept {
  const size_t from = std::min(oldest_put(key), key.puts.size());
  return std::any_of(key.puts.begin() + static_cast<ptrdiff_t>(from), key.puts.end(),
                     [&](const Put& put) { return put.expiry_low_s != 0 && put.expiry_low_s <= time_.high_s() + 1; });
}

bool Model::held(const Key& key) const noexcept {
  return std::any_of(key.holds.begin(), key.holds.end(), [&](const auto& hold) { return hold.second > clock_.now_us(); });
}

void Model::looked(Key& key, const store::Found& found, const Evidence& evidence) {
  if (!found.present) {
    if (evidence.recovering && !key.seen) return;
    const bool was_there = key.view == Key::View::Known || (key.view == Key::View::Unsure && (key.seen || key.must));
    if (was_there) gone(key, evidence);
    key.view = Key::View::None;
    key.must = false;
    return;
  }
  if (key.view == Key::View::None) {
    if (key.puts.size() <= key.dead_below) return fail(Rule::DeletedReturned, text_of(key) + ": found");
    const bool removed = key.puts.back().removed;
    return fail(removed ? Rule::DeletedReturned : Rule::ReturnedUnasked, text_of(key) + ": found, though it was gone");
  }
  const Expectation expected = expect(key, true);
  bool fits = false;
  bool fresh = false;
  for (size_t put = expected.low; put < expected.high; ++put) {
    fits = fits || key.puts[put].version.raw_bytes == found.block_bytes;
    fresh = fresh || key.puts[put].expiry_high_s == 0 || key.puts[put].expiry_high_s >= time_.low_s();
  }
  if (!fits) return fail(Rule::WrongBytes, text_of(key) + ": found with " + std::to_string(found.block_bytes) + " bytes");
  if (!fresh) return fail(Rule::ExpiredReturned, text_of(key) + ": found");
  // The newest was hit, and what hit it is forgotten when its segment is reused: an older one may be what is left for good.
  if (key.view == Key::View::Unsure && key.must && placements_.excuses(key.index_key)) key.must_from = key.dead_below;
  key.seen = true;
}

// It was there, or had to be, and is not.
void Model::gone(Key& key, const Evidence& evidence) {
  if (oldest_put(key) < key.stale_below || may_have_expired(key) || placements_.excuses(key.index_key)) return;
  const store::Counters& counters = evidence.counters;
  const bool persisted = key.must && !key.clean_must;
  const bool failed = !persisted && (evidence.flush_errors > 0 || counters.writes_failed > 0);
  if (held(key) && !evidence.log_crowded && !failed) return fail(Rule::HeldEvicted, text_of(key));
  if (!persisted && evidence.flush_errors > 0) return;
  ++lost_;
  if (persisted) ++lost_persisted_;
  // A put of what recovery could not flush replaces it: when that fails as well, two flushes have failed for this block.
  const uint64_t replaced = evidence.open_flush_failed ? counters.writes_failed : 0;
  if (lost_ <= counters.blocks_evicted + counters.writes_failed && lost_persisted_ <= counters.blocks_evicted + replaced)
    return;
  const Rule rule = key.view == Key::View::Known || key.seen ? Rule::LostInService
                    : persisted                              ? Rule::PersistLost
                                                             : Rule::RestartForgot;
  fail(rule, text_of(key) + ": " + std::to_string(counters.blocks_evicted) + " evicted and " +
                 std::to_string(counters.writes_failed) + " failed in this process explain no more");
}

// ---- Processes -------------------------------------------------------------------------------------------------------------

void Model::process_began() noexcept { lost_ = lost_persisted_ = 0; }

void Model::missing_at_death(Key& key) noexcept {
  if (key.view != Key::View::None) key.must = false;
}

void Model::process_died() {
  for (Key& key : keys_) {
    key.view = key.puts.size() > key.dead_below ? Key::View::Unsure : Key::View::None;
    key.seen = false;
    key.filling = 0;
    key.holds.clear();
    ++key.changes;
    for (Put& put : key.puts) put.expiry_low_s = put.expiry_kept_s;
  }
}

void Model::process_stopped_cleanly() {
  for (Key& key : keys_) {
    const bool live = key.view == Key::View::Known || (key.view == Key::View::Unsure && key.seen);
    if (!live || key.must) continue;
    persisted_whatever_is_there(key);
    key.clean_must = key.must;
  }
}

void Model::log_was_lost(uint32_t shard) noexcept {
  for (Key& key : keys_) {
    if (shard_of(key.index_key, shards_) != shard) continue;
    key.must = key.clean_must = false;
    key.dead_below = 0;
    key.stale_below = key.puts.size();
    key.view = key.puts.empty() ? Key::View::None : Key::View::Unsure;
    for (Put& put : key.puts) {
      if (put.expiry_changes == 0) continue;
      put.expiry_low_s = put.expiry_kept_s = 1;  // whatever it was
      put.expiry_high_s = 0;
    }
  }
}

bool Model::exact(const Key& key) const noexcept {
  return std::all_of(key.puts.begin(), key.puts.end(), [](const Put& put) { return put.expiry_low_s == 0; });
}

}  // namespace halfstep::sim
