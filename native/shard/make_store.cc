#include "shard/make_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "base/arena.h"
#include "io/blank.h"
#include "io/engine.h"
#include "shard/store_file.h"
#include "store/store.h"

namespace halfstep::shard {
namespace {

// The lock goes with the backing: between this and the making of a store somebody else may come first, who is then refused or
// refuses.
Fault wipe_what_is_there(Config& config) {
  const std::string& path = config.store_path;
  if (!io::vhost_socket_of(path).empty()) {
    return {Code::Unsupported, path + ": the drive is the target's; blank it on the target's side"};
  }
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return {};  // what is not there is StoreFile's to say
  std::unique_ptr<io::Backing> backing;
  const io::Backing::Options options{.path = path, .bytes = 0, .allow_buffered = config.allow_buffered};
  Fault fault = io::Backing::open_patiently(options, &backing);
  if (S_ISREG(about.st_mode)) {
    // One of less than a page is nobody's store; all else has to be locked.
    if (!fault.ok() && fault.status != Code::Invalid) return fault;
    if (config.store_bytes == 0) config.store_bytes = static_cast<uint64_t>(about.st_size);
    if (::unlink(path.c_str()) == 0) return {};
    return {{Code::IoError, -errno}, "removing " + path + ": " + errno_name(errno)};
  }
  if (!fault.ok()) return fault;
  return io::make_blank(
      backing->descriptor(), backing->facts().bytes, backing->facts().block_device, path,
      [&](uint64_t done, uint64_t total) { return !config.progress || config.progress("blanking the device", done, total); });
}

}  // namespace

Fault make_store(const Config& asked, bool wipe, MadeStore* out) {
  Config config = asked;
  if (wipe) {
    if (Fault fault = wipe_what_is_there(config); !fault.ok()) return fault;
  }
  StoreFile file;
  if (Fault fault = file.open(config); !fault.ok()) return fault;
  if (file.to_format() == nullptr) {
    const std::string there = file.data_at() ? "holds something, at byte " + std::to_string(*file.data_at()) + " first"
                                             : std::string("is there already");
    const bool target = file.facts().vhost_user;
    return {Code::Invalid, config.store_path + ": " + there + "; name another place, or " +
                               (target ? "blank it on the target's side" : "give --force, which destroys what is there")};
  }
  out->geometry = *file.to_format();
  std::unique_ptr<Arena> arena;
  if (Fault fault = Arena::create(2 * MiB, false, &arena); !fault.ok()) return fault;
  std::unique_ptr<io::Engine> engine;
  if (Fault fault = io::open_plain_engine(*arena, file.backing(), &engine); !fault.ok()) return fault;
  if (Fault fault = store::Store::format(*engine, *arena, SystemClock(), out->geometry); !fault.ok()) return fault;
  engine = nullptr;
  if (Fault fault = file.publish(); !fault.ok()) return fault;
  out->backing = file.facts();
  return {};
}

}  // namespace halfstep::shard
