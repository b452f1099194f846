// blank.h — whether a block device holds nothing, asked before it is made a store, whole.
// A device is blank if every byte that is looked at is zero. Up to kBlankReadBytes all of them are; of a larger one both ends,
// and windows at equal distances in between, which find any file system, image or database that fills more than a few of the
// gaps, and the places where file systems keep spare copies of their superblocks.
// make_blank() makes one so: what is asked for is all given back first, where the device takes discards, and what still is not
// zero in the ranges that are looked at is written. Between them of a large device old bytes may stay: a store has a secret of
// its own, and never takes them for its own.
// Invariants: looking reads only; both are bounded by about kBlankReadBytes, whatever the device's size, and one discard.
// Thread: one, blocking.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"

namespace halfstep::io {

inline constexpr uint64_t kBlankReadBytes = 2 * GiB;

// The ranges of a device of so many bytes that are looked at, in order, as whole pages; they do not overlap.
struct BlankRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
std::vector<BlankRange> blank_ranges(uint64_t device_bytes);

// `data_at`: where the first byte is that is not zero; nullopt: the device is blank.
// go_on: bytes looked at of all, at each mebibyte or more; false stops it (Cancelled).
// `read`: bytes read at an offset, or a negative errno.
using BlankReader = std::function<int64_t(uint64_t offset, Bytes into)>;
Fault look_for_data(const BlankReader& read, uint64_t device_bytes, const std::string& path,
                    const std::function<bool(uint64_t done, uint64_t total)>& go_on, std::optional<uint64_t>* data_at);
Fault look_for_data(int descriptor, uint64_t device_bytes, const std::string& path,
                    const std::function<bool(uint64_t done, uint64_t total)>& go_on, std::optional<uint64_t>* data_at);

// Makes a device blank, for good. `discard`: all of it is given back first; a device that refuses is written all the same.
// On media when it is done. go_on: as above; what is stopped half-way is lost all the same.
Fault make_blank(int descriptor, uint64_t device_bytes, bool discard, const std::string& path,
                 const std::function<bool(uint64_t done, uint64_t total)>& go_on);

}  // namespace halfstep::io
