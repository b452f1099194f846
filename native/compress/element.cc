#include "compress/element.h"

namespace halfstep::compress {

std::string_view element_name(Element element) noexcept {
  switch (element) {
    case Element::Bf16: return "bf16";
    case Element::Fp16: return "fp16";
    case Element::E4m3: return "e4m3";
    case Element::E5m2: return "e5m2";
    default: return "unknown";
  }
}

Element element_of(std::string_view name) noexcept {
  for (uint8_t number = 1; number < kElementsEnd; ++number) {
    if (name == element_name(static_cast<Element>(number))) return static_cast<Element>(number);
  }
  return Element::Unknown;
}

}  // namespace halfstep::compress
