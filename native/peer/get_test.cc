// What a get holds of the parts that are on their way to it.
#include "peer/get.h"

#include <gtest/gtest.h>

#include "compress/unit.h"
#include "peer/try_client.h"

namespace halfstep::peer {
namespace get_test {

constexpr uint32_t kRawBytes = 1 << 20;
constexpr uint32_t kStoredBytes = 600'000;
constexpr uint32_t kPieceBytes = 200'000;
constexpr uint32_t kParts = 3;

class NoHost final : public TicketHost {
 public:
  void recycle(Ticket&) override {}
  void on_payload_released(Ticket&) override {}
  void on_placement_over(Ticket&) override {}
};

// The body of a Chunk with one run.
Octets body_of(const wire::Run& run, bool table) {
  Octets out;
  wire::FrameWriter frame(out);
  frame.begin(wire::Opcode::Chunk, 1);
  if (table) {
    frame.open_tlv(wire::Tlv::PartTable);
    frame.value().put(uint16_t{0});
    frame.value().put(uint16_t{0});
    frame.value().put(uint32_t{0});
    frame.value().put(kParts);
    frame.value().put(uint32_t{0});
    wire::PartRecord record;
    record.codec = compress::kBfx;
    record.stored_bytes = kStoredBytes;
    record.raw_bytes = kRawBytes;
    for (uint32_t p = 0; p < kParts; ++p) frame.value().put(record);
    frame.close_tlv();
  }
  frame.open_tlv(wire::Tlv::Runs);
  frame.value().put(uint32_t{1});
  frame.value().put(run.check_count);
  frame.value().put(run);
  for (uint32_t c = 0; c < run.check_count; ++c) frame.value().put(uint32_t{0});
  frame.close_tlv();
  frame.finish(run.bytes);
  return {out.begin() + wire::kHeaderBytes, out.end()};
}

TEST(Lander, HoldsTheStoredBytesOfAPartInPiecesOnlyUntilItsEnd) {
  const wire::GroupShape shape{.part_count = kParts, .size_count = 1, .part_bytes = {kRawBytes}};
  NoHost host;
  Ticket ticket(host, nullptr);
  ticket.operation = HS_OP_GET;
  ticket.section_count = 1;
  ticket.sections.resize(1);
  Section& section = ticket.sections[0];
  section.layout = std::make_shared<const wire::Layout>(make_layout({shape}));
  section.shape = shape;
  section.key_count = section.item_count = 1;
  // Each part is an item's unit of its own: that one is corrupt, as here, is nothing to the others.
  const hs_range ranges[] = {{0, kParts, 1}};
  ASSERT_TRUE(section.selection.set(ranges, shape).ok());
  Octets memory(size_t{kParts} * kRawBytes);
  const hs_iovec iovec{memory.data(), memory.size()};
  hs_section described{};
  described.target_kind = HS_TARGET_IOVEC;
  described.iovecs = &iovec;
  ASSERT_TRUE(section.target.set(described, 1, shape, section.selection).ok());
  ticket.prepare();
  ticket.items[0].name_number = 7;
  Request request;
  request.reset(ticket, wire::Opcode::Get);
  request.slices.push_back({0, 0, 1});

  Lander lander;
  lander.open(compress::kCodecs);
  for (uint32_t part = 0; part < kParts; ++part) {
    for (uint32_t at = 0; at < kStoredBytes; at += kPieceBytes) {
      wire::Run run;
      run.part = part;
      run.part_count = 1;
      run.flags = wire::kRunCoded;
      run.offset = at;
      run.bytes = kPieceBytes;
      run.block_bytes = kParts * kRawBytes;
      run.check_count = at + kPieceBytes == kStoredBytes ? 1 : 0;
      net::Landing landing;
      const Octets body = body_of(run, part == 0 && at == 0);
      ASSERT_TRUE(lander.begin(request, body, run.bytes, 64U << 20, &landing).ok());
      EXPECT_EQ(landing.bytes(), run.bytes);
      EXPECT_EQ(section.blocks[0].staged.bytes, run.check_count == 0 ? kStoredBytes : 0);
      lander.landed({}, run.bytes);
      lander.drop();
    }
  }
  EXPECT_EQ(lander.checksum_failures(), kParts);
}

}  // namespace get_test
}  // namespace halfstep::peer
