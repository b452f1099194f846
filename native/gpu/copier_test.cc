// Copies on the recording table: what is called, in which order, how long things live, and what comes of each error.
#include "gpu/copier.h"

#include <gtest/gtest.h>

#include <numeric>

#include "gpu/fake_cuda.h"
#include "gpu/staging.h"

namespace halfstep::gpu {
namespace {

using Octets = std::vector<std::byte>;

struct Told {
  std::vector<Status> statuses;
  static void done(void* owner, Status status) { static_cast<Told*>(owner)->statuses.push_back(status); }
};

class CopierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda.add_memory(memory.data(), memory.size());
    ASSERT_TRUE(Device::open(cuda, 0, &device).ok());
    ASSERT_TRUE(Copier::open(device, &copier).ok());
    staging = std::make_unique<Staging>(StagingLimits{.get_slots = 2, .put_slots = 2});
    ASSERT_TRUE(staging->grow(device, Use::Get, 2).ok());
    slot = staging->take(Use::Get);
    for (size_t i = 0; i < Staging::kSlotBytes; ++i) slot[i] = static_cast<std::byte>(i * 7 + 1);
  }
  void TearDown() override {
    if (staging != nullptr && slot != nullptr) staging->give_back(Use::Get, slot);
    copier = nullptr;
    staging = nullptr;
    device = nullptr;
    EXPECT_EQ(cuda.live(), 0U);
    EXPECT_EQ(cuda.faults(), std::vector<std::string>{});
  }
  Range range(size_t host, size_t at, size_t bytes) {
    return {slot + host, reinterpret_cast<DevicePointer>(memory.data()) + at, bytes};
  }
  bool same(size_t host, size_t at, size_t bytes) const {
    return std::equal(slot + host, slot + host + bytes, memory.data() + at);
  }

  FakeCuda cuda;
  Octets memory = Octets(1 << 20);
  std::shared_ptr<Device> device;
  std::unique_ptr<Copier> copier;
  std::unique_ptr<Staging> staging;
  std::byte* slot = nullptr;
  Told told;
};

TEST_F(CopierTest, ACopyIsOverWhenItsEventIsAndNotBefore) {
  cuda.delay(true);
  const Range one[] = {range(0, 100, 1000)};
  copier->submit(Direction::ToDevice, one, &Told::done, &told);
  copier->poll();
  EXPECT_TRUE(told.statuses.empty());
  EXPECT_FALSE(same(0, 100, 1000));
  EXPECT_EQ(cuda.carry_out(1), 1U);  // the copy, and not yet its event
  copier->poll();
  EXPECT_TRUE(told.statuses.empty());
  cuda.carry_out();
  copier->poll();
  ASSERT_EQ(told.statuses.size(), 1U);
  EXPECT_TRUE(told.statuses[0].ok());
  EXPECT_TRUE(same(0, 100, 1000));
  EXPECT_EQ(copier->bytes(Direction::ToDevice), 1000U);
}

// As torch has two tensors, and the driver two slabs: the copy of each piece stays within one of either.
TEST_F(CopierTest, PiecesInSeveralSlabsThatAreNeighboursAreMovedEachByItself) {
  constexpr uint32_t kSlots = 3 * Staging::kSlabSlots;
  Octets large(kSlots * Staging::kSlotBytes, std::byte{7});
  cuda.add_memory(large.data(), large.size());
  Staging slabs({.get_slots = 1, .put_slots = kSlots});
  ASSERT_TRUE(slabs.grow(device, Use::Put, kSlots).ok());
  std::vector<std::byte*> slots;
  ASSERT_TRUE(slabs.take_all(Use::Put, kSlots, &slots));
  std::vector<Range> ranges;
  for (size_t i = 0; i < slots.size(); ++i) {
    const size_t at = i * Staging::kSlotBytes;
    ranges.push_back({slots[i], reinterpret_cast<DevicePointer>(large.data()) + at, Staging::kSlotBytes});
  }
  copier->submit(Direction::ToHost, ranges, &Told::done, &told);
  copier->poll();
  ASSERT_EQ(told.statuses.size(), 1U);
  EXPECT_TRUE(told.statuses[0].ok()) << copier->last_error();
  EXPECT_EQ(cuda.count("cuMemcpyDtoHAsync"), kSlots);
  for (std::byte* of : slots) {
    EXPECT_EQ(std::memcmp(of, large.data(), Staging::kSlotBytes), 0);
    slabs.give_back(Use::Put, of);
  }
}

TEST_F(CopierTest, CopiesComeBackFromTheDevice) {
  std::iota(reinterpret_cast<uint8_t*>(memory.data()), reinterpret_cast<uint8_t*>(memory.data()) + 5000, uint8_t{3});
  const Range some[] = {range(0, 0, 3000), range(4000, 3000, 2000)};
  copier->submit(Direction::ToHost, some, &Told::done, &told);
  copier->poll();
  ASSERT_EQ(told.statuses.size(), 1U);
  EXPECT_TRUE(same(0, 0, 3000) && same(4000, 3000, 2000));
  EXPECT_EQ(copier->bytes(Direction::ToHost), 5000U);
}

TEST_F(CopierTest, SmallPiecesAreMovedManyAtOnceAndLargeOnesEachByACopy) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < 130; ++i) ranges.push_back(range(i * 100, 900'000 - i * 300, 1 + i % 100));
  ranges.insert(ranges.begin() + 40, range(40'000, 0, Mover::kPieceBytesMax));
  ranges.insert(ranges.begin() + 50, range(100'000, 100'000, Mover::kPieceBytesMax + 1));
  copier->submit(Direction::ToDevice, ranges, &Told::done, &told);
  copier->poll();
  ASSERT_EQ(told.statuses.size(), 1U);
  EXPECT_TRUE(told.statuses[0].ok());
  EXPECT_EQ(cuda.count("cuLaunchKernel 128 x 16 x 256"), 1U);  // 64 KiB: 16 blocks of threads each
  EXPECT_EQ(cuda.count("cuLaunchKernel 3 x 1 x 256"), 1U);
  EXPECT_EQ(cuda.count("cuMemcpyHtoDAsync 65537"), 1U);
  EXPECT_EQ(cuda.count("cuMemcpyHtoDAsync"), 1U);
  EXPECT_EQ(copier->copies(), 3U);
  size_t bytes = 0;
  for (const Range& range : ranges) {
    EXPECT_EQ(std::memcmp(range.host, reinterpret_cast<void*>(range.device), range.bytes), 0);
    bytes += range.bytes;
  }
  EXPECT_EQ(copier->bytes(Direction::ToDevice), bytes);
  std::memset(slot, 0, Staging::kSlotBytes);
  copier->submit(Direction::ToHost, ranges, &Told::done, &told);
  copier->poll();
  EXPECT_EQ(copier->bytes(Direction::ToHost), bytes);
  for (const Range& range : ranges) {
    EXPECT_EQ(std::memcmp(range.host, reinterpret_cast<void*>(range.device), range.bytes), 0);
  }
}

// A driver that cannot translate the program, or has no such function in it.
TEST_F(CopierTest, WithoutItsKernelSmallPiecesAreCopiesAndTheReasonIsKept) {
  for (const char* function : {"cuModuleLoadData", "cuModuleGetFunction"}) {
    SCOPED_TRACE(function);
    cuda.fail_next(function, FakeCuda::kInvalidImage);
    std::unique_ptr<Copier> other;
    ASSERT_TRUE(Copier::open(device, &other).ok());
    EXPECT_EQ(other->last_error(), std::string("cuda:0: ") + function + ": FAKE_ERROR_200; small pieces are copied one by one");
    EXPECT_EQ(other->failures(), 0U);
    const size_t before = cuda.count("cuMemcpyHtoDAsync");
    const Range two[] = {range(0, 0, 10), range(50, 100, 20)};
    told.statuses.clear();
    other->submit(Direction::ToDevice, two, &Told::done, &told);
    other->poll();
    ASSERT_EQ(told.statuses.size(), 1U);
    EXPECT_TRUE(told.statuses[0].ok());
    EXPECT_TRUE(same(0, 0, 10) && same(50, 100, 20));
    EXPECT_EQ(cuda.count("cuMemcpyHtoDAsync"), before + 2);
    EXPECT_EQ(cuda.count("cuLaunchKernel"), 0U);
  }
}

TEST_F(CopierTest, EventsAreMadeOncePerCopyThatIsUnderWayAndUsedAgain) {
  const Range one[] = {range(0, 0, 10)};
  for (int i = 0; i < 20; ++i) {
    copier->submit(Direction::ToDevice, one, &Told::done, &told);
    copier->poll();
  }
  EXPECT_EQ(told.statuses.size(), 20U);
  EXPECT_EQ(cuda.count("cuEventCreate"), 1U);
}

// Of every call that can fail: it is told once, not as ok, and nothing of it is under way then.
TEST_F(CopierTest, EachErrorAtEachCallIsToldWhenNothingIsUnderWay) {
  const char* const functions[] = {"cuEventCreate",  "cuCtxPushCurrent", "cuMemcpyHtoDAsync",
                                   "cuLaunchKernel", "cuEventRecord",    "cuEventQuery"};
  for (const char* function : functions) {
    SCOPED_TRACE(function);
    told.statuses.clear();
    cuda.delay(true);
    const Range some[] = {range(0, 0, 70'000), range(80'000, 80'000, 70'000), range(160'000, 160'000, 20)};
    // Of two copies the second fails: the first is under way.
    cuda.fail_next(function, FakeCuda::kIllegalAddress, function == std::string("cuMemcpyHtoDAsync") ? 1 : 0);
    copier->submit(Direction::ToDevice, some, &Told::done, &told);
    EXPECT_TRUE(told.statuses.empty());
    copier->poll();
    if (told.statuses.empty()) {
      cuda.carry_out();
      copier->poll();
    }
    ASSERT_EQ(told.statuses.size(), 1U);
    EXPECT_FALSE(told.statuses[0].ok());
    EXPECT_EQ(cuda.waiting(), 0U);
    EXPECT_FALSE(copier->busy());
    EXPECT_NE(copier->last_error().find("FAKE_ERROR_700"), std::string::npos) << copier->last_error();
    // The next one is as good as ever.
    copier->submit(Direction::ToDevice, some, &Told::done, &told);
    cuda.delay(false);
    copier->poll();
    ASSERT_EQ(told.statuses.size(), 2U);
    EXPECT_TRUE(told.statuses[1].ok());
  }
  EXPECT_EQ(copier->failures(), 6U);
}

TEST_F(CopierTest, WhatIsUnderWayAtTheEndIsWaitedFor) {
  cuda.delay(true);
  const Range one[] = {range(0, 0, 10)};
  copier->submit(Direction::ToDevice, one, &Told::done, &told);
  copier = nullptr;
  EXPECT_TRUE(told.statuses.empty());
  EXPECT_TRUE(same(0, 0, 10));
  EXPECT_EQ(cuda.count("cuStreamSynchronize"), 1U);
}

TEST_F(CopierTest, AGateIsOpenWhenTheStreamHasDoneWhatItHadUnderWay) {
  const uint64_t stream = cuda.stream();
  std::unique_ptr<Gate> gate;
  ASSERT_TRUE(Gate::make(device, stream, &gate).ok());
  EXPECT_EQ(gate->state(), Gate::State::Closed);
  cuda.release(stream);
  EXPECT_EQ(gate->state(), Gate::State::Open);
  cuda.fail_next("cuEventQuery", FakeCuda::kIllegalAddress);
  EXPECT_EQ(gate->state(), Gate::State::Failed);
}

TEST_F(CopierTest, StreamZeroIsTheLegacyOneAndACapturedStreamIsRefused) {
  std::unique_ptr<Gate> gate;
  ASSERT_TRUE(Gate::make(device, 0, &gate).ok());
  EXPECT_EQ(cuda.count("cuEventRecord 1"), 1U);
  EXPECT_EQ(gate->state(), Gate::State::Open);
  const Fault captured = Gate::make(device, cuda.stream(true), &gate);
  EXPECT_EQ(captured.status, Code::Invalid);
  EXPECT_NE(captured.what.find("captured into a graph"), std::string::npos);
  EXPECT_EQ(cuda.count("cuEventRecord"), 1U);
  const Fault unknown = Gate::make(device, 0xBAD, &gate);
  EXPECT_FALSE(unknown.ok());
  for (const char* function : {"cuCtxPushCurrent", "cuStreamIsCapturing", "cuEventCreate", "cuEventRecord"}) {
    cuda.fail_next(function, FakeCuda::kInvalidHandle);
    std::unique_ptr<Gate> none;
    EXPECT_FALSE(Gate::make(device, 0, &none).ok()) << function;
    EXPECT_EQ(none, nullptr);
  }
}

TEST_F(CopierTest, MemoryIsOfTheDeviceThatItIsSaidToBeOf) {
  EXPECT_TRUE(device->check(reinterpret_cast<DevicePointer>(memory.data())).ok());
  EXPECT_EQ(device->check(reinterpret_cast<DevicePointer>(slot)).status, Code::Invalid);
  Octets other(100);
  cuda.add_memory(other.data(), other.size(), 3);
  const Fault fault = device->check(reinterpret_cast<DevicePointer>(other.data()));
  EXPECT_NE(fault.what.find("of cuda:3"), std::string::npos) << fault.what;
}

TEST_F(CopierTest, SlotsAreBoundedByTheirUseAndPinnedBySlabs) {
  std::byte* const second = staging->take(Use::Get);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(staging->take(Use::Get), nullptr);
  std::vector<std::byte*> slots;
  EXPECT_FALSE(staging->take_all(Use::Put, 1, &slots));  // a put has none of a get's
  ASSERT_TRUE(staging->grow(device, Use::Put, 99).ok());
  EXPECT_EQ(cuda.count("cuMemHostAlloc"), 2U);
  EXPECT_FALSE(staging->take_all(Use::Put, 3, &slots));
  EXPECT_TRUE(slots.empty());
  ASSERT_TRUE(staging->take_all(Use::Put, 2, &slots));
  EXPECT_EQ(staging->used(), 4U);
  for (std::byte* of : slots) staging->give_back(Use::Put, of);
  staging->give_back(Use::Get, second);
  Staging small({.get_slots = 1, .put_slots = 1});
  cuda.fail_next("cuMemHostAlloc", kOutOfMemory);
  const Fault fault = small.grow(device, Use::Get, 1);
  EXPECT_EQ(fault.status, Code::NoSpace);
  EXPECT_EQ(small.take(Use::Get), nullptr);
}

TEST_F(CopierTest, ThingsGoInTheOrderThatTheDriverWants) {
  const Range one[] = {range(0, 0, 10)};
  copier->submit(Direction::ToDevice, one, &Told::done, &told);
  copier->poll();
  staging->give_back(Use::Get, std::exchange(slot, nullptr));
  copier = nullptr;
  staging = nullptr;
  device = nullptr;
  std::vector<std::string> ends;
  for (const std::string& call : cuda.calls()) {
    if (call.find("Destroy") != std::string::npos || call.find("Free") != std::string::npos ||
        call.find("Release") != std::string::npos || call.find("Unload") != std::string::npos) {
      ends.push_back(call);
    }
  }
  EXPECT_EQ(ends, (std::vector<std::string>{"cuEventDestroy", "cuModuleUnload", "cuStreamDestroy", "cuMemFreeHost",
                                            "cuDevicePrimaryCtxRelease"}));
}

TEST(Device, SaysWhyItCannotBeHad) {
  FakeCuda cuda(1);
  std::shared_ptr<Device> device;
  EXPECT_NE(Device::open(cuda, 1, &device).what.find("sees 1 CUDA devices"), std::string::npos);
  for (const char* function : {"cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain"}) {
    cuda.fail_next(function, 999);
    const Fault fault = Device::open(cuda, 0, &device);
    EXPECT_NE(fault.what.find(std::string(function) + ": FAKE_ERROR_999"), std::string::npos) << fault.what;
    EXPECT_EQ(device, nullptr);
  }
  ASSERT_TRUE(Device::open(cuda, 0, &device).ok());
  EXPECT_EQ(device->name(), "cuda:0 (Fake, driver 12.4)");
  std::unique_ptr<Copier> copier;
  for (const char* function : {"cuCtxPushCurrent", "cuStreamCreate"}) {
    cuda.fail_next(function, 999);
    EXPECT_FALSE(Copier::open(device, &copier).ok()) << function;
  }
  device = nullptr;
  EXPECT_EQ(cuda.live(), 0U);
  EXPECT_EQ(cuda.faults(), std::vector<std::string>{});
}

TEST(Library, IsLoadedOrSaysWhatIsMissing) {
  Cuda* cuda = nullptr;
  const Fault none = load_cuda("libno-such-driver.so.1", &cuda);
  EXPECT_EQ(none.status, Code::Unsupported);
  EXPECT_NE(none.what.find("libno-such-driver.so.1"), std::string::npos);
  const Fault other = load_cuda("libc.so.6", &cuda);
  EXPECT_NE(other.what.find("libc.so.6 has no cuInit"), std::string::npos) << other.what;
  EXPECT_EQ(cuda, nullptr);
}

}  // namespace
}  // namespace halfstep::gpu
