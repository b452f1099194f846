// stream_send.cc — the sending half of a FrameStream (stream.h): what is queued leaves in turns, payload from where it lies.
#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "net/stream.h"

namespace halfstep::net {
namespace {

// What one system call sends: fewer and longer ones are faster, and nobody waits for the end of one that is alone. A rest that
// is smaller than kRestBytes goes along: by itself it would cost a turn.
constexpr size_t kSendBytes = 512 * KiB;
constexpr size_t kSendBytesAlone = 1 * MiB;
constexpr size_t kRestBytes = 64 * KiB;
static_assert(kSendLowBytes >= kSendBytes + kRestBytes && kSendLowBytesAlone >= kSendBytesAlone + kRestBytes,
              "else every send of a long answer empties the queue");

}  // namespace

void FrameStream::send(ConstBytes frames) {
  if (!transport_) return;
  queue_.push(frames);
  if (!in_turn_ && !pumping_) later();
}

void FrameStream::send_chunk(ConstBytes head, std::span<const ConstBytes> payload, Released released, void* owner,
                             uint64_t tag) {
  if (finished_) {
    if (released != nullptr) released(owner, tag);
    return;
  }
  // A stream that is closing keeps the payload until finish(), so that nothing is called back from here.
  queue_.push(head);
  queue_.push_payload(payload, released, owner, tag);
  if (!in_turn_ && !pumping_) later();
}

bool FrameStream::place(std::span<const ConstBytes> payload, std::span<const RemoteRun> runs, Released released, void* owner,
                        uint64_t tag) {
  if (!transport_ || send_error_ != 0 || !transport_->place(payload, runs)) return false;
  for (const ConstBytes piece : payload) sent_bytes_ += piece.size();
  // Not by the queue, which forgets what it has when the connection ends: a device may read this at that time.
  const bool held = transport_->hold({released, owner, tag});
  HALFSTEP_CHECK(held);
  return true;
}

bool FrameStream::place_room() noexcept {
  place_awaited_ = transport_ && send_error_ == 0 && !transport_->place_room();
  return !place_awaited_;
}

void FrameStream::ask_for_more() {
  asked_ = true;
  if (!in_turn_ && !pumping_ && transport_) later();
}

void FrameStream::pump() {
  HALFSTEP_DCHECK(!pumping_);
  pumping_ = true;
  size_t budget = turn_bytes();
  bool may_ask = true;  // once for each send, so that a sink which always asks does not keep us here
  bool asked = false;   // in this turn, of which reading may have left no time
  while (transport_) {
    if (asked_ && may_ask && !(asked && over_) && queue_.bytes() < send_low_bytes()) {
      asked_ = false;
      may_ask = false;
      asked = true;
      sink_.on_sendable();
      continue;
    }
    if (queue_.bytes() == 0) {
      queue_.consume(0, this);  // empty payloads wait to be released
      if (queue_.bytes() == 0) break;
    }
    if (full_ || send_error_ != 0) break;
    if (budget == 0) {
      later();
      break;
    }
    if (!send_some(&budget)) break;
    may_ask = true;
  }
  pumping_ = false;
  if (!transport_) return;
  transport_->push();
  if (asked_ && queue_.bytes() < send_low_bytes() && send_error_ == 0) later();
  watch_for();
}

// False when nothing was sent. What is sent without a copy goes by itself: heads lie in memory of the queue, which changes.
bool FrameStream::send_some(size_t* budget) {
  std::array<iovec, kVectorsMax> vectors;
  const size_t send_bytes = loop_.crowded() ? kSendBytes : kSendBytesAlone;
  const size_t bytes_max = queue_.bytes() < send_bytes + kRestBytes ? SIZE_MAX : send_bytes;
  const size_t run_bytes_min = transport_->held_run_bytes_min();
  bool run = false;
  const size_t used = run_bytes_min == SIZE_MAX ? queue_.gather(vectors, bytes_max)
                                                : queue_.gather_to_border(vectors, bytes_max, run_bytes_min, &run);
  size_t wanted = 0;
  for (size_t i = 0; i < used; ++i) wanted += vectors[i].iov_len;
  const bool more = queue_.bytes() > wanted;
  const ssize_t result = run ? transport_->send_held(vectors.data(), used, more) : transport_->send(vectors.data(), used, more);
  if (result < 0) {
    if (result == -EAGAIN || result == -EWOULDBLOCK) {
      full_ = true;
    } else {
      send_failed(static_cast<int>(-result));
    }
    return false;
  }
  const auto sent = static_cast<size_t>(result);
  full_ = sent < wanted;
  sent_bytes_ += sent;
  *budget -= std::min(*budget, sent);
  asked_ = true;
  queue_.consume(sent, this);
  return true;
}

// A release may end the connection, and with it the transport.
void FrameStream::release_free() {
  Release release;
  while (transport_ && transport_->take_free(&release)) release();
  if (std::exchange(place_awaited_, false)) asked_ = true;
  uint32_t window = 0;
  while (transport_ && transport_->take_closed(&window)) sink_.on_window_closed(window);
  while (transport_ && transport_->take_pulled()) {
    sink_.on_pulled();
    if (!turn_is_over()) continue;
    later();
    break;
  }
}

// One attempt, for the end of a connection. Nothing is consumed, hence nothing released: finish() does that from the loop. So
// the kernel has to copy it.
void FrameStream::send_what_fits() noexcept {
  if (queue_.bytes() == 0 || send_error_ != 0) return;
  std::array<iovec, kVectorsMax> vectors;
  const size_t used = queue_.gather(vectors, SIZE_MAX);
  const ssize_t sent = transport_->send(vectors.data(), used, false);
  if (sent > 0) sent_bytes_ += static_cast<uint64_t>(sent);
}

void FrameStream::send_failed(int error) {
  send_error_ = error;
  later();
}

}  // namespace halfstep::net
