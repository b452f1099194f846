#include "shard/store_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "store/format.h"

namespace halfstep::shard {
namespace {

bool exists(const std::string& path) noexcept { return ::access(path.c_str(), F_OK) == 0; }

bool report_allocation(void* context, uint64_t done, uint64_t total) {
  const auto& progress = static_cast<const Config*>(context)->progress;
  return !progress || progress("allocating the store", done, total);
}

// Whether so many bytes of a device are all zero.
Fault holds_nothing(const std::string& path, uint64_t place, uint64_t bytes, bool* nothing) {
  const auto failed = [&](int error) -> Fault {
    return {{Code::IoError, -error}, "reading " + path + ": " + errno_name(error)};
  };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return failed(errno);
  std::vector<std::byte> window(bytes);
  const ssize_t got = ::pread(descriptor, window.data(), window.size(), static_cast<off_t>(place));
  const int error = got < 0 ? errno : EIO;
  ::close(descriptor);
  if (got != static_cast<ssize_t>(window.size())) return failed(error);
  *nothing = std::ranges::all_of(window, [](std::byte b) { return b == std::byte{0}; });
  return {};
}

int sync_directory_of(const std::string& path) {
  std::string parent = std::filesystem::path(path).parent_path().string();
  if (parent.empty()) parent = ".";
  const int descriptor = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  return error;
}

}  // namespace

StoreFile::~StoreFile() {
  if (!unpublished_.empty()) ::unlink(unpublished_.c_str());
}

Fault StoreFile::open(const Config& config) {
  path_ = config.store_path;
  if (path_.empty()) return {Code::Invalid, "store_path: must name the store's file"};
  if (exists(path_)) {
    const io::Backing::Options options{.path = path_, .bytes = 0, .allow_buffered = config.allow_buffered};
    const Fault fault = io::Backing::open_patiently(options, &backing_);
    return fault.ok() && backing_->facts().block_device ? look_at_device(config) : fault;
  }
  if (config.store_bytes == 0) {
    return {Code::NotFound, path_ + ": there is no store, and no size to make one with; give a size, or another path"};
  }
  return make(config);
}

Fault StoreFile::plan(const Config& config, uint64_t bytes) {
  const uint32_t shards = std::max(config.shards, 1U);
  const auto write_buffer = static_cast<uint64_t>(static_cast<double>(config.arena_bytes / shards) * config.store.write_share);
  return store::plan_geometry(bytes, config.segment_bytes, write_buffer, &geometry_, shards);
}

// What holds something else than a store, opening it refuses.
Fault StoreFile::look_at_device(const Config& config) {
  const uint64_t bytes = backing_->facts().bytes;
  bool blank = bytes >= 2 * store::format::kHeaderReserveBytes;
  for (const uint64_t place : {uint64_t{0}, bytes - store::format::kHeaderReserveBytes}) {
    if (blank) {
      if (Fault fault = holds_nothing(path_, place, store::format::kHeaderReserveBytes, &blank); !fault.ok()) return fault;
    }
  }
  if (!blank) return {};
  if (config.store_bytes != 0 && config.store_bytes != bytes) {
    return {Code::Invalid, "size=" + std::to_string(config.store_bytes) + ": " + path_ + " is a block device of " +
                               std::to_string(bytes) + " bytes, and a store takes all of it; leave the size out"};
  }
  blank_ = true;
  return plan(config, bytes);
}

Fault StoreFile::make(const Config& config) {
  if (Fault fault = plan(config, config.store_bytes); !fault.ok()) return fault;
  io::Backing::Options options{
      .path = path_ + ".new", .bytes = geometry_.device_bytes, .allow_buffered = config.allow_buffered};
  if (exists(options.path)) {
    // Left by a daemon that was killed while it made one, unless somebody still holds its lock.
    if (Fault fault = io::Backing::open_patiently(options, &backing_); !fault.ok() && fault.status != Code::Invalid)
      return fault;
    backing_ = nullptr;
    ::unlink(options.path.c_str());
  }
  if (Fault fault = io::Backing::create(options, &report_allocation, const_cast<Config*>(&config)); !fault.ok()) return fault;
  unpublished_ = options.path;
  return io::Backing::open(options, &backing_);
}

Fault StoreFile::publish() {
  if (unpublished_.empty()) return {};
  if (std::rename(unpublished_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    return {{Code::IoError, -error}, "renaming " + unpublished_ + " to " + path_ + ": " + errno_name(error)};
  }
  unpublished_.clear();
  if (const int error = sync_directory_of(path_); error != 0) {
    return {{Code::IoError, -error}, "syncing the directory of " + path_ + ": " + errno_name(error)};
  }
  return {};
}

io::BackingFacts StoreFile::facts() const {
  io::BackingFacts facts = backing_->facts();
  facts.path = path_;
  return facts;
}

}  // namespace halfstep::shard
