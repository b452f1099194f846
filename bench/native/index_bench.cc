// index_bench.cc — what the block index costs at its design load: memory, prefix matches, inserts, and the keyed hash apart.
// Usage: halfstep_index_bench [--entries N] [--rounds N] [--seed N]. One JSON document on stdout; bench/index.py reads it.
//
// The limit is what the machine does at best with the same accesses: as many random pairs of cache lines, asked for as far
// ahead, read from a table of the same size in the same kind of pages. It runs right before and right after each match of a
// round, over as many pairs as the match has keys, in calls of the same length; a ratio is the match over the mean of the two.
// All of it is measured in a fresh index and again in one whose blocks have all been exchanged.
// Every answer is checked: what was not found, or was found elsewhere than it was put, ends the program.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/build_info.h"
#include "base/hash.h"
#include "base/prng.h"
#include "index/block_index.h"
#include "measure.h"
#include "program.h"

namespace halfstep::index {
namespace {

using bench::fail;
using bench::median;
using bench::Number;
using bench::print_samples;
using bench::read_options;
using bench::seconds_of;

constexpr std::array<size_t, 3> kPrefixes = {32, 256, 1024};
// Few enough that keys and answers stay in the core's own cache, as those of a request do.
constexpr size_t kKeysPerRound = size_t{1} << 15;
constexpr size_t kFillBatch = 4096;
constexpr size_t kInsertAhead = 12;
// scope, component, length, and an engine key of vLLM's 36 bytes, as the store hashes them.
constexpr size_t kMessageBytes = 9 + 36;

struct Options {
  uint64_t entries = 20'000'000;
  uint64_t rounds = 21;
  uint64_t seed = 1;
};

Options options_of(int count, char** arguments) {
  Options options;
  const std::array<Number, 3> numbers{
      {{"--entries", &options.entries}, {"--rounds", &options.rounds}, {"--seed", &options.seed}}};
  read_options(count, arguments, numbers, {});
  for (const auto& [name, value] : numbers) {
    if (*value == 0) fail(std::string(name) + " 0: must be a number above 0");
  }
  return options;
}

// Keys that nobody has to store: two rounds of splitmix64 over the block's number. Those from `entries` on are absent.
Hash128 key_of(uint64_t block, uint64_t seed) {
  const auto mixed = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  };
  const uint64_t at = (seed << 40) + 2 * block;
  return {mixed(at * 0x9E3779B97F4A7C15U), mixed((at + 1) * 0x9E3779B97F4A7C15U)};
}

uint64_t resident_bytes() {
  uint64_t pages = 0;
  std::ifstream statm("/proc/self/statm");
  statm >> pages >> pages;
  if (!statm) fail("/proc/self/statm cannot be read");
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// What the compiler must believe to be used.
volatile uint64_t sink;

// ---- The limit -------------------------------------------------------------------------------------------------------------

struct alignas(128) Pair {
  uint64_t words[16];
};

[[gnu::noinline]] uint64_t read_pairs(const Pair* pairs, const uint64_t* places, size_t count) {
  constexpr size_t kAhead = 16;
  const auto ask = [&](size_t at) {
    __builtin_prefetch(&pairs[places[at]].words[0]);
    __builtin_prefetch(&pairs[places[at]].words[8]);
  };
  uint64_t sum = 0;
  for (size_t at = 0; at < std::min(kAhead, count); ++at) ask(at);
  for (size_t at = 0; at < count; ++at) {
    if (at + kAhead < count) ask(at + kAhead);
    sum += pairs[places[at]].words[0] + pairs[places[at]].words[8];
  }
  return sum;
}

class Limit {
 public:
  explicit Limit(const BlockIndex& index) : count_(index.buckets()) {
    const bool large = index.mapping().pages() != Mapping::Pages::Ordinary;
    if (const Fault fault = Mapping::create({.bytes = index.bytes(), .large_pages = large, .what = "index"}, &mapping_);
        !fault.ok())
      fail(fault.what);
    std::memset(mapping_.bytes().data(), 1, mapping_.bytes().size());
  }

  // ns a pair, in calls of `prefix` pairs.
  double measure(Prng& prng, size_t prefix) {
    places_.resize(kKeysPerRound);
    for (uint64_t& place : places_) place = prng.below(count_);
    const auto* pairs = reinterpret_cast<const Pair*>(mapping_.bytes().data());
    const double seconds = seconds_of([&] {
      for (size_t at = 0; at < places_.size(); at += prefix) sink = sink + read_pairs(pairs, &places_[at], prefix);
    });
    return 1e9 * seconds / static_cast<double>(places_.size());
  }
  uint64_t large_bytes() const { return mapping_.large_bytes(); }

 private:
  Mapping mapping_;
  uint64_t count_;
  std::vector<uint64_t> places_;
};

// ---- What is measured ------------------------------------------------------------------------------------------------------

// Both are spread over all loads from empty to full: every other batch of inserts asks for memory ahead, as recovery does.
struct Fill {
  double plain_ns = 0;
  double prefetched_ns = 0;
};

Entry entry_of(uint64_t block) {
  Entry entry;
  entry.set_location({block, 0});
  return entry;
}

Fill fill(BlockIndex& index, const Options& options) {
  std::vector<Hash128> keys(kFillBatch);
  std::array<double, 2> seconds{};
  std::array<uint64_t, 2> inserted{};
  bool ahead = false;
  for (uint64_t first = 0; first < options.entries; first += kFillBatch, ahead = !ahead) {
    const size_t count = std::min<uint64_t>(kFillBatch, options.entries - first);
    for (size_t i = 0; i < count; ++i) keys[i] = key_of(first + i, options.seed);
    seconds[ahead] += seconds_of([&] {
      for (size_t i = 0; i < count; ++i) {
        if (ahead && i + kInsertAhead < count) index.prefetch(keys[i + kInsertAhead]);
        if (!index.insert(keys[i], entry_of(first + i)).ok()) fail("full after " + std::to_string(index.size()) + " blocks");
      }
    });
    inserted[ahead] += count;
  }
  const auto ns = [&](size_t which) {
    return 1e9 * seconds[which] / static_cast<double>(std::max<uint64_t>(1, inserted[which]));
  };
  return {ns(0), ns(1)};
}

// Every block leaves and another comes in its place, at the design load and asked for ahead: afterwards the index looks like
// one that has been in use, with more strays than a fresh one. ns for the pair of both.
double churn(BlockIndex& index, const Options& options) {
  std::vector<Hash128> leaving(kFillBatch);
  std::vector<Hash128> coming(kFillBatch);
  double seconds = 0;
  for (uint64_t first = 0; first < options.entries; first += kFillBatch) {
    const size_t count = std::min<uint64_t>(kFillBatch, options.entries - first);
    for (size_t i = 0; i < count; ++i) {
      leaving[i] = key_of(first + i, options.seed);
      coming[i] = key_of(options.entries + first + i, options.seed);
    }
    seconds += seconds_of([&] {
      for (size_t i = 0; i < count; ++i) {
        if (i + kInsertAhead < count) {
          index.prefetch(leaving[i + kInsertAhead]);
          index.prefetch(coming[i + kInsertAhead]);
        }
        if (!index.erase(leaving[i], {first + i, 0})) fail("a block that was put was not found");
        const uint64_t block = options.entries + first + i;
        if (!index.insert(coming[i], entry_of(block)).ok()) fail("full at the design load");
      }
    });
  }
  return 1e9 * seconds / static_cast<double>(options.entries);
}

struct Match {
  std::vector<double> present_ns, limit_ns, present_ratio, absent_ns, absent_ratio, first_absent_ns;
};

struct State {
  uint64_t first_block = 0;  // of those that are there; as many as were filled in
  double strays = 0;         // share
  std::array<Match, kPrefixes.size()> matches;
};

struct Blocks {
  std::vector<uint64_t> numbers;
  std::vector<Hash128> keys;
  void draw(Prng& prng, uint64_t from, uint64_t count, uint64_t seed) {
    numbers.resize(kKeysPerRound);
    keys.resize(kKeysPerRound);
    for (size_t i = 0; i < kKeysPerRound; ++i) {
      numbers[i] = from + prng.below(count);
      keys[i] = key_of(numbers[i], seed);
    }
  }
};

void measure_matches(const BlockIndex& index, Limit& limit, const Options& options, Prng& prng, uint64_t first_block,
                     size_t prefix, Match* out) {
  Blocks blocks;
  std::vector<Found> found(prefix);
  uint64_t present = 0;
  const auto for_each_call = [&](auto&& call) {
    return seconds_of([&] {
      for (size_t at = 0; at < kKeysPerRound; at += prefix) call(std::span<const Hash128>(&blocks.keys[at], prefix), at);
    });
  };
  const auto match_prefix = [&](std::span<const Hash128> keys, size_t) { present += index.longest_prefix(keys, found); };
  const auto find_many = [&](std::span<const Hash128> keys, size_t) {
    index.find_many(keys, found);
    sink = sink + found[prefix - 1].handle.place;
  };

  blocks.draw(prng, first_block, options.entries, options.seed);
  const double before = limit.measure(prng, prefix);
  const double present_s = for_each_call(match_prefix);
  const double after = limit.measure(prng, prefix);
  if (present != kKeysPerRound) fail("a block that was put was not found");
  for_each_call([&](std::span<const Hash128> keys, size_t at) {
    index.find_many(keys, found);
    for (size_t i = 0; i < prefix; ++i) {
      if (found[i].entry.location().page != blocks.numbers[at + i]) fail("a block was found elsewhere than it was put");
    }
  });

  blocks.draw(prng, 2 * options.entries, options.entries, options.seed);
  const double before_absent = limit.measure(prng, prefix);
  const double absent_s = for_each_call(find_many);
  const double after_absent = limit.measure(prng, prefix);
  const double first_absent_s = for_each_call(match_prefix);
  if (present != kKeysPerRound) fail("a block that was never put was found");
  for_each_call([&](std::span<const Hash128> keys, size_t) {
    index.find_many(keys, found);
    for (const Found& one : found) {
      if (one) fail("a block that was never put was found");
    }
  });

  const auto per_key = [](double seconds) { return 1e9 * seconds / static_cast<double>(kKeysPerRound); };
  out->present_ns.push_back(per_key(present_s));
  out->limit_ns.push_back((before + after) / 2);
  out->present_ratio.push_back(2 * per_key(present_s) / (before + after));
  out->absent_ns.push_back(per_key(absent_s));
  out->absent_ratio.push_back(2 * per_key(absent_s) / (before_absent + after_absent));
  out->first_absent_ns.push_back(per_key(first_absent_s) * static_cast<double>(prefix));
}

struct HashCost {
  std::vector<double> many_ns, each_ns;
};

void measure_hash(Prng& prng, HashCost* out) {
  constexpr size_t kBatch = 256;
  const HashKey secret{prng.next(), prng.next()};
  std::vector<std::byte> bytes(kBatch * kMessageBytes);
  prng.fill(bytes);
  std::vector<ConstBytes> messages;
  for (size_t i = 0; i < kBatch; ++i) messages.push_back(ConstBytes(bytes).subspan(i * kMessageBytes, kMessageBytes));
  std::vector<Hash128> hashes(kBatch);
  const auto per_key = [](double seconds) { return 1e9 * seconds / static_cast<double>(kKeysPerRound); };
  out->many_ns.push_back(per_key(seconds_of([&] {
    for (size_t at = 0; at < kKeysPerRound; at += kBatch) {
      keyed_hash_many(secret, messages, hashes);
      sink = sink + hashes[kBatch - 1].low;
    }
  })));
  out->each_ns.push_back(per_key(seconds_of([&] {
    for (size_t at = 0; at < kKeysPerRound; at += kBatch) {
      for (size_t i = 0; i < kBatch; ++i) hashes[i] = keyed_hash(secret, messages[i]);
      sink = sink + hashes[kBatch - 1].low;
    }
  })));
}

const char* pages_name(Mapping::Pages pages) {
  switch (pages) {
    case Mapping::Pages::Reserved: return "reserved 2 MiB";
    case Mapping::Pages::Transparent: return "transparent 2 MiB";
    case Mapping::Pages::Ordinary: break;
  }
  return "ordinary";
}

void print_state(const char* name, const State& state, const char* end) {
  std::printf("\"%s\": {\"strays\": %.4f, \"matches\": [", name, state.strays);
  for (size_t i = 0; i < kPrefixes.size(); ++i) {
    const Match& match = state.matches[i];
    std::printf("%s{\"keys\": %zu, ", i == 0 ? "" : ", ", kPrefixes[i]);
    print_samples("present_ns", match.present_ns, ", ");
    print_samples("limit_ns", match.limit_ns, ", ");
    print_samples("present_ratio", match.present_ratio, ", ");
    print_samples("absent_ns", match.absent_ns, ", ");
    print_samples("absent_ratio", match.absent_ratio, ", ");
    print_samples("first_absent_ns", match.first_absent_ns, "}");
  }
  std::printf("]}%s", end);
}

void print_number(const char* name, uint64_t value) {
  std::printf("\"%s\": %llu, ", name, static_cast<unsigned long long>(value));
}

int run(const Options& options) {
  const uint64_t before = resident_bytes();
  std::unique_ptr<BlockIndex> index;
  if (const Fault fault = BlockIndex::create(BlockIndex::bytes_for(options.entries), true, &index); !fault.ok())
    fail(fault.what);
  const Fill filled = fill(*index, options);
  const uint64_t resident = resident_bytes() - before;

  Limit limit(*index);
  Prng prng(options.seed);
  HashCost hash;
  const auto measure = [&](State* state) {
    state->strays = static_cast<double>(index->strays()) / static_cast<double>(index->size());
    for (uint64_t round = 0; round < options.rounds; ++round) {
      measure_hash(prng, &hash);
      for (size_t i = 0; i < kPrefixes.size(); ++i) {
        measure_matches(*index, limit, options, prng, state->first_block, kPrefixes[i], &state->matches[i]);
      }
    }
  };
  State fresh;
  measure(&fresh);
  const double churn_ns = churn(*index, options);
  State used;
  used.first_block = options.entries;
  measure(&used);

  bench::print_build();
  print_number("seed", options.seed);
  print_number("rounds", options.rounds);
  print_number("entries", index->size());
  print_number("slots", index->slots());
  print_number("index_bytes", index->bytes());
  print_number("resident_bytes", resident);
  print_number("large_bytes", index->mapping().large_bytes());
  print_number("limit_large_bytes", limit.large_bytes());
  std::printf("\"pages\": \"%s\", ", pages_name(index->mapping().pages()));
  std::printf("\"insert_ns\": %.1f, \"insert_prefetched_ns\": %.1f, \"churn_ns\": %.1f, ", filled.plain_ns,
              filled.prefetched_ns, churn_ns);
  print_number("hash_message_bytes", kMessageBytes);
  print_samples("hash_many_ns", hash.many_ns, ", ");
  print_samples("hash_each_ns", hash.each_ns, ", ");
  print_state("fresh", fresh, ", ");
  print_state("used", used, "}\n");
  return 0;
}

}  // namespace
}  // namespace halfstep::index

int main(int count, char** arguments) {
  if (halfstep::kBuildType != "release") {
    std::fprintf(stderr, "halfstep_index_bench: a %s build says nothing about speed; build the release preset\n",
                 std::string(halfstep::kBuildType).c_str());
    return 2;
  }
  return halfstep::index::run(halfstep::index::options_of(count, arguments));
}
