// connection.h — one client's connection: Hello, then requests that it tells apart by id, and the turns they take in sending.
// Invariants: nothing but Hello is served before Hello; a request id is in flight once; requests of the lowest priority number
// that have something to send take turns chunk by chunk; an idle connection holds a few KiB;
// one whose client takes nothing of what is queued for it, or of what the kernel sends without a copy, is closed, since that
// holds memory which others wait for.
// Thread: the shard's.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "net/stream.h"
#include "shard/chunk_landing.h"
#include "shard/client.h"
#include "shard/listening.h"
#include "shard/metrics.h"
#include "shard/placement.h"
#include "shard/pulls.h"
#include "shard/request.h"
#include "wire/layout.h"

namespace halfstep::shard {

class ConnectionHost;

class Connection final : public net::FrameSink, public Client {
 public:
  // peer: whose connections are counted together (connection_limit.h).
  Connection(ConnectionHost& shard, std::unique_ptr<net::Transport> transport, ShardMap map, bool admin, std::string peer);
  ~Connection() override;
  Status start();

  net::FrameStream& stream() noexcept { return stream_; }
  std::string_view peer() const noexcept { return peer_; }
  // When its last frame came, or it did.
  uint64_t heard_us() const noexcept { return heard_us_; }
  // It has had a request since its Hello.
  bool asked() const noexcept { return asked_; }
  // It has nothing under way, and nothing to send; nor is a client that said Hello in the middle of a frame.
  bool idle() const noexcept {
    return in_flight_ == 0 && stream_.descriptor() >= 0 && stream_.queued_bytes() + stream_.held_bytes() == 0 &&
           (state_ != State::Open || stream_.part_since_us() == UINT64_MAX);
  }
  // For the shard, while others wait for memory. How fast what was granted has been filled since mark_pace(), `us` ago: 1 and
  // more is fast enough, and so is whoever had nothing then or has nothing now.
  void mark_pace() noexcept;
  double put_pace(uint64_t us) const noexcept;
  // Ends what its puts were granted and have not filled, and how much it gives back with that.
  uint64_t take_back_puts();
  void resume_waiters();

  // Ends the connection for what the peer did, and counts it. Returns a status for on_frame().
  Status violation(ProtocolError kind, Status why, std::string_view sentence);
  // Ends it for no fault of its own, or before it could have any.
  void refuse(std::string_view sentence);
  // While a client leaves this much of its answers unread it is not read either: less, down to the second, where the memory of
  // requests is short.
  static constexpr uint64_t kUnreadBytesMax = 4 * MiB;
  static constexpr uint64_t kUnreadBytesMin = 64 * KiB;
  // How long a frame may come in part.
  static constexpr uint64_t kBodyWaitUs = 10'000'000;

  void credit_returned() override;
  void note_landed(uint64_t bytes) noexcept override;
  void divert_landing(const PutRequest& put) override;
  void send(ConstBytes frames) override;
  void send_chunk(ConstBytes head, std::span<const ConstBytes> payload, net::Released released, void* owner,
                  uint64_t tag) override {
    stream_.send_chunk(head, payload, released, owner, tag);
  }
  Placement* placement() noexcept override { return placement_.get(); }
  Placement* make_placement() override;
  bool place(std::span<const ConstBytes> payload, std::span<const net::RemoteRun> runs, net::Released released, void* owner,
             uint64_t tag) override {
    return stream_.place(payload, runs, released, owner, tag);
  }
  void write_shard_map(wire::FrameWriter& frame) const override;
  void enrol(Request& request) override;
  void request_finished(Request& request) noexcept override;
  void strike(Request& request) noexcept override;
  Request* find(uint64_t id) const noexcept override;
  void leave_work(Request& request) noexcept override;
  void charge(uint64_t us) override { stream_.charge(us); }
  void offer_chunks(Request& request) override;

  Status on_frame(const wire::Header& header, ConstBytes body, net::Landing* landing) override;
  void on_landed(ConstBytes piece, size_t skipped) override { landing_.landed(piece, skipped); }
  Status on_chunk_end() override;
  void on_pulled() override;
  bool go_on() override { return working_ != nullptr && working_->go_on() && working_ != nullptr; }
  void on_sendable() override;
  void on_turn_end() override;
  void on_closed(Status why) override;

 private:
  friend class Shard;
  enum class State : uint8_t { AwaitsHello, Open, Refused };

  struct Greeting {
    wire::HelloClient client;
    std::string_view name_space = kNamespaceDefault;
    bool has_client = false;
    bool has_namespace = false;
    bool authenticates = false;
    bool offers_rdma = false;
    wire::RdmaOfferView rdma;
    wire::RdmaReadsRecord reads;  // 0: it answers none
    wire::AnswerReason refused;   // Pending: it parses
    const char* sentence = "";
  };
  static Greeting parse_greeting(ConstBytes body);
  Status on_hello(const wire::Header& header, ConstBytes body);
  bool answer_rdma(const Greeting& greeting, wire::FrameWriter& frame);
  Status change_to_rdma(std::unique_ptr<net::RdmaEnd> end);
  void refuse_hello(uint64_t id, wire::AnswerReason status, std::string_view sentence);
  Status on_chunk(const wire::Header& header, ConstBytes body, net::Landing* landing);
  Status on_placed(const wire::Header& header, ConstBytes body);
  Status payload_refused(Status why);
  void read_or_rest();
  static void on_hello_late(void* self);
  Request* next_sender() noexcept;
  void watch_sending();
  static void on_send_watched(void* self);

  ConnectionHost& shard_;
  net::FrameStream stream_;
  ShardMap map_;
  net::Timer hello_timer_;
  net::Timer send_timer_;     // runs while something is queued, or sent without a copy and held
  uint64_t let_go_mark_ = 0;  // what had left, or was given back, when it was armed
  uint64_t to_go_mark_ = 0;   // what had not
  std::string peer_;
  uint64_t heard_us_;
  std::vector<Request*> requests_;  // admitted, and finished ones that something still refers to
  std::vector<Request*> senders_;
  Request* working_ = nullptr;  // it has left work
  uint64_t put_limit_bytes_;    // of the put credit: less after its memory was taken back, until it has shown better
  uint64_t landed_bytes_ = 0;
  uint64_t landed_mark_ = 0;
  uint64_t granted_mark_ = 0;
  uint32_t slow_looks_ = 0;    // of the shard's, in a row
  uint64_t buffer_bytes_ = 0;  // of request_bytes_: the stream's
  ChunkLanding landing_;
  Pulls pulls_;
  std::unique_ptr<Placement> placement_;  // null: its client has told of none
  size_t at_ = 0;                         // in the shard's list
  uint32_t in_flight_ = 0;
  uint32_t chunks_ = 0;
  State state_ = State::AwaitsHello;
  bool asked_ = false;
  bool dirty_ = false;
  bool counted_ = false;
  bool unread_ = false;     // more than kUnreadBytesMax: reading is paused
  bool pulls_put_ = false;  // payload of puts is read out of the client's memory
};

}  // namespace halfstep::shard
