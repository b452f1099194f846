// recovery_bench.cc — what a start costs over a full store: time against the plain read of its footers, and memory a block.
// Usage: halfstep_recovery_bench --phase make|open|fill|serve --path FILE [--segments N] [--blocks N] [--block-bytes N]
//                               [--seed N]
//
// make: a sparse file in which every segment of 1 GiB has its footer and no payload, as a store that was filled with blocks of
// one size and stopped. open: reads all footers with one request in flight, as recovery does, then opens the store in the same
// process; every block must be found. fill: a file with so many segments of 256 MiB and as many blocks put into it as --blocks
// says, all in all, no clean stop. serve: opens that as a daemon does, gets the block that was put last, which must be right,
// as soon as something is served, and lets recovery come to its end. One JSON document on stdout; bench/recovery.py runs each
// in a process of its own.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/heap.h"
#include "machine.h"
#include "store/catalog/footer.h"
#include "store/durable/blocking_io.h"
#include "store/durable/header_io.h"
#include "store/durable/record_log.h"
#include "stored_blocks.h"

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

IndexKey key_of(const Setup& setup, uint64_t block) {
  const Hash128 hash = keyed_hash({setup.seed, 0}, object_bytes(block));
  return {hash.low, hash.high};
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
  const Geometry geometry = geometry_of(static_cast<uint32_t>(setup.segments), kSegmentBytes);
  make_file(setup.path, geometry.device_bytes, /*sparse=*/true);
  Machine machine(setup.path, kArenaBytes);
  check(Store::format(*machine.engine, *machine.arena, machine.clock, geometry));
  {
    const std::unique_ptr<Store> fresh = machine.open();
    if (machine.scope_of(*fresh, layout_of_one_part("recovery", setup.block_bytes)) != kScope)
      fail("the first layout of a new store has another scope");
    check(fresh->close(), "close");
  }
  LoadedHeader loaded;
  check(load_header(*machine.engine, &loaded));
  const Places places = loaded.state.places();
  const HashKey secret = loaded.state.page_secret();
  Names names;
  (void)names.refresh(loaded.state);
  Catalog::Setup inside{geometry.segments, geometry.segment_bytes, nullptr};
  check(index::BlockIndex::create(index::BlockIndex::bytes_for(setup.segments * setup.blocks), true, &inside.index));
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
  Machine machine(setup.path, kArenaBytes);
  LoadedHeader loaded;
  check(load_header(*machine.engine, &loaded));
  const Places places = loaded.state.places();
  const uint64_t before_us = machine.clock.now_us();
  const uint64_t footer_bytes = read_footers(setup, machine, places);
  const uint64_t read_us = machine.clock.now_us() - before_us;
  const uint64_t resident_before = resident_bytes();
  const double cpu_before = own_cpu_seconds();
  const uint64_t open_before_us = machine.clock.now_us();
  const std::unique_ptr<Store> opened = machine.open();
  const uint64_t open_us = machine.clock.now_us() - open_before_us;
  const double cpu_seconds = own_cpu_seconds() - cpu_before;
  give_heap_back();  // as the daemon does
  const uint64_t resident_after = resident_bytes();
  look_for_all(setup, *opened);
  const Gauges gauges = opened->gauges();
  print_build();
  std::printf(
      "\"seed\": %lu, \"engine\": \"%s\", \"direct\": %s, "
      "\"blocks\": %lu, \"bytes\": %lu, \"footer_bytes\": %lu, \"plain_read_s\": %.3f, \"open_s\": %.3f, "
      "\"recovery_s\": %.3f, \"cpu_s\": %.3f, \"resident_bytes\": %lu, \"index_bytes\": %lu, \"catalog_bytes\": %lu}\n",
      setup.seed, machine.engine->facts().name.c_str(), machine.backing->facts().direct ? "true" : "false", gauges.blocks,
      gauges.bytes_live, footer_bytes, static_cast<double>(read_us) / 1e6, static_cast<double>(open_us) / 1e6,
      static_cast<double>(opened->recovery().micros) / 1e6, cpu_seconds, resident_after - resident_before, gauges.index_bytes,
      gauges.catalog_bytes);
}

// ---- fill, serve -----------------------------------------------------------------------------------------------------------

constexpr uint64_t kRealSegmentBytes = 256 * MiB;

// Ok, or why not.
Status get(Machine& machine, Store& opened, StoredBlocks& blocks, const uint64_t& block) {
  Read read;
  read.key = opened.key_of(blocks.name(block));
  bool done = false;
  read.owner = &done;
  read.complete = [](Read& r) { *static_cast<bool*>(r.owner) = true; };
  Read* window[] = {&read};
  check(opened.begin_reads(window), "begin_reads");
  while (!done) machine.turn(opened);
  if (!read.status.ok()) return read.status;
  ConstBytes left = blocks.bytes_of(block);
  read.resident->slot().for_range(0, left.size(), [&](Bytes piece) {
    if (std::memcmp(piece.data(), left.data(), piece.size()) != 0) fail("wrong bytes");
    left = left.subspan(piece.size());
  });
  opened.unpin(read.resident);
  return {};
}

void fill(const Setup& setup) {
  const Geometry geometry = roomy_geometry(setup.blocks, setup.block_bytes, kRealSegmentBytes);
  make_file(setup.path, geometry.device_bytes, /*sparse=*/false);
  Machine machine(setup.path, kArenaBytes);
  check(Store::format(*machine.engine, *machine.arena, machine.clock, geometry));
  const std::unique_ptr<Store> fresh = machine.open();
  StoredBlocks blocks(machine, *fresh, layout_of_one_part("recovery", setup.block_bytes), setup.block_bytes, setup.seed);
  for (uint64_t block = 0; block < setup.blocks; ++block) blocks.put(block, block + 1 == setup.blocks);
  while (machine.engine->in_flight() > 0) machine.turn(*fresh);
  std::printf("{}\n");
}

void serve(const Setup& setup) {
  Machine machine(setup.path, kArenaBytes);
  const double cpu_before = own_cpu_seconds();
  const uint64_t before_us = machine.clock.now_us();
  const auto seconds = [&] { return static_cast<double>(machine.clock.now_us() - before_us) / 1e6; };
  Options options;
  options.recover_before_us = 0;
  const std::unique_ptr<Store> opened = machine.open(options);
  const double open_s = seconds();
  StoredBlocks blocks(machine, *opened, layout_of_one_part("recovery", setup.block_bytes), setup.block_bytes, setup.seed);
  const uint64_t newest = setup.blocks - 1;
  uint64_t misses = 0;
  while (!get(machine, *opened, blocks, newest).ok()) {
    if (!opened->recovering()) fail("the block that was put last is lost");
    ++misses;
    machine.turn(*opened);
  }
  const double first_get_s = seconds();
  while (opened->recovering()) machine.turn(*opened);
  const double recovered_s = seconds();
  const RecoveryReport& report = opened->recovery();
  std::printf(
      "{\"blocks\": %lu, \"bytes\": %lu, \"open_s\": %.3f, \"first_get_s\": %.3f, \"misses_before\": %lu, \"recovered_s\": "
      "%.3f, \"cpu_s\": %.3f, \"footers\": %lu, \"walked\": %lu}\n",
      report.blocks, report.bytes, open_s, first_get_s, misses, recovered_s, own_cpu_seconds() - cpu_before,
      report.segments_by_footer, report.segments_by_frames);
  check(opened->close(), "close");
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
  if (setup.path.empty()) fail("give --path");
  if (setup.phase == "make") {
    make(setup);
  } else if (setup.phase == "open") {
    open_and_measure(setup);
  } else if (setup.phase == "fill") {
    fill(setup);
  } else if (setup.phase == "serve") {
    serve(setup);
  } else {
    fail("--phase is one of make, open, fill, serve");
  }
  return 0;
}
