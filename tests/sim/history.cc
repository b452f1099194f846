#include "sim/history.h"

#include <algorithm>

#include "base/prng.h"
#include "store/format/hint.h"

namespace halfstep::sim {
namespace {

constexpr auto kFinalTurn = static_cast<uint8_t>(store::Hint::FinalTurn);
constexpr uint8_t kHintNumbers = static_cast<uint8_t>(store::Hint::SystemPrompt) + 2;  // with one that says nothing

constexpr std::array<std::string_view, kFaultKinds> kFaultNames = {
    "reorder",  "delay",     "stall",      "read-error",       "write-error",       "flush-error",
    "no-space", "bit-flip",  "bit-rot",    "misdirected-read", "misdirected-write", "torn-write",
    "kill",     "power-cut", "clock-jump", "discard",          "discard-error",     "lost-completion",
    "outage",
};

struct Weight {
  OpKind kind;
  uint32_t weight;
};
using Mix = std::vector<Weight>;

// What a run is mostly about. One mix for all would hardly ever fill the log, or every segment, or die often.
Mix mix_of(Prng& prng) {
  Mix mix = {
      {OpKind::Put, 30},
      {OpKind::Begin, 3},
      {OpKind::Commit, 3},
      {OpKind::Abort, 1},
      {OpKind::Get, 20},
      {OpKind::Remove, 10},
      {OpKind::Hold, 3},
      {OpKind::Release, 2},
      {OpKind::ReleaseAll, 1},
      {OpKind::CreateNamespace, 1},
      {OpKind::DeleteNamespace, 1},
      {OpKind::Turns, 24},
      {OpKind::Settle, 4},
      {OpKind::Pass, 2},
      {OpKind::Jump, 1},
      {OpKind::Rot, 2},
      {OpKind::FailNext, 2},
      {OpKind::Restart, 1},
      {OpKind::Crash, 3},
  };
  const auto stress = [&](OpKind kind, uint32_t factor) {
    for (Weight& weight : mix) weight.weight *= weight.kind == kind ? factor : 1;
  };
  switch (prng.below(6)) {
    case 0: stress(OpKind::Put, 3); break;
    case 1: stress(OpKind::Remove, 4); break;
    case 2: stress(OpKind::Crash, 4); break;
    case 3:
      stress(OpKind::Hold, 6);
      stress(OpKind::Put, 2);
      break;
    case 4:
      stress(OpKind::CreateNamespace, 5);
      stress(OpKind::DeleteNamespace, 5);
      stress(OpKind::FailNext, 4);
      break;
    default: break;
  }
  return mix;
}

OpKind pick(const Mix& mix, Prng& prng) {
  uint64_t total = 0;
  for (const Weight& weight : mix) total += weight.weight;
  uint64_t at = prng.below(total);
  for (const Weight& weight : mix) {
    if (at < weight.weight) return weight.kind;
    at -= weight.weight;
  }
  return OpKind::Settle;
}

double small_chance(Prng& prng) { return 0.002 * static_cast<double>(1 + prng.below(15)); }

constexpr uint32_t kLargeGroups = 0x11;
constexpr uint32_t kKeysOfPressure = 80;
constexpr size_t kRoundsOfPressure = 3;
constexpr uint32_t kSegmentsMin = 4;

Profile make_profile(Prng& prng, const HistoryOptions& options) {
  Profile p;
  p.segments = static_cast<uint32_t>(kSegmentsMin + (prng.chance(0.5) ? 0 : prng.below(9)));
  p.arena_bytes = (prng.chance(0.5) ? 4 : 6) * MiB;
  p.volatile_cache = prng.chance(0.8);
  p.keys = static_cast<uint32_t>(6 + prng.below(34));
  p.namespaces = static_cast<uint32_t>(1 + prng.below(kNamespacesMax));
  p.layouts = static_cast<uint32_t>(1 + prng.below(kLayoutsMax));
  p.holds_max = prng.chance(0.2) ? 4 : 64;
  p.lease_ms_max = prng.chance(0.3) ? 1'000 : 20'000;
  // A third of the runs writes large blocks alone, and goes through its segments many times.
  p.groups = prng.chance(0.33) ? kLargeGroups : prng.chance(0.3) ? 0x0E : 0x1F;
  // A sixth without a fault of any kind, a half without those that media suffer from: there the rules are at their strictest.
  const uint32_t calm = prng.chance(0.17) ? ~0U : prng.chance(0.6) ? kMediaFaults : 0;
  for (size_t kind = 0; kind <= static_cast<size_t>(FaultKind::ClockJump); ++kind) {
    const uint32_t bit = 1U << kind;
    const bool crash = (bit & (bit_of(FaultKind::Kill) | bit_of(FaultKind::PowerCut) | bit_of(FaultKind::Reorder))) != 0;
    if (prng.chance(crash ? 0.8 : 0.4) && (calm & bit) == 0) p.faults |= bit & options.faults;
  }
  const auto on = [&](FaultKind fault) { return (p.faults & bit_of(fault)) != 0; };
  const auto chance = [&](FaultKind fault) {
    const double value = small_chance(prng);
    return on(fault) ? value : 0;
  };
  p.chances.shuffle = on(FaultKind::Reorder);
  p.chances.delay_polls_max = on(FaultKind::Delay) ? static_cast<uint32_t>(1 + prng.below(8)) : 0;
  p.chances.stall_chance = chance(FaultKind::Stall);
  p.chances.read_error_chance = chance(FaultKind::ReadError);
  p.chances.write_error_chance = chance(FaultKind::WriteError);
  p.chances.flush_error_chance = chance(FaultKind::FlushError);
  p.chances.no_space_chance = chance(FaultKind::NoSpace);
  p.chances.bit_flip_chance = chance(FaultKind::BitFlip);
  p.chances.misdirected_read_chance = chance(FaultKind::MisdirectedRead);
  p.chances.misdirected_write_chance = chance(FaultKind::MisdirectedWrite) / 4;
  p.chances.cut_survival_chance = prng.chance(0.5) ? 0 : 0.5;
  p.chances.torn_writes = on(FaultKind::TornWrite);
  return p;
}

// Cuts among writes that are on their way, of which some are kept and some are not, with nothing else to blame.
Mix make_cuts(Profile& p, const HistoryOptions& options) {
  p.faults = options.faults & (bit_of(FaultKind::Reorder) | bit_of(FaultKind::Delay) | bit_of(FaultKind::PowerCut));
  p.chances = {};
  p.chances.shuffle = (p.faults & bit_of(FaultKind::Reorder)) != 0;
  p.chances.delay_polls_max = (p.faults & bit_of(FaultKind::Delay)) != 0 ? 6 : 0;
  p.chances.cut_survival_chance = 0.5;
  p.volatile_cache = true;
  return {{OpKind::Put, 50}, {OpKind::Turns, 40}, {OpKind::Get, 10}, {OpKind::Crash, 8}, {OpKind::Settle, 2}};
}

// Bits of media that flip between clean stops, with nothing else to blame: what they hit is lost, and nothing beside it.
Mix make_rots(Profile& p, const HistoryOptions& options) {
  p.faults = options.faults & bit_of(FaultKind::BitRot);
  p.chances = {};
  return {{OpKind::Put, 50}, {OpKind::Remove, 8}, {OpKind::Expire, 3}, {OpKind::Get, 10},
          {OpKind::Rot, 10}, {OpKind::Turns, 20}, {OpKind::Settle, 4}, {OpKind::Restart, 6}};
}

// Segments enough for streams by TTL (streams.h), blocks that live for seconds to hours, and time that passes between them.
constexpr uint32_t kSegmentsOfClasses = 16;
constexpr std::array<uint32_t, 6> kTtlsOfClasses = {20, 90, 200, 900, 4'000, 30'000};

Mix make_classes(Profile& p, Prng& prng) {
  p.segments = static_cast<uint32_t>(kSegmentsOfClasses + prng.below(20));
  p.groups = kLargeGroups;
  p.keys += kKeysOfPressure;
  return {{OpKind::Put, 60}, {OpKind::Hold, 3},    {OpKind::Get, 6},    {OpKind::Remove, 3}, {OpKind::Turns, 20},
          {OpKind::Pass, 6}, {OpKind::Restart, 1}, {OpKind::Settle, 3}, {OpKind::Crash, 4},  {OpKind::FailNext, 1}};
}

// With randomness of its own: what a device takes leaves the rest of a history as it is.
void add_discards(uint64_t seed, const HistoryOptions& options, Profile* p) {
  Prng prng(seed ^ 0xD15CA2D);
  if (!prng.chance(0.5)) return;
  p->faults |= bit_of(FaultKind::Discard) & options.faults;
  const double chance = prng.chance(0.3) ? 0.5 : 0.02;
  if ((p->faults & bit_of(FaultKind::Discard)) == 0 || !prng.chance(0.4)) return;
  p->faults |= bit_of(FaultKind::DiscardError) & options.faults;
  if ((p->faults & bit_of(FaultKind::DiscardError)) != 0) p->chances.discard_error_chance = chance;
}

// The same, where nothing is at its strictest anyway.
void add_lost_completions(uint64_t seed, const HistoryOptions& options, Profile* p) {
  Prng prng(seed ^ 0x4C4F5354);
  const bool media = (p->faults & kMediaFaults) != 0;
  if (!media || !prng.chance(0.35)) return;
  p->faults |= bit_of(FaultKind::LostCompletion) & options.faults;
  if ((p->faults & bit_of(FaultKind::LostCompletion)) != 0) p->chances.lost_completion_chance = small_chance(prng) / 4;
}

// The same: what has been carried out is told later.
void add_late_completions(uint64_t seed, Profile* p) {
  Prng prng(seed ^ 0x4C415445);
  const bool delays = (p->faults & bit_of(FaultKind::Delay)) != 0;
  if (delays && prng.chance(0.5)) p->chances.completion_polls_max = static_cast<uint32_t>(1 + prng.below(12));
}

// The same.
void add_shards(History& history) {
  Prng prng(history.seed ^ 0x53484152);
  if (!prng.chance(0.3)) return;
  history.profile.shards = static_cast<uint32_t>(2 + prng.below(2));
}

Op make_expire(Prng& prng, const Profile& profile) {
  Op expire;
  expire.kind = OpKind::Expire;
  expire.key = static_cast<uint32_t>(prng.below(profile.keys));
  expire.amount = prng.chance(0.3) ? 0 : 1 + prng.below(60);
  return expire;
}

bool wanted(const Op& op, const Profile& profile) {
  const auto on = [&](FaultKind fault) { return (profile.faults & bit_of(fault)) != 0; };
  switch (op.kind) {
    case OpKind::Jump: return on(FaultKind::ClockJump);
    case OpKind::Rot: return on(FaultKind::BitRot);
    case OpKind::FailNext: return on(FaultKind::WriteError) || on(FaultKind::FlushError) || on(FaultKind::NoSpace);
    case OpKind::Crash: return on(op.flag ? FaultKind::Kill : FaultKind::PowerCut);
    case OpKind::Outage: return on(FaultKind::Outage);
    default: return true;
  }
}

// Of a randomness of its own: the runs without a scrub stay those that they were before there was one.
void add_scrubs(History& history) {
  Prng prng(history.seed ^ 0x5C2B);
  if (history.ops.empty() || !prng.chance(0.4)) return;
  history.profile.scrub_bytes_per_s = prng.chance(0.5) ? 16 * MiB : GiB;
  for (uint64_t left = 1 + prng.below(4); left > 0; --left) {
    const auto at = static_cast<ptrdiff_t>(prng.below(history.ops.size()));
    history.ops[static_cast<size_t>(at)] = {.kind = OpKind::Scrub};
    if ((history.profile.faults & bit_of(FaultKind::BitRot)) == 0) continue;
    // Something to find, and a start that must not find it again.
    std::vector<Op> around;
    for (uint64_t rots = 1 + prng.below(4); rots > 0; --rots)
      around.push_back({.kind = OpKind::Rot, .count = 1, .salt = prng.next()});
    history.ops.insert(history.ops.begin() + at + 1, {.kind = OpKind::Restart, .salt = prng.next()});
    history.ops.insert(history.ops.begin() + at, around.begin(), around.end());
  }
}

// Where ends slide: blocks that are used every now and then while time goes on, some of them after they were given an end.
void add_uses(History& history) {
  if (history.profile.sliding_ttl_s == 0) return;
  Prng prng(history.seed ^ 0x55534553);
  std::vector<Op> ops;
  for (const Op& op : history.ops) {
    ops.push_back(op);
    if (!prng.chance(0.12)) continue;
    Op use;
    use.key = static_cast<uint32_t>(prng.below(history.profile.keys));
    use.count = static_cast<uint32_t>(1 + prng.below(4));
    if (prng.chance(0.2)) {
      use.kind = OpKind::Expire;
      use.amount = 1 + prng.below(history.profile.sliding_ttl_s);
      ops.push_back(use);
      ops.push_back({.kind = OpKind::Turns, .count = 20, .amount = 100});  // so that it is answered
    }
    for (uint64_t time = 1 + prng.below(3); time > 0; --time) {
      use.kind = OpKind::Get;
      use.salt = prng.next();
      ops.push_back(use);
      ops.push_back({.kind = OpKind::Pass, .amount = 1 + prng.below(history.profile.sliding_ttl_s)});
    }
  }
  history.ops = std::move(ops);
}

// Of a randomness of its own, too.
void add_stages(History& history) {
  Prng prng(history.seed ^ 0x5354414745);
  if (!prng.chance(0.35)) return;
  std::vector<Op> ops;
  for (const Op& op : history.ops) {
    ops.push_back(op);
    if (!prng.chance(0.15)) continue;
    Op stage;
    stage.kind = OpKind::Stage;
    stage.key = static_cast<uint32_t>(prng.below(history.profile.keys));
    stage.count = static_cast<uint32_t>(1 + prng.below(8));
    stage.flag = prng.chance(0.5);
    stage.amount = prng.chance(0.3) ? 1'000'000 : 1 + prng.below(5'000);
    stage.salt = prng.next();
    ops.push_back(stage);
    if (prng.chance(0.5))
      ops.push_back({.kind = OpKind::Turns, .count = static_cast<uint32_t>(1 + prng.below(6)), .amount = 100});
    if (prng.chance(0.7)) ops.push_back({.kind = OpKind::Get, .key = stage.key, .count = stage.count, .salt = prng.next()});
  }
  history.ops = std::move(ops);
}

// Of a randomness of its own: segments that forget are retired, and starts try them again.
void make_wear(History& history, const HistoryOptions& options) {
  Prng prng(history.seed ^ 0x57454152);
  if ((options.faults & bit_of(FaultKind::BitRot)) == 0 || !prng.chance(0.04)) return;
  Profile& profile = history.profile;
  profile.shards = 1;
  profile.segments = static_cast<uint32_t>(12 + prng.below(6));
  profile.groups = kLargeGroups;
  profile.keys = 60;
  profile.faults = bit_of(FaultKind::BitRot);
  profile.chances = {};
  profile.scrub_bytes_per_s = GiB;
  history.ops.clear();
  for (uint64_t rounds = 2 + prng.below(2); rounds > 0; --rounds) {
    for (int puts = 0; puts < 50; ++puts) {
      history.ops.push_back({.kind = OpKind::Put,
                             .flag = prng.chance(0.5),
                             .key = static_cast<uint32_t>(prng.below(profile.keys)),
                             .salt = prng.next()});
      history.ops.push_back({.kind = OpKind::Turns, .count = 12, .amount = 100});
    }
    history.ops.push_back({.kind = OpKind::Settle});
    history.ops.push_back({.kind = OpKind::Rot, .count = 5, .salt = prng.next()});
    history.ops.push_back({.kind = OpKind::Scrub});
    history.ops.push_back({.kind = OpKind::Turns, .count = 400, .amount = 10'000});
    if (prng.chance(0.8)) history.ops.push_back({.kind = OpKind::Restart, .salt = prng.next()});
    history.ops.push_back({.kind = OpKind::Settle});
  }
}

// Of a randomness of its own: hints are kept with the block, and change no other promise.
void add_hints(History& history) {
  Prng prng(history.seed ^ 0x48494E54);
  if (!prng.chance(0.3)) return;
  for (Op& op : history.ops) {
    if (op.kind != OpKind::Put && op.kind != OpKind::Begin) continue;
    op.hint = prng.chance(0.4) ? kFinalTurn : static_cast<uint8_t>(prng.below(kHintNumbers));
  }
}

// Of a randomness of its own.
void make_hints(History& history) {
  if (Prng(history.seed ^ 0x46494E414C).chance(0.02)) history = make_hint_history(history.seed);
}

Op make_outage(Prng& prng) {
  Op outage{.kind = OpKind::Outage, .flag = prng.chance(0.3), .salt = prng.next()};
  const uint64_t what = prng.below(10);
  outage.count = what < 5 ? kOutageWrites : what < 9 ? kOutageReads : kOutageWrites | kOutageReads;
  if ((outage.count & kOutageWrites) != 0 && prng.chance(0.4)) outage.count |= kOutageNoSpace;
  if ((outage.count & kOutageWrites) != 0 && !outage.flag && prng.chance(0.2)) outage.count |= kOutageFlushes;
  outage.amount = prng.chance(0.3) ? 10'000 + prng.below(200'000) : 200'000 + prng.below(3'000'000);
  return outage;
}

// Of a randomness of its own. Half of them have nothing else to blame but that a process or a machine may die.
void add_outages(History& history, const HistoryOptions& options) {
  Prng prng(history.seed ^ 0x4F5554414745);
  if ((options.faults & bit_of(FaultKind::Outage)) == 0 || !prng.chance(0.25)) return;
  Profile& profile = history.profile;
  if (prng.chance(0.6)) {
    constexpr uint32_t kKept = bit_of(FaultKind::Reorder) | bit_of(FaultKind::Delay) | bit_of(FaultKind::Kill) |
                               bit_of(FaultKind::PowerCut) | bit_of(FaultKind::ClockJump);
    profile.faults &= kKept;
    io::MemoryFaults calm;
    calm.shuffle = profile.chances.shuffle;
    calm.delay_polls_max = profile.chances.delay_polls_max;
    calm.completion_polls_max = profile.chances.completion_polls_max;
    calm.cut_survival_chance = profile.chances.cut_survival_chance;
    profile.chances = calm;
  }
  profile.faults |= bit_of(FaultKind::Outage);
  std::erase_if(history.ops, [&](const Op& op) { return !wanted(op, profile); });
  const auto at_random = [&](OpKind kind) {
    Op op{.kind = kind, .flag = prng.chance(0.7), .salt = prng.next()};
    op.key = static_cast<uint32_t>(prng.below(profile.keys));
    op.count = static_cast<uint32_t>(1 + prng.below(4));
    return op;
  };
  for (uint64_t left = 1 + prng.below(4); left > 0; --left) {
    std::vector<Op> ops;
    for (uint64_t puts = prng.below(12); puts > 0; --puts) ops.push_back(at_random(OpKind::Put));
    if (prng.chance(0.5)) ops.push_back({.kind = OpKind::Turns, .count = 8, .amount = 100});
    ops.push_back(make_outage(prng));
    if (prng.chance(0.4)) {  // what a start finds
      const bool crash = prng.chance(0.6);
      Op end{.kind = crash ? OpKind::Crash : OpKind::Restart, .flag = prng.chance(0.5), .salt = prng.next()};
      if (wanted(end, profile)) ops.push_back(end);
    }
    for (uint64_t rounds = 1 + prng.below(8); rounds > 0; --rounds) {
      for (uint64_t asked = prng.below(5); asked > 0; --asked) {
        ops.push_back(at_random(prng.chance(0.5) ? OpKind::Put : prng.chance(0.8) ? OpKind::Get : OpKind::Remove));
      }
      ops.push_back({.kind = OpKind::Turns, .count = static_cast<uint32_t>(1 + prng.below(60)), .amount = 10'000});
    }
    if (prng.chance(0.4)) ops.push_back({.kind = OpKind::Settle});
    const auto at = static_cast<ptrdiff_t>(prng.below(history.ops.size() + 1));
    history.ops.insert(history.ops.begin() + at, ops.begin(), ops.end());
  }
}

}  // namespace

std::string_view name_of(FaultKind fault) noexcept { return kFaultNames[static_cast<size_t>(fault)]; }

History make_hint_history(uint64_t seed) {
  Prng prng(seed ^ 0x48494E5453);
  History history;
  history.seed = seed;
  Profile& profile = history.profile;
  profile.segments = static_cast<uint32_t>(kSegmentsOfClasses + prng.below(3));
  profile.arena_bytes = 6 * MiB;
  profile.groups = kLargeGroups;
  profile.keys = 260;
  profile.hints_decide = true;
  const bool holds = prng.chance(0.5);
  const double given_up = prng.chance(0.5) ? 0.5 : 0.25;
  for (uint32_t put = 0; put < 2 * profile.keys; ++put) {
    Op op{.kind = OpKind::Put, .flag = prng.chance(0.3), .key = put % profile.keys, .salt = prng.next()};
    const uint64_t others = prng.below(kHintNumbers);
    op.hint = prng.chance(given_up) ? kFinalTurn : others == kFinalTurn ? 0 : static_cast<uint8_t>(others);
    history.ops.push_back(op);
    history.ops.push_back({.kind = OpKind::Turns, .count = 12, .amount = 100});
    if (!holds || op.hint != kFinalTurn || !prng.chance(0.08)) continue;
    history.ops.push_back({.kind = OpKind::Hold,
                           .key = op.key,
                           .count = static_cast<uint32_t>(1 + prng.below(4)),
                           .amount = profile.lease_ms_max});
  }
  return history;
}

History make_history(uint64_t seed, const HistoryOptions& options) {
  Prng prng(seed);
  Prng extras(~seed);  // so that one kind of operation more leaves the rest of a history as it is
  History history;
  history.seed = seed;
  history.profile = make_profile(prng, options);
  add_discards(seed, options, &history.profile);
  add_lost_completions(seed, options, &history.profile);
  Mix mix = mix_of(prng);
  // More keys than the store has room for, holds among them, and several rounds through it: what is alive has to give way.
  size_t steps = options.steps;
  if (history.profile.groups == kLargeGroups && extras.chance(0.65)) {
    history.profile.segments = kSegmentsMin;
    history.profile.keys += kKeysOfPressure;
    steps *= kRoundsOfPressure;
    mix = {{OpKind::Put, 60},   {OpKind::Hold, 6},   {OpKind::Get, 4},
           {OpKind::Turns, 20}, {OpKind::Settle, 4}, {OpKind::Crash, extras.chance(0.5) ? 1U : 10U}};
    // What is reclaimed is discarded, and the power may go meanwhile.
    history.profile.faults |= (bit_of(FaultKind::Discard) | bit_of(FaultKind::PowerCut)) & options.faults;
  }
  if (Prng(seed ^ 0x435554).chance(0.12)) mix = make_cuts(history.profile, options);
  if (Prng(seed ^ 0x524F5453).chance(0.06)) mix = make_rots(history.profile, options);
  Prng classes(seed ^ 0x434C4153);  // the same
  const bool by_class = classes.chance(0.04);
  if (by_class) {
    mix = make_classes(history.profile, classes);
    steps = options.steps * kRoundsOfPressure;
  }
  add_late_completions(seed, &history.profile);
  const bool ttls = prng.chance(0.4);
  Prng sliding(seed ^ 0x534C494445);  // the same
  if (ttls && sliding.chance(0.8)) history.profile.sliding_ttl_s = static_cast<uint32_t>(5 + sliding.below(50));
  history.profile.serves_while_recovering = Prng(seed ^ 0x5245434F).chance(0.3);  // the same
  const double persist_share = prng.chance(0.3) ? 0.9 : 0.4;
  while (history.ops.size() < steps) {
    Op op;
    op.kind = pick(mix, prng);
    op.salt = prng.next();
    op.key = static_cast<uint32_t>(prng.below(history.profile.keys));
    op.count = static_cast<uint32_t>(1 + prng.below(4));
    op.flag = prng.chance(0.5);
    switch (op.kind) {
      case OpKind::Put:
      case OpKind::Begin:
        op.flag = prng.chance(persist_share);
        op.coded = prng.chance(0.2);
        op.ttl_s = ttls && prng.chance(0.4) ? static_cast<uint32_t>(1 + prng.below(60)) : 0;
        break;
      case OpKind::Hold: op.amount = 1 + prng.below(30'000); break;
      case OpKind::CreateNamespace:
      case OpKind::DeleteNamespace: op.key = static_cast<uint32_t>(prng.below(history.profile.namespaces)); break;
      case OpKind::Turns:
        op.count = static_cast<uint32_t>(1 + prng.below(prng.chance(0.2) ? 40 : 6));
        op.amount = prng.chance(0.1) ? 200'000 : 100;
        break;
      case OpKind::Pass: op.amount = 1 + prng.below(50); break;
      case OpKind::Jump: op.amount = prng.chance(0.1) ? 315'360'000 : 1 + prng.below(500); break;
      case OpKind::Rot: op.count = 1; break;
      case OpKind::Crash: op.amount = prng.chance(0.3) ? 0 : prng.below(60); break;
      default: break;
    }
    if (by_class && op.kind == OpKind::Put)
      op.ttl_s = classes.chance(0.3) ? 0 : kTtlsOfClasses[classes.below(kTtlsOfClasses.size())];
    if (by_class && op.kind == OpKind::Pass) op.amount = classes.chance(0.2) ? 2'000 : 30;
    if (wanted(op, history.profile)) history.ops.push_back(op);
    const bool full = history.ops.size() == steps;
    // What may have expired excuses much: only where blocks do anyway.
    if (!full && ttls && extras.chance(0.06)) history.ops.push_back(make_expire(extras, history.profile));
  }
  add_scrubs(history);
  add_shards(history);
  add_uses(history);
  add_stages(history);
  add_hints(history);
  make_wear(history, options);
  make_hints(history);
  if (!history.profile.hints_decide) add_outages(history, options);
  return history;
}

std::string text_of(const Profile& p) {
  std::string text = p.shards == 1 ? "" : std::to_string(p.shards) + " shards, each ";
  text += std::to_string(p.segments) + " segments, arena " + std::to_string(p.arena_bytes / MiB) + " MiB, " +
          std::to_string(p.keys) + " keys in " + std::to_string(p.namespaces) + " namespaces of " + std::to_string(p.layouts) +
          " layouts, " + (p.volatile_cache ? "volatile cache" : "no cache");
  if (p.sliding_ttl_s != 0) text.append(", ends slide by ").append(std::to_string(p.sliding_ttl_s)).append(" s");
  if (p.serves_while_recovering) text += ", serves while it recovers";
  if (p.scrub_bytes_per_s != 0) text += ", scrubbed";
  text += "; faults:";
  for (size_t kind = 0; kind < kFaultKinds; ++kind) {
    if ((p.faults & (1U << kind)) != 0) text.append(" ").append(kFaultNames[kind]);
  }
  return p.faults == 0 ? text + " none" : text;
}

std::string text_of(const Op& op) {
  const std::string key = "key " + std::to_string(op.key);
  const std::string owner = " owner " + std::to_string(op.count);
  const std::string amount = std::to_string(op.amount);
  const auto put = [&](const char* verb) {
    return verb + key + (op.flag ? " persist" : " cache") + (op.coded ? " coded" : "") +
           (op.ttl_s != 0 ? " ttl " + std::to_string(op.ttl_s) + " s" : "") +
           (op.hint != 0 ? " hint " + std::to_string(op.hint) : "");
  };
  switch (op.kind) {
    case OpKind::Put: return put("put ");
    case OpKind::Begin: return put("begin put ");
    case OpKind::Commit: return "commit the oldest begun put";
    case OpKind::Abort: return "abort the oldest begun put";
    case OpKind::Get: return "get " + std::to_string(op.count) + " from " + key;
    case OpKind::Remove: return "remove " + key;
    case OpKind::Hold: return "hold " + key + owner + " for " + amount + " ms";
    case OpKind::Release: return "release " + key + owner;
    case OpKind::ReleaseAll: return "release all of" + owner;
    case OpKind::Expire: return "expire " + key + (op.amount == 0 ? " never" : " in " + amount + " s");
    case OpKind::CreateNamespace: return "create namespace " + std::to_string(op.key);
    case OpKind::DeleteNamespace: return "delete namespace " + std::to_string(op.key);
    case OpKind::Turns: return std::to_string(op.count) + " turns of " + amount + " us";
    case OpKind::Settle: return "settle and look at every key";
    case OpKind::Pass: return amount + " s pass";
    case OpKind::Jump: return "wall clock " + std::string(op.flag ? "back " : "ahead ") + amount + " s";
    case OpKind::Rot: return "bit rot";
    case OpKind::FailNext: return "one request will fail";
    case OpKind::Restart: return "close and open";
    case OpKind::Stage:
      return "stage " + std::to_string(op.count) + " from " + key + (op.flag ? " and follow" : "") + " for " + amount + " us";
    case OpKind::Scrub: return "two passes of the scrub";
    case OpKind::Outage:
      return "for " + amount + " us " + ((op.count & kOutageReads) != 0 ? "reads " : "") +
             ((op.count & kOutageWrites) != 0 ? "writes " : "") + ((op.count & kOutageFlushes) != 0 ? "flushes " : "") +
             "fail" + ((op.count & kOutageNoSpace) != 0 ? " for want of space" : "") + (op.flag ? ", of some segments" : "");
    case OpKind::Crash: return std::string(op.flag ? "kill" : "power cut") + " after " + amount + " engine events, open";
  }
  return "?";
}

}  // namespace halfstep::sim
