// What a client cannot decode is not there for it, and its own put replaces it.
#include <gtest/gtest.h>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kRawAlone = 1;
constexpr uint64_t kThird = 1 | 8;

// A block of the plain group, coded by codec 3: four parts of so many bytes each.
Status put_coded(StoreBed& bed, std::string_view name, uint32_t part_bytes = 3000) {
  std::vector<PartInfo> parts(4);
  for (PartInfo& part : parts) part = {0, part_bytes, 4096, 0, 77, 3};
  StoreBed::Put put;
  const Status status = bed.begin_put(put, name, kGroupPlain, 16384, true, parts);
  if (!status.ok()) return status;
  while (!put.done) bed.pump();
  return put.write.status;
}

bool there(StoreBed& bed, std::string_view name, uint64_t codecs) {
  Sought sought(bed.key(name), wire::Component::of(kGroupPlain, 0, 0));
  sought.codecs = codecs;
  return bed.store->find(sought).present;
}

Status put_raw(StoreBed& bed, std::string_view name, uint64_t codecs) {
  StoreBed::Put put;
  put.write.codecs = codecs;
  const Status status = bed.begin_put(put, name, kGroupPlain, 16384, true);
  if (!status.ok()) return status;
  while (!put.done) bed.pump();
  return put.write.status;
}

class Codecs : public ::testing::Test {
 protected:
  Codecs() : bed_(1, 16) { bed_.open(); }
  StoreBed bed_;
};

TEST_F(Codecs, ABlockIsThereForWhoCanDecodeIt) {
  ASSERT_EQ(put_coded(bed_, "coded"), Code::Ok);
  ASSERT_EQ(bed_.put("raw"), Code::Ok);
  EXPECT_TRUE(there(bed_, "coded", kAllCodecs));
  EXPECT_TRUE(there(bed_, "coded", kThird));
  EXPECT_FALSE(there(bed_, "coded", kRawAlone));
  EXPECT_TRUE(there(bed_, "raw", kRawAlone));
}

// Whoever reads it pins what is stored, whatever its length.
TEST_F(Codecs, ABlockTakesTheMemoryOfWhatIsStored) {
  ASSERT_EQ(put_coded(bed_, "larger", 16'000), Code::Ok);
  ASSERT_EQ(put_coded(bed_, "smaller", 500), Code::Ok);
  for (const char* where : {"in memory", "on flash"}) {
    const auto takes = [&](std::string_view name) {
      return bed_.store->find(Sought(bed_.key(name), wire::Component::of(kGroupPlain, 0, 0))).memory_bytes;
    };
    EXPECT_GE(takes("larger"), 64'000U) << where;
    EXPECT_LE(takes("larger"), 68 * KiB) << where;
    EXPECT_EQ(takes("smaller"), 4 * KiB) << where;
    bed_.reopen();
  }
}

TEST_F(Codecs, AreKnownAfterARestartToo) {
  ASSERT_EQ(put_coded(bed_, "coded"), Code::Ok);
  ASSERT_EQ(bed_.put("raw", kGroupPlain, 16384, true), Code::Ok);
  for (const bool clean : {true, false}) {
    if (clean) {
      bed_.reopen();
    } else {
      bed_.crash(io::MemoryEngine::Crash::PowerCut);
      bed_.open();
    }
    EXPECT_TRUE(there(bed_, "coded", kThird)) << clean;
    EXPECT_FALSE(there(bed_, "coded", kRawAlone)) << clean;
    EXPECT_TRUE(there(bed_, "raw", kRawAlone)) << clean;
  }
}

TEST_F(Codecs, APutReplacesWhatItsWriterCannotDecodeOnceItsBytesAreThere) {
  ASSERT_EQ(put_coded(bed_, "block"), Code::Ok);
  bed_.settle();
  EXPECT_EQ(put_raw(bed_, "block", kAllCodecs), Code::Present);
  EXPECT_EQ(put_raw(bed_, "block", kThird), Code::Present);
  // One that is given up leaves what is there.
  StoreBed::Put given_up;
  given_up.write.codecs = kRawAlone;
  given_up.write.name = {bed_.scope, wire::Component::of(kGroupPlain, 0, 0), as_bytes("block")};
  given_up.write.key = bed_.key("block");
  given_up.write.block_bytes = 16384;
  ASSERT_EQ(bed_.store->begin_write(given_up.write), Code::Ok);
  bed_.store->abort_write(given_up.write);
  EXPECT_TRUE(there(bed_, "block", kThird));
  ASSERT_EQ(put_raw(bed_, "block", kRawAlone), Code::Ok);
  EXPECT_TRUE(there(bed_, "block", kRawAlone));
  EXPECT_EQ(bed_.get("block"), Code::Ok) << "the raw bytes";
  EXPECT_EQ(put_raw(bed_, "block", kRawAlone), Code::Present);
  EXPECT_EQ(put_coded(bed_, "block"), Code::Present) << "everybody can decode what is there";
  bed_.crash(io::MemoryEngine::Crash::PowerCut);
  bed_.open();
  EXPECT_EQ(bed_.get("block"), Code::Ok) << "the younger of the two";
  EXPECT_TRUE(there(bed_, "block", kRawAlone));
}

// In a layout of its own: one group as the plain one, coded by ubq with this step.
Status put_lossy(StoreBed& bed, const char* step, uint8_t codec = 2) {
  wire::Layout layout;
  EXPECT_TRUE(wire::Layout::make({{"codec", "ubq"}, {"codec.0", std::string("bf16/64/") + step}},
                                 {wire::GroupShape{4, 1, {4096}}}, &layout)
                  .ok());
  uint32_t scope = 0;
  bool done = false;
  bed.store->register_layout("default", layout, [&](Status, uint32_t registered) {
    scope = registered;
    done = true;
  });
  while (!done) bed.pump();
  Write write;
  std::vector<PartInfo> parts(4);
  for (PartInfo& part : parts) part = {0, 3000, 4096, 0, 77, 1};
  parts[2].codec = codec;
  const std::string name = "a block";
  write.name = {scope, wire::Component::of(0, 0, 0), as_bytes(name)};
  write.key = bed.store->key_of(write.name);
  write.block_bytes = 16384;
  write.coded_parts = parts;
  const Status status = bed.store->begin_write(write);
  if (status.ok()) bed.store->abort_write(write);
  return status;
}

TEST_F(Codecs, NoBlockIsLossierThanItsNamespaceAllows) {
  const Status refused(Code::Unsupported, kBelowFloor);
  EXPECT_EQ(put_lossy(bed_, "0.5"), Code::Ok) << "no floor";
  NamespaceInfo info{.name = "default", .coding = {.policy = wire::kPolicyHigh, .step_limit = 800}};
  for (const bool reopened : {false, true}) {
    if (reopened) {
      bed_.reopen();
      ASSERT_EQ(bed_.account().coding.policy, wire::kPolicyHigh);
    } else {
      ASSERT_EQ(bed_.limit(info), Code::Ok);
    }
    EXPECT_EQ(put_lossy(bed_, "0.08"), Code::Ok);
    EXPECT_EQ(put_lossy(bed_, "0.0801"), refused);
    EXPECT_EQ(put_lossy(bed_, "0.5"), refused);
    EXPECT_EQ(put_lossy(bed_, "x"), refused);
    EXPECT_EQ(put_lossy(bed_, "0.5", 1), Code::Ok) << "its parts are exact";
    EXPECT_EQ(put_lossy(bed_, "0.5", 3), Code::Ok) << "a number that is kept free for an exact codec";
    EXPECT_EQ(put_lossy(bed_, "0.5", 63), refused) << "nobody says that it is exact";
  }
  info.coding.step_limit = 1;
  ASSERT_EQ(bed_.limit(info), Code::Ok);
  EXPECT_EQ(put_lossy(bed_, "0.001"), refused) << "exact alone";
  info.coding.step_limit = 0;
  ASSERT_EQ(bed_.limit(info), Code::Ok);
  EXPECT_EQ(put_lossy(bed_, "4"), Code::Ok);
}

TEST_F(Codecs, ALossyPartInALayoutWithoutStepsIsBelowEveryFloor) {
  NamespaceInfo info{.name = "default", .coding = {.step_limit = 40000}};
  const auto put_of = [&](uint8_t codec) {
    std::vector<PartInfo> parts(4);
    for (PartInfo& part : parts) part = {0, 3000, 4096, 0, 77, codec};
    StoreBed::Put put;
    const Status status = bed_.begin_put(put, "in the bed's layout", kGroupPlain, 16384, false, parts);
    while (status.ok() && !put.done) bed_.pump();
    return status;
  };
  ASSERT_EQ(bed_.limit(info), Code::Ok);
  EXPECT_EQ(put_of(2), Status(Code::Unsupported, kBelowFloor));
  EXPECT_EQ(put_of(1), Code::Ok);
}

}  // namespace
}  // namespace halfstep::store
