#include "bind/peer_compress.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bind/interpreter.h"
#include "bind/peer_memory.h"
#include "compress/codec.h"
#include "compress/kernels.h"

namespace halfstep::bind {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

// Of a thread: units come by the thousand.
compress::Scratch& scratch() {
  static thread_local compress::Scratch of;
  return of;
}

const compress::Codec& codec_of(const std::string& name) {
  const compress::Codec* codec = compress::find_codec(name);
  if (codec == nullptr) {
    std::string all;
    for (const compress::Codec& one : compress::codecs()) all += (all.empty() ? "" : ", ") + std::string(one.name);
    throw Refused(("codec '" + name + "': this build has " + all).c_str());
  }
  return *codec;
}

// Bytes of the unit; 0: it does not pay.
size_t encode(const std::string& codec_name, nb::handle raw, const std::string& element, uint32_t row_values, nb::handle target,
              float step) {
  const compress::Codec& codec = codec_of(codec_name);
  const compress::UnitShape shape{compress::element_of(element), row_values, step};
  if (!element.empty() && shape.element == compress::Element::Unknown) {
    throw Refused(("element '" + element + "': must be bf16, fp16, e4m3, e5m2, or empty where it is not known").c_str());
  }
  const Memory from = Memory::of(raw, false, "raw");
  const Memory to = Memory::of(target, true, "target");
  if (to.bytes() < compress::unit_bytes_max(from.bytes())) {
    throw Refused(("target has " + std::to_string(to.bytes()) + " bytes: the unit of such a part may have " +
                   std::to_string(compress::unit_bytes_max(from.bytes())))
                      .c_str());
  }
  const Unlocked unlocked;
  return codec.encode({from.data(), from.bytes()}, shape, scratch(), {to.data(), to.bytes()});
}

// False: it is no unit of such a part.
bool decode(const std::string& codec_name, nb::handle unit, nb::handle target) {
  const compress::Codec& codec = codec_of(codec_name);
  const Memory from = Memory::of_bytes(unit, "unit");
  const Memory to = Memory::of(target, true, "target");
  const Unlocked unlocked;
  return codec.decode({from.data(), from.bytes()}, scratch(), {to.data(), to.bytes()}).ok();
}

nb::object inspect(const std::string& codec_name, nb::handle unit) {
  const Memory from = Memory::of_bytes(unit, "unit");
  compress::UnitFacts facts;
  if (!codec_of(codec_name).inspect({from.data(), from.bytes()}, &facts).ok()) return nb::none();
  const std::string_view element = compress::element_name(facts.element);
  return nb::make_tuple(facts.version, std::string(element), facts.row_values, facts.raw_bytes, facts.step);
}

nb::dict codecs() {
  nb::dict dict;
  for (const compress::Codec& codec : compress::codecs()) dict[nb::str(codec.name.data(), codec.name.size())] = codec.number;
  return dict;
}

}  // namespace

void bind_compress(nb::module_& m) {
  m.def("codecs", &codecs, nb::sig("def codecs() -> dict[str, int]"), "Numbers of the codecs of this build, by name.");
  m.def(
      "compress_path", [] { return std::string(compress::kernels().name); }, "plain, avx2 or avx512: what this process uses.");
  m.def("encode_unit", &encode, "codec"_a, "raw"_a, "element"_a, "row_values"_a, "target"_a, "step"_a = 0.0F,
        "Writes the unit of a part to the front of the target; returns its bytes, or 0 where it does not pay.");
  m.def("decode_unit", &decode, "codec"_a, "unit"_a, "target"_a, "Writes the raw bytes; False: no unit of such a part.");
  m.def("inspect_unit", &inspect, "codec"_a, "unit"_a,
        nb::sig("def inspect_unit(codec: str, unit: object) -> tuple[int, str, int, int, float] | None"),
        "Version, element, values of a row with bases, raw bytes, step; None: it is no unit.");
}

}  // namespace halfstep::bind
