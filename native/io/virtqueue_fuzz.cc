// Any bytes as what a device writes: a configuration space that parses has bounds that hold, and a queue whose every shared
// byte the device may change at any time hands out each request once, with a length that fits it, or is Broken.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/units.h"
#include "io/virtqueue.h"

namespace halfstep::io {
namespace {

void check_config(ConstBytes input) {
  Reader in(input);
  const auto features = in.take<uint64_t>();
  BlockDeviceConfig config;
  if (!parse_block_config(input, features, &config).empty()) return;
  const bool whole = config.bytes >= kPageBytes && config.bytes % kPageBytes == 0 && config.bytes <= uint64_t{INT64_MAX};
  const bool piece = config.piece_bytes_max >= kPageBytes && config.piece_bytes_max % kPageBytes == 0;
  if (!whole || !piece || config.queues == 0) std::abort();
}

void play(Reader in) {
  const auto slots = static_cast<uint16_t>(in.take<uint8_t>() % kVirtqueueSlotsMax + 1);
  const bool indirect = (in.take<uint8_t>() & 1) != 0;
  const uint64_t bytes = Virtqueue::memory_bytes(slots, indirect);
  std::vector<std::byte> shared(bytes + kPageBytes);
  std::byte* base = shared.data() + (kPageBytes - reinterpret_cast<uintptr_t>(shared.data()) % kPageBytes) % kPageBytes;
  Virtqueue queue({base, bytes}, slots, indirect);
  std::vector<bool> out(slots);
  std::vector<uint32_t> lengths(slots);
  uint32_t count = 0;
  while (in.left() > 0) {
    const auto step = in.take<uint8_t>();
    const auto number = static_cast<uint16_t>(in.take<uint8_t>() % slots);
    if (step % 4 == 0 && !out[number]) {
      lengths[number] = (step & 8) != 0 ? kPageBytes : 0;
      queue.push(number, lengths[number] != 0 ? BlockRequest::Read : BlockRequest::Flush, 0, 0, lengths[number]);
      out[number] = true;
      ++count;
    } else if (step % 4 == 1) {
      (void)queue.publish();
    } else if (step % 4 == 2) {  // the device writes somewhere
      const uint64_t place = in.take<uint16_t>() % bytes;
      base[place] = static_cast<std::byte>(in.take<uint8_t>());
    } else {  // or an entry that may be right
      auto* used = const_cast<std::byte*>(queue.used());
      const auto index = load_le<uint16_t>(used + 2);
      store_le(used + 4 + 8 * (index % queue.entries()), uint32_t{indirect ? number : number * 3U});
      store_le(used + 8 + 8 * (index % queue.entries()), uint32_t{in.take<uint8_t>()});
      store_le(used + 2, static_cast<uint16_t>(index + 1));
    }
    Virtqueue::Done done;
    for (Virtqueue::Reaped reaped = queue.reap(&done); reaped != Virtqueue::Reaped::Nothing; reaped = queue.reap(&done)) {
      if (reaped == Virtqueue::Reaped::Broken) return;
      if (done.slot >= slots || !out[done.slot] || done.written_bytes > lengths[done.slot]) std::abort();
      out[done.slot] = false;
      --count;
    }
    if (queue.out() != count) std::abort();
  }
}

}  // namespace
}  // namespace halfstep::io

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  const ConstBytes input(reinterpret_cast<const std::byte*>(data), size);
  io::check_config(input);
  io::play(Reader(input));
  return 0;
}
