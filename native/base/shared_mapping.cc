#include "base/shared_mapping.h"

#include <fcntl.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <string>
#include <utility>

#include "base/memory_limit.h"
#include "base/numa.h"
#include "base/page_counts.h"

namespace halfstep {
namespace {

constexpr uint64_t kPieceBytes = 2 * MiB;
constexpr uint64_t kSharedBytesMax = uint64_t{1} << 47;

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

// A page that may not be had is an error here, and no signal later. Before Linux 5.14 the file is allocated instead, which
// does the same for a memfd.
int populate(int descriptor, uint64_t offset, Bytes memory) noexcept {
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  return ::fallocate(descriptor, 0, static_cast<off_t>(offset), static_cast<off_t>(memory.size())) == 0 ? 0 : errno;
}

}  // namespace

int SharedMapping::make(bool reserved) const noexcept {
  const unsigned flags = MFD_CLOEXEC | (reserved ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
  const int descriptor = ::memfd_create("halfstep", flags);
  if (descriptor < 0) return -1;
  if (::ftruncate(descriptor, static_cast<off_t>(size_)) == 0) return descriptor;
  const int error = errno;
  ::close(descriptor);
  errno = error;
  return -1;
}

std::byte* SharedMapping::map_piece(int descriptor, uint64_t offset, uint64_t bytes, std::byte* place) noexcept {
  const int flags = MAP_SHARED | (place != nullptr ? MAP_FIXED : 0);
  void* at = ::mmap(place, bytes, PROT_READ | PROT_WRITE, flags, descriptor, static_cast<off_t>(offset));
  if (at == MAP_FAILED) return nullptr;
  const Bytes memory(static_cast<std::byte*>(at), bytes);
  if (large_ && !reserved_) (void)::madvise(at, bytes, MADV_HUGEPAGE);  // as far as shmem_enabled lets it
  int error = 0;
  for (const int advice : {MADV_DONTFORK, MADV_DONTDUMP}) {
    if (error == 0 && ::madvise(at, bytes, advice) != 0) error = errno;
  }
  if (node_ >= 0) node_asked_ = numa::prefer(memory, static_cast<uint32_t>(node_));
  if (error == 0) error = populate(descriptor, offset, memory);
  if (error == 0) return memory.data();
  if (place == nullptr) ::munmap(at, bytes);
  errno = error;
  return nullptr;
}

Fault SharedMapping::create(const Request& request, SharedMapping* out) {
  const std::string what(request.what);
  if (request.bytes == 0 || request.bytes > kSharedBytesMax) {
    return {Code::Invalid, what + "=" + std::to_string(request.bytes) + ": must be 1 to " + std::to_string(kSharedBytesMax)};
  }
  const uint64_t size = round_up(request.bytes, kPieceBytes);
  int error = 0;
  for (const bool reserved : {true, false}) {
    if (reserved && !request.large_pages) continue;
    if (!reserved) {
      if (const std::optional<MemoryLimit> limit = memory_limit(); limit && limit->left_bytes() < size) {
        return {{Code::NoSpace, -ENOMEM},
                "memory of " + std::to_string(size) + " bytes for the " + what + ": " + limit->file + " allows " +
                    std::to_string(limit->limit_bytes) + ", of which " + std::to_string(limit->used_bytes) +
                    " are in use; lower --arena or raise that limit (MemoryMax=)"};
      }
    }
    SharedMapping made;
    made.size_ = size;
    made.node_ = request.node;
    made.large_ = request.large_pages;
    made.reserved_ = reserved;
    made.descriptor_ = made.make(reserved);
    if (made.descriptor_ < 0) {
      error = errno;
      continue;
    }
    // The addresses first, so that a piece can take its place at a border of 2 MiB.
    made.mapped_bytes_ = size + kPieceBytes;
    void* at = ::mmap(nullptr, made.mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
      error = errno;
      continue;
    }
    made.mapped_ = static_cast<std::byte*>(at);
    made.base_ = made.mapped_ + (kPieceBytes - reinterpret_cast<uintptr_t>(at) % kPieceBytes) % kPieceBytes;
    if (made.map_piece(made.descriptor_, 0, size, made.base_) == nullptr) {
      error = errno;
      continue;
    }
    *out = std::move(made);
    return {};
  }
  return {{Code::IoError, -error},
          "shared memory of " + std::to_string(size) + " bytes for the " + what + ": " + errno_name(error) +
              "; lower --arena or raise the memory limit (MemoryMax=)"};
}

Status SharedMapping::renew_begin() {
  const int fresh = make(reserved_);
  if (fresh < 0) return {Code::IoError, -errno};
  // What had moved already lies in a memfd that is thrown away now: it has to be copied out of the addresses, which have it.
  if (next_ >= 0) ::close(next_);
  next_ = fresh;
  moved_bytes_ = 0;
  return {};
}

Status SharedMapping::renew_some() {
  if (next_ < 0) return {};
  std::byte* fresh = map_piece(next_, moved_bytes_, kPieceBytes, nullptr);
  if (fresh == nullptr) return {Code::IoError, -errno};
  std::byte* place = base_ + moved_bytes_;
  std::memcpy(fresh, place, kPieceBytes);
  if (::mremap(fresh, kPieceBytes, kPieceBytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED) {
    const int error = errno;
    ::munmap(fresh, kPieceBytes);
    return {Code::IoError, -error};
  }
  // Nobody has use for the old pages: they are given back though the other side keeps the file.
  (void)::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(moved_bytes_),
                    static_cast<off_t>(kPieceBytes));
  moved_bytes_ += kPieceBytes;
  if (moved_bytes_ == size_) {
    ::close(std::exchange(descriptor_, std::exchange(next_, -1)));
    moved_bytes_ = 0;
  }
  return {};
}

void SharedMapping::close_all() noexcept {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
  if (next_ >= 0) ::close(next_);
  if (descriptor_ < 0) return;
  // The other side may keep the file: not the memory.
  (void)::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size_));
  ::close(descriptor_);
}

SharedMapping::~SharedMapping() { close_all(); }

SharedMapping::SharedMapping(SharedMapping&& other) noexcept { *this = std::move(other); }

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(next_, other.next_);
  std::swap(moved_bytes_, other.moved_bytes_);
  std::swap(node_, other.node_);
  std::swap(large_, other.large_);
  std::swap(reserved_, other.reserved_);
  std::swap(node_asked_, other.node_asked_);
  return *this;
}

uint64_t SharedMapping::large_bytes() const { return reserved_ ? size_ : counted_bytes(bytes(), "ShmemPmdMapped"); }

}  // namespace halfstep
