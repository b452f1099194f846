// Neighbours on a device, which an engine may hand to the kernel as one: each has its own bytes, and its own error.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "base/prng.h"
#include "io/engine_fixture.h"

namespace halfstep::io {
namespace {

class EngineGather : public EngineContract {};

// Pages that no ring has registered.
std::unique_ptr<std::byte, decltype(&std::free)> no_arena(size_t bytes) {
  return {static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes)), &std::free};
}

// Neighbours in every size that may go together and some that may not, to memory in another order, some of it not the arena's.
TEST_P(EngineGather, NeighboursHaveEachTheirOwnBytes) {
  Prng prng(3);
  prng.fill({at(0), 4 * MiB});
  const std::vector<std::byte> expected(at(0), at(4 * MiB));
  for (uint64_t offset = 0; offset < 4 * MiB; offset += MiB) {
    Tracked write;
    write.set(Op::Write, offset, at(offset), MiB);
    ASSERT_EQ(run(write), 0);
  }
  std::fill(at(0), at(4 * MiB), std::byte{0});
  const auto elsewhere_owned = no_arena(4 * MiB);
  std::byte* const elsewhere = elsewhere_owned.get();
  ASSERT_NE(elsewhere, nullptr);

  std::deque<Tracked> reads;
  constexpr uint64_t kPagesOf[] = {1, 4, 16, 17, 8, 2, 20, 3};
  uint64_t offset = 0;
  uint64_t memory = 4 * MiB;  // from its end to its start
  for (size_t i = 0; offset < 4 * MiB; ++i) {
    const uint64_t bytes = std::min(kPagesOf[prng.below(std::size(kPagesOf))] * kPageBytes, 4 * MiB - offset);
    memory -= bytes;
    reads.emplace_back();
    std::byte* to = i % 50 < 45 ? at(memory) : elsewhere + memory;
    reads.back().set(Op::Read, offset, to, static_cast<uint32_t>(bytes));
    offset += bytes + (prng.below(20) == 0 ? kPageBytes : 0);  // some follow nobody
    engine_->submit(reads.back().request);
  }
  drain();
  uint64_t bytes = 0;
  for (const Tracked& read : reads) {
    EXPECT_EQ(read.completions, 1U);
    EXPECT_EQ(read.request.error, 0);
    bytes += read.request.bytes;
    EXPECT_TRUE(std::equal(read.request.data, read.request.data + read.request.bytes,
                           expected.begin() + static_cast<ptrdiff_t>(read.request.offset)))
        << read.request.offset;
  }
  EXPECT_EQ(engine_->counters().reads, reads.size());
  EXPECT_EQ(engine_->counters().read_bytes, bytes);
  if (is_uring()) {
    EXPECT_GT(engine_->counters().reads_gathered, reads.size() / 3);
    EXPECT_LT(engine_->counters().reads_gathered, reads.size());
  } else {
    EXPECT_EQ(engine_->counters().reads_gathered, 0U);
  }
}

TEST_P(EngineGather, WritesOfNeighboursPutEachItsOwnBytes) {
  Prng prng(5);
  prng.fill({at(0), 4 * MiB});
  const auto elsewhere_owned = no_arena(4 * MiB);
  std::byte* const elsewhere = elsewhere_owned.get();
  ASSERT_NE(elsewhere, nullptr);
  std::copy_n(at(0), 4 * MiB, elsewhere);
  Tracked blank;
  std::fill_n(at(4 * MiB), 4 * MiB, std::byte{0});
  blank.set(Op::Write, 0, at(4 * MiB), 4 * MiB);
  ASSERT_EQ(run(blank), 0);

  std::vector<std::byte> expected(4 * MiB, std::byte{0});
  std::deque<Tracked> writes;
  constexpr uint64_t kPagesOf[] = {64, 1, 64, 64, 17, 64, 2, 64};
  uint64_t offset = 0;
  uint64_t memory = 4 * MiB;  // from its end to its start
  for (size_t i = 0; offset < 4 * MiB; ++i) {
    const uint64_t bytes = std::min(kPagesOf[prng.below(std::size(kPagesOf))] * kPageBytes, 4 * MiB - offset);
    memory -= bytes;
    std::copy_n(at(memory), bytes, expected.begin() + static_cast<ptrdiff_t>(offset));
    writes.emplace_back();
    writes.back().set(Op::Write, offset, i % 10 < 8 ? at(memory) : elsewhere + memory, static_cast<uint32_t>(bytes));
    writes.back().belongs_to(&writes);
    offset += bytes + (i % 4 < 2 ? kPageBytes : 0);  // some follow nobody
    engine_->submit(writes.back().request);
  }
  drain();
  for (const Tracked& write : writes) {
    EXPECT_EQ(write.completions, 1U);
    EXPECT_EQ(write.request.error, 0);
  }
  EXPECT_EQ(engine_->counters().writes, writes.size() + 1);
  if (is_uring()) {
    EXPECT_GT(engine_->counters().writes_gathered, writes.size() / 3);
    EXPECT_LE(engine_->counters().writes_gathered, writes.size() * 3 / 4 + 1);
  } else {
    EXPECT_EQ(engine_->counters().writes_gathered, 0U);
  }
  Tracked read;
  read.set(Op::Read, 0, at(4 * MiB), 4 * MiB);
  ASSERT_EQ(run(read), 0);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), at(4 * MiB)));
}

TEST_P(EngineGather, AReadAndAWriteOfNeighboursAreTwoRequests) {
  std::fill_n(at(0), 2 * kPageBytes, std::byte{0x11});
  Tracked write;
  write.set(Op::Write, 0, at(0), 2 * kPageBytes);
  ASSERT_EQ(run(write), 0);
  std::fill_n(at(kPageBytes), kPageBytes, std::byte{0x22});
  std::vector<Tracked> both(2);
  both[0].set(Op::Read, 0, at(0), kPageBytes);
  both[1].set(Op::Write, kPageBytes, at(kPageBytes), kPageBytes);
  for (Tracked& one : both) {
    one.belongs_to(&both);
    engine_->submit(one.request);
  }
  drain();
  Tracked read;
  read.set(Op::Read, 0, at(2 * kPageBytes), 2 * kPageBytes);
  ASSERT_EQ(run(read), 0);
  EXPECT_EQ(*at(0), std::byte{0x11});
  EXPECT_EQ(*at(2 * kPageBytes), std::byte{0x11});
  EXPECT_EQ(*at(3 * kPageBytes), std::byte{0x22});
}

// Those that are large go together only with what is of no use without them.
TEST_P(EngineGather, LargePiecesOfOneBlockGoTogether) {
  constexpr uint32_t kPiece = 256 * KiB;
  Prng prng(6);
  prng.fill({at(0), 2 * MiB});
  const std::vector<std::byte> expected(at(0), at(2 * MiB));
  Tracked write;
  write.set(Op::Write, 0, at(0), 2 * MiB);
  ASSERT_EQ(run(write), 0);
  int first = 0;
  int second = 0;
  // One by itself, a block of one piece and one of four, two by themselves: four go with another one.
  std::vector<Tracked> reads(8);
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].set(Op::Read, i * kPiece, at(4 * MiB + (7 - i) * kPiece), kPiece);
    if (i >= 1 && i < 6) reads[i].belongs_to(i < 2 ? &first : &second);
    engine_->submit(reads[i].request);
  }
  drain();
  for (size_t i = 0; i < reads.size(); ++i) {
    EXPECT_EQ(reads[i].completions, 1U);
    EXPECT_EQ(reads[i].request.error, 0);
    EXPECT_TRUE(std::equal(reads[i].request.data, reads[i].request.data + kPiece,
                           expected.begin() + static_cast<ptrdiff_t>(i * kPiece)))
        << i;
  }
  EXPECT_EQ(engine_->counters().reads_gathered, is_uring() ? 4U : 0U);
}

// One that goes together with neighbours and fails takes none of them with it, but for what is lost with it.
TEST_P(EngineGather, ANeighbourThatFailsFailsAlone) {
  if (GetParam() == Kind::Memory) GTEST_SKIP() << "its errors are memory_engine_test's";
  if (GetParam() == Kind::VhostUser) GTEST_SKIP() << "its errors are vhost_user_engine_test's";
  if (GetParam() == Kind::Noop) GTEST_SKIP() << "it makes no system call that could fail";
  if (GetParam() == Kind::UringCmd && nvme_path() == nullptr) GTEST_SKIP() << "a fake drive writes wherever it is told to";
  void* const forbidden = ::mmap(nullptr, kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(forbidden, MAP_FAILED);
  for (const size_t bad : {size_t{0}, size_t{7}, size_t{15}}) {
    std::fill_n(at(0), 64 * KiB, std::byte{0x5A});
    Tracked write;
    write.set(Op::Write, 0, at(0), 64 * KiB);
    ASSERT_EQ(run(write), 0);
    std::fill_n(at(0), 64 * KiB, std::byte{0});
    std::vector<Tracked> reads(16);
    for (size_t i = 0; i < reads.size(); ++i) {
      auto* const to = i == bad ? static_cast<std::byte*>(forbidden) : at(i * kPageBytes);
      reads[i].set(Op::Read, i * kPageBytes, to, kPageBytes);
      engine_->submit(reads[i].request);
    }
    drain();
    for (size_t i = 0; i < reads.size(); ++i) {
      EXPECT_EQ(reads[i].completions, 1U);
      EXPECT_EQ(reads[i].request.error, i == bad ? -EFAULT : 0) << i << " of those with " << bad;
      if (i != bad) {
        EXPECT_EQ(*at(i * kPageBytes + 4095), std::byte{0x5A});
      }
    }
  }
  ::munmap(forbidden, kPageBytes);
}

// Of a frame: whatever of it was written, its owner hears that it failed.
TEST_P(EngineGather, AWholeWithABadPieceFails) {
  if (GetParam() == Kind::Memory) GTEST_SKIP() << "its errors are memory_engine_test's";
  if (GetParam() == Kind::VhostUser) GTEST_SKIP() << "its errors are vhost_user_engine_test's";
  if (GetParam() == Kind::Noop) GTEST_SKIP() << "it makes no system call that could fail";
  if (GetParam() == Kind::UringCmd && nvme_path() == nullptr) GTEST_SKIP() << "a fake drive writes wherever it is told to";
  void* const forbidden = ::mmap(nullptr, 64 * KiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(forbidden, MAP_FAILED);
  std::vector<Tracked> writes(16);
  for (size_t i = 0; i < writes.size(); ++i) {
    auto* const from = i < 8 ? at(i * kPageBytes) : static_cast<std::byte*>(forbidden) + (15 - i) * kPageBytes;
    writes[i].set(Op::Write, i * kPageBytes, from, kPageBytes);
    writes[i].belongs_to(&writes);
    engine_->submit(writes[i].request);
  }
  drain();
  for (size_t i = 0; i < writes.size(); ++i) {
    EXPECT_EQ(writes[i].completions, 1U);
    EXPECT_EQ(writes[i].request.error, i < 8 ? 0 : -EFAULT) << i;
  }
  ::munmap(forbidden, 64 * KiB);
}

TEST_P(EngineGather, WhatIsToGoAloneGoesAlone) {
  std::vector<Tracked> reads(16);
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].set(Op::Read, i * kPageBytes, at(i * kPageBytes), kPageBytes);
    reads[i].request.alone = i == 0 || i == 7 || i == 15;
    engine_->submit(reads[i].request);
  }
  drain();
  for (const Tracked& read : reads) EXPECT_EQ(read.request.error, 0);
  EXPECT_EQ(engine_->counters().reads_gathered, is_uring() ? 13U : 0U);
}

// Submitted together they would come to the device as one.
TEST_P(EngineGather, LargeNeighboursAreSubmittedOneByOne) {
  if (GetParam() == Kind::UringCmd) GTEST_SKIP() << "it gathers none, and cuts requests into commands of its own";
  int frames[2] = {};
  const auto submissions_of = [&](std::vector<Tracked> writes, uint32_t bytes, size_t pieces_of_a_frame = 0) {
    for (size_t i = 0; i < writes.size(); ++i) {
      writes[i].set(Op::Write, i * bytes, at(i * bytes), bytes);
      if (pieces_of_a_frame != 0) writes[i].belongs_to(&frames[i / pieces_of_a_frame]);
      engine_->submit(writes[i].request);
    }
    const uint64_t before = engine_->counters().submissions;
    drain();
    for (const Tracked& write : writes) EXPECT_EQ(write.request.error, 0);
    return engine_->counters().submissions - before;
  };
  EXPECT_EQ(submissions_of(std::vector<Tracked>(4), 256 * KiB), is_uring() ? 1U : 0U);
  EXPECT_EQ(submissions_of(std::vector<Tracked>(4), 512 * KiB - kPageBytes), is_uring() ? 1U : 0U);
  EXPECT_EQ(submissions_of(std::vector<Tracked>(4), 512 * KiB), is_uring() ? 4U : 0U);
  EXPECT_EQ(submissions_of(std::vector<Tracked>(4), MiB), is_uring() ? 4U : 0U);
  // Two frames in pieces that go together.
  EXPECT_EQ(submissions_of(std::vector<Tracked>(8), 256 * KiB, 4), is_uring() ? 2U : 0U);
  EXPECT_EQ(engine_->counters().writes_gathered, is_uring() ? 8U : 0U);
}

TEST_P(EngineGather, NeighboursOfAFileThatWasCutInTheMiddle) {
  if (GetParam() == Kind::Memory || GetParam() >= Kind::VhostUser) GTEST_SKIP() << "there is no file to cut";
  ASSERT_EQ(ftruncate(backing_->descriptor(), MiB + 9 * kPageBytes), 0);
  std::vector<Tracked> reads(8);
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].set(Op::Read, MiB + i * 2 * kPageBytes, at((7 - i) * 2 * kPageBytes), 2 * kPageBytes);
    engine_->submit(reads[i].request);
  }
  drain();
  for (size_t i = 0; i < reads.size(); ++i) {
    EXPECT_EQ(reads[i].completions, 1U);
    EXPECT_EQ(reads[i].request.error, i < 4 ? 0 : -EIO) << i;
  }
}

// One refusal among millions is a device's bad moment: whoever went together goes alone, gathering rests and comes back.
TEST_P(EngineGather, AGatherThatIsRefusedIsDoneOneByOneAndTriedAgain) {
  if (!is_uring()) GTEST_SKIP() << "it gathers nothing";
  std::fill_n(at(0), 64 * KiB, std::byte{0x5A});
  Tracked write;
  write.set(Op::Write, 0, at(0), 64 * KiB);
  ASSERT_EQ(run(write), 0);
  // Direct I/O refuses memory that lies so. The engine would, too: it is told once it has looked.
  const auto odd = at(4 * MiB + 1);
  Tracked read;
  read.set(Op::Read, 0, at(0), kPageBytes);
  engine_->submit(read.request);
  read.request.data = odd;
  drain();
  if (read.request.error != -EINVAL) GTEST_SKIP() << "this file system takes memory that lies anyhow";

  std::vector<Tracked> reads(16);
  const auto gathered_of_all = [&](bool refused) {
    std::fill_n(at(0), 64 * KiB, std::byte{0});
    const uint64_t before = engine_->counters().reads_gathered;
    for (size_t i = 0; i < reads.size(); ++i) {
      reads[i].set(Op::Read, i * kPageBytes, at(i * kPageBytes), kPageBytes);
      engine_->submit(reads[i].request);
    }
    if (refused) reads[0].request.data = odd;
    drain();
    for (size_t i = 0; i < reads.size(); ++i) {
      const bool fails = refused && i == 0;
      EXPECT_EQ(reads[i].completions, 1U);
      EXPECT_EQ(reads[i].request.error, fails ? -EINVAL : 0) << i;
      EXPECT_EQ(*at(i * kPageBytes + 4095), fails ? std::byte{0} : std::byte{0x5A}) << i;
    }
    return engine_->counters().reads_gathered - before;
  };
  EXPECT_EQ(gathered_of_all(false), 16U);
  EXPECT_EQ(gathered_of_all(true), 0U);
  EXPECT_EQ(engine_->counters().gathers_refused, 1U);
  EXPECT_FALSE(engine_->gathers());
  EXPECT_EQ(gathered_of_all(false), 0U) << "it rests";
  for (uint64_t alone = 0; !engine_->gathers() && alone <= GatherPause::kRequestsMin; ++alone) {
    read.set(Op::Read, 0, at(0), kPageBytes);
    ASSERT_EQ(run(read), 0);
  }
  EXPECT_TRUE(engine_->gathers());
  EXPECT_EQ(gathered_of_all(false), 16U) << "and begins again";
  EXPECT_EQ(engine_->counters().gathers_refused, 1U);
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineGather, kEveryEngine, kind_name);

}  // namespace
}  // namespace halfstep::io
