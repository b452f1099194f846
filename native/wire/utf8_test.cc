#include "wire/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace halfstep::wire {
namespace {

std::string encoded(uint32_t code_point) {
  const auto byte = [](uint32_t value) { return static_cast<char>(static_cast<uint8_t>(value)); };
  if (code_point < 0x80) return {byte(code_point)};
  if (code_point < 0x800) return {byte(0xC0 | code_point >> 6), byte(0x80 | (code_point & 0x3F))};
  if (code_point < 0x10000) {
    return {byte(0xE0 | code_point >> 12), byte(0x80 | (code_point >> 6 & 0x3F)), byte(0x80 | (code_point & 0x3F))};
  }
  return {byte(0xF0 | code_point >> 18), byte(0x80 | (code_point >> 12 & 0x3F)), byte(0x80 | (code_point >> 6 & 0x3F)),
          byte(0x80 | (code_point & 0x3F))};
}

TEST(Utf8, TakesEveryCodePointButSurrogates) {
  for (uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
    ASSERT_EQ(valid_utf8(as_bytes(encoded(code_point))), !surrogate) << "U+" << std::hex << code_point;
  }
}

TEST(Utf8, RefusesOverlongForms) {
  for (const std::string& text :
       {std::string("\xC0\x80"), std::string("\xC1\xBF"), std::string("\xE0\x9F\xBF"), std::string("\xF0\x8F\xBF\xBF")}) {
    EXPECT_FALSE(valid_utf8(as_bytes(text))) << text.size();
  }
}

TEST(Utf8, RefusesWhatLiesBeyondUnicode) {
  EXPECT_FALSE(valid_utf8(as_bytes("\xF4\x90\x80\x80")));
  for (int lead = 0xF5; lead <= 0xFF; ++lead) {
    EXPECT_FALSE(valid_utf8(as_bytes(std::string{static_cast<char>(lead), '\x80', '\x80', '\x80'})));
  }
}

TEST(Utf8, RefusesTruncationAtEveryByte) {
  for (const uint32_t code_point : {0x80U, 0x800U, 0x10000U}) {
    const std::string whole = encoded(code_point);
    for (size_t bytes = 1; bytes < whole.size(); ++bytes) {
      EXPECT_FALSE(valid_utf8(as_bytes(whole.substr(0, bytes))));
      EXPECT_FALSE(valid_utf8(as_bytes(whole.substr(0, bytes) + "aaaa")));
    }
  }
}

TEST(Utf8, RefusesAContinuationWithoutLead) {
  for (int byte = 0x80; byte <= 0xBF; ++byte) {
    EXPECT_FALSE(valid_utf8(as_bytes(std::string{'a', static_cast<char>(byte)})));
  }
  EXPECT_TRUE(valid_utf8({}));
}

}  // namespace
}  // namespace halfstep::wire
