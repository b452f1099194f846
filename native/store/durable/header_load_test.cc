// A store whose header is hurt at the start of the device: copy B stands in, wherever the backing ends.
#include "store/durable/header_load.h"

#include <gtest/gtest.h>

#include "store/recover/fsck.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

using Rule = io::MemoryEngine::Rule;

constexpr uint64_t kReserve = format::kHeaderReserveBytes;

class HeaderLoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    bed.open();
    for (int i = 0; i < 20; ++i) ASSERT_EQ(bed.put(name_of(i), kGroupPlain, 16384, true), Code::Ok);
    bed.close();
    bed.restart_engine();
  }
  static std::string name_of(int number) { return "block " + std::to_string(number); }

  void overwrite(uint64_t offset, ConstBytes with) {
    for (size_t at = 0; at < with.size(); ++at) {
      std::byte now{};
      std::vector<std::byte> page(kPageBytes);
      const uint64_t place = offset + at;
      bed.device->read(round_down(place, kPageBytes), page);
      now = page[place % kPageBytes];
      const auto differs = static_cast<uint8_t>(now ^ with[at]);
      for (uint32_t bit = 0; bit < 8; ++bit) {
        if ((differs >> bit & 1U) != 0) bed.device->flip_bit(place, bit);
      }
    }
  }
  void garble(uint64_t offset, uint64_t bytes) {
    std::vector<std::byte> garbage(bytes);
    Prng(offset + 1).fill(garbage);
    overwrite(offset, garbage);
  }
  void resize(int64_t by) { bed.resize_device(static_cast<uint64_t>(static_cast<int64_t>(bed.device->bytes()) + by)); }
  void unreadable(uint64_t offset, uint64_t bytes, uint32_t times = UINT32_MAX) {
    bed.engine->inject({io::Op::Read, 0, offset, bytes, -EIO, times});
  }
  HeaderPatience patience() {
    return {.go_on = nullptr, .pause = [this](uint32_t millis) { pauses.push_back(millis); }};
  }
  Fault load(LoadedHeader* out) { return load_header(*bed.engine, out, patience()); }
  FsckReport check() {
    FsckReport report;
    FsckOptions options;
    options.pause = patience().pause;
    const Fault fault = fsck(*bed.engine, bed.clock, options, &report);
    EXPECT_TRUE(fault.ok()) << fault.what;
    return report;
  }
  void expect_served_from_the_end() {
    LoadedHeader loaded;
    const Fault fault = load(&loaded);
    ASSERT_TRUE(fault.ok()) << fault.what;
    EXPECT_TRUE(loaded.copy_bad[0]);
    EXPECT_FALSE(loaded.copy_bad[1]);
    const FsckReport report = check();
    EXPECT_TRUE(report.has(FsckKind::Damage));
    EXPECT_FALSE(report.has(FsckKind::Loss));
    EXPECT_EQ(report.blocks_live, 20U);
    bed.open();
    for (int i = 0; i < 20; ++i) EXPECT_EQ(bed.get(name_of(i)), Code::Ok);
    bed.store.reset();
  }

  StoreBed bed{11};
  std::vector<uint32_t> pauses;
};

TEST_F(HeaderLoadTest, AnUnreadableStartIsServedFromTheCopyAtTheEnd) {
  unreadable(0, 8192);
  expect_served_from_the_end();
  EXPECT_FALSE(pauses.empty()) << "tried again first";
}

TEST_F(HeaderLoadTest, GarbageAtTheStartAndAnyUnreadablePageBehindItAreServed) {
  for (uint64_t page = 1; page < bed.device->bytes() / kPageBytes / 2; page *= 2) {
    SCOPED_TRACE(page);
    if (page > 1) bed.restart_engine();
    garble(0, kPageBytes);
    unreadable(page * kPageBytes, kPageBytes);
    LoadedHeader loaded;
    const Fault fault = load(&loaded);
    ASSERT_TRUE(fault.ok()) << fault.what;
    EXPECT_TRUE(loaded.copy_bad[0]);
  }
}

TEST_F(HeaderLoadTest, ALongerBackingIsServedFromTheCopyAtTheStoresEnd) {
  for (const int64_t longer : {int64_t{kPageBytes}, int64_t{3 * MiB + 5 * kPageBytes}, int64_t{64 * MiB}}) {
    SCOPED_TRACE(longer);
    resize(longer);
    garble(0, kPageBytes);
    expect_served_from_the_end();
    if (HasFailure()) return;
    // The start wrote copy A anew; the next round hurts it again.
    bed.restart_engine();
  }
}

TEST_F(HeaderLoadTest, ALongerBackingWithAnUnreadableStartIsServed) {
  resize(kPageBytes);
  unreadable(0, 2 * MiB);
  expect_served_from_the_end();
}

TEST_F(HeaderLoadTest, ADamagedCopyAtTheStartStillSaysWhereTheOtherOneIs) {
  garble(600, 8);
  garble(kReserve, bed.geometry.device_bytes / 1024 * 2 + MiB);  // the record logs, too: nothing shows that pages follow
  resize(2 * MiB);
  LoadedHeader loaded;
  uint32_t asked = 0;
  HeaderPatience patient = patience();
  patient.go_on = [&](uint64_t, uint64_t) { return ++asked == 0; };
  const Fault fault = load_header(*bed.engine, &loaded, patient);
  ASSERT_TRUE(fault.ok()) << fault.what;
  EXPECT_EQ(asked, 0U) << "nothing was searched";
}

TEST_F(HeaderLoadTest, ASearchCanBeStopped) {
  resize(64 * MiB);
  garble(0, kPageBytes);
  HeaderPatience patient = patience();
  uint64_t last = 0;
  patient.go_on = [&](uint64_t done, uint64_t total) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, total);
    last = done;
    return done < 4 * MiB;
  };
  LoadedHeader loaded;
  EXPECT_EQ(load_header(*bed.engine, &loaded, patient).status, Code::Cancelled);
  EXPECT_LT(last, 6 * MiB);
}

TEST_F(HeaderLoadTest, ReadsThatFailForAMomentAreTriedAgain) {
  unreadable(0, UINT64_MAX, 4);  // both copies, twice
  LoadedHeader loaded;
  const Fault fault = load(&loaded);
  ASSERT_TRUE(fault.ok()) << fault.what;
  EXPECT_FALSE(loaded.copy_bad[0] || loaded.copy_bad[1]);
  EXPECT_EQ(pauses.size(), 2U);
}

TEST_F(HeaderLoadTest, TwoCopiesThatCannotBeReadAreTheDevicesFaultAndNotCalledDamaged) {
  unreadable(0, UINT64_MAX);
  LoadedHeader loaded;
  const Fault fault = load(&loaded);
  EXPECT_EQ(fault.status, Code::IoError);
  EXPECT_NE(fault.what.find("copy at the start cannot be read (EIO"), std::string::npos) << fault.what;
  EXPECT_NE(fault.what.find("copy at the end cannot be read (EIO"), std::string::npos) << fault.what;
  EXPECT_EQ(fault.what.find("create it anew"), std::string::npos) << fault.what;
}

TEST_F(HeaderLoadTest, OneDamagedAndOneUnreadableCopyMayBeWholeLater) {
  garble(0, kPageBytes);
  unreadable(bed.device->bytes() - kReserve, kReserve);
  LoadedHeader loaded;
  const Fault fault = load(&loaded);
  EXPECT_EQ(fault.status, Code::IoError);
  EXPECT_EQ(fault.what.find("create it anew"), std::string::npos) << fault.what;
}

TEST_F(HeaderLoadTest, ACutBackingIsServedFromTheCopyAtTheStart) {
  resize(-static_cast<int64_t>(2 * MiB));
  LoadedHeader loaded;
  const Fault fault = load(&loaded);
  ASSERT_TRUE(fault.ok()) << fault.what;
  EXPECT_TRUE(loaded.copy_bad[1]);
  EXPECT_TRUE(pauses.empty()) << "what is cut off is not read";
}

// A tenant can store what looks like a header of a store whose end is where it happens to lie.
TEST_F(HeaderLoadTest, AHeaderAmongPayloadIsNotTaken) {
  LoadedHeader loaded;
  ASSERT_TRUE(load(&loaded).ok());
  HeaderState forged = loaded.state;
  const uint64_t at = forged.places().segment(6);
  forged.fixed.secret.fill(std::byte{7});
  forged.fixed.device_bytes = at + kReserve;
  forged.fixed.segments = 4;
  forged.fixed.segment_bytes = format::kSegmentBytesMin;
  forged.fixed.block_bytes_max = kPageBytes;
  std::vector<std::byte> encoded;
  ASSERT_TRUE(encode_header(forged, &encoded).ok());
  HeaderState decoded;
  ASSERT_TRUE(decode_header(encoded, &decoded).ok()) << "it looks like one";
  overwrite(at, encoded);
  garble(0, kPageBytes);
  garble(bed.device->bytes() - kReserve, kPageBytes);
  LoadedHeader taken;
  const Fault fault = load(&taken);
  EXPECT_FALSE(fault.ok());
  EXPECT_EQ(fault.status, Code::NotFound) << fault.what;
}

}  // namespace
}  // namespace halfstep::store
