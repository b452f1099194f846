// resident_bench.cc — what a get of blocks that are in memory costs the store, without a request, a connection or a network.
// Usage: halfstep_resident_bench [--blocks N] [--batch N] [--rounds N] [--seed N]
// One JSON document on stdout; bench/resident.py reads it.
//
// A round is every batch of neighbours once, in random order: found, read and given back as a shard's get does. Before each,
// what sending the last one would have done to the caches is done: kStirredBytes of other memory are read. The limit of a round
// is as many random lines of a table that is as large as what a get looks at, kLines for each block, asked for together and
// then read, stirred alike: what the machine does at best for as many misses.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "base/crc.h"
#include "base/prng.h"
#include "io/memory_engine.h"
#include "machine.h"
#include "measure.h"
#include "store/format/geometry.h"
#include "store/store.h"
#include "stored_blocks.h"

namespace halfstep::bench {
namespace {

using namespace store;
using Timer = std::chrono::steady_clock;

constexpr uint32_t kBlockBytes = 4096;
constexpr uint64_t kSegmentBytes = 16 * MiB;
constexpr size_t kStirredBytes = 512 * KiB;
// Of the table that finds it one, of the extent three, of the order in which blocks give way one.
constexpr size_t kLines = 5;

struct Setup {
  uint64_t blocks = 16'384;
  uint64_t batch = 16;
  uint64_t rounds = 41;
  uint64_t seed = 1;
};

class BenchClock final : public Clock {
 public:
  uint64_t now_us() const noexcept override { return us; }
  uint64_t wall_s() const noexcept override { return 1'800'000'000; }
  uint64_t us = 1'000'000;
};

// A store on a memory device, with all of its blocks in memory.
class Stored {
 public:
  explicit Stored(const Setup& setup) {
    const uint64_t bytes = setup.blocks * kBlockBytes;
    const auto segments = static_cast<uint32_t>(std::max<uint64_t>(8, div_up(4 * bytes, kSegmentBytes)));
    Geometry geometry{0, kSegmentBytes, segments, 1, static_cast<uint32_t>(block_bytes_max_of(kSegmentBytes))};
    while (!places_of(geometry).valid()) geometry.device_bytes += MiB;
    check(Arena::create(std::max<uint64_t>(round_up(4 * bytes, 2 * MiB), 64 * MiB), true, &arena_));
    device_ = std::make_unique<io::MemoryDevice>(geometry.device_bytes);
    engine_ = std::make_unique<io::MemoryEngine>(io::MemoryConfig{}, std::vector<io::MemoryDevice*>{device_.get()});
    slots_ = std::make_unique<SlotPool>(*arena_);
    check(Store::format(*engine_, *arena_, clock_, geometry));
    check(Store::open(*engine_, *slots_, clock_, store::Options(), &store_));
    register_layout();
    for (uint64_t block = 0; block < setup.blocks; ++block) put(block);
    for (int turns = 0; turns < 100'000 && (engine_->in_flight() > 0 || store_->next_turn_us() <= clock_.us); ++turns) turn();
  }

  Store& store() { return *store_; }
  BenchClock& clock() { return clock_; }
  const std::vector<IndexKey>& keys() const { return keys_; }
  static wire::Component component() { return wire::Component::of(0, 0, 0); }

 private:
  void turn() {
    engine_->poll();
    store_->turn();
    engine_->flush_submissions();
    clock_.us += 100;
  }
  void register_layout() {
    const wire::Layout layout = layout_of_one_part("resident", kBlockBytes);
    bool done = false;
    store_->register_layout("default", layout, [&](Status status, uint32_t scope) {
      if (!status.ok()) fail("the layout is refused");
      scope_ = scope;
      done = true;
    });
    while (!done) turn();
  }
  void put(uint64_t block) {
    const ConstBytes name = object_bytes(block);
    bool done = false;
    Write write;
    write.name = {scope_, component(), name};
    write.key = store_->key_of(write.name);
    write.block_bytes = kBlockBytes;
    write.owner = &done;
    write.done = [](Write& ended) { *static_cast<bool*>(ended.owner) = true; };
    while (!store_->begin_write(write).ok()) turn();
    write.slot->for_range(0, kBlockBytes, [&](Bytes piece) {
      std::memcpy(piece.data(), name.data(), name.size());
      write.parts[0].stored_crc = crc32c(piece);
    });
    store_->commit_write(write);
    while (!done) turn();
    if (!write.status.ok()) fail("a block is refused");
    keys_.push_back(write.key);
  }

  BenchClock clock_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<io::MemoryDevice> device_;
  std::unique_ptr<io::MemoryEngine> engine_;
  std::unique_ptr<SlotPool> slots_;
  std::unique_ptr<Store> store_;
  uint32_t scope_ = 0;
  std::vector<IndexKey> keys_;
};

// What the compiler must believe to be used.
volatile uint64_t sink;

// Lines of memory, 64 bytes each.
class Lines {
 public:
  explicit Lines(uint64_t count) : words_(count * kWords, 1) {}
  void read(const std::vector<uint64_t>& lines) const noexcept {
    for (const uint64_t line : lines) __builtin_prefetch(&words_[line * kWords]);
    uint64_t sum = 0;
    for (const uint64_t line : lines) sum += words_[line * kWords];
    sink = sink + sum;
  }
  void read_all() const noexcept {
    uint64_t sum = 0;
    for (size_t at = 0; at < words_.size(); at += kWords) sum += words_[at];
    sink = sink + sum;
  }
  uint64_t count() const noexcept { return words_.size() / kWords; }

 private:
  static constexpr size_t kWords = 8;
  std::vector<uint64_t> words_;
};

class Gets {
 public:
  Gets(Stored& stored, uint64_t batch) : stored_(stored), reads_(batch), found_(batch) {
    for (Read& read : reads_) window_.push_back(&read);
  }

  void operator()(uint64_t first) {
    Moment moment;
    sought_.clear();
    for (size_t i = 0; i < reads_.size(); ++i)
      sought_.emplace_back(stored_.keys()[first + i], Stored::component()).to_read = true;
    stored_.store().find_many(sought_, found_);
    for (size_t i = 0; i < reads_.size(); ++i) {
      if (!found_[i].present) fail("a block that was put is not found");
      Read& read = reads_[i];
      read = {};
      read.key = sought_[i].key;
      read.component = sought_[i].component;
      read.moment = &moment;
      read.complete = [](Read& done) {
        if (!done.status.ok() || done.resident == nullptr) fail("a block that was put is not read");
        sink = sink + done.resident->parts()[0].stored_crc;
        done.resident->slot().for_range(0, kBlockBytes,
                                        [](Bytes piece) { sink = sink + reinterpret_cast<uintptr_t>(piece.data()); });
      };
    }
    if (!stored_.store().begin_reads(window_).ok()) fail("a window of reads is refused");
    for (Read& read : reads_) {
      if (read.resident == nullptr) fail("a block is not in memory");
      stored_.store().unpin(read.resident);
    }
  }

 private:
  Stored& stored_;
  std::vector<Read> reads_;
  std::vector<Read*> window_;
  std::vector<Sought> sought_;
  std::vector<Found> found_;
};

int run(const Setup& setup) {
  if (setup.batch == 0 || setup.blocks < setup.batch || setup.rounds == 0) {
    fail("--blocks must be --batch or more, and neither --batch nor --rounds 0");
  }
  Stored stored(setup);
  Gets get(stored, setup.batch);
  const Lines table(setup.blocks * kLines);
  const Lines stirred(kStirredBytes / 64);
  Prng prng(setup.seed);
  std::vector<uint64_t> order(setup.blocks / setup.batch);
  std::iota(order.begin(), order.end(), 0);
  std::vector<uint64_t> lines(setup.batch * kLines);
  std::vector<double> gets_ns, limit_ns, ratio;
  for (uint64_t round = 0; round <= setup.rounds; ++round) {
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[prng.below(i + 1)]);
    stored.clock().us += 2'000'000;  // another use of each
    Timer::duration gets{}, limit{};
    for (const uint64_t batch : order) {
      for (uint64_t& line : lines) line = prng.below(table.count());
      stirred.read_all();
      const auto began = Timer::now();
      get(batch * setup.batch);
      gets += Timer::now() - began;
      stirred.read_all();
      const auto limit_began = Timer::now();
      table.read(lines);
      limit += Timer::now() - limit_began;
    }
    if (round == 0) continue;  // it warms up
    const auto a_block = [&](Timer::duration took) {
      return std::chrono::duration<double, std::nano>(took).count() / static_cast<double>(order.size() * setup.batch);
    };
    gets_ns.push_back(a_block(gets));
    limit_ns.push_back(a_block(limit));
    ratio.push_back(gets_ns.back() / limit_ns.back());
  }
  print_build();
  std::printf("\"blocks\": %llu, \"batch\": %llu, \"rounds\": %llu, ", static_cast<unsigned long long>(setup.blocks),
              static_cast<unsigned long long>(setup.batch), static_cast<unsigned long long>(setup.rounds));
  print_samples("get_ns", gets_ns, ", ");
  print_samples("limit_ns", limit_ns, ", ");
  print_samples("ratio", ratio, "}\n");
  return 0;
}

}  // namespace
}  // namespace halfstep::bench

int main(int count, char** arguments) {
  using namespace halfstep::bench;
  Setup setup;
  const Number numbers[] = {
      {"--blocks", &setup.blocks}, {"--batch", &setup.batch}, {"--rounds", &setup.rounds}, {"--seed", &setup.seed}};
  read_options(count, arguments, numbers, {});
  return run(setup);
}
