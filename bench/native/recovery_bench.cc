// recovery_bench.cc — what a start costs over a full store: time against the plain read of its footers, and memory a block.
// Usage: halfstep_recovery_bench --phase make|open --path FILE [--segments N] [--blocks N] [--block-bytes N] [--seed N]
//
// make: a sparse file in which every segment of 1 GiB has its footer and no payload, as a store that was filled with blocks of
// one size and stopped. open: reads all footers with one request in flight, as recovery does, then opens the store in the same
// process; every block must be found. One JSON document on stdout; bench/recovery.py runs both, in processes of their own.
#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <memory>

#include "base/arena.h"
#include "base/clock.h"
#include "io/backing.h"
#include "io/engine.h"
#include "program.h"
#include "store/blocking_io.h"
#include "store/footer.h"
#include "store/header_io.h"
#include "store/record_log.h"

namespace halfstep::bench {
namespace {

using namespace store;

struct Setup {
  std::string phase;
  std::string path;
  uint64_t segments = 1000;
  uint64_t blocks = 4000;  // of each segment
  uint64_t block_bytes = 256 * KiB;
  uint64_t seed = 1;
};

constexpr uint64_t kSegmentBytes = 1 * GiB;
constexpr uint64_t kArenaBytes = 64 * MiB;
constexpr uint64_t kBlocksPerFrame = 15;
constexpr uint32_t kScope = 1;

void check(const Fault& fault) {
  if (!fault.ok()) fail(fault.what);
}
void check(Status status, const char* what) {
  if (!status.ok()) fail(std::string(what) + ": " + std::string(code_name(status.code())));
}

Geometry geometry_of(const Setup& setup) {
  const auto segments = static_cast<uint32_t>(setup.segments);
  Geometry geometry{segments * kSegmentBytes, kSegmentBytes, segments, 1,
                    static_cast<uint32_t>(block_bytes_max_of(kSegmentBytes))};
  while (!places_of(geometry).valid()) geometry.device_bytes += 16 * MiB;
  return geometry;
}

wire::Layout layout_of(const Setup& setup) {
  wire::GroupShape group;
  group.part_count = 1;
  group.part_bytes[0] = static_cast<uint32_t>(setup.block_bytes);
  wire::Layout layout;
  check(wire::Layout::make({{"purpose", "recovery"}}, {group}, &layout), "layout");
  return layout;
}

IndexKey key_of(const Setup& setup, uint64_t block) {
  const Hash128 hash = keyed_hash({setup.seed, 0}, object_bytes(block));
  return {hash.low, hash.high};
}

struct Machine {
  explicit Machine(const std::string& path) {
    check(Arena::create(kArenaBytes, false, &arena));
    check(io::Backing::open({.path = path}, &backing));
    check(io::open_engine({}, *arena, {backing.get()}, &engine));
    slots = std::make_unique<SlotPool>(*arena);
  }
  SystemClock clock;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<io::Backing> backing;
  std::unique_ptr<io::Engine> engine;
  std::unique_ptr<SlotPool> slots;
};

std::unique_ptr<Store> open_store(Machine& machine) {
  std::unique_ptr<Store> opened;
  Options options;
  check(Store::open(*machine.engine, *machine.slots, machine.clock, options, &opened));
  return opened;
}

void register_layout(Machine& machine, Store& opened, const wire::Layout& layout) {
  bool done = false;
  opened.register_layout("default", layout, [&](Status status, uint32_t scope) {
    check(status, "register_layout");
    if (scope != kScope) fail("the first layout of a new store has scope " + std::to_string(scope));
    done = true;
  });
  while (!done) {
    opened.turn();
    machine.engine->flush_submissions();
    machine.engine->wait();
    machine.engine->poll();
  }
}

// ---- make ------------------------------------------------------------------------------------------------------------------

format::Entry entry_of(const Setup& setup, uint64_t block, uint64_t ordinal) {
  const uint64_t pages = setup.block_bytes / kPageBytes;
  const uint64_t frame = ordinal / kBlocksPerFrame * (1 + kBlocksPerFrame * pages);
  const uint64_t back = 1 + ordinal % kBlocksPerFrame * pages;
  format::Entry entry;
  const IndexKey key = key_of(setup, block);
  entry.key_low = key.low;
  entry.key_high = key.high;
  entry.engine_key_bytes = format::kEngineKeyInline;
  entry.birth = 1 + block;
  entry.stored_bytes = entry.raw_bytes = static_cast<uint32_t>(setup.block_bytes);
  entry.page = static_cast<uint32_t>(frame + back);
  entry.pages_back = static_cast<uint16_t>(back);
  entry.scope = kScope;
  entry.parts = 1;
  return entry;
}

void make(const Setup& setup) {
  const Geometry geometry = geometry_of(setup);
  const int file = ::open(setup.path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(geometry.device_bytes)) != 0) fail_errno(setup.path);
  ::close(file);
  Machine machine(setup.path);
  check(Store::format(*machine.engine, *machine.arena, machine.clock, geometry));
  {
    const std::unique_ptr<Store> fresh = open_store(machine);
    register_layout(machine, *fresh, layout_of(setup));
    check(fresh->close(), "close");
  }
  LoadedHeader loaded;
  check(load_header(*machine.engine, &loaded));
  const Places places = loaded.state.places();
  const HashKey secret = loaded.state.page_secret();
  Names names;
  (void)names.refresh(loaded.state);
  Catalog::Setup inside{geometry.segments, geometry.segment_bytes, nullptr};
  check(index::BlockIndex::create(index::BlockIndex::bytes_for(setup.segments * setup.blocks), &inside.index));
  Catalog catalog(std::move(inside), names);
  BlockingIo io(*machine.engine);
  std::vector<SegmentRecord> records(geometry.segments);
  for (uint32_t number = 0; number < geometry.segments; ++number) {
    Segment& segment = catalog.segment(number);
    segment.generation = 1 + number * setup.blocks;
    segment.roll = std::make_unique<Roll>();
    for (uint64_t ordinal = 0; ordinal < setup.blocks; ++ordinal) {
      const format::Entry entry = entry_of(setup, number * setup.blocks + ordinal, ordinal);
      segment.roll->add(entry, entry.engine_key);
      check(catalog.add(segment, entry, {}, false), "catalog");
      segment.next_page = entry.page + static_cast<uint32_t>(setup.block_bytes / kPageBytes);
    }
    segment.frames = static_cast<uint32_t>(div_up(setup.blocks, kBlocksPerFrame));
    segment.written_page = segment.durable_page = segment.next_page;
    FooterBuilder builder(secret, 0, catalog, segment, places.segment_pages(), segment.generation + setup.blocks, 0);
    if (builder.first_place() < segment.next_page) fail("--blocks: more than a segment takes");
    PageBuffer pages(builder.pages());
    for (uint32_t p = 0; !builder.finished(); ++p) builder.build(pages.page(p));
    check(io.write(places.segment(number) + uint64_t{builder.first_place()} * kPageBytes, pages.bytes()), "footer");
    segment.roll.reset();
    records[number].generation = segment.generation;
  }
  uint64_t flushes = 0;
  Flusher flusher(*machine.engine, flushes);
  RecordLog log({machine.engine.get(), &flusher, places, secret, 0});
  LogContents contents;
  check(log.load(&contents), "record log");
  check(log.restart(contents, {}, std::move(records), 1 + setup.segments * setup.blocks), "record log");
  std::printf("{}\n");
}

// ---- open ------------------------------------------------------------------------------------------------------------------

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0;
  uint64_t resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Each footer as recovery reads it: its last page, then the rest in windows.
uint64_t read_footers(const Setup& setup, Machine& machine, const Places& places) {
  constexpr uint32_t kWindowPages = 256;
  PageBuffer window(kWindowPages);
  BlockingIo io(*machine.engine);
  const auto footer = static_cast<uint32_t>(div_up(setup.blocks, format::kEntriesPerPage) + 1);
  for (uint32_t number = 0; number < places.geometry.segments; ++number) {
    const uint64_t end = places.segment(number) + uint64_t{places.segment_pages()} * kPageBytes;
    check(io.read(end - kPageBytes, window.page(0)), "plain read");
    for (uint32_t left = footer - 1; left > 0; left -= std::min(left, kWindowPages)) {
      const uint64_t place = end - uint64_t{left + 1} * kPageBytes;
      check(io.read(place, window.bytes().first(size_t{std::min(left, kWindowPages)} * kPageBytes)), "plain read");
    }
  }
  return uint64_t{places.geometry.segments} * footer * kPageBytes;
}

void look_for_all(const Setup& setup, Store& opened) {
  constexpr uint64_t kAtOnce = 1000;
  std::vector<Sought> sought(kAtOnce);
  std::vector<Found> found(kAtOnce);
  const uint64_t blocks = setup.segments * setup.blocks;
  for (uint64_t first = 0; first < blocks; first += kAtOnce) {
    const uint64_t count = std::min(kAtOnce, blocks - first);
    for (uint64_t i = 0; i < count; ++i) sought[i] = key_of(setup, first + i);
    opened.find_many(std::span(sought).first(count), std::span(found).first(count));
    for (uint64_t i = 0; i < count; ++i) {
      if (!found[i].present || found[i].block_bytes != setup.block_bytes)
        fail("block " + std::to_string(first + i) + " is lost");
    }
  }
}

void open_and_measure(const Setup& setup) {
  Machine machine(setup.path);
  LoadedHeader loaded;
  check(load_header(*machine.engine, &loaded));
  const Places places = loaded.state.places();
  const uint64_t before_us = machine.clock.now_us();
  const uint64_t footer_bytes = read_footers(setup, machine, places);
  const uint64_t read_us = machine.clock.now_us() - before_us;
  const uint64_t resident_before = resident_bytes();
  const double cpu_before = own_cpu_seconds();
  const uint64_t open_before_us = machine.clock.now_us();
  const std::unique_ptr<Store> opened = open_store(machine);
  const uint64_t open_us = machine.clock.now_us() - open_before_us;
  const double cpu_seconds = own_cpu_seconds() - cpu_before;
  const uint64_t resident_after = resident_bytes();
  look_for_all(setup, *opened);
  const Gauges gauges = opened->gauges();
  std::printf(
      "{\"version\": \"%s\", \"build\": \"%s\", \"commit\": \"%s\", \"seed\": %lu, \"engine\": \"%s\", \"direct\": %s, "
      "\"blocks\": %lu, \"bytes\": %lu, \"footer_bytes\": %lu, \"plain_read_s\": %.3f, \"open_s\": %.3f, "
      "\"recovery_s\": %.3f, \"cpu_s\": %.3f, \"resident_bytes\": %lu, \"index_bytes\": %lu, \"catalog_bytes\": %lu}\n",
      std::string(kVersion).c_str(), std::string(kBuildType).c_str(), std::string(kCommit).c_str(), setup.seed,
      machine.engine->facts().name.c_str(), machine.backing->facts().direct ? "true" : "false", gauges.blocks,
      gauges.bytes_live, footer_bytes, static_cast<double>(read_us) / 1e6, static_cast<double>(open_us) / 1e6,
      static_cast<double>(opened->recovery().micros) / 1e6, cpu_seconds, resident_after - resident_before, gauges.index_bytes,
      gauges.catalog_bytes);
}

}  // namespace
}  // namespace halfstep::bench

int main(int count, char** arguments) {
  using namespace halfstep::bench;
  Setup setup;
  const Number numbers[] = {{"--segments", &setup.segments},
                            {"--blocks", &setup.blocks},
                            {"--block-bytes", &setup.block_bytes},
                            {"--seed", &setup.seed}};
  const Text texts[] = {{"--phase", &setup.phase}, {"--path", &setup.path}};
  read_options(count, arguments, numbers, texts);
  if (setup.path.empty() || (setup.phase != "make" && setup.phase != "open")) fail("give --phase make or open, and --path");
  setup.phase == "make" ? make(setup) : open_and_measure(setup);
  return 0;
}
