// The native code writes and reads exactly the units of tests/unit/vectors/compress.txt and quantiser.txt, so that the formats
// cannot drift. tests/unit/test_compress_vectors.py and test_quantiser_vectors.py decode the same files by the formats'
// descriptions, without this code.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "compress/bfx.h"
#include "compress/bfx_fixture.h"
#include "compress/ubq.h"

namespace halfstep::compress {
namespace {

std::vector<std::byte> unhex(const std::string& text) {
  std::vector<std::byte> out;
  for (size_t at = 0; at + 1 < text.size(); at += 2)
    out.push_back(static_cast<std::byte>(std::stoul(text.substr(at, 2), nullptr, 16)));
  return out;
}

struct Vector {
  UnitShape shape;
  std::vector<std::byte> raw;
  std::vector<std::byte> unit;
  std::vector<std::byte> back;
};

// Lines "<name> <element> <row_values> <raw> <unit>", both in hex; a lossy codec has its step before the raw bytes, and what
// decoding gives after the unit.
std::map<std::string, Vector> published(const char* name_of_file, bool lossy) {
  const std::filesystem::path root = HALFSTEP_SOURCE_DIR;
  std::ifstream file(root / "tests/unit/vectors" / name_of_file);
  std::map<std::string, Vector> out;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name, element, raw, unit, back;
    Vector vector;
    words >> name >> element >> vector.shape.row_values;
    if (lossy) words >> vector.shape.step;
    words >> raw >> unit >> back;
    vector.shape.element = element_of(element);
    vector.raw = unhex(raw);
    vector.unit = unhex(unit);
    vector.back = lossy ? unhex(back) : vector.raw;
    out[name] = vector;
  }
  return out;
}

template <auto kEncode, auto kDecode>
void expect_all(const std::map<std::string, Vector>& vectors) {
  ASSERT_GE(vectors.size(), 8U);
  for (const auto& [name, vector] : vectors) {
    for (const Kernels* use : all_kernels()) {
      Scratch scratch;
      std::vector<std::byte> unit(vector.raw.size());
      unit.resize(kEncode(*use, vector.raw, vector.shape, scratch, unit));
      EXPECT_EQ(unit, vector.unit) << name << " on " << use->name;
      std::vector<std::byte> back(vector.raw.size());
      ASSERT_TRUE(kDecode(*use, vector.unit, scratch, back).ok()) << name << " on " << use->name;
      EXPECT_EQ(back, vector.back) << name << " on " << use->name;
    }
  }
}

TEST(CompressVectors, AreWrittenAndReadByteForByteOnEveryPath) {
  expect_all<&bfx_encode_by, &bfx_decode_by>(published("compress.txt", false));
}

TEST(QuantiserVectors, AreWrittenAndReadByteForByteOnEveryPath) {
  expect_all<&ubq_encode_by, &ubq_decode_by>(published("quantiser.txt", true));
}

}  // namespace
}  // namespace halfstep::compress
