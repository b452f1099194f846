// Which requests go to the kernel as one.
#include "io/gather_run.h"

#include <gtest/gtest.h>

#include <vector>

namespace halfstep::io {
namespace {

Request transfer(Op op, uint64_t offset, uint32_t bytes, void* owner = nullptr) {
  return {.op = op, .whole = owner != nullptr, .bytes = bytes, .offset = offset, .owner = owner};
}

// How many of them, one behind the other from the first on, are in its run.
size_t run_of(const std::vector<Request>& requests) {
  GatherRun run;
  run.begin(requests.front());
  size_t count = 1;
  for (; count < requests.size() && run.takes(requests[count]); ++count) run.add(requests[count]);
  return count;
}

std::vector<Request> neighbours(size_t count, Op op, uint32_t bytes, void* owner = nullptr) {
  std::vector<Request> all;
  for (size_t i = 0; i < count; ++i) all.push_back(transfer(op, i * bytes, bytes, owner));
  return all;
}

int block = 0;
int other = 0;

TEST(GatherRun, SmallReadsOfAnybodyToAQuarterOfAMebibyte) {
  EXPECT_EQ(run_of(neighbours(40, Op::Read, 16 * KiB)), 16U);
  EXPECT_EQ(run_of(neighbours(8, Op::Read, 64 * KiB)), 4U);
  EXPECT_EQ(run_of(neighbours(8, Op::Read, 68 * KiB)), 1U);
  EXPECT_EQ(run_of(neighbours(8, Op::Write, 16 * KiB)), 1U);
}

TEST(GatherRun, PiecesOfOneThingToAMebibyte) {
  EXPECT_EQ(run_of(neighbours(8, Op::Read, 256 * KiB, &block)), 4U);
  EXPECT_EQ(run_of(neighbours(8, Op::Write, 256 * KiB, &block)), 4U);
  EXPECT_EQ(run_of(neighbours(300, Op::Write, kPageBytes, &block)), 256U);
  EXPECT_EQ(run_of(neighbours(300, Op::Read, kPageBytes, &block)), 256U);
}

TEST(GatherRun, NoLargePieceOfAnotherThing) {
  auto pieces = neighbours(4, Op::Read, 128 * KiB, &block);
  pieces[2].owner = &other;
  EXPECT_EQ(run_of(pieces), 2U);
  pieces[2].owner = &block;
  pieces[2].whole = false;
  EXPECT_EQ(run_of(pieces), 2U);
  auto frames = neighbours(4, Op::Write, kPageBytes, &block);
  frames[3].owner = &other;
  EXPECT_EQ(run_of(frames), 3U);
}

// Small ones of several are not one thing, and do not grow beyond what small ones may.
TEST(GatherRun, SmallReadsOfSeveralThingsAreNotOne) {
  auto pieces = neighbours(300, Op::Read, kPageBytes, &block);
  pieces[1].owner = &other;
  EXPECT_EQ(run_of(pieces), 64U);
  GatherRun run;
  run.begin(pieces[0]);
  EXPECT_EQ(run.owner(), &block);
  run.add(pieces[1]);
  EXPECT_EQ(run.owner(), nullptr);
}

TEST(GatherRun, OnlyNeighboursOfOneOperationAndDevice) {
  for (const auto& spoil : std::vector<void (*)(Request&)>{
           [](Request& r) { r.offset += kPageBytes; },
           [](Request& r) { r.op = Op::Read; },
           [](Request& r) { r.device = 1; },
           [](Request& r) { r.alone = true; },
           [](Request& r) { r.engine_apart = true; },
           [](Request& r) { r.engine_retries = 1; },
           [](Request& r) { r.engine_done_bytes = kPageBytes; },
       }) {
    auto pieces = neighbours(4, Op::Write, 64 * KiB, &block);
    spoil(pieces[2]);
    EXPECT_EQ(run_of(pieces), 2U);
    pieces = neighbours(4, Op::Write, 64 * KiB, &block);
    spoil(pieces[0]);
    EXPECT_EQ(run_of(pieces), 1U);
  }
}

TEST(GatherRun, NothingButReadsAndWrites) {
  EXPECT_EQ(run_of(neighbours(4, Op::Discard, 64 * KiB, &block)), 1U);
  EXPECT_EQ(run_of(neighbours(4, Op::Flush, 0, &block)), 1U);
}

}  // namespace
}  // namespace halfstep::io
