// Whose blocks are coded when: turns, priorities, and tickets that nobody wants any more.
#include "peer/encoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>

#include "peer/fake_daemon.h"
#include "peer/try_client.h"

namespace halfstep::peer {
namespace encoder_test {

constexpr uint32_t kBlockBytes = 16'384;

wire::Layout coded_layout() {
  wire::Layout layout;
  const wire::GroupShape shape{.part_count = 1, .size_count = 1, .part_bytes = {kBlockBytes}};
  EXPECT_TRUE(wire::Layout::make({{"model", "tiny"}, {"codec", "bfx"}, {"codec.0", "bf16"}}, {shape}, &layout).ok());
  return layout;
}

// bf16 values of two magnitudes: every block of them gets smaller.
Octets block_of(uint64_t seed) {
  Prng prng(seed);
  Octets out(kBlockBytes);
  for (size_t i = 0; i < out.size(); i += 2) {
    const auto value = static_cast<uint16_t>((120 - prng.below(2)) << 7 | prng.below(128));
    std::memcpy(out.data() + i, &value, sizeof(value));
  }
  return out;
}

class NoHost final : public TicketHost {
 public:
  void recycle(Ticket&) override {}
  void on_payload_released(Ticket&) override {}
  void on_placement_over(Ticket&) override {}
};

// A put of so many blocks, as a client has it when it is to be coded.
struct Put {
  Put(uint32_t items, uint8_t priority) : ticket(host, nullptr), block(block_of(items)) {
    ticket.operation = HS_OP_PUT;
    ticket.batch.priority = priority;
    ticket.section_count = 1;
    ticket.sections.resize(1);
    Section& section = ticket.sections[0];
    const wire::Layout layout = coded_layout();
    section.shape = layout.groups()[0];
    section.coding = std::make_shared<const LayoutCoding>(layout);
    section.key_count = section.item_count = items;
    section.selection.set_all();
    const std::vector<hs_iovec> iovecs(items, {block.data(), block.size()});
    const std::vector<uint32_t> block_bytes(items, kBlockBytes);
    hs_section described{};
    described.target_kind = HS_TARGET_IOVEC;
    described.iovecs = iovecs.data();
    described.block_bytes = block_bytes.data();
    EXPECT_TRUE(section.target.set(described, items, section.shape, section.selection).ok());
    section.offers.resize(items);
    for (wire::Offer& offer : section.offers) offer.block_bytes = kBlockBytes;
    ticket.prepare();
  }
  uint32_t coded() const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < ticket.sections[0].item_count; ++i) count += ticket.sections[0].coded(i) != nullptr ? 1 : 0;
    return count;
  }
  NoHost host;
  Ticket ticket;
  Octets block;
};

// An encoder with one thread, which a first ticket holds until the test lets it go.
class EncoderTurns : public ::testing::Test {
 protected:
  void SetUp() override {
    encoder_.encode(first_.ticket);
    held_.get_future().wait();
  }
  void TearDown() override {
    encoder_.stop();
    for (Put* put : {&first_, &large_, &small_, &urgent_}) encoder_.take_back(put->ticket);
  }
  void on_done(Ticket& ticket) {
    if (&ticket == &first_.ticket) {
      held_.set_value();
      let_go_.get_future().wait();
      return;
    }
    const std::lock_guard lock(mutex_);
    done_.push_back(&ticket);
    changed_.notify_all();
  }
  std::vector<Ticket*> done(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return done_.size() >= count; }));
    return done_;
  }

  Put first_{1, 0};
  Put large_{24, 1};
  Put small_{2, 1};
  Put urgent_{8, 0};
  std::promise<void> held_;
  std::promise<void> let_go_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Ticket*> done_;
  Encoder encoder_{[this](Ticket& ticket, uint32_t) { on_done(ticket); }, 1};
};

TEST_F(EncoderTurns, ASmallPutIsNotBehindALargeOneAndAnUrgentOneBehindNobody) {
  encoder_.encode(large_.ticket);
  encoder_.encode(small_.ticket);
  encoder_.encode(urgent_.ticket);
  let_go_.set_value();
  EXPECT_EQ(done(3), (std::vector<Ticket*>{&urgent_.ticket, &small_.ticket, &large_.ticket}));
  EXPECT_EQ(large_.coded(), 24U);
  EXPECT_EQ(small_.coded(), 2U);
  EXPECT_EQ(urgent_.coded(), 8U);
}

TEST_F(EncoderTurns, AnAbandonedPutIsDoneAtOnceHoweverMuchIsBeforeIt) {
  encoder_.encode(urgent_.ticket);
  encoder_.encode(large_.ticket);
  encoder_.abandon(large_.ticket);
  EXPECT_EQ(done(1), std::vector<Ticket*>{&large_.ticket}) << "while the only thread has not come to anything yet";
  EXPECT_EQ(large_.coded(), 0U);
  encoder_.encode(small_.ticket);
  let_go_.set_value();
  EXPECT_EQ(done(3), (std::vector<Ticket*>{&large_.ticket, &urgent_.ticket, &small_.ticket}));
  encoder_.abandon(small_.ticket);  // too late: it is done
  EXPECT_EQ(done(3).size(), 3U);
}

// The items of a put in pieces of so many.
void cut(Ticket& ticket, uint32_t items) {
  Ticket::Encoding& encoding = ticket.encoding;
  const auto all = static_cast<uint32_t>(ticket.items.size());
  encoding.piece_count = (all + items - 1) / items;
  encoding.pieces = std::make_unique<Ticket::Encoding::Piece[]>(encoding.piece_count);
  for (uint32_t i = 0; i < all; ++i) {
    encoding.piece_of.push_back(i / items);
    encoding.pieces[i / items].left.fetch_add(1);
  }
}

TEST(EncoderPieces, AreDoneOneByOneWhileTheRestIsToBeCoded) {
  Put put(8, 0);
  cut(put.ticket, 3);
  std::vector<uint32_t> pieces;
  std::vector<uint32_t> coded;  // by then
  std::promise<void> done;
  Encoder encoder(
      [&](Ticket&, uint32_t piece) {
        pieces.push_back(piece);
        coded.push_back(put.coded());
        if (pieces.size() == 3) done.set_value();
      },
      1);
  encoder.encode(put.ticket);
  done.get_future().wait();
  EXPECT_EQ(pieces, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(coded, (std::vector<uint32_t>{3, 6, 8}));
  encoder.stop();
  encoder.take_back(put.ticket);
}

TEST(EncoderPieces, AreEachDoneOnceWhenThePutIsAbandonedOrNothingCodesIt) {
  for (const bool stopped : {false, true}) {
    SCOPED_TRACE(stopped);
    Put put(8, 0);
    cut(put.ticket, 3);
    std::mutex mutex;
    std::vector<uint32_t> pieces;
    std::promise<void> first;
    std::promise<void> abandoned;
    std::promise<void> last;
    Encoder encoder(
        [&](Ticket&, uint32_t piece) {
          if (piece == 0 && !stopped) {
            first.set_value();
            abandoned.get_future().wait();
          }
          const std::lock_guard lock(mutex);
          pieces.push_back(piece);
          if (pieces.size() == 3) last.set_value();
        },
        1);
    if (stopped) encoder.stop();
    encoder.encode(put.ticket);
    if (!stopped) {
      first.get_future().wait();
      encoder.abandon(put.ticket);
      abandoned.set_value();
    }
    last.get_future().wait();
    std::sort(pieces.begin(), pieces.end());
    EXPECT_EQ(pieces, (std::vector<uint32_t>{0, 1, 2}));
    EXPECT_EQ(put.coded(), stopped ? 0U : 3U);
    encoder.stop();
    encoder.take_back(put.ticket);
  }
}

TEST_F(EncoderTurns, WhatWaitsWhenItStopsIsDoneAndWhatComesLaterIsPlain) {
  encoder_.encode(large_.ticket);
  encoder_.encode(small_.ticket);
  std::thread stopper([this] { encoder_.stop(); });
  let_go_.set_value();
  stopper.join();
  EXPECT_EQ(done(2).size(), 2U);
  encoder_.encode(urgent_.ticket);
  EXPECT_EQ(done(3).size(), 3U);
  EXPECT_EQ(urgent_.coded(), 0U);
}

TEST(LossyParts, HaveTheChecksumOfWhatDecodingGivesAndAreExactWhereTheyAreRefused) {
  const wire::GroupShape shape{.part_count = 1, .size_count = 1, .part_bytes = {kBlockBytes}};
  for (const bool refused : {false, true}) {
    SCOPED_TRACE(refused);
    wire::Layout layout;
    ASSERT_TRUE(wire::Layout::make({{"codec", "ubq"}, {"codec.0", "bf16/64/0.1"}}, {shape}, &layout).ok());
    Put put(1, 0);
    if (refused) put.block[1] = std::byte{0x7F}, put.block[0] = std::byte{0x80};  // infinite
    Section& section = put.ticket.sections[0];
    section.coding = std::make_shared<const LayoutCoding>(layout);
    std::promise<void> done;
    Encoder encoder([&done](Ticket&, uint32_t) { done.set_value(); }, 1);
    encoder.encode(put.ticket);
    done.get_future().wait();
    ASSERT_EQ(put.coded(), 1U);
    const CodedBlock& block = section.blocks[0];
    const wire::PartRecord& record = block.parts[0];
    EXPECT_EQ(record.codec, refused ? compress::kBfx : compress::kUbq);
    Octets back(kBlockBytes);
    compress::Scratch scratch;
    const ConstBytes unit(block.staged.memory.get(), record.stored_bytes);
    ASSERT_TRUE(compress::find_codec(uint32_t{record.codec})->decode(unit, scratch, back).ok());
    EXPECT_EQ(record.raw_crc, crc32c(back));
    EXPECT_EQ(back == put.block, refused) << "what is lossy is not what was put, and what is exact is";
    encoder.stop();
    encoder.take_back(put.ticket);
  }
}

TEST(LayoutCodings, OfALossyCodecAreRawWhereTheClientHasNoExactOne) {
  const wire::GroupShape shape{.part_count = 1, .size_count = 1, .part_bytes = {kBlockBytes}};
  wire::Layout layout;
  ASSERT_TRUE(
      wire::Layout::make({{"codec", "ubq"}, {"codec.0", "bf16/64/0.1,fp16/32/0.25,bf16/64,bf16/64/x"}}, {shape}, &layout).ok());
  constexpr uint64_t kLossy = uint64_t{1} << compress::kUbq;
  EXPECT_EQ(LayoutCoding(layout, kLossy).exact(), nullptr);
  EXPECT_FALSE(LayoutCoding(layout, uint64_t{1} << compress::kBfx).coded());
  const LayoutCoding coding(layout);
  EXPECT_EQ(coding.exact(), compress::find_codec("bfx"));
  EXPECT_FALSE(LayoutCoding(coded_layout()).lossy());
  const bool allowed[] = {true, true, false, false};
  const wire::Component first{0};
  for (uint32_t part = 0; part < 4; ++part) EXPECT_EQ(coding.allows(compress::kUbq, first, part), allowed[part]) << part;
  EXPECT_FALSE(coding.allows(compress::kBfx, first, 0));
  const float steps[] = {0.1F, 0.25F, 0, 0};
  for (uint32_t part = 0; part < 4; ++part) EXPECT_EQ(coding.part(first, part, 0).shape.step, steps[part]) << part;
  EXPECT_EQ(coding.part(first, 1, 0).shape.row_values, 32U);
}

// What the first parts of blocks are coded by: a letter each, and a step.
std::string codings_of(const LayoutCoding& coding, wire::Component component, uint32_t parts, uint32_t depth) {
  std::string out;
  for (uint32_t p = 0; p < parts; ++p) {
    const PartCoding part = coding.part(component, p, depth);
    out += part.codec == nullptr ? "raw" : std::string(part.codec->name);
    if (part.codec != nullptr && part.codec->lossy) out += std::to_string(std::lround(part.shape.step * 100));
    out += " ";
  }
  return out;
}

wire::Layout layout_coded_by(std::string list, std::vector<std::pair<std::string, std::string>> more = {}) {
  const wire::GroupShape shape{.part_count = 4, .size_count = 1, .part_bytes = {4096}};
  wire::Layout layout;
  more.insert(more.end(), {{"codec", "ubq"}, {"codec.0", std::move(list)}});
  EXPECT_TRUE(wire::Layout::make(std::move(more), {shape}, &layout).ok());
  return layout;
}

TEST(LayoutCodings, RepeatPartsAndListsOfThem) {
  const std::pair<const char*, const char*> lists[] = {
      {"bf16/64/0.1", "ubq10 ubq10 ubq10 ubq10 ubq10 ubq10 "},
      {"2*bf16/64/0.1,raw,bf16", "ubq10 ubq10 raw bfx ubq10 ubq10 "},
      {"1*(2*raw,2*(bf16/64/0.5,raw))", "raw raw ubq50 raw ubq50 raw "},
      {"zstd,raw,bf16,bf16/64/0.1", "zstd raw bfx ubq10 zstd raw "},
      {"(bf16/64/0.2,(raw))", "ubq20 raw ubq20 raw ubq20 raw "},
  };
  for (const auto& [list, told] : lists) {
    EXPECT_EQ(codings_of(LayoutCoding(layout_coded_by(list)), {0}, 6, 0), told) << list;
  }
}

TEST(LayoutCodings, OfNoListAreExactAndUntold) {
  const char* lists[] = {"(bf16/64/0.1",    "bf16/64/0.1)",    "2*",     "0*bf16/64/0.1",   "bf16/64/0.1,(",
                         "((((((raw))))))", "65536*65536*raw", "2(raw)", "99999999999*raw", "60000*(2*bf16/64/0.1)"};
  for (const char* list : lists) {
    const LayoutCoding coding(layout_coded_by(list));
    const PartCoding part = coding.part({0}, 0, 0);
    if (part.codec != nullptr) {
      EXPECT_FALSE(part.codec->lossy) << list;
    }
    EXPECT_EQ(part.shape.row_values, 0U) << list;
    EXPECT_FALSE(coding.allows(compress::kUbq, {0}, 0)) << list;
  }
}

TEST(LayoutCodings, OfALaterLayerCellAreThoseOfItsLayers) {
  // Two head cells of four parts each; the second layer cell has other steps.
  const LayoutCoding coding(layout_coded_by("4*bf16/64/0.1,2*bf16/64/0.2,2*raw", {{"codec.0.head_cells", "2"}}));
  const char* told[] = {"ubq10 ubq10 ubq10 ubq10 ", "ubq10 ubq10 ubq10 ubq10 ", "ubq20 ubq20 raw raw ", "ubq20 ubq20 raw raw "};
  for (uint32_t cell = 0; cell < 4; ++cell) {
    const auto component = wire::Component::of(0, 0, cell);
    EXPECT_EQ(codings_of(coding, component, 4, 0), told[cell]) << cell;
    EXPECT_EQ(coding.allows(compress::kUbq, component, 3), cell < 2) << cell;
  }
}

TEST(LayoutCodings, OfTheFirstBlocksOfASequenceAreExact) {
  const LayoutCoding coding(layout_coded_by("bf16/64/0.1,raw", {{"codec.exact_blocks", "2"}}));
  EXPECT_EQ(codings_of(coding, {0}, 2, 0), "bfx raw ");
  EXPECT_EQ(codings_of(coding, {0}, 2, 1), "bfx raw ");
  EXPECT_EQ(codings_of(coding, {0}, 2, 2), "ubq10 raw ");
}

TEST(LayoutCodings, OfSiblingVariantsAreExact) {
  const LayoutCoding coding(layout_coded_by("bf16/64/0.1,raw"));
  const auto sibling = wire::Component::of(0, 1, 0);
  EXPECT_EQ(codings_of(coding, {0}, 2, 7), "ubq10 raw ");
  EXPECT_EQ(codings_of(coding, sibling, 2, 7), "bfx raw ");
  EXPECT_TRUE(coding.allows(compress::kUbq, {0}, 0));
  EXPECT_FALSE(coding.allows(compress::kUbq, sibling, 0)) << "nor is a lossy one taken for it";
}

TEST(EncodedBlocks, ThatBeginASequenceAreExact) {
  const wire::GroupShape shape{.part_count = 1, .size_count = 1, .part_bytes = {kBlockBytes}};
  wire::Layout layout;
  ASSERT_TRUE(
      wire::Layout::make({{"codec", "ubq"}, {"codec.0", "bf16/64/0.1"}, {"codec.exact_blocks", "1"}}, {shape}, &layout).ok());
  Put put(2, 0);
  Section& section = put.ticket.sections[0];
  section.coding = std::make_shared<const LayoutCoding>(layout);
  section.offers[1].depth = 1;
  std::promise<void> done;
  Encoder encoder([&done](Ticket&, uint32_t) { done.set_value(); }, 1);
  encoder.encode(put.ticket);
  done.get_future().wait();
  ASSERT_EQ(put.coded(), 2U);
  EXPECT_EQ(section.blocks[0].parts[0].codec, compress::kBfx);
  EXPECT_EQ(section.blocks[1].parts[0].codec, compress::kUbq);
  encoder.stop();
  encoder.take_back(put.ticket);
}

// A put through an encoder of its own; what became of its blocks.
struct Coded {
  Coded(uint32_t items, CodingMode mode, Encoder::Path path)
      : put(items, 0), encoder([this](Ticket&, uint32_t) { done.set_value(); }, 1, mode, std::move(path)) {
    encoder.encode(put.ticket);
    done.get_future().wait();
  }
  ~Coded() {
    encoder.stop();
    encoder.take_back(put.ticket);
  }
  uint64_t blocks(CodingReason reason) const { return encoder.facts().blocks[static_cast<size_t>(reason)]; }
  Put put;
  std::promise<void> done;
  Encoder encoder;
};

TEST(CodingModes, NeverCodesNothingAndSaysSo) {
  const Coded never(5, CodingMode::Never, {});
  EXPECT_EQ(never.put.coded(), 0U);
  EXPECT_EQ(never.blocks(CodingReason::Never), 5U);
  EXPECT_EQ(never.encoder.facts().last.encode_bytes_per_s, 0U);
}

TEST(CodingModes, AutoCodesWhatIsUnmeasuredAndThenWhatTheMeasurementsSay) {
  constexpr uint64_t kSlow = 1000;  // bytes a second: slower than any processor
  const Coded slow(9, CodingMode::Auto, [] { return CodingInputs{.link_bytes_per_s = kSlow}; });
  EXPECT_EQ(slow.put.coded(), 9U);
  EXPECT_GT(slow.blocks(CodingReason::Unmeasured), 0U);
  EXPECT_EQ(slow.blocks(CodingReason::Unmeasured) + slow.blocks(CodingReason::Faster), 9U);

  constexpr uint64_t kFast = uint64_t{1} << 60;  // faster than any
  const Coded fast(200, CodingMode::Auto, [] { return CodingInputs{.link_bytes_per_s = kFast}; });
  const uint64_t raw = fast.blocks(CodingReason::SlowEncode) + fast.blocks(CodingReason::SlowDecode);
  EXPECT_GT(raw, 150U);
  EXPECT_GT(fast.blocks(CodingReason::Probe), 0U) << "so that it is still measured";
  EXPECT_EQ(raw + fast.put.coded(), 200U);
  const CodingInputs last = fast.encoder.facts().last;
  EXPECT_GT(last.encode_bytes_per_s, 0U);
  EXPECT_GT(last.decode_bytes_per_s, 0U);
  EXPECT_EQ(last.link_bytes_per_s, kFast);
  EXPECT_GT(last.ratio_milli, 1000U);
}

TEST(CodingModes, WithoutAPathEverythingIsCoded) {
  const Coded untold(3, CodingMode::Auto, {});
  EXPECT_EQ(untold.blocks(CodingReason::Unmeasured), 3U);
  EXPECT_EQ(untold.put.coded(), 3U);
}

TEST(Rates, AreOfLateAndKnowNothingAtFirst) {
  Rate rate;
  EXPECT_EQ(rate.bytes_per_s(), 0U);
  rate.add(100, 0);
  EXPECT_EQ(rate.bytes_per_s(), 0U) << "no time has passed";
  for (int i = 0; i < 100; ++i) rate.add(1'000'000, 1'000'000);
  for (int i = 0; i < 10; ++i) rate.add(4'000'000, 1'000'000);
  EXPECT_NEAR(static_cast<double>(rate.bytes_per_s()), 4e6, 1e5);
  PeakRate peak;
  peak.add(1000, 5'000);
  EXPECT_EQ(peak.bytes_per_s(), 0U) << "no window is over";
  peak.add(1000, 5'000 + PeakRate::kWindowUs);
  EXPECT_EQ(peak.bytes_per_s(), 200'000U);
  peak.add(0, 5'000 + 2 * PeakRate::kWindowUs);
  EXPECT_EQ(peak.bytes_per_s(), 200'000U - 200'000U / 64) << "idle time makes a link no slower at once";
}

uint32_t encoder_threads() {
  uint32_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    count += name == "halfstep-enc" ? 1 : 0;
  }
  return count;
}

TEST(EncoderOfAClient, CodesNothingWhileNoDaemonIsThere) {
  auto daemon = std::make_unique<FakeDaemon>();
  const std::string address = daemon->address();
  daemon->stop();
  TryClient client(address, 1, 0, 0, 5, compress::kCodecs);
  std::vector<Octets> blocks(8, block_of(1));
  TrySection put(client.layout(coded_layout()), names(8));
  hs_batch batch = TryClient::batch(HS_OP_PUT, 1000);
  EXPECT_EQ(client.call(batch, put.into(blocks)).items_ok, 0U);
  EXPECT_TRUE(put.all("unavailable(no_connection)")) << text_of(put.answers[0]);
  EXPECT_EQ(encoder_threads(), 0U);
}

TEST(EncoderOfAClient, OffersALargePutInRequestsOfEightMegabytes) {
  constexpr uint32_t kLarge = 1 << 20;
  const wire::GroupShape shape{.part_count = 16, .size_count = 1, .part_bytes = {kLarge / 16}};
  wire::Layout layout;
  ASSERT_TRUE(wire::Layout::make({{"codec", "bfx"}, {"codec.0", "bf16"}}, {shape}, &layout).ok());
  for (const uint64_t codecs : {compress::kCodecs, uint64_t{0}}) {
    SCOPED_TRACE(codecs);
    FakeDaemon daemon;
    std::atomic<uint32_t> puts{0};
    daemon.hook = [&](FakeDaemon::Connection&, const FakeDaemon::Frame& frame) {
      puts += frame.opcode() == wire::Opcode::Put ? 1 : 0;
      return false;
    };
    TryClient client(daemon.address(), 1, 0, 0, 5, codecs);
    Octets block;
    for (uint64_t i = 0; i < kLarge / kBlockBytes; ++i) {
      const Octets some = block_of(i);
      block.insert(block.end(), some.begin(), some.end());
    }
    std::vector<Octets> blocks(20, block);
    TrySection put(client.layout(layout), names(20));
    EXPECT_EQ(client.put(put.into(blocks)).items_ok, 20U) << text_of(put.answers[0]);
    EXPECT_EQ(puts, codecs != 0 ? 3U : 1U);
    std::vector<Octets> back(20, Octets(kLarge));
    TrySection get(client.layout(layout), names(20));
    EXPECT_EQ(client.get(get.into(back)).items_ok, 20U) << text_of(get.answers[0]);
    EXPECT_EQ(back, blocks);
  }
}

// The daemon looks, when it hears of the first request, how many blocks are coded. Where the machine is busy all may be by
// then: once in many rounds is enough, and a client that waits for all of them never gets there.
TEST(EncoderOfAClient, OffersTheFirstBlocksWhileOthersAreToBeCoded) {
  constexpr uint32_t kLarge = 1 << 20;
  constexpr uint32_t kBlocks = 24;
  const wire::GroupShape shape{.part_count = 16, .size_count = 1, .part_bytes = {kLarge / 16}};
  wire::Layout layout;
  ASSERT_TRUE(wire::Layout::make({{"codec", "bfx"}, {"codec.0", "bf16"}}, {shape}, &layout).ok());
  Octets block;
  for (uint64_t i = 0; i < kLarge / kBlockBytes; ++i) {
    const Octets some = block_of(i);
    block.insert(block.end(), some.begin(), some.end());
  }
  std::vector<Octets> blocks(kBlocks, block);
  bool early = false;
  for (int round = 0; round < 100 && !early; ++round) {
    std::atomic<TryClient*> asked{nullptr};
    std::atomic<uint64_t> coded{0};
    FakeDaemon daemon;
    daemon.hook = [&](FakeDaemon::Connection&, const FakeDaemon::Frame& frame) {
      if (frame.opcode() != wire::Opcode::Put || coded != 0) return false;
      for (const uint64_t count : asked.load()->facts().coding_blocks) coded += count;
      return false;
    };
    TryClient client(daemon.address(), 1, 0, 0, 5, compress::kCodecs);
    asked = &client;
    TrySection put(client.layout(layout), names(kBlocks));
    ASSERT_EQ(client.put(put.into(blocks)).items_ok, kBlocks) << text_of(put.answers[0]);
    ASSERT_GE(coded, 8U) << "the first request's own";
    early = coded < kBlocks;
  }
  EXPECT_TRUE(early) << "no request was there before the last block was coded";
}

TEST(EncoderOfAClient, CodesNothingForADaemonThatHasGone) {
  FakeDaemon daemon;
  TryClient client(daemon.address(), 1, 0, 0, 5, compress::kCodecs);
  ASSERT_TRUE(client.ready());
  daemon.stop();
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 0; }));
  std::vector<Octets> blocks(8, block_of(1));
  TrySection put(client.layout(coded_layout()), names(8));
  EXPECT_EQ(client.put(put.into(blocks)).items_ok, 0U);
  EXPECT_TRUE(put.all("unavailable(no_connection)")) << text_of(put.answers[0]);
  EXPECT_EQ(encoder_threads(), 0U);
}

}  // namespace encoder_test
}  // namespace halfstep::peer
