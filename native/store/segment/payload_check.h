// payload_check.h — reads extents in the order they are given and compares their checksums, a few MiB of reads at a time.
// Invariants: `verdict` comes once for every extent that was added, at the latest from finish(), in the order of adding.
// Thread: one, blocking.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "store/durable/blocking_io.h"
#include "store/format/page.h"

namespace halfstep::store {

enum class PayloadVerdict : uint8_t { Good, Mismatch, Unreadable };

class PayloadChecker {
 public:
  PayloadChecker(io::Engine& engine, std::function<void(uint64_t tag, PayloadVerdict verdict)> verdict)
      : io_(engine), verdict_(std::move(verdict)), memory_(kMemoryPages) {}

  // `bytes` is whole pages.
  void add(uint64_t tag, uint64_t offset, uint64_t bytes, uint32_t checksum);
  void finish();

 private:
  static constexpr uint32_t kMemoryPages = 2048;
  static constexpr uint64_t kPieceBytes = 256 * KiB;
  struct Piece {
    const io::Request* request = nullptr;
    Bytes bytes;
    uint64_t tag = 0;
    uint32_t checksum = 0;
    bool last = false;  // of its extent
  };
  void run();

  BlockingIo io_;
  std::function<void(uint64_t, PayloadVerdict)> verdict_;
  PageBuffer memory_;
  uint64_t used_bytes_ = 0;
  std::vector<Piece> pieces_;
  uint32_t crc_ = 0;  // of the extent whose pieces are being looked at
  bool unreadable_ = false;
};

}  // namespace halfstep::store
