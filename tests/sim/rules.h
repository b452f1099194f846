// rules.h — what must hold in every run, each by a name that a failure prints and a sentence that says where it is promised
// (V1.md section 7 and 8, ENGINE.md section 4.8, the contract in store/store.h).
// Thread: any; values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace halfstep::sim {

// X(name, text, the promise)
#define HALFSTEP_SIM_RULES(X)                                                                                                 \
  X(WrongBytes, "wrong-bytes", "a get answers exactly the bytes of a put of that name, or a miss (ENGINE 4.8 rules 1, 2)")    \
  X(DeletedReturned, "deleted-returned", "what was deleted stays away until it is put again, over crashes, too (V1 7)")       \
  X(ExpiredReturned, "expired-returned", "what has expired is not there (store time never runs backwards)")                   \
  X(ReturnedUnasked, "returned-unasked", "a block that is gone comes back by a put or a restart alone (ENGINE 4.8 rule 4)")   \
  X(PersistLost, "persist-lost", "a persisted block outlives any crash, unless media lost its bytes or description (V1 7)")   \
  X(RestartForgot, "restart-forgot", "a clean stop keeps every block (ENGINE 4.8 rule 7)")                                    \
  X(LostInService, "lost-in-service", "a block leaves by delete, expiry, a counted eviction or a counted failure")            \
  X(HeldEvicted, "held-evicted", "a held block is not evicted while the record log has room (ENGINE 4.8 rule 3)")             \
  X(FoundButMissed, "found-but-missed", "what find() reports can be read, save for counted media errors (ENGINE 4.8 rule 5)") \
  X(MissedButRead, "missed-but-read", "what find() denies is not read (ENGINE 4.8 rule 5)")                                   \
  X(PinnedChanged, "pinned-changed", "memory of a pinned block does not change (ENGINE 4.8 rule 3)")                          \
  X(CompletedTwice, "completed-twice", "every read, write and remove is answered exactly once (store.h)")                     \
  X(NeverCompleted, "never-completed", "close() leaves nobody without an answer (store.h)")                                   \
  X(WrongAnswer, "wrong-answer", "a failure has a cause: no IoError without a fault of the device (store.h)")                 \
  X(WroteOutside, "wrote-outside", "writes stay inside the device, its zones and one segment (ENGINE 4.8 rule 6)")            \
  X(OpenRefused, "open-refused",                                                                                              \
    "open() does not refuse for bad media, one header copy being whole (V1 8, ENGINE 4.8 rule 10)")                           \
  X(NamesLost, "names-lost", "acknowledged namespaces and layouts survive; a scope number has one meaning (V1 5)")            \
  X(DeadScope, "dead-scope", "nothing of a deleted namespace is found, and its scope is not used again (V1 1)")               \
  X(ScrubMissed, "scrub-missed", "after two passes of the scrub no sealed block that find() reports has rotted (ENGINE 4.6)") \
  X(AncestorOlder, "ancestor-older", "no block of a request looks younger than one before it (ENGINE 4.8 rule 8)")            \
  X(Accounting, "accounting", "gauges agree with a full scan by list() and find() (ENGINE 4.8 rule 6)")                       \
  X(BytesAddUp, "bytes-add-up", "user + rewrite + metadata + padding + repeated = bytes at the device (ENGINE 4.8 rule 9)")   \
  X(LostToOutage, "lost-to-outage", "an outage retires no segment and gives up no block (store/device_health.h)")             \
  X(RetiredForGood, "retired-for-good", "a start tries again what was retired fewer than three times (store.h)")              \
  X(WaitsInOutage, "waits-in-outage", "while the device takes no write, who waits for media is told at once (store.h)")       \
  X(RecoveryReport, "recovery-report", "the numbers of the recovery report add up (V1 8)")                                    \
  X(Ended, "ended", "no run ends its process, by an assertion or by a signal")                                                \
  X(Stuck, "stuck", "the device comes to rest, and what was begun ends (ENGINE 4.8 rule 3)")

enum class Rule : uint8_t {
#define HALFSTEP_SIM_RULE(name, text, promise) name,
  HALFSTEP_SIM_RULES(HALFSTEP_SIM_RULE)
#undef HALFSTEP_SIM_RULE
};

constexpr std::string_view name_of(Rule rule) noexcept {
  constexpr std::string_view kNames[] = {
#define HALFSTEP_SIM_RULE(name, text, promise) text,
      HALFSTEP_SIM_RULES(HALFSTEP_SIM_RULE)
#undef HALFSTEP_SIM_RULE
  };
  return kNames[static_cast<size_t>(rule)];
}
constexpr std::string_view promise_of(Rule rule) noexcept {
  constexpr std::string_view kPromises[] = {
#define HALFSTEP_SIM_RULE(name, text, promise) promise,
      HALFSTEP_SIM_RULES(HALFSTEP_SIM_RULE)
#undef HALFSTEP_SIM_RULE
  };
  return kPromises[static_cast<size_t>(rule)];
}

struct Violation {
  Rule rule = Rule::WrongBytes;
  std::string what;
  uint32_t step = 0;  // the operation during which it was seen
};

}  // namespace halfstep::sim
