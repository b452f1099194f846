// get_fixture.h — gets against a store that delays, refuses and rots on command.
#pragma once

#include "shard/shard_fixture.h"

namespace halfstep::shard {

inline constexpr AnswerReason kOk{Answer::Ok, Reason::None};
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
  // Sends a get of this section in layer order, as request 5, whose reads wait, and returns when so many have begun.
  void begin_layers(RawClient& client, const SectionSpec& section, size_t reads) {
    on_shard([&] { fake_->hold_reads = true; });
    client.remember(5, {section});
    client.send(request_frame(Opcode::Get, 5, {.order = wire::Order::LayerMajor}, {section}));
    wait_until([&] { return fake_->reads_begun == reads; });
  }
};

}  // namespace halfstep::shard
