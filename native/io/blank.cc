#include "io/blank.h"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace halfstep::io {
namespace {

constexpr uint64_t kReadBytes = 1 * MiB;
constexpr uint64_t kEndBytes = 512 * MiB;
constexpr uint64_t kWindowBytes = 256 * KiB;
constexpr uint64_t kWindows = 4096;
static_assert(2 * kEndBytes + kWindows * kWindowBytes <= kBlankReadBytes);

// Spare superblocks: btrfs at 64 MiB (in the first range) and 256 GiB, its third one lies at 1 PiB; ext4 in the first group of
// each power of 3, 5 and 7, which with blocks of 4 KiB are 128 MiB long.
constexpr uint64_t kExtGroupBytes = 128 * MiB;

std::vector<uint64_t> spare_superblocks(uint64_t device_bytes) {
  std::vector<uint64_t> out = {256 * GiB};
  for (const uint64_t base : {3U, 5U, 7U}) {
    for (uint64_t group = base; group * kExtGroupBytes < device_bytes; group *= base) out.push_back(group * kExtGroupBytes);
  }
  return out;
}

struct Free {
  void operator()(std::byte* at) const noexcept { std::free(at); }
};

// Of so many bytes; their count if all are zero.
size_t zeros_first(const std::byte* at, size_t bytes) noexcept {
  size_t done = 0;
  for (uint64_t word = 0; done + sizeof(word) <= bytes; done += sizeof(word)) {
    std::memcpy(&word, at + done, sizeof(word));
    if (word != 0) break;
  }
  while (done < bytes && at[done] == std::byte{0}) ++done;
  return done;
}

using PageMemory = std::unique_ptr<std::byte, Free>;

// Goes over all that is looked at, a piece at a time. `take`: bytes of it that were taken, from the place on; 0: no further; or
// a negative errno.
Fault each_piece(uint64_t device_bytes, const std::string& what, const std::function<bool(uint64_t, uint64_t)>& go_on,
                 const std::function<int64_t(uint64_t place, size_t bytes)>& take) {
  const std::vector<BlankRange> ranges = blank_ranges(device_bytes);
  uint64_t total = 0;
  for (const BlankRange& range : ranges) total += range.bytes;
  uint64_t done = 0;
  for (const BlankRange& range : ranges) {
    for (uint64_t at = 0; at < range.bytes;) {
      const uint64_t place = range.offset + at;
      const int64_t taken = take(place, std::min(range.bytes - at, kReadBytes));
      if (taken == -EINTR) continue;
      if (taken < 0) {
        const int error = static_cast<int>(-taken);
        return {{Code::IoError, -error},
                what + " at " + std::to_string(place) + ": " + errno_name(error) + "; look at the device (dmesg, smartctl)"};
      }
      if (taken == 0) return {};
      at += static_cast<uint64_t>(taken);
      done += static_cast<uint64_t>(taken);
      if (go_on && !go_on(done, total)) return {Code::Cancelled, what + " was stopped"};
    }
  }
  return {};
}

Fault no_memory(const std::string& path) {
  return {{Code::IoError, -ENOMEM}, "memory to look through " + path + ": " + errno_name(ENOMEM)};
}

}  // namespace

std::vector<BlankRange> blank_ranges(uint64_t device_bytes) {
  device_bytes = round_down(device_bytes, kPageBytes);
  if (device_bytes <= kBlankReadBytes) return {{0, device_bytes}};
  const uint64_t begin = kEndBytes;
  const uint64_t end = device_bytes - kEndBytes;
  std::vector<uint64_t> windows;
  const uint64_t distance = (end - begin) / kWindows;
  for (uint64_t number = 0; number < kWindows; ++number) {
    windows.push_back(round_down(begin + number * distance, kPageBytes));
  }
  for (const uint64_t at : spare_superblocks(device_bytes)) {
    if (at >= begin && at + kWindowBytes <= end) windows.push_back(at);
  }
  std::sort(windows.begin(), windows.end());
  std::vector<BlankRange> out = {{0, begin}};
  for (const uint64_t at : windows) {
    BlankRange& last = out.back();
    const uint64_t from = std::max(at, last.offset + last.bytes);
    const uint64_t to = std::min(at + kWindowBytes, end);
    if (from < to) out.push_back({from, to - from});
  }
  out.push_back({end, device_bytes - end});
  return out;
}

Fault look_for_data(int descriptor, uint64_t device_bytes, const std::string& path,
                    const std::function<bool(uint64_t done, uint64_t total)>& go_on, std::optional<uint64_t>* data_at) {
  const BlankReader read = [descriptor](uint64_t offset, Bytes into) -> int64_t {
    const ssize_t got = ::pread(descriptor, into.data(), into.size(), static_cast<off_t>(offset));
    return got < 0 ? -errno : got;
  };
  return look_for_data(read, device_bytes, path, go_on, data_at);
}

Fault look_for_data(const BlankReader& read, uint64_t device_bytes, const std::string& path,
                    const std::function<bool(uint64_t done, uint64_t total)>& go_on, std::optional<uint64_t>* data_at) {
  data_at->reset();
  const PageMemory memory(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kReadBytes)));
  if (memory == nullptr) return no_memory(path);
  return each_piece(device_bytes, "reading " + path, go_on, [&](uint64_t place, size_t bytes) -> int64_t {
    const int64_t got = read(place, {memory.get(), bytes});
    if (got <= 0) return got < 0 ? got : -EIO;  // what does not read is no proof of nothing
    const size_t zeros = zeros_first(memory.get(), static_cast<size_t>(got));
    if (zeros == static_cast<size_t>(got)) return got;
    *data_at = place + zeros;
    return 0;
  });
}

Fault make_blank(int descriptor, uint64_t device_bytes, bool discard, const std::string& path,
                 const std::function<bool(uint64_t done, uint64_t total)>& go_on) {
  const PageMemory memory(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, 2 * kReadBytes)));
  if (memory == nullptr) return no_memory(path);
  std::byte* const zeros = memory.get() + kReadBytes;
  std::memset(zeros, 0, kReadBytes);
  const std::array<uint64_t, 2> all = {0, round_down(device_bytes, kPageBytes)};
  if (discard) (void)::ioctl(descriptor, BLKDISCARD, all.data());  // a device that cannot is written
  const Fault fault = each_piece(device_bytes, "blanking " + path, go_on, [&](uint64_t place, size_t bytes) -> int64_t {
    const auto at = static_cast<off_t>(place);
    const ssize_t got = ::pread(descriptor, memory.get(), bytes, at);
    // What does not read may be written all the same.
    if (got > 0 && zeros_first(memory.get(), static_cast<size_t>(got)) == static_cast<size_t>(got)) return got;
    const ssize_t put = ::pwrite(descriptor, zeros, bytes, at);
    if (put <= 0) return put < 0 ? -errno : -EIO;
    return put;
  });
  if (!fault.ok()) return fault;
  if (::fsync(descriptor) == 0) return {};
  return {{Code::IoError, -errno}, "flushing " + path + ": " + errno_name(errno) + "; look at the device (dmesg, smartctl)"};
}

}  // namespace halfstep::io
