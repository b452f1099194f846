// coded_fixture.h — coded blocks on flash, of which tests read some parts, or all of them part by part.
#pragma once

#include <string_view>
#include <vector>

#include "store/format/extent_layout.h"
#include "store/part_fixture.h"

namespace halfstep::store {

// Blocks of the large group: no part is as long as another one, and each fifth is raw.
class CodedBed : public PartBed {
 protected:
  static constexpr uint8_t kCodec = 3;

  static std::vector<PartInfo> coded_parts(uint32_t shortest = 7000) {
    std::vector<PartInfo> parts(kParts);
    uint32_t at = 0;
    for (uint32_t p = 0; p < kParts; ++p) {
      const bool raw = p % 5 == 4;
      parts[p] = {at, raw ? kPartBytes : shortest + 331 * p, kPartBytes, 0, 0xC0DE0000 + p, raw ? uint8_t{0} : kCodec};
      at += parts[p].stored_bytes;
    }
    return parts;
  }
  static ExtentShape shape_of_parts(const std::vector<PartInfo>& parts) {
    return shape_of(parts, parts.back().offset + parts.back().stored_bytes);
  }
  // The pages that a part lies in.
  static uint64_t page_bytes_of(const std::vector<PartInfo>& parts, PartSpan span) {
    const PartInfo& last = parts[span.first + span.count - 1];
    return round_up(last.offset + last.stored_bytes, kPageBytes) - round_down(parts[span.first].offset, kPageBytes);
  }

  Status put_coded(std::string_view name, const std::vector<PartInfo>& parts = coded_parts()) {
    Put put;
    Status status;
    for (int tries = 0; tries < 2000; ++tries) {
      status = begin_put(put, name, kGroupLarge, kBlockBytes, true, parts);
      if (!(status == Code::Throttled)) break;
      pump();
    }
    if (!status.ok()) return status;
    for (int turns = 0; turns < 100'000 && !put.done; ++turns) pump();
    EXPECT_TRUE(put.done);
    return put.write.status;
  }
  // On flash, and nowhere else.
  void fill_coded(const std::vector<std::string>& names, const std::vector<PartInfo>& parts = coded_parts()) {
    for (const std::string& name : names) ASSERT_EQ(put_coded(name, parts), Code::Ok) << name;
    reopen();
    watch();
  }

  // Whether these parts came as they were put, and what the block is made of with them.
  static void expect_coded(const Resident& resident, std::string_view name, PartSpan span,
                           const std::vector<PartInfo>& parts = coded_parts()) {
    const std::vector<std::byte> content = bytes_of_key(name, parts.back().offset + parts.back().stored_bytes);
    ASSERT_EQ(resident.block_bytes(), kBlockBytes);
    ASSERT_EQ(resident.parts().size(), parts.size());
    for (uint32_t p = 0; p < parts.size(); ++p) {
      const PartInfo& part = resident.parts()[p];
      const ConstBytes wanted = ConstBytes(content).subspan(parts[p].offset, parts[p].stored_bytes);
      ASSERT_EQ(part.codec, parts[p].codec) << p;
      ASSERT_EQ(part.stored_bytes, parts[p].stored_bytes) << p;
      ASSERT_EQ(part.raw_bytes, parts[p].raw_bytes) << p;
      ASSERT_EQ(part.raw_crc, parts[p].codec != 0 ? parts[p].raw_crc : crc32c(wanted)) << p;
      if (p < span.first || p - span.first >= span.count) continue;
      ASSERT_TRUE(part.is_there()) << p;
      ASSERT_EQ(part.stored_crc, crc32c(wanted)) << p;
      std::vector<std::byte> got;
      resident.slot().for_range(part.offset, part.stored_bytes,
                                [&](Bytes piece) { got.insert(got.end(), piece.begin(), piece.end()); });
      ASSERT_TRUE(std::ranges::equal(got, wanted)) << "part " << p << " of " << name;
    }
  }
  // Reads them, and compares them.
  void expect_parts(std::string_view name, PartSpan span, const std::vector<PartInfo>& parts = coded_parts()) {
    Asked asked;
    ASSERT_EQ(begin(asked, name, span), Code::Ok);
    finish(asked);
    ASSERT_TRUE(asked.read.status.ok());
    expect_coded(*asked.read.resident, name, span, parts);
    store->unpin(asked.read.resident);
  }
  uint64_t part_reads() const { return store->counters().part_reads; }
  uint64_t failed() const { return store->counters().part_reads_failed; }
};

}  // namespace halfstep::store
