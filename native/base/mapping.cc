#include "base/mapping.h"

#include <fcntl.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <string>
#include <utility>

#include "base/page_counts.h"

namespace halfstep {
namespace {

constexpr uint64_t kLargePageBytes = 2 * MiB;
constexpr uint64_t kMappingBytesMax = uint64_t{1} << 47;  // what an address space has for a process

// The kernel writes a byte into each page: where a page may not be had, a store of our own would be a SIGBUS, and this is
// EFAULT.
int touch_each(Bytes memory) noexcept {
  const int zeros = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  if (zeros < 0) return errno;
  const auto step = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  int error = 0;
  for (size_t at = 0; at < memory.size() && error == 0; at += step) {
    const ssize_t got = ::read(zeros, memory.data() + at, 1);
    if (got < 0 && errno == EINTR) at -= step;
    if (got < 0 && errno != EINTR) error = errno;
  }
  ::close(zeros);
  return error;
}

std::string too_little(const Mapping::Request& request, uint64_t bytes, const MemoryLimit& limit) {
  return "memory of " + std::to_string(bytes) + " bytes for the " + std::string(request.what) + ": " + limit.file + " allows " +
         std::to_string(limit.limit_bytes) + ", of which " + std::to_string(limit.used_bytes) +
         " are in use, and the kernel would kill the daemon; lower --" + std::string(request.what) +
         " or raise that limit (MemoryMax=)";
}

}  // namespace

std::byte* MemorySource::map(uint64_t bytes, bool reserved) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (reserved ? MAP_HUGETLB | MAP_HUGE_2MB : 0);
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

int MemorySource::populate(Bytes memory) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;  // a kernel before 5.14 does not know it
#endif
  return touch_each(memory);
}

std::optional<MemoryLimit> MemorySource::limit() { return memory_limit(); }

MemorySource& kernel_memory() noexcept {
  static MemorySource kernel;
  return kernel;
}

Fault Mapping::create(const Request& request, Mapping* out) {
  MemorySource& source = request.source != nullptr ? *request.source : kernel_memory();
  const std::string what(request.what);
  if (request.bytes == 0 || request.bytes > kMappingBytesMax) {
    return {Code::Invalid, what + "=" + std::to_string(request.bytes) + ": must be 1 to " + std::to_string(kMappingBytesMax)};
  }
  const uint64_t size = round_up(request.bytes, kLargePageBytes);
  std::string why_smaller;
  if (request.large_pages) {
    Mapping made;
    made.mapped_ = source.map(size, true);
    if (made.mapped_ != nullptr) {
      made.size_ = made.mapped_bytes_ = size;
      made.base_ = made.mapped_;
      made.pages_ = Pages::Reserved;
      const int error = made.fill(request, source);
      if (error == 0) {
        *out = std::move(made);
        return {};
      }
      why_smaller = "the pool of reserved 2 MiB pages promised the " + what + " its pages and refused them (" +
                    errno_name(error) + "): raise the limit of this control group (hugetlb.2MB.max), or give --no-huge-pages";
    }
  }
  Mapping made;
  made.why_smaller_ = std::move(why_smaller);
  made.size_ = size;
  if (const std::optional<MemoryLimit> limit = source.limit(); limit && limit->left_bytes() < size) {
    return {{Code::NoSpace, -ENOMEM}, too_little(request, size, *limit)};
  }
  made.mapped_bytes_ = size + kLargePageBytes;
  made.mapped_ = source.map(made.mapped_bytes_, false);
  int error = made.mapped_ == nullptr ? errno : 0;
  if (error == 0) {
    made.base_ =
        made.mapped_ + (kLargePageBytes - reinterpret_cast<uintptr_t>(made.mapped_) % kLargePageBytes) % kLargePageBytes;
    const bool advised = request.large_pages && madvise(made.base_, size, MADV_HUGEPAGE) == 0;
    if (advised) made.pages_ = Pages::Transparent;
    error = made.fill(request, source);
    if (error != 0 && advised) {
      made.pages_ = Pages::Ordinary;
      error = madvise(made.base_, size, MADV_NOHUGEPAGE) == 0 ? made.fill(request, source) : error;
    }
  }
  if (error != 0) {
    return {{Code::IoError, -error},
            "memory of " + std::to_string(size) + " bytes for the " + what + ": " + errno_name(error) + "; lower --" + what +
                " or raise the memory limit (ulimit -v, MemoryMax=)"};
  }
  *out = std::move(made);
  return {};
}

int Mapping::fill(const Request& request, MemorySource& source) const {
  const int error = request.prepare ? request.prepare(bytes()) : 0;
  return error != 0 ? error : source.populate(bytes());
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
  std::swap(why_smaller_, other.why_smaller_);
  return *this;
}

uint64_t Mapping::large_bytes() const {
  // madvise() made it a mapping of its own, or several.
  return pages_ == Pages::Reserved ? size_ : counted_bytes(bytes(), "AnonHugePages");
}

}  // namespace halfstep
