#include "io/backing.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "io/place.h"

namespace halfstep::io {
namespace {

// Of kernels newer than the headers that this may be built with.
#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif
#ifndef SMB2_SUPER_MAGIC
#define SMB2_SUPER_MAGIC 0xFE534D42
#endif
#ifndef CIFS_SUPER_MAGIC
#define CIFS_SUPER_MAGIC 0xFF534D42
#endif
#ifndef CEPH_SUPER_MAGIC
#define CEPH_SUPER_MAGIC 0x00c36400
#endif

constexpr auto kLockLingers = std::chrono::seconds(2);
constexpr auto kUnseenLockLingers = std::chrono::seconds(15);
constexpr auto kLockRetryEvery = std::chrono::milliseconds(20);

// A step of allocation takes about so long, so that whoever starts the daemon can stop it, and hears that it goes on: a
// fallocate call takes microseconds on one file system and seconds on another, and zeros as long as the device does.
constexpr uint64_t kStepUs = 100'000;
constexpr uint64_t kFirstStepBytes = 16 * MiB;
constexpr uint64_t kStepBytesMin = 1 * MiB;
constexpr uint64_t kStepBytesMax = 1 * GiB;
// Where fallocate is refused, zeros are written instead, in steps of this.
constexpr size_t kZeroBytes = 1 * MiB;
// Left to the file system for its own metadata: extents, the journal, the directory.
constexpr uint64_t kHeadroomBytes = 1 * MiB;

std::string human(uint64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  uint64_t unit = KiB;
  size_t index = 0;
  while (index + 1 < std::size(kUnits) && bytes >= unit * 1024) {
    unit *= 1024;
    ++index;
  }
  const uint64_t tenths = bytes % unit * 10 / unit;
  return std::to_string(bytes / unit) + "." + std::to_string(tenths) + " " + kUnits[index];
}

std::string sized(uint64_t bytes) { return std::to_string(bytes) + " (" + human(bytes) + ")"; }

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

Fault failed(const std::string& what, int error, const std::string& remedy = {}) {
  const Code code = error == ENOSPC || error == EDQUOT ? Code::NoSpace : Code::IoError;
  return {{code, -error}, what + ": " + errno_name(error) + (remedy.empty() ? "" : "; " + remedy)};
}

// A file that exists only if create() ends well.
class NewFile {
 public:
  NewFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (!kept_ && has_its_name()) unlink(path_.c_str());
    close(descriptor_);
  }
  int descriptor() const noexcept { return descriptor_; }
  void keep() noexcept { kept_ = true; }
  // Another daemon that saw it unlocked and empty may have put its own in its place.
  bool has_its_name() const noexcept {
    struct stat named {};
    struct stat open {};
    return lstat(path_.c_str(), &named) == 0 && fstat(descriptor_, &open) == 0 && named.st_dev == open.st_dev &&
           named.st_ino == open.st_ino;
  }

 private:
  std::string path_;
  int descriptor_;
  bool kept_ = false;
};

// Must come before the first byte: btrfs takes the flag for empty files alone. Overwriting in place
// is what the format does, and copy-on-write would turn every page of it into a new extent.
void switch_off_copy_on_write(int descriptor) noexcept {
  struct statfs fs {};
  if (fstatfs(descriptor, &fs) != 0 || fs.f_type != BTRFS_SUPER_MAGIC) return;
  int flags = 0;
  if (ioctl(descriptor, FS_IOC_GETFLAGS, &flags) != 0) return;
  flags |= FS_NOCOW_FL;
  // A refusal shows in facts().nocow, which open() reads back.
  (void)ioctl(descriptor, FS_IOC_SETFLAGS, &flags);
}

bool copy_on_write_is_off(int descriptor) noexcept {
  struct statfs fs {};
  int flags = 0;
  return fstatfs(descriptor, &fs) == 0 && fs.f_type == BTRFS_SUPER_MAGIC && ioctl(descriptor, FS_IOC_GETFLAGS, &flags) == 0 &&
         (flags & FS_NOCOW_FL) != 0;
}

// 0 or an errno.
int write_zeros(int descriptor, uint64_t offset, uint64_t count) {
  static const std::vector<std::byte> zeros(kZeroBytes);
  while (count > 0) {
    const size_t step = static_cast<size_t>(std::min<uint64_t>(count, kZeroBytes));
    const ssize_t done = pwrite(descriptor, zeros.data(), step, static_cast<off_t>(offset));
    if (done < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (done == 0) return EIO;
    offset += static_cast<uint64_t>(done);
    count -= static_cast<uint64_t>(done);
  }
  return 0;
}

// Allocates a file from its start, step by step.
class Allocation {
 public:
  Allocation(int descriptor, uint64_t bytes, const Clock& clock) : descriptor_(descriptor), bytes_(bytes), clock_(clock) {}

  uint64_t done() const noexcept { return done_; }
  // 0 or an errno.
  int step() {
    const uint64_t began = clock_.now_us();
    const uint64_t count = std::min(bytes_ - done_, step_bytes_);
    if (const int error = zeros_ ? write(count) : reserve(count); error != 0) return error;
    done_ += count;
    const uint64_t took = clock_.now_us() - began;
    if (took > kStepUs) step_bytes_ = std::max(step_bytes_ / 2, kStepBytesMin);
    if (took < kStepUs / 2) step_bytes_ = std::min(step_bytes_ * 2, kStepBytesMax);
    return 0;
  }

 private:
  // posix_fallocate is not used: where the file system has no fallocate, glibc's stand-in writes one byte a block and cannot be
  // interrupted.
  int reserve(uint64_t count) {
    while (fallocate(descriptor_, 0, static_cast<off_t>(done_), static_cast<off_t>(count)) != 0) {
      if (errno == EINTR) continue;
      if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
      zeros_ = true;
      return write(count);
    }
    return 0;
  }
  // With a sync of each step, or the page cache takes them all at once and the last sync takes minutes.
  int write(uint64_t count) {
    if (const int error = write_zeros(descriptor_, done_, count); error != 0) return error;
    return fdatasync(descriptor_) == 0 ? 0 : errno;
  }

  const int descriptor_;
  const uint64_t bytes_;
  const Clock& clock_;
  uint64_t done_ = 0;
  uint64_t step_bytes_ = kFirstStepBytes;
  bool zeros_ = false;
};

int sync_directory(const std::string& path) noexcept {
  const int directory = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return errno;
  const int error = fsync(directory) == 0 ? 0 : errno;
  close(directory);
  // Some network and FUSE file systems have no fsync for directories; there is nothing more to be
  // done there.
  return error == EINVAL || error == ENOTSUP ? 0 : error;
}

// 0 or an errno; EAGAIN: another open file description holds it.
int lock_whole_file(int descriptor, bool shared) noexcept {
  struct flock lock {};
  lock.l_type = shared ? F_RDLCK : F_WRLCK;
  lock.l_whence = SEEK_SET;  // l_len 0: to the end, wherever that is
  if (fcntl(descriptor, F_OFD_SETLK, &lock) == 0) return 0;
  return errno == EACCES ? EAGAIN : errno;
}

std::string read_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

bool is_number(std::string_view text) noexcept {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The fdinfo of a descriptor whose open file description holds a lock has a line "lock: 1: OFDLCK ADVISORY WRITE -1 ...".
bool holds_lock(const std::string& fdinfo_path) {
  std::ifstream in(fdinfo_path);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("lock:", 0) == 0) return true;
  }
  return false;
}

// False also where we may not look, and where the process ends meanwhile.
bool holds_lock_on(const std::string& pid, const struct stat& file) {
  const std::string base = "/proc/" + pid;
  std::error_code unreadable;
  std::filesystem::directory_iterator entry(base + "/fd", unreadable);
  for (; !unreadable && entry != std::filesystem::directory_iterator(); entry.increment(unreadable)) {
    struct stat other {};
    if (stat(entry->path().c_str(), &other) != 0) continue;
    if (other.st_dev != file.st_dev || other.st_ino != file.st_ino) continue;
    if (holds_lock(base + "/fdinfo/" + entry->path().filename().string())) return true;
  }
  return false;
}

std::string describe_process(const std::string& pid) {
  std::ifstream in("/proc/" + pid + "/cmdline", std::ios::binary);
  std::string command((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::replace(command.begin(), command.end(), '\0', ' ');
  while (!command.empty() && command.back() == ' ') command.pop_back();
  if (command.empty()) command = read_line("/proc/" + pid + "/comm");
  constexpr size_t kShown = 120;
  if (command.size() > kShown) command = command.substr(0, kShown) + "...";
  return "process " + pid + " (" + command + ")";
}

// F_OFD_GETLK says pid -1 for an OFD lock, because several processes can share one. So: whose
// descriptor of this very file carries a lock? Empty when nobody's does: descriptors of other users are out of sight without
// privilege, and those that a ring has registered belong to nobody any more when its process is gone.
std::string lock_holder(int descriptor) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fcntl(descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid > 0) {
    return describe_process(std::to_string(lock.l_pid));
  }
  struct stat file {};
  if (fstat(descriptor, &file) != 0) return "another process";
  std::error_code unreadable;
  std::filesystem::directory_iterator process("/proc", unreadable);
  for (; !unreadable && process != std::filesystem::directory_iterator(); process.increment(unreadable)) {
    const std::string pid = process->path().filename().string();
    if (!is_number(pid)) continue;
    if (holds_lock_on(pid, file)) return describe_process(pid);
  }
  return "";
}

bool device_is_read_only(const std::string& path) noexcept {
  const int device = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (device < 0) return false;
  int read_only = 0;
  const bool told = ioctl(device, BLKROGET, &read_only) == 0 && read_only != 0;
  close(device);
  return told;
}

struct AlignedFree {
  void operator()(void* at) const noexcept { std::free(at); }
};

// Is the first page of the file in the page cache? nullopt: cannot be said.
std::optional<bool> first_page_is_cached(int descriptor) noexcept {
  void* at = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, descriptor, 0);
  if (at == MAP_FAILED) return std::nullopt;
  unsigned char resident = 0;
  const int result = mincore(at, kPageBytes, &resident);
  munmap(at, kPageBytes);
  if (result != 0) return std::nullopt;
  return (resident & 1U) != 0;
}

// The line of mountinfo of the mount that a descriptor is on: "36 35 0:98 / /mnt rw - overlay overlay rw,upperdir=/x".
std::string mount_line_of(int descriptor) {
  const std::string mount = [&] {
    std::ifstream in("/proc/self/fdinfo/" + std::to_string(descriptor));
    for (std::string name, value; in >> name >> value;) {
      if (name == "mnt_id:") return value;
    }
    return std::string();
  }();
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    if (!mount.empty() && line.rfind(mount + " ", 0) == 0) return line;
  }
  return "";
}

bool in_memory(uint64_t type) noexcept { return type == TMPFS_MAGIC || type == RAMFS_MAGIC; }

// Where an overlay writes. Empty: it is out of sight, as in a container.
std::string upper_directory_of(int descriptor) {
  const std::string line = mount_line_of(descriptor);
  const size_t at = line.find("upperdir=");
  if (at == std::string::npos) return "";
  const size_t begin = at + std::string_view("upperdir=").size();
  return line.substr(begin, line.find_first_of(", ", begin) - begin);
}

// Turns O_DIRECT on and proves it: the file system's word by statx, a read of a page, and that this
// page did not pass through the page cache (several file systems accept the flag and ignore it).
// Returns the reason against it, empty when in force.
std::string go_direct(int descriptor, uint32_t* align_bytes) {
  struct statfs fs {};
  struct stat file {};
  const bool regular = fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode);  // devices have their names in memory
  const bool known = regular && fstatfs(descriptor, &fs) == 0;
  if (known && in_memory(static_cast<uint64_t>(fs.f_type))) {
    return "the file lies on tmpfs, which is memory: nothing survives a reboot and every byte "
           "counts twice";
  }
  const bool overlay = known && fs.f_type == OVERLAYFS_SUPER_MAGIC;
  struct statfs upper {};
  if (overlay && statfs(upper_directory_of(descriptor).c_str(), &upper) == 0 &&
      in_memory(static_cast<uint64_t>(upper.f_type))) {
    return "the file lies on an overlay over tmpfs, which is memory: nothing survives a reboot and every byte counts twice";
  }
  struct statx about {};
  if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &about) == 0 && (about.stx_mask & STATX_DIOALIGN) != 0) {
    *align_bytes = about.stx_dio_offset_align;
    if (about.stx_dio_offset_align == 0) return "the file system says that this file cannot do O_DIRECT (statx DIOALIGN)";
    if (about.stx_dio_offset_align > kPageBytes || about.stx_dio_mem_align > kPageBytes) {
      return "the file system wants O_DIRECT aligned to " +
             std::to_string(std::max(about.stx_dio_offset_align, about.stx_dio_mem_align)) + " bytes; the format aligns to " +
             std::to_string(kPageBytes);
    }
  }
  const int flags = fcntl(descriptor, F_GETFL);
  (void)fdatasync(descriptor);
  (void)posix_fadvise(descriptor, 0, kPageBytes, POSIX_FADV_DONTNEED);
  const std::optional<bool> cached_before = first_page_is_cached(descriptor);
  if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0) return "O_DIRECT is refused: " + errno_name(errno);

  const std::unique_ptr<void, AlignedFree> page(std::aligned_alloc(kPageBytes, kPageBytes));
  std::string reason;
  const ssize_t got = page == nullptr ? -1 : pread(descriptor, page.get(), kPageBytes, 0);
  if (got != static_cast<ssize_t>(kPageBytes)) {
    reason = "a probe read of " + std::to_string(kPageBytes) + " bytes with O_DIRECT " +
             (got < 0 ? "failed: " + errno_name(errno) : "returned " + std::to_string(got));
  } else if (cached_before == false && first_page_is_cached(descriptor) == true) {
    reason = "the file system accepts O_DIRECT but reads through the page cache";
  } else if (overlay && cached_before == true) {
    // Synced and told not to be needed, a page leaves the cache of every file system but one.
    reason = "the file lies on an overlay whose pages do not leave memory: it is over tmpfs";
  }
  if (!reason.empty()) (void)fcntl(descriptor, F_SETFL, flags);
  return reason;
}

}  // namespace

std::string submission_waits_for(uint64_t file_system_type) {
  switch (file_system_type) {
    case EXT4_SUPER_MAGIC:
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case F2FS_SUPER_MAGIC:
    case TMPFS_MAGIC:
    case RAMFS_MAGIC: return "";
    case FUSE_SUPER_MAGIC: return "FUSE";
    case NFS_SUPER_MAGIC: return "NFS";
    case SMB2_SUPER_MAGIC:
    case CIFS_SUPER_MAGIC: return "SMB";
    case V9FS_MAGIC: return "9p";
    case CEPH_SUPER_MAGIC: return "Ceph";
    case OVERLAYFS_SUPER_MAGIC: return "an overlay";
    default: return "a file system that is not known here";
  }
}

uint64_t free_bytes(const std::string& path) noexcept {
  struct statvfs fs {};
  std::string at = path;
  while (statvfs(at.c_str(), &fs) != 0) {
    // The file, or the directories that it will be in, may not be there yet.
    if (errno != ENOENT || at == "." || at == "/") return 0;
    at = parent_of(at);
  }
  return uint64_t{fs.f_bavail} * fs.f_frsize;
}

Fault Backing::create(const Options& options, bool (*progress)(void* context, uint64_t done, uint64_t total), void* context,
                      std::unique_ptr<Backing>* out) {
  const std::string& path = options.path;
  if (options.bytes == 0 || options.bytes % kPageBytes != 0) {
    return {Code::Invalid, "size=" + std::to_string(options.bytes) + " for " + path + ": must be a positive multiple of " +
                               std::to_string(kPageBytes)};
  }
  const std::string directory = parent_of(path);
  bool there = false;
  if (Fault fault = look_at_place(path, &there); !fault.ok()) return fault;
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    const int error = errno;
    if (error == EEXIST) {
      return {{Code::Present, -EEXIST}, path + " exists; open it, or remove it first to make a new store"};
    }
    if (error == ENOENT) return failed("creating " + path, error, "make the directory " + directory + " first");
    if (error == EACCES || error == EPERM || error == EROFS) {
      return failed("creating " + path, error, "choose a directory that this user may write");
    }
    return failed("creating " + path, error);
  }
  NewFile file(path, descriptor);

  // Asked of the descriptor, so that it is the file system that the file is really on.
  struct statvfs fs {};
  if (fstatvfs(descriptor, &fs) == 0) {
    const uint64_t free = uint64_t{fs.f_bavail} * fs.f_frsize;
    if (options.bytes > free || free - options.bytes < kHeadroomBytes) {
      return {{Code::NoSpace, -ENOSPC},
              "size=" + sized(options.bytes) + ": " + directory + " has " + sized(free) +
                  " free; lower it or mount a larger device"};
    }
  }
  // Held while it grows, so that a daemon started meanwhile is told so instead of opening half a
  // store.
  const int unlocked = lock_whole_file(descriptor, false);
  if (unlocked == EAGAIN || (unlocked == 0 && !file.has_its_name())) {
    return {{Code::Present, -EEXIST}, path + ": another daemon makes it at the same time"};
  }
  if (unlocked != 0) return failed("locking " + path, unlocked);
  switch_off_copy_on_write(descriptor);

  const SystemClock system;
  Allocation allocation(descriptor, options.bytes, options.clock != nullptr ? *options.clock : system);
  while (allocation.done() < options.bytes) {
    if (const int error = allocation.step(); error != 0) {
      return failed("allocating size=" + sized(options.bytes) + " in " + directory + " after " + sized(allocation.done()),
                    error,
                    error == EFBIG ? "the file system's or the process's file size limit (ulimit -f) is lower"
                                   : "lower it or mount a larger device");
    }
    if (progress != nullptr && !progress(context, allocation.done(), options.bytes)) {
      return {Code::Cancelled,
              "allocating " + path + " was stopped after " + sized(allocation.done()) + "; the file is removed"};
    }
  }
  if (fsync(descriptor) != 0) return failed("syncing " + path, errno);
  if (const int error = sync_directory(directory); error != 0) return failed("syncing the directory " + directory, error);
  if (out != nullptr) {
    // With the lock that it has: there is no moment at which it could be taken for one that was left behind.
    std::unique_ptr<Backing> backing(new Backing);
    backing->facts_.path = path;
    backing->descriptor_ = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (backing->descriptor_ < 0) return failed("opening " + path, errno);
    if (Fault fault = backing->examine(options, false); !fault.ok()) return fault;
    *out = std::move(backing);
  }
  file.keep();
  return {};
}

Fault Backing::open(const Options& options, std::unique_ptr<Backing>* out) {
  const std::string& path = options.path;
  if (!vhost_socket_of(path).empty()) return open_session(options, out);
  if (path == kNoopName) return open_noop(options, out);
  std::unique_ptr<Backing> backing(new Backing);
  backing->facts_.path = path;
  const auto no_store = [&] {
    return Fault{Code::Unsupported, path + ": neither a regular file nor a block device; give the path of a store"};
  };
  // Looked at before it is opened: opening a pipe waits for its other end, and opening a device may do something.
  struct stat kind {};
  bool there = stat(path.c_str(), &kind) == 0;
  if (there && S_ISCHR(kind.st_mode)) return open_namespace(options, out);
  // The kernel's claim on a device: no mount, no array and no other daemon has it while we do.
  const int claim = there && S_ISBLK(kind.st_mode) ? O_EXCL : 0;
  if (there && claim == 0 && !S_ISREG(kind.st_mode)) return no_store();
  backing->descriptor_ = ::open(path.c_str(), (options.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | claim);
  const int descriptor = backing->descriptor_;
  if (descriptor < 0) {
    const int error = errno;
    if (error == EROFS || (claim != 0 && device_is_read_only(path))) {
      return failed("opening " + path, error,
                    claim != 0
                        ? "the device is read-only: `blockdev --setrw " + path +
                              "`, or look at the drive, which may have "
                              "worn out; use another device"
                        : "its file system is mounted read-only, perhaps after an error (dmesg): mount it read-write, or "
                          "use another path");
    }
    if (error == ENOENT || error == ELOOP) {
      Fault fault = look_at_place(path, &there);
      return fault.ok() ? Fault{{Code::NotFound, -ENOENT}, path + ": no such file"} : fault;
    }
    if (error == EBUSY && claim != 0) {
      return {{Code::Present, -ESRCH},
              path + ": in use; it is mounted, part of an array or served by another daemon (`lsblk` and `lsof " + path +
                  "` tell): stop that one or use another device"};
    }
    return failed("opening " + path, error,
                  error == EACCES ? "run as the user that made it, or give this user read and write access" : "");
  }
  struct stat about {};
  if (fstat(descriptor, &about) != 0) return failed("opening " + path, errno);
  const bool device = claim != 0 && S_ISBLK(about.st_mode);
  if (!device && !S_ISREG(about.st_mode)) return no_store();
  if (const int error = lock_whole_file(descriptor, options.read_only); error == EAGAIN) {
    const std::string holder = lock_holder(descriptor);
    const std::string unseen =
        "a process that cannot be seen from here (another user's or another container's; as root, `lsof " + path +
        "` names it)";
    return {{Code::Present, holder.empty() ? -ESRCH : -EAGAIN},
            path + ": locked by " + (holder.empty() ? unseen : holder) +
                "; one store serves one daemon: stop that one or use another path"};
  } else if (error != 0) {
    return failed("locking " + path, error,
                  "without a lock two daemons could write one store; use a file system with OFD locks");
  }
  if (Fault fault = backing->examine(options, device); !fault.ok()) return fault;
  *out = std::move(backing);
  return {};
}

// What it is, and how it can be used. It is locked.
Fault Backing::examine(const Options& options, bool device) {
  const std::string& path = facts_.path;
  struct stat about {};
  if (fstat(descriptor_, &about) != 0) return failed("opening " + path, errno);
  facts_.bytes = static_cast<uint64_t>(about.st_size);
  if (device) {
    facts_.block_device = true;
    int read_only = 0;
    if (!options.read_only && ioctl(descriptor_, BLKROGET, &read_only) == 0 && read_only != 0) {
      return failed("opening " + path, EROFS,
                    "the device is read-only: `blockdev --setrw " + path + "`, or use another device");
    }
    facts_.discard = read_discard_limits(about.st_rdev);
    if (ioctl(descriptor_, BLKGETSIZE64, &facts_.bytes) != 0) return failed("asking for the size of " + path, errno);
  }
  // What was cut, or is longer than its store, need not end with a page.
  const uint64_t whole = facts_.bytes;
  facts_.bytes = round_down(whole, kPageBytes);
  if (facts_.bytes == 0) {
    return {Code::Invalid, path + ": " + std::to_string(whole) + " bytes are less than a page of " +
                               std::to_string(kPageBytes) + ", so it is no store, or all of it was cut; restore or remove it"};
  }
  facts_.nocow = copy_on_write_is_off(descriptor_);
  struct statfs fs {};
  if (!device && fstatfs(descriptor_, &fs) == 0) {
    facts_.submission_waits_for = submission_waits_for(static_cast<uint64_t>(fs.f_type));
  }

  const std::string reason = go_direct(descriptor_, &facts_.direct_align_bytes);
  facts_.direct = reason.empty();
  if (!reason.empty()) {
    if (!options.allow_buffered) {
      return {Code::Unsupported, path + ": " + reason + "; put the store on ext4, xfs or btrfs, or allow buffered I/O"};
    }
    facts_.why_not_direct = reason + "; I/O is buffered: each byte is copied once more and fills the page cache";
  }
  return {};
}

Fault Backing::open_patiently(const Options& options, std::unique_ptr<Backing>* out) {
  const auto began = std::chrono::steady_clock::now();
  for (;;) {
    Fault fault = open(options, out);
    if (fault.status != Code::Present) return fault;
    // A busy machine takes its time to take a ring apart; a holder that is there will not go away.
    const auto lingers = fault.status.detail() == -ESRCH ? kUnseenLockLingers : kLockLingers;
    if (std::chrono::steady_clock::now() >= began + lingers) return fault;
    std::this_thread::sleep_for(kLockRetryEvery);
  }
}

}  // namespace halfstep::io
