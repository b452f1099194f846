// put_fixture.h — puts that tests offer and fill by hand.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "shard/shard_fixture.h"

namespace halfstep::shard {

inline constexpr AnswerReason kStored{Answer::Ok, Reason::Stored};
inline constexpr AnswerReason kMalformed{Answer::Rejected, Reason::Malformed};

class PutTest : public ShardFixture {
 protected:
  // Sends the offer and reads up to the first frame about it.
  Said offer(RawClient& client, uint64_t id, const SectionSpec& section, wire::Batch batch = {}) {
    client.send(request_frame(Opcode::Put, id, batch, {section}));
    Frame frame;
    Said said;
    EXPECT_TRUE(client.next(id, &frame));
    take_apart(frame.body, &said);
    return said;
  }
  bool there(RawClient& client, const SectionSpec& section, uint64_t id = 90) {
    const Said said = client.ask(Opcode::Match, id, {}, {section});
    const auto& bits = said.matched.at(0);
    return std::all_of(bits.begin(), bits.end(), [](bool bit) { return bit; });
  }
};

}  // namespace halfstep::shard
