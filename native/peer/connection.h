// connection.h — one connection to one shard: connects, greets, registers the client's layouts, then carries requests, and
// begins again with back-off when it ends.
//
//   Waiting (-> Resolving) -> Connecting (-> Sharing) -> Greeting -> Registering -> Up -> (gone) -> Waiting
//
// Sharing: over a unix socket, until the daemon has passed the memory of the rings.
//
// Invariants: requests are sent only while Up, in the order they were given; a request stays in its slot until its Final; when
// the connection ends every request of it is answered and nothing is sent again; after abandon() no byte lands for it.
// Thread: the client's.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "net/loop.h"
#include "net/rdma_end.h"
#include "net/socket.h"
#include "net/stream.h"
#include "peer/answers.h"
#include "peer/device_work.h"
#include "peer/get.h"
#include "peer/put.h"
#include "peer/request.h"
#include "peer/resolve.h"
#include "wire/places.h"

namespace halfstep::peer {

class ConnectionHost;

class Connection final : public net::FrameSink, public net::Watch, private SlotWaiter {
 public:
  // `shard` is kAnyShard until the shard map is known.
  static constexpr uint32_t kAnyShard = UINT32_MAX;
  static constexpr uint32_t kLayoutsAskedMax = 8;
  // `lane`: of several hosts that the address lists, which it tries first.
  Connection(ConnectionHost& client, net::Address address, uint32_t shard, uint32_t lane);
  ~Connection() override;

  void start();
  // After the shortest back-off.
  void start_later();
  // Ends it for good; it is Stopped once on_closed() has run, or at once.
  void stop();
  // Ends it now; it comes back by itself.
  void abort(Status why, const std::string& what);

  // Requests may be given to it.
  bool up() const noexcept { return state_ == State::Up && !silence_.broken; }
  // Answers are overdue and nothing is heard, or nobody answers its handshakes: what lies behind it hangs, or is gone.
  bool unresponsive() const noexcept { return silence_.broken; }
  // Every layout of the client's is registered or refused.
  bool layouts_settled() const noexcept;
  bool stopped() const noexcept { return state_ == State::Stopped; }
  // The daemon's Hello was taken: hello() is that of the store that answers here.
  bool greeted() const noexcept { return state_ == State::Registering || state_ == State::Up; }
  // Attempts that failed since it was up last.
  uint32_t attempts() const noexcept { return attempts_; }
  uint32_t lane() const noexcept { return lane_; }
  // How many addresses its name had at the last attempt.
  uint32_t hosts() const noexcept { return hosts_; }
  uint32_t shard() const noexcept { return shard_; }
  void set_shard(uint32_t shard) noexcept { shard_ = shard; }
  const net::Address& address() const noexcept { return address_; }
  const wire::HelloServer& hello() const noexcept { return hello_; }
  uint64_t load_bytes() const noexcept { return load_bytes_; }
  int descriptor() const noexcept { return stream_ ? stream_->descriptor() : -1; }
  // The region is closed next: no request uses it.
  void forget_region(const DirectRegion& region);
  bool shared_memory() const noexcept { return stream_ && stream_->shared_memory(); }
  bool rdma() const noexcept { return stream_ && stream_->rdma(); }

  // Beside those of its shard, before it takes one's place or after it has left it: its attempts and its end are nobody's
  // affair.
  bool extra() const noexcept { return extra_; }
  void set_extra(bool extra) noexcept { extra_ = extra; }

  void give(Request& request);
  // The ticket is over: nothing lands or is read for it any more, but what waits in the socket's queue (Ticket::fence).
  void abandon(Request& request);
  // The deadline of a request has passed without its answer.
  void on_overdue(const Request& request);
  // The client has more layouts than before.
  void register_layouts();

  // net::FrameSink
  Status on_frame(const wire::Header& header, ConstBytes body, net::Landing* landing) override;
  void on_landed(ConstBytes piece, size_t skipped) override {
    if (silence_.broken) heard();
    lander_.landed(piece, skipped);
  }
  Status on_chunk_end() override;
  void on_window_closed(uint32_t number) override;
  void on_sendable() override;
  void on_closed(Status why) override;
  // net::Watch: the socket until there is a stream
  void on_ready(uint32_t epoll_events) override;

 private:
  // Request ids say in their top byte what they belong to; a request's low byte is its slot.
  static constexpr uint64_t kHello = uint64_t{1} << 56;
  static constexpr uint64_t kLayout = uint64_t{2} << 56;
  static constexpr uint64_t kCancel = uint64_t{3} << 56;
  static constexpr uint64_t kPlacing = uint64_t{4} << 56;
  static constexpr uint64_t kKind = uint64_t{0xFF} << 56;

  enum class State : uint8_t { Waiting, Resolving, Connecting, Sharing, Greeting, Registering, Up, Stopped };
  enum class LayoutState : uint8_t { Unknown, Asked, Ready, Refused };
  struct LayoutEntry {
    LayoutState state = LayoutState::Unknown;
    wire::AnswerReason refusal;
    uint64_t asked_at = 0;          // of serial_: what was sent by then has an older handle
    uint64_t refused_until_us = 0;  // then it may be asked for again
  };

  void connect();
  void resolve();
  void connect_to_one_of(const std::vector<std::string>& hosts, uint32_t first);
  void connect_to(const net::Address& address);
  void ask_to_share();
  void share();
  void drop_socket(const std::string& what);
  std::string called() const;
  void greet(std::unique_ptr<net::Transport> transport);
  void attempt_failed(const std::string& what);
  void wait_and_retry();
  std::string timed_out() const;
  static void on_timer(void* self);
  static void on_released(void* ticket, uint64_t tag);

  // A Chunk of a get to a device has landed: until there is staging memory for all of it, nothing more is read.
  void finish_chunk();
  void on_slot() override;
  void stop_waiting_for_slot();

  // connection_rdma.cc
  bool offer_rdma(int socket, wire::FrameWriter& frame);
  Status take_rdma_answer(ConstBytes value, uint32_t reads);
  Status change_to_rdma(std::unique_ptr<net::RdmaEnd> end, const wire::RdmaPath& path);
  void note_rdma_end(Status why);

  // connection_placement.cc
  void prepare_places(Request& request);
  bool tell_regions(const Section& section, Request& request);
  bool tell_region(DirectRegion& region);
  bool open_window(DirectRegion& region, Request& request);
  void unfence(Ticket& ticket);
  void placing_over(Ticket& ticket);
  bool tell_template(const std::vector<wire::PlacePart>& parts, uint8_t* number);
  void send_template(uint32_t number);
  Status on_placing_answered(ConstBytes body);
  Status on_placed(Request& request, ConstBytes body);
  bool settle_gpu(const Ticket& ticket);
  void end_placing(Request& request);
  void forget_places();

  Status on_hello(ConstBytes body);
  Status on_reply(const wire::Header& header, ConstBytes body, net::Landing* landing);
  Status on_final(Request& request, ConstBytes body);
  void on_abort(ConstBytes body);
  void become_up_if_ready();
  // Sends what may go: a slot is free, its layouts are known.
  void pump();
  bool transmit(Request& request);
  void send_cancel(const Request& request);
  void fail(Request& request);
  void release_slot(Request& request);
  Request* find(uint64_t id) noexcept;
  void account() noexcept;

  // connection_silence.cc
  struct Silence {
    uint32_t overdue = 0;         // answers, since anything was heard
    uint64_t received_bytes = 0;  // by the stream, when the first of them was counted
    uint64_t since_us = 0;        // when the first of them was asked for
    bool broken = false;
  };
  void break_off();
  void heard();
  void on_still_silent();
  std::string silence_text() const;

  // connection_layouts.cc
  Status on_layout(uint32_t index, ConstBytes body);
  Status on_layout_refused(uint32_t index, const FinalNotes& notes);
  bool layouts_known(Request& request);
  void refuse_layouts(Request& request);
  // The daemon has forgotten a layout of it, with its namespace perhaps. True: it is pending again, behind its layouts.
  bool repeat(Request& request);

  ConnectionHost& client_;
  const net::Address address_;
  uint32_t shard_;
  const uint32_t lane_;
  std::string host_;  // that is called, or was
  State state_ = State::Waiting;
  bool stopping_ = false;
  int connecting_ = -1;
  bool as_stream_ = false;  // the next socket: the daemon has no memory for rings
  std::shared_ptr<Resolution> resolution_;
  uint64_t resolving_until_us_ = 0;
  net::Timer timer_;  // back-off, then how long an attempt may take
  uint32_t attempts_ = 0;
  uint32_t turn_ = 0;  // of the hosts, beginning with the first or its own
  bool was_up_ = false;
  bool refused_ = false;    // by its own card in this round
  bool own_again_ = false;  // its own was asked once more
  uint32_t pauses_ = 0;     // between attempts, since something was last served
  uint32_t hosts_ = 1;
  std::string what_;  // why it ends
  bool protocol_error_ = false;

  Silence silence_;

  std::unique_ptr<net::FrameStream> stream_;
  std::unique_ptr<net::RdmaEnd> rdma_end_;  // offered, until Hello is answered
  bool extra_ = false;
  bool over_rdma_ = false;   // the stream is, or was before it ended
  bool told_to_go_ = false;  // the daemon has sent an Abort
  uint64_t rdma_begun_us_ = 0;
  uint32_t rdma_reads_ = 0;  // offered
  // Of the regions and templates that this connection's daemon knows.
  struct Places {
    std::shared_ptr<rdma::Device> device;
    bool refused = false;  // none is told any more
    uint32_t reads = 0;    // of the daemon's at once, out of regions; 0: it sends for what a put has
    std::array<const DirectRegion*, wire::kRegionsMax> regions{};
    std::array<std::vector<wire::PlacePart>, wire::kTemplatesMax> templates;
    uint32_t next_template = 0;
    size_t parts = 0;  // of all templates
    // By window: for whom it is being closed.
    std::vector<Ticket*> closing;
  };
  Places places_;
  wire::HelloServer hello_;
  std::vector<uint16_t> handles_;  // by layout of the client
  std::vector<LayoutEntry> layouts_;
  uint32_t layouts_open_ = 0;  // asked for and not answered

  std::array<Request*, wire::kRequestsInFlightMax> slots_{};
  std::vector<uint8_t> free_slots_;
  uint64_t serial_ = 0;
  std::deque<Request*> pending_;
  uint64_t load_bytes_ = 0;
  Lander lander_;
  bool slot_awaited_ = false;
  Sender sender_;
  std::vector<std::byte> frame_;
  uint64_t counted_received_ = 0;
  uint64_t counted_sent_ = 0;
  uint64_t counted_failures_ = 0;
  uint64_t counted_undecoded_ = 0;
  uint64_t counted_placed_ = 0;
  uint64_t counted_gpu_placed_ = 0;
};

}  // namespace halfstep::peer
