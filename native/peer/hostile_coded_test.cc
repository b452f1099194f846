// A daemon that lies, or is merely odd, about coded blocks: what a get decodes is right or a miss, and nothing lands elsewhere.
#include <gtest/gtest.h>

#include <cstring>

#include "compress/codec.h"
#include "peer/fake_daemon.h"
#include "peer/try_client.h"

namespace halfstep::peer {
namespace hostile_coded_test {

constexpr uint64_t kBfx = uint64_t{1} << compress::kBfx;
constexpr uint32_t kRawBytes = 16'384;

// bf16 values of a few magnitudes. The more of them, the longer the unit.
Octets values(uint64_t seed, uint32_t magnitudes) {
  Prng prng(seed);
  Octets out(kRawBytes);
  for (size_t i = 0; i < out.size(); i += 2) {
    const auto value = static_cast<uint16_t>((120 - prng.below(magnitudes)) << 7 | prng.below(128));
    std::memcpy(out.data() + i, &value, sizeof(value));
  }
  return out;
}

struct CodedPart {
  CodedPart(uint64_t seed, uint32_t magnitudes) : raw(values(seed, magnitudes)), unit(raw.size()) {
    compress::Scratch scratch;
    const compress::Codec& codec = *compress::find_codec(uint32_t{compress::kBfx});
    unit.resize(codec.encode(raw, {compress::Element::Bf16, 0}, scratch, unit));
    EXPECT_GT(unit.size(), 0U);
    record.codec = compress::kBfx;
    record.stored_bytes = static_cast<uint32_t>(unit.size());
    record.raw_bytes = kRawBytes;
    record.raw_crc = crc32c(raw);
  }
  Octets raw;
  Octets unit;
  wire::PartRecord record;
};

// A daemon with one block of two coded parts, and what it says of it.
class CodedDaemon {
 public:
  CodedDaemon(CodedPart first, CodedPart second) : parts{std::move(first), std::move(second)} {
    daemon.hook = [this](FakeDaemon::Connection& connection, const FakeDaemon::Frame& frame) {
      if (frame.opcode() != wire::Opcode::Get) return false;
      number_ = FakeDaemon::name_number_of({layout.id(), 0, "key-0"});
      id_ = frame.header.request_id;
      connection.send(say(*this));
      Octets last;
      wire::FrameWriter writer(last);
      writer.begin(wire::Opcode::Final, id_);
      FakeDaemon::add_status(writer, 0, 0, 1, {wire::Answer::Ok});
      writer.finish();
      connection.send(last);
      return true;
    };
  }

  // Bytes [from, to) of a part's unit, as one run.
  void piece(uint32_t part, uint32_t from, uint32_t to) {
    const Octets& unit = parts[part].unit;
    wire::Run run;
    run.part = part;
    run.part_count = 1;
    run.flags = wire::kRunCoded;
    run.offset = from;
    run.bytes = to - from;
    run.block_bytes = 2 * kRawBytes;
    run.check_count = to == unit.size() ? 1 : 0;
    if (run.check_count == 1) checks_.push_back(wire::wire_check(crc32c(unit), number_, part));
    runs_.push_back(run);
    payload_.insert(payload_.end(), unit.begin() + from, unit.begin() + to);
  }
  void whole(uint32_t part) { piece(part, 0, parts[part].record.stored_bytes); }
  // Of the part that comes now nothing holds.
  void aborted(uint32_t part) {
    wire::Run run;
    run.part = part;
    run.part_count = 1;
    run.flags = wire::kRunAborted | wire::kRunCoded;
    run.block_bytes = 2 * kRawBytes;
    runs_.push_back(run);
  }
  // The runs so far as one Chunk, with the block's table or without.
  void end_chunk(Octets& out, int tables) {
    wire::FrameWriter frame(out);
    frame.begin(wire::Opcode::Chunk, id_);
    for (; tables > 0; --tables) {
      frame.open_tlv(wire::Tlv::PartTable);
      frame.value().put(uint16_t{0});
      frame.value().put(uint16_t{0});
      frame.value().put(uint32_t{0});
      frame.value().put(static_cast<uint32_t>(parts.size()));
      frame.value().put(uint32_t{0});
      for (const CodedPart& part : parts) frame.value().put(part.record);
      frame.close_tlv();
    }
    frame.open_tlv(wire::Tlv::Runs);
    frame.value().put(static_cast<uint32_t>(runs_.size()));
    frame.value().put(static_cast<uint32_t>(checks_.size()));
    for (const wire::Run& run : runs_) frame.value().put(run);
    for (const uint32_t check : checks_) frame.value().put(check);
    frame.close_tlv();
    frame.finish(static_cast<uint32_t>(payload_.size()));
    out.insert(out.end(), payload_.begin(), payload_.end());
    runs_.clear();
    checks_.clear();
    payload_.clear();
  }

  FakeDaemon daemon;
  wire::Layout layout = make_layout({{.part_count = 2, .size_count = 1, .part_bytes = {kRawBytes}}});
  std::vector<CodedPart> parts;
  std::function<Octets(CodedDaemon&)> say;

 private:
  uint64_t id_ = 0;
  uint32_t number_ = 0;
  std::vector<wire::Run> runs_;
  std::vector<uint32_t> checks_;
  Octets payload_;
};

// What a client with the codec has of it.
struct Outcome {
  explicit Outcome(CodedDaemon& from, uint64_t codecs = kBfx) {
    TryClient client(from.daemon.address(), 1, 0, 0, 60'000, codecs);
    const int handle = client.layout(from.layout);
    EXPECT_TRUE(client.ready());
    std::vector<Octets> back(1, Octets(2 * kRawBytes, std::byte{0xA5}));
    TrySection get(handle, {"key-0"});
    client.get(get.into(back));
    answer = text_of(get.answers[0]);
    bytes = back[0];
    facts = client.facts();
  }
  std::string answer;
  Octets bytes;
  hs_client_facts facts{};
};

Octets both(const CodedDaemon& of) {
  Octets out = of.parts[0].raw;
  out.insert(out.end(), of.parts[1].raw.begin(), of.parts[1].raw.end());
  return out;
}

// docs/wire-protocol.md, *Chunk*: pieces of a part come in order, and nothing says that a Chunk ends with a part.
TEST(HostileCoded, APartMayBeginInPiecesInTheChunkWhereAnotherOfItsBlockEndsInPieces) {
  for (const bool longer : {true, false}) {
    SCOPED_TRACE(longer ? "the second is longer" : "the second is shorter");
    CodedDaemon of(CodedPart(1, longer ? 2 : 12), CodedPart(2, longer ? 12 : 2));
    ASSERT_EQ(of.parts[1].unit.size() > of.parts[0].unit.size(), longer);
    of.say = [](CodedDaemon& self) {
      Octets out;
      const uint32_t first = self.parts[0].record.stored_bytes;
      const uint32_t second = self.parts[1].record.stored_bytes;
      self.piece(0, 0, first / 2);
      self.end_chunk(out, 1);
      self.piece(0, first / 2, first);
      self.piece(1, 0, second / 2);
      self.end_chunk(out, 0);
      self.piece(1, second / 2, second);
      self.end_chunk(out, 0);
      return out;
    };
    const Outcome outcome(of);
    EXPECT_EQ(outcome.answer, "ok(none)");
    EXPECT_EQ(outcome.bytes, both(of));
    EXPECT_EQ(outcome.facts.checksum_failures, 0U);
  }
}

TEST(HostileCoded, APartMayBeginInPiecesInTheChunkWhereAnotherOfItsBlockIsAborted) {
  CodedDaemon of(CodedPart(1, 2), CodedPart(2, 12));
  of.say = [](CodedDaemon& self) {
    Octets out;
    self.piece(0, 0, 1000);
    self.aborted(0);
    self.piece(1, 0, 5000);
    self.end_chunk(out, 1);
    self.piece(1, 5000, self.parts[1].record.stored_bytes);
    self.end_chunk(out, 0);
    return out;
  };
  const Outcome outcome(of);
  EXPECT_EQ(outcome.answer, "unavailable(protocol_error)") << "it said ok of an aborted part";
  EXPECT_EQ(Octets(outcome.bytes.begin() + kRawBytes, outcome.bytes.end()), of.parts[1].raw);
}

// Whoever has put it there: a layout that does not name the codec, and a step for the part, means exact values.
TEST(HostileCoded, ALossyPartOfALayoutThatDoesNotNameItsCodecIsAMiss) {
  constexpr uint64_t kBoth = kBfx | uint64_t{1} << compress::kUbq;
  for (const char* values : {"", "bf16/64/0.1,bf16/64", "bf16/64/0.1"}) {
    SCOPED_TRACE(values);
    const bool named = std::string_view(values) == "bf16/64/0.1";
    CodedDaemon of(CodedPart(1, 2), CodedPart(2, 12));
    if (*values != 0) {
      const wire::GroupShape shape{.part_count = 2, .size_count = 2, .part_bytes = {kRawBytes, kRawBytes}};
      ASSERT_TRUE(wire::Layout::make({{"codec", "ubq"}, {"codec.0", values}}, {shape}, &of.layout).ok());
    }
    CodedPart& part = of.parts[1];
    compress::Scratch scratch;
    const compress::Codec& codec = *compress::find_codec("ubq");
    part.unit.resize(kRawBytes);
    part.unit.resize(codec.encode(part.raw, {compress::Element::Bf16, 64, 0.1F}, scratch, part.unit));
    ASSERT_GT(part.unit.size(), 0U);
    ASSERT_TRUE(codec.decode(part.unit, scratch, part.raw).ok());
    part.record.codec = compress::kUbq;
    part.record.stored_bytes = static_cast<uint32_t>(part.unit.size());
    part.record.raw_crc = crc32c(part.raw);
    of.say = [](CodedDaemon& self) {
      Octets out;
      self.whole(0);
      self.whole(1);
      self.end_chunk(out, 1);
      return out;
    };
    const Outcome outcome(of, kBoth);
    EXPECT_EQ(outcome.answer, named ? "ok(none)" : "miss(corrupt)");
    EXPECT_EQ(outcome.facts.decode_failures, named ? 0U : 1U);
    if (named) {
      EXPECT_EQ(outcome.bytes, both(of));
    }
  }
}

struct Lie {
  const char* what;
  void (*spoil)(CodedDaemon& of);  // before anybody asks
  Octets (*say)(CodedDaemon& of);
  const char* answer;
  uint64_t decode_failures;
};

Octets say_all(CodedDaemon& of) {
  Octets out;
  of.whole(0);
  of.whole(1);
  of.end_chunk(out, 1);
  return out;
}

const Lie kLies[] = {
    {"a part of other bytes than it was made of", [](CodedDaemon& of) { of.parts[1].record.raw_crc ^= 1; }, say_all,
     "miss(corrupt)", 1},
    {"a unit that is none, under a check that holds",
     [](CodedDaemon& of) { std::fill_n(of.parts[1].unit.begin(), 16, std::byte{0xFF}); }, say_all, "miss(corrupt)", 1},
    {"a unit of the other part, under a check that holds",
     [](CodedDaemon& of) {
       of.parts[1].unit = of.parts[0].unit;
       of.parts[1].record.stored_bytes = of.parts[0].record.stored_bytes;
     },
     say_all, "miss(corrupt)", 1},
    {"a part that its codec has made longer",
     [](CodedDaemon& of) {
       of.parts[0].unit.resize(kRawBytes + 1);
       of.parts[0].record.stored_bytes = kRawBytes + 1;
     },
     say_all, "miss(corrupt)", 1},
    {"a codec that was not offered", [](CodedDaemon& of) { of.parts[0].record.codec = 5; }, say_all,
     "unavailable(protocol_error)", 0},
    {"a codec beyond all that can be offered", [](CodedDaemon& of) { of.parts[0].record.codec = 64; }, say_all,
     "unavailable(protocol_error)", 0},
    {"a codec beyond them, with the low bits of one that was", [](CodedDaemon& of) { of.parts[0].record.codec = 65; }, say_all,
     "unavailable(protocol_error)", 0},
    {"a table of parts that the layout does not have",
     [](CodedDaemon& of) { of.parts[0].record.raw_bytes = of.parts[1].record.raw_bytes = kRawBytes - 2; }, say_all,
     "unavailable(protocol_error)", 0},
    {"a table twice", [](CodedDaemon&) {},
     [](CodedDaemon& of) {
       Octets out;
       of.whole(0);
       of.whole(1);
       of.end_chunk(out, 2);
       return out;
     },
     "unavailable(protocol_error)", 0},
    {"a table after the first run", [](CodedDaemon&) {},
     [](CodedDaemon& of) {
       Octets out;
       of.whole(0);
       of.end_chunk(out, 1);
       of.whole(1);
       of.end_chunk(out, 1);
       return out;
     },
     "unavailable(protocol_error)", 0},
    {"no table", [](CodedDaemon&) {},
     [](CodedDaemon& of) {
       Octets out;
       of.whole(0);
       of.whole(1);
       of.end_chunk(out, 0);
       return out;
     },
     "unavailable(protocol_error)", 0},
};

TEST(HostileCoded, NoLieIsDecodedAndWhatDoesNotDecodeIsCounted) {
  for (const Lie& lie : kLies) {
    SCOPED_TRACE(lie.what);
    CodedDaemon of(CodedPart(1, 2), CodedPart(2, 12));
    lie.spoil(of);
    of.say = lie.say;
    const Outcome outcome(of);
    EXPECT_EQ(outcome.answer, lie.answer);
    EXPECT_EQ(outcome.facts.decode_failures, lie.decode_failures);
    EXPECT_EQ(outcome.facts.checksum_failures, 0U);
  }
}

TEST(HostileCoded, ACodecThatWasNotOfferedEndsTheConnection) {
  CodedDaemon of(CodedPart(1, 2), CodedPart(2, 12));
  of.say = say_all;
  const Outcome outcome(of, 0);
  EXPECT_EQ(outcome.answer, "unavailable(protocol_error)");
  EXPECT_EQ(outcome.bytes, Octets(2 * kRawBytes, std::byte{0xA5}));
}

}  // namespace hostile_coded_test
}  // namespace halfstep::peer
