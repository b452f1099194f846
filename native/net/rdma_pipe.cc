#include "net/rdma_pipe.h"

#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace halfstep::net {
namespace {

using rdma::abi::Completion;
using rdma::abi::Piece;
using rdma::abi::SendRequest;

// A call to post receives for so many that were used.
constexpr uint32_t kReceivesTogether = 32;

// The bytes that vectors name, from one write to the next.
class Source {
 public:
  Source(const iovec* vectors, size_t count) noexcept : vectors_(vectors), count_(count) { skip_empty(); }
  bool empty() const noexcept { return at_ == count_; }
  // Of what lies together, at most so many bytes.
  ConstBytes next(size_t bytes_max) const noexcept {
    const iovec& vector = vectors_[at_];
    return {static_cast<const std::byte*>(vector.iov_base) + offset_, std::min(vector.iov_len - offset_, bytes_max)};
  }
  void take(size_t bytes) noexcept {
    offset_ += bytes;
    if (offset_ != vectors_[at_].iov_len) return;
    offset_ = 0;
    ++at_;
    skip_empty();
  }

 private:
  void skip_empty() noexcept {
    while (at_ != count_ && vectors_[at_].iov_len == 0) ++at_;
  }

  const iovec* vectors_;
  const size_t count_;
  size_t at_ = 0;
  size_t offset_ = 0;
};

// What one write takes.
struct Filled {
  uint32_t bytes = 0;
  uint32_t held = 0;
  int pieces = 0;
};

}  // namespace

RdmaPipe::RdmaPipe(std::unique_ptr<RdmaEnd> end, RegisteredMemory& registered, RdmaCounts& counts, bool speaks_first)
    : end_(std::move(end)),
      registered_(registered),
      counts_(counts),
      ring_bytes_(end_->ring().size()),
      far_bytes_(end_->other().ring_bytes),
      outbox_bytes_(std::min<uint64_t>(end_->outbox().size(), far_bytes_)),
      spoken_to_(speaks_first) {
  HALFSTEP_CHECK(std::has_single_bit(ring_bytes_) && std::has_single_bit(far_bytes_));
  if (speaks_first) tell_room();  // "I am here": nothing was taken out yet
}

void RdmaPipe::heard() noexcept {
  while (end_->queue_pair().take_event()) armed_ = false;
  poll();
  // Whether or not anybody reads: what is held must come back.
  (void)arm();
}

// False: it was armed already, and nothing has to be looked at again.
bool RdmaPipe::arm() noexcept {
  if (armed_ || error_ != 0) return false;
  if (const int error = end_->queue_pair().arm(); error != 0) {
    fail(error);
    return false;
  }
  armed_ = true;
  poll();
  return true;
}

// ---- Completions ---------------------------------------------------------------------------------------------------------

void RdmaPipe::poll() noexcept {
  std::array<Completion, 32> some;
  while (error_ == 0) {
    const int count = end_->queue_pair().poll(some);
    if (count < 0) return fail(-count);
    for (int i = 0; i < count; ++i) take(some[static_cast<size_t>(i)]);
    if (count < static_cast<int>(some.size())) break;
  }
  if (error_ != 0) return;
  if (receives_used_ >= kReceivesTogether) {
    if (const int error = end_->queue_pair().post_receives(receives_used_); error != 0) return fail(error);
    receives_used_ = 0;
  }
  if (head_ - told_head_ >= ring_bytes_ / 4) tell_room();  // there was no place for it
  start_reads();
  invalidate_windows();
}

void RdmaPipe::take(const Completion& completion) noexcept {
  if (error_ != 0) return;
  if (completion.status != rdma::abi::kStatusSuccess) return fail(rdma::completion_errno(completion.status));
  if ((completion.opcode & rdma::abi::kReceived) != 0) {
    ++receives_used_;
    if (completion.opcode != rdma::abi::kReceivedWithImmediate) return fail(EPROTO);
    return take_position(ntohl(completion.imm_data));
  }
  ++counts_.completions;
  if (first_signal_ == next_signal_) return fail(EPROTO);
  const Signal& signal = signals_[first_signal_++ % signals_.size()];
  completed_ = signal.posted;
  done_tail_ = signal.tail;
  held_done_ = signal.held;
  done_reads_ = signal.reads;
  done_pulls_ = signal.pulls;
  windows_.done(signal.windows);
}

void RdmaPipe::take_position(uint32_t immediate) noexcept {
  spoken_to_ = true;
  if ((immediate & kRdmaImmediateRoom) != 0) {
    // out_head_ <= its head <= out_tail_
    const uint64_t more = (immediate - out_head_) & kRdmaPositionMask;
    if (more > out_tail_ - out_head_) return fail(EPROTO);
    out_head_ += more;
    return;
  }
  // tail_ <= its tail <= head_ + size
  const uint64_t more = (immediate - tail_) & kRdmaPositionMask;
  if (more > ring_bytes_ - (tail_ - head_)) return fail(EPROTO);
  tail_ += more;
}

// ---- In ------------------------------------------------------------------------------------------------------------------

ssize_t RdmaPipe::read(const iovec* vectors, size_t count) noexcept {
  if (tail_ == head_) {
    poll();
    if (tail_ == head_) (void)arm();
    // What had come before it broke is still taken.
    if (tail_ == head_) return error_ != 0 ? -error_ : -EAGAIN;
  }
  const Bytes ring = end_->ring();
  const size_t most = std::min<uint64_t>(tail_ - head_, kReadBytesMax);
  size_t total = 0;
  for (size_t i = 0; i < count && total < most; ++i) {
    auto* to = static_cast<std::byte*>(vectors[i].iov_base);
    for (size_t bytes = std::min(vectors[i].iov_len, most - total); bytes != 0;) {
      const size_t at = head_ & (ring_bytes_ - 1);
      const size_t step = std::min(bytes, ring.size() - at);
      std::memcpy(to, ring.data() + at, step);
      to += step;
      bytes -= step;
      head_ += step;
      total += step;
    }
  }
  if (head_ - told_head_ >= ring_bytes_ / 4) tell_room();
  return static_cast<ssize_t>(total);
}

// Also the client's first word. Without a free place it is told later, by poll().
void RdmaPipe::tell_room() noexcept {
  if (error_ != 0 || !spoken_to_ || posted_ - completed_ >= RdmaEnd::kSends) return;
  SendRequest& request = next_request();
  request.opcode = rdma::abi::kWriteImmediate;
  request.imm_data = htonl(kRdmaImmediateRoom | static_cast<uint32_t>(head_ & kRdmaPositionMask));
  request.remote_addr = end_->other().ring_address;
  request.rkey = end_->other().ring_key;
  told_head_ = head_;
  add();
  post();
}

// ---- Out -----------------------------------------------------------------------------------------------------------------

uint64_t RdmaPipe::room() const noexcept {
  return std::min(far_bytes_ - (out_tail_ - out_head_), outbox_bytes_ - (out_tail_ - done_tail_));
}

uint32_t RdmaPipe::free_sends() const noexcept {
  const uint64_t under_way = posted_ - completed_;
  return under_way + kSparedSends >= RdmaEnd::kSends ? 0 : static_cast<uint32_t>(RdmaEnd::kSends - kSparedSends - under_way);
}

// Room that there is, or 0 when there is none and the descriptor will tell.
uint64_t RdmaPipe::wait_for_room() noexcept {
  const auto now = [this] { return spoken_to_ && free_sends() != 0 ? room() : 0; };
  if (now() == 0) post();
  if (now() == 0) poll();
  if (now() == 0) (void)arm();
  return error_ != 0 ? 0 : now();
}

// A place in the chain.
SendRequest& RdmaPipe::next_request() noexcept {
  if (chain_.count == kChain) post();
  SendRequest& request = chain_.requests[chain_.count];
  request = {};
  request.sg_list = chain_.pieces[chain_.count].data();
  return request;
}

void RdmaPipe::add() noexcept {
  ++chain_.count;
  ++posted_;
}

// Of the last write in the chain.
void RdmaPipe::ask_for_completion() noexcept {
  if (chain_.count == 0) return;
  SendRequest& request = chain_.requests[chain_.count - 1];
  if ((request.send_flags & rdma::abi::kSignaled) != 0) return;
  request.send_flags = rdma::abi::kSignaled;
  signaled_ = posted_;
  signaled_tail_ = out_tail_;
  signaled_held_ = held_sent_;
  signals_[next_signal_++ % signals_.size()] = {.posted = signaled_,
                                                .tail = out_tail_,
                                                .held = held_sent_,
                                                .reads = posted_reads_,
                                                .pulls = posted_pulls_,
                                                .windows = windows_.posted()};
}

void RdmaPipe::post() noexcept {
  const bool many = posted_ - signaled_ >= kRdmaSignalWrites;
  if (many || out_tail_ - signaled_tail_ >= outbox_bytes_ / 4) ask_for_completion();
  const uint32_t count = std::exchange(chain_.count, 0);
  if (count == 0 || error_ != 0) return;
  for (uint32_t i = 0; i + 1 < count; ++i) chain_.requests[i].next = &chain_.requests[i + 1];
  ++counts_.posts;
  counts_.writes += count;
  if (const int error = end_->queue_pair().post_sends(chain_.requests.data()); error != 0) fail(error);
}

// fill(source, bytes_max) describes the next write's bytes in the chain and says how many, how many of them are held, and in
// how many pieces they lie.
template <typename Fill>
ssize_t RdmaPipe::write_chains(const iovec* vectors, size_t count, bool more, Fill&& fill) noexcept {
  if (error_ != 0) return -error_;
  Source source(vectors, count);
  size_t total = 0;
  while (!source.empty()) {
    uint64_t left = wait_for_room();
    if (error_ != 0) return -error_;
    if (left == 0) return total != 0 ? static_cast<ssize_t>(total) : -EAGAIN;
    for (uint32_t writes = free_sends(); !source.empty() && left != 0 && writes != 0; --writes) {
      SendRequest& request = next_request();
      // Neither the ring nor the outbox is crossed: the outbox is as large, or a part of it.
      const uint64_t to_end = outbox_bytes_ - (out_tail_ & (outbox_bytes_ - 1));
      const Filled filled = fill(source, std::min({left, to_end, uint64_t{kRdmaWriteBytesMax}}));
      request.num_sge = filled.pieces;
      request.opcode = rdma::abi::kWriteImmediate;
      request.remote_addr = end_->other().ring_address + (out_tail_ & (far_bytes_ - 1));
      request.rkey = end_->other().ring_key;
      out_tail_ += filled.bytes;
      held_sent_ += filled.held;
      request.imm_data = htonl(static_cast<uint32_t>(out_tail_ & kRdmaPositionMask));
      add();
      left -= filled.bytes;
      total += filled.bytes;
    }
  }
  if (!more) {
    if (signaled_held_ != held_sent_) ask_for_completion();
    post();
  }
  return error_ != 0 ? -error_ : static_cast<ssize_t>(total);
}

ssize_t RdmaPipe::write(const iovec* vectors, size_t count, bool more) noexcept {
  const Bytes outbox = end_->outbox();
  return write_chains(vectors, count, more, [&](Source& source, uint64_t bytes_max) {
    std::byte* const to = outbox.data() + (out_tail_ & (outbox_bytes_ - 1));
    uint32_t bytes = 0;
    while (!source.empty() && bytes < bytes_max) {
      const ConstBytes from = source.next(bytes_max - bytes);
      std::memcpy(to + bytes, from.data(), from.size());
      bytes += static_cast<uint32_t>(from.size());
      source.take(from.size());
    }
    piece(0) = {.addr = reinterpret_cast<uint64_t>(to), .length = bytes, .lkey = end_->outbox_key()};
    counts_.copied_bytes += bytes;
    return Filled{.bytes = bytes, .held = 0, .pieces = 1};
  });
}

ssize_t RdmaPipe::write_held(const iovec* vectors, size_t count, bool more) noexcept {
  for (size_t i = 0; i < count; ++i) {
    uint32_t key = 0;
    const ConstBytes bytes(static_cast<const std::byte*>(vectors[i].iov_base), vectors[i].iov_len);
    if (!bytes.empty() && !registered_.local_key(*device(), bytes, &key)) return write(vectors, count, more);
  }
  return write_chains(vectors, count, more, [&](Source& source, uint64_t bytes_max) {
    uint32_t bytes = 0;
    int used = 0;
    while (!source.empty() && bytes < bytes_max && used < static_cast<int>(RdmaEnd::kPieces)) {
      const ConstBytes from = source.next(bytes_max - bytes);
      uint32_t key = 0;
      (void)registered_.local_key(*device(), from, &key);
      piece(static_cast<size_t>(used++)) = {
          .addr = reinterpret_cast<uint64_t>(from.data()), .length = static_cast<uint32_t>(from.size()), .lkey = key};
      bytes += static_cast<uint32_t>(from.size());
      source.take(from.size());
    }
    counts_.held_bytes += bytes;
    return Filled{.bytes = bytes, .held = bytes, .pieces = used};
  });
}

// ---- Into the other end's own memory -------------------------------------------------------------------------------------

namespace {

// Cuts `payload`, laid over `runs`, into writes, or reads: cut(address, key, pieces of payload). False: cut() said so.
template <typename Piece, typename Cut>
bool for_cuts(std::span<const Piece> payload, std::span<const RemoteRun> runs, Cut&& cut) {
  std::array<Piece, RdmaEnd::kPieces> pieces;
  size_t at = 0;
  size_t offset = 0;
  for (const RemoteRun& run : runs) {
    for (uint32_t done = 0; done < run.bytes;) {
      size_t used = 0;
      uint32_t bytes = 0;
      while (done + bytes < run.bytes && used < pieces.size()) {
        if (at == payload.size()) return false;
        const size_t step = std::min<size_t>(payload[at].size() - offset, run.bytes - done - bytes);
        if (step != 0) pieces[used++] = payload[at].subspan(offset, step);
        bytes += static_cast<uint32_t>(step);
        offset += step;
        if (offset == payload[at].size()) {
          ++at;
          offset = 0;
        }
      }
      if (!cut(run.address + done, run.key, std::span<const Piece>(pieces.data(), used), bytes)) return false;
      done += bytes;
    }
  }
  return at == payload.size();
}

}  // namespace

bool RdmaPipe::place_room() noexcept {
  const auto now = [this] { return spoken_to_ && free_sends() >= kPlaceWritesMax; };
  if (!now()) post();
  if (!now()) poll();
  if (!now()) (void)arm();
  return error_ == 0 && now();
}

// Looked over before anything is posted: what is written in part would have to be said, too.
bool RdmaPipe::place(std::span<const ConstBytes> payload, std::span<const RemoteRun> runs) noexcept {
  if (error_ != 0 || !spoken_to_) return false;
  uint32_t writes = 0;
  uint32_t key = 0;
  const auto local = [&](ConstBytes bytes) { return registered_.local_key(*device(), bytes, &key); };
  const bool may = for_cuts(payload, runs, [&](uint64_t, uint32_t, std::span<const ConstBytes> pieces, uint32_t) {
    return ++writes <= kPlaceWritesMax && std::all_of(pieces.begin(), pieces.end(), local);
  });
  if (!may || writes == 0 || writes > free_sends()) return false;
  return for_cuts(payload, runs, [&](uint64_t to, uint32_t to_key, std::span<const ConstBytes> pieces, uint32_t bytes) {
    SendRequest& request = next_request();
    for (size_t i = 0; i < pieces.size(); ++i) {
      (void)local(pieces[i]);
      piece(i) = {
          .addr = reinterpret_cast<uint64_t>(pieces[i].data()), .length = static_cast<uint32_t>(pieces[i].size()), .lkey = key};
    }
    request.num_sge = static_cast<int>(pieces.size());
    request.opcode = rdma::abi::kWrite;
    request.remote_addr = to;
    request.rkey = to_key;
    held_sent_ += bytes;
    counts_.held_bytes += bytes;
    counts_.placed_bytes += bytes;
    add();
    return true;
  });
}

// ---- Out of the other end's own memory -----------------------------------------------------------------------------------

bool RdmaPipe::pull(std::span<const Bytes> into, std::span<const RemoteRun> runs) {
  if (error_ != 0 || end_->reads_out() == 0) return false;
  uint64_t total = 0;
  const size_t before = reads_.size();
  const bool may = for_cuts(into, runs, [&](uint64_t from, uint32_t key, std::span<const Bytes> pieces, uint32_t bytes) {
    Read& read = reads_.emplace_back();
    for (size_t i = 0; i < pieces.size(); ++i) {
      uint32_t local = 0;
      if (!registered_.local_key(*device(), pieces[i], &local)) return false;
      read.pieces[i] = {.addr = reinterpret_cast<uint64_t>(pieces[i].data()),
                        .length = static_cast<uint32_t>(pieces[i].size()),
                        .lkey = local};
    }
    read.address = from;
    read.key = key;
    read.count = static_cast<uint32_t>(pieces.size());
    total += bytes;
    return true;
  });
  if (!may || reads_.size() == before) {
    reads_.resize(before);
    return false;
  }
  reads_.back().last = true;
  counts_.pulled_bytes += total;
  ++begun_pulls_;
  start_reads();
  return true;
}

bool RdmaPipe::take_pulled() noexcept {
  if (told_pulls_ == done_pulls_) return false;
  ++told_pulls_;
  return true;
}

// At most half of the queue, so that answers go on meanwhile; and of what writes leave all that there is, before they come
// again: who writes without end would else keep reads from it.
void RdmaPipe::start_reads() noexcept {
  if (first_read_ == reads_.size() || error_ != 0 || !spoken_to_) return;
  while (first_read_ != reads_.size() && free_sends() != 0 && posted_reads_ - done_reads_ < RdmaEnd::kSends / 2) {
    const Read& read = reads_[first_read_++];
    SendRequest& request = next_request();
    request.opcode = rdma::abi::kRead;
    request.remote_addr = read.address;
    request.rkey = read.key;
    request.num_sge = static_cast<int>(read.count);
    for (uint32_t i = 0; i < read.count; ++i) piece(i) = read.pieces[i];
    add();
    ++posted_reads_;
    if (!read.last) continue;
    ++posted_pulls_;
    ask_for_completion();
  }
  if (first_read_ == reads_.size() || first_read_ >= kReadsForgotten) {
    reads_.erase(reads_.begin(), reads_.begin() + static_cast<ptrdiff_t>(first_read_));
    first_read_ = 0;
  }
  post();
}

// ---- Keys of our memory --------------------------------------------------------------------------------------------------

Fault RdmaPipe::open_window(const rdma::MemoryRegion& region, Bytes bytes, int access, RemoteWindow* out) {
  if (error_ != 0) return {Code::Closed, "the path is over"};
  post();
  if (free_sends() == 0) poll();
  if (free_sends() == 0) return {Code::NoSpace, "memory windows: the queue of the path is full"};
  if (Fault fault = windows_.take(device(), &out->number); !fault.ok()) return fault;
  rdma::MemoryWindow& window = windows_.at(out->number);
  window.bind(region, bytes, access, &next_request());
  add();
  post();
  window.bound();
  out->key = window.key();
  return {};
}

void RdmaPipe::close_window(uint32_t number) noexcept {
  windows_.close(number);
  invalidate_windows();
}

// The completion of the last one says it of all before it.
void RdmaPipe::invalidate_windows() noexcept {
  if (error_ != 0 || !windows_.waits() || free_sends() == 0) return;
  do {
    // The place first: it may hand over those before, with a completion that is of no window more.
    SendRequest& request = next_request();
    windows_.next()->invalidate(&request);
    add();
  } while (windows_.waits() && free_sends() != 0);
  ask_for_completion();
  post();
}

// ---- Payload that is not copied ------------------------------------------------------------------------------------------

bool RdmaPipe::hold(const Release& release) {
  if (held_done_ == held_sent_) return false;
  held_.push_back({release, held_sent_});
  return true;
}

bool RdmaPipe::take_free(Release* out) noexcept {
  if (first_held_ == held_.size() || held_[first_held_].held_before > held_done_) return false;
  return take_any(out);
}

bool RdmaPipe::take_any(Release* out) noexcept {
  if (first_held_ == held_.size()) return false;
  *out = held_[first_held_++].release;
  if (first_held_ == held_.size()) {
    held_.clear();
    first_held_ = 0;
  }
  return true;
}

// A write without bytes and with a completion stands behind all the others.
void RdmaPipe::flush() noexcept {
  post();
  if (error_ != 0 || posted_ == completed_ || signaled_ == posted_) return;
  signaled_ = posted_ - kRdmaSignalWrites;  // the next one is asked for
  tell_room();
}

}  // namespace halfstep::net
