// Places that a client says, looked over by the server: none that is forged, stale or too long is written to. Over rings, on a
// table of verbs that moves bytes within the process, and without a connection.
#include "shard/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "rdma/memory_region.h"
#include "shard/pulls.h"
#include "shard/shard_fixture.h"

namespace halfstep::shard {
namespace placement_test {
namespace {

using wire::PlacePart;
using wire::PlacePiece;
using wire::RegionRecord;

constexpr AnswerReason kOk{Answer::Ok, Reason::None};
constexpr AnswerReason kMalformed{Answer::Rejected, Reason::Malformed};

template <typename T>
std::vector<std::byte> bytes_of(const T& record) {
  const ConstBytes bytes = object_bytes(record);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> places(const std::vector<PlacePiece>& pieces, const std::vector<uint32_t>& counts) {
  std::vector<std::byte> out;
  Writer writer(out);
  writer.put(wire::PlacesHead{.item_count = static_cast<uint32_t>(counts.size()),
                              .piece_count = static_cast<uint32_t>(pieces.size())});
  for (const PlacePiece& piece : pieces) writer.put(piece);
  for (const uint32_t count : counts) writer.put(count);
  return out;
}

std::vector<std::byte> rows(uint32_t number, const std::vector<int64_t>& all) {
  std::vector<std::byte> out;
  Writer writer(out);
  writer.put(wire::PlaceRowsHead{.item_count = static_cast<uint32_t>(all.size()), .number = number});
  for (const int64_t row : all) writer.put(row);
  return out;
}

std::vector<std::byte> template_of(uint32_t number, const std::vector<PlacePart>& parts) {
  std::vector<std::byte> out;
  Writer writer(out);
  writer.put(wire::TemplateHead{.number = number, .part_count = static_cast<uint32_t>(parts.size())});
  for (const PlacePart& part : parts) writer.put(part);
  return out;
}

// ---- What a get's places come to -----------------------------------------------------------------------------------------

class FoundPlaces : public testing::Test {
 protected:
  static constexpr uint64_t kAddress = 0x10000;
  void SetUp() override { placement_.set_region({.number = 3, .key = 77, .address = kAddress, .bytes = 1000}); }
  Fault begin(const std::vector<std::byte>& value, bool by_rows = false) {
    value_ = value;
    view_.section_count = 1;
    view_.sections[0].places = value_;
    view_.sections[0].by_rows = by_rows;
    found_.clear();
    return found_.begin(view_, &placement_);
  }
  void set_template(uint32_t number, const std::vector<PlacePart>& parts) {
    const std::vector<std::byte> value = template_of(number, parts);
    wire::TemplateView view;
    ASSERT_TRUE(wire::parse_template(value, &view).ok());
    ASSERT_TRUE(placement_.set_template(view).ok());
  }
  // Address and bytes of each write; nothing where it cannot be placed.
  std::vector<std::pair<uint64_t, uint32_t>> find(uint32_t item, uint32_t part, uint64_t at, uint32_t offset, uint32_t count) {
    std::vector<net::RemoteRun> runs;
    std::vector<std::pair<uint64_t, uint32_t>> all;
    if (!found_.find(0, item, part, at, offset, count, runs_max_, runs)) return all;
    for (const net::RemoteRun& run : runs) {
      EXPECT_EQ(run.key, 77U);
      all.emplace_back(run.address - kAddress, run.bytes);
    }
    return all;
  }
  using Writes = std::vector<std::pair<uint64_t, uint32_t>>;

  size_t runs_max_ = 64;
  Placement placement_;
  wire::RequestView view_;
  std::vector<std::byte> value_;
  RequestPlaces found_;
};

TEST_F(FoundPlaces, BytesOfAnItemLieOverItsPiecesInOrder) {
  ASSERT_TRUE(begin(places({{900, 3, 100}, {0, 3, 10}, {10, 3, 10}, {500, 3, 50}}, {1, 2, 0, 1})).ok());
  ASSERT_TRUE(found_.placed(0));
  EXPECT_EQ(find(0, 0, 0, 0, 100), (Writes{{900, 100}}));
  EXPECT_EQ(find(0, 5, 40, 20, 40), (Writes{{960, 40}})) << "of a part that begins at 40, from 20 in it on";
  EXPECT_EQ(find(0, 0, 0, 0, 101), Writes()) << "not into the next item's";
  EXPECT_EQ(find(1, 0, 5, 0, 15), (Writes{{5, 15}})) << "what touches is one";
  EXPECT_EQ(find(1, 0, 0, 0, 21), Writes());
  EXPECT_EQ(find(2, 0, 0, 0, 1), Writes()) << "an item without places";
  EXPECT_EQ(find(3, 0, 49, 0, 1), (Writes{{549, 1}}));
  EXPECT_EQ(find(3, 0, uint64_t{1} << 40, 0, 1), Writes());
}

TEST_F(FoundPlaces, APieceThatLeavesItsRegionIsRefusedInASentence) {
  const Fault fault = begin(places({{0, 3, 10}, {991, 3, 10}}, {2}));
  EXPECT_EQ(fault.status, Code::Invalid);
  EXPECT_EQ(fault.what, "places: piece 1 ends at 1001; its region has 1000 bytes");
  EXPECT_EQ(begin(places({{UINT64_MAX - 20, 3, 10}}, {1})).status, Code::Invalid);
  EXPECT_EQ(begin(places({{UINT64_MAX, 3, 10}}, {1})).status, Code::Invalid) << "beyond 64 bits";
  EXPECT_TRUE(begin(places({{990, 3, 10}}, {1})).ok());
}

TEST_F(FoundPlaces, WhatNamesNoRegionIsNotPlaced) {
  ASSERT_TRUE(begin(places({{0, 3, 10}, {5000, 4, 10}}, {2})).ok());
  EXPECT_FALSE(found_.any());
  EXPECT_FALSE(found_.placed(0));
  ASSERT_TRUE(begin(rows(2, {0}), true).ok());
  EXPECT_FALSE(found_.any()) << "no such template";
}

TEST_F(FoundPlaces, ARegionThatShrinksOrGoesMeanwhileIsWrittenToNoMore) {
  ASSERT_TRUE(begin(places({{900, 3, 100}}, {1})).ok());
  placement_.set_region({.number = 3, .key = 77, .address = kAddress, .bytes = 950});
  EXPECT_EQ(find(0, 0, 0, 0, 50), (Writes{{900, 50}}));
  EXPECT_EQ(find(0, 0, 0, 0, 51), Writes());
  placement_.set_region({.number = 3});
  EXPECT_EQ(find(0, 0, 0, 0, 1), Writes());
}

TEST_F(FoundPlaces, RegionsThatTheRequestBringsComeBeforeTheConnections) {
  std::vector<std::byte> keys;
  Writer writer(keys);
  writer.put(RegionRecord{.number = 1, .key = 77, .address = kAddress + 5000, .bytes = 100});
  writer.put(RegionRecord{.number = 3, .key = 77, .address = kAddress + 7000, .bytes = 500});
  view_.place_keys = keys;
  ASSERT_TRUE(begin(places({{90, 1, 10}, {400, 3, 100}}, {2})).ok());
  EXPECT_EQ(find(0, 0, 0, 0, 110), (Writes{{5090, 10}, {7400, 100}}));
  EXPECT_EQ(begin(places({{401, 3, 100}}, {1})).status, Code::Invalid) << "of the request's, not of the connection's 1,000";
  view_.place_keys = {};
  ASSERT_TRUE(begin(places({{90, 1, 10}}, {1})).ok());
  EXPECT_FALSE(found_.any()) << "they went with their request";
}

TEST_F(FoundPlaces, PartsLieInTheRowsOfTheTemplateThatTheRequestNamed) {
  set_template(2, {{.offset = 100, .row_stride = -50, .inner_stride = 30, .inner_count = 2, .inner_bytes = 10, .region = 3}});
  ASSERT_TRUE(begin(rows(2, {0, 1, 2}), true).ok());
  EXPECT_EQ(find(0, 0, 0, 0, 20), (Writes{{100, 10}, {130, 10}}));
  EXPECT_EQ(find(2, 0, 0, 5, 10), (Writes{{5, 5}, {30, 5}}));
  EXPECT_EQ(find(0, 0, 0, 5, 16), Writes()) << "longer than the part's places";
  EXPECT_EQ(find(0, 1, 0, 0, 1), Writes()) << "a part that the template has not";
  set_template(2, {{.offset = 700, .inner_count = 1, .inner_bytes = 20, .region = 3}});
  EXPECT_EQ(find(1, 0, 0, 0, 20), (Writes{{50, 10}, {80, 10}})) << "another of that number changes nothing";
  EXPECT_EQ(begin(rows(2, {0}), true).status, Code::Ok);
  EXPECT_EQ(find(0, 0, 0, 0, 20), (Writes{{700, 20}}));
}

// A part of a quarter of a million pieces of a byte each: they are one, or too many to go on.
TEST_F(FoundPlaces, NoMorePiecesAreLookedAtThanMayBe) {
  placement_.set_region({.number = 3, .key = 77, .address = kAddress, .bytes = 1'000'000});
  set_template(0, {{.inner_stride = 1, .inner_count = 262'144, .inner_bytes = 1, .region = 3},
                   {.inner_stride = 2, .inner_count = 262'144, .inner_bytes = 1, .region = 3}});
  ASSERT_TRUE(begin(rows(0, {0}), true).ok());
  EXPECT_EQ(find(0, 0, 0, 3, 262'141), (Writes{{3, 262'141}}));
  runs_max_ = 2;
  EXPECT_EQ(find(0, 1, 0, 0, 2), (Writes{{0, 1}, {2, 1}}));
  EXPECT_EQ(find(0, 1, 0, 0, 3), Writes());
  std::vector<net::RemoteRun> runs;
  EXPECT_FALSE(found_.find(0, 0, 1, 0, 0, 262'144, 2, runs));
  EXPECT_EQ(runs.size(), 3U) << "one more than may be";
  ASSERT_TRUE(begin(places({{0, 3, 1}, {2, 3, 1}, {4, 3, 1}}, {3})).ok());
  EXPECT_EQ(find(0, 0, 0, 0, 2), (Writes{{0, 1}, {2, 1}}));
  EXPECT_EQ(find(0, 0, 0, 0, 3), Writes());
}

TEST_F(FoundPlaces, RowsThatLeaveTheRegionAreRefusedHoweverLargeTheyAre) {
  set_template(0, {{.offset = 100, .row_stride = 50, .inner_count = 1, .inner_bytes = 50, .region = 3}});
  EXPECT_TRUE(begin(rows(0, {-2, 17}), true).ok());
  for (const int64_t row : {int64_t{-3}, int64_t{18}, INT64_MAX, INT64_MIN, int64_t{1} << 60}) {
    const Fault fault = begin(rows(0, {0, row}), true);
    EXPECT_EQ(fault.status, Code::Invalid) << row;
    EXPECT_NE(fault.what.find("leaves its region of 1000 bytes"), std::string::npos) << fault.what;
  }
  set_template(1, {{.offset = UINT64_MAX, .inner_stride = INT64_MAX, .inner_count = 9, .inner_bytes = 1, .region = 3}});
  EXPECT_EQ(begin(rows(1, {0}), true).status, Code::Invalid);
}

TEST_F(FoundPlaces, AConnectionHasSoManyPartsOfTemplates) {
  const std::vector<PlacePart> many(2048, PlacePart{.inner_count = 1, .inner_bytes = 1, .region = 3});
  for (uint32_t number = 0; number < 4; ++number) set_template(number, many);
  const std::vector<std::byte> value = template_of(4, {many[0]});
  wire::TemplateView view;
  ASSERT_TRUE(wire::parse_template(value, &view).ok());
  EXPECT_EQ(placement_.set_template(view), Code::TooLarge);
  set_template(1, {many[0]});
  EXPECT_TRUE(placement_.set_template(view).ok()) << "a smaller one took its place";
}

// ---- What a server does with them ----------------------------------------------------------------------------------------

class PlacedRequests : public ShardFixture {
 protected:
  static constexpr uint32_t kBytes = 40'000;
  void SetUp() override {
    if (over_rdma() != nullptr) GTEST_SKIP() << "these have a table of verbs of their own";
    config_.rdma.on = true;
    config_.rdma.verbs = [this](std::string*) { return &verbs_; };
    ShardFixture::SetUp();
    section_ = section_of({"one", "two"}, kBytes);
    auto writer = open({parted(4, kBytes / 4)});
    ASSERT_EQ(writer->put(5, {section_}).at(0, 1).answer, Answer::Ok);
  }
  void TearDown() override {
    if (over_rdma() != nullptr) return;
    ShardFixture::TearDown();
    region_.reset();
    EXPECT_EQ(verbs_.live(), 0U);
    EXPECT_TRUE(verbs_.faults().empty()) << verbs_.faults().front();
  }
  std::unique_ptr<RawClient> open_rings() {
    auto client = open({parted(4, kBytes / 4)},
                       std::make_unique<RawClient>(RdmaPlace{"127.0.0.1", port_, [this](std::string*) { return &verbs_; }}));
    EXPECT_NE(client->device(), nullptr);
    return client;
  }
  static Said tell(RawClient& client, const RegionRecord& region, uint64_t id = 50) {
    return client.simple(Opcode::RegisterRegion, id, Tlv::RdmaRegion, bytes_of(region));
  }
  // Registers memory_ with the client's device, and tells of it as region 9.
  RegionRecord registered(RawClient& client) {
    EXPECT_TRUE(rdma::MemoryRegion::make(client.device(), memory_, rdma::MemoryRegion::Access::RemoteWrite, &region_).ok());
    return {.number = 9, .key = region_.remote_key(), .address = region_.address(), .bytes = memory_.size()};
  }
  // Both blocks, one behind the other, from `offset` on.
  SectionSpec at(uint64_t offset) const {
    SectionSpec section = section_;
    section.places = places({{offset, 9, kBytes}, {offset + kBytes, 9, kBytes}}, {1, 1});
    return section;
  }
  bool untouched() const {
    return std::all_of(memory_.begin(), memory_.end(), [](std::byte byte) { return byte == std::byte{0xA5}; });
  }

  rdma::FakeVerbs verbs_;
  SectionSpec section_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(100'000, std::byte{0xA5});
  rdma::MemoryRegion region_;
};

TEST_F(PlacedRequests, AreAnsweredWithPlacedFramesOfWhatLiesThere) {
  auto client = open_rings();
  ASSERT_EQ(tell(*client, registered(*client)).whole, kOk);
  client->send(request_frame(Opcode::Get, 7, {}, {at(1000)}));
  Frame frame;
  std::vector<std::pair<uint32_t, uint32_t>> parts;  // item, part
  while (client->next(7, &frame) && frame.opcode() == Opcode::Placed) {
    EXPECT_TRUE(frame.payload.empty());
    wire::RunsView runs;
    uint32_t bytes = 0;
    ASSERT_TRUE(wire::parse_placed(frame.body, &runs, &bytes).ok());
    uint32_t check_at = 0;
    for (uint32_t r = 0; r < runs.run_count; ++r) {
      const wire::Run run = runs.run(r);
      for (uint32_t p = run.part; p < run.part + run.part_count; ++p) {
        const RunSpec expected = client->run_of(section_, 0, run.item, p, 1);
        EXPECT_EQ(std::memcmp(&memory_[1000 + run.item * kBytes + p * kBytes / 4], expected.bytes.data(), kBytes / 4), 0);
        EXPECT_EQ(runs.check(check_at++), expected.checks[0]);
        parts.emplace_back(run.item, p);
      }
    }
  }
  EXPECT_EQ(frame.opcode(), Opcode::Final);
  EXPECT_EQ(parts.size(), 8U);
  EXPECT_EQ(memory_[999], std::byte{0xA5});
  EXPECT_EQ(memory_[1000 + 2 * kBytes], std::byte{0xA5});
  EXPECT_EQ(metric("halfstep_rdma_placed_bytes_total"), 2 * kBytes);
  EXPECT_EQ(client->chunks, 0U);
}

TEST_F(PlacedRequests, PlacesBeyondTheirRegionAreMalformedAndNothingIsWritten) {
  auto client = open_rings();
  ASSERT_EQ(tell(*client, registered(*client)).whole, kOk);
  uint64_t id = 60;
  for (const uint64_t offset : {uint64_t{100'000 - 2 * kBytes + 1}, uint64_t{100'000}, uint64_t{1} << 63}) {
    const Said said = client->ask(Opcode::Get, ++id, {}, {at(offset)});
    EXPECT_EQ(said.whole, kMalformed) << offset;
    EXPECT_NE(said.reason.find("its region has 100000 bytes"), std::string::npos) << said.reason;
  }
  const PlacePart part{.row_stride = 10'000, .inner_count = 1, .inner_bytes = 10'000, .region = 9};
  ASSERT_EQ(client->simple(Opcode::RegisterTemplate, ++id, Tlv::PlaceTemplate, template_of(0, {part, part, part, part})).whole,
            kOk);
  SectionSpec by_rows = section_;
  by_rows.by_rows = true;
  by_rows.places = rows(0, {0, 10});
  EXPECT_EQ(client->ask(Opcode::Get, ++id, {}, {by_rows}).whole, kMalformed);
  by_rows.places = rows(0, {0, -1});
  EXPECT_EQ(client->ask(Opcode::Get, ++id, {}, {by_rows}).whole, kMalformed);
  EXPECT_TRUE(untouched());
  EXPECT_EQ(verbs_.count("placed"), 0U);
  EXPECT_EQ(client->ask(Opcode::Get, ++id, {}, {section_}).at(0, 1), kOk) << "the connection is as good as before";
}

TEST_F(PlacedRequests, WhatIsNoRegionOrNoTemplateIsMalformed) {
  auto client = open_rings();
  EXPECT_EQ(tell(*client, {.number = 64, .bytes = 10}).whole, kMalformed);
  EXPECT_EQ(tell(*client, {.number = 1, .address = UINT64_MAX, .bytes = 10}).whole, kMalformed);
  EXPECT_EQ(client->simple(Opcode::RegisterRegion, 51, Tlv::RdmaRegion, {}).whole, kMalformed);
  EXPECT_EQ(client->simple(Opcode::RegisterTemplate, 52, Tlv::PlaceTemplate, template_of(16, {})).whole, kMalformed);
  const std::vector<PlacePart> many(2560, PlacePart{.inner_count = 1, .inner_bytes = 1, .region = 1});
  for (uint32_t number = 0; number < 3; ++number) {
    ASSERT_EQ(client->simple(Opcode::RegisterTemplate, 53 + number, Tlv::PlaceTemplate, template_of(number, many)).whole, kOk);
  }
  EXPECT_EQ(client->simple(Opcode::RegisterTemplate, 57, Tlv::PlaceTemplate, template_of(3, many)).whole,
            (AnswerReason{Answer::Rejected, Reason::Limit}));
}

// As a client with memory windows asks: no region is told, and the key is the request's.
TEST_F(PlacedRequests, AGetThatBringsItsKeysNeedsNoRegion) {
  auto client = open_rings();
  RegionRecord own = registered(*client);
  const auto keys = [&](const std::vector<RegionRecord>& all) {
    return [all](wire::FrameWriter& frame) {
      frame.open_tlv(Tlv::PlaceKeys);
      for (const RegionRecord& one : all) frame.value().put(one);
      frame.close_tlv();
    };
  };
  client->send(request_frame(Opcode::Get, 7, {}, {at(1000)}, 0, keys({own})));
  Frame frame;
  size_t placed = 0;
  while (client->next(7, &frame) && frame.opcode() == Opcode::Placed) ++placed;
  EXPECT_EQ(frame.opcode(), Opcode::Final);
  EXPECT_GT(placed, 0U);
  EXPECT_EQ(metric("halfstep_rdma_placed_bytes_total"), 2 * kBytes);
  client->send(request_frame(Opcode::Get, 8, {}, {at(1000)}));
  ASSERT_TRUE(client->next(8, &frame));
  EXPECT_EQ(frame.opcode(), Opcode::Chunk) << "the key went with its request";
  while (frame.opcode() != Opcode::Final) ASSERT_TRUE(client->next(8, &frame));
  uint64_t id = 20;
  RegionRecord other = own;
  other.number = 64;
  RegionRecord none = own;
  none.bytes = 0;
  for (const auto& wrong : std::vector<std::vector<RegionRecord>>{{}, {own, own}, {other}, {none}}) {
    EXPECT_EQ(client->ask(Opcode::Get, ++id, {}, {at(1000)}, 0, keys(wrong)).whole, kMalformed) << wrong.size();
  }
  EXPECT_EQ(metric("halfstep_rdma_placed_bytes_total"), 2 * kBytes);
}

// A key that the client's device does not know, or an address beyond what the key is of: the device says so, and this
// connection ends, and no other.
TEST_F(PlacedRequests, AForgedKeyOrAddressEndsItsConnectionAlone) {
  auto bystander = open_rings();
  for (const bool key : {true, false}) {
    auto client = open_rings();
    RegionRecord forged = registered(*client);
    if (key) forged.key += 0x1000;
    if (!key) forged.address += memory_.size() - 10;
    ASSERT_EQ(tell(*client, forged).whole, kOk) << "only the client's own device can tell";
    client->send(request_frame(Opcode::Get, 7, {}, {at(0)}));
    Frame frame;
    EXPECT_FALSE(client->next(7, &frame) && frame.opcode() == Opcode::Placed);
    client->close();
    EXPECT_TRUE(untouched());
    region_.reset();
  }
  EXPECT_EQ(bystander->ask(Opcode::Get, 8, {}, {section_}).at(0, 1), kOk);
  EXPECT_EQ(bystander->wrong_parts, 0U);
  bystander->close();
  expect_nothing_held();
}

TEST_F(PlacedRequests, WithoutRdmaNoRegionIsTakenAndPlacesAreNotLookedAt) {
  auto client = open({parted(4, kBytes / 4)}, connect_tcp());
  const Said said = tell(*client, {.number = 1, .address = 0x1000, .bytes = 10});
  EXPECT_EQ(said.whole, (AnswerReason{Answer::Rejected, Reason::Unsupported}));
  EXPECT_NE(said.reason.find("over RDMA alone"), std::string::npos) << said.reason;
  EXPECT_EQ(client->simple(Opcode::RegisterTemplate, 51, Tlv::PlaceTemplate, template_of(0, {})).whole,
            (AnswerReason{Answer::Rejected, Reason::Unsupported}));
  EXPECT_EQ(client->ask(Opcode::Get, 7, {}, {at(0)}).at(0, 1), kOk);
  EXPECT_GT(client->chunks, 0U);
  EXPECT_EQ(client->wrong_parts, 0U);
}

// ---- Puts that are read out of the client's memory ------------------------------------------------------------------------

class PulledRequests : public PlacedRequests {
 protected:
  // Lays two blocks of other names there, registers them, offers them and waits until they are wanted.
  std::unique_ptr<RawClient> offer(rdma::MemoryRegion::Access access = rdma::MemoryRegion::Access::Remote,
                                   const std::string& name = "") {
    auto client = open_rings();
    fresh_ = section_of({"three" + name, "four" + name}, kBytes);
    for (uint32_t item = 0; item < 2; ++item) {
      for (uint32_t p = 0; p < 4; ++p) {
        const RunSpec run = client->run_of(fresh_, 0, item, p, 1);
        std::copy(run.bytes.begin(), run.bytes.end(), memory_.begin() + item * kBytes + p * kBytes / 4);
      }
    }
    EXPECT_TRUE(rdma::MemoryRegion::make(client->device(), memory_, access, &region_).ok());
    EXPECT_EQ(
        tell(*client, {.number = 9, .key = region_.remote_key(), .address = region_.address(), .bytes = memory_.size()}).whole,
        kOk);
    fresh_.places = places({{0, 9, kBytes}, {kBytes, 9, kBytes}}, {1, 1});
    client->send(request_frame(Opcode::Put, 7, {}, {fresh_}));
    Frame want;
    EXPECT_TRUE(client->next(7, &want) && want.opcode() == Opcode::Want);
    return client;
  }
  // The whole of one item.
  std::vector<std::byte> placed(RawClient& client, uint32_t item, uint32_t first = 0, uint32_t count = 4) {
    std::vector<RunSpec> runs;
    for (uint32_t p = first; p < first + count; ++p) runs.push_back(client.run_of(fresh_, 0, item, p, 1));
    return chunk_frame(7, runs, Opcode::Placed);
  }

  // Why the server ends the connection.
  static std::string reason_of_end(RawClient& client) {
    Frame frame;
    Said said;
    while (client.receive(&frame)) {
      if (frame.opcode() == Opcode::Abort) take_apart(frame.body, &said);
    }
    return said.reason;
  }

  SectionSpec fresh_;
};

TEST_F(PulledRequests, AreReadFromWhereTheyLieAndStored) {
  auto client = offer();
  client->send(placed(*client, 0));
  client->send(placed(*client, 1));
  const Said said = client->finish(7);
  EXPECT_EQ(said.at(0, 0), (AnswerReason{Answer::Ok, Reason::Stored}));
  EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Ok, Reason::Stored}));
  EXPECT_EQ(metric("halfstep_rdma_pulled_bytes_total"), 2 * kBytes);
  SectionSpec plain = fresh_;
  plain.places.clear();
  EXPECT_EQ(client->ask(Opcode::Get, 8, {}, {plain}).at(0, 1), kOk);
  EXPECT_EQ(client->wrong_parts, 0U);
  client->close();
  expect_nothing_held();
}

TEST_F(PulledRequests, WhatMayNotBeReadEndsItsConnectionAlone) {
  auto bystander = open_rings();
  auto client = offer(rdma::MemoryRegion::Access::RemoteWrite);  // a key for writes alone
  client->send(placed(*client, 0));
  EXPECT_EQ(reason_of_end(*client), "") << "its path is broken";
  EXPECT_EQ(bystander->ask(Opcode::Get, 8, {}, {section_}).at(0, 1), kOk);
  bystander->close();
  expect_nothing_held();
}

TEST_F(PulledRequests, ARegionThatIsForgottenIsNotReadAndEndsTheConnection) {
  auto client = offer();
  ASSERT_EQ(tell(*client, {.number = 9}, 51).whole, kOk);
  client->send(placed(*client, 0));
  EXPECT_NE(reason_of_end(*client).find("no region"), std::string::npos);
  EXPECT_EQ(verbs_.count("read"), 0U);
  expect_nothing_held();
}

TEST_F(PulledRequests, APartThatComesTwiceCostsItsItem) {
  auto client = offer();
  client->send(placed(*client, 0, 0, 2));
  client->send(placed(*client, 0, 1, 1));
  client->send(placed(*client, 1));
  const Said said = client->finish(7);
  EXPECT_EQ(said.at(0, 0), kMalformed);
  EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Ok, Reason::Stored}));
  client->close();
  expect_nothing_held();
}

// Its sum is made in the order in which its bytes land, and what a device reads lands later than what comes behind it.
TEST_F(PulledRequests, APartThatComesBothWaysCostsItsItem) {
  for (const bool pulled_first : {true, false}) {
    auto client = offer(rdma::MemoryRegion::Access::Remote, pulled_first ? "1" : "2");
    for (uint32_t p = 1; p < 4; ++p) client->send(chunk_frame(7, {client->run_of(fresh_, 0, 0, p, 1)}));
    const RunSpec whole = client->run_of(fresh_, 0, 0, 0, 1);
    RunSpec begin = whole;
    begin.bytes.resize(4000);
    begin.checks.clear();
    RunSpec rest = whole;
    rest.run.offset = 4000;
    rest.bytes.erase(rest.bytes.begin(), rest.bytes.begin() + 4000);
    // As if it were the whole of the part.
    if (pulled_first) rest.checks[0] ^= crc32c(whole.bytes) ^ crc32c(rest.bytes);
    std::vector<std::byte> frames = chunk_frame(7, {begin}, pulled_first ? Opcode::Placed : Opcode::Chunk);
    const std::vector<std::byte> behind = chunk_frame(7, {rest}, pulled_first ? Opcode::Chunk : Opcode::Placed);
    frames.insert(frames.end(), behind.begin(), behind.end());
    client->send(frames);
    client->send(placed(*client, 1));
    const Said said = client->finish(7);
    EXPECT_EQ(said.at(0, 0), kMalformed) << pulled_first;
    EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Ok, Reason::Stored})) << pulled_first;
    client->close();
    region_.reset();
    expect_nothing_held();
  }
}

// So many reads are under way that no frame is looked at, and nobody waits for an answer: only the path itself can say that it
// is broken.
TEST_F(PulledRequests, APathThatBreaksWhileReadingRestsEndsItsConnection) {
  auto client = offer();
  verbs_.delay_newest(true);
  std::vector<std::byte> frames;
  const auto append = [&](const std::vector<RunSpec>& runs) {
    const std::vector<std::byte> frame = chunk_frame(7, runs, Opcode::Placed);
    frames.insert(frames.end(), frame.begin(), frame.end());
  };
  constexpr uint32_t kPieces = Pulls::kPullsMax / 8;
  for (uint32_t part = 0; part < 8; ++part) {
    const RunSpec whole = client->run_of(fresh_, 0, part / 4, part % 4, 1);
    const size_t piece_bytes = whole.bytes.size() / kPieces;
    for (uint32_t at = 0; at < kPieces; ++at) {
      RunSpec piece{.run = whole.run, .checks = {}, .bytes = std::vector<std::byte>(piece_bytes)};
      piece.run.offset = static_cast<uint32_t>(at * piece_bytes);
      if (at + 1 == kPieces) piece.checks = whole.checks;
      RunSpec given_up{.run = whole.run, .checks = {}, .bytes = {}};
      given_up.run.flags = wire::kRunAborted;
      append(part % 4 == 3 && at + 1 == kPieces ? std::vector<RunSpec>{piece, given_up} : std::vector<RunSpec>{piece});
    }
  }
  client->send(frames);
  const auto wait_for = [&](const char* name, double value) {
    while (metric(name) != value) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  wait_for("halfstep_rdma_pulled_bytes_total", 2 * kBytes);
  wait_for("halfstep_connections_open", 1);
  verbs_.break_newest(rdma::abi::kStatusRetryExceeded);
  wait_for("halfstep_connections_open", 0);
  client->close();
  expect_nothing_held();
}

TEST_F(PulledRequests, WithoutReadsAPlacedOfAClientEndsTheConnection) {
  auto client = open({parted(4, kBytes / 4)}, connect_tcp());
  const RunSpec run = client->run_of(section_, 0, 0, 0, 1);
  client->send(chunk_frame(7, {run}, Opcode::Placed));
  EXPECT_NE(reason_of_end(*client).find("by servers only"), std::string::npos);
}

// The client is gone while the device still has writes to carry out: what they are read from is given back, and not before.
TEST_F(PlacedRequests, AClientThatGoesWhileItIsWrittenIntoLeavesNothing) {
  auto client = open_rings();
  ASSERT_EQ(tell(*client, registered(*client)).whole, kOk);
  verbs_.delay(true);
  client->send(request_frame(Opcode::Get, 7, {}, {at(0)}));
  wait_until([&] {
    verbs_.carry_out(verbs_.count("placed") == 0 ? SIZE_MAX : 0);
    return verbs_.count("placed") != 0;
  });
  client->close();
  region_.reset();
  verbs_.carry_out();
  verbs_.delay(false);
  verbs_.carry_out();
  EXPECT_TRUE(untouched());
  expect_nothing_held();
}

}  // namespace
}  // namespace placement_test
}  // namespace halfstep::shard
