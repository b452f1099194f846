#include "peer/connection.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "peer/connection_host.h"
#include "peer/text.h"

namespace halfstep::peer {
namespace {

using wire::Answer;
using wire::Opcode;
using wire::Reason;

// Of what the daemon lets be in flight, slots that are kept for layouts. A Cancel needs none.
constexpr uint32_t kSparedSlots = 16;
static_assert(kSparedSlots > Connection::kLayoutsAskedMax);

// So much of the time that is left a daemon that waits gets less, or that share of it: its answer says what is there, and
// counts if it comes in time.
constexpr uint64_t kAnswerUs = 50'000;
constexpr uint64_t kAnswerShare = 8;

// What a request without payload weighs against one with.
constexpr uint64_t kRequestCostBytes = 4096;

}  // namespace

Connection::Connection(ConnectionHost& client, net::Address address, uint32_t shard, uint32_t lane)
    : client_(client), address_(std::move(address)), shard_(shard), lane_(lane), timer_(&Connection::on_timer, this) {}

Connection::~Connection() {
  if (connecting_ >= 0) {
    client_.loop().remove(connecting_, this);
    ::close(connecting_);
  }
}

// ---- Life ----------------------------------------------------------------------------------------------------------------

void Connection::start() { connect(); }

void Connection::start_later() { client_.loop().arm(timer_, client_.loop().now_us() + client_.options().backoff_us_min); }

void Connection::stop() {
  stopping_ = true;
  client_.loop().disarm(timer_);
  if (stream_) {
    stream_->abort(Code::Closed, {});
    return;  // on_closed() follows
  }
  if (connecting_ >= 0) {
    client_.loop().remove(connecting_, this);
    ::close(std::exchange(connecting_, -1));
  }
  state_ = State::Stopped;
}

void Connection::abort(Status why, const std::string& what) {
  if (!stream_) return;
  if (what_.empty()) what_ = what;
  stream_->abort(why, {});
}

void Connection::on_closed(Status why) {
  account();
  // Framing, checksums, lengths: what the stream itself found wrong.
  const bool malformed = why == Code::Invalid || why == Code::TooLarge || why == Code::Corrupt || why == Code::Unsupported;
  protocol_error_ = protocol_error_ || malformed;
  if (what_.empty() && malformed && state_ == State::Greeting) {
    what_ = "what came is no answer of protocol version " + std::to_string(wire::kVersion) + " (" + code_text(why) +
            "); is it halfstepd that listens there?";
  }
  if (what_.empty()) what_ = "connection closed: " + code_text(why);
  note_rdma_end(why);
  rdma_end_ = nullptr;
  lander_.drop();
  if (std::exchange(slot_awaited_, false)) client_.devices().forget(static_cast<SlotWaiter&>(*this));
  stream_.reset();
  state_ = State::Waiting;
  client_.on_connection_lost(*this, called() + ": " + what_);  // whoever hears of a lost request finds the reason there
  forget_places();
  while (!pending_.empty()) {
    Request* request = pending_.front();
    pending_.pop_front();
    fail(*request);
  }
  for (Request*& slot : slots_) {
    if (slot != nullptr) fail(*std::exchange(slot, nullptr));
  }
  load_bytes_ = 0;
  handles_.clear();
  layouts_.clear();
  layouts_open_ = 0;
  if (!std::exchange(was_up_, false)) ++turn_;  // one that was lost is looked for where it was
  wait_and_retry();
}

// ---- Handshake -----------------------------------------------------------------------------------------------------------

Status Connection::on_hello(ConstBytes body) {
  FinalNotes notes;
  if (Status s = take_notes(body, &notes); !s.ok()) return s;
  if (notes.whole.answer != Answer::Ok && notes.whole.answer != Answer::Pending) {
    what_ = "refused: " + std::string(hs_reason_name(static_cast<uint16_t>(notes.whole.reason)));
    if (!notes.reason.empty()) what_ += ", " + notes.reason;
    if (notes.whole.answer == Answer::Rejected) client_.on_refused(notes.whole.reason, called() + ": " + what_);
    return Code::Closed;
  }
  if (Status s = wire::parse_hello_server(notes.hello, &hello_); !s.ok()) return s;
  if (hello_.version != wire::kVersion) {
    what_ = "the daemon speaks protocol version " + std::to_string(hello_.version) + ", this client " +
            std::to_string(wire::kVersion) + "; use builds that share one";
    return Code::Unsupported;
  }
  wire::PackedArray<wire::ShardAddress> map;
  if (!notes.shard_map.empty()) {
    if (Status s = wire::parse_shard_map(notes.shard_map, &map); !s.ok()) return s;
  }
  wire::ShardHostsView hosts;
  if (!notes.shard_hosts.empty()) {
    if (Status s = wire::parse_shard_hosts(notes.shard_hosts, &hosts); !s.ok()) return s;
  }
  if (hello_.shards > 1 && map.size() != hello_.shards) return Code::Invalid;
  for (uint32_t s = 0; s < map.size(); ++s) {
    if (map[s].host > hosts.host_count || (map[s].host != 0 && map[s].port == 0)) return Code::Invalid;
  }
  free_slots_.clear();
  const uint32_t most = std::min(hello_.requests_in_flight_max, wire::kRequestsInFlightMax);
  const uint32_t slots = most > 2 * kSparedSlots ? most - kSparedSlots : std::max(most / 2, 1U);
  for (uint32_t i = slots; i > 0; --i) free_slots_.push_back(static_cast<uint8_t>(i - 1));
  sender_.open(hello_.early_credit_bytes, hello_.chunk_bytes_max);
  lander_.open(client_.options().codecs, &client_.devices());
  if (const std::string why = client_.on_greeted(*this, map, hosts); !why.empty()) {
    what_ = why;
    return Code::Closed;
  }
  client_.on_coding(notes.coding);
  if (Status status = take_rdma_answer(notes.rdma, notes.rdma_reads); !status.ok()) return status;
  state_ = State::Registering;
  register_layouts();
  return {};
}

void Connection::become_up_if_ready() {
  if (layouts_open_ > 0) return;
  const bool newly = state_ == State::Registering;
  if (newly) {
    state_ = State::Up;
    attempts_ = turn_ = 0;
    refused_ = own_again_ = false;
    was_up_ = true;
    client_.loop().disarm(timer_);
  }
  client_.on_connection_up(*this, newly);
}

// ---- Requests ------------------------------------------------------------------------------------------------------------

void Connection::give(Request& request) {
  HALFSTEP_DCHECK(up());
  request.connection = this;
  request.weight_bytes += kRequestCostBytes;
  load_bytes_ += request.weight_bytes;
  pending_.push_back(&request);
  pump();
}

void Connection::pump() {
  while (!pending_.empty() && !free_slots_.empty()) {
    Request& request = *pending_.front();
    if (!layouts_known(request)) return;
    pending_.pop_front();
    if (!transmit(request)) {
      HALFSTEP_CHECK(request.weight_bytes <= load_bytes_, request.weight_bytes, load_bytes_);
      load_bytes_ -= request.weight_bytes;
      client_.on_request_over(request);
    }
  }
}

// False when nothing of it is left to ask.
bool Connection::transmit(Request& request) {
  const bool had_slices = !request.slices.empty();
  refuse_layouts(request);
  if (had_slices && request.slices.empty()) return false;
  const uint8_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot] = &request;
  request.id = (++serial_ << 8) | slot;
  const uint64_t now = client_.loop().now_us();
  uint64_t left = request.ticket->deadline_us > now ? request.ticket->deadline_us - now : 1;
  if ((request.ticket->batch.flags & wire::kBatchWait) != 0) {
    request.waits = (hello_.features & wire::kFeatureWait) != 0;
    if (request.waits) {
      left -= std::min(left / kAnswerShare, kAnswerUs);
    } else {
      client_.count_not_waited();
    }
  }
  request.says_kind = (hello_.features & wire::kFeaturePrefetchKind) != 0;
  request.plain = (client_.options().codecs & ~hello_.codecs) != 0;
  if (request.opcode == Opcode::Get || request.opcode == Opcode::Put) prepare_places(request);
  frame_.clear();
  request.encode(static_cast<uint32_t>(std::min<uint64_t>(left, UINT32_MAX)), handles_, frame_);
  request.sent = true;
  request.sent_us = now;
  request.received_before = stream_->received_bytes();
  request.ticket->asked = true;
  stream_->send(frame_);
  if (request.opcode == Opcode::Put) {
    sender_.add(request);
    stream_->ask_for_more();
  }
  return true;
}

void Connection::abandon(Request& request) {
  if (lander_.request() == &request) {
    lander_.drop();
    stream_->divert_landing();
    stop_waiting_for_slot();
  }
  if (!request.sent) {
    std::erase(pending_, &request);
    HALFSTEP_CHECK(request.weight_bytes <= load_bytes_, request.weight_bytes, load_bytes_);
    load_bytes_ -= request.weight_bytes;
    return client_.recycle(request);
  }
  sender_.remove(request);
  const Ticket& of = *request.ticket;
  const bool read = of.payload_references > (of.encoding.under_way() ? 1U : 0U);
  // One for each: what ends the one leaves the other.
  if (read) request.ticket->fence.push_back(this);
  if (request.placing != nullptr) request.ticket->fence.push_back(this);
  request.ticket = nullptr;
  send_cancel(request);
}

void Connection::send_cancel(const Request& request) {
  frame_.clear();
  wire::FrameWriter frame(frame_);
  frame.begin(Opcode::Cancel, kCancel | (++serial_ & ~kKind));
  frame.tlv(wire::Tlv::CancelTarget, wire::CancelRecord{request.id});
  frame.finish();
  stream_->send(frame_);
}

Request* Connection::find(uint64_t id) noexcept {
  if ((id & kKind) != 0) return nullptr;
  Request* request = slots_[id & 0xFF];
  return request != nullptr && request->id == id ? request : nullptr;
}

void Connection::release_slot(Request& request) {
  const auto slot = static_cast<uint8_t>(request.id & 0xFF);
  slots_[slot] = nullptr;
  free_slots_.push_back(slot);
  HALFSTEP_CHECK(request.weight_bytes <= load_bytes_, request.weight_bytes, load_bytes_);
  load_bytes_ -= request.weight_bytes;
}

void Connection::fail(Request& request) {
  end_placing(request);
  Ticket* ticket = request.ticket;
  if (ticket == nullptr) return client_.recycle(request);
  sender_.remove(request);
  wire::AnswerReason why{Answer::Unavailable, protocol_error_ ? Reason::ProtocolError : Reason::NoConnection};
  if (request.sent && ticket->changes_store()) why.reason = Reason::OutcomeUnknown;
  request.for_items([&](Section& section, uint32_t item) { ticket->fail_item(section, item, why); });
  if (request.slices.empty()) ticket->say_whole(why);
  client_.on_request_over(request);
}

// ---- Frames --------------------------------------------------------------------------------------------------------------

Status Connection::on_frame(const wire::Header& header, ConstBytes body, net::Landing* landing) {
  const uint64_t kind = header.request_id & kKind;
  const bool is_final = header.opcode == static_cast<uint8_t>(Opcode::Final);
  if (silence_.broken) heard();
  Status status;
  if (header.opcode == static_cast<uint8_t>(Opcode::Abort)) {
    on_abort(body);
  } else if (kind == kHello) {
    status = is_final && state_ == State::Greeting ? on_hello(body) : Status(Code::Invalid);
  } else if (state_ != State::Registering && state_ != State::Up) {
    status = Code::Invalid;
  } else if (kind == kLayout) {
    status = is_final ? on_layout(static_cast<uint32_t>(header.request_id & ~kKind), body) : Status(Code::Invalid);
  } else if (kind == kCancel) {
    status = is_final ? Status() : Status(Code::Invalid);
  } else if (kind == kPlacing) {
    status = is_final ? on_placing_answered(body) : Status(Code::Invalid);
  } else {
    status = on_reply(header, body, landing);
  }
  if (!status.ok() && status.code() != Code::Closed) {
    protocol_error_ = true;
    if (what_.empty()) {
      what_ = "protocol error: frame with opcode " + std::to_string(header.opcode) + ": " + code_text(status);
    }
  }
  return status;
}

Status Connection::on_reply(const wire::Header& header, ConstBytes body, net::Landing* landing) {
  Request* request = find(header.request_id);
  if (request == nullptr) return Code::Invalid;
  Ticket* ticket = request->ticket;
  switch (static_cast<Opcode>(header.opcode)) {
    case Opcode::Chunk:
      if (ticket == nullptr) {
        landing->to_scratch(header.payload_bytes);
        return {};
      }
      return lander_.begin(*request, body, header.payload_bytes, hello_.block_bytes_max, landing);
    case Opcode::Placed: return on_placed(*request, body);
    case Opcode::Want: {
      if (ticket == nullptr) {
        sender_.return_early(*request);
        return {};
      }
      const Status status = sender_.grant(*request, body);
      if (status.ok()) stream_->ask_for_more();
      return status;
    }
    case Opcode::Answers: {
      if (ticket == nullptr) return {};
      const Status status = take_answers(*request, body);
      client_.tell_progress(*ticket);
      return status;
    }
    case Opcode::Final: return on_final(*request, body);
    default: return Code::Invalid;  // a request, from a server
  }
}

Status Connection::on_final(Request& request, ConstBytes body) {
  FinalNotes notes;
  if (Status s = take_notes(body, &notes); !s.ok()) return s;
  if (notes.has_load) client_.on_load(shard_, notes.load);
  end_placing(request);
  constexpr wire::AnswerReason kForgotten{Answer::Rejected, Reason::UnknownLayout};
  if (request.ticket != nullptr && notes.whole == kForgotten && repeat(request)) return {};
  const uint64_t asked_position = request.position;
  if (request.ticket != nullptr) {
    // Not when it came up: a daemon that has no room ends connections that ask for nothing, and they would come at once again.
    pauses_ = 0;
    if (over_rdma_) {
      const uint64_t bytes = stream_->received_bytes() + stream_->sent_bytes();
      client_.rdma_choice().carried(bytes, client_.rdma_rings().ring_bytes());
    }
    if (Status s = take_final(request, body, notes); !s.ok()) return s;
    sender_.remove(request);
    const Ticket& of = *request.ticket;
    if (of.payload_references > (of.encoding.under_way() ? 1U : 0U)) request.ticket->fence.push_back(this);
  }
  sender_.return_early(request);
  account();
  release_slot(request);
  // The next page. An error's Final names none, and the position is still that of its own.
  if (request.ticket != nullptr && request.position > asked_position) {
    request.sent = false;
    load_bytes_ += request.weight_bytes;
    pending_.push_front(&request);
    pump();
    return {};
  }
  if (request.ticket != nullptr) {
    client_.on_request_over(request);
  } else {
    client_.recycle(request);
  }
  pump();
  return {};
}

void Connection::on_abort(ConstBytes body) {
  FinalNotes notes;
  const Status status = take_notes(body, &notes);
  told_to_go_ = true;
  if (what_.empty()) what_ = "the daemon ends the connection: " + (status.ok() ? notes.reason : std::string("(unreadable)"));
  stream_->close(Code::Closed);  // a daemon that hangs after its Abort would keep every request until its deadline
}

Status Connection::on_chunk_end() {
  finish_chunk();
  return {};
}

void Connection::finish_chunk() {
  Request* request = lander_.request();
  if (!lander_.finish()) {
    if (!slot_awaited_) stream_->pause_reading();
    slot_awaited_ = true;
    return client_.devices().wait_for_slot(*this);
  }
  lander_.drop();
  if (request != nullptr) client_.tell_progress(*request->ticket);
  if (std::exchange(slot_awaited_, false)) stream_->resume_reading();
}

void Connection::on_slot() { finish_chunk(); }

void Connection::stop_waiting_for_slot() {
  if (!std::exchange(slot_awaited_, false)) return;
  client_.devices().forget(static_cast<SlotWaiter&>(*this));
  stream_->resume_reading();
}

void Connection::on_sendable() { sender_.send(*stream_, &Connection::on_released); }

void Connection::on_released(void* ticket, uint64_t /*tag*/) {
  auto& of = *static_cast<Ticket*>(ticket);
  of.host.on_payload_released(of);
}

void Connection::account() noexcept {
  if (!stream_) return;
  const uint64_t received = stream_->received_bytes();
  const uint64_t sent = stream_->sent_bytes();
  const uint64_t failures = lander_.checksum_failures();
  const uint64_t undecoded = lander_.decode_failures();
  client_.count_placed(lander_.placed_bytes() - counted_placed_, lander_.gpu_placed_bytes() - counted_gpu_placed_);
  counted_placed_ = lander_.placed_bytes();
  counted_gpu_placed_ = lander_.gpu_placed_bytes();
  client_.count_traffic(received - counted_received_, sent - counted_sent_, failures - counted_failures_,
                        undecoded - counted_undecoded_);
  counted_received_ = received;
  counted_sent_ = sent;
  counted_failures_ = failures;
  counted_undecoded_ = undecoded;
}

}  // namespace halfstep::peer
