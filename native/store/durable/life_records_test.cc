#include "store/durable/life_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "base/prng.h"

namespace halfstep::store {
namespace {

format::Record record_of(format::RecordKind kind, uint64_t key, uint64_t owner, uint64_t value, uint64_t sequence) {
  format::Record record;
  record.kind = static_cast<uint8_t>(kind);
  record.key_low = key;
  record.key_high = key + 1;
  record.owner = owner;
  record.value = value;
  record.sequence = sequence;
  return record;
}

format::Record release_of_all(uint64_t owner, uint64_t sequence) {
  format::Record record = record_of(format::RecordKind::Hold, 0, owner, format::kHoldReleased, sequence);
  record.flags = format::kHoldAllKeys;
  return record;
}

using Said = std::tuple<format::RecordKind, uint64_t, uint64_t, uint64_t>;  // kind, key, owner, sequence

TEST(LifeRecords, AgreeWithAListUnderRandomRecords) {
  constexpr uint64_t kSeed = 20261122;
  SCOPED_TRACE(kSeed);
  Prng prng(kSeed);
  LifeRecords life({3, 4});
  std::vector<Said> model;
  const auto forget = [&](format::RecordKind kind, uint64_t key, uint64_t owner) {
    std::erase_if(model,
                  [&](const Said& s) { return std::get<0>(s) == kind && std::get<1>(s) == key && std::get<2>(s) == owner; });
  };
  for (uint64_t sequence = 1; sequence < 5000; ++sequence) {
    const uint64_t key = prng.below(40), owner = 1 + prng.below(6), what = prng.below(100);
    if (what < 60) {
      life.apply(record_of(format::RecordKind::Hold, key, owner, format::kHoldNoEnd, sequence));
      forget(format::RecordKind::Hold, key, owner);
      model.emplace_back(format::RecordKind::Hold, key, owner, sequence);
    } else if (what < 80) {
      life.apply(record_of(format::RecordKind::Expiry, key, 0, 1000 + sequence, sequence));
      forget(format::RecordKind::Expiry, key, 0);
      model.emplace_back(format::RecordKind::Expiry, key, 0, sequence);
    } else if (what < 97) {
      life.apply(record_of(format::RecordKind::Hold, key, owner, format::kHoldReleased, sequence));
      forget(format::RecordKind::Hold, key, owner);
    } else {
      // Of some time ago: what was taken since then stays.
      const uint64_t until = sequence - std::min(sequence, prng.below(100));
      life.apply(release_of_all(owner, until));
      std::erase_if(model, [&](const Said& s) {
        return std::get<0>(s) == format::RecordKind::Hold && std::get<2>(s) == owner && std::get<3>(s) <= until;
      });
    }
    if (prng.chance(0.01)) {
      const uint64_t kept = prng.below(3);
      life.forget_unless([&](const LifeRecords::Entry& e) { return e.key.low % 3 != kept; });
      std::erase_if(model, [&](const Said& s) { return std::get<1>(s) % 3 == kept; });
    }
    std::vector<Said> said;
    for (const LifeRecords::Entry& e : life.entries()) said.emplace_back(e.kind, e.key.low, e.owner, e.sequence);
    std::sort(said.begin(), said.end());
    std::sort(model.begin(), model.end());
    ASSERT_EQ(said, model) << "sequence " << sequence;
    format::Entry block;
    block.key_low = key;
    block.key_high = key + 1;
    const auto changed = std::find_if(model.begin(), model.end(), [&](const Said& s) {
      return std::get<0>(s) == format::RecordKind::Expiry && std::get<1>(s) == key;
    });
    ASSERT_EQ(life.changes_expiry(block), changed != model.end());
    if (changed != model.end()) {
      ASSERT_EQ(life.expiry_s(block), 1000 + std::get<3>(*changed));
    }
  }
}

TEST(LifeRecords, AReleaseOfAllIsOfWhatWasTakenBeforeIt) {
  LifeRecords life({3, 4});
  life.apply(record_of(format::RecordKind::Hold, 1, 7, format::kHoldNoEnd, 20));
  life.apply(record_of(format::RecordKind::Hold, 2, 7, format::kHoldNoEnd, 5));
  life.apply(release_of_all(7, 10));
  ASSERT_EQ(life.size(), 1U);
  EXPECT_EQ(life.entries().front().key.low, 1U);
}

// Once for each hold that there was, and not once for each that there is at every release.
TEST(LifeRecords, ReleasesOfAllLookAtNothingButTheOwnersOwn) {
  constexpr uint64_t kOwners = 500, kHoldsPerOwner = 20;
  LifeRecords life({3, 4});
  uint64_t sequence = 0;
  for (uint64_t key = 0; key < kHoldsPerOwner; ++key) {
    for (uint64_t owner = 1; owner <= kOwners; ++owner) {
      life.apply(record_of(format::RecordKind::Hold, key, owner, format::kHoldNoEnd, ++sequence));
      life.apply(record_of(format::RecordKind::Expiry, key, 0, 1000, ++sequence));
    }
  }
  // Who holds nothing costs nothing.
  for (uint64_t owner = kOwners + 1; owner <= 2 * kOwners; ++owner) life.apply(release_of_all(owner, ++sequence));
  EXPECT_EQ(life.looked_at(), 0U);
  for (uint64_t owner = 1; owner <= kOwners; ++owner) {
    life.apply(release_of_all(owner, ++sequence));
    ASSERT_EQ(life.looked_at(), owner * kHoldsPerOwner);
    ASSERT_EQ(life.size(), (kOwners - owner) * kHoldsPerOwner + kHoldsPerOwner);
  }
}

}  // namespace
}  // namespace halfstep::store
