// mapping.h — one anonymous mapping in the largest pages that this machine allows, and which they are.
// Private memory: no other process ever sees it. Pages are tried in this order: 2 MiB from the reserved pool, 2 MiB that the
// kernel forms when it can (madvise), ordinary ones.
// Invariants: base and size never change; the base is aligned to 2 MiB; the bytes start as zeros; every page is there from the
// start. A page that may not be had is an error or the next kind of page here, and never a signal later: a control group counts
// the pages of the reserved pool as they are touched, after mmap() promised them.
// Thread: any.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/memory_limit.h"
#include "base/status.h"
#include "base/units.h"

namespace halfstep {

// Where the pages come from: the kernel, or a test's stand-in.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Null: no such pages (errno says why). Undone by munmap().
  virtual std::byte* map(uint64_t bytes, bool reserved);
  // Makes every page be there. 0 or an errno.
  virtual int populate(Bytes memory);
  virtual std::optional<MemoryLimit> limit();
};
MemorySource& kernel_memory() noexcept;

class Mapping {
 public:
  enum class Pages : uint8_t {
    Reserved,     // 2 MiB, from vm.nr_hugepages
    Transparent,  // advised: large_bytes() says how many came
    Ordinary,
  };
  struct Request {
    uint64_t bytes = 0;          // rounded up to 2 MiB
    bool large_pages = true;     // false: not tried
    std::string_view what = {};  // for errors, e.g. "index"
    // Before the first page is there: what has to be advised. 0 or an errno.
    std::function<int(Bytes)> prepare = {};
    MemorySource* source = nullptr;  // null: the kernel
  };

  Mapping() = default;
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  // Falling back to smaller pages is not an error: why_smaller() says it.
  static Fault create(const Request& request, Mapping* out);

  Bytes bytes() const noexcept { return {base_, static_cast<size_t>(size_)}; }
  Pages pages() const noexcept { return pages_; }
  // Not empty where the pool promised pages and did not give them.
  const std::string& why_smaller() const noexcept { return why_smaller_; }
  // How much of it lies in 2 MiB pages now. Reads /proc: for start and for `stat`.
  uint64_t large_bytes() const;

 private:
  int fill(const Request& request, MemorySource& source) const;

  std::byte* base_ = nullptr;
  uint64_t size_ = 0;
  std::byte* mapped_ = nullptr;  // what munmap() takes: up to 2 MiB before the base
  uint64_t mapped_bytes_ = 0;
  Pages pages_ = Pages::Ordinary;
  std::string why_smaller_;
};

}  // namespace halfstep
