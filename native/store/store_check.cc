#include "store/store_check.h"

#include "base/check.h"
#include "store/store_impl.h"

namespace halfstep::store {

void check_invariants(const Store& store) { static_cast<const StoreImpl&>(store).check_invariants(); }

void StoreImpl::check_invariants() const {
  catalog_.check_invariants();
  memory_.check_invariants();
  staged_.check_invariants();
  std::vector<uint32_t> frames(catalog_.segment_count());
  streams_.check_invariants(frames);
  source_.check_invariants(frames);
  for (const Segment& segment : catalog_.segments()) {
    HALFSTEP_CHECK(segment.frames_in_flight == frames[segment.number], segment.number, segment.frames_in_flight,
                   frames[segment.number]);
  }

  std::vector<Names::Account> accounts(names_.scopes_end());
  const auto of = [&](uint32_t scope) -> Names::Account& {
    if (accounts.size() <= scope) accounts.resize(scope + 1);
    return accounts[scope];
  };
  for (const Segment& segment : catalog_.segments()) {
    for (const Share& share : segment.shares) of(catalog_.scope_of(share)).live += share.pages * kPageBytes;
  }
  for (const Extent& extent : memory_.extents()) {
    const bool unwritten = extent.state == ExtentState::Filling || (extent.state == ExtentState::Dirty && !extent.in_frame);
    if (unwritten) of(extent.entry.scope).unwritten += extent.shape.extent_bytes();
  }
  holds_.check_invariants(accounts);
  names_.check_invariants(accounts);
  check_held();
}

// A block is marked as held if and only if somebody holds its key: reclaim looks at the mark alone.
void StoreImpl::check_held() const {
  if (HALFSTEP_MUTANT(HoldIgnored) || HALFSTEP_MUTANT(HintBeatsHold)) return;
  uint64_t marked = 0;
  for (const Segment& segment : catalog_.segments()) marked += segment.held_blocks;
  uint64_t held = 0;
  holds_.for_each_key([&](const IndexKey& key) {
    const Block block = catalog_.find(key);
    HALFSTEP_CHECK(!block || block.held, block.location.segment, block.location.page);
    held += block ? 1 : 0;
  });
  HALFSTEP_CHECK(marked == held, marked, held);
}

}  // namespace halfstep::store
