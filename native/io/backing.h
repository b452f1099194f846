// backing.h — where a store's bytes live: a preallocated file or a block device, opened for O_DIRECT and locked; or the device
// of a vhost-user target, which is reached through a socket and has no lock (the store header's start number says whose it is);
// or an NVMe namespace, by its character device. That one is claimed through its block device, by which it is read and written
// as well where no command is needed; or a no-op device, which is memory and measures the software (noop_engine.h).
// Invariants: the size never changes after create(); a file is allocated whole and never punched; the lock (OFD on a file,
// O_EXCL on a device, which also keeps mounts away) is held from open() to destruction, so that two daemons never write one
// store.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "io/discard.h"

namespace halfstep::io {

class NoopDevice;
class NvmeNamespace;
class VhostSession;

// "vhost-user:PATH" names the socket of a target. Empty: it is a path like any other.
inline constexpr std::string_view kVhostUserPrefix = "vhost-user:";
inline std::string_view vhost_socket_of(std::string_view path) noexcept {
  return path.starts_with(kVhostUserPrefix) ? path.substr(kVhostUserPrefix.size()) : std::string_view();
}

// "noop:" is a device of Options::bytes in this process's memory.
inline constexpr std::string_view kNoopName = "noop:";

struct BackingFacts {
  std::string path;
  uint64_t bytes = 0;               // whole pages
  bool direct = false;              // O_DIRECT is in force: statx said so and a probe read did it
  std::string why_not_direct;       // not empty when it is not: cause and what it costs
  uint32_t direct_align_bytes = 0;  // offset alignment that the file system asks for
  bool nocow = false;               // copy-on-write was switched off (btrfs)
  bool block_device = false;
  bool vhost_user = false;
  bool noop = false;
  std::string nvme_block_path;       // of an NVMe namespace: its block device; else empty
  std::string why_no_nvme_commands;  // of a namespace: not empty where it takes none from here: cause and remedy
  // Not empty where handing a request to the kernel may wait for the file system: whose it is (FUSE, NFS …).
  std::string submission_waits_for;
  DiscardLimits discard;  // what the block device takes; a file takes none
};

class Backing {
 public:
  struct Options {
    std::string path;
    uint64_t bytes = 0;            // create(), and of a no-op device: the size; open(): ignored
    bool allow_buffered = true;    // false: refuse where O_DIRECT is refused
    bool read_only = false;        // open(): nothing can be written; others may read at the same time, nobody may write
    const Clock* clock = nullptr;  // create(): the steps between two calls of `progress` go by it; null: the system's
  };

  // Makes the file, allocates every byte, syncs file and directory. The callback hears of bytes done and bytes in all about ten
  // times a second, however slow the device is, and on the caller's thread: it may take the interpreter's lock.
  // Refuses to touch a file that exists (Present), and to start where it will not fit (NoSpace). On any failure, Ctrl-C by the
  // callback's false included, the file is removed. `out`, if not null, is the new file, locked all the time. Another daemon
  // that makes the same file at the same time: Present.
  static Fault create(const Options& options, bool (*progress)(void* context, uint64_t done, uint64_t total), void* context,
                      std::unique_ptr<Backing>* out = nullptr);
  // Opens and locks. A lock held elsewhere (Present) is named: which process, where to look; its detail is -ESRCH if nobody
  // that can be seen holds it. No such file: NotFound.
  static Fault open(const Options& options, std::unique_ptr<Backing>* out);
  // The same, but a lock that another holds is taken for another daemon's only when it lasts: a ring keeps its registered
  // files, and with them the lock, until the kernel has taken it apart, a moment after its process is gone.
  static Fault open_patiently(const Options& options, std::unique_ptr<Backing>* out);
  ~Backing();
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  int descriptor() const noexcept { return descriptor_; }            // -1: a vhost-user target
  VhostSession* session() const noexcept { return session_.get(); }  // null: no vhost-user target
  NvmeNamespace* nvme() const noexcept { return nvme_.get(); }       // null: no namespace, or one that takes no commands
  NoopDevice* noop() const noexcept { return noop_.get(); }          // null: no such
  const BackingFacts& facts() const noexcept { return facts_; }

 private:
  Backing();
  Fault examine(const Options& options, bool device);
  static Fault open_session(const Options& options, std::unique_ptr<Backing>* out);
  static Fault open_noop(const Options& options, std::unique_ptr<Backing>* out);
  static Fault open_namespace(const Options& options, std::unique_ptr<Backing>* out);
  void open_nvme(const std::string& block_path, bool read_only);
  int descriptor_ = -1;
  std::unique_ptr<VhostSession> session_;
  std::unique_ptr<NvmeNamespace> nvme_;
  std::unique_ptr<NoopDevice> noop_;
  BackingFacts facts_;
};

// The same for a type of statfs(); empty for file systems that take direct requests without waiting. What is not known waits.
std::string submission_waits_for(uint64_t file_system_type);

// Bytes that an unprivileged caller could still write on the file system of `path` (statvfs), 0 if it cannot be said.
uint64_t free_bytes(const std::string& path) noexcept;

}  // namespace halfstep::io
