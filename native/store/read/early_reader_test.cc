// Parts of large blocks that are read whole, handed out as they land: which, in what order, and what becomes of the rest.
#include <gtest/gtest.h>

#include <deque>

#include "store/early_fixture.h"

namespace halfstep::store {
namespace {

class EarlyReads : public EarlyBed {};

TEST_F(EarlyReads, FirstPiecesOfAllBlocksGoBeforeTheSecondOfAny) {
  fill({"a", "b", "c"});
  hold_reads();
  std::vector<Read*> window;
  for (const char* name : {"a", "b", "c"}) ask(name, &window);
  ASSERT_EQ(store->begin_reads(window), Code::Ok);
  ASSERT_EQ(tap->held.size(), 3 + 3 * kPieces);
  std::vector<uint64_t> first;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LE(tap->held[i]->bytes, 8 * kPageBytes);
    first.push_back(tap->held[3 + i]->offset);
  }
  for (size_t i = 3; i < tap->held.size(); ++i) {
    EXPECT_EQ(tap->held[i]->bytes, kPieceBytes);
    EXPECT_EQ(tap->held[i]->offset, first[i % 3] + (i / 3 - 1) * kPieceBytes);
  }
  let_all_go();
  for (auto& told : all) {
    expect_whole(*told);
    give_back(*told);
  }
  settle();
}

TEST_F(EarlyReads, TellOfPartsInTheirOrderAsTheyLand) {
  fill({"block"});
  hold_reads();
  Told& told = begin("block");
  let_go(0);  // the header
  let_go(2);
  EXPECT_TRUE(told.counts.empty()) << "the first parts are not there";
  let_go(1);
  EXPECT_EQ(told.counts, (std::vector<uint32_t>{4}));
  let_go(3);
  EXPECT_EQ(told.counts, (std::vector<uint32_t>{4, 6}));
  EXPECT_EQ(early_reads(), 0U) << "it is not over";
  let_all_go();
  expect_whole(told);
  EXPECT_EQ(told.read.resident, told.read.early);
  EXPECT_LT(told.counts.back(), kParts) << "the end says that the last ones are there";
  EXPECT_EQ(early_reads(), 1U);
  EXPECT_EQ(failed(), 0U);
  EXPECT_EQ(store->counters().hits_flash, 1U);
  give_back(told);
  watch();
  ASSERT_EQ(get("block", kGroupLarge), Code::Ok);
  EXPECT_EQ(bytes_read(), 0U) << "it is kept";
}

TEST_F(EarlyReads, TellNothingBeforeTheHeaderHasLanded) {
  fill({"block"});
  hold_reads();
  Told& told = begin("block");
  for (size_t piece = 1; piece < kPieces; ++piece) let_go(piece);
  EXPECT_TRUE(told.counts.empty());
  let_go(0);
  EXPECT_EQ(told.counts, (std::vector<uint32_t>{kParts - 2}));
  let_all_go();
  expect_whole(told);
  give_back(told);
}

TEST_F(EarlyReads, TellNothingWhereTheHeaderIsDamagedOrCannotBeRead) {
  fill({"block"});
  hold_reads();
  begin("block");
  const uint64_t header = tap->held[0]->offset;
  const uint32_t header_pages = tap->held[0]->bytes / kPageBytes;
  let_all_go();
  expect_whole(*all.back());
  give_back(*all.back());
  for (uint32_t page = 0; page <= header_pages; ++page) {
    SCOPED_TRACE(page);
    reopen();
    if (page < header_pages) {
      device->flip_bit(header + page * kPageBytes + 200, 1);
    } else {
      tap->tap = [&](io::Request& request) { return request.offset == header ? TapEngine::Fate::Fail : TapEngine::Fate::Pass; };
    }
    Told& told = begin("block");
    expect_whole(told);
    EXPECT_TRUE(told.counts.empty());
    EXPECT_EQ(told.read.early, nullptr);
    EXPECT_EQ(early_reads() + failed() + store->counters().misses_corrupt, 0U);
    give_back(told);
    tap->tap = nullptr;
    if (page < header_pages) device->flip_bit(header + page * kPageBytes + 200, 1);
  }
}

TEST_F(EarlyReads, OfWhichTheRestIsDamagedAreAMissAndWhatWasToldStays) {
  fill({"block"});
  hold_reads();
  Told& told = begin("block");
  device->flip_bit(tap->held[1]->offset + 12 * kPartBytes + 77, 3);
  Asked other;
  ASSERT_EQ(PartBed::begin(other, "block", {}), Code::Ok) << "who waits for all of it";
  for (size_t at = 0; at < 6; ++at) let_go(at);
  let_all_go();
  finish(told);
  finish(other);
  EXPECT_EQ(told.read.status, Code::Corrupt);
  EXPECT_EQ(other.read.status, Code::Corrupt);
  EXPECT_EQ(told.counts.back(), 12U);
  EXPECT_EQ(failed(), 1U);
  EXPECT_EQ(store->counters().misses_corrupt, 1U);
  EXPECT_FALSE(store->find(key("block", kGroupLarge)).present) << "judged by the whole of it";
  expect_early(told);
  give_back(told);
  settle();
}

TEST_F(EarlyReads, ThatTheDeviceFailsOnceAreReadAgainIntoOtherMemory) {
  fill({"block"});
  hold_reads();
  Told& told = begin("block");
  for (size_t at = 0; at < 6; ++at) let_go(at);
  ASSERT_EQ(told.counts.back(), 10U);
  const Resident* early = told.read.early;
  tap->held[7]->device = 9;  // there is none
  Asked other;
  ASSERT_EQ(PartBed::begin(other, "block", {}), Code::Ok);
  let_all_go();
  expect_whole(told);
  finish(other);
  expect_right(other, "block", {0, kParts}, shape_of_group(kGroupLarge), kBlockBytes);
  EXPECT_EQ(told.read.early, early);
  EXPECT_NE(told.read.resident, early);
  EXPECT_EQ(other.read.resident, told.read.resident);
  EXPECT_EQ(told.counts.back(), 10U) << "what is read again is not told of in parts";
  EXPECT_EQ(failed(), 1U);
  EXPECT_EQ(store->counters().hits_flash, 2U);
  EXPECT_EQ(told.read.resident->checksum(), early->checksum());
  expect_early(told);
  store->unpin(other.read.resident);
  give_back(told);
  settle();
}

TEST_F(EarlyReads, ThatFailInFullMemoryDoNotWaitForSome) {
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) names.push_back("block " + std::to_string(i));
  fill(names);
  hold_reads();
  Told& told = begin(names[0]);
  for (size_t at = 0; at < 6; ++at) let_go(at);
  ASSERT_EQ(told.counts.back(), 10U);
  Told& second = begin(names[1]);  // whose header takes the room that is left by the first one's
  tap->tap = nullptr;
  std::deque<Asked> others;
  Status status;
  while (status.ok() && others.size() + 2 < names.size()) {
    Asked& other = others.emplace_back();
    status = PartBed::begin(other, names[1 + others.size()], {});
    if (status.ok()) finish(other);
  }
  ASSERT_EQ(status, Code::Throttled) << "what is pinned fills it";
  others.pop_back();
  tap->held[7]->device = 9;  // there is none
  for (size_t at = 6; at <= kPieces; ++at) let_go(at);
  EXPECT_TRUE(told.done);
  EXPECT_EQ(told.read.status, Status(Code::Throttled, kThrottledMemory)) << "others may wait for what it holds";
  EXPECT_EQ(store->counters().misses_memory, 1U);
  expect_early(told);
  for (Asked& other : others) store->unpin(other.read.resident);
  let_all_go();
  expect_whole(second);
  give_back(second);
  give_back(told);
  settle();
  Told& later = begin(names[0]);
  expect_whole(later);
  give_back(later);
}

TEST_F(EarlyReads, OfSmallBlocksAreToldNothing) {
  ASSERT_EQ(put("small", kGroupPlain, 16384, true), Code::Ok);
  ASSERT_EQ(put("ragged", kGroupRagged, 100'001, true), Code::Ok);  // not whole pages: it has a trailer
  reopen();
  for (const auto& [name, group] : {std::pair{"small", kGroupPlain}, {"ragged", kGroupRagged}}) {
    Told& told = begin(name, group);
    finish(told);
    ASSERT_TRUE(told.read.status.ok()) << name;
    EXPECT_TRUE(told.counts.empty()) << name;
    give_back(told);
  }
  EXPECT_EQ(early_reads() + failed(), 0U);
}

TEST_F(EarlyReads, HoldNoMemoryAfterwards) {
  std::vector<std::string> names;
  for (int i = 0; i < 8; ++i) names.push_back("block " + std::to_string(i));
  fill(names);
  tap->tap = nullptr;
  const uint64_t before = slots->free_bytes();
  std::vector<Read*> window;
  for (const std::string& name : names) ask(name, &window);
  ASSERT_EQ(store->begin_reads(window), Code::Ok);
  for (auto& told : all) {
    expect_whole(*told);
    give_back(*told);
  }
  settle();
  EXPECT_EQ(before - slots->free_bytes(), names.size() * kBlockBytes) << "what the cache keeps, and no more";
}

}  // namespace
}  // namespace halfstep::store
