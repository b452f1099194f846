#include "wire/message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/crc.h"
#include "wire/sample_frames.h"

namespace halfstep::wire {
namespace {

std::vector<std::byte> sealed(Header header) {
  header.header_crc = crc32c(object_bytes(header).first(28));
  const ConstBytes bytes = object_bytes(header);
  return {bytes.begin(), bytes.end()};
}

Header of(uint8_t opcode, uint32_t body_bytes, uint32_t payload_bytes) {
  Header header;
  header.opcode = opcode;
  header.body_bytes = body_bytes;
  header.payload_bytes = payload_bytes;
  return header;
}

Status parsed(const Header& header) {
  Header out;
  return parse_header(sealed(header), &out);
}

constexpr auto kGet = static_cast<uint8_t>(Opcode::Get);
constexpr auto kChunk = static_cast<uint8_t>(Opcode::Chunk);

TEST(Header, ComesBackWithAllItsFields) {
  const std::vector<std::byte> frame = samples::chunk();
  Header header;
  ASSERT_TRUE(parse_header(ConstBytes(frame).first(kHeaderBytes), &header).ok());
  EXPECT_EQ(header.opcode, kChunk);
  EXPECT_EQ(header.request_id, 3U);
  EXPECT_EQ(header.payload_bytes, 40U);
  EXPECT_EQ(kHeaderBytes + header.body_bytes + header.payload_bytes, frame.size());
  EXPECT_TRUE(check_body(header, samples::body_of(frame)).ok());
}

TEST(Header, RefusesEveryFlippedBit) {
  const std::vector<std::byte> frame = samples::get();
  for (size_t bit = 0; bit < size_t{kHeaderBytes} * 8; ++bit) {
    std::vector<std::byte> flipped(frame.begin(), frame.begin() + kHeaderBytes);
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    Header out;
    EXPECT_EQ(parse_header(flipped, &out), Code::Invalid) << bit;
  }
}

TEST(Header, RefusesTruncationAtEveryByte) {
  const std::vector<std::byte> frame = samples::get();
  Header out;
  for (size_t bytes = 0; bytes < kHeaderBytes; ++bytes) {
    EXPECT_EQ(parse_header(ConstBytes(frame).first(bytes), &out), Code::Invalid);
  }
}

TEST(Header, RefusesMagicFlagsAndReservedBytesUnderAGoodChecksum) {
  Header header = of(kGet, 0, 0);
  EXPECT_TRUE(parsed(header).ok());
  header.magic ^= 1;
  EXPECT_EQ(parsed(header), Code::Invalid);
  header = of(kGet, 0, 0);
  header.flags = 1;
  EXPECT_EQ(parsed(header), Code::Invalid);
  header = of(kGet, 0, 0);
  header.reserved = 0x8000;
  EXPECT_EQ(parsed(header), Code::Invalid);
}

TEST(Header, BoundsLengthsByOpcode) {
  EXPECT_TRUE(parsed(of(kGet, kBodyBytesMax, 0)).ok());
  EXPECT_EQ(parsed(of(kGet, kBodyBytesMax + 1, 0)), Code::TooLarge);
  EXPECT_EQ(parsed(of(kGet, UINT32_MAX, 0)), Code::TooLarge);
  EXPECT_EQ(parsed(of(kGet, 0, 1)), Code::TooLarge);
  EXPECT_TRUE(parsed(of(kChunk, kChunkBodyBytesMax, kChunkBytesMax)).ok());
  EXPECT_EQ(parsed(of(kChunk, kChunkBodyBytesMax + 1, 0)), Code::TooLarge);
  EXPECT_EQ(parsed(of(kChunk, 0, kChunkBytesMax + 1)), Code::TooLarge);
}

TEST(Header, LetsEveryOpcodeThroughAndBoundsWhatItCarries) {
  for (uint32_t opcode = 0; opcode < 256; ++opcode) {
    const auto code = static_cast<uint8_t>(opcode);
    EXPECT_TRUE(parsed(of(code, 64, 0)).ok()) << opcode;
    EXPECT_EQ(parsed(of(code, kBodyBytesMax + 1, 0)), Code::TooLarge) << opcode;
  }
}

TEST(Header, EveryOpcodeIsARequestOrTravelsWithinOneOrIsSkipped) {
  for (uint32_t opcode = 0; opcode < 256; ++opcode) {
    const auto code = static_cast<uint8_t>(opcode);
    const bool request = (opcode >= 1 && opcode <= 31) || opcode >= 128;
    const bool within = opcode >= static_cast<uint32_t>(Opcode::Chunk) && opcode <= static_cast<uint32_t>(Opcode::Placed);
    EXPECT_EQ(is_request(code), request) << opcode;
    EXPECT_EQ(is_skipped(code), !request && !within) << opcode;
  }
}

TEST(Body, RefusesEveryFlippedBitAndAnotherLength) {
  const std::vector<std::byte> frame = samples::hello();
  const auto header = load_le<Header>(frame.data());
  std::vector<std::byte> body(frame.begin() + kHeaderBytes, frame.end());
  ASSERT_TRUE(check_body(header, body).ok());
  EXPECT_EQ(check_body(header, ConstBytes(body).first(body.size() - 1)), Code::Invalid);
  for (size_t bit = 0; bit < body.size() * 8; ++bit) {
    body[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_EQ(check_body(header, body), Code::Corrupt) << bit;
    body[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
}

// ---- TLVs ----

TEST(Tlv, WalksWhatWasWrittenWhateverTheLengths) {
  std::vector<std::byte> out;
  FrameWriter frame(out);
  frame.begin(Opcode::Stat, 9);
  std::string text;
  for (uint32_t bytes = 0; bytes < 20; ++bytes, text += 'x') frame.tlv_bytes(Tlv::Reason, as_bytes(text));
  frame.finish();

  TlvReader reader(samples::body_of(out));
  TlvView tlv;
  uint32_t seen = 0;
  for (; reader.next(&tlv); ++seen) {
    EXPECT_EQ(tlv.kind, static_cast<uint16_t>(Tlv::Reason));
    EXPECT_EQ(as_text(tlv.value), std::string(seen, 'x'));
  }
  EXPECT_EQ(seen, 20U);
  EXPECT_TRUE(reader.status().ok());
}

TEST(Tlv, FramesStandOneAfterTheOtherAtAnyOffset) {
  std::vector<std::byte> out(3);
  FrameWriter frame(out);
  frame.begin(Opcode::Stat, 1);
  frame.tlv_bytes(Tlv::Reason, as_bytes("abc"));
  frame.finish();
  const size_t second_at = out.size();
  frame.begin(Opcode::Stat, 2);
  frame.finish();
  ASSERT_EQ(second_at, 3 + kHeaderBytes + 16);
  Header header;
  ASSERT_TRUE(parse_header(ConstBytes(out).subspan(3, kHeaderBytes), &header).ok());
  EXPECT_TRUE(check_body(header, samples::body_of(ConstBytes(out).subspan(3))).ok());
  ASSERT_TRUE(parse_header(ConstBytes(out).subspan(second_at), &header).ok());
  EXPECT_EQ(header.request_id, 2U);
}

TEST(Tlv, RefusesTruncationAtEveryByte) {
  for (const auto& [name, frame] : samples::all()) {
    const ConstBytes body = samples::body_of(frame);
    std::vector<size_t> borders = {0};
    TlvReader whole(body);
    TlvView tlv;
    while (whole.next(&tlv)) borders.push_back(borders.back() + 8 + (tlv.value.size() + 7) / 8 * 8);
    ASSERT_TRUE(whole.status().ok());
    ASSERT_EQ(borders.back(), body.size());
    for (size_t bytes = 0; bytes < body.size(); ++bytes) {
      TlvReader reader(body.first(bytes));
      while (reader.next(&tlv)) {
      }
      const bool border = std::find(borders.begin(), borders.end(), bytes) != borders.end();
      EXPECT_EQ(reader.status().ok(), border) << name << " " << bytes;
    }
  }
}

TEST(Tlv, RefusesReservedBytesPaddingAndLengthsThatLie) {
  std::vector<std::byte> body(16);
  store_le(body.data(), static_cast<uint16_t>(Tlv::Reason));
  store_le(body.data() + 4, uint32_t{5});
  const auto walk = [](ConstBytes bytes) {
    TlvReader reader(bytes);
    TlvView tlv;
    while (reader.next(&tlv)) {
    }
    EXPECT_FALSE(reader.next(&tlv));  // stays at its end
    return reader.status();
  };
  EXPECT_TRUE(walk(body).ok());
  for (const size_t at : {size_t{2}, size_t{3}, size_t{13}, size_t{14}, size_t{15}}) {
    std::vector<std::byte> bad = body;
    bad[at] = std::byte{1};
    EXPECT_EQ(walk(bad), Code::Invalid) << at;
  }
  for (const uint32_t bytes : {9U, 16U, 0x7FFFFFFFU, 0x80000000U, UINT32_MAX - 7, UINT32_MAX}) {
    store_le(body.data() + 4, bytes);
    EXPECT_EQ(walk(body), Code::Invalid) << bytes;
  }
}

}  // namespace
}  // namespace halfstep::wire
