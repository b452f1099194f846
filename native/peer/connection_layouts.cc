// connection_layouts.cc — a connection's layouts: registered at its handshake and whenever the client has more; anew where the
// daemon has forgotten one, and now and then where it refused one.
// Invariants: a request is sent only when every layout that it names is known or refused; it is asked again for a forgotten one
// at most once.
#include <algorithm>

#include "peer/connection.h"
#include "peer/connection_host.h"

namespace halfstep::peer {

using wire::Answer;
using wire::Opcode;
using wire::Reason;

void Connection::register_layouts() {
  if (state_ != State::Registering && state_ != State::Up) return;
  const auto& known = client_.layouts();
  layouts_.resize(known.size());
  handles_.resize(known.size());
  for (uint32_t i = 0; i < known.size() && layouts_open_ < kLayoutsAskedMax; ++i) {
    if (layouts_[i].state != LayoutState::Unknown) continue;
    frame_.clear();
    wire::FrameWriter frame(frame_);
    frame.begin(Opcode::RegisterLayout, kLayout | i);
    frame.tlv_bytes(wire::Tlv::LayoutCanonical, known[i]->canonical());
    frame.finish();
    stream_->send(frame_);
    layouts_[i].state = LayoutState::Asked;
    layouts_[i].asked_at = serial_;
    ++layouts_open_;
  }
  become_up_if_ready();
}

bool Connection::layouts_settled() const noexcept { return layouts_open_ == 0 && layouts_.size() == client_.layouts().size(); }

Status Connection::on_layout(uint32_t index, ConstBytes body) {
  if (index >= layouts_.size() || layouts_[index].state != LayoutState::Asked) return Code::Invalid;
  FinalNotes notes;
  if (Status s = take_notes(body, &notes); !s.ok()) return s;
  LayoutEntry& entry = layouts_[index];
  --layouts_open_;
  const bool accepted = notes.has_layout && (notes.whole.answer == Answer::Ok || notes.whole.answer == Answer::Pending);
  if (accepted) {
    if (notes.layout.id != client_.layouts()[index]->id()) return Code::Invalid;
    entry.state = LayoutState::Ready;
    handles_[index] = notes.layout.handle;
  } else {
    if (Status s = on_layout_refused(index, notes); !s.ok()) return s;
  }
  register_layouts();
  pump();
  return {};
}

// What is refused now need not be for ever: layouts come and go, limits are raised. It is asked for again now and then.
Status Connection::on_layout_refused(uint32_t index, const FinalNotes& notes) {
  LayoutEntry& entry = layouts_[index];
  entry.state = LayoutState::Refused;
  entry.refused_until_us = client_.loop().now_us() + client_.options().backoff_us_max;
  entry.refusal = {Answer::Rejected, Reason::Policy};
  const bool said = notes.whole.answer == Answer::Rejected || notes.whole.answer == Answer::Throttled;
  if (said && notes.whole.reason != Reason::None) entry.refusal = notes.whole;
  client_.on_layout_refused(called() + ": layout refused: " + notes.reason);
  if (entry.refusal.reason != Reason::UnknownNamespace) return {};
  // The namespace of this connection is gone; the next handshake says so, or finds it made again.
  pump();
  what_ = "layout refused: " + notes.reason;
  return Code::Closed;
}

bool Connection::layouts_known(Request& request) {
  for (uint16_t s = 0; s < request.slices.size(); ++s) {
    const uint32_t index = request.section(s).layout_index;
    if (index >= layouts_.size()) return false;
    if (layouts_[index].state == LayoutState::Refused && client_.loop().now_us() >= layouts_[index].refused_until_us) {
      layouts_[index].state = LayoutState::Unknown;
      register_layouts();
    }
    const LayoutState state = layouts_[index].state;
    if (state == LayoutState::Unknown || state == LayoutState::Asked) return false;
  }
  return true;
}

bool Connection::repeat(Request& request) {
  if (request.repeated || request.slices.empty()) return false;
  Ticket& ticket = *request.ticket;
  bool untouched = true;
  request.for_items([&](Section& section, uint32_t number) { untouched = untouched && ticket.untouched(section, number); });
  if (!untouched) return false;
  for (uint16_t s = 0; s < request.slices.size(); ++s) {
    LayoutEntry& entry = layouts_[request.section(s).layout_index];
    // Several requests may have named it by its old handle.
    if (entry.state == LayoutState::Ready && entry.asked_at < request.id >> 8) entry.state = LayoutState::Unknown;
  }
  if (ticket.is_put()) request.for_items([&](Section& section, uint32_t number) { ticket.unsend(section, number); });
  if (ticket.payload_references > 0) ticket.fence.push_back(this);
  sender_.remove(request);
  sender_.return_early(request);
  release_slot(request);
  request.repeated = true;
  request.sent = request.granted = false;
  request.next_sendable = 0;
  request.sendable.clear();
  pending_.push_front(&request);
  load_bytes_ += request.weight_bytes;
  register_layouts();
  pump();
  return true;
}

// Answers the items whose layout the daemon does not take, and leaves the rest.
void Connection::refuse_layouts(Request& request) {
  for (uint16_t s = 0; s < request.slices.size();) {
    Section& section = request.section(s);
    const LayoutEntry& entry = layouts_[section.layout_index];
    if (entry.state != LayoutState::Refused) {
      ++s;
      continue;
    }
    const uint32_t count = request.items_of(s);
    for (uint32_t i = 0; i < count; ++i) request.ticket->fail_item(section, request.item_of(s, i), entry.refusal);
    request.slices.erase(request.slices.begin() + s);
  }
}

}  // namespace halfstep::peer
