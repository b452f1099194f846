// program.h — what the programs of this folder share: options by name, a core, CPU time, and a document about timed calls.
#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/build_info.h"

namespace halfstep::bench {

[[noreturn]] inline void fail(const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, why.c_str());
  std::exit(1);
}
[[noreturn]] inline void fail_errno(const std::string& what) { fail(what + ": " + std::strerror(errno)); }

using Number = std::pair<std::string_view, uint64_t*>;
using Text = std::pair<std::string_view, std::string*>;

inline constexpr uint64_t kAnyCore = UINT64_MAX;

// Every name that is known, with the value that it has so far.
inline std::string known_options(std::span<const Number> numbers, std::span<const Text> texts) {
  std::string known;
  for (const auto& [name, value] : texts)
    known += "  " + std::string(name) + " TEXT  (" + (value->empty() ? "none" : *value) + ")\n";
  for (const auto& [name, value] : numbers) {
    known += "  " + std::string(name) + " N  (" + (*value == kAnyCore ? "any" : std::to_string(*value)) + ")\n";
  }
  return known;
}

// --name value, for every name that is known; --help says which, and ends the program.
inline void read_options(int count, char** arguments, std::span<const Number> numbers, std::span<const Text> texts) {
  for (int i = 1; i < count; i += 2) {
    const std::string_view name = arguments[i];
    if (name == "--help" || name == "-h") {
      std::printf("usage: %s [--name value]...; one JSON document on stdout. Each with its default:\n%s",
                  program_invocation_short_name, known_options(numbers, texts).c_str());
      std::exit(0);
    }
    const std::string value = i + 1 < count ? arguments[i + 1] : "";
    const auto number = std::ranges::find(numbers, name, &Number::first);
    const auto text = std::ranges::find(texts, name, &Text::first);
    if (text != texts.end() && i + 1 < count) {
      *text->second = value;
    } else if (number != numbers.end() && !value.empty()) {
      errno = 0;
      *number->second = std::strtoull(value.c_str(), nullptr, 10);
      const bool digits = value.find_first_not_of("0123456789") == std::string::npos;
      if (!digits || errno == ERANGE || *number->second == UINT64_MAX)
        fail(std::string(name) + " " + value + ": must be a whole number from 0 to 2^64 - 2");
    } else {
      fail(std::string(name) + " " + value + ": not understood; --help says what is");
    }
  }
}

inline constexpr uint64_t kRuntimeMsMax = 3'600'000;

inline void within(const char* name, uint64_t value, uint64_t lowest, uint64_t highest) {
  if (value >= lowest && value <= highest) return;
  fail(std::string(name) + " " + std::to_string(value) + ": must be " + std::to_string(lowest) + " to " +
       std::to_string(highest));
}

inline void pin(uint64_t core) {
  if (core == kAnyCore) return;
  if (const long cores = ::sysconf(_SC_NPROCESSORS_CONF);
      core >= std::min<uint64_t>(static_cast<uint64_t>(cores), CPU_SETSIZE)) {
    fail("core " + std::to_string(core) + ": must be 0 to " + std::to_string(cores - 1));
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) fail_errno("core " + std::to_string(core));
}

// User's and kernel's.
inline double cpu_seconds(const rusage& usage) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}
inline double own_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return cpu_seconds(usage);
}

// Calls that moved `blocks` blocks together within `seconds`.
struct Calls {
  std::vector<double> latencies_us;
  double seconds = 0;
  uint64_t blocks = 0;
  uint64_t block_bytes = 0;

  double blocks_per_s() const { return static_cast<double>(blocks) / seconds; }
};

// What that share of the values does not exceed: one of them, never a mean of two. They are sorted, and there is one at least.
inline double quantile(std::span<const double> sorted, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

// Percentiles as a JSON object; null of none.
inline std::string latency_object(std::vector<double> latencies_us) {
  if (latencies_us.empty()) return "null";
  std::ranges::sort(latencies_us);
  char text[128];
  std::snprintf(text, sizeof text, "{\"p50\": %.1f, \"p99\": %.1f, \"p999\": %.1f}", quantile(latencies_us, 0.5),
                quantile(latencies_us, 0.99), quantile(latencies_us, 0.999));
  return text;
}

// What a document about this build begins with, up to its next member.
inline void print_build() {
  std::printf("{\"version\": \"%s\", \"build\": \"%s\", \"commit\": \"%s\", ", std::string(kVersion).c_str(),
              std::string(kBuildType).c_str(), std::string(kCommit).c_str());
}

// `more`: further fields, each with a comma before it.
inline void print_document(const Calls& calls, const std::string& more) {
  std::printf(
      "{\"build\": \"%s\", \"bytes_per_s\": %.0f, \"blocks_per_s\": %.1f, \"calls\": %zu, \"seconds\": %.3f, "
      "\"latency_us\": %s%s}\n",
      std::string(kBuildType).c_str(), calls.blocks_per_s() * static_cast<double>(calls.block_bytes), calls.blocks_per_s(),
      calls.latencies_us.size(), calls.seconds, latency_object(calls.latencies_us).c_str(), more.c_str());
}

}  // namespace halfstep::bench
