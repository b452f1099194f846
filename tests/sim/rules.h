// rules.h — the rules that hold in every run: a name that a failure prints, and the promise. "rule N" is a rule of
// docs/store-rules.md, which has the whole promise and the mechanism behind it.
// Thread: any; values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace halfstep::sim {

// X(name, text, the promise)
#define HALFSTEP_SIM_RULES(X)                                                                                                  \
  X(WrongBytes, "wrong-bytes", "a get returns the exact bytes of a put of that name, or a miss (rule 1)")                      \
  X(DeletedReturned, "deleted-returned", "a deleted block stays away until it is put again, across crashes too (rule 8)")      \
  X(ExpiredReturned, "expired-returned", "an expired block is not found; store time never runs backwards (rule 9)")            \
  X(ReturnedUnasked, "returned-unasked", "a block that is gone comes back by a put or a restart alone (rule 3)")               \
  X(PersistLost, "persist-lost", "a persisted block survives any crash, unless media lost its bytes or description (rule 6)")  \
  X(RestartForgot, "restart-forgot", "a clean stop keeps every block (rule 13)")                                               \
  X(LostInService, "lost-in-service", "a block leaves by delete, expiry, a counted eviction or a counted failure (rule 10)")   \
  X(HeldEvicted, "held-evicted", "a held block is not evicted while the record log has room (rule 11)")                        \
  X(FoundButMissed, "found-but-missed", "a block that find() reports can be read, save for counted media errors (rule 2)")     \
  X(MissedButRead, "missed-but-read", "a block that find() denies is not read (rule 2)")                                       \
  X(PinnedChanged, "pinned-changed", "memory of a pinned block does not change (rule 4)")                                      \
  X(CompletedTwice, "completed-twice", "every read, write and change is answered exactly once (rule 20)")                      \
  X(NeverCompleted, "never-completed", "close() leaves nobody without an answer (rule 20)")                                    \
  X(WrongAnswer, "wrong-answer", "a failure has a cause: no IoError without a fault of the device (rule 20)")                  \
  X(WroteOutside, "wrote-outside", "writes stay inside the device, their zone and one segment (rule 17)")                      \
  X(OpenRefused, "open-refused", "open() does not refuse damaged media while one header copy is whole (rule 14)")              \
  X(NamesLost, "names-lost", "acknowledged namespaces and layouts survive; a scope number has one meaning (rule 5)")           \
  X(DeadScope, "dead-scope", "no block of a deleted namespace is found, and its scope is not used again (rule 5)")             \
  X(ScrubMissed, "scrub-missed", "after two passes of the scrub no sealed block that find() reports has rotted (rule 15)")     \
  X(HintPassedOver, "hint-passed-over", "a segment that hints gave up whole goes before any that nobody gave up (rule 23)")    \
  X(AncestorOlder, "ancestor-older", "no block of a request looks younger than one before it (rule 12)")                       \
  X(Accounting, "accounting", "gauges agree with a full scan by list() and find() (rule 18)")                                  \
  X(BytesAddUp, "bytes-add-up", "user + rewrite + metadata + padding + repeated = bytes at the device (rule 19)")              \
  X(LostToOutage, "lost-to-outage", "an outage retires no segment and gives up no block (rule 16)")                            \
  X(RetiredForGood, "retired-for-good", "a start tries again a segment that was retired fewer than three times (rule 16)")     \
  X(WaitsInOutage, "waits-in-outage", "while the device takes no write, a put that waits for media is told at once (rule 16)") \
  X(RecoveryReport, "recovery-report", "the numbers of the recovery report add up (rule 18)")                                  \
  X(Ended, "ended", "no run ends its process, by an assertion or by a signal (rule 21)")                                       \
  X(Stuck, "stuck", "the device comes to rest, and everything that was begun ends (rule 21)")

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
