// store_file.h — the file of a store: found and locked, or made.
// A new one grows under a name of its own and gets the store's name when it has been formatted, so that whatever ends the
// daemon on the way, Ctrl-C or the power, the store's name never stands for half a store. A block device is made a store if
// both of its ends are blank, whole; formatting writes the header, which is there, last.
// Thread: one at a time.
#pragma once

#include <memory>
#include <string>

#include "io/backing.h"
#include "shard/server.h"
#include "store/store.h"

namespace halfstep::shard {

class StoreFile {
 public:
  StoreFile() = default;
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;
  // Removes what was made and not published.
  ~StoreFile();

  Fault open(const Config& config);
  // A made file gets the store's name. Nothing to do for one that was found.
  Fault publish();

  // Unlocks it.
  void close() noexcept { backing_ = nullptr; }

  io::Backing& backing() noexcept { return *backing_; }
  // Null unless the file was made, or the device is blank: what it has to be formatted to.
  const store::Geometry* to_format() const noexcept { return blank_ || !unpublished_.empty() ? &geometry_ : nullptr; }
  // With the store's name.
  io::BackingFacts facts() const;

 private:
  Fault make(const Config& config);
  Fault plan(const Config& config, uint64_t bytes);
  Fault look_at_device(const Config& config);

  std::string path_;
  std::string unpublished_;
  bool blank_ = false;  // a device that holds nothing yet
  store::Geometry geometry_;
  std::unique_ptr<io::Backing> backing_;
};

}  // namespace halfstep::shard
