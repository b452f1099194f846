#include "shard/coding_tally.h"

#include <gtest/gtest.h>

#include <string>

#include "shard/metrics_fixture.h"

namespace halfstep::shard {
namespace {

std::vector<std::byte> one_choice(wire::CodingReason reason) {
  std::vector<std::byte> out;
  Writer value(out);
  value.put(uint32_t{0});
  value.put(uint32_t{1});
  value.put(wire::CodingKnown{.link_bytes_per_s = 7});
  value.put(reason);
  return out;
}

double counted(const CodingTally& tally, const std::string& name) {
  Metrics metrics;
  tally.collect(name, &metrics);
  return value_of(metrics, "halfstep_coding_choices_total{namespace=\"" + name + "\",reason=\"room\"}");
}

TEST(CodingTally, ForgetsNamespacesThatAreNoMore) {
  const std::vector<std::byte> room = one_choice(wire::CodingReason::Room);
  CodingTally tally;
  for (int i = 0; i < 3; ++i) tally.note("stays", room);
  tally.note("goes", room);
  EXPECT_EQ(counted(tally, "goes"), 1);
  tally.keep({{.name = "stays"}, {.name = "silent"}});
  EXPECT_EQ(counted(tally, "stays"), 3);
  EXPECT_EQ(counted(tally, "goes"), -1);
  EXPECT_EQ(counted(tally, "silent"), -1);
}

TEST(CodingTally, HasOnlySoManyNames) {
  const std::vector<std::byte> room = one_choice(wire::CodingReason::Room);
  CodingTally tally;
  for (size_t i = 0; i < CodingTally::kNamespacesMax; ++i) tally.note("n" + std::to_string(i), room);
  tally.note("late", room);
  EXPECT_EQ(counted(tally, "late"), -1);
  tally.note("n0", room);
  EXPECT_EQ(counted(tally, "n0"), 2) << "those that are known go on";
  tally.keep({{.name = "n0"}});
  tally.note("late", room);
  EXPECT_EQ(counted(tally, "late"), 1);
}

}  // namespace
}  // namespace halfstep::shard
