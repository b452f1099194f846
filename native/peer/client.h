// client.h — the client core: its loop, the connections to every shard, and the tickets under way.
// Submitters fill a ticket from the pool and leave it in the inbox; whoever turns the loop does everything else. That is a
// caller who waits, if nobody else has anything under way: a call then costs no switch of threads and its bytes arrive in the
// cache of who wants them. Else it is the client's own thread, which also takes over from callers that have gone away.
// A ticket waits until every shard has been reached or tried in vain once, or until its deadline; after that a shard without a
// connection is answered at once. Until a daemon has told its shards, all addresses of the one that was given count as one.
// A client has one store, the first that greets it, also where a name or a balancer leads to several: another one is taken only
// when no connection to the first is left, and, of a name with several addresses, only after those were tried again and again.
// Invariants: a ticket is finished exactly once, and only when no connection can touch its memory any more (the fence);
// between its start and that it is in the list `running_`.
// Thread: functions say whose they are; the client's thread is whoever holds baton_. mutex_ covers inbox and pool,
// state_mutex_ what other threads may ask about. Locks are taken in this order: baton_, then any one other.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/loop.h"
#include "net/socket.h"
#include "peer/connection.h"
#include "peer/connection_host.h"
#include "peer/device_work.h"
#include "peer/encoder.h"
#include "peer/fork.h"
#include "peer/halfstep.h"
#include "peer/options.h"
#include "peer/plan.h"
#include "peer/queue.h"
#include "peer/request.h"
#include "peer/ticket.h"

namespace halfstep::peer {

class Client final : public Exiting, public ConnectionHost, public TicketHost, public DeviceHost {
 public:
  // ---- Any thread
  static Fault open(Options options, std::shared_ptr<Client>* out);
  ~Client();

  // Ends what is in flight, then the connections and the thread. Queues may be polled afterwards. Whoever closes it beside
  // another thread returns with that one.
  void close();
  int register_layout(std::shared_ptr<const wire::Layout> layout);
  std::shared_ptr<const wire::Layout> layout(int handle);
  // How blocks of that layout are coded; null: they are not, by this client.
  std::shared_ptr<const LayoutCoding> coding(int handle);
  // NoSpace: there are as many as there may be. Closed: the client is.
  // `device`: whose memory it is, a CUDA device's ordinal; -1: the host's.
  Fault open_region(Bytes memory, int device, std::shared_ptr<DirectRegion>* out);
  // Returns when no ticket uses it, and no device knows it.
  void close_region(DirectRegion& region);
  // Where all of a get's target lies in regions: says so, and holds them for its ticket.
  void place(Section& section, Ticket& ticket);
  // A queue is the client's to end, until it is forgotten.
  void remember_queue(Queue& queue);
  void forget_queue(Queue& queue);
  // Null when the client or the queue is closed. The ticket is submitted or withdrawn next.
  Ticket* acquire(Queue& queue);
  void withdraw(Ticket& ticket);
  void recycle(Ticket& ticket) override;
  void submit(Ticket& ticket);
  size_t poll(Queue& queue, hs_event* events, size_t max);
  // Any number of threads may be in it.
  size_t wait(Queue& queue, hs_event* events, size_t max, uint64_t timeout_us, uint64_t nudges_seen);
  // Every thread that waits for the queue returns.
  void nudge(Queue& queue);
  // From here on its events come without anybody waiting for them.
  int watch(Queue& queue);
  void cancel(hs_ticket id);
  // It takes no more tickets; returns when those that it has are over.
  void end_queue(Queue& queue);
  int wait_ready(uint32_t timeout_ms, std::string* why);
  void get_facts(hs_client_facts* out);
  size_t get_loads(hs_shard_load* out, size_t max);
  uint64_t now_us() const noexcept { return clock_.now_us(); }
  // What blocks travel by: of the inputs of a choice whether to code them, link and service.
  CodingInputs path_speeds();
  // Its threads take nothing more; an encoder's end what they have begun.
  void stop_for_exit() noexcept override;

  // ---- The client's thread
  void on_attempt_failed(const Connection& connection, const std::string& what) override;
  void on_rings_refused(const Connection& connection, const std::string& what) override;
  void on_attempt_over(const Connection& connection) override;
  void on_refused(wire::Reason reason, const std::string& what) override;
  void on_layout_refused(const std::string& what) override;
  std::string on_greeted(Connection& connection, const wire::PackedArray<wire::ShardAddress>& map,
                         const wire::ShardHostsView& hosts) override;
  void on_coding(const wire::CodingRecord& coding) override;
  void on_connection_up(Connection& connection, bool newly) override;
  void on_connection_lost(Connection& connection, const std::string& what) override;
  void on_silence(const std::string& what) override;
  void on_load(uint32_t shard, const wire::LoadRecord& load) override;
  void count_traffic(uint64_t received, uint64_t sent, uint64_t failures, uint64_t undecoded) noexcept override;
  void count_not_waited() noexcept override;
  void tell_progress(Ticket& ticket) override;
  void on_request_over(Request& request) override;
  void recycle(Request& request) override;
  void on_payload_released(Ticket& ticket) override;
  void on_placement_over(Ticket& ticket) override;
  void on_placement_refused(const std::string& what) override;
  void count_placed(uint64_t bytes, uint64_t gpu_bytes) noexcept override {
    placed_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    gpu_placed_bytes_.fetch_add(gpu_bytes, std::memory_order_relaxed);
  }
  void on_device_gone(const rdma::Device& device) override;
  void count_placing_key() noexcept override { placing_keys_.fetch_add(1, std::memory_order_relaxed); }
  void on_gates(Ticket& ticket, bool open) override;
  void on_staged(Ticket& ticket, bool ok) override;
  void on_copied(Ticket& ticket) override;
  DeviceWork& devices() noexcept override { return devices_; }  // any thread

 private:
  // How long bytes of a put that are in a socket's queue may outlast their ticket before their connection is ended.
  static constexpr uint64_t kFenceUs = 10'000;
  struct ShardPort {
    uint16_t port = 0;
    std::string host;  // empty: that of the address which the client was given
    bool operator==(const ShardPort&) const = default;
  };
  struct Link {  // one shard
    net::Address address;
    bool reached = false;  // a connection of it has been up
    bool tried = false;    // each connection of it has tried each address in vain
    std::string failure;   // of its latest attempt while it was never reached
    std::vector<std::unique_ptr<Connection>> connections;
    std::unique_ptr<Connection> climber;  // tries whether there is a path over RDMA again (client_climb.cc)
  };
  // A queue that is being closed, and the newest ticket it can have: when this is read, another queue may have its address.
  struct Closing {
    Queue* queue = nullptr;
    hs_ticket newest = 0;
  };
  struct Encoded {  // a piece that its encoder has let go of
    Ticket* ticket = nullptr;
    uint32_t piece = 0;
  };
  struct Inbox {
    std::vector<Ticket*> submitted;
    std::vector<Encoded> encoded;
    std::vector<hs_ticket> cancelled;
    std::vector<Closing> closing;
    bool layouts = false;
    bool empty() const noexcept {
      return submitted.empty() && encoded.empty() && cancelled.empty() && closing.empty() && !layouts;
    }
  };

  explicit Client(Options options);
  Fault start();
  void run();
  // A caller turns until `queue` calls it or the time has come, once at least. False: it is not for callers to do so now.
  bool turn_for(Queue& queue, uint64_t now_us, uint64_t until_us, uint64_t nudges_seen);
  void after_turn();
  void send_off(Queue& queue);
  void leave(std::unique_lock<std::mutex> baton, Queue& queue);
  void post(void (*fill)(Inbox& inbox, void* what), void* what);
  void take_inbox();
  void take_layouts();

  // client_tickets.cc
  void begin(Ticket& ticket);
  // One that waits is coded or dispatched, if its time has come.
  void go_on(Ticket& ticket);
  // Each request of it is given out when its items are coded.
  void encode(Ticket& ticket);
  void on_encoded(Ticket& ticket, uint32_t piece);
  void dispatch(Ticket& ticket);
  void cut(Ticket& ticket, uint64_t request_bytes_max);
  void give(Request& request);
  void end(Ticket& ticket, wire::AnswerReason why);
  // No request of it is left: finished, or fenced first.
  void conclude(Ticket& ticket);
  void finish(Ticket& ticket);
  void finish_if_fenced(Ticket& ticket);
  static void on_deadline(void* ticket);
  void end_all(wire::AnswerReason why);

  // link.cc: connections
  void open_seed();
  void open_link(Link& link, uint32_t shard);
  void sweep_regions();
  void drop_regions();
  void forget_map();
  void retire_all();
  std::string take_store(const Connection& connection);
  void tell_unreached();
  std::string remedy_of(uint32_t shard) const;
  bool reached() const noexcept;
  // Some connection is up.
  bool connected() const noexcept;
  void dispatch_waiting();
  void tell_error(const std::string& what);
  void tell_state();
  static Connection* choose(Link& link) noexcept;
  static wire::Reason why_none(const Link& link) noexcept;
  void sweep_retired();

  // client_climb.cc: back from TCP to RDMA
  static bool fell_back(const Link& link) noexcept;
  void watch_for_rdma();
  static void on_climb(void* self);
  void settle_climber(Connection& connection);
  void retire_climber(const Connection& connection);
  void sweep_leaving();
  void stop_connections();

  std::thread thread_;
  std::atomic<bool> stopping_{false};

  std::mutex mutex_;
  Inbox inbox_;
  std::atomic<bool> inbox_waits_{false};  // it is not empty; whoever turns asks each time, and without the lock
  bool closed_ = false;
  bool over_ = false;  // close() has done all that it does
  std::condition_variable over_changed_;
  std::vector<Queue*> queues_;
  std::vector<std::unique_ptr<Ticket>> tickets_;  // by place
  std::vector<uint32_t> idle_tickets_;
  uint64_t ticket_serial_ = 0;
  std::vector<std::shared_ptr<const wire::Layout>> all_layouts_;
  std::vector<std::shared_ptr<const LayoutCoding>> codings_;  // of them; null: raw
  std::atomic<uint32_t> open_tickets_{0};
  std::vector<std::shared_ptr<DirectRegion>> regions_;  // by number; null: free
  std::atomic<bool> has_regions_{false};
  std::atomic<bool> regions_closing_{false};
  std::condition_variable regions_changed_;

  std::mutex baton_;                       // whoever turns the loop
  std::atomic<bool> caller_waits_{false};  // who has it is a caller who stays for a while

  DeviceWork devices_;

  // Of whoever turns the loop.
  net::BusyPoll callers_looks_;    // what our own thread learns is the loop's: to it a caller on its core is a crowd
  uint64_t called_at_us_ = 0;      // when a caller last turned, or could have
  bool ended_for_caller_ = false;  // a ticket, since then, so that one may come
  Inbox taken_;
  Ticket* running_ = nullptr;  // in the order of submission
  Ticket* running_last_ = nullptr;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> idle_requests_;
  std::vector<Request*> given_;
  bool map_known_ = false;
  std::vector<Link> links_;
  std::vector<ShardPort> ports_;  // of the map
  std::array<std::byte, 16> store_uuid_{};
  std::vector<std::unique_ptr<Connection>> retired_;
  std::vector<std::unique_ptr<Connection>> leaving_;  // another has their place: retired when what they have under way is over
  static constexpr uint64_t kClimbUsMin = 1'000'000;
  static constexpr uint64_t kClimbUsMax = 60'000'000;
  net::Timer climb_timer_{&Client::on_climb, this};
  uint64_t climb_wait_us_ = kClimbUsMin;
  uint32_t climbs_ = 0;
  bool refused_ = false;
  wire::Reason refusal_ = wire::Reason::None;

  // What others may ask.
  std::mutex state_mutex_;
  std::condition_variable state_changed_;
  bool ready_ = false;
  size_t layouts_ready_ = 0;
  bool told_refused_ = false;
  bool told_closed_ = false;
  hs_client_facts facts_{};
  std::vector<hs_shard_load> loads_;
  std::atomic<uint64_t> link_bytes_per_s_{0};
  PeakRate link_rate_;  // the client thread's
  std::atomic<uint64_t> bytes_received_{0};
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> checksum_failures_{0};
  std::atomic<uint64_t> decode_failures_{0};
  std::atomic<uint64_t> not_waited_{0};
  std::atomic<uint64_t> placed_bytes_{0};
  std::atomic<uint64_t> gpu_placed_bytes_{0};
  std::atomic<uint64_t> placing_keys_{0};

  Encoder encoder_;  // last: its threads end before what they call
};

}  // namespace halfstep::peer
