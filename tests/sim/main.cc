// main.cc — halfstep_sim: seeds over all cores, and for the first that fails its rule, its seed and a shrunk history.
// Built a second time with the store's mutants in it (store/format/mutant.h): halfstep_sim_mutants.
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/build_info.h"
#include "sim/farm.h"
#include "store/format/mutant.h"

namespace halfstep::sim {
namespace {

constexpr uint32_t kReplaysMax = 3000;
// From so many seeds on every kind of fault must have fired.
constexpr uint64_t kSeedsForAllFaults = 500;

struct Arguments {
  FarmConfig farm;
  bool json = false;
  bool verbose = false;
  bool help = false;
  std::string mutant;  // "all": each in turn
  std::string known;   // a file of what an earlier hunt printed
  std::string error;
};

constexpr std::string_view kUsage =
    "usage: halfstep_sim [--seeds N] [--start S] [--jobs N] [--steps N] [--faults all|none|LIST] [--verbose] [--json]\n"
    "  --seeds N    how many seeds (1000)         --start S   the first one (0)\n"
    "  --jobs N     processes (1)                 --steps N   operations of a history (120)\n"
    "  --faults     all, none, or names with commas between them; --help lists them\n"
    "  --verbose    the whole history of a failing seed, too\n"
    "  --json       the result as one JSON object\n";

Arguments parse(const std::vector<std::string_view>& words) {
  Arguments arguments;
  const auto wrong = [&](std::string_view option, std::string_view value, std::string_view remedy) {
    arguments.error = std::string(option) + "=" + std::string(value) + ": " + std::string(remedy);
  };
  for (size_t at = 0; at < words.size() && arguments.error.empty(); ++at) {
    const std::string_view option = words[at];
    if (option == "--json" || option == "--verbose" || option == "--help") {
      (option == "--json" ? arguments.json : option == "--verbose" ? arguments.verbose : arguments.help) = true;
      continue;
    }
    if (at + 1 == words.size()) {
      arguments.error = std::string(option) + ": unknown, or without its value; see --help";
      break;
    }
    const std::string_view value = words[++at];
    const auto number = [&](uint64_t least, uint64_t most) {
      uint64_t parsed = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
      if (error != std::errc() || end != value.data() + value.size() || parsed < least || parsed > most) {
        wrong(option, value, "must be a number from " + std::to_string(least) + " to " + std::to_string(most));
      }
      return parsed;
    };
    if (option == "--seeds") {
      arguments.farm.seeds = number(1, UINT64_MAX);
    } else if (option == "--start") {
      arguments.farm.start = number(0, UINT64_MAX);
    } else if (option == "--jobs") {
      arguments.farm.jobs = static_cast<uint32_t>(number(1, 1024));
    } else if (option == "--steps") {
      arguments.farm.history.steps = static_cast<uint32_t>(number(1, 1'000'000));
    } else if (option == "--mutant") {
      arguments.mutant = value;
    } else if (option == "--known") {
      arguments.known = value;
    } else if (option == "--faults") {
      if (value == "all") continue;
      arguments.farm.history.faults = 0;
      for (size_t from = 0; value != "none" && from <= value.size();) {
        const std::string_view name = value.substr(from, value.find(',', from) - from);
        from += name.size() + 1;
        size_t kind = 0;
        while (kind < kFaultKinds && name_of(static_cast<FaultKind>(kind)) != name) ++kind;
        if (kind == kFaultKinds) {
          wrong(option, name, "no such fault; see --help");
          break;
        }
        arguments.farm.history.faults |= 1U << kind;
      }
    } else {
      arguments.error = std::string(option) + ": unknown; see --help";
    }
  }
  return arguments;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

struct Explained {
  Violation violation;
  History history;  // shrunk
};

// A rule that was broken is looked at in a process of its own, too: a mutant may end it at any replay.
Explained explain(const Arguments& arguments, const Failure& failure) {
  const History whole = make_history(failure.seed, arguments.farm.history);
  const uint32_t seconds = arguments.farm.seed_seconds_max;
  const Replay replay = [seconds](const History& history) { return run_apart(history, seconds); };
  const std::optional<Violation> violation = replay(whole);
  if (!violation.has_value()) {
    return {{Rule::Stuck, failure.why + ", and not when it was run again: what differs is the machine's", 0}, whole};
  }
  Explained explained{*violation, shrink(whole, *violation, replay, failure.why == "hangs" ? 20 : kReplaysMax)};
  if (const std::optional<Violation> last = replay(explained.history); last.has_value()) explained.violation = *last;
  return explained;
}

void print_history(const History& history) {
  std::printf("  %s\n", text_of(history.profile).c_str());
  for (size_t step = 0; step < history.ops.size(); ++step) {
    std::printf("  %4zu  %s\n", step, text_of(history.ops[step]).c_str());
  }
}

struct Figure {
  std::string_view name;
  uint64_t value;
};
std::vector<Figure> figures_of(const Tally& t) {
  return {{"operations", t.operations},
          {"puts", t.puts},
          {"persisted", t.persists},
          {"hits", t.hits},
          {"misses", t.misses},
          {"removes", t.removes},
          {"expiries changed", t.expiries},
          {"restarts", t.restarts},
          {"operations while recovering", t.served_recovering},
          {"blocks staged", t.stages},
          {"blocks read in parts", t.part_hits},
          {"parts handed out early", t.parts_landed},
          {"crashes in open", t.crashes_in_open},
          {"crashes in recovery", t.crashes_in_recovery},
          {"crashes in close", t.crashes_in_close},
          {"segments reclaimed", t.segments_reclaimed},
          {"blocks evicted", t.blocks_evicted},
          {"looks at hints", t.hint_looks},
          {"segments retired", t.segments_retired},
          {"segments tried again", t.segments_tried_again},
          {"frames written again", t.frames_repeated},
          {"ended by two header faults", t.stores_lost}};
}

std::vector<Figure> faults_of(const Tally& tally) {
  std::vector<Figure> faults;
  for (size_t kind = 0; kind < kFaultKinds; ++kind)
    faults.push_back({name_of(static_cast<FaultKind>(kind)), tally.faults[kind]});
  faults.push_back({"lost-write", tally.lost_writes});
  return faults;
}

// Those that were asked for and never fired.
std::vector<std::string_view> silent_faults(const Arguments& arguments, const FarmResult& result) {
  std::vector<std::string_view> silent;
  if (result.seeds_done < kSeedsForAllFaults) return silent;
  for (size_t kind = 0; kind < kFaultKinds; ++kind) {
    const bool wanted = (arguments.farm.history.faults & (1U << kind)) != 0;
    if (wanted && result.tally.faults[kind] == 0) silent.push_back(name_of(static_cast<FaultKind>(kind)));
  }
  if ((arguments.farm.history.faults & bit_of(FaultKind::PowerCut)) != 0 && result.tally.lost_writes == 0) {
    silent.push_back("lost-write");
  }
  return silent;
}

void print_json(const Arguments& arguments, const FarmResult& result, const Explained* explained) {
  std::printf(
      "{\"seeds\": %llu, \"start\": %llu, \"steps\": %u, \"jobs\": %u, \"seconds\": %.3f, \"seeds_per_second\": %.1f,\n",
      static_cast<unsigned long long>(result.seeds_done), static_cast<unsigned long long>(arguments.farm.start),
      arguments.farm.history.steps, arguments.farm.jobs, result.seconds,
      result.seconds > 0 ? static_cast<double>(result.seeds_done) / result.seconds : 0);
  const auto object = [](const char* name, const std::vector<Figure>& figures) {
    std::printf(" \"%s\": {", name);
    for (size_t i = 0; i < figures.size(); ++i) {
      std::printf("%s\"%s\": %llu", i == 0 ? "" : ", ", std::string(figures[i].name).c_str(),
                  static_cast<unsigned long long>(figures[i].value));
    }
    std::printf("},\n");
  };
  object("faults", faults_of(result.tally));
  object("work", figures_of(result.tally));
  std::printf(" \"interrupted\": %s, \"failure\": ", result.interrupted ? "true" : "false");
  if (explained == nullptr) {
    std::printf("null}\n");
    return;
  }
  std::printf("{\"seed\": %llu, \"rule\": %s, \"what\": %s, \"history\": [",
              static_cast<unsigned long long>(explained->history.seed), quoted(name_of(explained->violation.rule)).c_str(),
              quoted(explained->violation.what).c_str());
  for (size_t step = 0; step < explained->history.ops.size(); ++step) {
    std::printf("%s%s", step == 0 ? "" : ", ", quoted(text_of(explained->history.ops[step])).c_str());
  }
  std::printf("]}}\n");
}

void print_summary(const FarmResult& result) {
  std::printf("%llu seeds in %.1f s, %.0f a second%s\n", static_cast<unsigned long long>(result.seeds_done), result.seconds,
              result.seconds > 0 ? static_cast<double>(result.seeds_done) / result.seconds : 0,
              result.interrupted ? "; interrupted" : "");
  const auto table = [](const std::vector<Figure>& figures) {
    for (const Figure& figure : figures) {
      std::printf("  %-30s %12llu\n", std::string(figure.name).c_str(), static_cast<unsigned long long>(figure.value));
    }
  };
  std::printf("faults that fired\n");
  table(faults_of(result.tally));
  std::printf("work\n");
  table(figures_of(result.tally));
}

void print_failure(const Arguments& arguments, const Failure& failure, const Explained& explained) {
  std::printf("seed %llu breaks the rule %s: %s\n  %s\n", static_cast<unsigned long long>(failure.seed),
              std::string(name_of(explained.violation.rule)).c_str(), std::string(promise_of(explained.violation.rule)).c_str(),
              explained.violation.what.c_str());
  std::printf("again: halfstep_sim --seeds 1 --start %llu --steps %u\n", static_cast<unsigned long long>(failure.seed),
              arguments.farm.history.steps);
  if (arguments.verbose) {
    std::printf("whole history\n");
    print_history(make_history(failure.seed, arguments.farm.history));
  }
  std::printf("shrunk history, %zu operations\n", explained.history.ops.size());
  print_history(explained.history);
}

int simulate(const Arguments& arguments) {
  const FarmResult result = run_seeds(arguments.farm);
  std::optional<Explained> explained;
  if (result.failure.has_value()) explained = explain(arguments, *result.failure);
  if (arguments.json) {
    print_json(arguments, result, explained.has_value() ? &*explained : nullptr);
  } else {
    print_summary(result);
    if (explained.has_value()) print_failure(arguments, *result.failure, *explained);
  }
  const std::vector<std::string_view> silent = silent_faults(arguments, result);
  for (const std::string_view name : silent) {
    std::fprintf(stderr, "fault %s: asked for and never fired in %llu seeds\n", std::string(name).c_str(),
                 static_cast<unsigned long long>(result.seeds_done));
  }
  if (result.interrupted) return 130;
  return explained.has_value() || !silent.empty() ? 1 : 0;
}

#ifdef HALFSTEP_SIM_MUTANTS
struct NamedMutant {
  std::string_view name;
  std::string_view rule;
  Mutant mutant;
};
constexpr NamedMutant kMutants[] = {
#define HALFSTEP_MUTANT_ROW(name, rule) {#name, rule, Mutant::name},
    HALFSTEP_MUTANTS(HALFSTEP_MUTANT_ROW)
#undef HALFSTEP_MUTANT_ROW
};

// The seed that caught a mutant when that was looked for last, by the lines that hunt() prints: most are caught at once by it,
// and a change of the simulator costs no more than a hunt.
std::map<std::string, uint64_t> known_seeds(const std::string& path) {
  std::map<std::string, uint64_t> seeds;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::string word;
    uint64_t seed = 0;
    if (words >> name >> word >> seed && word == "seed") seeds[name] = seed;
  }
  return seeds;
}

FarmResult hunt_one(const FarmConfig& farm, const std::map<std::string, uint64_t>& known, std::string_view name) {
  if (const auto seed = known.find(std::string(name)); seed != known.end()) {
    FarmConfig one = farm;
    one.start = seed->second;
    one.seeds = 1;
    FarmResult result = run_seeds(one);
    if (result.interrupted || result.failure.has_value()) return result;
  }
  return run_seeds(farm);
}

// 0 when every mutant that was asked for is caught.
int hunt(const Arguments& arguments) {
  const std::map<std::string, uint64_t> known = known_seeds(arguments.known);
  if (!arguments.known.empty() && known.empty()) {
    std::fprintf(stderr, "--known=%s: no line of a hunt in it; `--mutant all > FILE` writes them\n", arguments.known.c_str());
    return 2;
  }
  // What a mutant's process says as it ends is as many lines as there are mutants, and nothing to look at.
  if (!arguments.verbose) (void)!freopen("/dev/null", "w", stderr);
  uint32_t asked = 0;
  uint32_t caught = 0;
  for (const NamedMutant& mutant : kMutants) {
    if (arguments.mutant != "all" && arguments.mutant != mutant.name) continue;
    ++asked;
    active_mutant = mutant.mutant;
    const FarmResult result = hunt_one(arguments.farm, known, mutant.name);
    if (result.interrupted) return 130;
    if (!result.failure.has_value()) {
      std::printf("%-18s NOT CAUGHT in %llu seeds: %s\n", std::string(mutant.name).c_str(),
                  static_cast<unsigned long long>(result.seeds_done), std::string(mutant.rule).c_str());
      continue;
    }
    ++caught;
    const Failure& failure = *result.failure;
    const std::optional<Violation> violation =
        run_apart(make_history(failure.seed, arguments.farm.history), arguments.farm.seed_seconds_max);
    std::printf("%-18s seed %-6llu %-18s %s\n", std::string(mutant.name).c_str(), static_cast<unsigned long long>(failure.seed),
                violation.has_value() ? std::string(name_of(violation->rule)).c_str() : failure.why.c_str(),
                std::string(mutant.rule).c_str());
    if (arguments.verbose) print_failure(arguments, failure, explain(arguments, failure));
    std::fflush(stdout);
  }
  std::printf("%u of %u mutants caught\n", caught, asked);
  if (asked == 0) std::printf("--mutant=%s: no such mutant; see --help\n", arguments.mutant.c_str());
  return asked > 0 && caught == asked ? 0 : 1;
}
#endif

int main_with(const std::vector<std::string_view>& words) {
  Arguments arguments = parse(words);
  if (!arguments.error.empty()) {
    std::fprintf(stderr, "%s\n", arguments.error.c_str());
    return 2;
  }
  if (arguments.help) {
    std::printf("%sfaults:", std::string(kUsage).c_str());
    for (size_t kind = 0; kind < kFaultKinds; ++kind) {
      std::printf(" %s", std::string(name_of(static_cast<FaultKind>(kind))).c_str());
    }
    std::printf("\n");
#ifdef HALFSTEP_SIM_MUTANTS
    std::printf(
        "  --mutant     run that fault of the store, or `all` of them, each until it is caught\n"
        "  --known FILE  what `--mutant all` printed: of each mutant its seed there first\n");
    for (const NamedMutant& mutant : kMutants) {
      std::printf("    %-18s %s\n", std::string(mutant.name).c_str(), std::string(mutant.rule).c_str());
    }
#endif
    return 0;
  }
  arguments.farm.progress = isatty(STDERR_FILENO) != 0;
#ifdef HALFSTEP_SIM_MUTANTS
  if (!arguments.mutant.empty()) return hunt(arguments);
#endif
  if (!arguments.mutant.empty()) {
    std::fprintf(stderr, "--mutant=%s: this build has none; halfstep_sim_mutants has\n", arguments.mutant.c_str());
    return 2;
  }
  return simulate(arguments);
}

}  // namespace
}  // namespace halfstep::sim

int main(int argc, char** argv) { return halfstep::sim::main_with({argv + 1, argv + argc}); }
