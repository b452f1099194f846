// Parts of coded blocks that are read whole, handed out as they land: once their trailer is there, and believed.
#include <gtest/gtest.h>

#include "store/early_fixture.h"

namespace halfstep::store {
namespace {

class CodedEarly : public EarlyBed {
 protected:
  void expect_early(const Told& told) override {
    ASSERT_NE(told.read.early, nullptr);
    expect_coded(*told.read.early, told.name, {0, told.read.parts_landed});
  }
  void expect_whole(Told& told) override {
    finish(told);
    ASSERT_TRUE(told.read.status.ok());
    expect_coded(*told.read.resident, told.name, {0, kParts});
  }
  // How many parts end with the first `bytes` of the extent.
  static uint32_t parts_before(uint64_t bytes) {
    uint32_t parts = 0;
    for (const PartInfo& part : coded_parts()) parts += uint64_t{part.offset} + part.stored_bytes <= bytes ? 1 : 0;
    return parts;
  }
  static constexpr uint64_t kTrailerBytes = kPageBytes;
  const uint64_t extent_bytes = shape_of_parts(coded_parts()).extent_bytes();
  const size_t pieces = div_up(extent_bytes - kTrailerBytes, kPieceBytes);
};

TEST_F(CodedEarly, TrailersGoFirstThenTheFirstPiecesOfAllBlocksAndEachPageOnce) {
  fill_coded({"a", "b", "c"});
  hold_reads();
  std::vector<Read*> window;
  for (const char* name : {"a", "b", "c"}) ask(name, &window);
  ASSERT_EQ(store->begin_reads(window), Code::Ok);
  ASSERT_EQ(tap->held.size(), 3 + 3 * pieces);
  uint64_t bytes = 0;
  for (size_t i = 0; i < tap->held.size(); ++i) {
    const uint64_t extent = tap->held[i % 3]->offset + kTrailerBytes - extent_bytes;
    EXPECT_EQ(tap->held[i]->offset, i < 3 ? extent + extent_bytes - kTrailerBytes : extent + (i / 3 - 1) * kPieceBytes);
    bytes += tap->held[i]->bytes;
  }
  EXPECT_EQ(bytes, 3 * extent_bytes) << "nothing beside the blocks";
  let_all_go();
  for (auto& told : all) {
    expect_whole(*told);
    give_back(*told);
  }
  settle();
}

TEST_F(CodedEarly, TellOfPartsInTheirOrderAsTheyLand) {
  fill_coded({"block"});
  hold_reads();
  Told& told = begin("block");
  let_go(0);
  let_go(2);
  EXPECT_TRUE(told.counts.empty()) << "the first parts are not there";
  let_go(1);
  EXPECT_EQ(told.counts, (std::vector<uint32_t>{parts_before(2 * kPieceBytes)}));
  let_go(3);
  EXPECT_EQ(told.counts.back(), parts_before(3 * kPieceBytes));
  EXPECT_EQ(early_reads(), 0U) << "it is not over";
  let_all_go();
  expect_whole(told);
  EXPECT_EQ(told.read.resident, told.read.early);
  EXPECT_EQ(early_reads(), 1U);
  EXPECT_EQ(EarlyBed::failed(), 0U);
  EXPECT_EQ(store->counters().hits_flash, 1U);
  give_back(told);
  watch();
  ASSERT_EQ(get("block", kGroupLarge), Code::Ok);
  expect_parts("block", {3, 1});
  EXPECT_EQ(bytes_read(), 0U) << "it is kept";
}

TEST_F(CodedEarly, TellNothingBeforeTheTrailerHasLanded) {
  fill_coded({"block"});
  hold_reads();
  Told& told = begin("block");
  for (size_t piece = 1; piece < pieces; ++piece) let_go(piece);
  EXPECT_TRUE(told.counts.empty());
  let_go(0);
  EXPECT_EQ(told.counts, (std::vector<uint32_t>{parts_before((pieces - 1) * kPieceBytes)}));
  let_all_go();
  expect_whole(told);
  give_back(told);
}

TEST_F(CodedEarly, TellNothingWhereTheTrailerIsDamagedAndTheBlockIsAMiss) {
  fill_coded({"block"});
  hold_reads();
  Told& told = begin("block");
  // A sum, which its part does not fit, and which it would be taken for.
  device->flip_bit(tap->held[0]->offset + kPageBytes - sizeof(format::TrailerTail) - 2 * sizeof(format::TrailerPart) + 12, 1);
  for (size_t at = 0; at <= pieces; ++at) let_go(at);
  let_all_go();
  finish(told);
  EXPECT_EQ(told.read.status, Code::Corrupt);
  EXPECT_TRUE(told.counts.empty());
  EXPECT_EQ(told.read.early, nullptr);
  EXPECT_EQ(store->counters().misses_corrupt, 1U);
  EXPECT_EQ(early_reads() + EarlyBed::failed(), 0U);
  EXPECT_FALSE(store->find(key("block", kGroupLarge)).present);
}

TEST_F(CodedEarly, TellNothingWhereTheDeviceFailsTheTrailerOnce) {
  fill_coded({"block"});
  hold_reads();
  Told& told = begin("block");
  tap->held[0]->device = 9;  // there is none
  for (size_t at = 0; at <= pieces; ++at) let_go(at);
  EXPECT_TRUE(told.counts.empty());
  let_all_go();
  expect_whole(told);
  EXPECT_TRUE(told.counts.empty()) << "it was read again";
  EXPECT_EQ(early_reads() + EarlyBed::failed(), 0U);
  give_back(told);
}

TEST_F(CodedEarly, OfWhichTheRestIsDamagedAreAMissAndWhatWasToldStays) {
  fill_coded({"block"});
  hold_reads();
  Told& told = begin("block");
  device->flip_bit(tap->held[pieces]->offset + 77, 3);
  for (size_t at = 0; at < pieces; ++at) let_go(at);
  ASSERT_FALSE(told.counts.empty());
  const uint32_t before = told.counts.back();
  let_all_go();
  finish(told);
  EXPECT_EQ(told.read.status, Code::Corrupt);
  EXPECT_EQ(told.counts.back(), before);
  EXPECT_EQ(EarlyBed::failed(), 1U);
  EXPECT_EQ(store->counters().misses_corrupt, 1U);
  expect_early(told);
  give_back(told);
  settle();
}

TEST_F(CodedEarly, ThatTheDeviceFailsOnceAreReadAgainIntoOtherMemory) {
  fill_coded({"block"});
  hold_reads();
  Told& told = begin("block");
  for (size_t at = 0; at < pieces; ++at) let_go(at);
  const Resident* early = told.read.early;
  ASSERT_NE(early, nullptr);
  tap->held[pieces]->device = 9;  // there is none
  let_all_go();
  expect_whole(told);
  EXPECT_EQ(told.read.early, early);
  EXPECT_NE(told.read.resident, early);
  EXPECT_EQ(EarlyBed::failed(), 1U);
  EXPECT_EQ(told.read.resident->checksum(), early->checksum());
  expect_early(told);
  give_back(told);
  settle();
}

// Two pages of a trailer that lie in different pieces of memory come in two requests: it is there with the later one.
class LongTrailer : public CodedEarly {
 protected:
  static constexpr uint32_t kRawBytes = 262'144;

  // One group, of parts of 1,000 bytes.
  void use_small_parts() {
    wire::Layout layout;
    ASSERT_TRUE(
        wire::Layout::make({{"model", "small parts"}}, {{.part_count = 0, .size_count = 1, .part_bytes = {1000}}}, &layout)
            .ok());
    scope = 0;
    store->register_layout("default", layout, [this](Status, uint32_t got) { scope = got; });
    while (scope == 0) pump();
  }
};

TEST_F(LongTrailer, IsThereWithTheLastOfItsRequests) {
  std::vector<PartInfo> parts(div_up(kRawBytes, 1000));
  uint32_t stored = 0;
  for (uint32_t p = 0; p < parts.size(); ++p) {
    const uint32_t raw = std::min(1000U, kRawBytes - p * 1000);
    parts[p] = {stored, std::min(raw, 990U), raw, 0, p, kCodec};
    stored += parts[p].stored_bytes;
  }
  ASSERT_EQ(shape_of_parts(parts).extent_bytes(), kPieceBytesMax + kPageBytes);
  ASSERT_EQ(trailer_pages(static_cast<uint32_t>(parts.size())), 2U);
  use_small_parts();
  Put put;
  ASSERT_EQ(begin_put(put, "straddles", 0, kRawBytes, true, parts), Code::Ok);
  settle();
  ASSERT_TRUE(put.done);
  for (const size_t first : {0U, 1U}) {
    reopen();
    use_small_parts();
    const Slot elsewhere = slots->take(kPageBytes);  // its last page will lie beside this one
    hold_reads();
    Told& told = begin("straddles", 0);
    told.read.landed = [](Read& read) {
      static_cast<Told&>(*static_cast<Asked*>(read.owner)).counts.push_back(read.parts_landed);
    };
    ASSERT_EQ(tap->held[0]->bytes, kPageBytes);
    ASSERT_EQ(tap->held[1]->offset, tap->held[0]->offset + kPageBytes);
    let_go(2);
    let_go(first);
    EXPECT_TRUE(told.counts.empty());
    let_go(1 - first);
    EXPECT_EQ(told.counts, (std::vector<uint32_t>{kPieceBytes / 990}));
    let_all_go();
    finish(told);
    ASSERT_TRUE(told.read.status.ok());
    give_back(told);
    EXPECT_EQ(get("straddles", 0), Code::Ok);
  }
}

}  // namespace
}  // namespace halfstep::store
