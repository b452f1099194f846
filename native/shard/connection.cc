#include "shard/connection.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "shard/commands.h"
#include "shard/connection_host.h"
#include "shard/reply.h"
#include "shard/request_put.h"

namespace halfstep::shard {

using wire::Answer;
using wire::Opcode;
using wire::Reason;
using wire::Tlv;

namespace {

constexpr uint64_t kHelloWaitUs = 5'000'000;
// How long a refused client may take to read why.
constexpr uint64_t kRefusedWaitUs = 1'000'000;
// Of what is queued, or was sent without a copy, so much must leave or be acknowledged, or all of it, in this time: at least
// once, at most twice that. 16 KiB/s.
constexpr uint64_t kSendStallUs = 10'000'000;
constexpr uint64_t kSendBytesMin = 160 * KiB;
// What a connection may be granted after some was taken back, until it has filled more.
constexpr uint64_t kPutLimitBytesSlow = 1 * MiB;
// While others wait for memory, what was granted must come as fast as if all of it came in this time.
constexpr uint64_t kFillUs = 10'000'000;

// Requests that change nothing: not worth an answer that nobody reads (docs/wire-protocol.md, *Connection*).
bool only_asks(Opcode opcode, ConstBytes body, wire::RequestView* view) noexcept {
  switch (opcode) {
    case Opcode::Match: return !wire::parse_request(opcode, body, view).ok() || view->batch.hold_owner == 0;
    case Opcode::Get:
    case Opcode::List:
    case Opcode::Stat:
    case Opcode::LayoutOf: return true;
    default: return false;
  }
}

bool sent_by_clients(const wire::Header& header, bool pulls) noexcept {
  return wire::is_request(header.opcode) || header.opcode == static_cast<uint8_t>(Opcode::Chunk) ||
         (pulls && header.opcode == static_cast<uint8_t>(Opcode::Placed));
}

}  // namespace

Connection::Connection(ConnectionHost& shard, std::unique_ptr<net::Transport> transport, ShardMap map, bool admin,
                       std::string peer)
    : Client(shard, admin),
      shard_(shard),
      stream_(shard.loop(), std::move(transport), *this),
      map_(std::move(map)),
      hello_timer_(&Connection::on_hello_late, this),
      send_timer_(&Connection::on_send_watched, this),
      peer_(std::move(peer)),
      heard_us_(shard.loop().now_us()),
      put_limit_bytes_(shard.config().connection_credit_bytes) {
  const uint64_t credit = shard.config().connection_credit_bytes;
  const uint64_t most = std::max(credit, shard.config().get_credit_bytes_max);
  get_credit_.open(credit, most, &shard.get_credits(), &shard.counts().credit_held_bytes);
  put_credit_.open(0, credit, &shard.put_credits(), &shard.counts().credit_held_bytes);
}

Connection::~Connection() = default;

Status Connection::start() {
  shard_.loop().arm(hello_timer_, shard_.loop().now_us() + kHelloWaitUs);
  stream_.limit_bodies(wire::kHelloBodyBytesMax, kBodyWaitUs,
                       "frame header: before Hello is answered a body has at most 16 KiB");
  return stream_.start();
}

Status Connection::violation(ProtocolError kind, Status why, std::string_view sentence) {
  if (!counted_) shard_.counts().protocol_error(kind);
  counted_ = true;
  stream_.abort(why, sentence);
  return why;
}

void Connection::refuse(std::string_view sentence) {
  counted_ = true;
  stream_.abort(Code::TooLarge, sentence);
}

void Connection::send(ConstBytes frames) {
  stream_.send(frames);
  watch_sending();
  if (unread_ || stream_.queued_bytes() <= kUnreadBytesMin) return;
  if (stream_.queued_bytes() <= std::clamp(4 * shard_.request_memory().free_bytes(), kUnreadBytesMin, kUnreadBytesMax)) return;
  unread_ = true;
  ++shard_.counts().connections_unread;
  stream_.pause_reading();
}

void Connection::read_or_rest() {
  if (unread_ || pulls_.full()) {
    stream_.pause_reading();
  } else {
    stream_.resume_reading();
  }
}

void Connection::watch_sending() {
  if (send_timer_.armed() || stream_.queued_bytes() + stream_.held_bytes() == 0) return;
  let_go_mark_ = stream_.let_go_bytes();
  to_go_mark_ = stream_.queued_bytes() + stream_.held_bytes();
  shard_.loop().arm(send_timer_, shard_.loop().now_us() + kSendStallUs);
}

void Connection::on_send_watched(void* self) {
  auto* connection = static_cast<Connection*>(self);
  net::FrameStream& stream = connection->stream_;
  const uint64_t gone = stream.let_go_bytes() - connection->let_go_mark_;
  if (stream.queued_bytes() + stream.held_bytes() != 0 && gone < std::min(connection->to_go_mark_, kSendBytesMin)) {
    ++connection->shard_.counts().connections_stalled;
    stream.close(Code::Closed);
    return;
  }
  connection->watch_sending();
}

void Connection::on_hello_late(void* self) {
  auto* connection = static_cast<Connection*>(self);
  if (connection->state_ == State::Refused) {
    connection->stream_.close(Code::Closed);
    return;
  }
  (void)connection->violation(ProtocolError::NoHello, Code::Late, "no Hello within 5 s");
}

// ---- Requests of this connection -----------------------------------------------------------------------------------------

void Connection::enrol(Request& request) {
  requests_.push_back(&request);
  ++in_flight_;
  shard_.request_admitted();
}

void Connection::request_finished(Request& request) noexcept {
  HALFSTEP_CHECK(in_flight_ > 0, in_flight_);
  --in_flight_;
  std::erase(senders_, &request);
  if (working_ == &request) working_ = nullptr;
}

void Connection::leave_work(Request& request) noexcept {
  working_ = &request;
  stream_.leave_work();
}

void Connection::strike(Request& request) noexcept {
  const auto at = std::find(requests_.begin(), requests_.end(), &request);
  if (at == requests_.end()) return;
  *at = requests_.back();
  requests_.pop_back();
}

Request* Connection::find(uint64_t id) const noexcept {
  for (Request* request : requests_) {
    if (request->id() == id && !request->finished()) return request;
  }
  return nullptr;
}

void Connection::offer_chunks(Request& request) {
  if (std::find(senders_.begin(), senders_.end(), &request) == senders_.end()) senders_.push_back(&request);
  stream_.ask_for_more();
}

Placement* Connection::make_placement() {
  if (placement_ == nullptr && stream_.rdma()) placement_ = std::make_unique<Placement>();
  return placement_.get();
}

void Connection::credit_returned() {
  if (dirty_ || !(get_credit_.awaited() || put_credit_.awaited())) return;
  dirty_ = true;
  shard_.add_dirty(*this);
}

void Connection::resume_waiters() {
  dirty_ = false;
  get_credit_.resume_waiters();
  put_credit_.resume_waiters();
}

void Connection::on_turn_end() {
  const uint64_t bytes = stream_.memory_bytes();
  if (bytes == buffer_bytes_) return;
  RequestMemory& memory = shard_.request_memory();
  memory.note_buffer(buffer_bytes_, bytes);
  request_bytes_ += bytes;
  HALFSTEP_CHECK(buffer_bytes_ <= request_bytes_, buffer_bytes_, request_bytes_);
  request_bytes_ -= buffer_bytes_;
  const bool more = bytes > buffer_bytes_;
  buffer_bytes_ = bytes;
  if (!more || stream_.descriptor() < 0) return;  // the Abort of one that ends is no reason to end others
  shard_.watch_memory();
  if (memory.buffers_exceeded()) shard_.relieve();
}

// ---- The pace of puts ----------------------------------------------------------------------------------------------------

void Connection::note_landed(uint64_t bytes) noexcept {
  landed_bytes_ += bytes;
  const uint64_t credit = shard_.config().connection_credit_bytes;
  if (put_limit_bytes_ >= credit) return;
  put_limit_bytes_ = std::min(credit, put_limit_bytes_ + bytes);
  put_credit_.set_limit(put_limit_bytes_);
}

void Connection::mark_pace() noexcept {
  landed_mark_ = landed_bytes_;
  granted_mark_ = put_credit_.used_bytes();
}

double Connection::put_pace(uint64_t us) const noexcept {
  const auto granted = static_cast<double>(std::min(granted_mark_, put_credit_.used_bytes()));
  if (granted == 0) return 1;
  return static_cast<double>(landed_bytes_ - landed_mark_) * static_cast<double>(kFillUs) / (granted * static_cast<double>(us));
}

uint64_t Connection::take_back_puts() {
  const uint64_t before = put_credit_.used_bytes();
  for (Request* request : requests_) {
    if (request->opcode() != Opcode::Put || request->finished()) continue;
    if (auto* put = static_cast<PutRequest*>(request); put->awaited_bytes() != 0) put->expire();
  }
  put_limit_bytes_ = std::min(put_limit_bytes_, kPutLimitBytesSlow);
  put_credit_.set_limit(put_limit_bytes_);
  ++shard_.counts().grants_taken_back;
  return before - put_credit_.used_bytes();
}

// Of the most urgent requests the one that has least to send: what is whole goes to work at the other end, and its memory comes
// back, while the others are still being read. Taking turns ends all of them late and at once, and the device rests meanwhile.
// Each fourth Chunk is of the oldest, which would else wait for as long as small ones come.
Request* Connection::next_sender() noexcept {
  const bool oldest = ++chunks_ % 4 == 0;
  const auto before = [oldest](const Request* a, const Request* b) {
    if (a->priority() != b->priority()) return a->priority() < b->priority();
    if (!oldest && a->bytes_to_send() != b->bytes_to_send()) return a->bytes_to_send() < b->bytes_to_send();
    return a->started_us() < b->started_us();
  };
  const auto next = std::min_element(senders_.begin(), senders_.end(), before);
  Request* request = *next;
  senders_.erase(next);
  return request;
}

void Connection::on_sendable() {
  if (unread_) {
    unread_ = false;
    read_or_rest();
  }
  while (!senders_.empty() && stream_.descriptor() >= 0 && stream_.queued_bytes() < stream_.send_low_bytes()) {
    if (placement_ != nullptr && stream_.zero_copy() && !stream_.place_room()) break;  // and is asked when there is some
    Request* request = next_sender();
    if (request->send_chunk()) senders_.push_back(request);
    if (stream_.turn_is_over()) {  // many small parts take long to gather
      if (!senders_.empty()) stream_.ask_for_more();
      break;
    }
  }
  watch_sending();
}

// ---- Frames --------------------------------------------------------------------------------------------------------------

Status Connection::on_frame(const wire::Header& header, ConstBytes body, net::Landing* landing) {
  const auto opcode = static_cast<Opcode>(header.opcode);
  heard_us_ = shard_.loop().turn_began_us();
  if (state_ == State::Refused) {
    landing_.begin_unwanted(shard_);
    landing->to_scratch(header.payload_bytes);
    return {};
  }
  if (state_ == State::AwaitsHello) {
    if (opcode == Opcode::Hello) return on_hello(header, body);
    return violation(ProtocolError::NoHello, Code::Invalid, "the first frame must be Hello");
  }
  if (opcode == Opcode::Abort) {
    stream_.close(Code::Closed);
    return {};
  }
  if (!sent_by_clients(header, pulls_put_)) {
    return violation(ProtocolError::Opcode, Code::Invalid, "this opcode is sent by servers only");
  }
  if (header.request_id == 0) return violation(ProtocolError::RequestId, Code::Invalid, "request_id=0 is reserved");
  if (opcode == Opcode::Chunk) return on_chunk(header, body, landing);
  if (opcode == Opcode::Placed) return on_placed(header, body);
  if (opcode == Opcode::Hello) return violation(ProtocolError::Hello, Code::Invalid, "a second Hello");
  if (find(header.request_id) != nullptr) {
    return violation(ProtocolError::RequestId, Code::Invalid, "this request_id is in flight already");
  }
  if (stream_.peer_gone() && only_asks(opcode, body, &shard_.request_view())) return {};
  asked_ = true;
  shard_.counts().request(opcode);
  if (shard_.stopping()) {
    answer_whole(*this, opcode, header.request_id, {Answer::Unavailable, Reason::Stopping}, "the daemon is stopping");
    return {};
  }
  // A cancel makes room: it is always heard.
  if (in_flight_ >= wire::kRequestsInFlightMax && opcode != Opcode::Cancel) {
    answer_whole(*this, opcode, header.request_id, {Answer::Rejected, Reason::Limit},
                 "requests_in_flight_max of this connection is reached");
    return {};
  }
  begin_command(shard_.pools(), *this, opcode, header.request_id, body);
  return {};
}

// Bytes for a request that has had its Final were under way when it was sent: they are dropped.
Status Connection::on_chunk(const wire::Header& header, ConstBytes body, net::Landing* landing) {
  wire::RunsView runs;
  if (!wire::parse_chunk(body, header.payload_bytes, &runs).ok()) {
    return violation(ProtocolError::Chunk, Code::Invalid, "Chunk: its runs do not parse");
  }
  Request* request = find(header.request_id);
  if (request == nullptr) {
    landing_.begin_unwanted(shard_);
    landing->to_scratch(header.payload_bytes);
    return {};
  }
  if (request->opcode() != Opcode::Put) {
    return violation(ProtocolError::Chunk, Code::Invalid, "Chunk: its request takes no payload");
  }
  const Status status = landing_.begin(shard_, static_cast<PutRequest&>(*request), runs, landing);
  return status.ok() ? status : payload_refused(status);
}

Status Connection::payload_refused(Status why) {
  switch (why.code()) {
    case Code::Throttled: return violation(ProtocolError::Credit, why, "put: more payload than was granted");
    case Code::NotFound:
      return violation(ProtocolError::Chunk, why, "Placed: the put has told of no place, or of no region there, for a run");
    case Code::TooLarge:
      return violation(
          ProtocolError::Chunk, why,
          "Placed: its runs lie in more than " + std::to_string(Pulls::kRunsMax) + " places of the client's memory");
    case Code::IoError: stream_.abort(why, "the device no longer reaches this server's memory"); return why;
    default: return violation(ProtocolError::Chunk, why, "Chunk: a run names no item of its request");
  }
}

// Of a request that has had its Final nothing is read.
Status Connection::on_placed(const wire::Header& header, ConstBytes body) {
  wire::RunsView runs;
  uint32_t bytes = 0;
  if (!wire::parse_placed(body, &runs, &bytes).ok()) {
    return violation(ProtocolError::Chunk, Code::Invalid, "Placed: its runs do not parse");
  }
  Request* request = find(header.request_id);
  if (request == nullptr) return {};
  if (request->opcode() != Opcode::Put) {
    return violation(ProtocolError::Chunk, Code::Invalid, "Placed: its request takes no payload");
  }
  const Status status = pulls_.begin(shard_, static_cast<PutRequest&>(*request), runs, stream_);
  if (!status.ok()) return payload_refused(status);
  if (pulls_.full()) read_or_rest();
  return {};
}

void Connection::on_pulled() {
  const bool full = pulls_.full();
  pulls_.landed();
  if (full && stream_.descriptor() >= 0) read_or_rest();
}

void Connection::divert_landing(const PutRequest& put) {
  if (landing_.divert(put)) stream_.divert_landing();
  pulls_.divert(put);
}

Status Connection::on_chunk_end() {
  landing_.forget();
  return {};
}

void Connection::on_closed(Status why) {
  Counts& counts = shard_.counts();
  // What the stream itself found wrong in a frame; what ends by itself, or by us, was counted or is no error.
  const bool by_peer = why != Code::Closed && why != Code::IoError && why != Code::Cancelled;
  if (by_peer && !counted_) counts.protocol_error(ProtocolError::Frame);
  counts.bytes_received += stream_.received_bytes();
  counts.bytes_sent += stream_.sent_bytes();
  landing_.forget();
  pulls_.drop();
  senders_.clear();
  working_ = nullptr;
  std::vector<Request*> requests;
  requests.swap(requests_);
  for (Request* request : requests) request->drop();
  get_credit_.close();
  put_credit_.close();
  shard_.request_memory().note_buffer(buffer_bytes_, 0);
  if (dirty_) shard_.forget_dirty(*this);
  shard_.closed(*this);  // destroys this
}

// ---- Hello ---------------------------------------------------------------------------------------------------------------

void Connection::refuse_hello(uint64_t id, wire::AnswerReason status, std::string_view sentence) {
  answer_whole(*this, Opcode::Hello, id, status, sentence);
  ++shard_.counts().connections_refused;
  state_ = State::Refused;
  shard_.loop().arm(hello_timer_, shard_.loop().now_us() + kRefusedWaitUs);
}

// A known TLV that does not belong, or one that must be understood and is not: as in any request.
Connection::Greeting Connection::parse_greeting(ConstBytes body) {
  Greeting out;
  const auto refuse = [&](Reason reason, const char* sentence) {
    if (out.refused.answer != Answer::Pending) return;
    out.refused = {Answer::Rejected, reason};
    out.sentence = sentence;
  };
  wire::TlvReader reader(body);
  wire::TlvView tlv;
  while (reader.next(&tlv)) {
    switch (static_cast<Tlv>(tlv.kind)) {
      case Tlv::HelloClient:
        if (out.has_client || !wire::parse_hello_client(tlv.value, &out.client).ok()) {
          refuse(Reason::Malformed, "hello: HelloClient: one of 24 bytes, version_min not above version_max");
        }
        out.has_client = true;
        break;
      case Tlv::NamespaceName:
        if (out.has_namespace || !wire::parse_namespace_name(tlv.value, &out.name_space).ok()) {
          refuse(Reason::Malformed, "hello: NamespaceName: one of 1 to 255 bytes of UTF-8 without control characters");
        }
        out.has_namespace = true;
        break;
      case Tlv::Authentication:
        if (out.authenticates) refuse(Reason::Malformed, "hello: Authentication comes once");
        out.authenticates = true;
        break;
      case Tlv::RdmaOffer:
        if (out.offers_rdma || !wire::parse_rdma_offer(tlv.value, &out.rdma).ok()) {
          refuse(Reason::Malformed, "hello: RdmaOffer: one, of 1 to 4 paths within their bounds");
        }
        out.offers_rdma = true;
        break;
      case Tlv::RdmaReads:
        if (out.reads.reads != 0 || !wire::parse_rdma_reads(tlv.value, &out.reads).ok()) {
          refuse(Reason::Malformed, "hello: RdmaReads: one, of 1 to 255 reads at once");
        }
        break;
      default:
        if (wire::is_known(tlv.kind)) {
          refuse(Reason::Malformed, "hello: it has a TLV that does not belong there");
        } else if ((tlv.kind & wire::kMustUnderstandTlv) != 0) {
          refuse(Reason::Unsupported, "hello: a TLV that must be understood is not known here");
        }
    }
  }
  if (!reader.status().ok()) refuse(Reason::Malformed, "hello: its TLVs do not parse");
  if (!out.has_client) refuse(Reason::Malformed, "hello: HelloClient is missing");
  return out;
}

Status Connection::on_hello(const wire::Header& header, ConstBytes body) {
  shard_.counts().request(Opcode::Hello);
  if (header.request_id == 0) return violation(ProtocolError::Hello, Code::Invalid, "Hello: request_id=0 is reserved");
  const Greeting greeting = parse_greeting(body);
  if (greeting.refused.answer != Answer::Pending) {
    shard_.counts().protocol_error(ProtocolError::Hello);
    counted_ = true;
    refuse_hello(header.request_id, greeting.refused, greeting.sentence);
    return {};
  }
  if (greeting.client.version_min > wire::kVersion || greeting.client.version_max < wire::kVersion) {
    refuse_hello(header.request_id, {Answer::Rejected, Reason::Version}, "this server speaks version 1 only");
    return {};
  }
  if (shard_.stopping()) {
    refuse_hello(header.request_id, {Answer::Unavailable, Reason::Stopping}, "the daemon is stopping");
    return {};
  }
  if (!shard_.store().has_namespace(greeting.name_space)) {
    const std::string sentence = "namespace \"" + std::string(greeting.name_space) + "\" does not exist; its operator makes it";
    refuse_hello(header.request_id, {Answer::Rejected, Reason::UnknownNamespace}, sentence);
    return {};
  }
  namespace_ = greeting.name_space;
  codecs_ = greeting.client.codecs;
  state_ = State::Open;
  stream_.limit_bodies(wire::kBodyBytesMax, kBodyWaitUs, {});
  shard_.loop().disarm(hello_timer_);
  shard_.counts().answer(Opcode::Hello, {Answer::Ok, Reason::None});
  Reply reply(*this, header.request_id);
  reply.whole({Answer::Ok, Reason::None});
  reply.frame().tlv(Tlv::HelloServer, shard_.hello());
  write_shard_map(reply.frame());
  for (const store::NamespaceInfo& info : shard_.store().namespaces()) {
    if (info.name != namespace_ || (info.coding.policy == 0 && info.coding.step_limit == 0)) continue;
    reply.frame().tlv(Tlv::NamespaceCoding, info.coding);
  }
  // Whoever says who they are is told that nobody looked.
  if (greeting.authenticates) reply.frame().tlv(Tlv::Authentication, wire::AuthenticationHead{});
  const bool changed = greeting.offers_rdma && answer_rdma(greeting, reply.frame());
  reply.send();
  // Nothing else is queued, for a client that offers has sent nothing but its Hello.
  if (changed) stream_.leave_by_socket();
  return {};
}

// ---- Rings over RDMA -----------------------------------------------------------------------------------------------------

constexpr const char* kRefused = "rings over RDMA refused, the connection stays on TCP: ";
constexpr const char* kCopied = "payload goes through a connection's rings by a copy, and into no direct region: ";

// True: the stream goes through rings from here on. Otherwise it is refused, with the reason in the frame: all that may fail
// here has been done when the client reads that it has a path. What a peer could write with is given to whom the listener lets
// in: without authentication that is this machine, and everybody where the operator said so.
bool Connection::answer_rdma(const Greeting& greeting, wire::FrameWriter& frame) {
  std::unique_ptr<net::RdmaEnd> end;
  wire::RdmaAnswerHead head{.version = 0};
  wire::RdmaPath path;
  std::string why;
  if (shard_.rdma_rings() == nullptr) {
    head.refusal = wire::RdmaRefusal::Off;
  } else if (!admin() && !shard_.config().insecure_listen) {
    head.refusal = wire::RdmaRefusal::Forbidden;
  } else {
    // Of a mount neither gets nor puts go past the rings.
    const bool places = (shard_.hello().features & wire::kFeaturePlace) != 0;
    const uint32_t reads_wanted = places ? greeting.reads.reads : 0;
    shard_.rdma_rings()->answer(stream_.descriptor(), greeting.rdma, reads_wanted, &end, &head, &path, &why);
  }
  bool changed = false;
  if (end != nullptr) {
    const uint32_t reads = end->reads_out();
    const Status status = change_to_rdma(std::move(end));
    changed = status.ok();
    pulls_put_ = changed && reads != 0;
    if (pulls_put_) frame.tlv(Tlv::RdmaReads, wire::RdmaReadsRecord{.reads = reads});
    if (!changed) {
      head = {.version = 0, .refusal = wire::RdmaRefusal::Device};
      why = "changing to rings: " + errno_name(status.detail());
    }
  }
  if (!changed) ++shard_.counts().rdma_refused;
  if (!why.empty()) shard_.tell_of_rdma((changed ? kCopied : kRefused) + why);
  frame.open_tlv(Tlv::RdmaAnswer);
  frame.value().put(head);
  if (changed) frame.value().put(path);
  frame.close_tlv();
  return changed;
}

Status Connection::change_to_rdma(std::unique_ptr<net::RdmaEnd> end) {
  std::unique_ptr<net::Transport> carrier;
  Status status = shard_.rdma_rings()->transport(std::move(end), stream_.descriptor(), 0, /*client=*/false, &carrier);
  if (status.ok()) status = stream_.change_carrier(std::move(carrier));
  return status;
}

void Connection::write_shard_map(wire::FrameWriter& frame) const {
  frame.open_tlv(Tlv::ShardMap);
  for (const wire::ShardAddress& address : *map_) frame.value().put(address);
  frame.close_tlv();
  frame.tlv(Tlv::ShardHosts, wire::ShardHostsHead{.epoch = shard_.store().start_number()});
}

}  // namespace halfstep::shard
