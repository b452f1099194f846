// client_tickets.cc — a ticket's way through the client: gated, staged, coded, cut into requests and given out, until it is
// over and fenced (ticket.h names the states).
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "peer/client.h"

namespace halfstep::peer {
namespace {

using wire::Answer;
using wire::AnswerReason;
using wire::Reason;

// How long a daemon may write on into the caller's memory after its ticket is over, before its connection is ended.
constexpr uint64_t kPlacedFenceUs = 200'000;
// Of blocks that are coded one request offers so many bytes, so that the first travels while the next is being coded: some
// milliseconds of one core, and many times what a request costs.
constexpr uint64_t kEncodedRequestBytes = uint64_t{8} << 20;

}  // namespace

void Client::begin(Ticket& ticket) {
  ticket.next = nullptr;
  ticket.previous = running_last_;
  (running_last_ != nullptr ? running_last_->next : running_) = &ticket;
  running_last_ = &ticket;
  ticket.state = Ticket::State::Waiting;
  loop_.arm(ticket.timer, ticket.deadline_us);
  if (refused_) return end(ticket, {Answer::Rejected, refusal_});
  if (ticket.gates.empty()) return go_on(ticket);
  ticket.state = Ticket::State::Gated;
  devices_.wait_for_gates(ticket);
}

void Client::on_gates(Ticket& ticket, bool open) {
  ticket.state = Ticket::State::Waiting;
  if (!open) return end(ticket, {Answer::Unavailable, Reason::Copy});
  if (refused_) return end(ticket, {Answer::Rejected, refusal_});
  go_on(ticket);
}

void Client::go_on(Ticket& ticket) {
  // As below: not for a put that nobody takes.
  if (ticket.is_put() && ticket.device >= 0 && !ticket.staging.over && connected()) {
    ticket.state = Ticket::State::Staging;
    return devices_.stage(ticket);
  }
  if (!reached()) return;
  // Not before somebody is there to take it: else blocks would be coded for an answer that needs none of it.
  if (ticket.codes() && connected()) return encode(ticket);
  dispatch(ticket);
}

void Client::encode(Ticket& ticket) {
  cut(ticket, kEncodedRequestBytes);
  Ticket::Encoding& encoding = ticket.encoding;
  encoding.piece_count = static_cast<uint32_t>(ticket.requests.size());
  encoding.pieces = std::make_unique<Ticket::Encoding::Piece[]>(encoding.piece_count);
  encoding.piece_of.resize(ticket.items.size());
  for (uint32_t piece = 0; piece < encoding.piece_count; ++piece) {
    Request& request = *ticket.requests[piece];
    uint32_t items = 0;
    request.for_items([&](const Section& section, uint32_t item) {
      encoding.piece_of[section.first_item + item] = piece;
      ++items;
    });
    encoding.pieces[piece].request = &request;
    encoding.pieces[piece].left.store(items, std::memory_order_relaxed);
  }
  ticket.state = Ticket::State::Encoding;
  ++ticket.payload_references;
  encoder_.encode(ticket);
}

void Client::on_staged(Ticket& ticket, bool ok) {
  HALFSTEP_CHECK(ticket.state == Ticket::State::Staging);
  ticket.state = Ticket::State::Waiting;
  if (!ok) return end(ticket, {Answer::Unavailable, Reason::Copy});
  ticket.staging.over = true;
  if (refused_) return end(ticket, {Answer::Rejected, refusal_});
  go_on(ticket);
}

void Client::on_copied(Ticket& ticket) {
  const bool waits = ticket.state == Ticket::State::Copying || ticket.state == Ticket::State::Fencing;
  if (waits && ticket.copies == 0 && ticket.payload_references == 0 && ticket.placements == 0) return finish(ticket);
  tell_progress(ticket);
}

void Client::on_encoded(Ticket& ticket, uint32_t piece) {
  Ticket::Encoding& encoding = ticket.encoding;
  const bool last = ++encoding.told == encoding.piece_count;
  if (ticket.state == Ticket::State::Fencing) return last ? on_payload_released(ticket) : void();
  HALFSTEP_CHECK(ticket.state == Ticket::State::Encoding && ticket.payload_references > 0, ticket.payload_references);
  if (last) {
    --ticket.payload_references;
    ticket.state = Ticket::State::Running;
  }
  if (refused_) return end(ticket, {Answer::Rejected, refusal_});
  const CodingInputs speeds = encoder_.facts().last;
  encoding.known = {.encode_bytes_per_s = speeds.encode_bytes_per_s,
                    .decode_bytes_per_s = speeds.decode_bytes_per_s,
                    .link_bytes_per_s = speeds.link_bytes_per_s,
                    .service_bytes_per_s = speeds.service_bytes_per_s,
                    .ratio_milli = speeds.ratio_milli};
  Request& request = *encoding.piece(piece).request;
  bound_tables(request);
  give(request);
}

void Client::dispatch(Ticket& ticket) {
  ticket.state = Ticket::State::Running;
  cut(ticket, 0);
  ticket.dispatching = true;
  given_ = ticket.requests;
  for (Request* request : given_) give(*request);
  ticket.dispatching = false;
  if (ticket.requests.empty()) conclude(ticket);
}

void Client::cut(Ticket& ticket, uint64_t request_bytes_max) {
  PlanLimits limits;
  limits.shards = static_cast<uint32_t>(links_.size());
  limits.bytes_max = request_bytes_max;
  for (const Link& link : links_) {
    uint32_t up = 0;
    for (const auto& connection : link.connections) {
      if (!connection->up()) continue;
      ++up;
      limits.keys_max = std::min(limits.keys_max, connection->hello().keys_max);
    }
    limits.connections.push_back(up);
  }
  plan(ticket, limits, [&]() -> Request& {
    if (idle_requests_.empty()) {
      requests_.push_back(std::make_unique<Request>());
      idle_requests_.push_back(requests_.back().get());
    }
    Request& request = *idle_requests_.back();
    idle_requests_.pop_back();
    request.reset(ticket, opcode_of(ticket.operation));
    request.shards = static_cast<uint32_t>(links_.size());
    return request;
  });
}

// One that was cut for a store of other shards, while its items were being coded, finds nobody.
void Client::give(Request& request) {
  Ticket& ticket = *request.ticket;
  Link* link = request.shard < links_.size() && request.shards == links_.size() ? &links_[request.shard] : nullptr;
  Connection* connection = link != nullptr ? choose(*link) : nullptr;
  if (connection != nullptr) return connection->give(request);
  const AnswerReason why{Answer::Unavailable, link != nullptr ? why_none(*link) : Reason::NoConnection};
  request.for_items([&](Section& section, uint32_t item) { ticket.fail_item(section, item, why); });
  if (request.slices.empty()) ticket.say_whole(why);
  on_request_over(request);
}

void Client::on_deadline(void* of) {
  auto& ticket = *static_cast<Ticket*>(of);
  auto& self = static_cast<Client&>(ticket.host);
  switch (ticket.state) {
    case Ticket::State::Waiting: return self.end(ticket, {Answer::Unavailable, Reason::NoConnection});
    case Ticket::State::Gated:
    case Ticket::State::Copying: return self.end(ticket, {Answer::Late, Reason::Deadline});
    case Ticket::State::Staging:
      if (!self.connected()) return self.end(ticket, {Answer::Unavailable, Reason::NoConnection});
      return self.end(ticket, {Answer::Late, Reason::Deadline});
    case Ticket::State::Encoding:
      if (!self.connected()) return self.end(ticket, {Answer::Unavailable, Reason::NoConnection});
      [[fallthrough]];
    case Ticket::State::Running:
      for (const Request* request : ticket.requests) {
        if (request->connection != nullptr) request->connection->on_overdue(*request);
      }
      return self.end(ticket, {Answer::Late, Reason::Deadline});
    case Ticket::State::Fencing:
      // Each abort() releases what its connection still holds, from the loop. The list is kept: nothing is added any more.
      for (Connection* connection : ticket.fence) {
        connection->abort(Code::Late,
                          ticket.placements != 0
                              ? "a batch that is over was not let go of within 200 ms by the daemon, or by the card here"
                              : "bytes of a put that is over did not leave within 10 ms of its deadline");
      }
      return;
    default: HALFSTEP_DCHECK(false);
  }
}

void Client::end(Ticket& ticket, AnswerReason why) {
  if (ticket.state == Ticket::State::Fencing) return;
  ticket.end = why;
  ticket.say_whole(why);
  if (ticket.state == Ticket::State::Encoding) encoder_.abandon(ticket);
  if (ticket.state == Ticket::State::Gated || ticket.state == Ticket::State::Staging) devices_.forget(ticket);
  while (!ticket.requests.empty()) {
    Request* request = ticket.requests.back();
    ticket.requests.pop_back();
    if (request->connection != nullptr) {
      request->connection->abandon(*request);
    } else {
      recycle(*request);  // its items are not coded yet
    }
  }
  // What the caller still owns from here on is what a socket reads: little time is left for that.
  ticket.deadline_us = std::min(ticket.deadline_us, loop_.now_us());
  conclude(ticket);
}

void Client::conclude(Ticket& ticket) {
  if (ticket.payload_references == 0 && ticket.copies == 0 && ticket.placements == 0) return finish(ticket);
  if (ticket.end.answer == Answer::Pending && ticket.payload_references == 0) {
    ticket.state = Ticket::State::Copying;  // until its deadline
    return tell_progress(ticket);
  }
  ticket.state = Ticket::State::Fencing;
  loop_.arm(ticket.timer, ticket.deadline_us + (ticket.placements != 0 ? kPlacedFenceUs : kFenceUs));
}

void Client::on_payload_released(Ticket& ticket) {
  HALFSTEP_CHECK(ticket.payload_references > 0, ticket.payload_references);
  --ticket.payload_references;
  if (ticket.state == Ticket::State::Fencing) finish_if_fenced(ticket);
}

void Client::finish(Ticket& ticket) {
  loop_.disarm(ticket.timer);
  if (!ticket.queue->watched()) ended_for_caller_ = true;
  (ticket.previous != nullptr ? ticket.previous->next : running_) = ticket.next;
  (ticket.next != nullptr ? ticket.next->previous : running_last_) = ticket.previous;
  encoder_.take_back(ticket);
  devices_.take_back(ticket);
  ticket.regions.clear();
  ticket.finish();
  open_tickets_.fetch_sub(1, std::memory_order_relaxed);
  ticket.queue->post_done(ticket);
}

void Client::end_all(AnswerReason why) {
  for (Ticket* ticket = running_; ticket != nullptr;) {
    Ticket* next = ticket->next;
    end(*ticket, why);
    ticket = next;
  }
}

void Client::tell_progress(Ticket& ticket) {
  if (!ticket.wants_progress || ticket.steps_done == ticket.steps_told) return;
  ticket.steps_told = ticket.steps_done;
  ticket.queue->post_progress(ticket);
}

void Client::on_request_over(Request& request) {
  Ticket& ticket = *request.ticket;
  std::erase(ticket.requests, &request);
  recycle(request);
  if (ticket.dispatching) return;
  if (!ticket.requests.empty()) return tell_progress(ticket);
  conclude(ticket);
}

void Client::recycle(Request& request) {
  request.ticket = nullptr;
  idle_requests_.push_back(&request);
}

}  // namespace halfstep::peer
