// Any bytes as a bfx unit: what decodes does so on every path to the same bytes, and inspect() knows their number; and any
// bytes as a part: what pays comes back.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "compress/bfx.h"
#include "compress/bfx_fixture.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::compress;
  const ConstBytes given(reinterpret_cast<const std::byte*>(data), size);
  Scratch scratch;
  UnitFacts facts;
  // A part is at most as long as a few of its unit: longer ones are refused by their header alone.
  if (bfx_inspect(given, &facts).ok() && facts.raw_bytes <= uint64_t{size} * 8) {
    const auto decode = [&](const Kernels& use, std::vector<std::byte>* back) {
      back->resize(facts.raw_bytes);
      return bfx_decode_by(use, given, scratch, *back);
    };
    if (!decode_on_all(decode).has_value()) std::abort();
    std::vector<std::byte> shorter(facts.raw_bytes > 0 ? facts.raw_bytes - 1 : 1);
    if (bfx_decode(given, scratch, shorter).ok()) std::abort();
  }
  const UnitShape shape{static_cast<Element>(size % kElementsEnd), static_cast<uint32_t>(size / 7 % 100)};
  std::vector<std::byte> unit(size);
  unit.resize(bfx_encode(given, shape, scratch, unit));
  if (unit.empty()) return 0;
  std::vector<std::byte> back(size);
  if (!bfx_decode(unit, scratch, back).ok() || !std::ranges::equal(back, given)) std::abort();
  return 0;
}
