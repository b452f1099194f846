#include "wire/places.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace halfstep::wire {
namespace {

template <typename... Parts>
std::vector<std::byte> value_of(const Parts&... parts) {
  std::vector<std::byte> out;
  Writer writer(out);
  (writer.put(parts), ...);
  return out;
}

constexpr PlacePart kPart{.offset = 64, .row_stride = 100, .inner_stride = 10, .inner_count = 3, .inner_bytes = 8, .region = 2};

TEST(Places, ARegionHasANumberThatThereIsAndEndsWithinMemory) {
  RegionRecord out;
  const RegionRecord good{.number = kRegionsMax - 1, .key = 7, .address = 4096, .bytes = 8192};
  ASSERT_TRUE(parse_region(value_of(good), &out).ok());
  EXPECT_EQ(out.key, 7U);
  EXPECT_EQ(parse_region(value_of(RegionRecord{.number = kRegionsMax, .bytes = 1}), &out), Code::Invalid);
  EXPECT_EQ(parse_region(value_of(RegionRecord{.address = UINT64_MAX, .bytes = 2}), &out), Code::Invalid);
  EXPECT_EQ(parse_region(value_of(good, uint8_t{0}), &out), Code::Invalid);
  EXPECT_EQ(parse_region(value_of(uint64_t{0}), &out), Code::Invalid);
}

TEST(Places, KeysOfARequestAreRegionsThatAscend) {
  PackedArray<RegionRecord> out;
  const RegionRecord first{.number = 0, .key = 7, .address = 4096, .bytes = 8192};
  const RegionRecord last{.number = kRegionsMax - 1, .key = 8, .address = 0, .bytes = 1};
  const std::vector<std::byte> good = value_of(first, last);
  ASSERT_TRUE(parse_place_keys(good, &out).ok());
  EXPECT_EQ(out.size(), 2U);
  EXPECT_EQ(out[1].key, 8U);
  EXPECT_EQ(parse_place_keys({}, &out), Code::Invalid);
  EXPECT_EQ(parse_place_keys(value_of(first, first), &out), Code::Invalid);
  EXPECT_EQ(parse_place_keys(value_of(last, first), &out), Code::Invalid);
  EXPECT_EQ(parse_place_keys(value_of(first, uint8_t{0}), &out), Code::Invalid);
  for (const RegionRecord& wrong : {RegionRecord{.number = kRegionsMax, .bytes = 1}, RegionRecord{.number = 1},
                                    RegionRecord{.number = 1, .address = UINT64_MAX, .bytes = 2}}) {
    EXPECT_EQ(parse_place_keys(value_of(first, wrong), &out), Code::Invalid) << wrong.number;
  }
}

TEST(Places, ATemplateHasAsManyPartsAsItSays) {
  TemplateView out;
  const std::vector<std::byte> good = value_of(TemplateHead{.number = 15, .part_count = 2}, kPart, kPart);
  ASSERT_TRUE(parse_template(good, &out).ok());
  EXPECT_EQ(out.parts.size(), 2U);
  EXPECT_EQ(out.parts[1].inner_stride, 10);
  ASSERT_TRUE(parse_template(value_of(TemplateHead{.number = 15}), &out).ok()) << "forgotten";
  EXPECT_TRUE(out.parts.empty());
  EXPECT_EQ(parse_template(value_of(TemplateHead{.number = kTemplatesMax}), &out), Code::Invalid);
  EXPECT_EQ(parse_template(value_of(TemplateHead{.part_count = 2}, kPart), &out), Code::Invalid);
  EXPECT_EQ(parse_template(value_of(TemplateHead{.part_count = kPartsMax + 1}), &out), Code::Invalid);
  PlacePart nothing = kPart;
  nothing.inner_bytes = 0;
  PlacePart nowhere = kPart;
  nowhere.region = kRegionsMax;
  PlacePart reserved = kPart;
  reserved.zero = 1;
  for (const PlacePart& part : {nothing, nowhere, reserved}) {
    EXPECT_EQ(parse_template(value_of(TemplateHead{.part_count = 1}, part), &out), Code::Invalid);
  }
}

TEST(Places, PiecesAddUpToThoseOfTheItems) {
  PlacesView out;
  const PlacePiece piece{.offset = 5, .region = 1, .bytes = 9};
  const PlacesHead head{.section = 1, .item_count = 2, .piece_count = 3};
  const std::vector<std::byte> good = value_of(head, piece, piece, piece, uint32_t{1}, uint32_t{2});
  ASSERT_TRUE(parse_places(good, &out).ok());
  EXPECT_EQ(out.pieces.size(), 3U);
  EXPECT_EQ(out.counts[1], 2U);
  EXPECT_EQ(parse_places(value_of(head, piece, piece, piece, uint32_t{1}, uint32_t{1}), &out), Code::Invalid);
  EXPECT_EQ(parse_places(value_of(head, piece, piece, piece, uint32_t{4}, UINT32_MAX), &out), Code::Invalid);
  EXPECT_EQ(parse_places(value_of(head, piece, piece, piece, uint32_t{3}), &out), Code::Invalid);
  EXPECT_EQ(parse_places(value_of(PlacesHead{.piece_count = kPiecesMax + 1}), &out), Code::Invalid);
  EXPECT_EQ(parse_places(value_of(PlacesHead{.section = kSectionsMax}), &out), Code::Invalid);
  const PlacesHead one{.item_count = 1, .piece_count = 1};
  for (const PlacePiece& bad :
       {PlacePiece{.bytes = 0}, PlacePiece{.region = kRegionsMax, .bytes = 1}, PlacePiece{.offset = UINT64_MAX, .bytes = 1}}) {
    EXPECT_EQ(parse_places(value_of(one, bad, uint32_t{1}), &out), Code::Invalid);
  }
}

TEST(Places, RowsAreAsManyAsItems) {
  PlaceRowsView out;
  const PlaceRowsHead head{.section = 2, .item_count = 2, .number = 3};
  const std::vector<std::byte> good = value_of(head, int64_t{-1}, int64_t{4});
  ASSERT_TRUE(parse_place_rows(good, &out).ok());
  EXPECT_EQ(out.rows[0], -1);
  EXPECT_EQ(parse_place_rows(value_of(head, int64_t{1}), &out), Code::Invalid);
  EXPECT_EQ(parse_place_rows(value_of(PlaceRowsHead{.number = kTemplatesMax}), &out), Code::Invalid);
}

TEST(Places, APartStaysInsideItsRegionOrIsSaidNotTo) {
  // Row r begins at 64 + 100 r, and ends 2 * 10 + 8 bytes behind.
  EXPECT_TRUE(part_stays_inside(kPart, 0, 0, 92));
  EXPECT_FALSE(part_stays_inside(kPart, 0, 0, 91));
  EXPECT_TRUE(part_stays_inside(kPart, 0, 3, 392));
  EXPECT_FALSE(part_stays_inside(kPart, 0, 3, 391));
  EXPECT_FALSE(part_stays_inside(kPart, -1, 3, 1000)) << "36 bytes before";
  EXPECT_FALSE(part_stays_inside(kPart, 0, INT64_MAX, UINT64_MAX));
  EXPECT_FALSE(part_stays_inside(kPart, INT64_MIN, 0, UINT64_MAX));
  PlacePart back = kPart;
  back.row_stride = -100;
  back.offset = 300;
  EXPECT_TRUE(part_stays_inside(back, 0, 3, 328));
  EXPECT_FALSE(part_stays_inside(back, 0, 4, 1000));
  back.inner_stride = INT64_MIN;
  EXPECT_FALSE(part_stays_inside(back, 0, 0, UINT64_MAX));
}

std::vector<std::byte> runs_body(uint32_t bytes) {
  std::vector<std::byte> out;
  FrameWriter frame(out);
  frame.begin(Opcode::Placed, 1);
  frame.open_tlv(Tlv::Runs);
  frame.value().put(uint32_t{1});
  frame.value().put(uint32_t{1});
  frame.value().put(Run{.part_count = 1, .bytes = bytes, .block_bytes = bytes, .check_count = 1});
  frame.value().put(uint32_t{5});
  frame.close_tlv();
  frame.finish();
  return {out.begin() + kHeaderBytes, out.end()};
}

TEST(Places, APlacedHasAsManyBytesAsItsRunsAndNoMoreThanAChunk) {
  RunsView runs;
  uint32_t bytes = 0;
  ASSERT_TRUE(parse_placed(runs_body(1000), &runs, &bytes).ok());
  EXPECT_EQ(bytes, 1000U);
  EXPECT_EQ(runs.run_count, 1U);
  EXPECT_TRUE(parse_placed(runs_body(kChunkBytesMax), &runs, &bytes).ok());
  EXPECT_EQ(parse_placed(runs_body(kChunkBytesMax + 1), &runs, &bytes), Code::TooLarge);
  EXPECT_EQ(parse_placed({}, &runs, &bytes), Code::Invalid) << "no runs";
  std::vector<std::byte> cut = runs_body(10);
  cut.resize(cut.size() - 8);
  EXPECT_EQ(parse_placed(cut, &runs, &bytes), Code::Invalid);
}

// ---- In a request --------------------------------------------------------------------------------------------------------

struct Asked {
  explicit Asked(Opcode code = Opcode::Get) : opcode(code), frame(bytes) {
    frame.begin(opcode, 1);
    frame.tlv(Tlv::Batch, Batch{});
    section();
  }
  void section() {
    frame.open_tlv(Tlv::Section);
    frame.value().put(SectionHead{.component_count = 1, .key_count = 2, .keys_bytes = 4});
    for (const char* key : {"\1a", "\1b"}) frame.value().put_bytes(as_bytes(std::string_view(key, 2)));
    frame.close_tlv();
  }
  Status parse() {
    frame.finish();
    return parse_request(opcode, ConstBytes(bytes).subspan(kHeaderBytes), &view);
  }
  Opcode opcode;
  std::vector<std::byte> bytes;
  FrameWriter frame;
  RequestView view;
};

std::vector<std::byte> rows(uint16_t section, uint32_t count = 2) {
  std::vector<std::byte> out = value_of(PlaceRowsHead{.section = section, .item_count = count, .number = 1});
  Writer writer(out);
  for (uint32_t i = 0; i < count; ++i) writer.put(int64_t{i});
  return out;
}

TEST(PlacesInRequests, AreOfOneSectionOfAGetAndOfAllItsItems) {
  Asked good;
  good.section();
  good.frame.tlv_bytes(Tlv::PlaceRows, rows(1));
  ASSERT_TRUE(good.parse().ok());
  EXPECT_TRUE(good.view.sections[0].places.empty());
  EXPECT_TRUE(good.view.sections[1].by_rows);

  Asked twice;
  twice.frame.tlv_bytes(Tlv::PlaceRows, rows(0));
  twice.frame.tlv_bytes(Tlv::PlaceRows, rows(0));
  EXPECT_EQ(twice.parse(), Code::Invalid);
  Asked none;
  none.frame.tlv_bytes(Tlv::PlaceRows, rows(1));
  EXPECT_EQ(none.parse(), Code::Invalid);
  Asked short_of;
  short_of.frame.tlv_bytes(Tlv::PlaceRows, rows(0, 1));
  EXPECT_EQ(short_of.parse(), Code::Invalid);
  Asked touch(Opcode::Touch);
  touch.frame.tlv_bytes(Tlv::PlaceRows, rows(0));
  EXPECT_EQ(touch.parse(), Code::Invalid);
  Asked region;
  region.frame.tlv(Tlv::RdmaRegion, RegionRecord{.bytes = 1});
  EXPECT_EQ(region.parse(), Code::Invalid) << "a region has a request of its own";
}

TEST(PlacesInRequests, HaveOnlySoManyPiecesTogether) {
  const auto pieces = [](uint16_t section, uint32_t count) {
    std::vector<std::byte> out = value_of(PlacesHead{.section = section, .item_count = 2, .piece_count = count});
    Writer writer(out);
    for (uint32_t i = 0; i < count; ++i) writer.put(PlacePiece{.offset = i, .bytes = 1});
    writer.put(count);
    writer.put(uint32_t{0});
    return out;
  };
  for (const bool more : {false, true}) {
    Asked asked;
    asked.section();
    asked.frame.tlv_bytes(Tlv::Places, pieces(0, kPiecesMax - 5));
    asked.frame.tlv_bytes(Tlv::Places, pieces(1, more ? 6 : 5));
    EXPECT_EQ(asked.parse(), more ? Status(Code::TooLarge) : Status());
  }
}

}  // namespace
}  // namespace halfstep::wire
