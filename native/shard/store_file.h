// store_file.h — the file of a store: found and locked, or made.
// A new one grows under a name of its own and gets the store's name when it has been formatted, so that whatever ends the
// daemon on the way, Ctrl-C or the power, the store's name never stands for half a store. A block device is made a store if it
// is blank (io/blank.h); formatting writes the header, which is there, last.
// Invariants: a file with a whole store header is never removed, nor replaced when another one gets its name: what a first
// start left whole and empty is given its name, anything else of that kind refuses the start.
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "io/backing.h"
#include "shard/config.h"
#include "store/store.h"

namespace halfstep::shard {

class StoreFile {
 public:
  StoreFile() = default;
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;
  ~StoreFile();  // closes

  Fault open(const Config& config);
  // A made file gets the store's name. Nothing to do for one that was found.
  Fault publish();

  // Unlocks it, and removes what was made and not published.
  void close() noexcept;

  io::Backing& backing() const noexcept { return *backing_; }
  // Null unless the file was made, or the device is blank: what it has to be formatted to.
  const store::Geometry* to_format() const noexcept { return blank_ || !unpublished_.empty() ? &geometry_ : nullptr; }
  // Of a device that is not blank: the first byte that is not zero.
  std::optional<uint64_t> data_at() const noexcept { return data_at_; }
  // Of a block device that is neither blank nor a store: what was found instead, for `no_header`.
  Fault explain(Fault no_header) const;
  // With the store's name.
  io::BackingFacts facts() const;

 private:
  // What a start that did not end has left; `took_it`: it was whole, and is the store now.
  enum class Left : uint8_t { Nothing, Garbage, UnfinishedStart, Store };
  Fault look_at_left(const io::Backing::Options& options, Left* left, std::string* what);
  Fault clear_left(const io::Backing::Options& options, bool* took_it);
  Fault make(const Config& config);
  Fault plan(const Config& config, uint64_t bytes);
  Fault look_at_device(const Config& config);
  const std::string& block_path() const;
  Fault look_for_data(const std::function<bool(uint64_t done, uint64_t total)>& look);

  std::string path_;
  std::string unpublished_;
  bool blank_ = false;               // a device that holds nothing yet
  std::optional<uint64_t> data_at_;  // of a device: where it holds something
  store::Geometry geometry_;
  std::unique_ptr<io::Backing> backing_;
};

}  // namespace halfstep::shard
