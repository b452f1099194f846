#include "shard/store_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <utility>

#include "io/blank.h"
#include "io/engine.h"
#include "io/place.h"
#include "store/durable/blocking_io.h"
#include "store/format/format.h"
#include "store/recover/fsck.h"

namespace halfstep::shard {
namespace {

bool report_allocation(void* context, uint64_t done, uint64_t total) {
  const auto& progress = static_cast<const Config*>(context)->progress;
  return !progress || progress("allocating the store", done, total);
}

// Another daemon that makes the same store may be at any step of it: what has changed meanwhile is looked at anew.
constexpr uint32_t kTries = 8;
constexpr auto kTryAgainAfter = std::chrono::milliseconds(20);

bool same_file(const std::string& path, int descriptor) noexcept {
  struct stat named {};
  struct stat open {};
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(descriptor, &open) == 0 && named.st_dev == open.st_dev &&
         named.st_ino == open.st_ino;
}

// One that its maker has not locked yet, or that was left before it grew. 0, or an errno; EAGAIN: it is somebody's.
int remove_less_than_a_page(const std::string& path) noexcept {
  const int file = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return errno == ENOENT ? 0 : errno;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  struct stat about {};
  int error = 0;
  if (::fcntl(file, F_OFD_SETLK, &lock) != 0 || ::fstat(file, &about) != 0) {
    error = errno == EACCES ? EAGAIN : errno;
  } else if (same_file(path, file) && about.st_size < static_cast<off_t>(kPageBytes) && ::unlink(path.c_str()) != 0) {
    error = errno == ENOENT ? 0 : errno;
  }
  ::close(file);
  return error;
}

// 0, or an errno; EEXIST: something has the name already.
int rename_to_free_name(const std::string& from, const std::string& to) noexcept {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) return errno;
  // A file system that cannot: a second name for the file, where one can be had, is refused as well.
  if (::link(from.c_str(), to.c_str()) == 0) return ::unlink(from.c_str()) == 0 ? 0 : errno;
  if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS) return errno;
  struct stat there {};
  if (::lstat(to.c_str(), &there) == 0) return EEXIST;
  return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
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

StoreFile::~StoreFile() { close(); }

void StoreFile::close() noexcept {
  // What was made and not published goes, but not what another daemon made in its place.
  if (!unpublished_.empty() && backing_ != nullptr && same_file(unpublished_, backing_->descriptor())) {
    ::unlink(unpublished_.c_str());
  }
  unpublished_.clear();
  backing_ = nullptr;
}

Fault StoreFile::open(const Config& config) {
  path_ = config.store_path;
  if (path_.empty()) return {Code::Invalid, "store_path: must name the store's file"};
  const bool noop = path_ == io::kNoopName;
  if (noop || !io::vhost_socket_of(path_).empty()) {
    const io::Backing::Options options{
        .path = path_, .bytes = noop ? config.store_bytes : 0, .allow_buffered = config.allow_buffered};
    if (Fault fault = io::Backing::open(options, &backing_); !fault.ok()) return fault;
    if (!noop) return look_at_device(config);
    blank_ = true;
    return plan(config, config.store_bytes);
  }
  for (uint32_t tries = 1;; ++tries) {
    bool there = false;
    if (Fault fault = io::look_at_place(path_, &there); !fault.ok()) return fault;
    Fault fault;
    if (there) {
      const io::Backing::Options options{.path = path_, .bytes = 0, .allow_buffered = config.allow_buffered};
      fault = io::Backing::open_patiently(options, &backing_);
      if (fault.ok()) return backing_->facts().block_device ? look_at_device(config) : Fault();
    } else if (config.store_bytes == 0) {
      return {Code::NotFound, path_ + ": there is no store, and no size to make one with; give a size, or another path"};
    } else {
      fault = make(config);
      if (fault.ok()) return fault;
    }
    const bool changed = fault.status == Status(Code::NotFound, -ENOENT) || fault.status == Status(Code::Present, -EEXIST);
    if (!changed || tries == kTries) return fault;
    std::this_thread::sleep_for(kTryAgainAfter);
  }
}

Fault StoreFile::plan(const Config& config, uint64_t bytes) {
  const uint32_t shards = std::max(config.shards, 1U);
  const auto write_buffer = static_cast<uint64_t>(static_cast<double>(config.arena_bytes / shards) * config.store.write_share);
  return store::plan_geometry(bytes, config.segment_bytes, write_buffer, &geometry_, shards);
}

// Through an engine, where there is no descriptor to read from.
Fault StoreFile::look_for_data(const std::function<bool(uint64_t done, uint64_t total)>& look) {
  const uint64_t bytes = backing_->facts().bytes;
  if (!backing_->facts().vhost_user) return io::look_for_data(backing_->descriptor(), bytes, path_, look, &data_at_);
  std::unique_ptr<Arena> arena;
  if (Fault fault = Arena::create(2 * MiB, false, &arena); !fault.ok()) return fault;
  std::unique_ptr<io::Engine> engine;
  if (Fault fault = io::open_plain_engine(*arena, *backing_, &engine); !fault.ok()) return fault;
  store::BlockingIo blocking(*engine);
  const io::BlankReader read = [&](uint64_t offset, Bytes into) -> int64_t {
    const Status status = blocking.read(offset, into);
    return status.ok() ? static_cast<int64_t>(into.size()) : int64_t{status.detail()};
  };
  return io::look_for_data(read, bytes, path_, look, &data_at_);
}

// What holds something else than a store, opening it refuses.
Fault StoreFile::look_at_device(const Config& config) {
  const uint64_t bytes = backing_->facts().bytes;
  // A store's header is at the start: one that is there needs no look at all the rest.
  const auto look = [&](uint64_t done, uint64_t total) {
    return !config.progress || config.progress("looking whether the device is blank", done, total);
  };
  if (Fault fault = look_for_data(look); !fault.ok()) {
    // What does not read is not blank, and whether it is a store its headers say.
    return fault.status == Code::IoError ? Fault() : fault;
  }
  if (data_at_) return {};
  if (config.store_bytes != 0 && config.store_bytes != bytes) {
    const char* kind = backing_->facts().vhost_user ? " has a device of " : " is a block device of ";
    return {Code::Invalid, "size=" + std::to_string(config.store_bytes) + ": " + path_ + kind + std::to_string(bytes) +
                               " bytes, and a store takes all of it; leave the size out"};
  }
  blank_ = true;
  return plan(config, bytes);
}

const std::string& StoreFile::block_path() const {
  const std::string& block = backing_->facts().nvme_block_path;
  return block.empty() ? path_ : block;
}

Fault StoreFile::explain(Fault no_header) const {
  if (no_header.status != Code::NotFound || !data_at_) return no_header;
  return {no_header.status,
          path_ + ": holds something, at byte " + std::to_string(*data_at_) +
              " first, and this is not a store: name another device, or, if nothing on it is wanted any more, " +
              (backing_->facts().vhost_user ? std::string("blank it on the target's side")
                                            : "`halfstep device format --force " + block_path() + "`")};
}

Fault StoreFile::look_at_left(const io::Backing::Options& options, Left* left, std::string* what) {
  struct stat about {};
  if (::lstat(options.path.c_str(), &about) != 0) {
    *left = Left::Nothing;
    if (errno == ENOENT) return {};
    return {{Code::IoError, -errno}, options.path + ": " + errno_name(errno)};
  }
  *left = Left::Store;
  if (!S_ISREG(about.st_mode)) {
    *what = "is no regular file";
    return {};
  }
  if (Fault fault = io::Backing::open_patiently(options, &backing_); !fault.ok()) {
    if (fault.status != Code::Invalid) return fault;
    *left = Left::Garbage;  // less than a page
    return {};
  }
  std::unique_ptr<Arena> arena;
  if (Fault fault = Arena::create(2 * MiB, false, &arena); !fault.ok()) return fault;
  std::unique_ptr<io::Engine> engine;
  if (Fault fault = io::open_plain_engine(*arena, *backing_, &engine); !fault.ok()) return fault;
  store::FsckReport report;
  store::FsckOptions quick;
  quick.payloads = false;
  const Fault fault = store::fsck(*engine, SystemClock(), quick, &report);
  if (fault.status == Code::NotFound || fault.status == Code::Corrupt) {
    *left = Left::Garbage;
    return {};
  }
  if (fault.status == Code::Unsupported) {
    *what = "holds a store of a newer format";
    return {};
  }
  if (!fault.ok()) return fault;
  // A first start counts from 1, when it has formatted, to 2, when it serves, and only a stop calls itself clean after that.
  const auto used = [](const store::FsckSegment& segment) { return segment.state != store::FsckSegmentState::Unused; };
  const bool empty = std::none_of(report.segments.begin(), report.segments.end(), used) && report.layouts == 0;
  const bool first = report.header.start_number == 1 || (report.header.start_number == 2 && !report.clean_stop);
  if (empty && first && backing_->facts().bytes == report.header.device_bytes) {
    *left = Left::UnfinishedStart;
  } else {
    *what = "holds a store, with " + std::to_string(report.blocks_live) + " blocks";
  }
  return {};
}

// What holds the lock is not another daemon's, so that it may be removed.
Fault StoreFile::clear_left(const io::Backing::Options& options, bool* took_it) {
  *took_it = false;
  Left left = Left::Nothing;
  std::string what;
  Fault fault = look_at_left(options, &left, &what);
  const std::unique_ptr<io::Backing> lock = std::move(backing_);
  if (!fault.ok() || left == Left::Nothing) return fault;
  if (left == Left::Store) {
    return {Code::Present, options.path + ": " + what + ", where a new store would grow; rename it to " + path_ +
                               " if that is to be served, or move it away"};
  }
  if (left == Left::UnfinishedStart) {
    if (const int error = rename_to_free_name(options.path, path_); error != 0 && error != EEXIST && error != ENOENT) {
      return {{Code::IoError, -error}, "renaming " + options.path + " to " + path_ + ": " + errno_name(error)};
    }
    *took_it = true;
    return {};
  }
  int error = 0;
  if (lock == nullptr) {
    error = remove_less_than_a_page(options.path);
  } else if (same_file(options.path, lock->descriptor()) && ::unlink(options.path.c_str()) != 0) {
    error = errno == ENOENT ? 0 : errno;
  }
  if (error == EAGAIN) return {{Code::Present, -EEXIST}, options.path + ": another daemon makes it at the same time"};
  return error == 0 ? Fault() : Fault{{Code::IoError, -error}, "removing " + options.path + ": " + errno_name(error)};
}

Fault StoreFile::make(const Config& config) {
  if (Fault fault = plan(config, config.store_bytes); !fault.ok()) return fault;
  io::Backing::Options options{
      .path = path_ + ".new", .bytes = geometry_.device_bytes, .allow_buffered = config.allow_buffered};
  bool took_it = false;
  if (Fault fault = clear_left(options, &took_it); !fault.ok()) return fault;
  if (took_it) return {{Code::Present, -EEXIST}, path_ + ": was made meanwhile"};  // found by another look
  Fault fault = io::Backing::create(options, &report_allocation, const_cast<Config*>(&config), &backing_);
  if (fault.ok()) unpublished_ = options.path;
  return fault;
}

Fault StoreFile::publish() {
  if (unpublished_.empty()) return {};
  if (!same_file(unpublished_, backing_->descriptor())) {
    return {Code::NotFound, unpublished_ + ": was removed or replaced while it was made; start again"};
  }
  if (const int error = rename_to_free_name(unpublished_, path_); error == EEXIST) {
    return {{Code::Present, -error},
            path_ + ": another store got this name while one was made for it; start again to serve it"};
  } else if (error != 0) {
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
