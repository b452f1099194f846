// Gets into, and puts out of, the memory of a GPU that is late and fails: on the recording table, whose device is host memory.
#include <gtest/gtest.h>

#include <cstring>

#include "base/crc.h"
#include "compress/codec.h"
#include "compress/unit.h"
#include "gpu/fake_cuda.h"
#include "peer/fake_daemon.h"
#include "peer/try_client.h"

namespace halfstep::peer {
namespace {

constexpr uint32_t kBlockBytes = 600'000;  // three parts, the last one short: longer than a Chunk
constexpr size_t kGuardBytes = 4096;

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { gpu::replace_system_cuda(&cuda); }
  void TearDown() override {
    gpu::replace_system_cuda(nullptr);
    EXPECT_EQ(cuda.live(), 0U);
    EXPECT_EQ(cuda.faults(), std::vector<std::string>{});
  }

  gpu::FakeCuda cuda;
};

// Blocks of "device memory" with guards around all of it.
struct DeviceBlocks {
  DeviceBlocks(gpu::FakeCuda& cuda, size_t count, size_t bytes = kBlockBytes)
      : memory(2 * kGuardBytes + count * bytes, std::byte{0xA5}), block_bytes(bytes) {
    cuda.add_memory(memory.data(), memory.size());
    for (size_t i = 0; i < count; ++i) iovecs.push_back({block(i), bytes});
    lengths.assign(count, static_cast<uint32_t>(bytes));
  }
  std::byte* block(size_t i) { return memory.data() + kGuardBytes + i * block_bytes; }
  void of(TrySection& section) {
    section.section.target_kind = HS_TARGET_IOVEC;
    section.section.iovecs = iovecs.data();
    section.section.block_bytes = lengths.data();
    section.section.cuda_device = 1;
  }
  bool guards_are_whole() const {
    const auto is_guard = [](std::byte byte) { return byte == std::byte{0xA5}; };
    return std::all_of(memory.begin(), memory.begin() + kGuardBytes, is_guard) &&
           std::all_of(memory.end() - kGuardBytes, memory.end(), is_guard);
  }
  Octets memory;
  size_t block_bytes;
  std::vector<hs_iovec> iovecs;
  std::vector<uint32_t> lengths;
};

std::vector<Octets> put_blocks(TryClient& client, int layout, const std::vector<std::string>& keys) {
  std::vector<Octets> blocks;
  for (size_t i = 0; i < keys.size(); ++i) blocks.push_back(random_octets(kBlockBytes, i + 1));
  TrySection put(layout, keys);
  client.put(put.into(blocks));
  EXPECT_TRUE(put.all("ok(stored)"));
  return blocks;
}

TEST_F(DeviceTest, BlocksGoToTheDeviceAndComeBackFromIt) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  DeviceBlocks from(cuda, 5), to(cuda, 5);
  for (size_t i = 0; i < 5; ++i) {
    const Octets bytes = random_octets(kBlockBytes, i + 1);
    std::memcpy(from.block(i), bytes.data(), bytes.size());
  }
  TrySection put(layout, names(5));
  from.of(put);
  client.put(put);
  EXPECT_TRUE(put.all("ok(stored)"));
  TrySection get(layout, names(5));
  to.of(get);
  EXPECT_EQ(client.get(get).items_ok, 5U);
  EXPECT_EQ(from.memory, to.memory);
  const hs_client_facts facts = client.facts();
  EXPECT_STREQ(facts.gpu, "cuda:0 (Fake, driver 12.4)");
  EXPECT_EQ(facts.gpu_bytes_to_device, 5U * kBlockBytes);
  EXPECT_EQ(facts.gpu_bytes_to_host, 5U * kBlockBytes);
  EXPECT_EQ(facts.gpu_slots_used, 0U);
  EXPECT_GT(facts.gpu_copies, 0U);
}

// Its slots are in several slabs, which are neighbours here.
TEST_F(DeviceTest, APutThatFillsSeveralSlabsOfPinnedMemoryIsWhole) {
  constexpr size_t kBlocks = 20;
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  DeviceBlocks from(cuda, kBlocks), to(cuda, kBlocks);
  const Octets bytes = random_octets(kBlocks * kBlockBytes, 1);
  std::memcpy(from.block(0), bytes.data(), bytes.size());
  TrySection put(layout, names(kBlocks));
  from.of(put);
  client.put(put);
  EXPECT_TRUE(put.all("ok(stored)")) << client.facts().gpu_error;
  TrySection get(layout, names(kBlocks));
  to.of(get);
  EXPECT_EQ(client.get(get).items_ok, kBlocks);
  EXPECT_EQ(from.memory, to.memory);
}

TEST_F(DeviceTest, TheTerminalEventWaitsForTheCopies) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  const std::vector<Octets> blocks = put_blocks(client, layout, names(2));
  DeviceBlocks to(cuda, 2);
  cuda.delay(true);
  TrySection get(layout, names(2));
  to.of(get);
  hs_batch batch = TryClient::batch(HS_OP_GET, 60'000'000);
  ASSERT_NE(client.submit(batch, get), 0U) << client.why;
  // All has come, and nothing is said of it before the last copy is over.
  ASSERT_TRUE(comes_true([&] { return client.facts().bytes_received >= 2 * kBlockBytes; }));
  ASSERT_GT(cuda.waiting(), 1U);
  hs_event event{};
  while (cuda.waiting() > 1) {
    cuda.carry_out(1);
    EXPECT_EQ(hs_queue_poll(client.queue, &event, 1), 0U);
  }
  cuda.delay(false);
  EXPECT_EQ(client.wait().items_ok, 2U);
  EXPECT_EQ(std::memcmp(to.block(0), blocks[0].data(), kBlockBytes), 0);
  EXPECT_EQ(std::memcmp(to.block(1), blocks[1].data(), kBlockBytes), 0);
}

// More than all slots hold: the connection is read no further until some come free, and other queues go on.
TEST_F(DeviceTest, WithoutASlotNothingMoreIsReadAndNothingIsLost) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  constexpr size_t kBlocks = 40;  // 24 MB; slots hold 16 MiB
  const std::vector<Octets> blocks = put_blocks(client, layout, names(kBlocks));
  DeviceBlocks first(cuda, kBlocks), second(cuda, kBlocks);
  cuda.delay(true);
  TrySection one(layout, names(kBlocks)), two(layout, names(kBlocks));
  first.of(one);
  second.of(two);
  hs_queue* other = nullptr;
  ASSERT_EQ(hs_queue_open(client.client, &other), 0);
  hs_batch batch = TryClient::batch(HS_OP_GET, 60'000'000);
  ASSERT_NE(client.submit(batch, one), 0U);
  hs_batch more = TryClient::batch(HS_OP_GET, 60'000'000);
  more.sections = &two.section;
  more.section_count = 1;
  ASSERT_NE(hs_submit(other, &more, nullptr, 0), 0U);
  ASSERT_TRUE(comes_true([&] { return client.facts().gpu_slot_waits > 0; }));
  EXPECT_EQ(client.facts().gpu_slots_used, 64U);
  cuda.delay(false);
  EXPECT_EQ(client.wait().items_ok, kBlocks);
  hs_event event{};
  ASSERT_EQ(hs_queue_wait(other, &event, 1, 30'000'000), 1U);
  EXPECT_EQ(event.items_ok, kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(std::memcmp(first.block(i), blocks[i].data(), kBlockBytes), 0) << i;
    EXPECT_EQ(std::memcmp(second.block(i), blocks[i].data(), kBlockBytes), 0) << i;
  }
  hs_queue_close(other);
}

TEST_F(DeviceTest, ACopyThatFailsIsNeverOk) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  put_blocks(client, layout, names(3));
  DeviceBlocks to(cuda, 3);
  TrySection get(layout, names(3));
  to.of(get);
  cuda.fail_next("cuMemcpyHtoDAsync", gpu::FakeCuda::kIllegalAddress);
  EXPECT_EQ(client.get(get).items_ok, 2U);
  size_t failed = 0;
  for (const hs_answer& answer : get.answers) failed += text_of(answer) == "unavailable(copy)" ? 1 : 0;
  EXPECT_EQ(failed, 1U);
  EXPECT_NE(std::string(client.facts().gpu_error).find("cuMemcpyHtoDAsync: FAKE_ERROR_700"), std::string::npos);
  EXPECT_EQ(client.facts().gpu_failures, 1U);
  TrySection put(layout, {"new"});
  DeviceBlocks from(cuda, 1);
  from.of(put);
  cuda.fail_next("cuMemcpyDtoHAsync", gpu::FakeCuda::kIllegalAddress);
  client.put(put);
  EXPECT_TRUE(put.all("unavailable(copy)"));
  const std::lock_guard lock(daemon.store_mutex);
  EXPECT_EQ(daemon.store.size(), 3U);
}

TEST_F(DeviceTest, ABatchWaitsForTheStreamsOfItsCallerAndTakesNoSlotMeanwhile) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  const std::vector<Octets> blocks = put_blocks(client, layout, names(1));
  DeviceBlocks to(cuda, 1), from(cuda, 1);
  const uint64_t stream = cuda.stream();
  TrySection get(layout, names(1)), put(layout, {"late"});
  to.of(get);
  from.of(put);
  hs_batch gets = TryClient::batch(HS_OP_GET, 60'000'000), puts = TryClient::batch(HS_OP_PUT, 60'000'000);
  gets.streams = puts.streams = &stream;
  gets.stream_count = puts.stream_count = 1;
  ASSERT_NE(client.submit(gets, get), 0U) << client.why;
  ASSERT_NE(client.submit(puts, put), 0U) << client.why;
  // Whoever comes later and waits for nothing goes ahead.
  TrySection again(layout, names(1));
  DeviceBlocks other(cuda, 1);
  other.of(again);
  hs_batch ungated = TryClient::batch(HS_OP_GET, 60'000'000);
  const hs_ticket ticket = client.submit(ungated, again);
  EXPECT_EQ(client.wait().ticket, ticket);
  EXPECT_EQ(cuda.count("cuMemcpyDtoHAsync"), 0U);
  EXPECT_EQ(client.facts().gpu_slots_used, 0U);
  std::memcpy(from.block(0), blocks[0].data(), kBlockBytes);  // what the stream has under way writes it
  cuda.release(stream);
  EXPECT_EQ(client.wait().items_ok + client.wait().items_ok, 2U);
  EXPECT_EQ(std::memcmp(to.block(0), blocks[0].data(), kBlockBytes), 0);
  const std::lock_guard lock(daemon.store_mutex);
  EXPECT_EQ(daemon.store.size(), 2U);
  for (const auto& [name, bytes] : daemon.store) EXPECT_EQ(std::memcmp(bytes.data(), blocks[0].data(), kBlockBytes), 0);
}

// The fence: whatever ends a get, nothing is under way afterwards, and the memory and its guards never change again.
class Fence : public DeviceTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(By, Fence, ::testing::Values(0, 1, 2));

TEST_P(Fence, AfterTheTerminalEventNoCopyIsUnderWay) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  put_blocks(client, layout, names(4));
  for (uint32_t round = 0; round < 100; ++round) {
    DeviceBlocks to(cuda, 4);
    TrySection get(layout, names(4));
    to.of(get);
    cuda.delay(true);
    hs_batch batch = TryClient::batch(HS_OP_GET, GetParam() == 0 ? 1000 + round * 50 : 60'000'000);
    const hs_ticket ticket = client.submit(batch, get);
    ASSERT_NE(ticket, 0U) << client.why;
    // Some way into it: as many copies as the round says are under way, or it is over already.
    const auto begun = [&] { return GetParam() == 0 || cuda.waiting() > round % 16; };
    ASSERT_TRUE(comes_true(begun));
    if (GetParam() == 1) hs_cancel(client.queue, ticket);
    if (GetParam() == 2) daemon.end_connections();
    cuda.carry_out(round % 5);
    std::thread late([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      cuda.delay(false);
    });
    EXPECT_EQ(client.wait().ticket, ticket);
    EXPECT_EQ(cuda.waiting(), 0U);
    const Octets seen = to.memory;
    EXPECT_TRUE(to.guards_are_whole());
    late.join();
    cuda.carry_out();
    EXPECT_EQ(to.memory, seen);
    EXPECT_EQ(client.facts().gpu_slots_used, 0U);
    if (GetParam() == 2) {
      ASSERT_TRUE(client.ready(30'000));
    }
  }
}

TEST_F(DeviceTest, AClosedClientLeavesNothingUnderWay) {
  FakeDaemon daemon;
  for (uint32_t round = 0; round < 100; ++round) {
    DeviceBlocks to(cuda, 2);
    Octets seen;
    {
      TryClient client(daemon.address());
      const int layout = client.layout(make_layout({kOpaque}));
      if (round == 0) put_blocks(client, layout, names(2));
      TrySection get(layout, names(2));
      to.of(get);
      cuda.delay(true);
      hs_batch batch = TryClient::batch(HS_OP_GET, 60'000'000);
      ASSERT_NE(client.submit(batch, get), 0U) << client.why;
      ASSERT_TRUE(comes_true([&] { return cuda.waiting() > round % 8; }));
      std::thread late([this] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        cuda.delay(false);
      });
      hs_client_end(client.client);
      EXPECT_EQ(cuda.waiting(), 0U);
      seen = to.memory;
      late.join();
    }
    EXPECT_EQ(to.memory, seen);
    EXPECT_TRUE(to.guards_are_whole());
    ASSERT_EQ(cuda.live(), 0U);
  }
}

TEST_F(DeviceTest, WhatCannotBeIsRefusedInASentence) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  DeviceBlocks to(cuda, 1);
  TrySection get(layout, names(1));
  to.of(get);
  hs_batch batch = TryClient::batch(HS_OP_GET);
  get.section.cuda_device = 3;
  EXPECT_EQ(client.submit(batch, get), 0U);
  EXPECT_NE(client.why.find("device=2: this process sees 1 CUDA devices"), std::string::npos) << client.why;
  get.section.cuda_device = 1;
  const uint64_t captured = cuda.stream(true);
  batch.streams = &captured;
  batch.stream_count = 1;
  EXPECT_EQ(client.submit(batch, get), 0U);
  EXPECT_NE(client.why.find("captured into a graph"), std::string::npos) << client.why;
  batch.stream_count = 0;
  std::vector<Octets> host{Octets(kBlockBytes)};
  TrySection wrong(layout, names(1));
  wrong.into(host);
  wrong.section.cuda_device = 1;
  EXPECT_EQ(client.submit(batch, wrong), 0U);
  EXPECT_NE(client.why.find("cuPointerGetAttribute"), std::string::npos) << client.why;
  // A put is staged as a whole.
  DeviceBlocks huge(cuda, 3, size_t{100} << 20);
  TrySection put(layout, names(3));
  huge.of(put);
  hs_batch puts = TryClient::batch(HS_OP_PUT);
  EXPECT_EQ(client.submit(puts, put), 0U);
  EXPECT_NE(client.why.find("at most 268435456"), std::string::npos) << client.why;
}

// A daemon with one block of two coded parts, the first of which is longer than a slot when it is decoded.
struct CodedDaemon {
  static constexpr uint32_t kPartBytes[] = {300'000, 60'000};
  CodedDaemon() {
    Prng prng(1);
    for (uint32_t part = 0; part < 2; ++part) {
      Octets unit(kPartBytes[part]);
      for (uint32_t at = 0; at < kPartBytes[part]; at += 2) {
        const auto value = static_cast<uint16_t>(120 << 7 | prng.below(2));
        const auto* bytes = reinterpret_cast<const std::byte*>(&value);
        raw.insert(raw.end(), bytes, bytes + 2);
      }
      const ConstBytes of = ConstBytes(raw).last(kPartBytes[part]);
      compress::Scratch scratch;
      unit.resize(compress::find_codec(uint32_t{compress::kBfx})->encode(of, {compress::Element::Bf16, 0}, scratch, unit));
      EXPECT_GT(unit.size(), 0U);
      records[part].codec = compress::kBfx;
      records[part].stored_bytes = static_cast<uint32_t>(unit.size());
      records[part].raw_bytes = kPartBytes[part];
      records[part].raw_crc = crc32c(of);
      units.push_back(std::move(unit));
    }
    daemon.hook = [this](FakeDaemon::Connection& connection, const FakeDaemon::Frame& frame) {
      if (frame.opcode() != wire::Opcode::Get) return false;
      answer(connection, frame.header.request_id);
      return true;
    };
  }
  void answer(FakeDaemon::Connection& connection, uint64_t id) {
    const uint32_t number = FakeDaemon::name_number_of({layout.id(), 0, "key-0"});
    Octets out;
    wire::FrameWriter frame(out);
    frame.begin(wire::Opcode::Chunk, id);
    frame.open_tlv(wire::Tlv::PartTable);
    frame.value().put(uint16_t{0});
    frame.value().put(uint16_t{0});
    frame.value().put(uint32_t{0});
    frame.value().put(uint32_t{2});
    frame.value().put(uint32_t{0});
    for (const wire::PartRecord& record : records) frame.value().put(record);
    frame.close_tlv();
    frame.open_tlv(wire::Tlv::Runs);
    frame.value().put(uint32_t{1});
    frame.value().put(uint32_t{2});
    wire::Run run;
    run.part_count = run.check_count = 2;
    run.flags = wire::kRunCoded;
    run.bytes = records[0].stored_bytes + records[1].stored_bytes;
    run.block_bytes = static_cast<uint32_t>(raw.size());
    frame.value().put(run);
    for (uint32_t p = 0; p < 2; ++p) frame.value().put(wire::wire_check(crc32c(units[p]), number, p));
    frame.close_tlv();
    frame.finish(run.bytes);
    for (const Octets& unit : units) out.insert(out.end(), unit.begin(), unit.end());
    wire::FrameWriter last(out);
    last.begin(wire::Opcode::Final, id);
    FakeDaemon::add_status(last, 0, 0, 1, {wire::Answer::Ok});
    last.finish();
    connection.send(out);
  }

  wire::Layout layout = make_layout({{.part_count = 2, .size_count = 2, .part_bytes = {kPartBytes[0], kPartBytes[1]}}});
  Octets raw;
  wire::PartRecord records[2];
  std::vector<Octets> units;
  FakeDaemon daemon;
};

// Each needs two slots at least: most of them wait in turn, their parts half moved.
TEST_F(DeviceTest, CodedPartsAreDecodedInStagingAsSlotsComeFree) {
  CodedDaemon of;
  TryClient client(of.daemon.address(), 1, 0, 0, 5, compress::kCodecs);
  const int layout = client.layout(of.layout);
  constexpr size_t kGets = 60;
  DeviceBlocks to(cuda, kGets, of.raw.size());
  cuda.delay(true);
  std::vector<std::unique_ptr<TrySection>> gets;
  for (size_t i = 0; i < kGets; ++i) {
    gets.push_back(std::make_unique<TrySection>(layout, names(1)));
    to.of(*gets.back());
    gets.back()->section.iovecs = &to.iovecs[i];
    hs_batch batch = TryClient::batch(HS_OP_GET, 60'000'000);
    ASSERT_NE(client.submit(batch, *gets.back()), 0U) << client.why;
  }
  ASSERT_TRUE(comes_true([&] { return client.facts().gpu_slot_waits > 0; }));
  cuda.delay(false);
  for (size_t i = 0; i < kGets; ++i) EXPECT_EQ(client.wait().items_ok, 1U);
  for (size_t i = 0; i < kGets; ++i) EXPECT_EQ(std::memcmp(to.block(i), of.raw.data(), of.raw.size()), 0) << i;
  EXPECT_TRUE(to.guards_are_whole());
  // What does not decode to the bytes it was made of is a miss, as anywhere.
  of.records[1].raw_crc ^= 1;
  TrySection wrong(layout, names(1));
  to.of(wrong);
  client.get(wrong);
  EXPECT_TRUE(wrong.all("miss(corrupt)"));
  EXPECT_EQ(client.facts().decode_failures, 1U);
}

}  // namespace
}  // namespace halfstep::peer
