#include "base/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/prng.h"

namespace halfstep {
namespace {

struct Piece {
  std::byte* at;
  size_t bytes;
};

std::vector<Piece> pieces_of(const Slot& slot) {
  std::vector<Piece> out;
  slot.for_range(0, slot.bytes(), [&](Bytes piece) { out.push_back({piece.data(), piece.size()}); });
  return out;
}

class Slots : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(Arena::create(8 * MiB, false, &arena_).ok()); }
  std::unique_ptr<Arena> arena_;
};

TEST_F(Slots, AreChunksAndOneTailOnPageBorders) {
  SlotPool pool(*arena_);
  EXPECT_EQ(pool.capacity_bytes(), 8 * MiB);
  const Slot slot = pool.take(2 * kPieceBytesMax + 5000);
  ASSERT_FALSE(slot.empty());
  EXPECT_EQ(slot.bytes(), 2 * kPieceBytesMax + 5000);
  EXPECT_EQ(slot.piece_count(), 3U);
  EXPECT_EQ(slot.held_bytes(), 2 * kPieceBytesMax + 8192);
  EXPECT_EQ(pool.free_bytes(), pool.capacity_bytes() - slot.held_bytes());
  const std::vector<Piece> pieces = pieces_of(slot);
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(pieces[0].bytes, kPieceBytesMax);
  EXPECT_EQ(pieces[1].bytes, kPieceBytesMax);
  EXPECT_EQ(pieces[2].bytes, 5000U);
  for (const Piece& piece : pieces) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece.at) % kPageBytes, 0U);
    EXPECT_GE(piece.at, arena_->bytes().data());
    EXPECT_LE(piece.at + piece.bytes, arena_->bytes().data() + arena_->bytes().size());
  }
}

TEST_F(Slots, HoldExactlyWhatTheySay) {
  SlotPool pool(*arena_);
  for (const uint64_t bytes : {1UL, 4095UL, 4096UL, 4097UL, 8192UL, 12288UL, 16384UL, 20480UL, 131072UL, 131073UL, 262143UL,
                               262144UL, 262145UL, 1UL << 20, (1UL << 20) + 1}) {
    const Slot slot = pool.take(bytes);
    ASSERT_FALSE(slot.empty()) << bytes;
    EXPECT_GE(slot.held_bytes(), bytes);
    EXPECT_EQ(slot.held_bytes(), SlotPool::held_bytes(bytes));
    EXPECT_EQ(pool.capacity_bytes() - pool.free_bytes(), slot.held_bytes()) << bytes;
  }
  EXPECT_EQ(pool.free_bytes(), pool.capacity_bytes());
}

TEST_F(Slots, AreEmptyWhenThePoolCannotHoldThemAndNothingLeaks) {
  SlotPool pool(*arena_);
  EXPECT_TRUE(pool.take(8 * MiB + 1).empty());
  EXPECT_EQ(pool.free_bytes(), pool.capacity_bytes());
  const Slot most = pool.take(8 * MiB - kPieceBytesMax);
  const Slot page = pool.take(4096);
  ASSERT_FALSE(page.empty());
  // 252 KiB are free, but in a chunk that is cut into pages: one of 128 KiB finds no chunk of its
  // own.
  EXPECT_GT(pool.free_bytes(), 128 * KiB);
  const uint64_t free_before = pool.free_bytes();
  EXPECT_TRUE(pool.take(128 * KiB).empty());
  EXPECT_EQ(pool.free_bytes(), free_before);
}

TEST_F(Slots, GiveBackTheirChunksWhenTheTailFindsNone) {
  SlotPool pool(*arena_);
  const Slot most = pool.take(8 * MiB - 2 * kPieceBytesMax);
  const Slot page = pool.take(4096);  // cuts one of the two chunks left into pages
  const uint64_t free_before = pool.free_bytes();
  EXPECT_TRUE(pool.take(kPieceBytesMax + 128 * KiB).empty()) << "its chunk is there, its tail is not";
  EXPECT_EQ(pool.free_bytes(), free_before);
  const Slot chunk = pool.take(kPieceBytesMax);
  EXPECT_FALSE(chunk.empty()) << "the chunk came back";
}

TEST_F(Slots, MoveWithoutGivingBack) {
  SlotPool pool(*arena_);
  Slot a = pool.take(100'000);
  const std::byte* first = pieces_of(a)[0].at;
  Slot b = std::move(a);
  EXPECT_TRUE(a.empty());  // NOLINT: what a moved-from slot is, is part of the contract
  EXPECT_EQ(pieces_of(b)[0].at, first);
  EXPECT_LT(pool.free_bytes(), pool.capacity_bytes());
  b = pool.take(4096);
  EXPECT_EQ(pool.capacity_bytes() - pool.free_bytes(), 4096U) << "assignment gave the old one back";
  b = Slot();
  EXPECT_EQ(pool.free_bytes(), pool.capacity_bytes());
}

// Random takes and gives against a model of every page's owner.
TEST_F(Slots, NeverOverlapAndAllComesBack) {
  SlotPool pool(*arena_);
  struct Held {
    Slot slot;
    std::vector<Piece> pieces;
  };
  std::vector<Held> held;
  std::vector<uint64_t> owner(arena_->bytes().size() / kPageBytes);  // 0: nobody's
  uint64_t held_bytes = 0;
  uint64_t refused = 0;
  const auto mark = [&](const std::vector<Piece>& pieces, uint64_t from, uint64_t to) {
    for (const Piece& piece : pieces) {
      const auto page = static_cast<size_t>(piece.at - arena_->bytes().data()) / kPageBytes;
      for (size_t i = 0; i < div_up(piece.bytes, kPageBytes); ++i) {
        ASSERT_EQ(owner[page + i], from);
        owner[page + i] = to;
      }
    }
  };
  Prng prng(21);
  for (uint64_t step = 1; step <= 20'000; ++step) {
    const bool filling = (step / 2000) % 2 == 0;
    if (held.empty() || prng.chance(filling ? 0.6 : 0.4)) {
      const uint64_t limit = uint64_t{1} << prng.below(21);
      const uint64_t bytes = prng.below(limit) + 1;
      Slot slot = pool.take(bytes);
      if (slot.empty()) {
        ++refused;
        continue;
      }
      ASSERT_EQ(slot.bytes(), bytes);
      std::vector<Piece> pieces = pieces_of(slot);
      uint64_t covered = 0;
      for (const Piece& piece : pieces) covered += piece.bytes;
      ASSERT_EQ(covered, bytes);
      mark(pieces, 0, step);
      held_bytes += slot.held_bytes();
      held.push_back({std::move(slot), std::move(pieces)});
    } else {
      const size_t victim = prng.below(held.size());
      std::swap(held[victim], held.back());
      const auto page = static_cast<size_t>(held.back().pieces[0].at - arena_->bytes().data()) / kPageBytes;
      mark(held.back().pieces, owner[page], 0);
      held_bytes -= held.back().slot.held_bytes();
      held.pop_back();
    }
    ASSERT_EQ(pool.capacity_bytes() - pool.free_bytes(), held_bytes);
  }
  EXPECT_GT(refused, 0U) << "the pool was never full: the test did not reach its end";
  held.clear();
  EXPECT_EQ(pool.free_bytes(), pool.capacity_bytes());
  EXPECT_FALSE(pool.take(pool.capacity_bytes()).empty()) << "all of it is whole chunks again";
}

TEST_F(Slots, RangesAreTheSamePiecesInAnyOrderOfAsking) {
  SlotPool pool(*arena_);
  // Two slots taken in turns, so that neither is one run of memory.
  std::vector<Slot> between;
  for (int i = 0; i < 6; ++i) between.push_back(pool.take(kPieceBytesMax));
  for (size_t i = 0; i < between.size(); i += 2) between[i] = Slot();
  const Slot slot = pool.take(7 * kPieceBytesMax + 77'777);
  ASSERT_FALSE(slot.empty());
  const std::vector<Piece> whole = pieces_of(slot);
  std::vector<std::byte*> address(slot.bytes());
  size_t at = 0;
  for (const Piece& piece : whole) {
    for (size_t i = 0; i < piece.bytes; ++i) address[at++] = piece.at + i;
  }
  ASSERT_EQ(at, slot.bytes());

  const auto check = [&](uint64_t offset, uint64_t count) {
    uint64_t seen = 0;
    slot.for_range(offset, count, [&](Bytes piece) {
      ASSERT_LE(piece.size(), kPieceBytesMax);
      ASSERT_GT(piece.size(), 0U);
      ASSERT_EQ(piece.data(), address[offset + seen]) << offset << "+" << seen;
      ASSERT_EQ(piece.data() + piece.size() - 1, address[offset + seen + piece.size() - 1]);
      seen += piece.size();
    });
    ASSERT_EQ(seen, count);
  };
  for (uint64_t offset = 0; offset < slot.bytes(); offset += 100'000) {
    check(offset, std::min<uint64_t>(100'000, slot.bytes() - offset));
  }
  Prng prng(22);
  for (int round = 0; round < 5000; ++round) {
    const uint64_t offset = prng.below(slot.bytes() + 1);
    check(offset, prng.below(slot.bytes() - offset + 1));
  }
  check(slot.bytes(), 0);
  check(2 * kPieceBytesMax, kPieceBytesMax);
  check(0, 1);
}

}  // namespace
}  // namespace halfstep
