// mutant.h — faults that we put into the store on purpose, to see whether the simulator notices (tests/sim).
// `HALFSTEP_MUTANT(Name)` is the constant false in every build but that of the mutants, so that a hook costs nothing and says
// in one line what the store would be without the rule beside it.
// Thread: set before the first store is made, then only read.
#pragma once

#ifdef HALFSTEP_SIM_MUTANTS

#include <cstdint>

// X(name, the rule that is broken)
#define HALFSTEP_MUTANTS(X)                                                                       \
  X(SkipFlush, "flushes are answered and never sent")                                             \
  X(FlushErrorIgnored, "a flush that failed counts as one that did not")                          \
  X(WriteErrorIgnored, "a frame that failed counts as one that landed")                           \
  X(PublishEarly, "persist is answered when the block is committed, before its frame has landed") \
  X(NoWatermark, "a flush covers frames that had not landed when it began")                       \
  X(WatermarkAhead, "a frame records pages as on media that no flush has covered yet")            \
  X(NoKeyInCheck, "the index key does not depend on the scope")                                   \
  X(NoKeyInChecksum, "a checksum fits whichever key the index took for another")                  \
  X(NoVerify, "blocks are handed out without their checksum")                                     \
  X(PartsUnverified, "some parts of a block are handed out without their sums")                   \
  X(MacNotChecked, "metadata pages are believed without their MAC")                               \
  X(DirtyGivesWay, "memory gives way though its block is not on flash yet")                       \
  X(NoReuseCount, "a reused segment keeps its generation")                                        \
  X(VoidedStaysLive, "a voided segment keeps the reuse count of its locations")                   \
  X(ReuseUnderRead, "a segment is reused while blocks are read from it")                          \
  X(ReuseBeforeLogged, "a segment is reused before its new generation is logged")                 \
  X(DiscardEarly, "a segment is discarded while its new generation is being logged")              \
  X(HoldIgnored, "reclaim does not look at holds")                                                \
  X(HintBeatsHold, "a hold does not keep a block that a hint gives up")                           \
  X(HintIgnored, "no segment goes first, whatever was hinted of its blocks")                      \
  X(HintInverted, "segments go first of which no hint speaks")                                    \
  X(ExpiryIgnored, "blocks do not expire")                                                        \
  X(HotKeepsExpiry, "a block's copy in memory keeps its old expiry when that changes")            \
  X(ExpiryNotLogged, "a change of an expiry is answered without a record")                        \
  X(WindowsApart, "each window of a request is used when it begins")                              \
  X(UseDoesNotSlide, "a use does not move an end that slides")                                    \
  X(ChangedStillSlides, "a block that was given an end of its own slides on")                     \
  X(DeletedStaysHot, "a block's copy in memory is served after its delete")                       \
  X(TombstoneNotLogged, "a delete is answered without a tombstone")                               \
  X(TombstoneEarly, "a delete is answered before its tombstone is on media")                      \
  X(TombstoneDropped, "tombstones are dropped at every compaction")                               \
  X(BirthIgnored, "a tombstone buries a later put")                                               \
  X(TailNotVerified, "blocks past the watermark are published unread")                            \
  X(OlderCopyWins, "of two copies of a block, recovery takes the one that it finds later")        \
  X(RecoveredDespiteDelete, "recovery finds blocks that were deleted while it runs")              \
  X(OlderHeaderTaken, "the older copy of the store header is taken")                              \
  X(ScopeReused, "the scope of a deleted namespace is given out again")                           \
  X(ScrubKeepsBad, "a block that a scrub finds bad stays")                                        \
  X(ScrubForgetsTombstone, "a block that a scrub drops gets no tombstone")                        \
  X(ErrorEndsSegment, "a write that fails ends its segment, and three retire it")                 \
  X(PutsWaitInOutage, "puts wait though the device takes nothing")                                \
  X(BadForGood, "a segment that was retired is never tried again")                                \
  X(ErrorCountsAsRot, "a block that the device does not give now is dropped")                     \
  X(UnreadIsEmpty, "a start takes a segment that it cannot read now for an empty one")            \
  X(StagedTwice, "a block that is staged once more takes its room once more")

namespace halfstep {

enum class Mutant : uint8_t {
  None,
#define HALFSTEP_MUTANT_NAME(name, rule) name,
  HALFSTEP_MUTANTS(HALFSTEP_MUTANT_NAME)
#undef HALFSTEP_MUTANT_NAME
};

inline Mutant active_mutant = Mutant::None;

}  // namespace halfstep

#define HALFSTEP_MUTANT(name) (::halfstep::active_mutant == ::halfstep::Mutant::name)

#else
#define HALFSTEP_MUTANT(name) false
#endif
