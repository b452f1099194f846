// The native code writes and reads exactly the bytes of tests/unit/vectors/wire.txt, so that the format cannot drift.
// tests/unit/test_wire_vectors.py derives the same file from the protocol's description.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "wire/sample_frames.h"

namespace halfstep::wire {
namespace {

const std::map<std::string, std::string>& published() {
  static const std::map<std::string, std::string> vectors = [] {
    const std::filesystem::path root = HALFSTEP_SOURCE_DIR;
    std::ifstream file(root / "tests/unit/vectors/wire.txt");
    std::map<std::string, std::string> out;
    for (std::string line; std::getline(file, line);) {
      const size_t border = line.find(" = ");
      if (line.empty() || line[0] == '#' || border == std::string::npos) continue;
      out[line.substr(0, border)] = line.substr(border + 3);
    }
    return out;
  }();
  return vectors;
}

std::vector<std::byte> unhex(const std::string& text) {
  std::vector<std::byte> out;
  for (size_t at = 0; at + 1 < text.size(); at += 2)
    out.push_back(static_cast<std::byte>(std::stoul(text.substr(at, 2), nullptr, 16)));
  return out;
}

// Every vector whose name starts with `kind`, and what follows it.
std::vector<std::pair<std::string, std::string>> of_kind(const std::string& kind) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [name, value] : published()) {
    if (name.starts_with(kind + " ")) out.emplace_back(name.substr(kind.size() + 1), value);
  }
  return out;
}

TEST(Vectors, EveryFrameIsWrittenByteForByte) {
  EXPECT_EQ(of_kind("frame").size(), samples::all().size());
  for (const auto& [name, frame] : samples::all()) EXPECT_EQ(samples::hex(frame), published().at("frame " + name)) << name;
}

TEST(Vectors, EveryFrameIsRead) {
  for (const auto& [name, text] : of_kind("frame")) {
    const std::vector<std::byte> frame = unhex(text);
    Header header;
    ASSERT_TRUE(parse_header(ConstBytes(frame).first(kHeaderBytes), &header).ok()) << name;
    EXPECT_EQ(kHeaderBytes + header.body_bytes + header.payload_bytes, frame.size()) << name;
    const ConstBytes body = samples::body_of(frame);
    EXPECT_TRUE(check_body(header, body).ok()) << name;
    RequestView request;
    RunsView runs;
    switch (static_cast<Opcode>(header.opcode)) {
      case Opcode::Get:
      case Opcode::Hold:
      case Opcode::Put: EXPECT_TRUE(parse_request(static_cast<Opcode>(header.opcode), body, &request).ok()) << name; break;
      case Opcode::Chunk: EXPECT_TRUE(parse_chunk(body, header.payload_bytes, &runs).ok()) << name; break;
      default: break;
    }
  }
}

TEST(Vectors, LayoutHasItsCanonicalFormAndId) {
  EXPECT_EQ(samples::hex(samples::layout().canonical()), published().at("layout canonical"));
  EXPECT_EQ(samples::hex(samples::layout().id()), published().at("layout id"));
}

TEST(Vectors, TheDefaultLayoutHasItsId) {
  Layout out;
  const GroupShape opaque{.part_count = 0, .size_count = 1, .part_bytes = {kOpaquePartBytes}};
  ASSERT_TRUE(Layout::make({{"name", "default"}}, {opaque}, &out).ok());
  EXPECT_EQ(samples::hex(out.id()), published().at("layout default"));
}

TEST(Vectors, NamesHaveTheirNumbers) {
  const auto vectors = of_kind("name_number");
  EXPECT_EQ(vectors.size(), 4U);
  for (const auto& [name, number] : vectors) {
    std::istringstream words(name);
    uint32_t component = 0;
    std::string key;
    words >> component >> key;
    EXPECT_EQ(std::to_string(name_number(samples::layout().id(), {component}, unhex(key))), number) << name;
  }
}

TEST(Vectors, AWireCheckBindsPartAndName) {
  const std::vector<std::byte> payload = samples::payload();
  const uint32_t number = name_number(samples::layout().id(), {0}, as_bytes(samples::kKeys[0]));
  const uint32_t check = wire_check(crc32c(ConstBytes(payload).first(16)), number, 5);
  EXPECT_EQ(std::to_string(check), published().at("wire_check"));
}

TEST(Vectors, KeysGoToTheirShards) {
  const auto vectors = of_kind("route");
  EXPECT_EQ(vectors.size(), 5U);
  for (const auto& [key, shards] : vectors) {
    std::string routed;
    for (uint32_t count = 1; count <= kShardsMax; ++count) {
      routed += (count == 1 ? "" : " ") + std::to_string(route(unhex(key), count));
    }
    EXPECT_EQ(routed, shards) << key;
  }
}

}  // namespace
}  // namespace halfstep::wire
