// A daemon that writes into a client's memory over an RDMA device, in a process of its own: either is killed while bytes move,
// deadlines come, gets are called off. After each terminal event the targets and the guards around them never change again.
// It needs a device: HALFSTEP_TEST_RDMA is its address (make lab). HALFSTEP_TEST_ROUNDS: of each kind, 100 unless it says so.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "peer/try_client.h"
#include "shard/server.h"

extern char** environ;

namespace halfstep {
namespace placed_life_test {
namespace {

using peer::make_layout;
using peer::names;
using peer::Octets;
using peer::random_octets;
using peer::text_of;
using peer::TryClient;
using peer::TrySection;

constexpr size_t kBlocks = 12;
constexpr size_t kBlockBytes = 700'001;
constexpr size_t kGuardBytes = 8192;
constexpr std::byte kGuard{0xA5};
constexpr size_t kGrounds = 3;
constexpr int kPatience = 240;  // seconds: emulated, and beside others

std::string from_environment(const char* name) {
  const char* value = ::getenv(name);
  return value != nullptr ? value : "";
}
std::string address() { return from_environment("HALFSTEP_TEST_RDMA") + ":7351"; }
int rounds() {
  const std::string told = from_environment("HALFSTEP_TEST_ROUNDS");
  return told.empty() ? 100 : std::stoi(told);
}
bool has_device() {
  const std::string told = from_environment("HALFSTEP_TEST_RDMA");
  return !told.empty() && told != "fake";
}

const std::vector<Octets>& blocks() {
  static const std::vector<Octets> all = [] {
    std::vector<Octets> made;
    for (size_t i = 0; i < kBlocks; ++i) made.push_back(random_octets(kBlockBytes + i, i + 1));
    return made;
  }();
  return all;
}

// This program again, as something else.
class Process {
 public:
  explicit Process(const char* role) {
    std::string self = "/proc/self/exe";
    std::string filter = std::string("--gtest_filter=DISABLED_PlacedRole.") + role;
    std::string also = "--gtest_also_run_disabled_tests";
    std::vector<char*> arguments{self.data(), filter.data(), also.data(), nullptr};
    EXPECT_EQ(::posix_spawn(&id_, self.c_str(), nullptr, nullptr, arguments.data(), environ), 0);
  }
  ~Process() { kill(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  void kill() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(std::exchange(id_, -1), nullptr, 0);
  }

 private:
  pid_t id_ = -1;
};

// A region with guards around each target, and how it was when its last get was over.
class Ground {
 public:
  explicit Ground(const TryClient& client) : memory_(kGuardBytes + kBlocks * (kBlockBytes + kBlocks + kGuardBytes), kGuard) {
    char why[256] = "";
    EXPECT_EQ(hs_region_open(client.client, memory_.data(), memory_.size(), 0, &region_, why, sizeof(why)), 0) << why;
  }
  ~Ground() { hs_region_close(region_); }
  Ground(const Ground&) = delete;
  Ground& operator=(const Ground&) = delete;

  TrySection& begin(TrySection& section) {
    EXPECT_TRUE(is_as_it_was()) << "something was written after the terminal event";
    std::fill(memory_.begin(), memory_.end(), kGuard);
    for (size_t i = 0; i < kBlocks; ++i) section.iovecs.push_back({at(i), blocks()[i].size()});
    return section.by_iovecs();
  }
  // What is ok is right, and nothing beside the targets was written.
  void end(const TrySection& section) {
    then_ = memory_;
    size_t from = 0;
    for (size_t i = 0; i <= kBlocks; ++i) {
      const size_t to = i < kBlocks ? static_cast<size_t>(at(i) - memory_.data()) : memory_.size();
      const auto begin = memory_.begin() + static_cast<ptrdiff_t>(from);
      EXPECT_TRUE(std::all_of(begin, memory_.begin() + static_cast<ptrdiff_t>(to), [](std::byte b) { return b == kGuard; }))
          << i;
      if (i == kBlocks) break;
      from = to + blocks()[i].size();
      if (section.answers[i].answer == HS_OK) {
        EXPECT_EQ(std::memcmp(at(i), blocks()[i].data(), blocks()[i].size()), 0) << i;
      }
    }
  }
  bool is_as_it_was() const { return then_.empty() || memory_ == then_; }

 private:
  std::byte* at(size_t block) { return memory_.data() + kGuardBytes + block * (kBlockBytes + kBlocks + kGuardBytes); }

  Octets memory_;
  Octets then_;
  hs_region* region_ = nullptr;
};

// ---- What a process of its own does, until it is killed ------------------------------------------------------------------

TEST(DISABLED_PlacedRole, Daemon) {
  shard::Config config;
  config.store_path = from_environment("HALFSTEP_TEST_FOLDER") + "/store";
  config.store_bytes = 512 * MiB;
  config.segment_bytes = 4 * MiB;  // a block takes a quarter at most
  config.arena_bytes = 64 * MiB;
  config.huge_pages = false;
  config.listen = {address()};
  config.insecure_listen = true;
  config.rdma.on = true;
  std::unique_ptr<shard::Server> server;
  const Fault fault = shard::Server::start(config, &server);
  ASSERT_TRUE(fault.ok()) << fault.what;
  for (;;) ::pause();
}

TEST(DISABLED_PlacedRole, Client) {
  TryClient client(address(), 1, 0, kPatience * 1000, 5, 0, "rdma");
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready(kPatience * 1000)) << client.facts().last_error;
  Ground ground(client);
  for (;;) {
    TrySection get(handle, names(kBlocks));
    hs_batch batch = TryClient::batch(HS_OP_GET, kPatience * 1'000'000U);
    (void)client.call(batch, ground.begin(get));
    ground.end(get);
  }
}

// ---- The client that stays -----------------------------------------------------------------------------------------------

class PlacedLife : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "HALFSTEP_TEST_RDMA names no address of an RDMA device; `make lab` has one";
    std::string name = (std::filesystem::temp_directory_path() / "halfstep-placed-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    ::setenv("HALFSTEP_TEST_FOLDER", name.c_str(), 1);
    daemon_ = std::make_unique<Process>("Daemon");
    client_ = std::make_unique<TryClient>(address(), 1, 0, 20'000, 5, 0, "rdma");
    handle_ = client_->layout(make_layout({peer::kOpaque}));
    ASSERT_TRUE(is_up()) << client_->facts().last_error;
    std::vector<Octets> sent = blocks();
    TrySection put(handle_, names(kBlocks));
    hs_batch batch = TryClient::batch(HS_OP_PUT, kPatience * 1'000'000U);
    batch.durability = HS_PERSIST;
    ASSERT_EQ(client_->call(batch, put.into(sent)).items_ok, kBlocks) << text_of(put.answers[0]);
    for (size_t i = 0; i < kGrounds; ++i) grounds_.push_back(std::make_unique<Ground>(*client_));
  }
  void TearDown() override {
    grounds_.clear();
    client_ = nullptr;
    daemon_ = nullptr;
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  bool is_up() {
    for (int tries = 0; tries < kPatience * 10; ++tries) {
      if (client_->ready(100) && std::string_view(client_->facts().transport) == "rdma") return true;
    }
    return false;
  }
  // Each of the grounds in turn, so that what comes late would be seen when it comes.
  Ground& next() {
    std::rotate(grounds_.begin(), grounds_.begin() + 1, grounds_.end());
    return *grounds_.back();
  }
  bool all_as_they_were() const {
    return std::all_of(grounds_.begin(), grounds_.end(), [](const auto& ground) { return ground->is_as_it_was(); });
  }
  // All of it, in time.
  void get_all() {
    Ground& ground = next();
    TrySection get(handle_, names(kBlocks));
    hs_batch batch = TryClient::batch(HS_OP_GET, kPatience * 1'000'000U);
    EXPECT_EQ(client_->call(batch, ground.begin(get)).items_ok, kBlocks)
        << text_of(get.answers[0]) << " " << client_->facts().last_error;
    ground.end(get);
  }
  // What one get takes, undisturbed.
  uint64_t get_us() {
    const auto began = std::chrono::steady_clock::now();
    get_all();
    const auto took = std::chrono::steady_clock::now() - began;
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(took).count());
  }

  std::string folder_;
  std::unique_ptr<Process> daemon_;
  std::unique_ptr<TryClient> client_;
  int handle_ = 0;
  std::vector<std::unique_ptr<Ground>> grounds_;
};

TEST_F(PlacedLife, DeadlinesAndCancels) {
  const uint64_t whole_us = get_us();
  Prng prng(1);
  int late = 0;
  int cancelled = 0;
  for (int round = 0; round < 2 * rounds(); ++round) {
    const auto within_us = static_cast<uint32_t>(1000 + prng.below(whole_us));
    const bool cancels = round % 2 == 0;
    Ground& ground = next();
    TrySection get(handle_, names(kBlocks));
    hs_batch batch = TryClient::batch(HS_OP_GET, cancels ? kPatience * 1'000'000U : within_us);
    const hs_ticket ticket = client_->submit(batch, ground.begin(get));
    if (cancels) {
      std::this_thread::sleep_for(std::chrono::microseconds(within_us));
      hs_cancel(client_->queue, ticket);
    }
    const hs_event event = client_->wait();
    ground.end(get);
    if (event.items_ok < kBlocks) ++(cancels ? cancelled : late);
    ASSERT_TRUE(all_as_they_were()) << "round " << round;
    if (client_->facts().connected == 0) {
      ASSERT_TRUE(is_up()) << client_->facts().last_error;
    }
  }
  get_all();
  ASSERT_TRUE(all_as_they_were());
  EXPECT_GT(late, 0);
  EXPECT_GT(cancelled, 0);
  std::printf("placed: %d late, %d cancelled, of %d each; %llu handshakes\n", late, cancelled, rounds(),
              static_cast<unsigned long long>(client_->facts().handshakes));
}

TEST_F(PlacedLife, ADaemonThatIsKilledWhileItWrites) {
  const uint64_t whole_us = get_us();
  Prng prng(2);
  int cut = 0;
  for (int round = 0; round < rounds(); ++round) {
    Ground& ground = next();
    TrySection get(handle_, names(kBlocks));
    hs_batch batch = TryClient::batch(HS_OP_GET, kPatience * 1'000'000U);
    (void)client_->submit(batch, ground.begin(get));
    std::this_thread::sleep_for(std::chrono::microseconds(prng.below(whole_us)));
    daemon_->kill();
    const hs_event event = client_->wait();
    ground.end(get);
    cut += event.items_ok < kBlocks ? 1 : 0;
    daemon_ = std::make_unique<Process>("Daemon");
    ASSERT_TRUE(is_up()) << "round " << round << ": " << client_->facts().last_error;
    ASSERT_TRUE(all_as_they_were()) << "round " << round;
    if (round % 10 == 9) get_all();
  }
  get_all();
  ASSERT_TRUE(all_as_they_were());
  EXPECT_GT(cut, 0);
  std::printf("placed: %d of %d daemons were killed before all was there\n", cut, rounds());
}

TEST_F(PlacedLife, AClientThatIsKilledWhileItIsWrittenInto) {
  Prng prng(3);
  std::deque<std::unique_ptr<Process>> others;
  for (int round = 0; round < rounds(); ++round) {
    // Two at a time: one comes while the other goes.
    others.push_back(std::make_unique<Process>("Client"));
    if (others.size() < 2) continue;
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + prng.below(500)));
    others.pop_front();
    if (round % 10 == 9) get_all();
  }
  others.clear();
  get_all();
  ASSERT_TRUE(all_as_they_were());
  EXPECT_EQ(client_->facts().handshakes, 1U) << "whoever stays is not disturbed";
  EXPECT_EQ(client_->facts().checksum_failures, 0U);
}

}  // namespace
}  // namespace placed_life_test
}  // namespace halfstep
