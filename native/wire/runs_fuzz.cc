// Any bytes as Runs. The first four bytes are the payload's length; a second pass takes the length that the runs add up to, so
// that the rule behind it is reached.
#include <cstdlib>

#include "wire/records.h"

namespace halfstep::wire {
namespace {

volatile uint32_t sink;  // so that a check that is not there is read, and seen to be

void require(bool kept) {
  if (!kept) std::abort();
}

void parse(ConstBytes value, uint32_t payload_bytes) {
  RunsView view;
  if (!parse_runs(value, payload_bytes, &view).ok()) return;
  require(view.run_count >= 1 && view.run_count <= kRunsPerChunkMax);
  uint64_t bytes = 0;
  uint64_t checks = 0;
  for (uint32_t i = 0; i < view.run_count; ++i) {
    const Run run = view.run(i);
    require(run.section < kSectionsMax && run.item < kItemsMax);
    require(run.part_count >= 1 && uint64_t{run.part} + run.part_count <= kPartsMax);
    require(run.part_count == 1 || run.offset == 0);
    require((run.flags & kRunCoded) != 0 || uint64_t{run.offset} + run.bytes <= run.block_bytes);
    bytes += run.bytes;
    checks += run.check_count;
  }
  require(bytes == payload_bytes && checks == view.check_count);
  for (uint32_t i = 0; i < view.check_count; ++i) sink = view.check(i);
}

}  // namespace
}  // namespace halfstep::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::wire;
  if (size < sizeof(uint32_t)) return 0;
  const ConstBytes given(reinterpret_cast<const std::byte*>(data), size);
  const ConstBytes value = given.subspan(sizeof(uint32_t));
  parse(value, load_le<uint32_t>(given.data()));

  Reader reader(value);
  const auto run_count = reader.take<uint32_t>();
  reader.take<uint32_t>();
  uint32_t bytes = 0;
  for (uint32_t i = 0; i < run_count && reader.left() >= sizeof(Run); ++i) bytes += reader.take<Run>().bytes;
  parse(value, bytes);
  return 0;
}
