#include "base/mapping.h"

#include <linux/mman.h>
#include <sys/mman.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

namespace halfstep {
namespace {

constexpr uint64_t kLargePageBytes = 2 * MiB;
constexpr uint64_t kMappingBytesMax = uint64_t{1} << 47;  // what an address space has for a process

std::byte* map_anonymous(uint64_t bytes, int flags) noexcept {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

}  // namespace

Fault Mapping::create(uint64_t bytes, bool large_pages, std::string_view what, Mapping* out) {
  if (bytes == 0 || bytes > kMappingBytesMax) {
    return {Code::Invalid,
            std::string(what) + "_bytes=" + std::to_string(bytes) + ": must be 1 to " + std::to_string(kMappingBytesMax)};
  }
  Mapping made;
  made.size_ = round_up(bytes, kLargePageBytes);
  if (large_pages) {
    // The pages are reserved here, or the call fails: nothing is missing later.
    made.mapped_ = map_anonymous(made.size_, MAP_HUGETLB | MAP_HUGE_2MB);
    if (made.mapped_ != nullptr) {
      made.mapped_bytes_ = made.size_;
      made.base_ = made.mapped_;
      made.pages_ = Pages::Reserved;
      *out = std::move(made);
      return {};
    }
  }
  made.mapped_bytes_ = made.size_ + kLargePageBytes;
  made.mapped_ = map_anonymous(made.mapped_bytes_, 0);
  if (made.mapped_ == nullptr) {
    return {{Code::IoError, -errno},
            "mapping " + std::to_string(made.size_) + " bytes for the " + std::string(what) + ": " + errno_name(errno) +
                "; lower --" + std::string(what) + " or raise the memory limit"};
  }
  made.base_ = made.mapped_ + (kLargePageBytes - reinterpret_cast<uintptr_t>(made.mapped_) % kLargePageBytes) % kLargePageBytes;
  if (large_pages && madvise(made.base_, made.size_, MADV_HUGEPAGE) == 0) made.pages_ = Pages::Transparent;
  *out = std::move(made);
  return {};
}

Mapping::~Mapping() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept { *this = std::move(other); }

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(pages_, other.pages_);
  return *this;
}

uint64_t Mapping::large_bytes() const {
  if (pages_ == Pages::Reserved) return size_;
  // smaps: a line "start-end …" per mapping, then its counts. madvise() made ours one of its own, or several.
  std::ifstream smaps("/proc/self/smaps");
  const auto first = reinterpret_cast<uintptr_t>(base_);
  uint64_t bytes = 0;
  bool ours = false;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t start = 0;
    uintptr_t end = 0;
    uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &start, &end) == 2) {
      ours = start >= first && end <= first + size_;
    } else if (ours && std::sscanf(line.c_str(), "AnonHugePages: %" SCNu64, &kib) == 1) {
      bytes += kib * KiB;
    }
  }
  return bytes;
}

}  // namespace halfstep
