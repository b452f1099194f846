#include "base/hash.h"

#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"

namespace halfstep {
namespace {

std::string hex(ConstBytes bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const std::byte b : bytes) {
    out += kDigits[static_cast<unsigned>(b) >> 4];
    out += kDigits[static_cast<unsigned>(b) & 15U];
  }
  return out;
}

std::vector<std::byte> counting(size_t count) {
  std::vector<std::byte> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(i);
  return out;
}

// The reference implementation's vectors_sip128: key 00 01 .. 0f, message i is 00 01 .. (i-1).
TEST(KeyedHash, MatchesTheReferenceVectorsOfSipHash128) {
  const char* const kVectors[] = {
      "a3817f04ba25a8e66df67214c7550293", "da87c1d86b99af44347659119b22fc45", "8177228da4a45dc7fca38bdef60affe4",
      "9c70b60c5267a94e5f33b6b02985ed51", "f88164c12d9c8faf7d0f6e7c7bcd5579", "1368875980776f8854527a07690e9627",
      "14eeca338b208613485ea0308fd7a15e", "a1f1ebbed8dbc153c0b84aa61ff08239", "3b62a9ba6258f5610f83e264f31497b4",
      "264499060ad9baabc47f8b02bb6d71ed", "00110dc378146956c95447d3f3d0fbba", "0151c568386b6677a2b4dc6f81e5dc18",
      "d626b266905ef35882634df68532c125", "9869e247e9c08b10d029934fc4b952f7", "31fcefac66d7de9c7ec7485fe4494902",
      "5493e99933b0a8117e08ec0f97cfc3d9",
  };
  const std::vector<std::byte> key_bytes = counting(16);
  const HashKey key{load_le<uint64_t>(key_bytes.data()), load_le<uint64_t>(key_bytes.data() + 8)};
  for (size_t i = 0; i < std::size(kVectors); ++i) {
    const Hash128 got = keyed_hash(key, counting(i));
    EXPECT_EQ(hex(object_bytes(got)), kVectors[i]) << "message of " << i << " bytes";
  }
}

TEST(KeyedHash, DependsOnEveryByteAndOnBothHalvesOfTheKey) {
  const HashKey key{1, 2};
  std::vector<std::byte> message = counting(37);
  const Hash128 base = keyed_hash(key, message);
  for (std::byte& b : message) {
    b ^= std::byte{1};
    EXPECT_NE(keyed_hash(key, message), base);
    b ^= std::byte{1};
  }
  EXPECT_NE(keyed_hash({1, 3}, message), base);
  EXPECT_NE(keyed_hash({0, 2}, message), base);
  EXPECT_EQ(keyed_hash(key, message), base);
}
TEST(KeyedHashMany, SaysOfEveryMessageWhatKeyedHashSays) {
  const HashKey key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  const std::vector<std::byte> bytes = counting(512);
  for (size_t count = 0; count <= 19; ++count) {
    for (size_t length = 0; length <= 70; ++length) {
      std::vector<ConstBytes> messages;
      for (size_t i = 0; i < count; ++i) messages.push_back(ConstBytes(bytes).subspan(3 * i, length));
      std::vector<Hash128> out(count);
      keyed_hash_many(key, messages, out);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[i], keyed_hash(key, messages[i])) << i << " of " << count << " messages of " << length << " bytes";
      }
    }
  }
}

TEST(KeyedHashMany, TakesMessagesOfAnyLengthsSideBySide) {
  const HashKey key{3, 4};
  const std::vector<std::byte> bytes = counting(512);
  Prng prng(20261121);
  for (int round = 0; round < 200; ++round) {
    std::vector<ConstBytes> messages;
    for (uint64_t run = prng.below(6); run > 0; --run) {
      const uint64_t words = prng.below(12);
      for (uint64_t i = prng.below(14); i > 0; --i) {
        messages.push_back(ConstBytes(bytes).subspan(prng.below(400), 8 * words + prng.below(8)));
      }
    }
    std::vector<Hash128> out(messages.size());
    keyed_hash_many(key, messages, out);
    for (size_t i = 0; i < messages.size(); ++i) ASSERT_EQ(out[i], keyed_hash(key, messages[i])) << i << " of round " << round;
  }
}

// xxHash's own sanity check: lengths on each of the algorithm's paths, over the bytes of its
// generator.
TEST(Xxh3, MatchesPublishedValues) {
  EXPECT_EQ(xxh3_64({}), 0x2D06800538D394C2U);
  EXPECT_EQ(xxh3_64({}, 0x9E3779B185EBCA8DU), 0xA8A6B918B2F0364AU);
  // That generator: the top byte of a state that starts at PRIME32_1 and is multiplied by
  // PRIME64_1.
  std::vector<std::byte> input(512);
  uint64_t generator = 2654435761U;
  for (std::byte& b : input) {
    b = static_cast<std::byte>(generator >> 56);
    generator *= 11400714785074694797U;
  }
  const ConstBytes all(input);
  EXPECT_EQ(xxh3_64(all.first(1)), 0xC44BDFF4074EECDBU);
  EXPECT_EQ(xxh3_64(all.first(6)), 0x27B56A84CD2D7325U);
  EXPECT_EQ(xxh3_64(all.first(12)), 0xA713DAF0DFBB77E7U);
  EXPECT_EQ(xxh3_64(all.first(24)), 0xA3FE70BF9D3510EBU);
  EXPECT_EQ(xxh3_64(all.first(48)), 0x397DA259ECBA1F11U);
  EXPECT_EQ(xxh3_64(all.first(80)), 0xBCDEFBBB2C47C90AU);
  EXPECT_EQ(xxh3_64(all.first(195)), 0xCD94217EE362EC3AU);
  EXPECT_EQ(xxh3_64(all.first(403)), 0xCDEB804D65C6DEA4U);
  EXPECT_EQ(xxh3_64(all.first(512)), 0x617E49599013CB6BU);
}

// FIPS 180-4 examples, and lengths around the padding's two borders.
TEST(Sha256, MatchesPublishedVectors) {
  EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256(as_bytes("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256(as_bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const std::string million(1'000'000, 'a');
  EXPECT_EQ(hex(sha256(as_bytes(million))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PadsAtEveryLengthAroundABlockBorder) {
  // Computed with Python's hashlib over bytes(range(n)).
  const std::pair<size_t, const char*> kVectors[] = {
      {1, "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"},
      {55, "463eb28e72f82e0a96c0a4cc53690c571281131f672aa229e0d45ae59b598b59"},
      {56, "da2ae4d6b36748f2a318f23e7ab1dfdf45acdc9d049bd80e59de82a60895f562"},
      {63, "29af2686fd53374a36b0846694cc342177e428d1647515f078784d69cdb9e488"},
      {64, "fdeab9acf3710362bd2658cdc9a29e8f9c757fcf9811603a8c447cd1d9151108"},
      {65, "4bfd2c8b6f1eec7a2afeb48b934ee4b2694182027e6d0fc075074f2fabb31781"},
      {119, "da18797ed7c3a777f0847f429724a2d8cd5138e6ed2895c3fa1a6d39d18f7ec6"},
      {120, "f52b23db1fbb6ded89ef42a23ce0c8922c45f25c50b568a93bf1c075420bbb7c"},
      {128, "471fb943aa23c511f6f72f8d1652d9c880cfa392ad80503120547703e56a2be5"},
  };
  for (const auto& [count, expected] : kVectors) {
    EXPECT_EQ(hex(sha256(counting(count))), expected) << count << " bytes";
  }
}

}  // namespace
}  // namespace halfstep
