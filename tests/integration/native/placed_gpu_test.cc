// Gets that a daemon writes straight into the memory of a GPU, on tables of verbs and of CUDA whose memory is the host's: what
// is asked of both and in which order, what the answers say of it, and that bytes go through the client's memory where it
// cannot be.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "placement_fixture.h"

namespace halfstep {
namespace placed_gpu_test {
namespace {

constexpr wire::GroupShape kLongParts{.part_count = 2, .size_count = 1, .part_bytes = {700'000}};

class PlacedInGpu : public PlacementFixture, public testing::WithParamInterface<Keys> {
 protected:
  PlacedInGpu() : PlacementFixture(with(GetParam())) {
    cuda_.set_attribute(gpu::kAttributeDmaBuf, 1);
    cuda_.set_attribute(gpu::kAttributeWritesOrdering, gpu::kWritesOrderedForOwner);
  }
  void SetUp() override {
    gpu::replace_system_cuda(&cuda_);
    PlacementFixture::SetUp();
  }
  void TearDown() override {
    verbs_.delay(false);
    client_ = nullptr;
    PlacementFixture::TearDown();
    gpu::replace_system_cuda(nullptr);
    EXPECT_EQ(cuda_.live(), 0U);
    EXPECT_EQ(cuda_.faults(), std::vector<std::string>{});
  }
  // Connected, with these blocks stored.
  void begin(const wire::GroupShape& shape = peer::kOpaque) {
    client_ = std::make_unique<TryClient>(address());
    handle_ = client_->layout(make_layout({shape}));
    ASSERT_TRUE(client_->ready()) << client_->facts().last_error;
    put(*client_, handle_, blocks_);
  }
  void expect_all_in(const Ground& ground) const {
    for (size_t i = 0; i < blocks_.size(); ++i) EXPECT_TRUE(ground.has(i, blocks_[i])) << i;
    EXPECT_TRUE(ground.guards_stand(blocks_));
  }
  // Of the client's own copies.
  size_t copies() const { return cuda_.count("cuMemcpyHtoDAsync") + cuda_.count("cuLaunchKernel"); }
  static size_t dma_bufs() {
    size_t open = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      open += std::filesystem::read_symlink(entry.path(), error).string().find("fake dma-buf") != std::string::npos ? 1 : 0;
    }
    return open;
  }

  gpu::FakeCuda cuda_;
  std::unique_ptr<TryClient> client_;
  int handle_ = -1;
  std::vector<Octets> blocks_ = sizes(20, 100'000, 12);
};

TEST_P(PlacedInGpu, BlocksAreWrittenThereAndTheAnswerSaysWhoCheckedThem) {
  begin();
  Ground ground(*client_, blocks_, &cuda_);
  for (int round = 0; round < 3; ++round) {
    TrySection get(handle_, names(20));
    std::vector<uint32_t> unchecked(20, 77);
    get.section.unchecked = unchecked.data();
    EXPECT_EQ(client_->get(ground.into(get, blocks_)).items_ok, 20U) << text_of(get.answers[0]);
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(unchecked[i], (blocks_[i].size() + wire::kOpaquePartBytes - 1) / wire::kOpaquePartBytes) << i;
    }
  }
  expect_all_in(ground);
  EXPECT_EQ(copies(), 0U);
  EXPECT_EQ(cuda_.count("cuFlushGPUDirectRDMAWrites"), 0U) << "it orders them by itself";
  const hs_client_facts facts = client_->facts();
  EXPECT_EQ(facts.gpu_placed_bytes, 3 * bytes_of(blocks_));
  EXPECT_EQ(facts.placed_bytes, 0U) << "which says that they were verified";
  EXPECT_STREQ(facts.placement, "");
  EXPECT_EQ(verbs_.count("reg_dmabuf_mr"), 1U);
  EXPECT_EQ(verbs_.count("bind"), 0U) << "no window can be bound to it";
  EXPECT_EQ(dma_bufs(), 0U) << "the card has it";
  const uint64_t before = verbs_.count("dereg_mr");
  hs_region_close(std::exchange(ground.region, nullptr));
  EXPECT_EQ(verbs_.count("dereg_mr"), before + 1) << "before the memory may go";
}

// Exported from a page's start, and known to peers by its own address; nobody may read it.
TEST_P(PlacedInGpu, TheCardGetsNoMoreThanItNeeds) {
  begin();
  Ground ground(*client_, blocks_, &cuda_);
  (void)verbs_.take_calls();
  TrySection get(handle_, names(20));
  EXPECT_EQ(client_->get(ground.into(get, blocks_)).items_ok, 20U);
  const auto at = reinterpret_cast<uint64_t>(ground.memory.data());
  const std::string registered = "reg_dmabuf_mr " + std::to_string(ground.memory.size()) + " at " + std::to_string(at % 4096) +
                                 " " + std::to_string(rdma::abi::kAccessLocalWrite | rdma::abi::kAccessRemoteWrite);
  const std::vector<std::string> calls = verbs_.take_calls();
  EXPECT_NE(std::find(calls.begin(), calls.end(), registered), calls.end()) << registered;
  const uint64_t pages = (at + ground.memory.size() + 4095) / 4096 - at / 4096;
  EXPECT_EQ(cuda_.count("cuMemGetHandleForAddressRange " + std::to_string(pages * 4096)), 1U);
}

TEST_P(PlacedInGpu, ADeviceThatDoesNotOrderThemIsFlushedBeforeTheAnswer) {
  cuda_.set_attribute(gpu::kAttributeWritesOrdering, 0);
  cuda_.set_attribute(gpu::kAttributeFlushOptions, gpu::kFlushByHost);
  begin();
  Ground ground(*client_, blocks_, &cuda_);
  TrySection get(handle_, names(20));
  EXPECT_EQ(client_->get(ground.into(get, blocks_)).items_ok, 20U);
  expect_all_in(ground);
  EXPECT_GE(cuda_.count("cuFlushGPUDirectRDMAWrites 0 100"), 1U);
  cuda_.fail_next("cuFlushGPUDirectRDMAWrites", gpu::FakeCuda::kIllegalAddress, 0, 1'000'000);
  TrySection again(handle_, names(20));
  EXPECT_EQ(client_->get(ground.into(again, blocks_)).items_ok, 0U);
  EXPECT_TRUE(again.all("unavailable(copy)")) << text_of(again.answers[0]);
  EXPECT_STREQ(client_->facts().gpu_error, "cuda:0: cuFlushGPUDirectRDMAWrites: FAKE_ERROR_700");
}

// Of several regions of a batch the card may have any: the first is the host's here, the second could not be handed to it.
TEST_P(PlacedInGpu, TheFlushIsOfWhicheverRegionTheCardHas) {
  cuda_.set_attribute(gpu::kAttributeWritesOrdering, 0);
  cuda_.set_attribute(gpu::kAttributeFlushOptions, gpu::kFlushByHost);
  begin();
  Ground on_host(*client_, blocks_);
  Ground copied(*client_, blocks_, &cuda_);
  Ground placed(*client_, blocks_, &cuda_);
  cuda_.fail_next("cuMemGetHandleForAddressRange", gpu::kNotSupported);
  const auto get_all = [&](const char* placed_ones) {
    std::array sections{TrySection(handle_, names(20)), TrySection(handle_, names(20)), TrySection(handle_, names(20))};
    const hs_section all[] = {on_host.into(sections[0], blocks_).section, copied.into(sections[1], blocks_).section,
                              placed.into(sections[2], blocks_).section};
    hs_batch batch = TryClient::batch(HS_OP_GET);
    batch.sections = all;
    batch.section_count = 3;
    (void)client_->call(batch);
    for (const size_t i : {0, 1}) EXPECT_TRUE(sections[i].all("ok(none)")) << i << ": " << text_of(sections[i].answers[0]);
    EXPECT_TRUE(sections[2].all(placed_ones)) << text_of(sections[2].answers[0]);
  };
  get_all("ok(none)");
  for (const Ground* ground : {&on_host, &copied, &placed}) expect_all_in(*ground);
  EXPECT_EQ(client_->facts().gpu_placed_bytes, bytes_of(blocks_)) << "of one region";
  EXPECT_GE(cuda_.count("cuFlushGPUDirectRDMAWrites 0 100"), 1U);
  cuda_.fail_next("cuFlushGPUDirectRDMAWrites", gpu::FakeCuda::kIllegalAddress, 0, 1'000'000);
  get_all("unavailable(copy)");
}

TEST_P(PlacedInGpu, PartsThatComeInPiecesAndRowsOfATemplateAreWrittenThere) {
  blocks_.clear();
  for (size_t i = 0; i < 3; ++i) blocks_.push_back(random_octets(1'400'000, i));
  begin(kLongParts);
  constexpr size_t kRows = 4;
  Octets pool(kRows * 1'400'000 + kGuardBytes, kGuard);
  cuda_.add_memory(pool.data(), pool.size());
  hs_region* region = nullptr;
  ASSERT_EQ(hs_region_open(client_->client, pool.data(), pool.size(), 1, &region, nullptr, 0), 0);
  std::vector<hs_part_descriptor> parts;
  for (uint32_t p = 0; p < 2; ++p) {
    parts.push_back({.base = pool.data(),
                     .base_bytes = pool.size(),
                     .offset = p * kRows * 700'000,
                     .row_stride = 700'000,
                     .inner_count = 7,
                     .inner_bytes = 100'000,
                     .inner_stride = 100'000});
  }
  const std::vector<int64_t> rows{3, 0, 2};
  TrySection get(handle_, names(3));
  std::vector<uint32_t> unchecked(3);
  get.section.unchecked = unchecked.data();
  get.section.cuda_device = 1;
  get.section.target_kind = HS_TARGET_ROWS;
  get.section.parts = parts.data();
  get.section.part_descriptor_count = 2;
  get.section.rows = rows.data();
  EXPECT_EQ(client_->get(get, HS_LAYER_MAJOR).items_ok, 3U) << text_of(get.answers[0]);
  Octets expected(pool.size(), kGuard);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t p = 0; p < 2; ++p) {
      std::copy_n(blocks_[i].begin() + static_cast<ptrdiff_t>(p * 700'000), 700'000,
                  expected.begin() + static_cast<ptrdiff_t>((p * kRows + static_cast<size_t>(rows[i])) * 700'000));
    }
  }
  EXPECT_TRUE(pool == expected);
  EXPECT_EQ(unchecked, std::vector<uint32_t>(3, 2));
  EXPECT_EQ(copies(), 0U);
  hs_region_close(region);
}

TEST_P(PlacedInGpu, AHostsRegionBesideItIsVerifiedAsEver) {
  begin();
  Ground on_gpu(*client_, blocks_, &cuda_);
  Ground on_host(*client_, blocks_);
  TrySection one(handle_, names(20)), other(handle_, names(20));
  std::vector<uint32_t> unchecked(40, 77);
  one.section.unchecked = unchecked.data();
  other.section.unchecked = unchecked.data() + 20;
  const hs_section sections[] = {on_gpu.into(one, blocks_).section, on_host.into(other, blocks_).section};
  hs_batch batch = TryClient::batch(HS_OP_GET);
  batch.sections = sections;
  batch.section_count = 2;
  EXPECT_EQ(client_->call(batch).items_ok, 40U);
  expect_all_in(on_gpu);
  expect_all_in(on_host);
  EXPECT_EQ(client_->facts().gpu_placed_bytes, bytes_of(blocks_));
  EXPECT_EQ(client_->facts().placed_bytes, bytes_of(blocks_));
  EXPECT_EQ(verbs_.count("bind"), GetParam() == Keys::OfWindows ? 1U : 0U);
  for (size_t i = 0; i < 20; ++i) EXPECT_TRUE(unchecked[i] > 0 && unchecked[20 + i] == 0) << i;
}

// The daemon's writes would be too many for its first piece, and not for its last one; both go the same way then. And the other
// way round: what begins in its place may go on through the client's memory, and is checked by nobody all the same.
TEST_P(PlacedInGpu, APartWhosePiecesWouldGoTwoWaysIsWhole) {
  constexpr size_t kPartBytes = 300'000;
  blocks_ = {random_octets(kPartBytes, 1), random_octets(kPartBytes, 2)};
  begin({.part_count = 1, .size_count = 1, .part_bytes = {kPartBytes}});
  Octets room(2 * kPartBytes + 1'000 * kGuardBytes, kGuard);
  cuda_.add_memory(room.data(), room.size());
  hs_region* region = nullptr;
  ASSERT_EQ(hs_region_open(client_->client, room.data(), room.size(), 1, &region, nullptr, 0), 0);
  for (const bool begins_fine : {true, false}) {
    std::fill(room.begin(), room.end(), kGuard);
    TrySection get(handle_, names(1));
    std::byte* at = room.data() + kGuardBytes;
    const size_t chunk_bytes = wire::kChunkBytesMax;
    for (size_t from = 0; from < kPartBytes;) {
      const bool fine = begins_fine == (from < chunk_bytes);
      const size_t border = from < chunk_bytes ? chunk_bytes : kPartBytes;
      const size_t bytes = std::min<size_t>(fine ? (begins_fine ? 4'000 : 800) : border - from, border - from);
      get.iovecs.push_back({at, bytes});
      at += bytes + kGuardBytes;
      from += bytes;
    }
    const auto count = static_cast<uint32_t>(get.iovecs.size());
    uint32_t unchecked = 77;
    get.section.unchecked = &unchecked;
    get.section.cuda_device = 1;
    get.by_iovecs(&count);
    const uint64_t placed = client_->facts().gpu_placed_bytes;
    EXPECT_EQ(client_->get(get).items_ok, 1U) << text_of(get.answers[0]);
    EXPECT_EQ(unchecked, begins_fine ? 0U : 1U);
    EXPECT_EQ(client_->facts().gpu_placed_bytes - placed, begins_fine ? 0U : chunk_bytes);
    size_t from = 0;
    for (const hs_iovec& piece : get.iovecs) {
      EXPECT_EQ(std::memcmp(piece.base, blocks_[0].data() + from, piece.bytes), 0) << from;
      EXPECT_EQ(static_cast<const std::byte*>(piece.base)[piece.bytes], kGuard);
      from += piece.bytes;
    }
  }
  hs_region_close(region);
}

// One part is copied by the client and late, and the other lies there already.
TEST_P(PlacedInGpu, ABlockWhosePartsComeBothWaysWaitsForItsCopies) {
  constexpr wire::GroupShape kTwo{.part_count = 2, .size_count = 1, .part_bytes = {100'000}};
  blocks_ = {random_octets(200'000, 1)};
  begin(kTwo);
  Octets pool(2 * 200'000, kGuard);
  cuda_.add_memory(pool.data(), pool.size());
  hs_region* region = nullptr;
  ASSERT_EQ(hs_region_open(client_->client, pool.data(), pool.size(), 1, &region, nullptr, 0), 0);
  const hs_part_descriptor parts[] = {{.base = pool.data(),
                                       .base_bytes = pool.size(),
                                       .offset = 0,
                                       .row_stride = 0,
                                       .inner_count = 100,
                                       .inner_bytes = 1'000,
                                       .inner_stride = 2'000},
                                      {.base = pool.data(),
                                       .base_bytes = pool.size(),
                                       .offset = 200'000,
                                       .row_stride = 0,
                                       .inner_count = 1,
                                       .inner_bytes = 100'000,
                                       .inner_stride = 0}};
  const int64_t row = 0;
  uint32_t unchecked = 77;
  TrySection get(handle_, names(1));
  get.section.unchecked = &unchecked;
  get.section.cuda_device = 1;
  get.section.target_kind = HS_TARGET_ROWS;
  get.section.parts = parts;
  get.section.part_descriptor_count = 2;
  get.section.rows = &row;
  cuda_.delay(true);
  hs_batch batch = TryClient::batch(HS_OP_GET, 60'000'000);
  ASSERT_NE(client_->submit(batch, get), 0U) << client_->why;
  ASSERT_TRUE(comes_true([&] { return cuda_.waiting() > 0 && client_->facts().gpu_placed_bytes == 100'000; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the Final has come, as a rule
  hs_event early{};
  EXPECT_EQ(hs_queue_poll(client_->queue, &early, 1), 0U) << "its copy is under way";
  cuda_.delay(false);
  EXPECT_EQ(client_->wait().items_ok, 1U) << text_of(get.answers[0]) << client_->facts().last_error;
  EXPECT_EQ(unchecked, 1U);
  EXPECT_EQ(client_->facts().handshakes, 1U);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(std::memcmp(pool.data() + 2000 * i, blocks_[0].data() + 1000 * i, 1000), 0) << i;
  EXPECT_EQ(std::memcmp(pool.data() + 200'000, blocks_[0].data() + 100'000, 100'000), 0);
  hs_region_close(region);
}

// Its checks are made of bytes in the host's memory, so that is where they leave from.
TEST_P(PlacedInGpu, PutsGoThroughTheHost) {
  begin();
  Ground ground(*client_, blocks_, &cuda_);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    std::copy(blocks_[i].begin(), blocks_[i].end(), ground.memory.begin() + static_cast<ptrdiff_t>(ground.at[i]));
  }
  TrySection other(handle_, names(20, "other-"));
  EXPECT_EQ(client_->put(ground.into(other, blocks_)).items_ok, 20U) << text_of(other.answers[0]);
  EXPECT_EQ(metric("halfstep_rdma_pulled_bytes_total"), 0.0);
  EXPECT_EQ(client_->facts().gpu_bytes_to_host, bytes_of(blocks_));
  std::fill(ground.memory.begin(), ground.memory.end(), kGuard);
  TrySection get(handle_, names(20, "other-"));
  EXPECT_EQ(client_->get(ground.into(get, blocks_)).items_ok, 20U);
  expect_all_in(ground);
}

TEST_P(PlacedInGpu, AfterACancelNothingIsWrittenThereAnyMore) {
  cuda_.set_attribute(gpu::kAttributeWritesOrdering, 0);
  cuda_.set_attribute(gpu::kAttributeFlushOptions, gpu::kFlushByHost);
  begin();
  Ground ground(*client_, blocks_, &cuda_);
  TrySection first(handle_, names(20));
  EXPECT_EQ(client_->get(ground.into(first, blocks_)).items_ok, 20U);  // the region is registered
  std::fill(ground.memory.begin(), ground.memory.end(), kGuard);
  verbs_.delay_newest(true);
  TrySection get(handle_, names(20));
  const uint64_t before = verbs_.count("placed");
  hs_batch batch = TryClient::batch(HS_OP_GET);
  const hs_ticket ticket = client_->submit(batch, ground.into(get, blocks_));
  ASSERT_TRUE(comes_true([&] { return verbs_.count("placed") != before; }));
  const size_t flushed = cuda_.count("cuFlushGPUDirectRDMAWrites 0 100");
  hs_cancel(client_->queue, ticket);
  EXPECT_EQ(client_->wait().items_ok, 0U);
  EXPECT_GT(cuda_.count("cuFlushGPUDirectRDMAWrites 0 100"), flushed) << "what has come by now is not seen later";
  const Octets then = ground.memory;
  verbs_.delay_newest(false);
  verbs_.carry_out();
  EXPECT_TRUE(ground.memory == then);
}

// Each of what a machine may lack, and the word that the facts have for it.
TEST_P(PlacedInGpu, WhereItCannotBeBytesGoThroughTheClientAndTheFactsSayWhy) {
  struct Lack {
    const char* said;
    std::function<void()> arrange;
  };
  const std::vector<Lack> lacks = {
      {"hands out no dma-buf", [&] { cuda_.set_attribute(gpu::kAttributeDmaBuf, 0); }},
      {"neither orders", [&] { cuda_.set_attribute(gpu::kAttributeWritesOrdering, 0); }},
      {"cuMemGetHandleForAddressRange: FAKE_ERROR_801",
       [&] { cuda_.fail_next("cuMemGetHandleForAddressRange", gpu::kNotSupported); }},
      {"cuMemGetAddressRange: FAKE_ERROR_1", [&] { cuda_.fail_next("cuMemGetAddressRange", gpu::FakeCuda::kInvalidValue); }},
      {"of a GPU: EOPNOTSUPP (Operation not supported); its driver takes no dma-buf",
       [&] { verbs_.fail_next("reg_dmabuf_mr", EOPNOTSUPP); }},
      {"of a GPU: ENOMEM", [&] { verbs_.fail_next("reg_dmabuf_mr", ENOMEM); }},
  };
  begin();
  for (const Lack& lack : lacks) {
    Ground ground(*client_, blocks_, &cuda_);
    lack.arrange();
    for (int round = 0; round < 2; ++round) {
      TrySection get(handle_, names(20));
      std::vector<uint32_t> unchecked(20, 77);
      get.section.unchecked = unchecked.data();
      EXPECT_EQ(client_->get(ground.into(get, blocks_)).items_ok, 20U) << text_of(get.answers[0]);
      EXPECT_EQ(unchecked, std::vector<uint32_t>(20, 0)) << lack.said;
      expect_all_in(ground);
    }
    EXPECT_NE(std::string(client_->facts().placement).find(lack.said), std::string::npos) << client_->facts().placement;
    EXPECT_EQ(dma_bufs(), 0U);
    cuda_.set_attribute(gpu::kAttributeDmaBuf, 1);
    cuda_.set_attribute(gpu::kAttributeWritesOrdering, gpu::kWritesOrderedForOwner);
  }
  EXPECT_EQ(client_->facts().gpu_placed_bytes, 0U);
  EXPECT_EQ(client_->facts().gpu_failures, 0U);
}

TEST_P(PlacedInGpu, ARegionOfTwoAllocationsIsNone) {
  begin();
  Octets memory(2 * 8192);
  cuda_.add_memory(memory.data(), 8192);
  cuda_.add_memory(memory.data() + 8192, 8192);
  hs_region* region = nullptr;
  char why[256] = "";
  ASSERT_EQ(hs_region_open(client_->client, memory.data(), memory.size(), 1, &region, why, sizeof(why)), 0) << why;
  std::vector<Octets> small = {random_octets(4000, 1)};
  TrySection stored(handle_, names(1, "small-"));
  EXPECT_EQ(client_->put(stored.into(small)).items_ok, 1U);
  TrySection get(handle_, names(1, "small-"));
  get.iovecs = {{memory.data(), 4000}};
  get.by_iovecs();
  get.section.cuda_device = 1;
  EXPECT_EQ(client_->get(get).items_ok, 1U);
  EXPECT_TRUE(std::equal(small[0].begin(), small[0].end(), memory.begin()));
  EXPECT_NE(std::string(client_->facts().placement).find("several allocations"), std::string::npos)
      << client_->facts().placement;
  hs_region_close(region);
}

TEST_P(PlacedInGpu, MemoryThatIsOfNoSuchDeviceIsNoRegion) {
  begin();
  Octets memory(8192);
  hs_region* region = nullptr;
  char why[256] = "";
  EXPECT_EQ(hs_region_open(client_->client, memory.data(), memory.size(), 1, &region, why, sizeof(why)), -1);
  EXPECT_NE(std::string(why).find("cuPointerGetAttribute"), std::string::npos) << why;
  EXPECT_EQ(hs_region_open(client_->client, memory.data(), memory.size(), 9, &region, why, sizeof(why)), -1);
  EXPECT_NE(std::string(why).find("device=8: this process sees 1"), std::string::npos) << why;
  EXPECT_EQ(hs_region_open(client_->client, memory.data(), memory.size(), 0x8000'0000U, &region, why, sizeof(why)), -1);
  EXPECT_NE(std::string(why).find("device=2147483647"), std::string::npos) << why;
}

INSTANTIATE_TEST_SUITE_P(Keys, PlacedInGpu, testing::Values(Keys::OfRegions, Keys::OfWindows), name_of_keys);

}  // namespace
}  // namespace placed_gpu_test
}  // namespace halfstep
