// cold_bench.cc — what verification costs a cold read: the same store, the same blocks, with it and without.
// Usage: halfstep_cold_bench --path FILE [--blocks N] [--block-bytes N] [--depth N] [--rounds N]
//
// The one program whose store can leave verification out: it is compiled with the store's mutants (store/format/mutant.h), of
// which no product build has any. Fills a file of its own, which it removes at the end, opens it anew, and reads all blocks
// through the store, `depth` at once and past the page cache; round for round with and without, in turns. No block may come
// from memory. One JSON document on stdout; bench/verify_cold.py runs it.
#include <fcntl.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/prng.h"
#include "machine.h"
#include "measure.h"
#include "store/format/geometry.h"
#include "store/format/mutant.h"

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
  explicit Bench(const Setup& setup) : setup_(setup) {
    wire::GroupShape group;
    group.part_count = 1;
    group.part_bytes[0] = static_cast<uint32_t>(setup.block_bytes);
    check(wire::Layout::make({{"purpose", "cold reads"}}, {group}, &layout_), "layout");
  }

  void fill() {
    // A third more than the blocks take: nothing is reclaimed.
    const auto segments = static_cast<uint32_t>(setup_.blocks * (setup_.block_bytes + kPageBytes) * 4 / 3 / kSegmentBytes + 8);
    store::Geometry geometry{segments * kSegmentBytes, kSegmentBytes, segments, 1,
                             static_cast<uint32_t>(store::block_bytes_max_of(kSegmentBytes))};
    while (!store::places_of(geometry).valid()) geometry.device_bytes += 16 * MiB;
    const int file = ::open(setup_.path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (file < 0 || ::posix_fallocate(file, 0, static_cast<off_t>(geometry.device_bytes)) != 0) fail_errno(setup_.path);
    ::close(file);
    Machine machine(setup_.path, kArenaBytes);
    check(store::Store::format(*machine.engine, *machine.arena, machine.clock, geometry));
    const std::unique_ptr<store::Store> fresh = machine.open();
    scope_ = machine.scope_of(*fresh, layout_);
    content_.resize(setup_.block_bytes);
    Prng prng(1);
    for (size_t at = 0; at < content_.size(); at += 8) store_le(content_.data() + at, prng.next());
    for (uint64_t block = 0; block < setup_.blocks; ++block) put(machine, *fresh, block);
    check(fresh->close(), "close");
  }

  void measure() {
    Machine machine(setup_.path, kArenaBytes);
    if (!machine.backing->facts().direct) fail(setup_.path + ": no O_DIRECT here, so that reads may come from the page cache");
    const std::unique_ptr<store::Store> opened = machine.open();
    scope_ = machine.scope_of(*opened, layout_);
    (void)read_all(machine, *opened);  // once for nothing
    for (uint64_t round = 0; round < setup_.rounds; ++round) {
      for (const bool second : {false, true}) {
        const bool verified = second == (round % 2 == 0);
        active_mutant = verified ? Mutant::None : Mutant::NoVerify;
        (verified ? with_ : without_).push_back(read_all(machine, *opened));
      }
    }
    if (opened->counters().hits_memory > 0) fail("some blocks came from memory: more --blocks are needed");
    print(machine);
  }

 private:
  // `block` has to outlive `out`.
  void name(const uint64_t& block, store::BlockName* out) const {
    out->scope = scope_;
    out->component = wire::Component::of(0, 0, 0);
    out->engine_key = object_bytes(block);
  }

  void put(Machine& machine, store::Store& to, uint64_t block) {
    store::Write write;
    name(block, &write.name);
    write.key = to.key_of(write.name);
    write.block_bytes = static_cast<uint32_t>(setup_.block_bytes);
    write.persist = true;
    bool done = false;
    write.owner = &done;
    write.done = [](store::Write& w) { *static_cast<bool*>(w.owner) = true; };
    Status status;
    while ((status = to.begin_write(write)) == Code::Throttled) machine.turn(to);
    check(status, "begin_write");
    store_le(content_.data(), block);
    size_t at = 0;
    write.slot->for_range(0, content_.size(), [&](Bytes piece) {
      std::memcpy(piece.data(), content_.data() + at, piece.size());
      at += piece.size();
    });
    write.parts[0].stored_crc = crc32c(content_);
    to.commit_write(write);
    while (!done) machine.turn(to);
    check(write.status, "put");
  }

  // `depth` reads in flight, a new one as soon as one is done.
  Round read_all(Machine& machine, store::Store& from) {
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
        store::BlockName wanted;
        name(lane.block, &wanted);
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
    std::printf(
        "{\"version\": \"%s\", \"build\": \"%s\", \"commit\": \"%s\", \"engine\": \"%s\", \"blocks\": %lu, "
        "\"block_bytes\": %lu, \"depth\": %lu, \"rounds\": %lu, ",
        std::string(kVersion).c_str(), std::string(kBuildType).c_str(), std::string(kCommit).c_str(),
        machine.engine->facts().name.c_str(), setup_.blocks, setup_.block_bytes, setup_.depth, setup_.rounds);
    print_samples("verified_mb_per_s", with_rate, ", ");
    print_samples("unverified_mb_per_s", without_rate, ", ");
    print_samples("verified_to_unverified", ratio, ", ");
    print_samples("verified_cpu_ms_per_gib", with_cpu, ", ");
    print_samples("unverified_cpu_ms_per_gib", without_cpu, "}\n");
  }

  Setup setup_;
  wire::Layout layout_;
  uint32_t scope_ = 0;
  std::vector<std::byte> content_;
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
