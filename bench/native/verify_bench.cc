// verify_bench.cc — what one pass of verification costs: CPU time per GiB of the checksum that every part and extent has.
// Usage: halfstep_verify_bench [--rounds N] [--piece BYTES] [--set BYTES]. One JSON document on stdout; bench/verify_cost.py
// reads it.
//
// Hot is how both ends verify: a piece lands, and is summed while it is still in the core's caches. Landing is played by the
// copy that the kernel would make, out of a set that is larger than the caches; that copy is the limit, and its time is not in
// the pass. Cold is the same sum over the set itself, out of memory. Every sum is checked: the pieces' combined have to be that
// of the whole.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/build_info.h"
#include "base/bytes.h"
#include "base/crc.h"
#include "base/prng.h"
#include "base/units.h"
#include "measure.h"

namespace halfstep {
namespace {

using bench::fail;

struct Options {
  uint64_t rounds = 21;
  uint64_t piece = 256 * KiB;  // a chunk on the wire, and the most that is summed at once
  uint64_t set = 256 * MiB;
};

Options options_of(int count, char** arguments) {
  Options options;
  const bench::Number numbers[] = {{"--rounds", &options.rounds}, {"--piece", &options.piece}, {"--set", &options.set}};
  bench::read_options(count, arguments, numbers, {});
  if (options.rounds == 0 || options.piece == 0 || options.set == 0 || options.set % options.piece != 0) {
    fail("--rounds " + std::to_string(options.rounds) + " --piece " + std::to_string(options.piece) + " --set " +
         std::to_string(options.set) + ": must be above 0, the set a multiple of the piece");
  }
  return options;
}

struct Costs {
  std::vector<double> hot_ms, cold_ms, copy_ms, ratio;  // a GiB
};

// One pass over the set each way.
void measure(const std::vector<std::byte>& set, const Options& options, std::vector<std::byte>& landing, Costs* costs) {
  double copy_s = 0;
  double hot_s = 0;
  uint32_t combined = 0;
  for (uint64_t at = 0; at < set.size(); at += options.piece) {
    uint32_t sum = 0;
    copy_s += bench::seconds_of([&] { std::memcpy(landing.data(), set.data() + at, options.piece); });
    hot_s += bench::seconds_of([&] { sum = crc32c(ConstBytes(landing)); });
    combined = crc32c_combine(combined, sum, options.piece);
  }
  uint32_t whole = 0;
  const double cold_s = bench::seconds_of([&] { whole = crc32c(ConstBytes(set)); });
  if (combined != whole) fail("the sums of the pieces are not the sum of the whole");
  const double ms_per_gib = 1000.0 * static_cast<double>(GiB) / static_cast<double>(set.size());
  costs->hot_ms.push_back(hot_s * ms_per_gib);
  costs->cold_ms.push_back(cold_s * ms_per_gib);
  costs->copy_ms.push_back(copy_s * ms_per_gib);
  costs->ratio.push_back(hot_s / copy_s);
}

int run(const Options& options) {
  std::vector<std::byte> set(options.set);
  std::vector<std::byte> landing(options.piece);
  Prng prng(1);
  for (uint64_t at = 0; at + sizeof(uint64_t) <= set.size(); at += sizeof(uint64_t)) store_le(set.data() + at, prng.next());
  Costs costs;
  Costs warm_up;
  measure(set, options, landing, &warm_up);
  for (uint64_t round = 0; round < options.rounds; ++round) measure(set, options, landing, &costs);
  bench::print_build();
  std::printf("\"rounds\": %llu, \"piece_bytes\": %llu, \"set_bytes\": %llu, ", static_cast<unsigned long long>(options.rounds),
              static_cast<unsigned long long>(options.piece), static_cast<unsigned long long>(options.set));
  bench::print_samples("hot_ms_per_gib", costs.hot_ms, ", ");
  bench::print_samples("cold_ms_per_gib", costs.cold_ms, ", ");
  bench::print_samples("copy_ms_per_gib", costs.copy_ms, ", ");
  bench::print_samples("hot_to_copy", costs.ratio, "}\n");
  return 0;
}

}  // namespace
}  // namespace halfstep

int main(int count, char** arguments) {
  if (halfstep::kBuildType != "release") {
    std::fprintf(stderr, "halfstep_verify_bench: a %s build says nothing about speed; build the release preset\n",
                 std::string(halfstep::kBuildType).c_str());
    return 2;
  }
  return halfstep::run(halfstep::options_of(count, arguments));
}
