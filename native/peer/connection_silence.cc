// connection_silence.cc — a connection whose daemon is there and says nothing: frozen, stuck in its device, or without power.
// After kOverdueMax answers whose deadlines passed while nothing at all was heard, over as long as a handshake may take, calls
// are not given to it any more, so that they cost nobody a deadline. The answers that it owes, a Cancel's among them, are the
// probe: the first byte makes it as good as before. When none comes for kProbes times that time, and nobody waits for an answer
// of it any more, it is ended; then its handshakes are the probe, one at a time, with back-off. Invariants: deadlines that are
// merely short break nothing off as long as anything is heard; a request that somebody still waits for is not ended by silence.
#include "peer/connection.h"
#include "peer/connection_host.h"

namespace halfstep::peer {
namespace {

constexpr uint32_t kOverdueMax = 3;
constexpr uint64_t kProbes = 4;

}  // namespace

void Connection::on_overdue(const Request& request) {
  if (slot_awaited_) return;                                                                      // it is us who do not listen
  if (!request.sent || !stream_ || stream_->received_bytes() != request.received_before) return;  // slow, and not silent
  if (silence_.overdue == 0 || silence_.received_bytes != request.received_before) {
    silence_.overdue = 0;
    silence_.received_bytes = request.received_before;
    silence_.since_us = request.sent_us;
  }
  ++silence_.overdue;
  const uint64_t silent_us = client_.loop().now_us() - silence_.since_us;
  if (up() && silence_.overdue >= kOverdueMax && silent_us >= client_.options().connect_timeout_us) break_off();
}

void Connection::break_off() {
  silence_.broken = true;
  client_.loop().arm(timer_, client_.loop().now_us() + kProbes * client_.options().connect_timeout_us);
  client_.on_silence(called() + ": " + silence_text());
}

void Connection::heard() {
  silence_.broken = false;
  silence_.overdue = 0;
  if (state_ != State::Up) return;  // the handshake has its own ways, and its timer
  client_.loop().disarm(timer_);
  client_.on_silence("");
}

void Connection::on_still_silent() {
  bool awaited = !pending_.empty();
  for (const Request* request : slots_) awaited = awaited || (request != nullptr && request->ticket != nullptr);
  if (awaited) return client_.loop().arm(timer_, client_.loop().now_us() + kProbes * client_.options().connect_timeout_us);
  abort(Code::Late, silence_text());
}

std::string Connection::silence_text() const {
  const uint64_t silent_ms = (client_.loop().now_us() - silence_.since_us) / 1000;
  return std::to_string(silence_.overdue) + " answers are overdue, nothing was heard for " + std::to_string(silent_ms) +
         " ms; the daemon hangs, or is stopped, or its machine is gone";
}

}  // namespace halfstep::peer
