// An encoder when memory is short: whatever allocation fails, a put is done once, plain or coded, and nothing is thrown.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <new>

#include "peer/encoder.h"
#include "peer/try_client.h"

namespace {
// Allocations of this thread that succeed before one fails; negative: all do.
thread_local int64_t allocations_left = -1;
// Whether those of other threads than the test's fail.
thread_local bool is_test_thread = false;
std::atomic<bool> others_fail{false};
}  // namespace

void* operator new(size_t bytes) {
  if (allocations_left == 0 || (others_fail && !is_test_thread)) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace halfstep::peer {
namespace encoder_memory_test {

constexpr uint32_t kBlockBytes = 16'384;
constexpr uint32_t kItems = 3;

class NoHost final : public TicketHost {
 public:
  void recycle(Ticket&) override {}
  void on_payload_released(Ticket&) override {}
  void on_placement_over(Ticket&) override {}
};

struct Put {
  Put() : ticket(host, nullptr), block(kBlockBytes) {
    for (size_t i = 0; i < block.size(); i += 2) {
      const auto value = static_cast<uint16_t>((120 - i / 2 % 2) << 7 | i * 37 % 128);
      std::memcpy(block.data() + i, &value, sizeof(value));
    }
    ticket.operation = HS_OP_PUT;
    ticket.section_count = 1;
    ticket.sections.resize(1);
    Section& section = ticket.sections[0];
    wire::Layout layout;
    const wire::GroupShape shape{.part_count = 1, .size_count = 1, .part_bytes = {kBlockBytes}};
    EXPECT_TRUE(wire::Layout::make({{"codec", "bfx"}, {"codec.0", "bf16"}}, {shape}, &layout).ok());
    section.shape = shape;
    section.coding = std::make_shared<const LayoutCoding>(layout);
    section.key_count = section.item_count = kItems;
    section.selection.set_all();
    const std::vector<hs_iovec> iovecs(kItems, {block.data(), block.size()});
    const std::vector<uint32_t> block_bytes(kItems, kBlockBytes);
    hs_section described{};
    described.target_kind = HS_TARGET_IOVEC;
    described.iovecs = iovecs.data();
    described.block_bytes = block_bytes.data();
    EXPECT_TRUE(section.target.set(described, kItems, shape, section.selection).ok());
    section.offers.resize(kItems);
    for (wire::Offer& offer : section.offers) offer.block_bytes = kBlockBytes;
    ticket.prepare();
  }
  uint32_t coded() const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < kItems; ++i) count += ticket.sections[0].coded(i) != nullptr ? 1 : 0;
    return count;
  }
  NoHost host;
  Ticket ticket;
  Octets block;
};

TEST(EncoderMemory, ABlockForWhichAWorkerHasNoneIsPlainAndCounted) {
  is_test_thread = true;
  Put put;
  std::promise<void> done;
  Encoder encoder([&](Ticket&, uint32_t) { done.set_value(); }, 1);
  others_fail = true;
  encoder.encode(put.ticket);
  done.get_future().wait();
  others_fail = false;
  EXPECT_EQ(put.coded(), 0U);
  EXPECT_EQ(encoder.facts().blocks[static_cast<size_t>(CodingReason::NoMemory)], kItems);
  encoder.stop();
  encoder.take_back(put.ticket);
}

TEST(EncoderMemory, APutIsDoneOnceWhateverAllocationFails) {
  bool some_plain = false;
  uint32_t coded = 0;
  for (int64_t good = 0; coded == 0; ++good) {
    SCOPED_TRACE(good);
    ASSERT_LT(good, 1000);
    Put put;
    std::promise<void> done;  // that it is set twice would throw
    Encoder encoder([&](Ticket&, uint32_t) { done.set_value(); }, 1);
    allocations_left = good;
    EXPECT_NO_THROW(encoder.encode(put.ticket));
    allocations_left = -1;
    done.get_future().wait();
    coded = put.coded();
    EXPECT_TRUE(coded == 0 || coded == kItems) << coded;
    some_plain = some_plain || coded == 0;
    allocations_left = 0;
    EXPECT_NO_THROW(encoder.take_back(put.ticket)) << "what cannot be kept is freed";
    allocations_left = -1;
    encoder.stop();
  }
  EXPECT_TRUE(some_plain) << "no allocation failed";
}

}  // namespace encoder_memory_test
}  // namespace halfstep::peer
