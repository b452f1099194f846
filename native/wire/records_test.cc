#include "wire/records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "wire/sample_frames.h"

namespace halfstep::wire {
namespace {

using Blob = std::vector<std::byte>;

template <typename... Ts>
Blob packed(const Ts&... values) {
  Blob out;
  Writer writer(out);
  (writer.put(values), ...);
  return out;
}
Blob operator+(Blob left, const Blob& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}
Blob text(std::string_view value) { return Blob(as_bytes(value).begin(), as_bytes(value).end()); }

constexpr uint16_t kZero16 = 0;
constexpr uint32_t kZero32 = 0;

// ---- every parser: its good value is taken, and refused at every other length ----

struct Parser {
  const char* name;
  Blob good;
  std::function<Status(ConstBytes)> parse;
};

template <typename T>
Parser fixed(const char* name, const T& good, Status (*parse)(ConstBytes, T*) noexcept) {
  return {name, packed(good), [parse](ConstBytes value) {
            T out;
            return parse(value, &out);
          }};
}

HelloServer good_hello_server() {
  HelloServer hello;
  hello.block_bytes_max = 1;
  return hello;
}

std::vector<Parser> parsers() {
  const wire::Run whole{.part_count = 2, .bytes = 8, .block_bytes = 8, .check_count = 2};
  return {
      fixed("hello_client", HelloClient{}, parse_hello_client),
      fixed("hello_server", good_hello_server(), parse_hello_server),
      fixed("batch", Batch{}, parse_batch),
      {"key_question",
       packed(KeyQuestionHead{.range_count = 1, .key_bytes = 3}, ComponentRange{.first = 7, .count = 2}) + text("key"),
       [](ConstBytes value) {
         KeyQuestionView out;
         return parse_key_question(value, &out);
       }},
      fixed("owner", OwnerRecord{.owner = 1}, parse_owner),
      fixed("cancel", CancelRecord{}, parse_cancel),
      fixed("namespace_action", NamespaceRecord{}, parse_namespace_action),
      fixed("layout_handle", LayoutHandleRecord{}, parse_layout_handle),
      fixed("load", LoadRecord{}, parse_load),
      fixed("cursor", CursorRecord{}, parse_cursor),
      {"grant", packed(GrantHead{.credit_bytes = 1, .range_count = 2}, ItemRange{.count = 1}, ItemRange{.count = 1}),
       [](ConstBytes value) {
         GrantView out;
         return parse_grant(value, &out);
       }},
      {"lengths", packed(kZero16, kZero16, kZero32, uint32_t{2}, kZero32, uint32_t{7}, uint32_t{8}),
       [](ConstBytes value) {
         LengthsView out;
         return parse_lengths(value, &out);
       }},
      {"match_bits", packed(kZero16, kZero16, uint32_t{9}, uint8_t{0xFF}, uint8_t{1}),
       [](ConstBytes value) {
         MatchBitsView out;
         return parse_match_bits(value, &out);
       }},
      {"entries", packed(uint32_t{1}, kZero32, EntryRecord{.key_bytes = 3}) + text("key") + Blob(5),
       [](ConstBytes value) {
         uint32_t count = 0;
         return check_entries(value, &count);
       }},
      {"part_table", packed(kZero16, kZero16, kZero32, uint32_t{1}, kZero32, PartRecord{.stored_bytes = 4, .raw_bytes = 4}),
       [](ConstBytes value) {
         PartTableView out;
         uint32_t stored = 0;
         uint32_t raw = 0;
         return parse_part_table(value, &out, &stored, &raw);
       }},
      {"runs", packed(uint32_t{1}, uint32_t{2}, whole, uint32_t{5}, uint32_t{6}),
       [](ConstBytes value) {
         RunsView out;
         return parse_runs(value, 8, &out);
       }},
      {"statuses", packed(kZero16, kZero16, uint32_t{1}, StatusRun{.count = 1, .answer = Answer::Ok}),
       [](ConstBytes value) { return check_statuses(value); }},
  };
}

Parser parser_of(const std::string& name) {
  for (const Parser& parser : parsers()) {
    if (parser.name == name) return parser;
  }
  ADD_FAILURE() << "no parser " << name;
  return {};
}

TEST(Records, AreRefusedAtEveryOtherLength) {
  for (const Parser& parser : parsers()) {
    EXPECT_TRUE(parser.parse(parser.good).ok()) << parser.name;
    for (size_t bytes = 0; bytes < parser.good.size(); ++bytes) {
      EXPECT_EQ(parser.parse(ConstBytes(parser.good).first(bytes)), Code::Invalid) << parser.name << " " << bytes;
    }
    for (size_t more = 1; more <= 16; ++more) {
      EXPECT_EQ(parser.parse(parser.good + Blob(more)), Code::Invalid) << parser.name << " +" << more;
    }
  }
}

// The 32-bit counts of each: offset of the count in the value. None may be believed.
TEST(Records, DoNotBelieveTheirCounts) {
  const std::pair<const char*, size_t> kCounts[] = {{"grant", 8},      {"lengths", 8}, {"match_bits", 4}, {"entries", 0},
                                                    {"part_table", 8}, {"runs", 0},    {"runs", 4},       {"statuses", 4}};
  for (const auto& [name, at] : kCounts) {
    const Parser parser = parser_of(name);
    const auto count = load_le<uint32_t>(parser.good.data() + at);
    for (const uint32_t lie :
         {0U, count + 8, count - 1, 0x08000000U, 0x10000000U, 0x15555556U, 0x20000001U, 0x40000001U, 0x80000001U, UINT32_MAX}) {
      if (lie == count) continue;
      Blob bad = parser.good;
      store_le(bad.data() + at, lie);
      EXPECT_FALSE(parser.parse(bad).ok()) << name << " " << lie;
    }
  }
}

TEST(Records, RefuseReservedBytes) {
  const std::pair<const char*, std::vector<size_t>> kReserved[] = {{"batch", {20, 23}},
                                                                   {"owner", {12}},
                                                                   {"namespace_action", {2, 3}},
                                                                   {"layout_handle", {2, 4, 7}},
                                                                   {"cursor", {12}},
                                                                   {"grant", {12, 18}},
                                                                   {"lengths", {2, 12}},
                                                                   {"match_bits", {2}},
                                                                   {"entries", {4, 45, 46, 51, 55}},
                                                                   {"part_table", {2, 12, 17, 19}},
                                                                   {"statuses", {17}}};
  for (const auto& [name, offsets] : kReserved) {
    const Parser parser = parser_of(name);
    for (const size_t at : offsets) {
      Blob bad = parser.good;
      bad[at] = std::byte{1};
      EXPECT_EQ(parser.parse(bad), Code::Invalid) << name << " " << at;
    }
  }
}

// ---- single rules ----

TEST(Hello, BoundsVersionsAndShards) {
  HelloClient client;
  EXPECT_EQ(parse_hello_client(packed(HelloClient{.version_min = 2, .version_max = 1}), &client), Code::Invalid);
  HelloServer server;
  for (const auto& [shards, shard] : {std::pair<uint16_t, uint32_t>{0, 0}, {17, 0}, {1, 1}, {16, 16}}) {
    HelloServer bad = good_hello_server();
    bad.shards = shards;
    bad.shard = shard;
    EXPECT_EQ(parse_hello_server(packed(bad), &server), Code::Invalid);
  }
  HelloServer no_chunks = good_hello_server();
  no_chunks.chunk_bytes_max = 0;
  EXPECT_EQ(parse_hello_server(packed(no_chunks), &server), Code::Invalid);
}

TEST(ShardHosts, AreNamesBehindAnEpoch) {
  ShardHostsView out;
  const auto hosts = [](uint32_t count, const std::string& tail) {
    return packed(ShardHostsHead{.epoch = 9, .host_count = count}) + text(tail);
  };
  const std::string two = std::string(
                              "\x06"
                              "flash3"
                              "\0",
                              8) +
                          std::string(
                              "\x01"
                              "a"
                              "\0\0\0\0\0\0",
                              8);
  const auto both = hosts(2, two);  // names are seen where they lie
  ASSERT_TRUE(parse_shard_hosts(both, &out).ok());
  EXPECT_EQ(out.epoch, 9U);
  EXPECT_EQ(out.hosts[0], "flash3");
  EXPECT_EQ(out.hosts[1], "a");
  EXPECT_TRUE(parse_shard_hosts(hosts(0, ""), &out).ok());
  EXPECT_EQ(parse_shard_hosts(hosts(1, two), &out), Code::Invalid);  // bytes are left
  EXPECT_EQ(parse_shard_hosts(hosts(3, two), &out), Code::Invalid);
  EXPECT_EQ(parse_shard_hosts(hosts(kShardsMax + 1, two), &out), Code::TooLarge);
  EXPECT_EQ(parse_shard_hosts(hosts(1, std::string(8, '\0')), &out), Code::Invalid);  // an empty name
  EXPECT_EQ(parse_shard_hosts(hosts(1, std::string("\x06"
                                                   "flash3"
                                                   "\1",
                                                   8)),
                              &out),
            Code::Invalid);
  EXPECT_EQ(parse_shard_hosts(hosts(1, std::string("\x06"
                                                   "flash\xFF"
                                                   "\0",
                                                   8)),
                              &out),
            Code::Invalid);
}

TEST(Batch, RefusesWhatVersion1DoesNotDefine) {
  Batch out;
  EXPECT_EQ(parse_batch(packed(Batch{.order = static_cast<Order>(2)}), &out), Code::Invalid);
  EXPECT_EQ(parse_batch(packed(Batch{.durability = static_cast<Durability>(2)}), &out), Code::Invalid);
  EXPECT_EQ(parse_batch(packed(Batch{.flags = 16}), &out), Code::Invalid);
  EXPECT_TRUE(parse_batch(packed(Batch{.flags = kBatchDecodable | kBatchWait}), &out).ok());
  EXPECT_EQ(parse_batch(packed(Batch{.hold_owner = 1}), &out), Code::Invalid);
  EXPECT_EQ(parse_batch(packed(Batch{.hold_ms = 1}), &out), Code::Invalid);
  EXPECT_TRUE(parse_batch(packed(Batch{.hold_owner = 1, .hold_ms = 1}), &out).ok());
}

TEST(NamespaceAction, IsOneOfThreeVerbs) {
  NamespaceRecord out;
  for (int verb = 0; verb < 256; ++verb) {
    const NamespaceRecord record{.verb = static_cast<NamespaceVerb>(verb)};
    EXPECT_EQ(parse_namespace_action(packed(record), &out).ok(), verb >= 1 && verb <= 3) << verb;
  }
}

TEST(Owner, IsNeverZero) {
  OwnerRecord out;
  EXPECT_EQ(parse_owner(packed(OwnerRecord{}), &out), Code::Invalid);
}

TEST(NamespaceName, IsShortTextThatALogLineCanShow) {
  std::string_view out;
  EXPECT_TRUE(parse_namespace_name(as_bytes("tenant-\xC3\xA9"), &out).ok());
  EXPECT_EQ(out, "tenant-\xC3\xA9");
  EXPECT_TRUE(parse_namespace_name(as_bytes(std::string(255, 'n')), &out).ok());
  for (const std::string& bad : {std::string(), std::string(256, 'n'), std::string("a\nb"), std::string(1, '\0'),
                                 std::string("\x7F"), std::string("\xFF")}) {
    EXPECT_EQ(parse_namespace_name(as_bytes(bad), &out), Code::Invalid) << bad.size();
  }
}

TEST(ShardMap, HoldsOneToSixteenPorts) {
  PackedArray<ShardAddress> out;
  for (size_t shards = 0; shards <= 17; ++shards) {
    Blob map;
    for (size_t i = 0; i < shards; ++i) map = map + packed(ShardAddress{.port = static_cast<uint16_t>(7350 + i)});
    EXPECT_EQ(parse_shard_map(map, &out).ok(), shards >= 1 && shards <= 16) << shards;
  }
  EXPECT_EQ(parse_shard_map(Blob(7), &out), Code::Invalid);
  EXPECT_EQ(parse_shard_map(packed(ShardAddress{.reserved = 1}), &out), Code::Invalid);
  EXPECT_EQ(parse_shard_map(packed(ShardAddress{.host = kShardsMax + 1}), &out), Code::Invalid);
  EXPECT_TRUE(parse_shard_map(packed(ShardAddress{.flags = 0xFFFF, .host = kShardsMax}), &out).ok());
  const Blob two = packed(ShardAddress{.port = 1}, ShardAddress{.port = 2});
  ASSERT_TRUE(parse_shard_map(two, &out).ok());
  EXPECT_EQ(out.size(), 2U);
  EXPECT_EQ(out[1].port, 2);
}

TEST(Grant, NamesItemsThatARequestCanHave) {
  GrantView out;
  const auto grant = [](const ItemRange& range) { return packed(GrantHead{.range_count = 1}, range); };
  EXPECT_TRUE(parse_grant(packed(GrantHead{}), &out).ok());
  const Blob last = grant({.section = 15, .first = kItemsMax - 1, .count = 1});
  ASSERT_TRUE(parse_grant(last, &out).ok());
  EXPECT_EQ(out.ranges[0].first, kItemsMax - 1);
  EXPECT_EQ(parse_grant(grant({.section = 16, .count = 1}), &out), Code::Invalid);
  EXPECT_EQ(parse_grant(grant({.count = 0}), &out), Code::Invalid);
  EXPECT_EQ(parse_grant(grant({.first = kItemsMax, .count = 1}), &out), Code::Invalid);
  EXPECT_EQ(parse_grant(grant({.first = UINT32_MAX, .count = UINT32_MAX}), &out), Code::Invalid);
  EXPECT_EQ(parse_grant(grant({.first = UINT32_MAX, .count = 2}), &out), Code::Invalid);  // wraps to 1
}

TEST(MatchBits, AnswersEachKeyAndKeepsItsSpareBitsZero) {
  MatchBitsView out;
  const Blob ten = packed(kZero16, kZero16, uint32_t{10}, uint8_t{0x81}, uint8_t{2});
  ASSERT_TRUE(parse_match_bits(ten, &out).ok());
  for (uint32_t key = 0; key < 10; ++key) EXPECT_EQ(out[key], key == 0 || key == 7 || key == 9) << key;
  EXPECT_EQ(parse_match_bits(packed(kZero16, kZero16, uint32_t{10}, uint8_t{0}, uint8_t{4}), &out), Code::Invalid);
  EXPECT_TRUE(parse_match_bits(packed(kZero16, kZero16, uint32_t{8}, uint8_t{0xFF}), &out).ok());
  const Blob many = packed(kZero16, kZero16, kKeysMax + 1) + Blob(kKeysMax / 8 + 1);
  EXPECT_EQ(parse_match_bits(many, &out), Code::Invalid);
}

TEST(Lengths, ComeBackInOrder) {
  LengthsView out;
  const Blob two = packed(uint16_t{3}, kZero16, uint32_t{5}, uint32_t{2}, kZero32, uint32_t{7}, kZero32);
  ASSERT_TRUE(parse_lengths(two, &out).ok());
  EXPECT_EQ(out.section, 3);
  EXPECT_EQ(out.first, 5U);
  ASSERT_EQ(out.block_bytes.size(), 2U);
  EXPECT_EQ(out.block_bytes[0], 7U);
  EXPECT_EQ(out.block_bytes[1], 0U);
  EXPECT_EQ(parse_lengths(packed(uint16_t{16}, kZero16, kZero32, kZero32, kZero32), &out), Code::Invalid);
  EXPECT_EQ(parse_lengths(packed(kZero16, kZero16, kItemsMax, uint32_t{1}, kZero32, kZero32), &out), Code::Invalid);
}

TEST(Entries, AreVisitedWithTheirKeys) {
  Blob value = packed(uint32_t{3}, kZero32);
  const std::vector<std::string> keys = {"a", "12345678", std::string(255, 'k')};
  for (const std::string& key : keys) {
    value = value + packed(EntryRecord{.block_bytes = 9, .key_bytes = static_cast<uint8_t>(key.size())}) + text(key);
    value.resize((value.size() + 7) / 8 * 8);
  }
  std::vector<std::string> seen;
  ASSERT_TRUE(for_entries(value, [&](const EntryRecord& entry, ConstBytes key) {
                EXPECT_EQ(entry.block_bytes, 9U);
                seen.emplace_back(as_text(key));
              }).ok());
  EXPECT_EQ(seen, keys);
  const Blob nameless = packed(uint32_t{1}, kZero32, EntryRecord{.key_bytes = 0});
  EXPECT_EQ(for_entries(nameless, [](const EntryRecord&, ConstBytes) { FAIL(); }), Code::Invalid);
}

TEST(Counters, AreVisitedOrRefusedAsAWhole) {
  const auto counter = [](std::string_view name, uint64_t value) {
    Blob out = packed(static_cast<uint16_t>(name.size()), kZero16, kZero32, value) + text(name);
    out.resize((out.size() + 7) / 8 * 8);
    return out;
  };
  const Blob two = counter("hits", 7) + counter("misses_by_reason", UINT64_MAX);
  std::vector<std::pair<std::string, uint64_t>> seen;
  ASSERT_TRUE(for_counters(two, [&](std::string_view name, uint64_t value) { seen.emplace_back(name, value); }).ok());
  EXPECT_EQ(seen, (std::vector<std::pair<std::string, uint64_t>>{{"hits", 7}, {"misses_by_reason", UINT64_MAX}}));
  const auto none = [](std::string_view, uint64_t) { FAIL() << "visited"; };
  for (size_t bytes = 1; bytes < two.size(); ++bytes) {
    if (bytes == counter("hits", 7).size()) continue;
    EXPECT_EQ(for_counters(ConstBytes(two).first(bytes), none), Code::Invalid) << bytes;
  }
  EXPECT_EQ(for_counters(counter("", 1), none), Code::Invalid);
  EXPECT_EQ(for_counters(counter("\xFF", 1), none), Code::Invalid);
  for (const size_t at : {size_t{2}, size_t{4}, size_t{20}}) {
    Blob bad = two;
    bad[at] = std::byte{1};
    EXPECT_EQ(for_counters(bad, none), Code::Invalid) << at;
  }
}

TEST(KeyCursor, EndsAtAnythingThatIsNoKey) {
  ConstBytes key;
  const Blob keys = packed(uint8_t{1}) + text("a") + packed(uint8_t{3}) + text("bc");
  KeyCursor cursor(keys);
  ASSERT_TRUE(cursor.next(&key));
  EXPECT_EQ(as_text(key), "a");
  EXPECT_FALSE(cursor.next(&key));
  const Blob zero(1);
  EXPECT_FALSE(KeyCursor(zero).next(&key));
  EXPECT_FALSE(KeyCursor({}).next(&key));
}

TEST(PartTable, RefusesPartsThatCannotBe) {
  PartTableView out;
  Blob value;  // what `out` points into
  uint32_t stored = 0;
  uint32_t raw = 0;
  const auto parse = [&](const std::vector<PartRecord>& parts) {
    value = packed(kZero16, kZero16, kZero32, static_cast<uint32_t>(parts.size()), kZero32);
    for (const PartRecord& part : parts) value = value + packed(part);
    return parse_part_table(value, &out, &stored, &raw);
  };
  ASSERT_TRUE(parse({{.codec = 1, .stored_bytes = 3, .raw_bytes = 4}, {.stored_bytes = 5, .raw_bytes = 5}}).ok());
  EXPECT_EQ(stored, 8U);
  EXPECT_EQ(raw, 9U);
  EXPECT_EQ(out.records[1].raw_bytes, 5U);
  EXPECT_EQ(parse({}), Code::Invalid);
  EXPECT_EQ(parse({{.codec = 1, .stored_bytes = 0, .raw_bytes = 4}}), Code::Invalid);
  EXPECT_EQ(parse({{.codec = 1, .stored_bytes = 4, .raw_bytes = 0}}), Code::Invalid);
  EXPECT_EQ(parse({{.codec = 0, .stored_bytes = 3, .raw_bytes = 4}}), Code::Invalid);
  const PartRecord huge{.codec = 1, .stored_bytes = UINT32_MAX, .raw_bytes = 1};
  EXPECT_TRUE(parse({huge}).ok());
  EXPECT_EQ(parse({huge, huge}), Code::Invalid);
  EXPECT_TRUE(parse(std::vector<PartRecord>(kPartsMax, {.stored_bytes = 1, .raw_bytes = 1})).ok());
  EXPECT_EQ(parse(std::vector<PartRecord>(kPartsMax + 1, {.stored_bytes = 1, .raw_bytes = 1})), Code::Invalid);
}

// ---- runs ----

Status runs_status(const std::vector<Run>& runs, uint32_t checks, uint32_t payload_bytes) {
  Blob value = packed(static_cast<uint32_t>(runs.size()), checks);
  for (const Run& run : runs) value = value + packed(run);
  RunsView out;
  return parse_runs(value + Blob(size_t{checks} * 4), payload_bytes, &out);
}
Status run_status(const Run& run) { return runs_status({run}, run.check_count <= kPartsMax ? run.check_count : 0, run.bytes); }

TEST(Runs, TakeWholePartsAndPieces) {
  EXPECT_TRUE(run_status({.part = 3, .part_count = 4, .bytes = 4096, .block_bytes = 8192, .check_count = 4}).ok());
  EXPECT_TRUE(run_status({.offset = 100, .bytes = 50, .block_bytes = 8192}).ok());
  EXPECT_TRUE(run_status({.offset = 100, .bytes = 50, .block_bytes = 150, .check_count = 1}).ok());
  EXPECT_TRUE(run_status({.part = kPartsMax - 1, .bytes = 1, .block_bytes = 8192, .check_count = 1}).ok());
}

TEST(Runs, OnlyAnAbortedOneMayHaveNoBytes) {
  EXPECT_EQ(run_status({.block_bytes = 10, .check_count = 1}), Code::Invalid);
  EXPECT_TRUE(run_status({.flags = kRunAborted, .block_bytes = 10, .check_count = 1}).ok());
  EXPECT_TRUE(run_status({.flags = kRunAborted, .part_count = 9, .block_bytes = 10, .check_count = 9}).ok());
  // Parts are never empty, so fewer bytes than parts is a lie even then.
  EXPECT_EQ(run_status({.flags = kRunAborted, .part_count = 9, .bytes = 8, .block_bytes = 10, .check_count = 9}),
            Code::Invalid);
}

TEST(Runs, RefuseWhatNoBlockHas) {
  const wire::Run good{.bytes = 8, .block_bytes = 8, .check_count = 1};
  ASSERT_TRUE(run_status(good).ok());
  const std::vector<std::pair<const char*, std::function<void(wire::Run&)>>> kLies = {
      {"section", [](wire::Run& r) { r.section = kSectionsMax; }},
      {"flags", [](wire::Run& r) { r.flags = 4; }},
      {"item", [](wire::Run& r) { r.item = kItemsMax; }},
      {"part", [](wire::Run& r) { r.part = kPartsMax; }},
      {"part wraps", [](wire::Run& r) { r.part = UINT32_MAX; }},
      {"no parts", [](wire::Run& r) { r.part_count = 0; }},
      {"parts wrap", [](wire::Run& r) { r.part_count = UINT32_MAX; }},
      {"piece of two parts", [](wire::Run& r) { r.offset = 1, r.bytes = 7, r.part_count = 2, r.check_count = 2; }},
      {"offset past the block", [](wire::Run& r) { r.offset = 1; }},
      {"offset wraps", [](wire::Run& r) { r.offset = UINT32_MAX; }},
      {"no block", [](wire::Run& r) { r.block_bytes = 0; }},
      {"short block", [](wire::Run& r) { r.block_bytes = 7; }},
      {"two checks of one part", [](wire::Run& r) { r.check_count = 2; }},
      {"one check of two parts", [](wire::Run& r) { r.part_count = 2; }},
      {"no check of two parts", [](wire::Run& r) { r.part_count = 2, r.check_count = 0; }},
  };
  for (const auto& [name, lie] : kLies) {
    wire::Run bad = good;
    lie(bad);
    EXPECT_EQ(run_status(bad), Code::Invalid) << name;
  }
}

TEST(Runs, CodedBytesMayPassTheRawLengthButNeverWrap) {
  EXPECT_TRUE(run_status({.flags = kRunCoded, .bytes = 9, .block_bytes = 8, .check_count = 1}).ok());
  EXPECT_EQ(run_status({.flags = kRunCoded, .offset = UINT32_MAX, .bytes = 9, .block_bytes = 8, .check_count = 1}),
            Code::Invalid);
}

TEST(Runs, AddUpToThePayloadAndTheirChecks) {
  const wire::Run run{.bytes = 8, .block_bytes = 8, .check_count = 1};
  EXPECT_TRUE(runs_status({run, run}, 2, 16).ok());
  EXPECT_EQ(runs_status({run, run}, 2, 15), Code::Invalid);
  EXPECT_EQ(runs_status({run, run}, 2, 17), Code::Invalid);
  EXPECT_EQ(runs_status({run, run}, 1, 16), Code::Invalid);
  EXPECT_EQ(runs_status({run, run}, 3, 16), Code::Invalid);
  // Bytes that wrap 32 bits: 2 x (2^31 + 8) = 16 mod 2^32.
  const wire::Run huge{.bytes = 0x80000008U, .block_bytes = UINT32_MAX, .check_count = 1};
  EXPECT_EQ(runs_status({huge, huge}, 2, 16), Code::Invalid);
}

TEST(Runs, AreAtMostFiveHundredAndTwelve) {
  const wire::Run run{.bytes = 1, .block_bytes = 8, .check_count = 1};
  EXPECT_TRUE(runs_status(std::vector<wire::Run>(kRunsPerChunkMax, run), kRunsPerChunkMax, kRunsPerChunkMax).ok());
  EXPECT_EQ(runs_status(std::vector<wire::Run>(kRunsPerChunkMax + 1, run), kRunsPerChunkMax + 1, kRunsPerChunkMax + 1),
            Code::TooLarge);
  EXPECT_EQ(runs_status({}, 0, 0), Code::Invalid);
}

// ---- chunks ----

Blob body(const std::function<void(FrameWriter&)>& write) {
  Blob out;
  FrameWriter frame(out);
  frame.begin(Opcode::Chunk, 1);
  write(frame);
  frame.finish();
  const ConstBytes all = samples::body_of(out);
  return {all.begin(), all.end()};
}

TEST(Chunk, HasExactlyOneRunsAndNothingThatDoesNotBelong) {
  const wire::Run run{.bytes = 8, .block_bytes = 8, .check_count = 1};
  RunsView out;
  Blob chunk;  // what `out` points into
  const auto status = [&](const std::function<void(FrameWriter&)>& write) {
    chunk = body(write);
    return parse_chunk(chunk, 8, &out);
  };
  const auto runs = [&](FrameWriter& frame) { samples::put_runs(frame, {run}, {7}); };

  ASSERT_TRUE(status(runs).ok());
  EXPECT_EQ(out.run(0).bytes, 8U);
  EXPECT_EQ(out.check(0), 7U);
  EXPECT_EQ(status([](FrameWriter&) {}), Code::Invalid);
  EXPECT_EQ(status([&](FrameWriter& f) { runs(f), runs(f); }), Code::Invalid);
  EXPECT_EQ(status([&](FrameWriter& f) { runs(f), f.tlv(Tlv::Load, LoadRecord{}); }), Code::Invalid);
  EXPECT_TRUE(status([&](FrameWriter& f) { runs(f), f.tlv_bytes(static_cast<Tlv>(99), {}); }).ok());
  EXPECT_EQ(status([&](FrameWriter& f) { runs(f), f.tlv_bytes(static_cast<Tlv>(0x8063), {}); }), Code::Unsupported);
  const PartRecord part{.codec = 1, .stored_bytes = 8, .raw_bytes = 9};
  EXPECT_TRUE(status([&](FrameWriter& f) { samples::put_part_table(f, 0, 0, {part}), runs(f); }).ok());
  EXPECT_EQ(status([&](FrameWriter& f) { samples::put_part_table(f, 0, 0, {}), runs(f); }), Code::Invalid);
}

// ---- selected parts and statuses ----

TEST(SelectedParts, ComeInTheOrderOfTheRanges) {
  const Blob ranges = packed(PartRange{.start = 5, .count = 2, .stride = 3}, PartRange{.start = 0, .count = 2, .stride = 1});
  SectionView section;
  section.head.range_count = 2;
  section.ranges = ranges;
  std::vector<uint32_t> seen;
  ASSERT_TRUE(for_selected_parts(section, 9, [&](uint32_t part) { seen.push_back(part); }).ok());
  EXPECT_EQ(seen, (std::vector<uint32_t>{5, 8, 0, 1}));
  EXPECT_EQ(for_selected_parts(section, 8, [](uint32_t) {}), Code::Invalid);

  seen.clear();
  section.head.range_count = 0;
  ASSERT_TRUE(for_selected_parts(section, 3, [&](uint32_t part) { seen.push_back(part); }).ok());
  EXPECT_EQ(seen, (std::vector<uint32_t>{0, 1, 2}));
}

TEST(Statuses, AreWrittenInRunsAndReadBack) {
  Blob out;
  FrameWriter frame(out);
  frame.begin(Opcode::Final, 1);
  StatusWriter writer(frame, 2, kStatusPerPart);
  const AnswerReason stored{Answer::Ok, Reason::Stored};
  const AnswerReason absent{Answer::Miss, Reason::Absent};
  for (const uint32_t number : {0, 1, 2}) writer.add(number, stored);
  writer.add(3, absent);
  writer.add(5, absent);  // a gap starts another run
  writer.add(6, {Answer::Miss, Reason::Corrupt});
  writer.close();
  frame.finish();

  TlvReader reader(samples::body_of(out));
  TlvView tlv;
  ASSERT_TRUE(reader.next(&tlv));
  std::vector<std::array<uint32_t, 4>> seen;
  ASSERT_TRUE(for_status_runs(tlv.value, [&](uint16_t section, uint16_t flags, const StatusRun& run) {
                EXPECT_EQ(section, 2);
                EXPECT_EQ(flags, kStatusPerPart);
                seen.push_back({run.first, run.count, static_cast<uint32_t>(run.answer), static_cast<uint32_t>(run.reason)});
              }).ok());
  EXPECT_EQ(seen, (std::vector<std::array<uint32_t, 4>>{{0, 3, 1, 1}, {3, 1, 2, 16}, {5, 1, 2, 16}, {6, 1, 2, 17}}));
}

TEST(Statuses, AreRefusedAsAWhole) {
  const auto none = [](uint16_t, uint16_t, const StatusRun&) { FAIL() << "visited"; };
  const auto value = [](uint16_t section, uint16_t flags, const std::vector<StatusRun>& runs) {
    Blob out = packed(section, flags, static_cast<uint32_t>(runs.size()));
    for (const StatusRun& run : runs) out = out + packed(run);
    return out;
  };
  const StatusRun good{.first = 0, .count = 1, .answer = Answer::Ok};
  EXPECT_EQ(for_status_runs(value(0, 0, {good, {.first = 1, .count = 0, .answer = Answer::Ok}}), none), Code::Invalid);
  EXPECT_EQ(for_status_runs(value(0, 0, {good, {.first = 1, .count = 1}}), none), Code::Invalid);
  EXPECT_EQ(for_status_runs(value(16, 0, {good}), none), Code::Invalid);
  EXPECT_EQ(for_status_runs(value(0, 2, {good}), none), Code::Invalid);
  const StatusRun wraps{.first = UINT32_MAX, .count = UINT32_MAX, .answer = Answer::Ok};
  EXPECT_EQ(for_status_runs(value(0, 0, {good, wraps}), none), Code::Invalid);
  const StatusRun past{.first = kItemsMax, .count = 1, .answer = Answer::Ok};
  EXPECT_EQ(for_status_runs(value(0, 0, {good, past}), none), Code::Invalid);
  EXPECT_TRUE(check_statuses(value(0, kStatusPerPart, {past})).ok());
}

TEST(Statuses, OfAWholeRequestAreOne) {
  const StatusRun good{.first = 0, .count = 1, .answer = Answer::Rejected, .reason = Reason::Unsupported};
  EXPECT_TRUE(check_statuses(packed(kWholeRequest, kZero16, uint32_t{1}, good)).ok());
  EXPECT_EQ(check_statuses(packed(kWholeRequest, kStatusPerPart, uint32_t{1}, good)), Code::Invalid);
  EXPECT_EQ(check_statuses(packed(kWholeRequest, kZero16, uint32_t{2}, good, good)), Code::Invalid);
  EXPECT_EQ(check_statuses(packed(kWholeRequest, kZero16, kZero32)), Code::Invalid);
}

TEST(Statuses, UnknownAnswersAndReasonsPass) {
  const StatusRun later{.count = 1, .answer = static_cast<Answer>(200), .reason = static_cast<Reason>(60'000)};
  EXPECT_TRUE(check_statuses(packed(kZero16, kZero16, uint32_t{1}, later)).ok());
}

}  // namespace
}  // namespace halfstep::wire
