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

TEST(Plan, TablesOfOneKeyFitARequestAndTheBlocksPastThatGoPlain) {
  const wire::GroupShape shape{.part_count = wire::kPartsMax, .size_count = 1, .part_bytes = {kPartBytes}};
  NoHost host;
  Ticket ticket(host, nullptr);
  ticket.operation = HS_OP_PUT;
  ticket.section_count = 1;
  ticket.sections.resize(1);
  Section& section = ticket.sections[0];
  section.layout = std::make_shared<const wire::Layout>(make_layout({shape}));
  section.shape = shape;
  section.selection.set_all();
  section.component_count = kComponents;
  section.key_count = kKeys;
  section.item_count = kKeys * kComponents;
  for (const uint8_t octet : pack(names(kKeys))) section.keys.push_back(std::byte{octet});
  for (uint32_t k = 0; k <= kKeys; ++k) section.key_at.push_back(k * static_cast<uint32_t>(section.keys.size()) / kKeys);
  wire::PartRecord record;
  record.codec = compress::kBfx;
  record.stored_bytes = kStoredBytes;
  record.raw_bytes = kPartBytes;
  section.offers.resize(section.item_count);
  section.blocks.resize(section.item_count);
  for (uint32_t i = 0; i < section.item_count; ++i) {
    section.offers[i].block_bytes = kBlockBytes;
    section.offers[i].stored_bytes = wire::kPartsMax * kStoredBytes;
    section.offers[i].flags = wire::kOfferCoded;
    section.blocks[i].stored_bytes = wire::kPartsMax * kStoredBytes;
    section.blocks[i].parts.assign(wire::kPartsMax, record);
  }
  ticket.prepare();

  std::vector<std::unique_ptr<Request>> requests;
  plan(ticket, {.connections = {1}}, [&]() -> Request& {
    requests.push_back(std::make_unique<Request>());
    requests.back()->reset(ticket, wire::Opcode::Put);
    return *requests.back();
  });
  uint32_t keys = 0;
  uint32_t coded = 0;
  for (const auto& request : requests) {
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
  EXPECT_EQ(coded, kKeys * (kPartTableBytesMax / part_table_bytes(section.coded(0)))) << "as many as there is room for";
}

}  // namespace plan_test
}  // namespace halfstep::peer
