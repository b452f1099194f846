// test_files.h — for this folder's tests: a directory that is gone afterwards, page-aligned memory.
// The directory lies under TMPDIR (or /tmp), which a developer points at the file system to be
// tried.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <string>

#include "base/units.h"

namespace halfstep::io {

class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& parent = testing::TempDir()) {
    std::string name = parent + "/halfstep-test-XXXXXX";
    path_ = mkdtemp(name.data()) != nullptr ? name : std::string();
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  // Empty when it could not be made.
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

struct AlignedDelete {
  void operator()(std::byte* at) const noexcept {
    ::operator delete[](at, std::align_val_t{kPageBytes});
  }
};
inline std::unique_ptr<std::byte[], AlignedDelete> aligned_bytes(size_t bytes) {
  return std::unique_ptr<std::byte[], AlignedDelete>(new (std::align_val_t{kPageBytes})
                                                         std::byte[bytes]());
}

}  // namespace halfstep::io
