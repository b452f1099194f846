// Layers of coded blocks that only flash has: what the device reads for them, when the first layer is there, and that what a
// client decodes are the bytes that were put. The device is memory, and every byte that it gives is counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "base/prng.h"
#include "compress/codec.h"
#include "peer/try_client.h"
#include "shard/shard_fixture.h"

namespace halfstep {
namespace coded_layers_test {

using peer::names;
using peer::Octets;
using peer::text_of;
using peer::TryClient;
using peer::TrySection;

constexpr uint32_t kKeys = 64;
constexpr uint32_t kLayers = 32;
constexpr uint32_t kLayerBytes = 64 * KiB;
constexpr uint32_t kBlockBytes = kLayers * kLayerBytes;
constexpr uint32_t kPatient = 3'600'000'000U;  // us: a sanitizer decodes slowly, and nothing here is late

// Counts what is read, and lets it go when the test says so.
class Gate final : public io::Engine {
 public:
  explicit Gate(std::unique_ptr<io::MemoryEngine> inner) : inner_(std::move(inner)) {}

  bool holds_reads = false;
  uint64_t read_bytes = 0;  // of those that went on
  std::deque<io::Request*> held;

  // The oldest of those that wait, as long as no more than so many bytes have gone on.
  void let_go(uint64_t read_bytes_max) {
    while (!held.empty() && read_bytes + held.front()->bytes <= read_bytes_max) {
      io::Request& request = *held.front();
      held.pop_front();
      read(request);
    }
  }

  void submit(io::Request& request) noexcept override {
    if (request.op != io::Op::Read) return inner_->submit(request);
    if (holds_reads) return held.push_back(&request);
    read(request);
  }
  void flush_submissions() noexcept override { inner_->flush_submissions(); }
  size_t poll() noexcept override { return inner_->poll(); }
  void wait() noexcept override { inner_->wait(); }
  int wake_descriptor() const noexcept override { return inner_->wake_descriptor(); }
  uint32_t in_flight() const noexcept override { return inner_->in_flight(); }
  uint64_t device_bytes(uint8_t device) const noexcept override { return inner_->device_bytes(device); }
  io::DiscardLimits discard_limits(uint8_t device) const noexcept override { return inner_->discard_limits(device); }
  const io::EngineFacts& facts() const noexcept override { return inner_->facts(); }
  const io::EngineCounters& counters() const noexcept override { return inner_->counters(); }

 private:
  void read(io::Request& request) {
    read_bytes += request.bytes;
    inner_->submit(request);
  }

  std::unique_ptr<io::MemoryEngine> inner_;
};

// bf16 values of both signs and of a few magnitudes, as a cache has them.
Octets kv_block(uint64_t seed) {
  Prng prng(seed);
  Octets out(kBlockBytes);
  for (size_t i = 0; i < out.size(); i += 2) {
    const auto low = static_cast<uint16_t>(prng.below(256));
    const auto exponent = static_cast<uint16_t>(124 - __builtin_ctzll(prng.next() | 1U << 12));
    const auto value = static_cast<uint16_t>(exponent << 7 | (low & 0x7F) | (low >> 7) << 15);
    std::memcpy(out.data() + i, &value, sizeof(value));
  }
  return out;
}

class CodedLayers : public shard::ShardFixture {
 protected:
  CodedLayers() {
    for (uint32_t i = 0; i < kKeys; ++i) blocks_.push_back(kv_block(i));
    geometry_ = {0, 16 * MiB, 16, 1, static_cast<uint32_t>(store::block_bytes_max_of(16 * MiB))};
    geometry_.device_bytes = 256 * MiB;
    while (!store::places_of(geometry_).valid()) geometry_.device_bytes += MiB;
    config_.get_credit_bytes_max = config_.connection_credit_bytes;
  }
  void SetUp() override {
    ShardFixture::SetUp();
    put_blocks();
    configure([](shard::Config&) {});  // so that they are on flash alone
  }
  uint64_t device_bytes() const override { return geometry_.device_bytes; }
  std::unique_ptr<io::Engine> make_engine(io::MemoryDevice& device) override {
    auto inner = std::make_unique<io::MemoryEngine>(io::MemoryConfig{}, std::vector<io::MemoryDevice*>{&device});
    auto gate = std::make_unique<Gate>(std::move(inner));
    gate_ = gate.get();
    return gate;
  }
  Fault open_store(io::Engine& engine, SlotPool& slots, std::unique_ptr<store::Store>* out) override {
    if (!formatted_) {
      if (Fault fault = store::Store::format(engine, arena(), clock(), geometry_); !fault.ok()) return fault;
      formatted_ = true;
    }
    const Fault fault = store::Store::open(engine, slots, clock(), {}, out);
    store_ = out->get();
    return fault;
  }

  std::unique_ptr<TryClient> connect_coded() const {
    return std::make_unique<TryClient>("unix:" + socket_, 1, 0, 0, 5, uint64_t{1} << compress::kBfx);
  }
  static wire::Layout layers() {
    wire::Layout layout;
    const wire::GroupShape shape{.part_count = kLayers, .size_count = 1, .part_bytes = {kLayerBytes}};
    EXPECT_TRUE(wire::Layout::make({{"model", "tiny"}, {"codec", "bfx"}, {"codec.0", "bf16/128"}}, {shape}, &layout).ok());
    return layout;
  }
  void put_blocks() {
    const auto client = connect_coded();
    const int handle = client->layout(layers());
    for (uint32_t i = 0; i < kKeys; i += 8) {
      std::vector<Octets> some(blocks_.begin() + i, blocks_.begin() + i + 8);
      std::vector<std::string> keys;
      for (uint32_t k = i; k < i + 8; ++k) keys.push_back("key-" + std::to_string(k));
      TrySection put(handle, keys);
      hs_batch batch = TryClient::batch(HS_OP_PUT, kPatient);
      batch.durability = HS_PERSIST;
      ASSERT_EQ(client->call(batch, put.into(some)).items_ok, 8U) << text_of(put.answers[0]);
    }
    stored_bytes_ = on_shard([&] { return shard_->counts().put_payload_bytes; });
    ASSERT_LT(stored_bytes_, uint64_t{kKeys} * kBlockBytes * 3 / 4) << "they are coded";
  }
  uint64_t read_bytes() {
    return on_shard([&] { return gate_->read_bytes; });
  }
  uint64_t part_reads() {
    return on_shard([&] { return store_->counters().part_reads; });
  }
  uint64_t failed_reads() {
    return on_shard([&] { return store_->counters().part_reads_failed + store_->counters().early_reads_failed; });
  }

  std::vector<Octets> blocks_;
  store::Geometry geometry_;
  uint64_t stored_bytes_ = 0;  // of all blocks, without trailers and padding
  Gate* gate_ = nullptr;
  store::Store* store_ = nullptr;

 private:
  bool formatted_ = false;
};

TEST_F(CodedLayers, ComeInRoundsAndTheFirstAfterAQuarterOfTheBytes) {
  const auto client = connect_coded();
  const int handle = client->layout(layers());
  ASSERT_TRUE(client->ready());
  const uint64_t before = read_bytes();
  const uint64_t quarter = before + stored_bytes_ / 4;
  on_shard([&] { gate_->holds_reads = true; });

  std::vector<Octets> back(kKeys, Octets(kBlockBytes));
  TrySection get(handle, names(kKeys));
  get.into(back);
  hs_batch batch = TryClient::batch(HS_OP_GET, kPatient);
  batch.order = HS_LAYER_MAJOR;
  batch.wants_progress = 1;
  ASSERT_NE(client->submit(batch, get), 0U) << client->why;
  hs_event event{};
  for (int tries = 0; event.steps_done == 0 && tries < 30'000; ++tries) {
    on_shard([&] { gate_->let_go(quarter); });
    (void)hs_queue_wait(client->queue, &event, 1, 1000);
  }
  ASSERT_GE(event.steps_done, 1U) << "a quarter of the bytes has the first layer of all blocks";
  ASSERT_EQ(event.kind, uint32_t{HS_EVENT_PROGRESS});
  for (uint32_t i = 0; i < kKeys; ++i) {
    ASSERT_EQ(std::memcmp(back[i].data(), blocks_[i].data(), kLayerBytes), 0) << i;
  }
  EXPECT_LE(read_bytes(), quarter);

  on_shard([&] {
    gate_->holds_reads = false;
    gate_->let_go(UINT64_MAX);
  });
  while (event.kind != HS_EVENT_DONE) event = client->wait();
  EXPECT_EQ(event.items_ok, kKeys) << text_of(get.answers[0]);
  EXPECT_EQ(back, blocks_);
  EXPECT_LE(read_bytes() - before, stored_bytes_ + kKeys * 64 * KiB);
  EXPECT_GE(read_bytes() - before, stored_bytes_);
  EXPECT_GE(part_reads(), kKeys * 4) << "in rounds";
  EXPECT_EQ(failed_reads(), 0U);
  EXPECT_EQ(client->facts().decode_failures + client->facts().checksum_failures, 0U);
}

TEST_F(CodedLayers, AloneCostTheirPagesAndThoseOfTheTrailer) {
  const auto client = connect_coded();
  const int handle = client->layout(layers());
  ASSERT_TRUE(client->ready());
  for (const uint32_t layer : {0U, 17U, kLayers - 1}) {
    const uint64_t before = read_bytes();
    const uint64_t sent_before = on_shard([&] { return shard_->counts().get_payload_bytes; });
    std::vector<Octets> back(kKeys, Octets(kLayerBytes));
    TrySection get(handle, names(kKeys));
    get.select({{layer, 1, 1}}).into(back);
    ASSERT_EQ(client->get(get, layer % 2 == 0 ? HS_KEY_MAJOR : HS_LAYER_MAJOR).items_ok, kKeys) << text_of(get.answers[0]);
    for (uint32_t i = 0; i < kKeys; ++i) {
      const std::byte* const wanted = blocks_[i].data() + uint64_t{layer} * kLayerBytes;
      ASSERT_EQ(std::memcmp(back[i].data(), wanted, kLayerBytes), 0) << i;
    }
    const uint64_t stored = on_shard([&] { return shard_->counts().get_payload_bytes; }) - sent_before;
    EXPECT_LT(stored, uint64_t{kKeys} * kLayerBytes * 3 / 4) << "it travels coded";
    // A layer's bytes lie in a page more than they fill, and begin within one; the trailer is one, and read once.
    EXPECT_LE(read_bytes() - before, stored + kKeys * (layer == 0 ? 3 : 2) * kPageBytes);
  }
  EXPECT_EQ(part_reads(), 3 * kKeys);
  EXPECT_EQ(failed_reads(), 0U);
  EXPECT_EQ(client->facts().decode_failures, 0U);
}

TEST_F(CodedLayers, OfFewBlocksComeAsTheyLandAndEachPageIsReadOnce) {
  constexpr uint32_t kFew = 4;  // which a connection's credit holds
  const auto client = connect_coded();
  const int handle = client->layout(layers());
  ASSERT_TRUE(client->ready());
  const uint64_t before = read_bytes();
  for (int round = 0; round < 2; ++round) {
    std::vector<Octets> back(kFew, Octets(kBlockBytes));
    TrySection get(handle, names(kFew));
    ASSERT_EQ(client->get(get.into(back), HS_LAYER_MAJOR).items_ok, kFew) << text_of(get.answers[0]);
    EXPECT_TRUE(std::equal(back.begin(), back.end(), blocks_.begin()));
  }
  EXPECT_LE(read_bytes() - before, stored_bytes_ * kFew / kKeys + kFew * 16 * KiB) << "and kept in memory";
  EXPECT_EQ(part_reads(), 0U);
  // One that comes with all of the others is told of once, at its end.
  EXPECT_GE(on_shard([&] { return store_->counters().early_reads; }), 1U);
  EXPECT_EQ(failed_reads(), 0U);
}

}  // namespace coded_layers_test
}  // namespace halfstep
