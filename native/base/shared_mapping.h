// shared_mapping.h — a mapping that another process is given too, as a memfd (docs/adr/0022), and can be taken back from.
// Taking back is renewing: piece by piece the bytes move to a new memfd, which takes the old one's place at the same addresses.
// Whoever has the old one, a drive that it started a transfer with included, goes on reading and writing pages that are
// nobody's. Invariants: base and size never change, and every page is there; the base is aligned to 2 MiB; the bytes start as
// zeros; a child of this process has none of it, and no core dump. Between renew_begin() and renewed() the old descriptor may
// be given to nobody: the two have a part of the bytes each. Thread: one at a time, which also is the only one that touches the
// bytes while they are renewed.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"

namespace halfstep {

class SharedMapping {
 public:
  struct Request {
    uint64_t bytes = 0;          // rounded up to 2 MiB
    bool large_pages = true;     // false: not tried
    std::string_view what = {};  // for errors, e.g. "arena"
    int node = -1;               // a memory node to prefer; -1: none
  };

  SharedMapping() = default;
  ~SharedMapping();
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;

  // Falling back to smaller pages is not an error.
  static Fault create(const Request& request, SharedMapping* out);

  Bytes bytes() const noexcept { return {base_, static_cast<size_t>(size_)}; }
  int descriptor() const noexcept { return descriptor_; }
  // 2 MiB pages from vm.nr_hugepages.
  bool reserved() const noexcept { return reserved_; }
  // Preferring the node; of the newest piece.
  Status node_asked() const noexcept { return node_asked_; }
  // How much of it lies in 2 MiB pages now. Reads /proc.
  uint64_t large_bytes() const;

  // Begins to take the memory back. A renewal under way begins anew: what it has moved already moves again.
  Status renew_begin();
  // Moves one piece of 2 MiB, or fails and has moved nothing (no memory): may be called again. Ok at the end, too.
  Status renew_some();
  bool renewed() const noexcept { return next_ < 0; }

 private:
  int make(bool large) const noexcept;
  // Makes `bytes` of `descriptor` from `offset` on be there, in the pages that this has. Null: errno says why.
  std::byte* map_piece(int descriptor, uint64_t offset, uint64_t bytes, std::byte* place) noexcept;
  void close_all() noexcept;

  std::byte* base_ = nullptr;
  uint64_t size_ = 0;
  std::byte* mapped_ = nullptr;  // what munmap() takes: up to 2 MiB before the base
  uint64_t mapped_bytes_ = 0;
  int descriptor_ = -1;
  int next_ = -1;
  uint64_t moved_bytes_ = 0;
  int node_ = -1;
  bool large_ = false;
  bool reserved_ = false;
  Status node_asked_;
};

}  // namespace halfstep
