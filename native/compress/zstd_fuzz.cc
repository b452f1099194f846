// Any bytes as a zstd unit: what decodes has the length that inspect() says, and no other; and any bytes as a part: what pays
// comes back.
#include "compress/zstd.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::compress;
  const ConstBytes given(reinterpret_cast<const std::byte*>(data), size);
  Scratch scratch;
  UnitFacts facts;
  // Of a length that a fuzzer's memory has room for: a frame of a few bytes may be of a part of many.
  if (zstd_inspect(given, &facts).ok() && facts.raw_bytes <= uint64_t{1} << 20) {
    std::vector<std::byte> back(facts.raw_bytes);
    const bool good = zstd_decode(given, scratch, back).ok();
    std::vector<std::byte> again(facts.raw_bytes);
    if (zstd_decode(given, scratch, again).ok() != good || (good && again != back)) std::abort();
    std::vector<std::byte> shorter(facts.raw_bytes - 1);
    if (zstd_decode(given, scratch, shorter).ok()) std::abort();
  }
  std::vector<std::byte> unit(size);
  unit.resize(zstd_encode(given, {}, scratch, unit));
  if (unit.empty()) return 0;
  std::vector<std::byte> back(size);
  if (!zstd_decode(unit, scratch, back).ok() || !std::ranges::equal(back, given)) std::abort();
  return 0;
}
