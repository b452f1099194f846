// client_bench.cc — the client core alone against a daemon: what a program without an interpreter gets.
// Usage: halfstep_client_bench --address HOST:PORT [--namespace NAME] [--rw get|put] [--bs N] [--batch N] [--iodepth N]
//                              [--connections N] [--size N] [--warm-up MS] [--runtime MS] [--core N] [--seed N]
//        halfstep_client_bench --address HOST:PORT --rw get|cold|coldmixed --rate N [--rwmixread PERCENT] [--cold-bytes N]
//                              [--fill N] [--first N] [--latencies PATH] [--ask 1] [the above but --warm-up]
// One JSON document on stdout; bench/minimal.py and bench/shared_memory.py read the first kind, bench/native_driver.py the
// second.
//
// The first makes its blocks, walks through them once, and then asks for random batches of neighbours, so many at a time. What
// comes in the first --warm-up does not count: of puts, long enough for the daemon's memory to be full of what is not written.
//
// The second is one of open_loop.h: --rate calls a second that come when they are due; with --rate 0 each comes when the one
// before has ended. get: of a hot set of --size; cold: of one of --cold-bytes, which is to be more than the daemon's memory;
// coldmixed: gets of what was put a while ago among puts that go round the store, of which --fill bytes fill it once. Whether
// what came was cold is for whoever reads the daemon's counters to say. --latencies: each run's are written to PATH.gets and
// PATH.puts, as doubles in microseconds. --ask 1: says {"ready": true, ...} once it has filled the store, then makes a run of
// so many milliseconds for each line on stdin, until it ends. Exit status 1 when a byte was wrong.
//
// Every block that comes has its number in its first and last words, and they are looked at; the checksums the client core
// verifies anyway.
#include <chrono>
#include <fstream>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "base/prng.h"
#include "core_client.h"
#include "open_loop.h"
#include "program.h"

namespace halfstep {
namespace {

using bench::fail;
using bench::kRuntimeMsMax;
using bench::within;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kNoRate = UINT64_MAX;
constexpr uint64_t kRateMax = 1'000'000;
constexpr double kWarmUpSecondsMax = 0.3;

struct Options {
  std::string address;
  std::string name_space = "default";
  std::string rw = "get";
  std::string latencies;
  uint64_t bs = 1 << 20;
  uint64_t batch = 16;
  uint64_t iodepth = 1;
  uint64_t connections = 1;
  uint64_t size = 64 << 20;
  uint64_t warm_up = 100;
  uint64_t runtime = 1000;
  uint64_t core = bench::kAnyCore;
  uint64_t seed = 1;
  uint64_t rate = kNoRate;
  uint64_t read_percent = 70;
  uint64_t cold_bytes = 0;
  uint64_t fill = 0;
  uint64_t first = 0;
  uint64_t ask = 0;

  bool open_loop() const { return rate != kNoRate; }
};

void check(const Options& options) {
  if (options.address.empty()) fail("--address: none given; name a daemon's, HOST:PORT or unix:PATH");
  const bool loop_only = options.rw == "cold" || options.rw == "coldmixed";
  if (options.open_loop()) {
    if (options.rw != "get" && !loop_only) fail("--rw " + options.rw + " with --rate: must be get, cold or coldmixed");
  } else if (loop_only) {
    fail("--rw " + options.rw + ": goes with --rate; --rate 0 makes each call when the one before has ended");
  } else if (options.rw != "get" && options.rw != "put") {
    fail("--rw " + options.rw + ": must be get or put, or with --rate get, cold or coldmixed");
  }
  within("--bs", options.bs, 16, uint64_t{64} << 20);
  within("--batch", options.batch, 1, 1024);
  within("--iodepth", options.iodepth, 1, bench::CoreClient::kCallsMax);
  within("--connections", options.connections, 1, 16);
  within("--size", options.size, 0, uint64_t{64} << 30);
  within("--warm-up", options.warm_up, 0, kRuntimeMsMax);
  within("--runtime", options.runtime, 1, kRuntimeMsMax);
  if (!options.open_loop()) {
    const bool loops = options.ask != 0 || !options.latencies.empty() || options.fill != 0 || options.first != 0 ||
                       options.cold_bytes != 0 || options.read_percent != Options().read_percent;
    if (loops) fail("--ask, --latencies, --fill, --first, --cold-bytes and --rwmixread: go with --rate alone");
    return;
  }
  if (options.warm_up != Options().warm_up) fail("--warm-up: goes without --rate alone");
  within("--rate", options.rate, 0, kRateMax);
  within("--rwmixread", options.read_percent, 0, 100);
  within("--cold-bytes", options.cold_bytes, 0, uint64_t{1} << 46);
  within("--fill", options.fill, 0, uint64_t{1} << 46);
  within("--first", options.first, 0, uint64_t{1} << 41);
  if (options.rw == "coldmixed" && options.fill == 0) {
    fail("--fill 0: coldmixed goes round the store; give the bytes that fill it once, a little more than it has room for");
  }
}

Options options_of(int count, char** arguments) {
  Options options;
  const bench::Number numbers[] = {
      {"--bs", &options.bs},
      {"--batch", &options.batch},
      {"--iodepth", &options.iodepth},
      {"--connections", &options.connections},
      {"--size", &options.size},
      {"--warm-up", &options.warm_up},
      {"--runtime", &options.runtime},
      {"--core", &options.core},
      {"--seed", &options.seed},
      {"--rate", &options.rate},
      {"--rwmixread", &options.read_percent},
      {"--cold-bytes", &options.cold_bytes},
      {"--fill", &options.fill},
      {"--first", &options.first},
      {"--ask", &options.ask},
  };
  const bench::Text texts[] = {{"--address", &options.address},
                               {"--namespace", &options.name_space},
                               {"--rw", &options.rw},
                               {"--latencies", &options.latencies}};
  bench::read_options(count, arguments, numbers, texts);
  check(options);
  return options;
}

// ---- as fast as answers come ----

class Closed {
 public:
  Closed(const Options& options, bench::CoreClient& client) : options_(options), client_(client), prng_(options.seed) {
    for (uint64_t i = 0; i < options.iodepth; ++i) calls_.push_back(client.make_call(options.batch, i));
    numbers_.resize(options.batch);
  }

  bench::Calls run() {
    const uint64_t batches = std::max<uint64_t>(options_.size / (options_.bs * options_.batch), 1);
    const bool put = options_.rw == "put";
    // Puts are of what was never there; their numbers follow those of the set.
    uint64_t next = batches * options_.batch;
    if (!put) client_.populate(calls_[0], batches);
    const auto ask = [&](bench::Call& call) {
      prepare(call, put ? HS_OP_PUT : HS_OP_GET, put ? next : prng_.below(batches) * options_.batch);
      next += options_.batch;
      begun_[call.name] = Clock::now();
      client_.submit(call);
    };
    const Clock::time_point begin = Clock::now() + std::chrono::milliseconds(options_.warm_up);
    const Clock::time_point end = begin + std::chrono::milliseconds(options_.runtime);
    cpu_before_ = bench::own_cpu_seconds();
    for (bench::Call& call : calls_) ask(call);
    std::vector<double> latencies;
    Clock::time_point counted_from{};
    Clock::time_point last{};
    for (size_t under_way = calls_.size(); under_way > 0;) {
      for (const uint64_t name : client_.wait(UINT64_MAX, 1)) {
        const Clock::time_point now = Clock::now();
        bench::CoreClient::require(client_.check(calls_[name]));
        --under_way;
        ++calls_ever_;
        if (counted_from != Clock::time_point{}) {
          latencies.push_back(std::chrono::duration<double, std::micro>(now - begun_[name]).count());
          last = now;
        } else if (now >= begin) {
          counted_from = now;
        }
        if (now >= end && !latencies.empty()) continue;
        ask(calls_[name]);
        ++under_way;
      }
    }
    return {std::move(latencies), std::chrono::duration<double>(last - counted_from).count(), options_.batch, options_.bs};
  }
  double cpu_s_per_gib() const {
    const auto bytes = static_cast<double>(calls_ever_ * options_.batch * options_.bs);
    return (bench::own_cpu_seconds() - cpu_before_) / (bytes / static_cast<double>(1 << 30));
  }

 private:
  void prepare(bench::Call& call, uint32_t operation, uint64_t first) {
    std::iota(numbers_.begin(), numbers_.end(), first);
    client_.prepare(call, operation, numbers_);
  }

  const Options& options_;
  bench::CoreClient& client_;
  Prng prng_;
  std::vector<bench::Call> calls_;
  std::vector<uint64_t> numbers_;
  Clock::time_point begun_[bench::CoreClient::kCallsMax];
  uint64_t calls_ever_ = 0;
  double cpu_before_ = 0;
};

// ---- as calls come ----

void write_doubles(const std::string& path, const std::vector<double>& values) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(double)));
  if (!file.flush()) fail("--latencies: " + path + " cannot be written; name a path in a folder that is there");
}

// The milliseconds of the next run; 0 at the end of stdin.
uint64_t asked() {
  std::string line;
  if (!std::getline(std::cin, line)) return 0;
  char* end = nullptr;
  const uint64_t runtime_ms = std::strtoull(line.c_str(), &end, 10);
  if (line.empty() || *end != '\0') fail("stdin: " + line + ": not a number of milliseconds");
  within("stdin:", runtime_ms, 1, kRuntimeMsMax);
  return runtime_ms;
}

int open_loop(const Options& options, bench::CoreClient& client) {
  bench::LoopOptions loop;
  loop.scenario = options.rw == "coldmixed" ? bench::Scenario::ColdMixed
                  : options.rw == "cold"    ? bench::Scenario::Cold
                                            : bench::Scenario::Hot;
  loop.bs = options.bs;
  loop.batch = options.batch;
  loop.iodepth = options.iodepth;
  loop.read_percent = options.read_percent;
  loop.rate = static_cast<double>(options.rate);
  loop.size = options.size;
  loop.cold_bytes = options.cold_bytes;
  loop.fill = options.fill;
  loop.first = options.first;
  loop.seed = options.seed;
  bench::OpenLoop driver(client, loop);
  driver.begin(std::min(kWarmUpSecondsMax, static_cast<double>(options.runtime) / 1e3));
  const std::string settled = ", \"settled\": " + std::string(driver.settled() ? "true" : "false");
  if (options.ask != 0) {
    std::printf("{\"ready\": true, \"build\": \"%s\"%s}\n", std::string(kBuildType).c_str(), settled.c_str());
    std::fflush(stdout);
  }
  bool right = true;
  for (uint64_t runtime_ms = options.ask != 0 ? asked() : options.runtime; runtime_ms != 0;
       runtime_ms = options.ask != 0 ? asked() : 0) {
    const double cpu_before_s = bench::own_cpu_seconds();
    const bench::Timing timing = driver.run(static_cast<double>(runtime_ms) / 1e3);
    const double cpu_s = bench::own_cpu_seconds() - cpu_before_s;
    if (!options.latencies.empty()) {
      write_doubles(options.latencies + ".gets", timing.gets.latencies_us);
      write_doubles(options.latencies + ".puts", timing.puts.latencies_us);
    }
    const std::string more = ", \"rw\": \"" + options.rw + "\", \"runtime_ms\": " + std::to_string(runtime_ms) +
                             ", \"cpu_s\": " + std::to_string(cpu_s) + settled;
    std::printf("%s\n", bench::document_of(loop, timing, more).c_str());
    std::fflush(stdout);
    right = right && bench::verified(timing);
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace halfstep

int main(int count, char** arguments) {
  const halfstep::Options options = halfstep::options_of(count, arguments);
  halfstep::bench::pin(options.core);
  halfstep::bench::CoreClient client({.address = options.address,
                                      .name_space = options.name_space,
                                      .connections = options.connections,
                                      .bs = options.bs,
                                      .seed = options.seed});
  if (options.open_loop()) return halfstep::open_loop(options, client);
  halfstep::Closed program(options, client);
  const halfstep::bench::Calls calls = program.run();
  halfstep::bench::print_document(calls, ", \"cpu_s_per_gib\": {\"client\": " + std::to_string(program.cpu_s_per_gib()) + "}");
  return 0;
}
