#include "io/blank.h"

#include <unistd.h>

#include <algorithm>
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
  const std::unique_ptr<std::byte, Free> memory(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kReadBytes)));
  if (memory == nullptr) return {{Code::IoError, -ENOMEM}, "memory to look through " + path + ": " + errno_name(ENOMEM)};
  const std::vector<BlankRange> ranges = blank_ranges(device_bytes);
  uint64_t total = 0;
  for (const BlankRange& range : ranges) total += range.bytes;
  uint64_t done = 0;
  for (const BlankRange& range : ranges) {
    for (uint64_t at = 0; at < range.bytes;) {
      const uint64_t place = range.offset + at;
      const size_t wanted = std::min(range.bytes - at, kReadBytes);
      const int64_t got = read(place, {memory.get(), wanted});
      if (got == -EINTR) continue;
      // What does not read is no proof of nothing.
      if (got <= 0) {
        const int error = got < 0 ? static_cast<int>(-got) : EIO;
        return {{Code::IoError, -error},
                "reading " + path + " at " + std::to_string(place) + ": " + errno_name(error) +
                    "; look at the device (dmesg, smartctl)"};
      }
      if (const size_t zeros = zeros_first(memory.get(), static_cast<size_t>(got)); zeros < static_cast<size_t>(got)) {
        *data_at = place + zeros;
        return {};
      }
      at += static_cast<uint64_t>(got);
      done += static_cast<uint64_t>(got);
      if (go_on && !go_on(done, total)) return {Code::Cancelled, "looking through " + path + " was stopped"};
    }
  }
  return {};
}

}  // namespace halfstep::io
