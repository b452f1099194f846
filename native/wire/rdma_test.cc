#include "wire/rdma.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace halfstep::wire {
namespace {

using Blob = std::vector<std::byte>;

RdmaPath sample() {
  RdmaPath path{.queue_pair = 0x123456,
                .psn = 0xFFFFFF,
                .ring_address = 0x7F00'0000'1000,
                .ring_key = 0xABCD,
                .ring_bytes = 1 * MiB,
                .mtu_bytes = 1024};
  path.gid.fill(std::byte{1});
  return path;
}

Blob offer_of(const RdmaOfferHead& head, const std::vector<RdmaPath>& paths) {
  Blob out;
  Writer writer(out);
  writer.put(head);
  for (const RdmaPath& path : paths) writer.put(path);
  return out;
}
Blob answer_of(const RdmaAnswerHead& head, const std::vector<RdmaPath>& paths = {}) {
  Blob out;
  Writer writer(out);
  writer.put(head);
  for (const RdmaPath& path : paths) writer.put(path);
  return out;
}

TEST(Rdma, AnOfferReadsAsItWasWritten) {
  RdmaOfferView view;
  const Blob offer = offer_of({.path_count = 2}, {sample(), sample()});
  ASSERT_TRUE(parse_rdma_offer(offer, &view).ok());
  ASSERT_EQ(view.paths.size(), 2U);
  EXPECT_EQ(view.paths[1].psn, 0xFFFFFFU);
  EXPECT_EQ(view.paths[1].ring_address, 0x7F00'0000'1000U);
}

TEST(Rdma, AnOfferOfOtherVersionsIsNotLookedAt) {
  RdmaOfferView view;
  Blob later = offer_of({.version_min = 2, .version_max = 9, .path_count = 700, .zero = 5}, {});
  later.resize(later.size() + 13);
  ASSERT_TRUE(parse_rdma_offer(later, &view).ok());
  EXPECT_TRUE(view.paths.empty());
  EXPECT_TRUE(parse_rdma_offer(offer_of({.version_min = 1, .version_max = 9, .path_count = 1}, {sample()}), &view).ok());
  EXPECT_EQ(view.paths.size(), 1U);
}

TEST(Rdma, AnOfferThatIsNoneIsRefused) {
  RdmaOfferView view;
  EXPECT_FALSE(parse_rdma_offer({}, &view).ok());
  EXPECT_FALSE(parse_rdma_offer(Blob(7), &view).ok());
  EXPECT_FALSE(parse_rdma_offer(offer_of({.path_count = 0}, {}), &view).ok());
  EXPECT_FALSE(parse_rdma_offer(offer_of({.path_count = 2}, {sample()}), &view).ok());
  EXPECT_FALSE(parse_rdma_offer(offer_of({.path_count = 5}, std::vector<RdmaPath>(5, sample())), &view).ok());
  EXPECT_FALSE(parse_rdma_offer(offer_of({.path_count = 1, .zero = 1}, {sample()}), &view).ok());
  EXPECT_FALSE(parse_rdma_offer(offer_of({.version_min = 2, .version_max = 1, .path_count = 1}, {sample()}), &view).ok());
  Blob longer = offer_of({.path_count = 1}, {sample()});
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse_rdma_offer(longer, &view).ok());
}

TEST(Rdma, APathOutsideItsBoundsIsRefusedInOfferAndAnswer) {
  const std::vector<std::function<void(RdmaPath&)>> faults = {
      [](RdmaPath& path) { path.queue_pair = 1U << 24; },
      [](RdmaPath& path) { path.psn = 1U << 24; },
      [](RdmaPath& path) { path.mtu_bytes = 0; },
      [](RdmaPath& path) { path.mtu_bytes = 128; },
      [](RdmaPath& path) { path.mtu_bytes = 8192; },
      [](RdmaPath& path) { path.mtu_bytes = 1500; },
      [](RdmaPath& path) { path.ring_bytes = 0; },
      [](RdmaPath& path) { path.ring_bytes = kRdmaRingBytesMin / 2; },
      [](RdmaPath& path) { path.ring_bytes = kRdmaRingBytesMax * 2; },
      [](RdmaPath& path) { path.ring_bytes = 1'000'000; },
      [](RdmaPath& path) { path.ring_address = UINT64_MAX - 5; },
      [](RdmaPath& path) { path.zero = 1; },
  };
  for (size_t i = 0; i < faults.size(); ++i) {
    RdmaPath path = sample();
    faults[i](path);
    RdmaOfferView offer;
    RdmaAnswerView answer;
    EXPECT_FALSE(parse_rdma_offer(offer_of({.path_count = 1}, {path}), &offer).ok()) << i;
    EXPECT_FALSE(parse_rdma_answer(answer_of({}, {path}), &answer).ok()) << i;
  }
}

TEST(Rdma, ReadsAreOneAtLeastAndNoMoreThanAQueuePairCounts) {
  RdmaReadsRecord reads;
  const auto parsed = [&](const RdmaReadsRecord& record, size_t bytes = sizeof(RdmaReadsRecord)) {
    return parse_rdma_reads(object_bytes(record).first(bytes), &reads).ok();
  };
  EXPECT_TRUE(parsed({.reads = 1}));
  EXPECT_TRUE(parsed({.reads = kRdmaReadsMax}));
  EXPECT_EQ(reads.reads, kRdmaReadsMax);
  EXPECT_FALSE(parsed({.reads = 0}));
  EXPECT_FALSE(parsed({.reads = kRdmaReadsMax + 1}));
  EXPECT_FALSE(parsed({.reads = 1, .zero = 1}));
  EXPECT_FALSE(parsed({.reads = 1}, 4));
}

TEST(Rdma, AnAnswerHasAPathOrARefusal) {
  RdmaAnswerView view;
  ASSERT_TRUE(parse_rdma_answer(answer_of({.path = 3}, {sample()}), &view).ok());
  EXPECT_EQ(view.path.ring_key, 0xABCDU);
  ASSERT_TRUE(parse_rdma_answer(answer_of({.version = 0, .refusal = RdmaRefusal::Memory}), &view).ok());
  EXPECT_EQ(view.head.refusal, RdmaRefusal::Memory);
  ASSERT_TRUE(parse_rdma_answer(answer_of({.version = 0, .refusal = RdmaRefusal{99}}), &view).ok()) << "one that comes later";
  EXPECT_FALSE(std::string(rdma_refusal_text(view.head.refusal)).empty());

  EXPECT_FALSE(parse_rdma_answer({}, &view).ok());
  EXPECT_FALSE(parse_rdma_answer(answer_of({}), &view).ok());
  EXPECT_FALSE(parse_rdma_answer(answer_of({.path = 4}, {sample()}), &view).ok());
  EXPECT_FALSE(parse_rdma_answer(answer_of({.zero = 1}, {sample()}), &view).ok());
  EXPECT_FALSE(parse_rdma_answer(answer_of({.version = 2}, {sample()}), &view).ok());
  EXPECT_FALSE(parse_rdma_answer(answer_of({.version = 0}), &view).ok());
  EXPECT_FALSE(parse_rdma_answer(answer_of({.refusal = RdmaRefusal::Off}, {sample()}), &view).ok());
  EXPECT_FALSE(parse_rdma_answer(answer_of({.version = 0, .refusal = RdmaRefusal::Off}, {sample()}), &view).ok());
}

TEST(Rdma, EveryRefusalHasAText) {
  for (uint16_t number = 0; number < kRdmaRefusals; ++number) {
    EXPECT_EQ(std::string(rdma_refusal_text(RdmaRefusal{number})).find("does not know"), std::string::npos) << number;
  }
}

}  // namespace
}  // namespace halfstep::wire
