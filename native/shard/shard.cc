#include "shard/shard.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/heap.h"
#include "net/shm_setup.h"
#include "net/zero_copy_transport.h"
#include "shard/connection.h"
#include "shard/connection_limit.h"
#include "shard/listener.h"
#include "store/account/events.h"

namespace halfstep::shard {
namespace {

constexpr uint64_t kWaitUsMax = 1'000'000;
// How often it is looked at who fills what was granted, while others wait for memory.
constexpr uint64_t kPaceUs = 500'000;
// A look that is later than this says more of us than of them.
constexpr uint64_t kPaceLateUs = kPaceUs / 10;
constexpr uint32_t kSlowLooksMin = 2;  // in a row, before a grant is taken back
// What is kept of the buffer for frames, and how much the memory of requests must have shrunk for the heap to be given back,
// which walks all of it.
constexpr size_t kFrameBufferKept = 256 * KiB;
constexpr uint64_t kPeakBytesMin = 16 * MiB;
// A frame that came in part and has less is ended for memory only where none has more.
constexpr uint64_t kPartBytesMin = 16 * KiB;
// What idle connections may have without being looked after.
constexpr uint64_t kIdleBytesMax = 1 * MiB;
// Turns that connections get to say that they are closed.
constexpr int kClosingTurns = 1000;

// What kernel and NIC still read of ended connections is memory that nobody's credit counts. Each has no more than its credit
// was, and together those that wait for their peers have a quarter of the arena.
size_t lingering_max(const Config& config, const Arena& arena) {
  const uint64_t most = std::max({config.connection_credit_bytes, config.get_credit_bytes_max, uint64_t{1}});
  return std::max<size_t>(arena.facts().bytes / 4 / most, 1);
}

std::string why_unclean(Status closing) {
  const std::string code(code_name(closing.code()));
  if (closing == Code::NoSpace) return code + ": some blocks found no segment to be written to, all are held or bad";
  return "closing the store: " + code + (closing.detail() != 0 ? ", " + errno_name(closing.detail()) : "");
}

std::string mebibytes(uint64_t bytes) { return std::to_string(bytes) + " (" + std::to_string(bytes / MiB) + " MiB)"; }

}  // namespace

// The engine's eventfd only ends the wait: every turn polls the engine.
class Shard::EngineWatch final : public net::Watch {
 public:
  void on_ready(uint32_t) override {}
};

Shard::Shard(const Setup& setup)
    : ConnectionHost(*setup.config, *setup.clock),
      setup_(setup),
      ring_graveyard_(loop_, setup.config->shm_memory_bytes / setup.shards),
      zero_copy_linger_(loop_, lingering_max(*setup.config, *setup.arena)),
      rdma_rings_(loop_, {.verbs = setup.config->rdma.verbs,
                          .budget = setup.rdma_budget,
                          .ring_bytes = setup.config->rdma.ring_bytes,
                          .payload = setup.arena->bytes()}),
      slots_(*setup.arena),
      tidy_timer_(&Shard::on_tidy, this),
      pace_timer_(&Shard::on_pace, this) {}

Shard::~Shard() {
  listeners_.clear();
  connections_.clear();
  // A start that ends half-way may have reads under way: what they write to goes with the store.
  while (engine_ != nullptr && engine_->in_flight() > 0) {
    engine_->flush_submissions();
    engine_->wait();
    engine_->poll();
  }
  // From here on nobody writes to the arena, not for the store either: what the kernel still reads stays as it is.
  zero_copy_linger_.close_all();
  rdma_rings_.drop_all();
  if (engine_watch_ != nullptr) loop_.remove(engine_->wake_descriptor(), engine_watch_.get());
}

// ---- Start ---------------------------------------------------------------------------------------------------------------

Fault Shard::open() {
  zero_copy_on_ = config_.zero_copy != ZeroCopy::Off && net::zero_copy_possible();
  if (const Status status = loop_.open(); !status.ok()) return {status, "epoll or eventfd: " + errno_name(status.detail())};
  if (Fault fault = setup_.open_engine(&engine_); !fault.ok()) return fault;
  const auto wake = [this] { loop_.wake(); };
  if (Fault fault = setup_.open_store(*engine_, slots_, wake, &opened_store_); !fault.ok()) return fault;
  store_ = opened_store_.get();
  if (setup_.decode_arena != nullptr) {
    decoder_ = std::make_unique<Decoder>(*setup_.decode_pool, *setup_.decode_arena, wake);
  }
  if (Fault fault = check_memory(); !fault.ok()) return fault;
  const auto memory_bytes = static_cast<double>(slots_.capacity_bytes());
  get_credits_.memory_bytes = static_cast<uint64_t>(memory_bytes * (1 - config_.store.write_share));
  put_credits_.memory_bytes = static_cast<uint64_t>(memory_bytes * config_.store.write_share);
  store_->set_on_memory([this] { memory_freed_ = true; });
  if (const int descriptor = engine_->wake_descriptor(); descriptor >= 0) {
    engine_watch_ = std::make_unique<EngineWatch>();
    if (const Status status = loop_.add(descriptor, EPOLLIN | EPOLLET, engine_watch_.get()); !status.ok()) {
      engine_watch_ = nullptr;
      return {status, "watching the engine's eventfd: " + errno_name(status.detail())};
    }
  }
  hello_.shards = static_cast<uint16_t>(setup_.shards);
  hello_.shard = setup_.number;
  pools_.elsewhere = dynamic_cast<AsksFirst*>(store_);
  // What is stored elsewhere is not told here: a wait for it would find no end. And a get begins when there is an answer from
  // there, by which time the templates that it names may be others.
  hello_.features = pools_.elsewhere != nullptr ? 0 : wire::kFeatureWait | wire::kFeaturePlace | wire::kFeaturePlaceKeys;
  hello_.features |= wire::kFeaturePrefetchKind;
  // Coded parts are stored as they come: decoding is the clients' affair.
  hello_.codecs = pools_.elsewhere != nullptr ? pools_.elsewhere->codecs() : ~uint64_t{0};
  hello_.store_uuid = store_->uuid();
  hello_.boot_id = setup_.boot_id;
  hello_.block_bytes_max = store_->geometry().block_bytes_max;
  hello_.lease_ms_max = static_cast<uint32_t>(std::min<uint64_t>(config_.store.lease_ms_max, UINT32_MAX));
  return {};
}

// The store was made for an arena; in a smaller one its largest block would wait for ever.
Fault Shard::check_memory() const {
  const double share = config_.store.write_share;
  const auto block = static_cast<double>(SlotPool::held_bytes(uint64_t{store_->geometry().block_bytes_max} + kPageBytes));
  const auto smallest = round_up(static_cast<uint64_t>(std::max(block / share, block / (1 - share))) + 1, 2 * MiB);
  if (slots_.capacity_bytes() >= smallest) return {};
  const uint32_t shards = setup_.shards;
  return {Code::Invalid, "arena=" + mebibytes(slots_.capacity_bytes() * shards) + ": blocks of this store are up to " +
                             mebibytes(store_->geometry().block_bytes_max) +
                             (shards == 1 ? "" : ", and each of its " + std::to_string(shards) + " shards has an arena") +
                             "; the smallest is " + mebibytes(smallest * shards)};
}

Fault Shard::listen(std::vector<ListeningSocket> sockets) {
  for (ListeningSocket& socket : sockets) {
    if (net::is_unix_socket(socket.descriptor)) kept_for_unix_ = kept_for_unix(config_.connections_max);
    const auto on_accepted = [this](const net::Accepted& peer, const ShardMap& map) { return accepted(peer, map); };
    listeners_.push_back(std::make_unique<Listener>(loop_, std::move(socket), on_accepted));
  }
  for (const auto& listener : listeners_) {
    if (const Status status = listener->start(); !status.ok()) {
      return {status, "watching a listening socket: " + errno_name(status.detail())};
    }
  }
  return {};
}

// ---- Turns ---------------------------------------------------------------------------------------------------------------

void Shard::run(std::string* why, Metrics* last) {
  why->clear();
  // A store that another process has taken is of no use to anybody here: who needs it finds out, and whoever restarts us is
  // told.
  while (!store_->lost() && (!stopping_ || (counts_.requests_open != 0 && loop_.now_us() < stop_by_us_))) turn();
  if (store_->lost())
    *why =
        "another process has taken the store (the start number in its header is not ours): nothing is written to it any more; "
        "serve it once";
  close_connections();
  if (decoder_ != nullptr) {
    decoder_->wait_idle();
    decoder_->turn();
  }
  {
    const std::lock_guard lock(posted_mutex_);
    ended_ = true;
  }
  run_posted();
  collect(last);
  if (const Status status = store_->close(); !status.ok() && why->empty()) *why = why_unclean(status);
}

void Shard::turn() {
  loop_.turn(wait_us());
  run_posted();
  engine_->poll();
  store_->turn();
  if (decoder_ != nullptr) decoder_->turn();
  if (recovering_ && !store_->recovering()) {
    recovering_ = false;
    key_waiters_.look_again();  // what was found is there, and nobody stored it
    give_heap_back();
  }
  look_at_cleared();
  end_of_turn();
  engine_->flush_submissions();
}

// Who waits for a block of a layout that was cleared, or of a namespace that was deleted, by whichever shard, waits in vain.
void Shard::look_at_cleared() noexcept {
  const uint64_t cleared = store_->events().cleared();
  if (std::exchange(cleared_seen_, cleared) != cleared) key_waiters_.look_again();
}

uint64_t Shard::wait_us() const {
  if (memory_freed_ || key_waiters_.any_ready() || engine_->ready() || !dirty_.empty() || !dirty_connections_.empty()) return 0;
  if (engine_watch_ == nullptr && engine_->in_flight() != 0) return 0;
  const uint64_t now = loop_.now_us();
  const uint64_t next = store_->next_turn_us();
  uint64_t wait = next <= now ? 0 : std::min(next - now, kWaitUsMax);
  if (stopping_) wait = std::min(wait, stop_by_us_ > now ? stop_by_us_ - now : 0);
  return wait;
}

// What the call-backs of this turn have left to do, where no object is in the middle of anything.
void Shard::end_of_turn() {
  key_waiters_.wake();
  if (memory_freed_) {
    memory_freed_ = false;
    read_waiters_.resume();
    write_waiters_.resume();
  }
  if (decoder_ != nullptr) decoder_->resume();
  for (size_t i = 0; i < dirty_connections_.size(); ++i) {
    if (dirty_connections_[i] != nullptr) dirty_connections_[i]->resume_waiters();
  }
  dirty_connections_.clear();
  for (size_t i = 0; i < dirty_.size(); ++i) {
    Request* request = dirty_[i];
    if (request == nullptr) continue;
    dirty_[i] = nullptr;
    request->dirty_ = false;
    request->flush();
  }
  dirty_.clear();
}

bool Shard::post(std::function<void()> call) {
  const std::lock_guard lock(posted_mutex_);
  if (ended_) return false;
  posted_.push_back(std::move(call));
  loop_.wake();  // under the lock: once it is given back the shard may end, and its loop with it
  return true;
}

void Shard::run_posted() {
  std::vector<std::function<void()>> calls;
  {
    const std::lock_guard lock(posted_mutex_);
    calls.swap(posted_);
  }
  for (const auto& call : calls) call();
}

// Clients can cause it at will, so one line a minute goes to the daemon's log (stderr); all are counted.
void Shard::tell_of_rdma(const std::string& what) {
  constexpr uint64_t kPauseUs = 60'000'000;
  const uint64_t now_us = loop_.now_us();
  if (rdma_told_us_ != 0 && now_us - rdma_told_us_ < kPauseUs) return;
  rdma_told_us_ = now_us;
  std::fprintf(stderr, "halfstep: %s\n", what.c_str());
}

// ---- Stop ----------------------------------------------------------------------------------------------------------------

void Shard::stop(uint32_t grace_ms) {
  if (stopping_) return;
  stopping_ = true;
  stop_by_us_ = loop_.now_us() + uint64_t{grace_ms} * 1000;
  listeners_.clear();
  key_waiters_.stop();
}

void Shard::close_connections() {
  listeners_.clear();
  zero_copy_linger_.be_patient();  // the last answers must arrive, and only the store's own last pages want memory now
  for (const auto& connection : connections_) connection->stream().abort(Code::Closed, "the daemon is stopping");
  for (int turns = 0; turns < kClosingTurns && (!connections_.empty() || rdma_rings_.lingering() != 0); ++turns) {
    loop_.turn(0);
    end_of_turn();
  }
}

void Shard::collect(Metrics* out) {
  collect_own(out);
  const std::vector<store::NamespaceInfo> all = namespaces();
  collect_namespaces(all, out);
  coding_tally_.keep(all);
  for (const store::NamespaceInfo& info : all) coding_tally_.collect(info.name, out);
  collect_stocks(store_->stocks(), out);
}

void Shard::collect_own(Metrics* out) {
  Counts now = counts_;
  for (const auto& connection : connections_) {
    now.bytes_received += connection->stream().received_bytes();
    now.bytes_sent += connection->stream().sent_bytes();
    now.connections_shm += connection->stream().shared_memory() ? 1 : 0;
    now.connections_rdma += connection->stream().rdma() ? 1 : 0;
    if (connection->stream().rdma()) continue;  // no kernel copies, or holds, anything of it
    now.connections_zero_copy += connection->stream().zero_copy() ? 1 : 0;
    now.zero_copy_held_bytes += connection->stream().held_bytes();
  }
  now.rdma = rdma_rings_.counts();
  now.rdma_pinned_bytes = setup_.rdma_budget->used_bytes();
  now.connections_open = connections_.size();
  now.rings_refused = ring_graveyard_.refused();
  now.request_bytes = request_memory_.bytes();
  now.waits = key_waiters_.counts();
  if (decoder_ != nullptr) now.decodes = decoder_->counts_now();
  now.zero_copy_held_bytes += zero_copy_linger_.bytes();
  now.zero_copy_on = zero_copy_on_;
  now.zero_copy = zero_copy_linger_.counts();
  now.collect(store_->counters(), store_->gauges(), store_->recovery(), *engine_, out);
  if (setup_.drive != nullptr) collect_drive(*setup_.drive, out);
  collect_events(store_->events(), out);
  // Asked anew: pages may move. Some microseconds for so few, and a kernel that refuses is not asked again.
  for (const auto& [of, memory] : {std::pair("arena", ConstBytes(setup_.arena->bytes())), {"index", store_->index_memory()}}) {
    numa::Pages pages;
    tells_nodes_ = tells_nodes_ && numa::sample_pages(memory, kPagesSampled, &pages).ok();
    collect_pages(of, pages, out);
  }
}

std::vector<store::NamespaceInfo> Shard::namespaces() const {
  std::vector<store::NamespaceInfo> out = store_->namespaces();
  // What the whole store has is told once, so that the shards' numbers may be added up.
  for (store::NamespaceInfo& info : out) {
    if (setup_.number == 0) continue;
    info.quota_bytes = info.pin_budget_bytes = info.default_ttl_s = 0;
    info.sliding_ttl = false;
    info.coding = {};
  }
  return out;
}

// ---- Connections and requests --------------------------------------------------------------------------------------------

// What a shard sends as payload lies in its arena, and the owners of its releases are pooled: both outlive every connection.
std::unique_ptr<net::Transport> Shard::transport_to(const net::Accepted& peer) {
  const uint32_t ring_bytes = config_.shm_ring_bytes;
  if (peer.is_unix) return net::accepted_transport(peer.descriptor, {ring_bytes, ring_bytes}, ring_graveyard_);
  const ZeroCopy wanted = config_.zero_copy;
  const bool without_copies = wanted == ZeroCopy::Always || (wanted == ZeroCopy::Auto && !peer.peer_loopback);
  return without_copies ? net::zero_copy_transport(peer.descriptor, zero_copy_linger_) : net::socket_transport(peer.descriptor);
}

bool Shard::accepted(const net::Accepted& peer, const ShardMap& map) {
  ++counts_.connections_accepted;
  auto connection =
      std::make_unique<Connection>(*this, transport_to(peer), map, peer.peer_loopback || peer.peer_uid >= 0, peer_of(peer));
  Connection& opened = *connection;
  opened.at_ = connections_.size();
  connections_.push_back(std::move(connection));
  if (const Status status = opened.start(); !status.ok()) {
    opened.stream().close(status);
    return true;
  }
  return make_room(opened, peer.is_unix);
}

bool Shard::make_room(Connection& newcomer, bool is_unix) {
  const uint32_t most = config_.connections_max;
  const uint32_t limit = most - (is_unix ? 0 : kept_for_unix_);
  const auto open = [](const auto& connection) { return connection->stream().descriptor() >= 0; };
  if (connections_.size() <= limit || std::count_if(connections_.begin(), connections_.end(), open) <= limit) return true;
  const std::string reached = "connections=" + std::to_string(most) + " is reached";
  const uint64_t now_us = loop_.now_us();
  if (Connection* idle = who_gives_way(connections_, newcomer, now_us); idle != nullptr) {
    ++counts_.connections_gave_way;
    idle->refuse(reached + ": this connection has been idle for " + std::to_string((now_us - idle->heard_us()) / 1'000'000) +
                 " s and gives way to another");
    return false;
  }
  ++counts_.connections_refused;
  newcomer.refuse(
      reached + (is_unix || kept_for_unix_ == 0 ? "" : ", " + std::to_string(kept_for_unix_) + " of them for the unix socket") +
      ", and none of them is idle; raise it with halfstep serve --connections");
  return false;
}

void Shard::closed(Connection& connection) {
  freed_bytes_ += connection.buffer_bytes_;
  const size_t at = connection.at_;
  connections_.back()->at_ = at;
  std::swap(connections_[at], connections_.back());
  connections_.pop_back();
}

void Shard::add_dirty(Request& request) {
  request.dirty_at_ = dirty_.size();
  dirty_.push_back(&request);
}

void Shard::forget_dirty(Request& request) noexcept { dirty_[request.dirty_at_] = nullptr; }

void Shard::forget_dirty(Connection& connection) noexcept {
  std::replace(dirty_connections_.begin(), dirty_connections_.end(), &connection, static_cast<Connection*>(nullptr));
}

MemoryWaiters& Shard::memory_waiters(const Request& waiter) noexcept {
  return waiter.opcode() == wire::Opcode::Put ? write_waiters_ : read_waiters_;
}

void Shard::join_memory(Request& waiter) {
  memory_waiters(waiter).join(waiter);
  if (write_waiters_.empty() || pace_timer_.armed()) return;
  for (const auto& connection : connections_) connection->slow_looks_ = 0;
  watch_pace();
}

void Shard::leave_memory(Request& waiter) noexcept {
  if (memory_waiters(waiter).leave(waiter)) memory_freed_ = true;  // the next may need less
}

// ---- Memory of requests --------------------------------------------------------------------------------------------------

// Whichever is more, frames that came in part or unread answers, is what is relieved. Capacity that is empty is nobody's fault,
// and goes back by itself; up to four times what is unread it is taken by that, as a queue doubles and keeps what has left
// until it is half. Goes on until it is enough: whoever ends may have had little.
void Shard::relieve() {
  for (;;) {
    Connection* oldest = nullptr;        // of those whose frame came in part
    Connection* oldest_small = nullptr;  // to end it frees next to nothing
    Connection* deaf = nullptr;          // leaves most unread
    uint64_t part_bytes = 0;
    uint64_t unread_bytes = 0;
    uint64_t most_unread_bytes = Connection::kUnreadBytesMin;
    for (const auto& connection : connections_) {
      const net::FrameStream& stream = connection->stream_;
      if (stream.descriptor() < 0) continue;  // it ends anyway
      const uint64_t unread = std::min<uint64_t>(4 * stream.queued_bytes(), stream.unsent_memory_bytes());
      unread_bytes += unread;
      if (unread > most_unread_bytes) {
        most_unread_bytes = unread;
        deaf = connection.get();
      }
      if (stream.part_since_us() == UINT64_MAX) continue;
      const uint64_t part = stream.memory_bytes() - stream.unsent_memory_bytes();
      part_bytes += part;
      Connection*& first = part >= kPartBytesMin ? oldest : oldest_small;
      if (first == nullptr || stream.part_since_us() < first->stream_.part_since_us()) first = connection.get();
    }
    if (part_bytes + unread_bytes <= request_memory_.buffer_bytes_max()) return;
    if (oldest == nullptr) oldest = oldest_small;
    Connection* out = deaf != nullptr && (unread_bytes > part_bytes || oldest == nullptr) ? deaf : oldest;
    if (out == nullptr) return;
    ++counts_.connections_relieved;
    out->refuse("frames that came in part and unread answers have more than " +
                std::to_string(request_memory_.buffer_bytes_max()) + " bytes of this shard's memory; this connection's " +
                (out == deaf ? "answers are the most that are unread" : "frame has been incomplete for longest"));
    out->on_turn_end();  // what it had in part is given back
  }
}

// Frees what pooled objects are too many, and has the allocator return what a burst has taken.
void Shard::on_tidy(void* self) {
  auto& shard = *static_cast<Shard*>(self);
  bool freed = shard.pools_.trim();
  if (shard.frame_buffer_.capacity() > kFrameBufferKept) {
    std::vector<std::byte>().swap(shard.frame_buffer_);
    freed = true;
  }
  const uint64_t now = shard.request_memory_.bytes();
  const bool shrunk = shard.request_memory_.take_peak() > now + kPeakBytesMin;
  if (freed || shrunk || shard.freed_bytes_ > kPeakBytesMin) {
    shard.freed_bytes_ = 0;
    give_heap_back();
  }
  if (shard.counts_.requests_open != 0 || now > kIdleBytesMax) shard.watch_memory();
}

// ---- Slow puts -----------------------------------------------------------------------------------------------------------

void Shard::watch_pace() {
  for (const auto& connection : connections_) connection->mark_pace();
  pace_due_us_ = loop_.now_us() + kPaceUs;
  loop_.arm(pace_timer_, pace_due_us_);
}

void Shard::on_pace(void* self) {
  auto* shard = static_cast<Shard*>(self);
  if (shard->write_waiters_.empty()) return;
  if (shard->loop_.now_us() <= shard->pace_due_us_ + kPaceLateUs) shard->take_back_slowest();
  shard->watch_pace();
}

// Memory that was granted and is not filled, from whoever is furthest behind, until those who wait could have theirs.
void Shard::take_back_slowest() {
  std::vector<std::pair<double, Connection*>> slow;
  for (const auto& connection : connections_) {
    const double pace = connection->put_pace(kPaceUs);
    connection->slow_looks_ = pace < 1 ? connection->slow_looks_ + 1 : 0;
    if (connection->slow_looks_ >= kSlowLooksMin) slow.emplace_back(pace, connection.get());
  }
  std::sort(slow.begin(), slow.end());
  const uint64_t wanted_bytes = write_waiters_.wanted_bytes(put_credits_.memory_bytes);
  uint64_t freed_bytes = 0;
  for (size_t i = 0; i < slow.size() && freed_bytes < wanted_bytes; ++i) freed_bytes += slow[i].second->take_back_puts();
}

}  // namespace halfstep::shard
