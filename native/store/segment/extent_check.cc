#include "store/segment/extent_check.h"

#include <algorithm>

#include "base/crc.h"

namespace halfstep::store {

ExtentCheck::ExtentCheck(io::Engine& engine) : engine_(engine), window_(kWindowPages) {
  io_.op = io::Op::Read;
  io_.data = window_.bytes().data();
  io_.owner = this;
  io_.complete = [](io::Request& request) { static_cast<ExtentCheck*>(request.owner)->reading_ = false; };
}

void ExtentCheck::begin(uint64_t device_offset, uint64_t bytes, uint32_t checksum) {
  offset_ = device_offset;
  bytes_ = bytes;
  checksum_ = checksum;
  attempts_left_ = kAttempts;
  sound_ = false;
  (void)next_attempt();
}

bool ExtentCheck::next_attempt() noexcept {
  if (attempts_left_ == 0) return false;
  --attempts_left_;
  taken_ = 0;
  crc_ = 0;
  submitted_ = false;
  return true;
}

bool ExtentCheck::go_on() {
  unanswered_ = submitted_ && io_.error != 0;
  if (unanswered_) {
    if (!next_attempt()) return false;
  } else if (submitted_) {
    crc_ = crc32c(window_.bytes().first(io_.bytes), crc_);
    taken_ += io_.bytes;
    sound_ = taken_ == bytes_ && crc_ == checksum_;
    if (sound_ || (taken_ == bytes_ && !next_attempt())) return false;
  }
  io_.offset = offset_ + taken_;
  io_.bytes = static_cast<uint32_t>(std::min<uint64_t>(bytes_ - taken_, window_.bytes().size()));
  submitted_ = reading_ = true;
  io_.io_class = io::IoClass::Prefetch;
  engine_.submit(io_);
  return true;
}

}  // namespace halfstep::store
