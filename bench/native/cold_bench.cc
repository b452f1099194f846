// cold_bench.cc — what verification costs a cold read: the same store, the same blocks, with it and without.
// Usage: halfstep_cold_bench --path FILE [--blocks N] [--block-bytes N] [--depth N] [--rounds N]
//
// The one program whose store can leave verification out: it is compiled with the store's mutants (store/format/mutant.h), of
// which no product build has any. Fills a file of its own, which it removes at the end, opens it anew, and reads all blocks
// through the store, `depth` at once and past the page cache; round for round with and without, in turns. No block may come
// from memory. One JSON document on stdout; bench/verify_cold.py runs it.
#include <unistd.h>

#include "machine.h"
#include "measure.h"
#include "store/format/mutant.h"
#include "stored_blocks.h"

namespace halfstep::bench {
namespace {

struct Setup {
  std::string path;
  uint64_t blocks = 1024;
  uint64_t block_bytes = 1 * MiB;
  uint64_t depth = 8;
  uint64_t rounds = 11;
};

constexpr uint64_t kArenaBytes = 64 * MiB;
constexpr uint64_t kSegmentBytes = 64 * MiB;

struct Round {
  double seconds = 0;
  double cpu_seconds = 0;
};

class Bench {
 public:
  explicit Bench(const Setup& setup) : setup_(setup), layout_(layout_of_one_part("cold reads", setup.block_bytes)) {}

  void fill() {
    const store::Geometry geometry = roomy_geometry(setup_.blocks, setup_.block_bytes, kSegmentBytes);
    make_file(setup_.path, geometry.device_bytes, /*sparse=*/false);
    Machine machine(setup_.path, kArenaBytes);
    check(store::Store::format(*machine.engine, *machine.arena, machine.clock, geometry));
    const std::unique_ptr<store::Store> fresh = machine.open();
    StoredBlocks blocks(machine, *fresh, layout_, setup_.block_bytes, 1);
    for (uint64_t block = 0; block < setup_.blocks; ++block) blocks.put(block, /*persist=*/true);
    check(fresh->close(), "close");
  }

  void measure() {
    Machine machine(setup_.path, kArenaBytes);
    if (!machine.backing->facts().direct) fail(setup_.path + ": no O_DIRECT here, so that reads may come from the page cache");
    const std::unique_ptr<store::Store> opened = machine.open();
    const StoredBlocks blocks(machine, *opened, layout_, setup_.block_bytes, 1);
    (void)read_all(machine, *opened, blocks);  // once for nothing
    for (uint64_t round = 0; round < setup_.rounds; ++round) {
      for (const bool second : {false, true}) {
        const bool verified = second == (round % 2 == 0);
        active_mutant = verified ? Mutant::None : Mutant::NoVerify;
        (verified ? with_ : without_).push_back(read_all(machine, *opened, blocks));
      }
    }
    if (opened->counters().hits_memory > 0) fail("some blocks came from memory: more --blocks are needed");
    print(machine);
  }

 private:
  // `depth` reads in flight, a new one as soon as one is done.
  Round read_all(Machine& machine, store::Store& from, const StoredBlocks& blocks) {
    struct Lane {
      store::Read read;
      uint64_t block = 0;
      bool busy = false;
      bool done = false;
    };
    std::vector<Lane> lanes(setup_.depth);
    const double cpu_before = thread_cpu_seconds();
    const uint64_t before_us = machine.clock.now_us();
    uint64_t next = 0;
    for (uint64_t read = 0; read < setup_.blocks; machine.turn(from)) {
      for (Lane& lane : lanes) {
        if (lane.done) {
          check(lane.read.status, "get");
          from.unpin(lane.read.resident);
          lane.busy = lane.done = false;
          ++read;
        }
        if (lane.busy || next == setup_.blocks) continue;
        lane.block = next++;
        lane.busy = true;
        const store::BlockName wanted = blocks.name(lane.block);
        lane.read = {};
        lane.read.key = from.key_of(wanted);
        lane.read.component = wanted.component;
        lane.read.owner = &lane;
        lane.read.complete = [](store::Read& r) { static_cast<Lane*>(r.owner)->done = true; };
        store::Read* window[] = {&lane.read};
        check(from.begin_reads(window), "begin_reads");
      }
    }
    return {static_cast<double>(machine.clock.now_us() - before_us) / 1e6, thread_cpu_seconds() - cpu_before};
  }

  void print(const Machine& machine) const {
    const double bytes = static_cast<double>(setup_.blocks * setup_.block_bytes);
    std::vector<double> with_rate, without_rate, ratio, with_cpu, without_cpu;
    for (size_t i = 0; i < with_.size(); ++i) {
      with_rate.push_back(bytes / with_[i].seconds / 1e6);
      without_rate.push_back(bytes / without_[i].seconds / 1e6);
      ratio.push_back(without_[i].seconds / with_[i].seconds);
      with_cpu.push_back(with_[i].cpu_seconds * GiB / bytes * 1e3);
      without_cpu.push_back(without_[i].cpu_seconds * GiB / bytes * 1e3);
    }
    print_build();
    std::printf("\"engine\": \"%s\", \"blocks\": %lu, \"block_bytes\": %lu, \"depth\": %lu, \"rounds\": %lu, ",
                machine.engine->facts().name.c_str(), setup_.blocks, setup_.block_bytes, setup_.depth, setup_.rounds);
    print_samples("verified_mb_per_s", with_rate, ", ");
    print_samples("unverified_mb_per_s", without_rate, ", ");
    print_samples("verified_to_unverified", ratio, ", ");
    print_samples("verified_cpu_ms_per_gib", with_cpu, ", ");
    print_samples("unverified_cpu_ms_per_gib", without_cpu, "}\n");
  }

  Setup setup_;
  wire::Layout layout_;
  std::vector<Round> with_;
  std::vector<Round> without_;
};

}  // namespace
}  // namespace halfstep::bench

int main(int count, char** arguments) {
  using namespace halfstep::bench;
  Setup setup;
  const Number numbers[] = {{"--blocks", &setup.blocks},
                            {"--block-bytes", &setup.block_bytes},
                            {"--depth", &setup.depth},
                            {"--rounds", &setup.rounds}};
  const Text texts[] = {{"--path", &setup.path}};
  read_options(count, arguments, numbers, texts);
  if (setup.path.empty()) fail("give --path, of a file that is not there yet");
  if (setup.blocks == 0 || setup.depth == 0 || setup.rounds == 0) fail("--blocks, --depth and --rounds are at least 1");
  Bench bench(setup);
  bench.fill();
  bench.measure();
  ::unlink(setup.path.c_str());
  return 0;
}
