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
#include "shard/listening.h"
#include "shard/metrics.h"
#include "shard/request.h"
#include "wire/layout.h"

namespace halfstep::shard {

// Of a client that names none. It cannot be deleted: every such client would be locked out.
inline constexpr std::string_view kNamespaceDefault = "default";

class Connection final : public net::FrameSink {
 public:
  struct Handle {
    uint32_t scope = 0;
    wire::LayoutId layout{};
  };
  static constexpr size_t kHandlesMax = 1024;

  // peer: whose connections are counted together (connection_limit.h).
  Connection(Shard& shard, std::unique_ptr<net::Transport> transport, ShardMap map, bool admin, std::string peer);
  ~Connection() override;
  Status start();

  Shard& shard() noexcept { return shard_; }
  net::FrameStream& stream() noexcept { return stream_; }
  bool admin() const noexcept { return admin_; }
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
  // Where the other shards are, for who came this way.
  void write_shard_map(wire::FrameWriter& frame) const;
  uint64_t codecs() const noexcept { return codecs_; }
  std::string_view name_space() const noexcept { return namespace_; }
  // An owner of holds as the store knows it: within the namespace, so that no other can name it.
  uint64_t owner_of(uint64_t owner) const noexcept;
  std::vector<Handle>& handles() noexcept { return handles_; }
  Credit& get_credit() noexcept { return get_credit_; }
  Credit& put_credit() noexcept { return put_credit_; }
  // Payload of a put has landed where it was granted.
  void note_landed(uint64_t bytes) noexcept;
  // For the shard, while others wait for memory. How fast what was granted has been filled since mark_pace(), `us` ago: 1 and
  // more is fast enough, and so is whoever had nothing then or has nothing now.
  void mark_pace() noexcept;
  double put_pace(uint64_t us) const noexcept;
  // Ends what its puts were granted and have not filled, and how much it gives back with that.
  uint64_t take_back_puts();
  // Of the memory of requests: what those of this connection have (request_memory.h).
  uint64_t& request_bytes() noexcept { return request_bytes_; }
  // Bytes of puts that came before the first Want of each.
  uint64_t& early_bytes() noexcept { return early_bytes_; }
  ChunkLanding& landing() noexcept { return landing_; }

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
  void send(ConstBytes frames);

  // For requests.
  void enrol(Request& request);
  void request_finished(Request& request) noexcept;
  void strike(Request& request) noexcept;
  Request* find(uint64_t id) const noexcept;
  // Of the request whose frame is being shown: its go_on() is called at this connection's turns, and no frame is shown before
  // it has no more to do, or has finished.
  void leave_work(Request& request) noexcept;
  // It has, or may have, a chunk to send.
  void offer_chunks(Request& request);
  // Some was given back: those who wait go on at the end of the turn.
  void credit_returned();
  void resume_waiters();

  Status on_frame(const wire::Header& header, ConstBytes body, net::Landing* landing) override;
  void on_landed(ConstBytes piece, size_t skipped) override { landing_.landed(piece, skipped); }
  Status on_chunk_end() override;
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
    wire::AnswerReason refused;  // Pending: it parses
    const char* sentence = "";
  };
  static Greeting parse_greeting(ConstBytes body);
  Status on_hello(const wire::Header& header, ConstBytes body);
  void refuse_hello(uint64_t id, wire::AnswerReason status, std::string_view sentence);
  Status on_request(wire::Opcode opcode, uint64_t id, ConstBytes body);
  Status on_chunk(const wire::Header& header, ConstBytes body, net::Landing* landing);
  static void on_hello_late(void* self);
  Request* next_sender() noexcept;
  void watch_sending();
  static void on_send_watched(void* self);

  Shard& shard_;
  net::FrameStream stream_;
  ShardMap map_;
  net::Timer hello_timer_;
  net::Timer send_timer_;     // runs while something is queued, or sent without a copy and held
  uint64_t let_go_mark_ = 0;  // what had left, or was given back, when it was armed
  uint64_t to_go_mark_ = 0;   // what had not
  std::string peer_;
  uint64_t heard_us_;
  std::string namespace_;
  uint64_t codecs_ = 0;
  std::vector<Handle> handles_;
  std::vector<Request*> requests_;  // admitted, and finished ones that something still refers to
  std::vector<Request*> senders_;
  Request* working_ = nullptr;  // it has left work
  Credit get_credit_;
  Credit put_credit_;
  uint64_t put_limit_bytes_;  // of the put credit: less after its memory was taken back, until it has shown better
  uint64_t landed_bytes_ = 0;
  uint64_t landed_mark_ = 0;
  uint64_t granted_mark_ = 0;
  uint32_t slow_looks_ = 0;  // of the shard's, in a row
  uint64_t early_bytes_ = 0;
  uint64_t request_bytes_ = 0;  // buffer_bytes_ of them are the stream's
  uint64_t buffer_bytes_ = 0;
  ChunkLanding landing_;
  size_t at_ = 0;  // in the shard's list
  uint32_t in_flight_ = 0;
  uint32_t chunks_ = 0;
  State state_ = State::AwaitsHello;
  bool admin_;
  bool asked_ = false;
  bool dirty_ = false;
  bool counted_ = false;
  bool unread_ = false;  // more than kUnreadBytesMax: reading is paused
};

}  // namespace halfstep::shard
