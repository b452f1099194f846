// rdma_pipe.h — both directions of a connection through two rings that RDMA WRITE fills: positions, posting and completions.
//
//   a write      RDMA WRITE WITH IMMEDIATE of at most kRdmaWriteBytesMax, at its place in the other end's ring: byte n of the
//                stream is at n % size. Immediate: bit 31 clear, and the low 31 bits of the position behind it
//   place        RDMA WRITE, of payload into memory that the other end has said; the frame that tells of it follows in the ring
//   pull         RDMA READ, out of memory that the other end has said into payload memory of ours
//   window       a key of its own for a part of our memory: bound before what names it leaves, invalidated when it is closed
//   room         RDMA WRITE WITH IMMEDIATE without bytes. Immediate: bit 31 set, and the low 31 bits of how much was taken
//                out; whenever a quarter of the ring was
//
// Both positions travel in completions and lie in no memory that the other end could write again. A reader tells of each
// quarter that it took, asked or not: a writer that finds no room has three quarters that the reader has yet to take, and hears
// of them. Invariants: the other end is not trusted. Each side goes by its own position alone; what the other tells must lie
// within one ring of it and never go back, else the pipe is broken (-EPROTO) from then on. Bytes are copied out of the ring
// once, and looked at in the copy. Memory that a device may still read (the outbox, payload that was held) is used again only
// when a later write has completed. A server writes nothing before the client has: until then nobody hears it. Writes are
// handed to the device kChain at a time while more follow, and at the end of a turn. Completions are asked for sparsely: of
// a chain's last write, and there only after kRdmaSignalWrites or a quarter of the outbox, and at the end of a turn that sent
// held payload, which would else never be given back, and of the last read of each pull. A read is done when its completion has
// come, which comes in the order of posting: whoever drops the end before has to expect bytes until then. Thread: the loop's.
// In the steady state nothing is allocated.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "net/rdma_end.h"
#include "net/rdma_windows.h"
#include "net/send_queue.h"
#include "net/transport.h"

namespace halfstep::net {

inline constexpr uint32_t kRdmaWriteBytesMax = 64 * KiB;
inline constexpr uint32_t kRdmaSignalWrites = 16;
// Of one place(): payload that would take more of them travels through the ring.
inline constexpr uint32_t kPlaceWritesMax = 32;
inline constexpr uint32_t kRdmaImmediateRoom = 1U << 31;
inline constexpr uint32_t kRdmaPositionMask = kRdmaImmediateRoom - 1;

// What pipes of one loop count. Only their thread writes it.
struct RdmaCounts {
  uint64_t copied_bytes = 0;  // sent through the outbox
  uint64_t held_bytes = 0;    // sent from where they were
  uint64_t placed_bytes = 0;  // of them, into the other end's own memory
  uint64_t pulled_bytes = 0;  // read out of the other end's memory
  uint64_t writes = 0;
  uint64_t posts = 0;        // calls that handed writes to the device
  uint64_t completions = 0;  // of writes, that were asked for
};

// Where payload may lie that is sent without a copy.
class RegisteredMemory {
 public:
  virtual ~RegisteredMemory() = default;
  // The key by which the device reads all of these bytes. False: they are not registered.
  virtual bool local_key(const rdma::Device& device, ConstBytes bytes, uint32_t* key) noexcept = 0;
};

class RdmaPipe {
 public:
  // A connected end. speaks_first: the client's, which tells the server that it is there.
  RdmaPipe(std::unique_ptr<RdmaEnd> end, RegisteredMemory& registered, RdmaCounts& counts, bool speaks_first);

  int descriptor() const noexcept { return end_->queue_pair().descriptor(); }
  const std::shared_ptr<rdma::Device>& device() const noexcept { return end_->device(); }
  bool uses(const rdma::Device& device) const noexcept { return end_ != nullptr && end_->device().get() == &device; }
  // From here on descriptor() tells.
  void begin() noexcept { (void)arm(); }
  // descriptor() became readable, or may have.
  void heard() noexcept;

  // Bytes copied out, or -EAGAIN: there are none, and descriptor() tells when there may be. Any other: it is over.
  ssize_t read(const iovec* vectors, size_t count) noexcept;
  static constexpr size_t kReadBytesMax = 64 * KiB;
  // Bytes taken, or -EAGAIN: there is no room, and descriptor() tells when there may be. Any other: it is over.
  // more: further bytes follow at once, so that nobody need be told of the end of these.
  ssize_t write(const iovec* vectors, size_t count, bool more) noexcept;
  // Hands over what was written while more was to follow.
  void push() noexcept { post(); }
  // The same without a copy where the memory is registered: to be held until take_free().
  ssize_t write_held(const iovec* vectors, size_t count, bool more) noexcept;

  // Transport::place() and place_room().
  bool place_room() noexcept;
  bool place(std::span<const ConstBytes> payload, std::span<const RemoteRun> runs) noexcept;

  // Transport::pull() and take_pulled().
  bool pull(std::span<const Bytes> into, std::span<const RemoteRun> runs);
  bool take_pulled() noexcept;
  // Something of it is still to come.
  bool pulls() const noexcept { return told_pulls_ != begun_pulls_; }

  // Transport::open_window(), close_window() and take_closed().
  Fault open_window(const rdma::MemoryRegion& region, Bytes bytes, int access, RemoteWindow* out);
  void close_window(uint32_t number) noexcept;
  bool take_closed(uint32_t* number) { return windows_.take_closed(number); }

  bool hold(const Release& release);
  bool take_free(Release* out) noexcept;
  // Whether or not a device still reads it: after the end has been dropped.
  bool take_any(Release* out) noexcept;
  uint64_t held_bytes() const noexcept { return held_sent_ - held_done_; }

  // Asks for the completion of all that was written; after a few polls settled() says that it has arrived.
  void flush() noexcept;
  void poll() noexcept;
  bool settled() const noexcept { return completed_ == posted_ || error_ != 0; }
  // Why it is over, 0 while it is not.
  int error() const noexcept { return error_; }
  // Of which a test may say what no end of ours would.
  rdma::QueuePair& queue_pair_for_tests() noexcept { return end_->queue_pair(); }
  // Drops queue pair and memory: no device reads or writes anything of it afterwards.
  void drop_end() noexcept {
    windows_.drop();
    end_ = nullptr;
  }
  // Nothing moves any more. What has come is still read.
  void device_gone() noexcept { fail(ENODEV); }
  // At once, and nothing else comes of it.
  void cut() noexcept {
    fail(ECONNABORTED);
    drop_end();
  }

 private:
  // Of the queue for writes, what is kept for telling of room.
  static constexpr uint32_t kSparedSends = 8;
  static constexpr uint32_t kChain = 16;
  // Reads that were posted are forgotten so many at a time, where some always wait.
  static constexpr size_t kReadsForgotten = 256;

  struct Signal {  // a write whose completion was asked for
    uint64_t posted = 0;
    uint64_t tail = 0;
    uint64_t held = 0;
    uint64_t reads = 0;
    uint64_t pulls = 0;
    uint64_t windows = 0;
  };
  struct Read {
    uint64_t address = 0;  // the other end's, and its key
    uint32_t key = 0;
    uint32_t count = 0;
    std::array<rdma::abi::Piece, RdmaEnd::kPieces> pieces{};  // here
    bool last = false;                                        // of its pull
  };
  struct Held {
    Release release;
    uint64_t held_before = 0;  // free when so many bytes of held writes, all those before its end, have completed
  };
  struct Chain {  // writes that are handed to the device in one call
    std::array<rdma::abi::SendRequest, kChain> requests{};
    std::array<std::array<rdma::abi::Piece, RdmaEnd::kPieces>, kChain> pieces{};
    uint32_t count = 0;
  };

  void fail(int error) noexcept {
    if (error_ == 0) error_ = error;
  }
  bool arm() noexcept;
  void take(const rdma::abi::Completion& completion) noexcept;
  void take_position(uint32_t immediate) noexcept;
  uint64_t room() const noexcept;
  uint64_t wait_for_room() noexcept;
  uint32_t free_sends() const noexcept;
  template <typename Fill>
  ssize_t write_chains(const iovec* vectors, size_t count, bool more, Fill&& fill) noexcept;
  rdma::abi::SendRequest& next_request() noexcept;
  rdma::abi::Piece& piece(size_t number) noexcept { return chain_.pieces[chain_.count][number]; }
  void add() noexcept;
  void ask_for_completion() noexcept;
  void post() noexcept;
  void tell_room() noexcept;
  void start_reads() noexcept;
  void invalidate_windows() noexcept;

  std::unique_ptr<RdmaEnd> end_;
  RdmaWindows windows_;
  RegisteredMemory& registered_;
  RdmaCounts& counts_;
  const uint64_t ring_bytes_;
  const uint64_t far_bytes_;     // of the other end's ring
  const uint64_t outbox_bytes_;  // the smaller of that and ours: what is used of it

  // In.
  uint64_t head_ = 0;  // taken out
  uint64_t told_head_ = 0;
  uint64_t tail_ = 0;           // as the other end told
  uint32_t receives_used_ = 0;  // and not posted again
  bool spoken_to_ = false;
  bool armed_ = false;

  // Out.
  Chain chain_;
  uint64_t out_tail_ = 0;  // posted
  uint64_t out_head_ = 0;  // as the other end told
  uint64_t done_tail_ = 0;
  uint64_t posted_ = 0;  // writes, of room as well, and those in the chain
  uint64_t completed_ = 0;
  uint64_t signaled_ = 0;       // posted_ when a completion was last asked for
  uint64_t signaled_tail_ = 0;  // out_tail_ then, and held_sent_
  uint64_t signaled_held_ = 0;
  std::array<Signal, RdmaEnd::kSends> signals_{};
  uint64_t first_signal_ = 0;
  uint64_t next_signal_ = 0;
  uint64_t held_sent_ = 0;
  uint64_t held_done_ = 0;
  std::vector<Held> held_;  // from first_held_ on
  size_t first_held_ = 0;

  // Reads that were not posted yet, from first_read_ on; pulls that were asked for, posted whole, done, and told of.
  std::vector<Read> reads_;
  size_t first_read_ = 0;
  uint64_t posted_reads_ = 0;
  uint64_t done_reads_ = 0;
  uint64_t begun_pulls_ = 0;
  uint64_t posted_pulls_ = 0;
  uint64_t done_pulls_ = 0;
  uint64_t told_pulls_ = 0;

  int error_ = 0;
};

}  // namespace halfstep::net
