#include "net/stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace halfstep::net {
namespace {

// What one connection may receive and send before the others have their turn.
constexpr size_t kTurnBytes = 512 * KiB;
// The same while nobody else has anything to do: four sends, or a receive that need not come back for more.
constexpr size_t kTurnBytesAlone = 4 * MiB;
// A read that brings less counts as so much: a peer that lets bytes drip into a ring would make a turn last for as long.
constexpr size_t kReadBytesMin = 512;

// The loop's scratch: what is read ahead of its frame being known, then what nobody wants.
constexpr size_t kAheadBytesMax = kLoopScratchBytes / 2;
constexpr size_t kDropBytes = kLoopScratchBytes / 2;
// After a large Chunk, read ahead only what the next head will take, so that its payload is not copied. After a small one a
// copy costs less than another system call.
constexpr size_t kAheadBytesMin = 512;
constexpr size_t kDirectBytesMin = 32 * KiB;
// Where reading costs no system call: enough for a small frame at once.
constexpr size_t kCopiedAheadBytes = 4 * KiB;

constexpr size_t kIdleBytesMax = 4 * KiB;   // of buffers that an idle connection may keep
constexpr size_t kBusyBytesMax = 64 * KiB;  // of each that is empty when it is looked at, while the connection is busy
constexpr uint64_t kIdleUs = 100'000;

bool is_chunk(const wire::Header& header) noexcept { return header.opcode == static_cast<uint8_t>(wire::Opcode::Chunk); }

std::string_view header_fault(Status status) noexcept {
  switch (status.code()) {
    case Code::TooLarge: return "frame header: a length is over what its opcode allows";
    default: return "frame header: wrong magic, flags, reserved field or checksum";
  }
}

// Assigning {} would keep the capacity.
template <typename T>
void give_back(std::vector<T>& memory) noexcept {
  std::vector<T>().swap(memory);
}

}  // namespace

uint64_t Landing::bytes() const noexcept {
  uint64_t sum = 0;
  for (const iovec& piece : pieces_) sum += piece.iov_len;
  return sum;
}

FrameStream::FrameStream(Loop& loop, int descriptor, FrameSink& sink) : FrameStream(loop, socket_transport(descriptor), sink) {}

FrameStream::FrameStream(Loop& loop, std::unique_ptr<Transport> transport, FrameSink& sink)
    : loop_(loop),
      sink_(sink),
      transport_(std::move(transport)),
      ahead_bytes_(kAheadBytesMax),
      turn_(&FrameStream::run_turn, this),
      trim_(&FrameStream::run_trim, this),
      late_(&FrameStream::run_body_late, this) {}

FrameStream::~FrameStream() {
  HALFSTEP_CHECK(!in_turn_ && !pumping_);
  if (transport_) drop_transport();
  finished_ = true;
  queue_.drop();
}

Status FrameStream::start() {
  const Status status = transport_->start(loop_, this);
  if (!status.ok()) return status;
  watch_for();
  unasked_ = transport_ && !transport_->told_by_level();
  if (unasked_) later();
  return {};
}

Status FrameStream::change_carrier(std::unique_ptr<Transport> next) {
  if (!transport_) return Code::Closed;
  HALFSTEP_CHECK(transport_->held_bytes() == 0, transport_->held_bytes());
  transport_->stop();
  std::swap(transport_, next);
  if (const Status status = transport_->start(loop_, this); !status.ok()) {
    transport_->stop();
    std::swap(transport_, next);
    const Status back = transport_->start(loop_, this);
    return back.ok() ? status : back;
  }
  full_ = false;
  unasked_ = !transport_->told_by_level();
  later();
  return {};
}

void FrameStream::on_ready(uint32_t epoll_events) {
  if (!transport_) return;
  epoll_events = transport_->heard(epoll_events);
  if ((epoll_events & EPOLLOUT) != 0 || !transport_->told_by_level()) full_ = false;
  constexpr uint32_t kGone = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
  gone_ = gone_ || (epoll_events & kGone) != 0;
  if (paused_ && gone_) return close({Code::Closed, -ECONNRESET});
  if (working_ && gone_) return end_of_input({Code::Closed, -ECONNRESET});  // else it would go on for nobody
  if ((epoll_events & (EPOLLIN | kGone)) != 0) told_ = true;
  later();
}

void FrameStream::run_turn(void* self) { static_cast<FrameStream*>(self)->take_turn(); }

// May destroy the stream.
void FrameStream::take_turn() {
  if (!transport_) {
    if (!finished_) finish();
    return;
  }
  over_ = false;
  in_turn_ = true;
  release_free();
  if (transport_ && working_) work();
  // After an error in sending, too: the peer's last words, an Abort perhaps, may still be unread.
  if (transport_ && !paused_ && (told_ || unasked_ || !rest_.empty() || send_error_ != 0)) receive();
  in_turn_ = false;
  if (transport_ && send_error_ != 0) close({Code::Closed, -send_error_});
  if (!transport_) return finish();
  pump();
  // What came before it broke has to be looked at first, but not by one who may rest for as long as nothing moves.
  if (const int error = transport_ && paused_ ? transport_->broken() : 0; error != 0) close({Code::Closed, error});
  watch_body();
  trim_when_idle();
  if (transport_) sink_.on_turn_end();
}

bool FrameStream::turn_is_over() noexcept {
  const uint64_t limit_us = loop_.crowded() ? kTurnUs : kTurnUsAlone;
  if (loop_.now_us() - loop_.turn_began_us() >= limit_us) over_ = true;
  return over_;
}

// What the sink has left goes on whether or not we read.
void FrameStream::work() {
  do {
    working_ = sink_.go_on();
  } while (working_ && transport_ && !turn_is_over());
  if (working_) later();
}

size_t FrameStream::turn_bytes() const noexcept { return loop_.crowded() ? kTurnBytes : kTurnBytesAlone; }

// ---- Receiving -----------------------------------------------------------------------------------------------------------

void FrameStream::receive() {
  if (working_ || !parse_rest()) return;  // and comes back
  unasked_ = told_ = false;
  size_t budget = turn_bytes();
  while (transport_ && !paused_ && !must_wait() && budget != 0) {
    std::array<iovec, kVectorsMax> vectors;
    size_t used = 0;
    const size_t landing = gather_landing(std::span(vectors).first(kVectorsMax - 1), transport_->receive_bytes_max(), &used);
    Bytes ahead;
    if (landing == payload_left_) {
      ahead = loop_.scratch().first(transport_->told_by_level() ? ahead_bytes_ : std::min(ahead_bytes_, kCopiedAheadBytes));
      vectors[used++] = {ahead.data(), ahead.size()};
    }
    const ssize_t result = transport_->receive(vectors.data(), used);
    if (result < 0) {
      if (result != -EAGAIN && result != -EWOULDBLOCK) end_of_input({Code::Closed, static_cast<int>(result)});
      return;
    }
    if (result == 0) {
      const bool at_border = held_.empty() && payload_left_ == 0 && skip_left_ == 0;
      end_of_input({Code::Closed, at_border ? 0 : -EPIPE});
      return;
    }
    const auto got = static_cast<size_t>(result);
    received_bytes_ += got;
    budget -= std::min(budget, std::max(got, kReadBytesMin));
    const size_t landed = std::min(got, landing);
    if (landed != 0) land(landed, nullptr);
    if (got > landing) parse(ahead.first(got - landing));
    if (got < landing + ahead.size() && transport_ && transport_->told_by_level()) return;  // it is empty; epoll tells more
    if (landing == 0) ahead_bytes_ = std::min(ahead_bytes_ * 2, kAheadBytesMax);
  }
  if (!transport_ || transport_->told_by_level()) return;
  unasked_ = true;
  if (!paused_) later();
}

size_t FrameStream::gather_landing(std::span<iovec> out, size_t bytes_max, size_t* used) noexcept {
  size_t total = 0;
  size_t skip = landing_offset_;
  size_t at = landing_at_;
  const Bytes dropped = loop_.scratch().last(kDropBytes);
  for (uint64_t left = payload_left_; left != 0 && total < bytes_max && *used < out.size();) {
    const iovec& piece = landing_.pieces_[at];
    size_t count = piece.iov_len - skip;
    if (piece.iov_base != nullptr) {
      out[(*used)++] = {static_cast<std::byte*>(piece.iov_base) + skip, count};
    } else {
      count = std::min(count, dropped.size());
      out[(*used)++] = {dropped.data(), count};
    }
    total += count;
    left -= count;
    skip += count;
    if (skip == piece.iov_len) {
      skip = 0;
      ++at;
    }
  }
  return total;
}

// `count` bytes of the landing have arrived: in their place already, or at `copied_from`. The sink may divert the rest or end
// the connection at every piece; bytes of this same read that lie beyond are then not shown.
void FrameStream::land(size_t count, const std::byte* copied_from) {
  while (count != 0 && transport_) {
    const iovec piece = landing_.pieces_[landing_at_];
    const size_t step = std::min(count, piece.iov_len - landing_offset_);
    std::byte* to = nullptr;
    if (piece.iov_base != nullptr) {
      to = static_cast<std::byte*>(piece.iov_base) + landing_offset_;
      if (copied_from != nullptr) std::memcpy(to, copied_from, step);
    }
    if (copied_from != nullptr) copied_from += step;
    count -= step;
    HALFSTEP_CHECK(step <= payload_left_, step, payload_left_);
    payload_left_ -= step;
    landing_offset_ += step;
    if (landing_offset_ == piece.iov_len) {
      landing_offset_ = 0;
      ++landing_at_;
    }
    if (to != nullptr) {
      sink_.on_landed({to, step}, 0);
    } else {
      sink_.on_landed({}, step);
    }
  }
  if (transport_ && payload_left_ == 0) end_chunk();
}

void FrameStream::end_chunk() {
  const Status status = sink_.on_chunk_end();
  if (!status.ok()) abort(status, code_name(status.code()));
}

// What an earlier turn read and did not show. False when some of it still waits.
bool FrameStream::parse_rest() {
  if (rest_.empty()) return true;
  const std::vector<std::byte> rest = std::move(rest_);
  rest_.clear();
  parse(rest);
  return rest_.empty();
}

void FrameStream::parse(ConstBytes bytes) {
  while (!bytes.empty() && transport_) {
    if (must_wait()) {
      rest_.assign(bytes.begin(), bytes.end());
      if (!paused_) later();
      return;
    }
    size_t taken = 0;
    if (payload_left_ != 0) {
      taken = std::min<uint64_t>(bytes.size(), payload_left_);
      land(taken, bytes.data());
    } else if (skip_left_ != 0) {
      taken = std::min<uint64_t>(bytes.size(), skip_left_);
      skip_left_ -= taken;
    } else if (held_.empty() && bytes.size() >= wire::kHeaderBytes) {
      if (!parse_head(bytes.first(wire::kHeaderBytes))) return;
      taken = wire::kHeaderBytes;
      if (skip_left_ == 0) {
        if (bytes.size() - taken < header_.body_bytes) {
          held_.assign(bytes.begin(), bytes.end());
          in_body_ = true;
          return;
        }
        taken += header_.body_bytes;
        on_whole_frame(bytes.subspan(wire::kHeaderBytes, header_.body_bytes));
      }
    } else {
      const size_t whole = wire::kHeaderBytes + (in_body_ ? header_.body_bytes : 0);
      taken = std::min(bytes.size(), whole - held_.size());
      held_.insert(held_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(taken));
      if (held_.size() == whole) {
        if (!in_body_) {
          if (!parse_head(held_)) return;
          in_body_ = skip_left_ == 0;
          if (!in_body_) held_.clear();
        }
        if (in_body_ && held_.size() == wire::kHeaderBytes + header_.body_bytes) {
          in_body_ = false;
          on_whole_frame(ConstBytes(held_).subspan(wire::kHeaderBytes));
          held_.clear();
        }
      }
    }
    bytes = bytes.subspan(taken);
  }
}

// False when the connection was aborted.
bool FrameStream::parse_head(ConstBytes from) {
  const Status status = wire::parse_header(from, &header_);
  if (!status.ok()) {
    abort(status, header_fault(status));
    return false;
  }
  if (header_.body_bytes > body_bytes_max_) {
    abort(Code::TooLarge, body_limit_why_);
    return false;
  }
  if (wire::is_skipped(header_.opcode)) {
    ++skipped_frames_;
    skip_left_ = uint64_t{header_.body_bytes} + header_.payload_bytes;
    // Nothing follows the header: an empty skip is over already, and must not be taken for a frame.
    if (skip_left_ == 0) header_.body_bytes = 0;
  }
  return true;
}

void FrameStream::on_whole_frame(ConstBytes body) {
  if (wire::is_skipped(header_.opcode)) return;
  if (!wire::check_body(header_, body).ok()) {
    abort(Code::Corrupt, "frame body: its checksum does not match");
    return;
  }
  ++frames_;
  landing_.pieces_.clear();
  landing_at_ = 0;
  landing_offset_ = 0;
  const Status status = sink_.on_frame(header_, body, &landing_);
  if (transport_ && working_) work();
  if (!transport_) return;
  if (!status.ok()) {
    abort(status, code_name(status.code()));
    return;
  }
  (void)turn_is_over();
  if (!is_chunk(header_)) return;
  if (landing_.bytes() != header_.payload_bytes) {
    abort(Code::Internal, "the landing does not fit the payload");
    return;
  }
  payload_left_ = header_.payload_bytes;
  ahead_bytes_ = header_.payload_bytes < kDirectBytesMin
                     ? kAheadBytesMax
                     : std::clamp(wire::kHeaderBytes + body.size(), kAheadBytesMin, kAheadBytesMax);
  if (payload_left_ == 0) end_chunk();
}

// One timer for all that come in part: it is armed at most once in body_wait_us_.
void FrameStream::watch_body() {
  if (held_.empty() || body_wait_us_ == 0 || !transport_) return;
  if (late_.armed() && part_mark_ == frames_) return;
  part_mark_ = frames_;
  part_since_us_ = loop_.turn_began_us();
  if (!late_.armed()) loop_.arm(late_, part_since_us_ + body_wait_us_);
}

void FrameStream::run_body_late(void* self) {
  auto* stream = static_cast<FrameStream*>(self);
  if (stream->held_.empty() || !stream->transport_) return;
  const uint64_t now_us = stream->loop_.now_us();
  // It may be us who have not read.
  const bool ours = stream->paused_ || stream->working_ || stream->turn_.queued();
  if (stream->part_mark_ != stream->frames_ || ours) stream->part_since_us_ = now_us;
  stream->part_mark_ = stream->frames_;
  if (now_us - stream->part_since_us_ < stream->body_wait_us_) {
    stream->loop_.arm(stream->late_, stream->part_since_us_ + stream->body_wait_us_);
    return;
  }
  stream->abort(Code::Late,
                "frame: its body did not arrive within " + std::to_string(stream->body_wait_us_ / 1'000'000) + " s");
}

void FrameStream::divert_landing() noexcept {
  if (payload_left_ == 0) return;
  landing_.pieces_.resize(1);  // shrinks, or keeps: a landing in progress has a piece
  landing_.pieces_[0] = {nullptr, payload_left_};
  landing_at_ = 0;
  landing_offset_ = 0;
}

void FrameStream::pause_reading() {
  paused_ = true;
  unasked_ = transport_ && !transport_->told_by_level();
  watch_for();
}

void FrameStream::resume_reading() {
  paused_ = false;
  watch_for();
  if ((!rest_.empty() || unasked_ || told_) && transport_) later();
}

void FrameStream::end_of_input(Status why) {
  send_what_fits();
  close(why);
}

// ---- Life ----------------------------------------------------------------------------------------------------------------

void FrameStream::watch_for() {
  if (!transport_) return;
  const Status status = transport_->want(!paused_, full_);
  if (status.code() == Code::IoError) close(status);  // any other: start() has not been called yet
}

void FrameStream::trim_when_idle() {
  if (!transport_ || trim_.armed()) return;
  const size_t held = queue_.held_bytes() + held_.capacity() + landing_.pieces_.capacity() * sizeof(iovec);
  if (held <= kIdleBytesMax && !transport_->trimmable()) return;
  trim_mark_ = received_bytes_ + sent_bytes_;
  loop_.arm(trim_, loop_.now_us() + kIdleUs);
}

void FrameStream::run_trim(void* self) {
  auto* stream = static_cast<FrameStream*>(self);
  if (!stream->transport_) return;
  const bool idle = stream->received_bytes_ + stream->sent_bytes_ == stream->trim_mark_;
  const size_t kept = idle ? 0 : kBusyBytesMax;
  if (stream->queue_.held_bytes() > kept) stream->queue_.trim();
  if (stream->held_.empty() && stream->held_.capacity() > kept) give_back(stream->held_);
  if (idle) {
    stream->transport_->trim();
    if (stream->payload_left_ == 0) give_back(stream->landing_.pieces_);
  } else {
    stream->trim_when_idle();
  }
  // What is still held belongs to a frame under way; the next event looks again.
  stream->sink_.on_turn_end();
}

void FrameStream::abort(Status why, std::string_view reason) {
  if (!transport_) return;
  std::vector<std::byte> frame;
  wire::FrameWriter writer(frame);
  writer.begin(wire::Opcode::Abort, 0);
  writer.tlv_bytes(wire::Tlv::Reason, as_bytes(reason));
  writer.finish();
  queue_.push(frame);
  send_what_fits();
  transport_->finish_sending();
  close(why);
}

void FrameStream::close(Status why) {
  if (!transport_) return;
  drop_transport();
  why_ = why;
  payload_left_ = 0;
  // What came in part is shown to nobody, and in a crowd our next turn may be far.
  if (!in_turn_) give_back(held_);
  later();
}

// What has left in part without a copy is not finish()'s to release.
void FrameStream::drop_transport() {
  Release front;
  if (transport_->held_bytes() != 0 && queue_.take_front(&front)) (void)transport_->hold(front);
  transport_ = nullptr;
}

void FrameStream::finish() {
  HALFSTEP_DCHECK(!finished_);
  finished_ = true;
  loop_.disarm(trim_);
  loop_.disarm(late_);
  queue_.drop();
  give_back(held_);
  give_back(rest_);
  give_back(landing_.pieces_);
  sink_.on_closed(why_);
}

}  // namespace halfstep::net
