#include "store/segment/payload_check.h"

#include <algorithm>

#include "base/crc.h"

namespace halfstep::store {

void PayloadChecker::add(uint64_t tag, uint64_t offset, uint64_t bytes, uint32_t checksum) {
  while (bytes > 0) {
    const uint64_t room = memory_.bytes().size() - used_bytes_;
    if (room == 0) {
      run();
      continue;
    }
    const uint64_t step = std::min({bytes, room, kPieceBytes});
    const Bytes into = memory_.bytes().subspan(static_cast<size_t>(used_bytes_), static_cast<size_t>(step));
    pieces_.push_back({&io_.add_read(offset, into), into, tag, checksum, step == bytes});
    used_bytes_ += step;
    offset += step;
    bytes -= step;
  }
}

void PayloadChecker::finish() { run(); }

void PayloadChecker::run() {
  (void)io_.run();  // each request says how it went
  for (const Piece& piece : pieces_) {
    unreadable_ = unreadable_ || piece.request->error != 0;
    crc_ = crc32c(piece.bytes, crc_);
    if (!piece.last) continue;
    const bool same = crc_ == piece.checksum;
    verdict_(piece.tag, unreadable_ ? PayloadVerdict::Unreadable : same ? PayloadVerdict::Good : PayloadVerdict::Mismatch);
    crc_ = 0;
    unreadable_ = false;
  }
  pieces_.clear();
  used_bytes_ = 0;
}

}  // namespace halfstep::store
