// placement_fixture.h — for tests: a daemon and clients whose memory it may write and read, on a table of verbs that moves
// bytes within the process; and memory with guards around every place.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "daemon_fixture.h"
#include "gpu/fake_cuda.h"
#include "peer/try_client.h"
#include "rdma/fake_verbs.h"
#include "shard/metrics_fixture.h"

namespace halfstep {

using peer::make_layout;
using peer::names;
using peer::Octets;
using peer::random_octets;
using peer::text_of;
using peer::TryClient;
using peer::TrySection;

inline constexpr std::byte kGuard{0xA5};
inline constexpr size_t kGuardBytes = 512;
inline constexpr wire::GroupShape kLayers{.part_count = 8, .size_count = 2, .part_bytes = {12'000, 40'000}};

// One region, in which every block's place has guards before and behind it; of a GPU where there is one.
struct Ground {
  Ground(TryClient& client, const std::vector<Octets>& blocks, gpu::FakeCuda* gpu = nullptr) : cuda_device(gpu != nullptr) {
    size_t bytes = kGuardBytes;
    for (const Octets& block : blocks) {
      at.push_back(bytes);
      bytes += block.size() + kGuardBytes;
    }
    memory.assign(bytes, kGuard);
    if (gpu != nullptr) gpu->add_memory(memory.data(), memory.size());
    char why[256] = "";
    EXPECT_EQ(hs_region_open(client.client, memory.data(), memory.size(), cuda_device, &region, why, sizeof(why)), 0) << why;
  }
  ~Ground() { hs_region_close(region); }
  Ground(const Ground&) = delete;
  Ground& operator=(const Ground&) = delete;

  TrySection& into(TrySection& section, const std::vector<Octets>& blocks) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      section.iovecs.push_back({memory.data() + at[i], blocks[i].size()});
      section.block_bytes.push_back(static_cast<uint32_t>(blocks[i].size()));
    }
    section.by_iovecs();
    section.section.cuda_device = cuda_device;
    return section;
  }
  bool has(size_t block, const Octets& bytes) const {
    return std::memcmp(memory.data() + at[block], bytes.data(), bytes.size()) == 0;
  }
  bool guards_stand(const std::vector<Octets>& blocks) const {
    size_t from = 0;
    for (size_t i = 0; i <= blocks.size(); ++i) {
      const size_t to = i < blocks.size() ? at[i] : memory.size();
      if (!std::all_of(memory.begin() + static_cast<ptrdiff_t>(from), memory.begin() + static_cast<ptrdiff_t>(to),
                       [](std::byte byte) { return byte == kGuard; })) {
        return false;
      }
      if (i < blocks.size()) from = at[i] + blocks[i].size();
    }
    return true;
  }

  Octets memory;
  std::vector<size_t> at;
  hs_region* region = nullptr;
  const uint32_t cuda_device;  // as of a section
};

// By which keys a daemon reaches a client's memory: those of regions, which last, or of windows, which go with their request.
enum class Keys : uint8_t { OfRegions, OfWindows };
inline std::string name_of_keys(const testing::TestParamInfo<Keys>& info) {
  return info.param == Keys::OfWindows ? "of_windows" : "of_regions";
}
inline rdma::FakeDevice with(Keys keys, rdma::FakeDevice device = {}) {
  device.windows = keys == Keys::OfWindows;
  return device;
}

class PlacementFixture : public DaemonFixture {
 protected:
  explicit PlacementFixture(const rdma::FakeDevice& device = {}) : verbs_({device}) {}
  explicit PlacementFixture(std::vector<rdma::FakeDevice> devices) : verbs_(std::move(devices)) {}
  void SetUp() override {
    rdma::replace_system_verbs(&verbs_);
    DaemonFixture::SetUp();
  }
  void configure() override {
    config_.listen = {"127.0.0.1:0"};
    config_.rdma.on = true;
  }
  void TearDown() override {
    verbs_.delay(false);
    DaemonFixture::TearDown();
    rdma::replace_system_verbs(nullptr);
    EXPECT_EQ(verbs_.live(), 0U);
    EXPECT_TRUE(verbs_.faults().empty()) << verbs_.faults().front();
  }
  double metric(const std::string& name) const { return shard::value_of(server_->metrics(), name); }
  static uint64_t bytes_of(const std::vector<Octets>& blocks) {
    uint64_t bytes = 0;
    for (const Octets& block : blocks) bytes += block.size();
    return bytes;
  }
  static std::vector<Octets> sizes(size_t count, size_t first, double factor) {
    std::vector<Octets> all;
    for (size_t i = 0; i < count; ++i) {
      const double part = static_cast<double>(i) / static_cast<double>(count - 1);
      all.push_back(random_octets(static_cast<size_t>(static_cast<double>(first) * std::pow(factor, part)), i + 1));
    }
    return all;
  }
  static void put(TryClient& client, int handle, std::vector<Octets>& blocks) {
    TrySection section(handle, names(blocks.size()));
    EXPECT_EQ(client.put(section.into(blocks)).items_ok, blocks.size()) << text_of(section.answers[0]);
  }
  // Asked until it does, and not again.
  template <typename Call>
  static bool comes_true(Call&& call) {
    for (int i = 0; i < 30'000; ++i) {
      if (call()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  rdma::FakeVerbs verbs_;
};

}  // namespace halfstep
