#include "index/block_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "index/index_fixture.h"

namespace halfstep::index {
namespace block_index_test {

constexpr uint64_t kSeed = 20261121;

// Everything that the index distinguishes: keys that agree in it are one to the index.
struct Identity {
  uint64_t home = 0;
  uint64_t rest = 0;
  bool operator==(const Identity&) const = default;
};
struct IdentityHash {
  size_t operator()(const Identity& identity) const noexcept { return identity.home * 0x9E37'79B9'7F4A'7C15U ^ identity.rest; }
};
Identity identity_of(const KeyParts& parts, uint64_t buckets) {
  return {static_cast<uint64_t>((static_cast<unsigned __int128>(parts.home) * buckets) >> 48),
          parts.fingerprint << 8 | parts.tag};
}

// ---- Against a model -------------------------------------------------------------------------------------------------------

struct Family {
  const char* name;
  KeyParts (*make)(Prng&);
};
// Few values of what is not random, so that keys come again and buckets, tags and fingerprints collide by the thousand.
const Family kFamilies[] = {
    {"uniform",
     [](Prng& prng) {
       return KeyParts{prng.below(1 << 12) << 36, prng.below(3) << 37, 1, 0};
     }},
    {"any key", [](Prng& prng) { return KeyParts::random(prng); }},
    {"one home",
     [](Prng& prng) {
       return KeyParts{uint64_t{7} << 44, prng.below(64) << 34, 200, 0};
     }},
    {"two homes",
     [](Prng& prng) {
       return KeyParts{prng.below(2) << 47, prng.below(96) << 33, 3, 0};
     }},
    {"one fingerprint",
     [](Prng& prng) {
       return KeyParts{prng.below(512) << 39, 0xAB'CDEF'0123, 9, 0};
     }},
    {"one home and fingerprint",
     [](Prng& prng) {
       return KeyParts{uint64_t{3} << 45, 0x12'3456'789A, static_cast<uint8_t>(1 + prng.below(255)), 0};
     }},
    {"tags a bit apart",
     [](Prng& prng) {
       return KeyParts{prng.below(256) << 40, prng.below(2), static_cast<uint8_t>(1U << prng.below(8)), 0};
     }},
    {"fingerprints a bit apart",
     [](Prng& prng) {
       return KeyParts{prng.below(16) << 44, uint64_t{1} << prng.below(40), 77, 0};
     }},
};

class Model {
 public:
  Model(uint64_t buckets, const Family& family) : small_(buckets), index_(small_.index), family_(family), prng_(kSeed) {}

  void step() {
    const KeyParts parts = family_.make(prng_);
    const Identity identity = identity_of(parts, index_.buckets());
    const auto at = entries_.find(identity);
    const Entry* expected = at == entries_.end() ? nullptr : &at->second;
    const Found found = index_.find(parts.key());
    ASSERT_EQ(static_cast<bool>(found), expected != nullptr);
    if (found) {
      ASSERT_TRUE(same_but_for_the_fingerprint(found.entry, *expected));
    }
    const Found shared = index_.find_shared(parts.key());
    ASSERT_EQ(static_cast<bool>(shared), static_cast<bool>(found));
    ASSERT_EQ(shared.entry, found.entry);

    const Entry fresh = entry_of(++pages_);
    const Location elsewhere = entry_of(0).location();  // of nobody
    switch (prng_.below(8)) {
      case 0:
      case 1:
      case 2: {
        const Status status = index_.insert(parts.key(), fresh);
        if (expected != nullptr) {
          ASSERT_EQ(status, Code::Present);
        } else if (status.ok()) {
          entries_[identity] = fresh;
        } else {
          ASSERT_EQ(status, Code::NoSpace);
          ++refused_;
        }
        break;
      }
      case 3:
        ASSERT_FALSE(index_.replace(parts.key(), elsewhere, fresh));
        ASSERT_EQ(index_.replace(parts.key(), expected ? expected->location() : elsewhere, fresh), expected != nullptr);
        if (expected) entries_[identity] = fresh;
        break;
      case 4:
        if (!found) break;
        ASSERT_FALSE(index_.replace(found.handle, elsewhere, fresh));
        ASSERT_TRUE(index_.replace(found.handle, found.entry.location(), fresh));
        entries_[identity] = fresh;
        break;
      case 5:
        ASSERT_FALSE(index_.erase(parts.key(), elsewhere));
        ASSERT_EQ(index_.erase(parts.key(), expected ? expected->location() : elsewhere), expected != nullptr);
        entries_.erase(identity);
        break;
      case 6:
        if (!found) break;
        ASSERT_FALSE(index_.erase(found.handle, elsewhere));
        ASSERT_TRUE(index_.erase(found.handle, found.entry.location()));
        ASSERT_FALSE(index_.erase(found.handle, found.entry.location()));
        entries_.erase(identity);
        break;
      default: sweep_some();
    }
    ASSERT_EQ(index_.size(), entries_.size());
  }

  // Every slot, every count.
  void check_all() {
    std::unordered_set<uint64_t> pages;
    uint64_t strays = 0;
    uint64_t away = 0;
    for (uint64_t number = 0; number < index_.buckets(); ++number) {
      const Header header = small_.memory[number].header_own();
      ASSERT_FALSE(header.open());
      away += header.strays_away();
      for (unsigned slot = 0; slot < kSlotsPerBucket; ++slot) {
        if (header.tag(slot) == 0) {
          ASSERT_FALSE(header.stray(slot));
          continue;
        }
        strays += header.stray(slot);
        ASSERT_TRUE(pages.insert(small_.memory[number].entry_own(slot).location().page).second);
      }
    }
    ASSERT_EQ(strays, away);
    ASSERT_EQ(strays, index_.strays());
    ASSERT_EQ(pages.size(), entries_.size());
    for (const auto& [identity, entry] : entries_) ASSERT_TRUE(pages.contains(entry.location().page));
  }

  void erase_all() {
    // Two laps: of the first one a part may have been over before.
    for (const uint64_t laps = index_.laps(); index_.laps() < laps + 2;) {
      index_.sweep(3, [](const Entry&) { return BlockIndex::Verdict::Erase; });
    }
    entries_.clear();
    ASSERT_EQ(index_.size(), 0U);
    ASSERT_EQ(index_.strays(), 0U);
    check_all();
  }

  uint64_t refused() const { return refused_; }
  const BlockIndex& index() const { return index_; }

 private:
  void sweep_some() {
    std::vector<std::pair<Entry, Entry>> changed;
    std::vector<Entry> erased;
    index_.sweep(prng_.below(3), [&](Entry& entry) {
      const uint64_t choice = prng_.below(10);
      if (choice == 0) {
        erased.push_back(entry);
        return BlockIndex::Verdict::Erase;
      }
      if (choice > 2) return BlockIndex::Verdict::Keep;
      const Entry before = entry;
      entry = entry_of(++pages_);  // its fingerprint is zero: the index keeps the right one
      changed.emplace_back(before, entry);
      return BlockIndex::Verdict::Replace;
    });
    for (const auto& [before, after] : changed) entries_[identity_at(before)] = after;
    for (const Entry& entry : erased) entries_.erase(identity_at(entry));
  }
  Identity identity_at(const Entry& entry) {
    for (const auto& [identity, known] : entries_) {
      if (known.location() == entry.location()) return identity;
    }
    ADD_FAILURE() << "the sweep visited what is not there";
    return {};
  }

  SmallIndex small_;
  BlockIndex& index_;
  const Family& family_;
  Prng prng_;
  uint64_t pages_ = 0;
  uint64_t refused_ = 0;
  std::unordered_map<Identity, Entry, IdentityHash> entries_;
};

class BlockIndexModel : public testing::TestWithParam<std::tuple<uint64_t, size_t>> {};

TEST_P(BlockIndexModel, AgreesUnderRandomWork) {
  const auto& [buckets, family] = GetParam();
  SCOPED_TRACE(kFamilies[family].name);
  Model model(buckets, kFamilies[family]);
  for (int step = 0; step < 20'000; ++step) {
    model.step();
    if (HasFatalFailure()) return;
    if (step % 2'000 == 0) model.check_all();
    if (HasFatalFailure()) return;
  }
  model.check_all();
  model.erase_all();
}

INSTANTIATE_TEST_SUITE_P(Sizes, BlockIndexModel,
                         testing::Combine(testing::Values(1, 2, 3, 7, 64, 101),
                                          testing::Range<size_t>(0, std::size(kFamilies))));

// ---- How full it gets ------------------------------------------------------------------------------------------------------

TEST(BlockIndex, TakesMoreThanItsDesignLoadAndRefusesBeforeItBreaks) {
  SmallIndex small(4'000);
  BlockIndex& index = small.index;
  Prng prng(kSeed);
  std::vector<Hash128> keys;
  for (;;) {
    const Hash128 key = KeyParts::random(prng).key();
    const Status status = index.insert(key, entry_of(keys.size()));
    if (!status.ok()) {
      EXPECT_EQ(status, Code::NoSpace);
      EXPECT_FALSE(index.find(key));
      break;
    }
    keys.push_back(key);
  }
  EXPECT_EQ(index.size(), keys.size());
  EXPECT_GT(static_cast<double>(keys.size()), 0.95 * static_cast<double>(index.slots()));
  EXPECT_GT(index.moves(), 0U);
  for (uint64_t i = 0; i < keys.size(); ++i) ASSERT_EQ(index.find(keys[i]).entry.location().page, i);
}

TEST(BlockIndex, TakesTheBlocksThatItWasSizedFor) {
  for (const uint64_t blocks : {1U, 44U, 1'000U, 50'000U}) {
    const uint64_t bytes = BlockIndex::bytes_for(blocks);
    EXPECT_LE(bytes, blocks * 2910 / 100 + sizeof(Bucket));
    SmallIndex small(bytes / sizeof(Bucket));
    Prng prng(kSeed + blocks);
    for (uint64_t i = 0; i < blocks; ++i) ASSERT_TRUE(small.index.insert(KeyParts::random(prng).key(), entry_of(i)).ok()) << i;
  }
}

// Churn at the design load for many times its size: what erasing leaves behind would fill it up or lengthen its lookups.
TEST(BlockIndex, IsAsGoodAsNewAfterMuchChurn) {
  SmallIndex small(1'000);
  BlockIndex& index = small.index;
  Prng prng(kSeed);
  std::vector<std::pair<Hash128, uint64_t>> live;
  uint64_t pages = 0;
  const auto fill = [&] {
    while (index.size() < index.slots() * 88 / 100) {
      live.emplace_back(KeyParts::random(prng).key(), ++pages);
      ASSERT_TRUE(index.insert(live.back().first, entry_of(pages)).ok());
    }
  };
  fill();
  for (int round = 0; round < 200'000; ++round) {
    std::swap(live[prng.below(live.size())], live.back());
    ASSERT_TRUE(index.erase(live.back().first, entry_of(live.back().second).location()));
    live.pop_back();
    fill();
    if (HasFatalFailure()) return;
  }
  for (const auto& [key, page] : live) ASSERT_EQ(index.find(key).entry.location().page, page);
  EXPECT_LT(static_cast<double>(index.strays()), 0.31 * static_cast<double>(index.size()));
}

// ---- Keys ------------------------------------------------------------------------------------------------------------------

TEST(BlockIndex, TellsKeysApartByEachComparedBit) {
  SmallIndex small(uint64_t{1} << 10);
  BlockIndex& index = small.index;
  const Hash128 key = KeyParts{0xA5A5'A5A5'A5A5, 0x5A'5A5A'5A5A, 0x5A, 0}.key();
  ASSERT_TRUE(index.insert(key, entry_of(1)).ok());
  int alike = 0;
  for (unsigned bit = 0; bit < 128; ++bit) {
    const Hash128 near{key.low ^ (bit < 64 ? uint64_t{1} << bit : 0), key.high ^ (bit < 64 ? 0 : uint64_t{1} << (bit - 64))};
    const bool found = static_cast<bool>(index.find(near));
    alike += found;
    // Bound to the checksum, if not compared; or below the number of buckets.
    const bool rounds_away = bit < 16 || (bit >= 96 && bit < 96 + 32 - 10);
    if (found) {
      EXPECT_TRUE(rounds_away || checksum_bits(near) != checksum_bits(key)) << bit;
    }
    if (rounds_away) {
      EXPECT_TRUE(found) << bit;
    }
  }
  EXPECT_EQ(alike, 16 + 22 + 32);
}

TEST(BlockIndex, ComparesTheHomeOfStraysToo) {
  // One fingerprint and one tag, all homes: with two buckets in reach a stray would be found from both but for its mark.
  SmallIndex small(64);
  BlockIndex& index = small.index;
  const auto key = [](uint64_t home) { return KeyParts{home << 42, 0xFF'0000'1234, 5, 0}.key(); };
  // Fill the homes 0 to 15 with others, then one of the family each: those are strays.
  Prng prng(kSeed);
  for (uint64_t home = 0; home < 16; ++home) {
    for (unsigned i = 0; i < kSlotsPerBucket; ++i) {
      ASSERT_TRUE(index.insert(KeyParts{home << 42, prng.next() >> 24, 6, 0}.key(), entry_of(100 + home * 8 + i)).ok());
    }
    ASSERT_TRUE(index.insert(key(home), entry_of(home)).ok());
  }
  ASSERT_GT(index.strays(), 10U);
  for (uint64_t home = 0; home < 64; ++home) {
    const Found found = index.find(key(home));
    ASSERT_EQ(static_cast<bool>(found), home < 16) << home;
    if (found) {
      EXPECT_EQ(found.entry.location().page, home);
    }
  }
}

// ---- Many at once ----------------------------------------------------------------------------------------------------------

TEST(BlockIndex, FindsManyAsItFindsEach) {
  for (const uint64_t load_percent : {10U, 88U, 96U}) {
    SmallIndex small(500);
    BlockIndex& index = small.index;
    Prng prng(kSeed + load_percent);
    std::vector<Hash128> present;
    while (index.size() < index.slots() * load_percent / 100) {
      const Hash128 key = KeyParts::random(prng).key();
      if (index.insert(key, entry_of(present.size())).ok()) present.push_back(key);
    }
    for (size_t count = 0; count <= 200; ++count) {
      std::vector<Hash128> keys;
      for (size_t i = 0; i < count; ++i) {
        keys.push_back(prng.chance(0.7) ? present[prng.below(present.size())] : KeyParts::random(prng).key());
      }
      std::vector<Found> out(count);
      index.find_many(keys, out);
      size_t first_miss = count;
      for (size_t i = count; i-- > 0;) {
        const Found one = index.find(keys[i]);
        ASSERT_EQ(static_cast<bool>(out[i]), static_cast<bool>(one)) << i;
        ASSERT_EQ(out[i].entry, one.entry);
        ASSERT_EQ(out[i].handle.place, one.handle.place);
        if (!one) first_miss = i;
      }
      std::vector<Found> prefix(count);
      ASSERT_EQ(index.longest_prefix(keys, prefix), first_miss);
      for (size_t i = 0; i < first_miss; ++i) ASSERT_EQ(prefix[i].entry, out[i].entry);
    }
  }
}

TEST(BlockIndex, EndsAPrefixAtItsFirstMissWhereverThatIs) {
  SmallIndex small(200);
  BlockIndex& index = small.index;
  Prng prng(kSeed);
  std::vector<Hash128> keys;
  while (keys.size() < 900) {
    keys.push_back(KeyParts::random(prng).key());
    ASSERT_TRUE(index.insert(keys.back(), entry_of(keys.size())).ok());
  }
  std::vector<Found> out(keys.size());
  EXPECT_EQ(index.longest_prefix(keys, out), keys.size());
  for (size_t at = keys.size(); at-- > 0;) {
    keys[at] = KeyParts::random(prng).key();
    ASSERT_EQ(index.longest_prefix(keys, out), at);
    for (size_t i = 0; i < at; ++i) ASSERT_EQ(out[i].entry.location().page, i + 1);
  }
}

// ---- Sweeps ----------------------------------------------------------------------------------------------------------------

TEST(BlockIndex, VisitsInALapWhatIsThereAllTheWhileThoughInsertsMoveIt) {
  SmallIndex small(60);
  BlockIndex& index = small.index;
  Prng prng(kSeed);
  std::unordered_map<uint64_t, Hash128> live;  // by page
  uint64_t pages = 0;
  const auto churn = [&](uint64_t times) {
    for (uint64_t i = 0; i < times; ++i) {
      const Hash128 key = KeyParts::random(prng).key();
      if (index.insert(key, entry_of(++pages)).ok()) {
        live[pages] = key;
        continue;
      }
      const auto victim = std::next(live.begin(), static_cast<ptrdiff_t>(prng.below(live.size())));
      ASSERT_TRUE(index.erase(victim->second, entry_of(victim->first).location()));
      live.erase(victim);
    }
  };
  churn(600);
  for (int lap = 0; lap < 300; ++lap) {
    const std::unordered_map<uint64_t, Hash128> at_start = live;
    std::unordered_set<uint64_t> visited;
    const uint64_t moves_before = index.moves();
    const auto visit = [&](const Entry& entry) {
      EXPECT_TRUE(whole(entry) || entry.fingerprint() != 0);
      visited.insert(entry.location().page);
      return BlockIndex::Verdict::Keep;
    };
    while (!index.sweep(1 + prng.below(3), visit)) {
      churn(prng.below(8));
      if (HasFatalFailure()) return;
    }
    ASSERT_EQ(index.laps(), static_cast<uint64_t>(lap) + 1);
    ASSERT_GT(index.moves(), moves_before);
    for (const auto& [page, key] : at_start) {
      if (live.contains(page)) {
        ASSERT_TRUE(visited.contains(page)) << "page " << page << " in lap " << lap;
      }
    }
  }
}

TEST(BlockIndex, SweepsNothingMoreThanWasAskedFor) {
  SmallIndex small(10);
  Prng prng(kSeed);
  for (uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(small.index.insert(KeyParts::random(prng).key(), entry_of(i)).ok());
  uint64_t visited = 0;
  const auto count = [&](const Entry&) {
    ++visited;
    return BlockIndex::Verdict::Keep;
  };
  EXPECT_FALSE(small.index.sweep(0, count));
  EXPECT_EQ(visited, 0U);
  EXPECT_FALSE(small.index.sweep(9, count));
  EXPECT_TRUE(small.index.sweep(9, count));
  EXPECT_EQ(visited, 30U);
  EXPECT_TRUE(small.index.sweep(UINT64_MAX, count));
  EXPECT_EQ(visited, 60U);
}

// ---- Memory ----------------------------------------------------------------------------------------------------------------

TEST(BlockIndex, LivesInAMappingOfItsOwnAndSaysOfWhichPages) {
  std::unique_ptr<BlockIndex> index;
  const Fault fault = BlockIndex::create(BlockIndex::bytes_for(100'000), true, &index);
  ASSERT_TRUE(fault.ok()) << fault.what;
  EXPECT_GE(index->bytes(), BlockIndex::bytes_for(100'000));
  EXPECT_EQ(index->mapping().bytes().size() % (2 * MiB), 0U);
  EXPECT_LE(index->mapping().large_bytes(), index->mapping().bytes().size());
  if (index->mapping().pages() == Mapping::Pages::Ordinary) {
    EXPECT_EQ(index->mapping().large_bytes(), 0U);
  }
  Prng prng(kSeed);
  for (uint64_t i = 0; i < 100'000; ++i) ASSERT_TRUE(index->insert(KeyParts::random(prng).key(), entry_of(i)).ok());
}

TEST(BlockIndex, RefusesSizesThatCannotBeWithAReason) {
  std::unique_ptr<BlockIndex> index;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{127}, uint64_t{1} << 62, UINT64_MAX}) {
    const Fault fault = BlockIndex::create(bytes, true, &index);
    EXPECT_FALSE(fault.ok());
    EXPECT_NE(fault.what.find(std::to_string(bytes)), std::string::npos) << fault.what;
    EXPECT_EQ(index, nullptr);
  }
}

}  // namespace block_index_test
}  // namespace halfstep::index
