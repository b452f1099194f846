// Gets of coded blocks that a deadline or a cancel cuts off in the midst of their parts: after the terminal event nothing in
// the target changes. `make cut-decodes` makes 1,000 such cuts over each transport under the thread sanitizer, which sees a
// decoder that writes while the caller reads; here a few are made in any build.
//   HALFSTEP_CUT_DECODES   cuts a transport (default 12)
//   HALFSTEP_SEED          (default 30)
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "compress/codec.h"
#include "daemon_fixture.h"
#include "peer/try_client.h"

namespace halfstep {
namespace cut_decodes_test {

using peer::names;
using peer::Octets;
using peer::text_of;
using peer::TryClient;
using peer::TrySection;

constexpr uint32_t kPartBytes = 32'768;
constexpr uint32_t kParts = 8;
constexpr uint32_t kBlockBytes = kParts * kPartBytes;
constexpr uint32_t kKeys = 12;
constexpr std::byte kUntouched{0xA5};

uint64_t of_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// bf16 values near each other, which all codecs make smaller; none of their bytes' patterns is that of untouched memory.
Octets kv_block(uint64_t seed) {
  Prng prng(seed);
  Octets out(kBlockBytes);
  for (size_t i = 0; i < out.size(); i += 2) {
    const auto value = static_cast<uint16_t>((118 + prng.below(8)) << 7 | prng.below(128));
    std::memcpy(out.data() + i, &value, sizeof(value));
  }
  return out;
}

class CutDecodes : public DaemonFixture, public ::testing::WithParamInterface<size_t> {
 protected:
  void configure() override { config_.store_bytes = 256 * MiB; }

  static wire::Layout layout_of(const std::string& codec) {
    wire::Layout layout;
    const wire::GroupShape shape{.part_count = kParts, .size_count = 1, .part_bytes = {kPartBytes}};
    const std::string part = codec == "ubq" ? "bf16/128/0.1" : "bf16/128";
    EXPECT_TRUE(wire::Layout::make({{"codec", codec}, {"codec.0", part}}, {shape}, &layout).ok());
    return layout;
  }
  void put(TryClient& client, const std::string& codec) {
    std::vector<Octets> blocks;
    for (uint32_t i = 0; i < kKeys; ++i) blocks.push_back(kv_block(i));
    TrySection section(client.layout(layout_of(codec)), names(kKeys));
    hs_batch batch = TryClient::batch(HS_OP_PUT, 30'000'000);
    EXPECT_EQ(client.call(batch, section.into(blocks)).items_ok, kKeys) << codec << ": " << text_of(section.answers[0]);
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, CutDecodes, ::testing::Values(0U, 1U),
                         [](const auto& of) { return of.param == 0 ? "tcp" : "shm"; });

// One get that is cut after `after_us`: by a cancel, or by its deadline.
struct Cut {
  TryClient& client;
  int handle;
  std::vector<Octets> target{kKeys, Octets(kBlockBytes, kUntouched)};

  // The share of the target that was written, in 1/1,000; whatever is written later fails the test.
  uint64_t make(bool by_cancel, uint64_t after_us, uint8_t order) {
    TrySection section(handle, names(kKeys));
    section.into(target);
    hs_batch batch =
        TryClient::batch(HS_OP_GET, by_cancel ? 30'000'000 : static_cast<uint32_t>(std::max<uint64_t>(after_us, 1)));
    batch.order = order;
    const hs_ticket ticket = client.submit(batch, section);
    EXPECT_NE(ticket, 0U) << client.why;
    if (by_cancel) {
      std::this_thread::sleep_for(std::chrono::microseconds(after_us));
      hs_cancel(client.queue, ticket);
    }
    hs_event event = client.wait();
    while (event.kind != HS_EVENT_DONE) event = client.wait();
    EXPECT_EQ(event.ticket, ticket);
    // The caller's again: it may be read, and written by nobody else.
    const std::vector<Octets> at_the_end = target;
    uint64_t written = 0;
    for (const Octets& block : at_the_end) {
      for (uint32_t part = 0; part < kParts; ++part) {
        written += block[size_t{part} * kPartBytes + 1] != kUntouched || block[size_t{part} * kPartBytes] != kUntouched;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    EXPECT_TRUE(target == at_the_end) << "written after the terminal event";
    return written * 1000 / (kKeys * kParts);
  }
};

TEST_P(CutDecodes, LeaveTheTargetAsItIsAfterTheTerminalEvent) {
  const uint64_t wanted = of_environment("HALFSTEP_CUT_DECODES", 12);
  Prng prng(of_environment("HALFSTEP_SEED", 30));
  // Of one the waiting thread decodes, of the other the client's own.
  TryClient waiting(address(GetParam()), 1, 0, 0, 5, compress::kCodecs);
  TryClient told(address(GetParam()), 1, 0, 0, 5, compress::kCodecs);
  ASSERT_GE(hs_queue_descriptor(told.queue), 0);
  const char* codecs[] = {"bfx", "ubq", "zstd"};
  for (const char* codec : codecs) put(waiting, codec);
  ASSERT_FALSE(HasFailure());
  uint64_t cuts = 0;
  uint64_t tries = 0;
  // So long until the middle, of each codec and client: found by what the tries before have met.
  uint64_t middle_us[] = {500, 500, 500, 500, 500, 500};
  while (cuts < wanted && tries < wanted * 40 + 400 && !HasFailure()) {
    const size_t kind = tries % std::size(middle_us);
    TryClient& client = kind % 2 == 0 ? waiting : told;
    uint64_t& middle = middle_us[kind];
    const uint64_t after_us = middle / 2 + prng.below(middle + 1);
    Cut cut{client, client.layout(layout_of(codecs[kind / 2]))};
    const uint64_t written = cut.make(prng.below(2) == 0, after_us, prng.below(2) == 0 ? HS_KEY_MAJOR : HS_LAYER_MAJOR);
    if (written == 0) middle = std::min<uint64_t>(middle * 5 / 4 + 1, 2'000'000);
    if (written == 1000) middle = middle * 4 / 5 + 1;
    cuts += written > 0 && written < 1000;
    ++tries;
  }
  std::printf("%llu cuts among parts, of %llu gets\n", static_cast<unsigned long long>(cuts),
              static_cast<unsigned long long>(tries));
  EXPECT_EQ(cuts, wanted) << "of " << tries << " gets";
}

}  // namespace cut_decodes_test
}  // namespace halfstep
