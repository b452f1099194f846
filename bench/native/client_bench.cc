// client_bench.cc — the client core alone against a daemon: what a program without an interpreter gets.
// Usage: halfstep_client_bench --address HOST:PORT [--namespace NAME] [--rw get|put] [--bs N] [--batch N] [--iodepth N]
//                              [--connections N] [--size N] [--runtime MS] [--core N] [--seed N]
// One JSON document on stdout; bench/minimal.py and bench/shared_memory.py read it.
//
// Makes its blocks, walks through them once, and then asks for random batches of neighbours, so many at a time. Every block
// that comes has its number in its first and last words, and they are looked at; the checksums the client core verifies anyway.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/prng.h"
#include "peer/halfstep.h"
#include "program.h"
#include "wire/layout.h"

namespace halfstep {
namespace {

using bench::fail;
using bench::fail_errno;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kWarmUpMs = 100;
constexpr uint32_t kDeadlineUs = 30'000'000;
constexpr uint32_t kNameBytes = 16;

struct Options {
  std::string address;
  std::string name_space = "default";
  bool put = false;
  uint64_t bs = 1 << 20;
  uint64_t batch = 16;
  uint64_t iodepth = 1;
  uint64_t connections = 1;
  uint64_t size = 64 << 20;
  uint64_t runtime = 1000;
  uint64_t core = bench::kAnyCore;
  uint64_t seed = 1;
};

Options options_of(int count, char** arguments) {
  Options options;
  std::string rw = "get";
  const bench::Number numbers[] = {
      {"--bs", &options.bs},           {"--batch", &options.batch},
      {"--iodepth", &options.iodepth}, {"--connections", &options.connections},
      {"--size", &options.size},       {"--runtime", &options.runtime},
      {"--core", &options.core},       {"--seed", &options.seed},
  };
  const bench::Text texts[] = {{"--address", &options.address}, {"--namespace", &options.name_space}, {"--rw", &rw}};
  bench::read_options(count, arguments, numbers, texts);
  options.put = rw == "put";
  if (options.address.empty() || (rw != "get" && !options.put) || options.bs < 16 || options.bs > (uint64_t{64} << 20) ||
      options.batch < 1 || options.batch > 1024 || options.iodepth < 1 || options.iodepth > 64 || options.connections < 1 ||
      options.connections > 16 || options.size > (uint64_t{64} << 30) || options.runtime < 1) {
    fail("out of bounds: an address, rw get or put, bs 16 B to 64 MiB, batch to 1024, iodepth to 64, connections to 16");
  }
  return options;
}

// One batch at the client at a time.
struct Lane {
  std::vector<uint8_t> keys;
  std::vector<hs_iovec> pieces;
  std::vector<uint32_t> lengths;
  std::vector<hs_answer> answers;
  hs_section section{};
  hs_ticket ticket = 0;
  uint64_t first = 0;
  Clock::time_point begun;
};

class Program {
 public:
  explicit Program(const Options& options) : options_(options), prng_(options.seed) {
    hs_options open{};
    open.struct_bytes = sizeof open;
    open.address = options.address.c_str();
    open.name_space = options.name_space.c_str();
    open.connections = static_cast<uint32_t>(options.connections);
    char why[256] = "";
    if (hs_client_open(&open, &client_, why, sizeof why) != 0) fail(why);
    if (hs_queue_open(client_, &queue_) != 0) fail("no queue: out of descriptors");
    wire::Layout layout;
    const wire::GroupShape opaque{.part_count = 0, .size_count = 1, .part_bytes = {wire::kOpaquePartBytes}};
    if (!wire::Layout::make({{"model", "client_bench"}}, {opaque}, &layout).ok()) fail("the layout is not one");
    layout_ = hs_layout_register(client_, layout.canonical().data(), layout.canonical().size());
    if (hs_client_wait_ready(client_, 5000, why, sizeof why) != 1) fail(options.address + ": not ready: " + why);
    for (uint64_t i = 0; i < options.iodepth; ++i) make_lane();
  }
  ~Program() {
    hs_client_close(client_);
    hs_queue_close(queue_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  bench::Calls run() {
    const uint64_t batches = std::max<uint64_t>(options_.size / (options_.bs * options_.batch), 1);
    // Puts are of what was never there; their numbers follow those of the set.
    uint64_t next = batches * options_.batch;
    if (!options_.put) {
      for (uint64_t batch = 0; batch < batches; ++batch) finish(submit(lanes_[0], batch * options_.batch, true), true);
      for (uint64_t batch = 0; batch < batches; ++batch) finish(submit(lanes_[0], batch * options_.batch, false), false);
    }
    const auto ask = [&](Lane& lane) {
      const uint64_t first = options_.put ? next : prng_.below(batches) * options_.batch;
      if (options_.put) next += options_.batch;
      submit(lane, first, options_.put);
    };
    const Clock::time_point begin = Clock::now() + std::chrono::milliseconds(kWarmUpMs);
    const Clock::time_point end = begin + std::chrono::milliseconds(options_.runtime);
    cpu_before_ = bench::own_cpu_seconds();
    for (Lane& lane : lanes_) ask(lane);
    std::vector<double> latencies;
    Clock::time_point counted_from{};
    Clock::time_point last{};
    for (size_t asked = lanes_.size(); asked > 0; --asked) {
      Lane& lane = wait();
      const Clock::time_point now = Clock::now();
      check(lane, options_.put);
      ++calls_ever_;
      if (counted_from != Clock::time_point{}) {
        latencies.push_back(std::chrono::duration<double, std::micro>(now - lane.begun).count());
        last = now;
      } else if (now >= begin) {
        counted_from = now;
      }
      if (now >= end && !latencies.empty()) continue;
      ask(lane);
      ++asked;
    }
    return {std::move(latencies), std::chrono::duration<double>(last - counted_from).count(), options_.batch, options_.bs};
  }
  double cpu_s_per_gib() const {
    const auto bytes = static_cast<double>(calls_ever_ * options_.batch * options_.bs);
    return (bench::own_cpu_seconds() - cpu_before_) / (bytes / static_cast<double>(1 << 30));
  }

 private:
  void make_lane() {
    const uint64_t bytes = options_.bs * options_.batch;
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) fail_errno("memory");
    Prng(options_.seed).fill({static_cast<std::byte*>(memory), bytes});
    Lane& lane = lanes_.emplace_back();
    for (uint64_t i = 0; i < options_.batch; ++i) {
      lane.pieces.push_back({static_cast<std::byte*>(memory) + i * options_.bs, options_.bs});
      lane.lengths.push_back(static_cast<uint32_t>(options_.bs));
    }
    lane.answers.resize(options_.batch);
    lane.keys.resize(options_.batch * (1 + kNameBytes));
    hs_section& section = lane.section;
    section.layout = layout_;
    section.key_count = static_cast<uint32_t>(options_.batch);
    section.keys = lane.keys.data();
    section.keys_bytes = static_cast<uint32_t>(lane.keys.size());
    section.target_kind = HS_TARGET_IOVEC;
    section.iovecs = lane.pieces.data();
    section.block_bytes = lane.lengths.data();
    section.answers = lane.answers.data();
  }
  uint64_t* ends_of(const Lane& lane, uint64_t block, bool last) const {
    auto* const start = static_cast<std::byte*>(lane.pieces[block].base);
    return reinterpret_cast<uint64_t*>(last ? start + (options_.bs - 8) / 8 * 8 : start);
  }
  Lane& submit(Lane& lane, uint64_t first, bool put) {
    lane.first = first;
    for (uint64_t i = 0; i < options_.batch; ++i) {
      uint8_t* key = lane.keys.data() + i * (1 + kNameBytes);
      key[0] = kNameBytes;
      store_le(reinterpret_cast<std::byte*>(key + 1), options_.seed);
      store_le(reinterpret_cast<std::byte*>(key + 9), first + i);
      // Of a get, too: what comes has to write them again.
      *ends_of(lane, i, true) = *ends_of(lane, i, false) = put ? first + i : UINT64_MAX;
    }
    hs_batch batch{};
    batch.struct_bytes = sizeof batch;
    batch.operation = put ? HS_OP_PUT : HS_OP_GET;
    batch.deadline_us = kDeadlineUs;
    batch.section_count = 1;
    batch.sections = &lane.section;
    char why[256] = "";
    lane.begun = Clock::now();
    lane.ticket = hs_submit(queue_, &batch, why, sizeof why);
    if (lane.ticket == 0) fail(why);
    return lane;
  }
  Lane& wait() {
    hs_event event{};
    if (hs_queue_wait(queue_, &event, 1, UINT64_MAX) != 1) fail("no event");
    return *std::ranges::find(lanes_, event.ticket, &Lane::ticket);
  }
  void finish(Lane& lane, bool put) {
    if (&wait() != &lane) fail("an event of somebody else");
    check(lane, put);
  }
  void check(const Lane& lane, bool put) const {
    for (uint64_t i = 0; i < options_.batch; ++i) {
      const hs_answer answer = lane.answers[i];
      if (answer.answer != HS_OK) fail(std::string(hs_answer_name(answer.answer)) + ": " + hs_reason_name(answer.reason));
      if (!put && (*ends_of(lane, i, false) != lane.first + i || *ends_of(lane, i, true) != lane.first + i)) {
        fail("block " + std::to_string(lane.first + i) + " is wrong");
      }
    }
  }

  const Options& options_;
  Prng prng_;
  hs_client* client_ = nullptr;
  hs_queue* queue_ = nullptr;
  int layout_ = -1;
  std::deque<Lane> lanes_;
  uint64_t calls_ever_ = 0;
  double cpu_before_ = 0;
};

}  // namespace
}  // namespace halfstep

int main(int count, char** arguments) {
  const halfstep::Options options = halfstep::options_of(count, arguments);
  halfstep::bench::pin(options.core);
  halfstep::Program program(options);
  const halfstep::bench::Calls calls = program.run();
  halfstep::bench::print_document(calls, ", \"cpu_s_per_gib\": {\"client\": " + std::to_string(program.cpu_s_per_gib()) + "}");
  return 0;
}
