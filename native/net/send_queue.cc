#include "net/send_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace halfstep::net {
namespace {

// Sent entries are cut off the front of a vector once they are this many and at least half of it: each is moved once at most.
constexpr size_t kCompactPieces = 64;
constexpr size_t kCompactBytes = 16 * 1024;

}  // namespace

void SendQueue::push(ConstBytes copied) {
  if (copied.empty()) return;
  copies_.insert(copies_.end(), copied.begin(), copied.end());
  bytes_ += copied.size();
  if (!empty() && pieces_.back().reference == nullptr && pieces_.back().released == nullptr) {
    pieces_.back().bytes += copied.size();
  } else {
    pieces_.push_back({.bytes = copied.size()});
  }
}

void SendQueue::push_payload(std::span<const ConstBytes> payload, Released released, void* owner, uint64_t tag) {
  for (const ConstBytes part : payload) {
    if (part.empty()) continue;
    pieces_.push_back({.reference = part.data(), .bytes = part.size()});
    bytes_ += part.size();
  }
  // A piece of its own: an empty payload is released as well, when all before it has left.
  if (released != nullptr) pieces_.push_back({.released = released, .owner = owner, .tag = tag});
}

size_t SendQueue::gather(std::span<iovec> out, size_t bytes_max) const noexcept {
  return gather_until(out, bytes_max, pieces_.size());
}

size_t SendQueue::gather_until(std::span<iovec> out, size_t bytes_max, size_t end) const noexcept {
  size_t used = 0;
  size_t copy_at = copies_sent_;
  size_t skip = first_sent_;
  for (size_t at = first_; at < end && used < out.size() && bytes_max != 0; ++at) {
    const Piece& piece = pieces_[at];
    const size_t left = piece.bytes - skip;
    skip = 0;
    if (left == 0) continue;
    const std::byte* from = piece.reference != nullptr ? piece.reference + (piece.bytes - left) : copies_.data() + copy_at;
    if (piece.reference == nullptr) copy_at += left;
    const size_t taken = std::min(left, bytes_max);
    bytes_max -= taken;
    out[used++] = {const_cast<std::byte*>(from), taken};
  }
  return used;
}

// Whether the pieces from `at` on are a run. `skip` bytes of the first have left.
bool SendQueue::run_begins(size_t at, size_t skip, size_t run_bytes_min) const noexcept {
  size_t pieces = 0;
  size_t bytes = 0;
  for (; at < pieces_.size() && bytes < run_bytes_min; ++at) {
    const Piece& piece = pieces_[at];
    const size_t left = piece.bytes - skip;
    skip = 0;
    if (left == 0) continue;
    if (piece.reference == nullptr) return false;
    bytes += left;
    if (++pieces * kRunPieceBytesMin > run_bytes_min) return false;
  }
  return bytes >= run_bytes_min;
}

size_t SendQueue::gather_to_border(std::span<iovec> out, size_t bytes_max, size_t run_bytes_min, bool* run) const noexcept {
  size_t end = first_;
  size_t seen = 0;
  bool in_run = false;
  bool began = false;
  bool after_copy = true;
  size_t skip = first_sent_;
  for (; end < pieces_.size(); ++end) {
    const Piece& piece = pieces_[end];
    const size_t left = piece.bytes - skip;
    const size_t skipped = std::exchange(skip, 0);
    if (left == 0) continue;
    if (seen++ == out.size()) break;
    const bool begins = after_copy && piece.reference != nullptr && run_begins(end, skipped, run_bytes_min);
    after_copy = piece.reference == nullptr;
    if (!began) {
      began = true;
      in_run = begins;
    } else if (begins || (in_run && after_copy)) {
      break;
    }
  }
  *run = in_run;
  return gather_until(out, bytes_max, end);
}

void SendQueue::consume(size_t count, PayloadKeeper* keeper) {
  HALFSTEP_CHECK(count <= bytes_, count, bytes_);
  bytes_ -= count;
  while (!empty()) {
    Piece& piece = pieces_[first_];
    const size_t taken = std::min(piece.bytes - first_sent_, count);
    count -= taken;
    if (piece.reference == nullptr) copies_sent_ += taken;
    first_sent_ += taken;
    if (first_sent_ != piece.bytes) break;
    const Piece done = piece;
    ++first_;
    first_sent_ = 0;
    if (done.released == nullptr) continue;
    const Release release{done.released, done.owner, done.tag};
    if (keeper == nullptr || !keeper->keep(release)) release();
  }
  compact();
}

bool SendQueue::take_front(Release* out) noexcept {
  for (size_t at = first_; at < pieces_.size(); ++at) {
    Piece& piece = pieces_[at];
    if (piece.released == nullptr) continue;
    *out = {piece.released, piece.owner, piece.tag};
    piece.released = nullptr;
    return true;
  }
  return false;
}

void SendQueue::compact() noexcept {
  if (empty()) {
    pieces_.clear();
    copies_.clear();
    first_ = 0;
    copies_sent_ = 0;
    return;
  }
  if (first_ >= kCompactPieces && first_ * 2 >= pieces_.size()) {
    pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<ptrdiff_t>(first_));
    first_ = 0;
  }
  if (copies_sent_ >= kCompactBytes && copies_sent_ * 2 >= copies_.size()) {
    copies_.erase(copies_.begin(), copies_.begin() + static_cast<ptrdiff_t>(copies_sent_));
    copies_sent_ = 0;
  }
}

void SendQueue::drop() {
  bytes_ = 0;
  while (!empty()) {  // a `released` may push: what it pushes is dropped too
    const Piece done = pieces_[first_++];
    if (done.released != nullptr) done.released(done.owner, done.tag);
  }
  bytes_ = 0;
  first_sent_ = 0;
  compact();
}

void SendQueue::trim() {
  if (!empty()) return;
  std::vector<Piece>().swap(pieces_);  // assigning {} would keep the capacity
  std::vector<std::byte>().swap(copies_);
}

}  // namespace halfstep::net
