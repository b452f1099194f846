#include "net/send_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "net/stream_fixture.h"

namespace halfstep::net {
namespace {

void note(void* owner, uint64_t tag) { static_cast<std::vector<uint64_t>*>(owner)->push_back(tag); }

Octets gathered(const SendQueue& queue, size_t vectors_max, size_t bytes_max) {
  std::vector<iovec> vectors(vectors_max);
  const size_t used = queue.gather(vectors, bytes_max);
  Octets out;
  for (size_t i = 0; i < used; ++i) append(out, {static_cast<const std::byte*>(vectors[i].iov_base), vectors[i].iov_len});
  return out;
}

TEST(SendQueue, GivesBytesInOrderHoweverTheyAreTaken) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Prng prng(seed);
    SendQueue queue;
    std::vector<std::unique_ptr<Octets>> kept;
    std::vector<uint64_t> released;
    std::vector<uint64_t> ends;  // where each payload ends in the stream
    Octets expected;
    Octets sent;
    const auto check = [&] {
      size_t complete = 0;
      while (complete < ends.size() && ends[complete] <= sent.size()) ++complete;
      ASSERT_EQ(released.size(), complete);
    };
    for (int step = 0; step < 400; ++step) {
      if (prng.chance(0.3)) {
        const Octets copied = random_octets(prng.below(300), prng.next());
        queue.push(copied);
        append(expected, copied);
      }
      if (prng.chance(0.3)) {
        kept.push_back(std::make_unique<Octets>(random_octets(prng.below(3000), prng.next())));
        const ConstBytes whole = *kept.back();
        const size_t cut = prng.below(whole.size() + 1);
        const std::array<ConstBytes, 2> pieces = {whole.first(cut), whole.subspan(cut)};
        append(expected, whole);
        queue.push_payload(pieces, note, &released, ends.size());
        ends.push_back(expected.size());
        if (queue.bytes() == 0) queue.consume(0);
      }
      const Octets front = gathered(queue, 1 + prng.below(5), 1 + prng.below(4000));
      const size_t taken = prng.below(front.size() + 1);
      append(sent, ConstBytes(front).first(taken));
      queue.consume(taken);
      check();
    }
    while (queue.bytes() != 0) {
      const Octets front = gathered(queue, 64, SIZE_MAX);
      ASSERT_FALSE(front.empty());
      append(sent, front);
      queue.consume(front.size());
    }
    check();
    ASSERT_TRUE(sent == expected) << "seed " << seed;
    for (size_t i = 0; i < released.size(); ++i) ASSERT_EQ(released[i], i);
  }
}

TEST(SendQueue, DroppingReleasesEachPayloadOnceAndForgetsBytes) {
  std::vector<uint64_t> released;
  const Octets payload = random_octets(100, 1);
  const ConstBytes piece = payload;
  {
    SendQueue queue;
    queue.push_payload({&piece, 1}, note, &released, 1);
    queue.push(payload);
    queue.push_payload({}, note, &released, 2);
    queue.consume(40);
    EXPECT_TRUE(released.empty());
    queue.drop();
    EXPECT_EQ(released, (std::vector<uint64_t>{1, 2}));
    EXPECT_EQ(queue.bytes(), 0U);
    EXPECT_TRUE(queue.empty());
    queue.push_payload({&piece, 1}, note, &released, 3);
    EXPECT_EQ(gathered(queue, 8, SIZE_MAX), payload);
  }
  EXPECT_EQ(released, (std::vector<uint64_t>{1, 2, 3}));
}

TEST(SendQueue, TrimsOnlyWhenEmpty) {
  SendQueue queue;
  queue.push(random_octets(10'000, 1));
  queue.trim();
  EXPECT_EQ(gathered(queue, 8, SIZE_MAX).size(), 10'000U);
  queue.consume(10'000);
  EXPECT_GE(queue.held_bytes(), 10'000U);
  queue.trim();
  EXPECT_EQ(queue.held_bytes(), 0U);
}

// Whatever a border cuts, the bytes are the same and in order; a run is payload alone, and long enough.
TEST(SendQueue, ARunOfPayloadIsGatheredByItself) {
  constexpr size_t kRun = 8 * kRunPieceBytesMin;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Prng prng(seed);
    SendQueue queue;
    std::vector<std::unique_ptr<Octets>> kept;
    Octets expected;
    Octets sent;
    std::vector<bool> large;  // of every byte: whether it is of a payload that is a run
    for (int frame = 0; frame < 30; ++frame) {
      const Octets head = random_octets(1 + prng.below(300), prng.next());
      queue.push(head);
      append(expected, head);
      large.resize(expected.size(), false);
      const size_t pieces = prng.below(12);
      const size_t bytes = prng.chance(0.2) ? 100 : 2 * kRunPieceBytesMin;
      kept.push_back(std::make_unique<Octets>(random_octets(pieces * bytes, prng.next())));
      std::vector<ConstBytes> payload;
      for (size_t i = 0; i < pieces; ++i) payload.push_back(ConstBytes(*kept.back()).subspan(i * bytes, bytes));
      queue.push_payload(payload, nullptr, nullptr, 0);
      append(expected, *kept.back());
      large.resize(expected.size(), bytes >= kRunPieceBytesMin && pieces * bytes >= kRun);
    }
    while (!queue.empty()) {
      std::vector<iovec> vectors(1 + prng.below(20));
      bool run = false;
      const size_t used = queue.gather_to_border(vectors, 1 + prng.below(20 * kRunPieceBytesMin), kRun, &run);
      ASSERT_GT(used, 0U);
      const size_t before = sent.size();
      Octets now;
      for (size_t i = 0; i < used; ++i) append(now, {static_cast<const std::byte*>(vectors[i].iov_base), vectors[i].iov_len});
      if (run) {
        for (size_t i = 0; i < used; ++i) {
          const auto* from = static_cast<const std::byte*>(vectors[i].iov_base);
          ASSERT_TRUE(std::any_of(kept.begin(), kept.end(), [&](const auto& payload) {
            return from >= payload->data() && from + vectors[i].iov_len <= payload->data() + payload->size();
          })) << "memory of the queue, which changes";
        }
      }
      const size_t count = 1 + prng.below(now.size());
      append(sent, ConstBytes(now).first(count));
      queue.consume(count);
      // What is left of a payload that was sent in part may be too little for a run.
      if (before == 0 || large[before - 1] != large[before]) {
        ASSERT_EQ(run, bool(large[before])) << "seed " << seed;
      }
    }
    ASSERT_EQ(sent, expected);
  }
}

struct Keeper final : PayloadKeeper {
  bool keep(const Release& release) override {
    if (!keeps) return false;
    kept.push_back(release.tag);
    return true;
  }
  bool keeps = true;
  std::vector<uint64_t> kept;
};

TEST(SendQueue, WhatAKeeperKeepsOrTheFrontIsTakenOfIsNotReleased) {
  SendQueue queue;
  Keeper keeper;
  std::vector<uint64_t> released;
  const Octets bytes = random_octets(100, 1);
  const ConstBytes one[] = {bytes};
  for (uint64_t tag = 1; tag <= 4; ++tag) queue.push_payload(one, &note, &released, tag);
  queue.consume(150, &keeper);
  EXPECT_EQ(keeper.kept, std::vector<uint64_t>{1});
  Release front;
  ASSERT_TRUE(queue.take_front(&front));
  EXPECT_EQ(front.tag, 2U) << "it has left in part";
  keeper.keeps = false;
  queue.consume(150, &keeper);
  EXPECT_EQ(released, std::vector<uint64_t>{3});
  queue.drop();
  EXPECT_EQ(released, (std::vector<uint64_t>{3, 4}));
  EXPECT_FALSE(queue.take_front(&front));
}

}  // namespace
}  // namespace halfstep::net
