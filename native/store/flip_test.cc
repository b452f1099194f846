// One flipped byte anywhere in the store, under a stopped daemon: never a wrong byte, never a refused start; in a payload
// exactly one miss and one counter; in metadata at most what that page alone describes.
#include <gtest/gtest.h>

#include "store/format/page.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace flip_test {

constexpr uint64_t kSeed = 20261121;
constexpr uint32_t kBlocks = 150;

std::string name_of(uint32_t number) {
  return (number % 2 == 0 ? "block " : "a block with a key of more than thirty-two bytes ") + std::to_string(number);
}
bool deleted(uint32_t number) { return number < 30 && number % 3 == 1; }  // ten, all plain
constexpr uint32_t kDeleted = 10;
uint32_t group_of(uint32_t number) { return number % 3 == 0 ? kGroupRagged : kGroupPlain; }
uint32_t bytes_of(uint32_t number) { return number % 3 == 0 ? 5000 + number : 16384; }

class Flip : public ::testing::Test {
 protected:
  void fill() {
    bed.open();
    std::vector<StoreBed::Put> puts(kBlocks);
    std::vector<std::string> names;
    for (uint32_t i = 0; i < kBlocks; ++i) names.push_back(name_of(i));
    for (uint32_t i = 0; i < kBlocks; ++i) {
      ASSERT_EQ(bed.begin_put(puts[i], names[i], group_of(i), bytes_of(i), true), Code::Ok);
      if (i % 40 == 39) bed.settle();  // frames of several blocks
    }
    bed.settle();
    for (uint32_t i = 0; i < kBlocks; ++i) {
      if (deleted(i)) {
        ASSERT_EQ(bed.remove(name_of(i), group_of(i)), Code::Ok);
      }
    }
    bed.settle();
  }

  struct Outcome {
    uint32_t misses = 0;
    uint64_t corrupt = 0;
    RecoveryReport report;
  };
  Outcome try_with_flip(const io::MemoryDevice& image, uint64_t offset, uint32_t bit) {
    bed.store.reset();
    bed.device = std::make_unique<io::MemoryDevice>(image);
    bed.device->flip_bit(offset, bit);
    bed.restart_engine();
    Outcome outcome;
    const Fault fault = Store::open(*bed.engine, *bed.slots, bed.clock, bed.options, &bed.store);
    EXPECT_TRUE(fault.ok()) << fault.what;
    if (!fault.ok()) return outcome;
    bed.register_layout();
    for (uint32_t i = 0; i < kBlocks; ++i) {
      const Status status = bed.get(name_of(i), group_of(i));  // checks the bytes
      if (deleted(i)) {
        EXPECT_EQ(status, Code::NotFound) << name_of(i) << " was deleted and is back";
      } else if (!status.ok()) {
        ++outcome.misses;
      }
    }
    outcome.corrupt = bed.store->counters().misses_corrupt;
    outcome.report = bed.store->recovery();
    return outcome;
  }

  // Flips bytes of every page that is not all zeros: `dense` of them in metadata, a few in payload.
  template <typename Metadata>
  void flip_everywhere(uint32_t in_metadata, uint32_t in_payload, uint64_t payload_pages_step, Metadata&& metadata) {
    const io::MemoryDevice image(*bed.device);
    const uint64_t segments_from = places_of(bed.geometry).segment(0);
    const uint64_t segments_to = places_of(bed.geometry).segment(bed.geometry.segments);
    Prng prng(kSeed);
    uint64_t payload_pages = 0;
    uint64_t metadata_flips = 0;
    uint64_t payload_flips = 0;
    std::vector<std::byte> page(kPageBytes);
    for (uint64_t offset = 0; offset < bed.geometry.device_bytes && !HasFailure(); offset += kPageBytes) {
      image.read(offset, page);
      uint32_t used = kPageBytes;
      while (used > 0 && page[used - 1] == std::byte{0}) --used;
      if (used == 0) continue;
      const auto header = load_le<format::PageHeader>(page.data());
      const bool payload = offset >= segments_from && offset < segments_to && header.magic != format::kPageMagic;
      if (payload && of_deleted_block(page)) continue;
      if (payload && payload_pages++ % payload_pages_step != 0) continue;
      for (uint32_t i = 0; i < (payload ? in_payload : in_metadata); ++i) {
        // Half of them where the page says something.
        const uint64_t at = offset + prng.below(prng.chance(0.5) ? used : kPageBytes);
        const auto bit = static_cast<uint32_t>(prng.below(8));
        SCOPED_TRACE("seed " + std::to_string(kSeed) + ", byte " + std::to_string(at) + " bit " + std::to_string(bit));
        const Outcome outcome = try_with_flip(image, at, bit);
        if (payload) {
          ++payload_flips;
          EXPECT_EQ(outcome.misses, 1U);
          EXPECT_EQ(outcome.corrupt + outcome.report.blocks_dropped_corrupt, 1U);
        } else {
          ++metadata_flips;
          metadata(outcome, header);
        }
        if (HasFailure()) return;
      }
    }
    EXPECT_GT(metadata_flips, 50U);
    EXPECT_GT(payload_flips, 20U);
  }

  static bool of_deleted_block(ConstBytes page) {
    for (uint32_t i = 0; i < kBlocks; ++i) {
      if (!deleted(i)) continue;
      const std::vector<std::byte> bytes = bytes_of_key(name_of(i), bytes_of(i));
      for (size_t at = 0; at < bytes.size(); at += kPageBytes) {
        if (std::memcmp(bytes.data() + at, page.data(), kPageBytes) == 0) return true;
      }
    }
    return false;
  }

  StoreBed bed{kSeed, 8};
};

TEST_F(Flip, InAStoreThatWasStoppedCleanlyCostsABlockOnlyInItsPayload) {
  fill();
  bed.close();
  flip_everywhere(10, 2, 8, [](const Outcome& outcome, const format::PageHeader&) {
    EXPECT_EQ(outcome.misses, 0U) << "metadata is there twice";
  });
}

TEST_F(Flip, InAStoreThatLostPowerCostsAtMostWhatThePageDescribes) {
  fill();
  bed.crash(io::MemoryEngine::Crash::PowerCut);
  flip_everywhere(6, 1, 12, [](const Outcome& outcome, const format::PageHeader& header) {
    const bool entries =
        header.magic == format::kPageMagic && header.kind == static_cast<uint8_t>(format::PageKind::FrameEntries);
    EXPECT_LE(outcome.misses, entries ? header.entries : 0U);
  });
}

TEST_F(Flip, OfEveryByteOfTheStoreHeaderIsRepairedFromTheOtherCopy) {
  fill();
  bed.close();
  const io::MemoryDevice image(*bed.device);
  std::vector<std::byte> page(kPageBytes);
  for (uint32_t copy = 0; copy < 2; ++copy) {
    const uint64_t from = places_of(bed.geometry).header(copy);
    image.read(from, page);
    const uint32_t used = load_le<format::StoreHeader>(page.data()).header_bytes;
    ASSERT_GT(used, sizeof(format::StoreHeader));
    for (uint32_t at = 0; at < used && !HasFailure(); ++at) {
      SCOPED_TRACE("copy " + std::to_string(copy) + ", byte " + std::to_string(at));
      bed.store.reset();
      bed.device = std::make_unique<io::MemoryDevice>(image);
      bed.device->flip_bit(from + at, at % 8);
      bed.restart_engine();
      bed.open();
      EXPECT_EQ(bed.store->recovery().notes.size(), 1U);
      EXPECT_EQ(bed.store->recovery().blocks, kBlocks - kDeleted);
      if (at % 8 != 0) continue;
      // Both copies are whole again: the other one may be damaged now.
      bed.store.reset();
      bed.device->flip_bit(places_of(bed.geometry).header(1 - copy) + at, 3);
      bed.restart_engine();
      bed.open();
      EXPECT_EQ(bed.store->recovery().blocks, kBlocks - kDeleted);
    }
  }
}

TEST_F(Flip, OfBothStoreHeadersIsRefusedInWords) {
  bed.open();
  bed.close();
  for (uint32_t copy = 0; copy < 2; ++copy) bed.device->flip_bit(places_of(bed.geometry).header(copy) + 100, 0);
  bed.restart_engine();
  Fault fault = Store::open(*bed.engine, *bed.slots, bed.clock, bed.options, &bed.store);
  EXPECT_EQ(fault.status, Code::Corrupt);
  EXPECT_NE(fault.what.find("both damaged"), std::string::npos);

  bed.device = std::make_unique<io::MemoryDevice>(bed.geometry.device_bytes);
  bed.restart_engine();
  fault = Store::open(*bed.engine, *bed.slots, bed.clock, bed.options, &bed.store);
  EXPECT_EQ(fault.status, Code::NotFound);
  EXPECT_NE(fault.what.find("not a store"), std::string::npos);
}

}  // namespace flip_test
}  // namespace halfstep::store
