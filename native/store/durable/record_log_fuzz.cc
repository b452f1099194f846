// A record log whose pages say what the fuzzer likes, under the right MAC: loading it must stay within bounds and end.
#include <algorithm>
#include <cstring>

#include "io/memory_engine.h"
#include "store/durable/record_log.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::store;
  static const HashKey secret{3, 4};
  Geometry geometry{32 * MiB, 2 * MiB, 8, 1, 256 * KiB};
  static const Places places = places_of(geometry);
  io::MemoryDevice device(geometry.device_bytes, false);
  io::MemoryEngine engine({}, {&device});
  uint64_t flushes = 0;
  Flusher flusher(engine, flushes);

  // Each page of the log takes so many bytes of the input: eight of address and header, the rest is its first record, which
  // stands for the others too.
  constexpr size_t kStep = 24;
  BlockingIo io(engine);
  PageBuffer buffer(1);
  for (size_t at = 0; at + kStep <= size && at < 40 * kStep; at += kStep) {
    const uint8_t* input = data + at;
    buffer.clear();
    format::PageHeader header;
    header.kind = static_cast<uint8_t>(format::PageKind::RecordLog);
    header.segment = input[0] & 1U;
    header.place = input[1] % places.log_half_pages;
    header.flags = input[2] & 1U;
    header.generation = input[3];
    header.page = input[4];
    header.page_count = input[5] == 0 ? UINT32_MAX : input[4] + uint32_t{input[5]};
    header.frame = input[6];
    header.entries = input[7] % (format::kRecordsPerPage + 1);
    for (uint32_t i = 0; i < header.entries; ++i) {
      format::Record record;
      std::memcpy(&record, input + 8, kStep - 8);
      record.key_low = input[23] + uint64_t{i};
      store_le(page_body(buffer.page(0)).data() + i * sizeof(record), record);
    }
    seal_page(secret, header, buffer.page(0));
    const uint32_t copy = (input[0] >> 1) & 1U;
    (void)!io.write(places.log(copy, 0, header.segment) + uint64_t{header.place} * kPageBytes, buffer.page(0)).ok();
  }
  RecordLog log({&engine, &flusher, places, secret});
  LogContents contents;
  (void)!log.load(&contents).ok();
  if (contents.segments.size() != geometry.segments) std::abort();
  return 0;
}
