// stream.h — one connection as a stream of frames, the same code at both ends.
// Receiving: the header and body of a frame come into the stream's own small buffer; the payload of a Chunk is received
// straight into the memory that the sink names for it, and is shown to the sink piece by piece as it lands, while it is hot in
// the cache. In the steady state one receive() takes the rest of a payload and the head of the next frame.
// Sending: frames are queued as bytes plus references to payload memory, and leave in order. When less than
// send_low_bytes() are queued the sink is asked for more, so that requests take turns chunk by chunk and a cancelled one stops
// at a border.
// Invariants: body memory grows only as bytes really arrive, never by the sender's number; a frame that fails its checks closes
// the connection (after an Abort frame where possible); after divert_landing(), abort() or close() no byte lands any more.
// Turns: whatever it does of its own accord it does when the loop gives it a Turn (turn_queue.h), for kTurnUs or so: reading
// ends after a frame, and work that the sink has left (go_on()) between two steps.
// Re-entrancy: a sink may call every method of the stream from within its callbacks, but destroy the stream only in
// on_closed(). abort() and close() act at once and call nothing back; on_closed() follows from the loop. send…() and
// ask_for_more() call nothing back either: what is queued leaves when the callback has returned.
// The end: a peer that closes its sending half ends the connection; what is queued and fits the transport is sent first.
// Thread: the loop's.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "net/loop.h"
#include "net/send_queue.h"
#include "net/transport.h"
#include "wire/message.h"

namespace halfstep::net {

// So little is queued that the sink is asked for more: while others have something to do on this loop, and while nobody has.
inline constexpr uint64_t kSendLowBytes = 768 * 1024;
inline constexpr uint64_t kSendLowBytesAlone = 2 * kSendLowBytes;
// For how long one connection is shown frames before the others have their turn, since a few bytes may ask for much work; and
// while nobody else has anything to do.
inline constexpr uint64_t kTurnUs = 500;
inline constexpr uint64_t kTurnUsAlone = 2'000;

class FrameStream;

// Where the payload of one Chunk goes. The sink fills it in on_frame(); its pieces must add up to payload_bytes exactly.
class Landing {
 public:
  void to(Bytes memory) {
    if (!memory.empty()) pieces_.push_back({memory.data(), memory.size()});
  }
  // Bytes that nobody wants: received and dropped.
  void to_scratch(size_t bytes) {
    if (bytes != 0) pieces_.push_back({nullptr, bytes});
  }
  uint64_t bytes() const noexcept;

  // For what has its payload elsewhere: the pieces so far, and none.
  std::span<const iovec> pieces() const noexcept { return pieces_; }
  void clear() noexcept { pieces_.clear(); }

 private:
  friend class FrameStream;
  std::vector<iovec> pieces_;  // iov_base null = scratch; reused from chunk to chunk
};

class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // A whole frame, header and body checked. For a Chunk: name the landing of its payload. `body` dies with the call.
  // Not ok: the connection is aborted with that status.
  virtual Status on_frame(const wire::Header& header, ConstBytes body, Landing* landing) = 0;
  // Payload of the current Chunk that has just landed, in order, at most 256 KiB at a time and never across a piece of the
  // landing. Scratch bytes are not shown (`skipped` counts them instead, `piece` is empty).
  virtual void on_landed(ConstBytes piece, size_t skipped) = 0;
  // The current Chunk is complete.
  virtual Status on_chunk_end() = 0;
  // What the oldest pull() of those that were not told of yet asked for is there.
  virtual void on_pulled() {}
  // The window is closed: nobody begins anything by its key any more.
  virtual void on_window_closed(uint32_t /*number*/) {}
  // After FrameStream::leave_work(): does the next step of what on_frame() left, a fraction of kTurnUs. False: that was all.
  virtual bool go_on() { return false; }
  // The end of a turn, or buffers were given back between two: memory_bytes() may be another.
  virtual void on_turn_end() {}
  // Less than send_low_bytes() are queued: queue more with send_…(), or nothing. Called again only after something was sent or
  // ask_for_more() was called.
  virtual void on_sendable() = 0;
  // The connection is gone, whoever ended it. The stream has no descriptor any more and touches no memory of the sink's.
  // Every payload queued has been released before this call, but for what was sent without a copy and is still being read: that
  // comes later, through whoever the transport left it to (zero_copy_linger.h). So what `released` is given as its owner
  // outlives the sink where the transport may send without copies, which clients' never do. The sink may destroy the stream
  // here.
  virtual void on_closed(Status why) = 0;
};

class FrameStream final : public Watch, private PayloadKeeper {
 public:
  FrameStream(Loop& loop, std::unique_ptr<Transport> transport, FrameSink& sink);
  // Over a socket: takes the (connected) descriptor.
  FrameStream(Loop& loop, int descriptor, FrameSink& sink);
  ~FrameStream() override;
  Status start();
  // From on_frame(), at a border that both ends know: bytes come and leave by this transport from here on, also those that are
  // queued. Not ok: they come and leave as before.
  Status change_carrier(std::unique_ptr<Transport> next);
  // Right after it: what is queued by now leaves by the socket beneath all the same.
  void leave_by_socket() noexcept {
    if (transport_) transport_->leave_by_socket(queue_.bytes());
  }

  // Frames built by wire::FrameWriter, without payload.
  void send(ConstBytes frames);
  // One Chunk: its header and body (copied), then payload by reference, then `released(owner, tag)`. The payload stays as it is
  // until then.
  void send_chunk(ConstBytes head, std::span<const ConstBytes> payload, Released released, void* owner, uint64_t tag);
  // RDMA alone: payload is written into the peer's memory, and is there before what is sent from here on. It stays as it is
  // until `released(owner, tag)`, which never comes from here. False: nothing was written (Transport::place).
  bool place(std::span<const ConstBytes> payload, std::span<const RemoteRun> runs, Released released, void* owner,
             uint64_t tag);
  // Whether it may be tried; if not, sink.on_sendable() is called when it may.
  bool place_room() noexcept;
  // RDMA alone: the peer's memory is read into payload memory, which stays as it is until sink.on_pulled(), once for each call
  // and in their order, or sink.on_closed(). False: nothing will be read (Transport::pull).
  bool pull(std::span<const Bytes> into, std::span<const RemoteRun> runs) {
    return transport_ && send_error_ == 0 && transport_->pull(into, runs);
  }
  void accept_places() noexcept {
    if (transport_) transport_->accept_places();
  }
  // RDMA alone: a key for a part of our memory, which goes with its window (Transport::open_window).
  Fault open_window(const rdma::MemoryRegion& region, Bytes bytes, int access, RemoteWindow* out) {
    if (transport_ && send_error_ == 0) return transport_->open_window(region, bytes, access, out);
    return {Code::Closed, "the connection is over"};
  }
  // sink.on_window_closed() follows, or sink.on_closed().
  void close_window(uint32_t number) noexcept {
    if (transport_) transport_->close_window(number);
  }
  // Calls sink.on_sendable() in this turn of the loop if little is queued.
  void ask_for_more();
  uint64_t queued_bytes() const noexcept { return queue_.bytes(); }
  uint64_t send_low_bytes() const noexcept { return loop_.crowded() ? kSendLowBytes : kSendLowBytesAlone; }
  // Sent without a copy and not yet given back, so that payload of it is still in use.
  uint64_t held_bytes() const noexcept { return transport_ ? transport_->held_bytes() : 0; }
  // Sent and given back: grows as long as the peer takes what it is sent.
  uint64_t let_go_bytes() const noexcept { return sent_bytes_ - held_bytes(); }

  // No frame's body may have more bytes, nor take longer from its first byte to its last: that ends the connection, with `why`
  // said of the former. Without this only wire/ bounds them.
  void limit_bodies(uint32_t bytes_max, uint64_t wait_us, std::string_view why) noexcept {
    body_bytes_max_ = bytes_max;
    body_wait_us_ = wait_us;
    body_limit_why_ = why;
  }
  // Of buffers: what came in part, what was not shown yet, and what waits to be sent, payload apart.
  size_t memory_bytes() const noexcept { return held_.capacity() + rest_.capacity() + queue_.held_bytes(); }
  size_t unsent_memory_bytes() const noexcept { return queue_.held_bytes(); }
  // Since when a frame has come in part; UINT64_MAX: none has.
  uint64_t part_since_us() const noexcept { return held_.empty() ? UINT64_MAX : part_since_us_; }

  // From on_frame(), of a request that would take longer than a turn: the sink is asked to go_on(), in this turn and others,
  // and no frame is shown before it has no more to do. A peer that goes meanwhile ends the connection at once.
  void leave_work() noexcept { working_ = true; }
  // So long was worked for this connection outside of its turns.
  void charge(uint64_t us) { loop_.charge(turn_, us); }
  // It is known that the peer has gone: what it sent before may still be shown, and nobody reads an answer.
  bool peer_gone() const noexcept { return gone_; }

  // From on_sendable(): whether this turn has lasted long enough. Then what is queued leaves, and the sink, if it asks for
  // more, is asked in the next turn.
  bool turn_is_over() noexcept;

  // The rest of the Chunk that is landing goes to scratch from now on.
  void divert_landing() noexcept;
  // Stops and resumes reading (back-pressure): the peer sees a full socket or ring. The Chunk that is landing may still be
  // shown to its end, and no frame after it. A peer that dies while we do not read closes the connection at once.
  void pause_reading();
  void resume_reading();

  // Sends an Abort with `reason` if the transport takes it at once, then closes; on_closed follows from the loop, not from
  // here.
  void abort(Status why, std::string_view reason);
  // The same without a word to the peer.
  void close(Status why);
  // -1 once it is closed.
  int descriptor() const noexcept { return transport_ ? transport_->descriptor() : -1; }
  // Whether bytes travel through shared memory.
  bool shared_memory() const noexcept { return transport_ && transport_->rings(); }
  bool rdma() const noexcept { return transport_ && transport_->rdma(); }
  // Whether payload leaves without a copy, as things are.
  bool zero_copy() const noexcept { return transport_ && transport_->zero_copy(); }
  uint64_t received_bytes() const noexcept { return received_bytes_; }
  uint64_t sent_bytes() const noexcept { return sent_bytes_; }
  // Frames of opcodes that nobody here knows and nobody answers: dropped as they arrive.
  uint64_t skipped_frames() const noexcept { return skipped_frames_; }

  void on_ready(uint32_t epoll_events) override;

 private:
  static constexpr size_t kVectorsMax = 256;  // below IOV_MAX: a 256 KiB Chunk of 4 KiB pieces takes 64
  static void run_turn(void* self);
  static void run_trim(void* self);
  static void run_body_late(void* self);
  void watch_body();
  void later() { loop_.queue(turn_); }
  void take_turn();

  // Receiving.
  void work();
  void receive();
  size_t gather_landing(std::span<iovec> out, size_t bytes_max, size_t* used) noexcept;
  void land(size_t count, const std::byte* copied_from);
  void parse(ConstBytes bytes);
  bool parse_rest();
  bool must_wait() const noexcept { return payload_left_ == 0 && (paused_ || over_ || working_); }
  bool parse_head(ConstBytes from);
  void on_whole_frame(ConstBytes body);
  void end_chunk();
  void end_of_input(Status why);

  // Sending.
  size_t turn_bytes() const noexcept;
  void pump();
  bool send_some(size_t* budget);
  void send_what_fits() noexcept;
  void send_failed(int error);
  bool keep(const Release& release) override { return transport_ && transport_->hold(release); }
  void release_free();

  void watch_for();
  void trim_when_idle();
  void drop_transport();
  void finish();

  Loop& loop_;
  FrameSink& sink_;
  std::unique_ptr<Transport> transport_;  // null: closed
  Status why_;

  uint64_t received_bytes_ = 0;
  uint64_t sent_bytes_ = 0;
  uint64_t skipped_frames_ = 0;
  uint64_t trim_mark_ = 0;  // received and sent bytes when trim_ was armed
  bool finished_ = false;   // on_closed() was called
  bool paused_ = false;
  bool in_turn_ = false;  // take_turn() receives, and will pump
  bool told_ = false;     // there is something to receive
  bool unasked_ = false;  // there may be more to receive, and nobody will tell
  bool working_ = false;  // the sink has left work
  bool gone_ = false;     // the peer has ended its half, or died
  bool over_ = false;     // the turn has lasted long enough
  bool pumping_ = false;
  bool full_ = false;   // room to send is awaited
  bool asked_ = false;  // on_sendable() is due when little is queued
  bool place_awaited_ = false;
  int send_error_ = 0;  // what is left to read is still read

  wire::Header header_;          // of the frame under way
  bool in_body_ = false;         // header_ holds, its body is incomplete in held_
  std::vector<std::byte> held_;  // header and body of a frame that has arrived in part
  uint64_t frames_ = 0;          // that were whole
  uint64_t part_since_us_ = 0;   // with late_ armed: frames_ was part_mark_ then
  uint64_t part_mark_ = 0;
  uint64_t body_wait_us_ = 0;
  uint32_t body_bytes_max_ = UINT32_MAX;
  std::string_view body_limit_why_;
  std::vector<std::byte> rest_;  // read, and not shown before the next turn or resume_reading()
  uint64_t skip_left_ = 0;       // of a frame that is skipped
  uint64_t payload_left_ = 0;    // of the Chunk that is landing
  Landing landing_;
  size_t landing_at_ = 0;  // the piece that fills, and how far
  size_t landing_offset_ = 0;
  size_t ahead_bytes_;  // how much to read beyond the payload that is landing

  SendQueue queue_;
  Turn turn_;
  Timer trim_;
  Timer late_;  // for a frame that has come in part
};

}  // namespace halfstep::net
