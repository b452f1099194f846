// client_bench.cc — the client core alone against a daemon: what a program without an interpreter gets.
// Usage: halfstep_client_bench --address HOST:PORT [--namespace NAME] [--rw get|put] [--bs N] [--batch N] [--iodepth N]
//                              [--connections N] [--size N] [--warm-up MS] [--runtime MS] [--core N] [--seed N]
//        halfstep_client_bench --address HOST:PORT --rw get|cold|coldmixed --rate N [--rwmixread PERCENT] [--cold-bytes N]
//                              [--fill N] [--first N] [--latencies PATH] [--ask 1] [the above but --warm-up]
// One JSON document on stdout; bench/minimal.py and bench/shared_memory.py read the first kind, bench/native_workload.py the
// second.
//
// The first makes its blocks, walks through them once, and then asks for random batches of neighbours, so many at a time. What
// comes in the first --warm-up does not count: of puts, long enough for the daemon's memory to be full of what is not written.
// Puts that are throttled are counted in "answers_not_ok", and not in the speed; any other refusal ends the program.
//
// The second is an open loop: --rate calls a second that come when they are due; with --rate 0 each comes when the one before
// has ended. get: of a hot set of --size; cold: of one of --cold-bytes, which is to be more than the daemon's memory;
// coldmixed: gets of what was put a while ago among puts that go round the store, of which --fill bytes fill it once. Whether
// what came was cold is for whoever reads the daemon's counters to say. --latencies: each run's are written to PATH.gets and
// PATH.puts, as doubles in microseconds. --ask 1: says {"ready": true, ...} once it has filled the store, then makes a run of
// so many milliseconds for each line on stdin, until it ends. Exit status 1 when a byte was wrong.
//
// Every block that comes has its number in its first and last words, and they are looked at; the checksums the client core
// verifies anyway.
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "core_client.h"
#include "program.h"
#include "workload.h"

namespace halfstep {
namespace {

using bench::fail;
using bench::kRuntimeMsMax;
using bench::within;

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

bench::Load load_of(const Options& options) {
  bench::Load load{.bs = options.bs,
                   .batch = options.batch,
                   .iodepth = options.iodepth,
                   .read_percent = options.read_percent,
                   .size = options.size,
                   .cold_bytes = options.cold_bytes,
                   .fill = options.fill,
                   .first = options.first,
                   .seed = options.seed};
  if (options.open_loop()) {
    load.rate = static_cast<double>(options.rate);
    load.scenario = options.rw == "coldmixed" ? bench::Scenario::ColdMixed
                    : options.rw == "cold"    ? bench::Scenario::Cold
                                              : bench::Scenario::Hot;
  } else {
    load.required = true;
    load.scenario = options.rw == "put" ? bench::Scenario::Put : bench::Scenario::Anywhere;
  }
  return load;
}

// ---- as fast as answers come ----

int run_closed(const Options& options, bench::CoreClient& client) {
  bench::Workload workload(client, load_of(options));
  workload.begin(0);
  const double cpu_before_s = bench::own_cpu_seconds();
  bench::Timing timing = workload.run(static_cast<double>(options.runtime) / 1e3, static_cast<double>(options.warm_up) / 1e3);
  const double cpu_s = bench::own_cpu_seconds() - cpu_before_s;
  bench::Side& side = options.rw == "put" ? timing.puts : timing.gets;
  const double gib = static_cast<double>(timing.ok_ever * options.bs) / static_cast<double>(1 << 30);
  const std::string cpu_s_per_gib = gib > 0 ? std::to_string(cpu_s / gib) : "null";
  bench::print_document(
      {std::move(side.latencies_us), timing.seconds, side.outcome.ok, options.bs},
      ", \"answers_not_ok\": " + side.outcome.reasons_object() + ", \"cpu_s_per_gib\": {\"client\": " + cpu_s_per_gib + "}");
  return 0;
}

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

int run_open(const Options& options, bench::CoreClient& client) {
  const bench::Load load = load_of(options);
  bench::Workload workload(client, load);
  workload.begin(std::min(kWarmUpSecondsMax, static_cast<double>(options.runtime) / 1e3));
  const std::string settled = ", \"settled\": " + std::string(workload.settled() ? "true" : "false");
  if (options.ask != 0) {
    std::printf("{\"ready\": true, \"build\": \"%s\"%s}\n", std::string(kBuildType).c_str(), settled.c_str());
    std::fflush(stdout);
  }
  bool right = true;
  for (uint64_t runtime_ms = options.ask != 0 ? asked() : options.runtime; runtime_ms != 0;
       runtime_ms = options.ask != 0 ? asked() : 0) {
    const double cpu_before_s = bench::own_cpu_seconds();
    const bench::Timing timing = workload.run(static_cast<double>(runtime_ms) / 1e3);
    const double cpu_s = bench::own_cpu_seconds() - cpu_before_s;
    if (!options.latencies.empty()) {
      write_doubles(options.latencies + ".gets", timing.gets.latencies_us);
      write_doubles(options.latencies + ".puts", timing.puts.latencies_us);
    }
    const std::string more = ", \"rw\": \"" + options.rw + "\", \"runtime_ms\": " + std::to_string(runtime_ms) +
                             ", \"cpu_s\": " + std::to_string(cpu_s) + settled;
    std::printf("%s\n", bench::document_of(load, timing, more).c_str());
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
  return options.open_loop() ? halfstep::run_open(options, client) : halfstep::run_closed(options, client);
}
