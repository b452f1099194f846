// get_fixture.h — gets against a store that delays, refuses and rots on command.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "shard/shard_fixture.h"

namespace halfstep::shard {

inline constexpr AnswerReason kAbsent{Answer::Miss, Reason::Absent};
inline constexpr AnswerReason kSkipped{Answer::Miss, Reason::Skipped};

class GetTest : public ShardFixture {
 protected:
  // Stores these and checks that it worked.
  void fill(RawClient& client, const std::vector<SectionSpec>& sections) {
    const Said said = client.put(50, sections);
    ASSERT_FALSE(said.malformed);
    for (const auto& [name, status] : said.statuses) ASSERT_EQ(status.answer, Answer::Ok) << name.second;
  }
  static std::vector<RawClient::PartName> parts_of(const RawClient& client, uint64_t id) {
    std::vector<RawClient::PartName> out;
    for (const auto& [request, part] : client.parts_received) {
      if (request == id) out.push_back(part);
    }
    return out;
  }
  // Of a get of one section: all items are ok but those that `other` says, and no byte was wrong. Nothing is held any more.
  void expect_ok(const RawClient& client, const Said& said, uint32_t items,
                 const std::map<uint32_t, AnswerReason>& other = {}) {
    for (uint32_t item = 0; item < items; ++item) {
      const auto found = other.find(item);
      EXPECT_EQ(said.at(0, item), found != other.end() ? found->second : kOk) << item;
    }
    EXPECT_EQ(client.wrong_parts, 0U);
    expect_nothing_held();
  }
  // Sends a get of this section in layer order, as request 5, whose reads wait, and returns when so many have begun.
  void begin_layers(RawClient& client, const SectionSpec& section, size_t reads) {
    on_shard([&] { fake_->hold_reads = true; });
    client.remember(5, {section});
    client.send(request_frame(Opcode::Get, 5, {.order = wire::Order::LayerMajor}, {section}));
    wait_until([&] { return fake_->reads_begun == reads; });
  }
};

}  // namespace halfstep::shard
