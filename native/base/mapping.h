// mapping.h — one anonymous mapping in the largest pages that this machine allows, and which they are.
// Private memory: no other process ever sees it. Pages are tried in this order: 2 MiB from the reserved pool, 2 MiB that the
// kernel forms when it can (madvise), ordinary ones.
// Invariants: base and size never change; the base is aligned to 2 MiB; the bytes start as zeros.
// Thread: any.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"

namespace halfstep {

class Mapping {
 public:
  enum class Pages : uint8_t {
    Reserved,     // 2 MiB, from vm.nr_hugepages
    Transparent,  // advised: large_bytes() says how many came
    Ordinary,
  };

  Mapping() = default;
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  // `bytes` is rounded up to 2 MiB. Large pages are not tried where `large_pages` is false; falling back is not an error.
  // what: for errors, e.g. "index".
  static Fault create(uint64_t bytes, bool large_pages, std::string_view what, Mapping* out);

  Bytes bytes() const noexcept { return {base_, static_cast<size_t>(size_)}; }
  Pages pages() const noexcept { return pages_; }
  // How much of it lies in 2 MiB pages now. Reads /proc: for start and for `stat`.
  uint64_t large_bytes() const;

 private:
  std::byte* base_ = nullptr;
  uint64_t size_ = 0;
  std::byte* mapped_ = nullptr;  // what munmap() takes: up to 2 MiB before the base
  uint64_t mapped_bytes_ = 0;
  Pages pages_ = Pages::Ordinary;
};

}  // namespace halfstep
