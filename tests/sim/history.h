// history.h — what one simulated run does, written down before it starts: from one seed a profile (geometry, faults, names) and
// a list of operations. A failing list is shortened by leaving operations out (shrink.h), so each carries all that it needs,
// its own randomness included, and none depends on there being another. Invariants: the same seed and options give the same
// history, on any machine. Thread: any; values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "io/memory_engine.h"

namespace halfstep::sim {

// Kinds of faults that a run may be given; the names are those of --faults and of the table at the end.
enum class FaultKind : uint8_t {
  Reorder,
  Delay,
  Stall,
  ReadError,
  WriteError,
  FlushError,
  NoSpace,
  BitFlip,
  BitRot,
  MisdirectedRead,
  MisdirectedWrite,
  TornWrite,
  Kill,
  PowerCut,
  ClockJump,
  Discard,  // the device takes discards, and forgets
  DiscardError,
  LostCompletion,  // a request is carried out and answered late, with an error
  Outage,          // for a while all writes or reads fail, of the device or of some segments
};
inline constexpr size_t kFaultKinds = static_cast<size_t>(FaultKind::Outage) + 1;
std::string_view name_of(FaultKind fault) noexcept;
inline constexpr uint32_t bit_of(FaultKind fault) noexcept { return 1U << static_cast<uint32_t>(fault); }
inline constexpr uint32_t kAllFaults = (1U << kFaultKinds) - 1;
// Those after which a block may be missing though it was persisted: what is on media, or what was read of it, is not what was
// written.
inline constexpr uint32_t kMediaFaults = bit_of(FaultKind::ReadError) | bit_of(FaultKind::BitFlip) | bit_of(FaultKind::BitRot) |
                                         bit_of(FaultKind::MisdirectedRead) | bit_of(FaultKind::MisdirectedWrite) |
                                         bit_of(FaultKind::LostCompletion);

enum class OpKind : uint8_t {
  Put,              // begin, fill, commit
  Begin,            // begin and fill; committed or aborted by a later operation
  Commit,           // the oldest one begun
  Abort,            // the oldest one begun
  Get,              // a window of `count` keys from `key` on; pinned for a while
  Remove,           //
  Hold,             // `key` by owner `count` for `amount` ms
  Release,          // `key` by owner `count`
  ReleaseAll,       // of owner `count`
  Expire,           // `key` ends `amount` s from now on; 0: never
  CreateNamespace,  // number `key`
  DeleteNamespace,  // number `key`
  Turns,            // `count` turns of `amount` us
  Settle,           // turns until the device is idle; then every key is looked up
  Pass,             // `amount` seconds of both clocks
  Jump,             // the wall clock alone: `amount` seconds ahead, or back if `flag`
  Rot,              // a bit of media, somewhere that `salt` says; of `count` blocks of one segment, if that is more than one
  FailNext,         // the next request of a kind and an area that `salt` says
  Restart,          // close and open, perhaps with crashes on the way
  Stage,            // `count` keys from `key` on ahead of their gets, kept for `amount` us; followed if `flag`
  Scrub,            // two passes of the scrub while nothing fails; then nothing that it should have found is left
  Outage,  // for `amount` us: kinds by `count` (kOutage...), of the device or, if `flag`, of the segments that `salt` says
  Crash,   // after `amount` more engine events; killed if `flag`, else a power cut; then open as above
};

// What fails in an outage.
inline constexpr uint32_t kOutageWrites = 1, kOutageReads = 2, kOutageFlushes = 4, kOutageNoSpace = 8;

struct Op {
  OpKind kind = OpKind::Settle;
  bool flag = false;    // Put, Begin: persist
  bool coded = false;   // Put, Begin: with a codec's lengths and sums
  uint32_t key = 0;     //
  uint32_t count = 0;   //
  uint32_t ttl_s = 0;   // Put, Begin
  uint8_t hint = 0;     // Put, Begin
  uint64_t amount = 0;  //
  uint64_t salt = 0;    // randomness of its own
};
std::string text_of(const Op& op);

inline constexpr uint32_t kNamespacesMax = 3;
inline constexpr uint32_t kLayoutsMax = 2;

struct Profile {
  uint32_t shards = 1;
  uint32_t segments = 6;  // of each shard
  uint64_t arena_bytes = 4 * MiB;
  bool volatile_cache = true;
  uint32_t keys = 24;
  uint32_t namespaces = 1;
  uint32_t layouts = 1;
  bool serves_while_recovering = false;
  uint32_t sliding_ttl_s = 0;  // of all namespaces but the first; 0: none
  uint64_t holds_max = 64;
  uint64_t lease_ms_max = 20'000;
  uint64_t scrub_bytes_per_s = 0;
  uint32_t groups = 0x1F;     // bit i: keys of group i
  bool hints_decide = false;  // nothing but hints, holds and age says which segment goes
  uint32_t faults = 0;        // bits of FaultKind
  io::MemoryFaults chances;   // of those that fire by chance
};
std::string text_of(const Profile& profile);

struct History {
  uint64_t seed = 0;
  Profile profile;
  std::vector<Op> ops;
};

struct HistoryOptions {
  uint32_t steps = 120;
  uint32_t faults = kAllFaults;  // those that a profile may draw from
};
History make_history(uint64_t seed, const HistoryOptions& options);
// More blocks than there is room for, some of them given up by their puts, and nothing else that says which go. In half of the
// histories some of those are held: sessions in the midst of their work.
History make_hint_history(uint64_t seed);

}  // namespace halfstep::sim
