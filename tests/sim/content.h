// content.h — what the blocks of a run are: names, lengths, parts and bytes, all computed from numbers, so that any answer of
// the store can be checked without having kept what was written.
// Invariants: two versions of a name never have the same bytes if they are 8 bytes or longer; payload never begins like a
// metadata page of the store.
// Thread: any; no state.
#pragma once

#include <string>
#include <vector>

#include "base/prng.h"
#include "store/format/extent_layout.h"
#include "store/store.h"

namespace halfstep::sim {

// Groups: 0 opaque, parts of 256 KiB; 1 four plain parts of 4 KiB; 2 parts of 1,000 and 3,000 bytes in turn until the end; 3
// one part of one byte; 4 eight plain parts of 16 KiB.
inline constexpr uint32_t kGroups = 5;
wire::Layout layout_number(uint32_t number);

// One put's block.
struct Version {
  uint64_t seed = 0;
  uint32_t group = 0;
  uint32_t raw_bytes = 0;
  uint32_t stored_bytes = 0;
  uint32_t parts = 0;
  std::vector<store::PartInfo> coded;  // as given to the put; empty when plain

  uint64_t extent_bytes() const noexcept;
  void fill(Bytes out) const noexcept { Prng(seed).fill(out); }
};

// A version of a block of `group`, with a length that the group allows and of at most `bytes_max`.
Version make_version(uint32_t group, bool coded, uint64_t seed, uint32_t bytes_max);

// Whether a resident's bytes and parts are this version's; where only some were asked for, it may have the bytes of no others.
bool same(const store::Resident& resident, const Version& version, store::PartSpan asked, std::vector<std::byte>& scratch);
// Whether so many parts of it, from the first one, are those of this version.
bool same_first(const store::Resident& resident, const Version& version, uint32_t parts, std::vector<std::byte>& scratch);

}  // namespace halfstep::sim
