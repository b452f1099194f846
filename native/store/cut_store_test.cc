// A store whose backing was cut: what is left is served, and nothing is tried behind the end.
#include <gtest/gtest.h>

#include "store/durable/blocking_io.h"
#include "store/format/page.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

class CutStoreTest : public ::testing::Test {
 protected:
  uint64_t segments_end() const { return places_of(bed.geometry).segments_end(); }

  StoreBed bed{21, 16};
};

TEST_F(CutStoreTest, PutsGoOnInWhatIsLeftAndNothingIsWrittenBehindTheEnd) {
  bed.open();
  for (int i = 0; i < 8; ++i) ASSERT_EQ(bed.put("early " + std::to_string(i), kGroupPlain, 16384, true), Code::Ok);
  bed.close();
  const Places places = places_of(bed.geometry);
  bed.resize_device(places.segment(10) + places.geometry.segment_bytes / 2);
  bed.open();
  bed.settle();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(bed.get("early " + std::to_string(i)), Code::Ok);
  for (int i = 0; i < 600; ++i) ASSERT_EQ(bed.put("late " + std::to_string(i), kGroupPlain, 16384, false), Code::Ok);
  bed.settle();
  EXPECT_EQ(bed.get("late 599"), Code::Ok);
  EXPECT_EQ(bed.store->counters().segments_bad, 0U) << "none was tried and given up";
  bool said = false;
  for (const std::string& note : bed.store->recovery().notes) {
    said = said || note.find("6 segments lie behind the end of the backing") != std::string::npos;
  }
  EXPECT_TRUE(said);
}

TEST_F(CutStoreTest, NoSegmentBehindTheEndIsWrittenThroughManyRounds) {
  bed.open();
  bed.close();
  const Places places = places_of(bed.geometry);
  bed.resize_device(places.segment(8));
  uint64_t in_segments = 0;
  bed.tap->tap = [&](io::Request& request) {
    const bool segment = request.offset >= places.segment(8) && request.offset < segments_end();
    in_segments += request.op == io::Op::Write && segment ? 1 : 0;
    return TapEngine::Fate::Pass;
  };
  bed.open();
  for (int i = 0; i < 2500; ++i) ASSERT_EQ(bed.put("block " + std::to_string(i), kGroupPlain, 16384, false), Code::Ok);
  bed.settle();
  EXPECT_EQ(in_segments, 0U);
  EXPECT_EQ(bed.get("block 2499"), Code::Ok);
}

}  // namespace
}  // namespace halfstep::store
