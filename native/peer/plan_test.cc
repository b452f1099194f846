// How a put with coded blocks is cut into requests.
#include "peer/plan.h"

#include <gtest/gtest.h>

#include "compress/unit.h"
#include "peer/try_client.h"

namespace halfstep::peer {
namespace plan_test {

constexpr uint32_t kComponents = 52;
constexpr uint32_t kKeys = 3;
constexpr uint32_t kPartBytes = 64;
constexpr uint32_t kStoredBytes = 40;
constexpr uint32_t kBlockBytes = wire::kPartsMax * kPartBytes;

class NoHost final : public TicketHost {
 public:
  void recycle(Ticket&) override {}
  void on_payload_released(Ticket&) override {}
  void on_placement_over(Ticket&) override {}
};

// The put of some keys, whose blocks are to be coded, and its requests.
struct PlannedPut {
  PlannedPut(uint32_t keys, uint32_t components, uint16_t parts, uint32_t part_bytes) : ticket(host, nullptr) {
    const wire::GroupShape shape{.part_count = parts, .size_count = 1, .part_bytes = {part_bytes}};
    ticket.operation = HS_OP_PUT;
    ticket.section_count = 1;
    ticket.sections.resize(1);
    Section& of = section();
    wire::Layout layout;
    EXPECT_TRUE(wire::Layout::make({{"codec", "bfx"}, {"codec.0", "bf16"}}, {shape}, &layout).ok());
    of.layout = std::make_shared<const wire::Layout>(layout);
    of.coding = std::make_shared<const LayoutCoding>(layout);
    of.shape = shape;
    of.selection.set_all();
    of.component_count = components;
    of.key_count = keys;
    of.item_count = keys * components;
    for (const uint8_t octet : pack(names(keys))) of.keys.push_back(std::byte{octet});
    for (uint32_t k = 0; k <= keys; ++k) of.key_at.push_back(k * static_cast<uint32_t>(of.keys.size()) / keys);
    of.offers.resize(of.item_count);
    for (wire::Offer& offer : of.offers) offer.block_bytes = parts * part_bytes;
    ticket.prepare();
  }
  Section& section() { return ticket.sections[0]; }
  void plan(const PlanLimits& limits) {
    peer::plan(ticket, limits, [&]() -> Request& {
      requests.push_back(std::make_unique<Request>());
      requests.back()->reset(ticket, wire::Opcode::Put);
      return *requests.back();
    });
  }
  NoHost host;
  Ticket ticket;
  std::vector<std::unique_ptr<Request>> requests;
};

TEST(Plan, BlocksThatAreToBeCodedAreOfferedALimitOfBytesAtATime) {
  constexpr uint32_t kBytes = 4 * kPartBytes;
  PlannedPut put(10, 1, 4, kPartBytes);
  put.plan({.bytes_max = 3 * kBytes, .connections = {1}});
  std::vector<uint32_t> keys;
  for (const auto& request : put.requests) keys.push_back(request->slices[0].count);
  EXPECT_EQ(keys, (std::vector<uint32_t>{3, 3, 3, 1}));

  PlannedPut large(2, 1, 4, kPartBytes);
  large.plan({.bytes_max = kBytes / 2, .connections = {1}});
  EXPECT_EQ(large.requests.size(), 2U) << "a block that is larger goes alone";
}

TEST(Plan, TablesOfOneKeyFitARequestAndTheBlocksPastThatGoPlain) {
  PlannedPut put(kKeys, kComponents, wire::kPartsMax, kPartBytes);
  put.plan({.connections = {1}});
  Section& section = put.section();
  wire::PartRecord record;
  record.codec = compress::kBfx;
  record.stored_bytes = kStoredBytes;
  record.raw_bytes = kPartBytes;
  section.blocks.resize(section.item_count);
  for (uint32_t i = 0; i < section.item_count; ++i) {
    section.offers[i].stored_bytes = wire::kPartsMax * kStoredBytes;
    section.offers[i].flags = wire::kOfferCoded;
    section.blocks[i].stored_bytes = wire::kPartsMax * kStoredBytes;
    section.blocks[i].parts.assign(wire::kPartsMax, record);
  }
  uint32_t keys = 0;
  uint32_t coded = 0;
  for (const auto& request : put.requests) {
    bound_tables(*request);
    Octets frame;
    request->encode(1000, {0}, frame);
    ASSERT_LE(frame.size() - wire::kHeaderBytes, wire::kBodyBytesMax);
    wire::RequestView view;
    ASSERT_TRUE(wire::parse_request(wire::Opcode::Put, ConstBytes(frame).subspan(wire::kHeaderBytes), &view).ok());
    keys += view.sections[0].head.key_count;
    coded += static_cast<uint32_t>(view.part_tables.size());
    for (uint32_t i = 0; i < view.sections[0].item_count(); ++i) {
      const wire::Offer offer = view.sections[0].offer(i);
      const bool is_coded = (offer.flags & wire::kOfferCoded) != 0;
      EXPECT_EQ(offer.stored_bytes, is_coded ? wire::kPartsMax * kStoredBytes : kBlockBytes);
    }
  }
  EXPECT_EQ(keys, kKeys);
  EXPECT_EQ(coded, kKeys * (kPartTableBytesMax / part_table_bytes(wire::kPartsMax))) << "as many as there is room for";
}

}  // namespace plan_test
}  // namespace halfstep::peer
