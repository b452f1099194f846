// part_fixture.h — large blocks on flash of which tests read some parts, or all of them part by part.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "base/crc.h"
#include "store/store_fixture.h"

namespace halfstep::store {

inline constexpr uint32_t kParts = 16;
inline constexpr uint32_t kPartBytes = 16384;
inline constexpr uint32_t kBlockBytes = kParts * kPartBytes;

class PartBed : public StoreBed, public ::testing::Test {
 protected:
  PartBed() : StoreBed(1, 24, 8 * MiB) { open(); }

  struct Asked {
    Read read;
    bool done = false;
  };

  // On flash, and nowhere else.
  void fill(const std::vector<std::string>& names, uint32_t group = kGroupLarge, uint32_t bytes = kBlockBytes) {
    for (const std::string& name : names) ASSERT_EQ(put(name, group, bytes, true), Code::Ok) << name;
    reopen();
    watch();
  }
  // From now on the offsets and lengths of what is read.
  void watch() {
    reads.clear();
    tap->tap = [this](io::Request& request) {
      if (request.op == io::Op::Read) reads[request.offset] = request.bytes;
      return TapEngine::Fate::Pass;
    };
  }
  uint64_t bytes_read() const {
    uint64_t bytes = 0;
    for (const auto& [offset, count] : reads) bytes += count;
    return bytes;
  }

  Status begin(Asked& asked, std::string_view name, PartSpan parts, uint32_t group = kGroupLarge) {
    asked.read.key = key(name, group);
    asked.read.component = wire::Component::of(group, 0, 0);
    asked.read.parts = parts;
    asked.read.owner = &asked;
    asked.read.complete = [](Read& read) { static_cast<Asked*>(read.owner)->done = true; };
    Read* window[] = {&asked.read};
    return store->begin_reads(window);
  }
  void finish(Asked& asked) {
    for (int turns = 0; turns < 10'000 && !asked.done; ++turns) pump();
    ASSERT_TRUE(asked.done);
  }
  // Whether these parts came, with the bytes and sums that they should have.
  void expect_right(const Asked& asked, std::string_view name, PartSpan parts, const wire::GroupShape& shape,
                    uint32_t block_bytes) {
    ASSERT_TRUE(asked.read.status.ok());
    expect_right(*asked.read.resident, name, parts, shape, block_bytes);
  }
  void expect_right(const Resident& resident, std::string_view name, PartSpan parts, const wire::GroupShape& shape,
                    uint32_t block_bytes) {
    const std::vector<std::byte> content = bytes_of_key(name, block_bytes);
    ASSERT_EQ(resident.block_bytes(), block_bytes);
    ASSERT_EQ(resident.parts().size(), shape.parts_of(block_bytes));
    for (uint32_t p = parts.first; p < parts.first + parts.count; ++p) {
      const PartInfo& part = resident.parts()[p];
      ASSERT_EQ(part.stored_bytes, shape.bytes_of(p, block_bytes)) << p;
      std::vector<std::byte> got;
      resident.slot().for_range(part.offset, part.stored_bytes,
                                [&](Bytes piece) { got.insert(got.end(), piece.begin(), piece.end()); });
      const ConstBytes wanted = ConstBytes(content).subspan(shape.offset_of(p), got.size());
      ASSERT_TRUE(std::ranges::equal(got, wanted)) << "part " << p << " of " << name;
      ASSERT_EQ(part.stored_crc, crc32c(wanted));
      ASSERT_EQ(part.codec, 0);
    }
  }
  // So many reads at once, each of `count` parts of one of these blocks: none begins, and none holds memory.
  void expect_no_memory_for(const std::vector<std::string>& names, size_t reads_at_once, uint32_t count) {
    const uint64_t before = store->gauges().memory_resident_bytes;
    std::vector<Asked> asked(reads_at_once);
    std::vector<Read*> window;
    for (size_t i = 0; i < asked.size(); ++i) {
      asked[i].read.key = key(names[i % names.size()], kGroupLarge);
      asked[i].read.component = wire::Component::of(kGroupLarge, 0, 0);
      asked[i].read.parts = {static_cast<uint32_t>(i % 8), count};
      asked[i].read.complete = [](Read&) { FAIL() << "it did not begin"; };
      window.push_back(&asked[i].read);
    }
    EXPECT_EQ(store->begin_reads(window), Code::TooLarge);
    EXPECT_EQ(store->gauges().memory_resident_bytes, before);
    settle();
  }
  static std::vector<std::string> names_of(int count) {
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.push_back("block " + std::to_string(i));
    return names;
  }
  static wire::GroupShape shape_of_group(uint32_t group) { return test_layout().groups()[group]; }

  std::map<uint64_t, uint32_t> reads;
};

}  // namespace halfstep::store
