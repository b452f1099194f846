// Any bytes as a ubq unit: what decodes does so on every path to the same bytes, and inspect() knows their number; and any
// bytes as a part: what pays comes back with no value off by more than half a step.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "compress/ubq.h"
#include "compress/ubq_fixture.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::compress;
  const ConstBytes given(reinterpret_cast<const std::byte*>(data), size);
  Scratch scratch;
  UnitFacts facts;
  // A part is at most as long as a few of its unit: longer ones are refused by their header alone.
  if (ubq_inspect(given, &facts).ok() && facts.raw_bytes <= uint64_t{size} * 8) {
    const auto decode = [&](const Kernels& use, std::vector<std::byte>* back) {
      back->resize(facts.raw_bytes);
      return ubq_decode_by(use, given, scratch, *back);
    };
    if (!decode_on_all(decode).has_value()) std::abort();
    std::vector<std::byte> shorter(facts.raw_bytes - 1);
    if (ubq_decode(given, scratch, shorter).ok()) std::abort();
  }
  const Element element = size % 2 == 0 ? Element::Bf16 : Element::Fp16;
  const auto row_values = static_cast<uint32_t>(1 + size / 7 % 100);
  const ConstBytes part = given.first(size / (2 * row_values) * (2 * row_values));
  const float step = size / 3 % 2 == 0 ? 0.1F : 0.5F;
  std::vector<std::byte> unit;
  bool begun = false;
  for (const Kernels* use : all_kernels()) {
    std::vector<std::byte> of_path(part.size());
    of_path.resize(ubq_encode_by(*use, part, {element, row_values, step}, scratch, of_path));
    if (begun && of_path != unit) std::abort();
    unit = of_path;
    begun = true;
  }
  if (unit.empty()) return 0;
  std::vector<std::byte> back(part.size());
  if (!ubq_decode(unit, scratch, back).ok() || !ubq_inspect(unit, &facts).ok()) std::abort();
  if (beyond_bound(element, part, back, facts.step).has_value()) std::abort();
  return 0;
}
