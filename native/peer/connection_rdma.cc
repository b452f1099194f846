// connection_rdma.cc — from a socket to rings over RDMA: what is offered with Hello, and what its Final gives.
#include <string>
#include <utility>

#include "peer/connection.h"
#include "peer/connection_host.h"
#include "wire/rdma.h"

namespace halfstep::peer {
namespace {

// Making an end keeps the loop from everything else: a device that needs longer is not asked with each connection.
constexpr uint64_t kOfferUsMax = 100'000;

}  // namespace

// Nothing for a unix socket, whose rings are in shared memory. False: this connection must not be without.
bool Connection::offer_rdma(int socket, wire::FrameWriter& frame) {
  rdma_end_ = nullptr;
  over_rdma_ = told_to_go_ = false;
  RdmaChoice& choice = client_.rdma_choice();
  if (address_.is_unix || !choice.offers(client_.loop().now_us())) return address_.is_unix || !choice.required();
  wire::RdmaPath path;
  net::Loop& loop = client_.loop();
  rdma_begun_us_ = loop.now_us();
  Fault fault = client_.rdma_rings().offer(socket, &rdma_end_, &path);
  const uint64_t offered_us = loop.now_us();
  loop.arm(timer_, offered_us + client_.options().connect_timeout_us);  // what the device took is not the handshake's
  if (const uint64_t took_us = offered_us - rdma_begun_us_; took_us > kOfferUsMax) {
    choice.failed(offered_us, rdma_begun_us_, "the RDMA device took " + std::to_string(took_us / 1000) + " ms for an offer");
  }
  if (!fault.ok()) {
    choice.refused(std::move(fault.what));
    return !choice.required();
  }
  frame.open_tlv(wire::Tlv::RdmaOffer);
  frame.value().put(wire::RdmaOfferHead{.path_count = 1});
  frame.value().put(path);
  frame.close_tlv();
  rdma_reads_ = rdma_end_->queue_pair().reads_max().in;
  if (rdma_reads_ != 0) frame.tlv(wire::Tlv::RdmaReads, wire::RdmaReadsRecord{.reads = rdma_reads_});
  return true;
}

// After a Hello that was answered ok. Not ok: what_ says why this connection ends.
Status Connection::take_rdma_answer(ConstBytes value, uint32_t reads) {
  RdmaChoice& choice = client_.rdma_choice();
  places_.reads = reads;
  if (reads > (rdma_end_ != nullptr ? rdma_reads_ : 0)) return Code::Invalid;
  if (rdma_end_ == nullptr) return value.empty() ? Status() : Status(Code::Invalid);
  std::unique_ptr<net::RdmaEnd> end = std::move(rdma_end_);
  wire::RdmaAnswerView answer;
  if (value.empty()) {
    choice.refused("the daemon is of a release that has no RDMA");
  } else {
    if (Status status = wire::parse_rdma_answer(value, &answer); !status.ok()) return status;
    if (answer.head.version == 0) {
      choice.refused(wire::rdma_refusal_text(answer.head.refusal));
    } else {
      if (answer.head.path != 0) return Code::Invalid;  // one was offered
      over_rdma_ = true;
      return change_to_rdma(std::move(end), answer.path);
    }
  }
  if (!choice.required()) return {};
  what_ = "transport=rdma: " + choice.why_not();
  return Code::Closed;
}

Status Connection::change_to_rdma(std::unique_ptr<net::RdmaEnd> end, const wire::RdmaPath& path) {
  const int socket = stream_->descriptor();
  if (Fault fault = net::RdmaRings::accept(*end, socket, path, places_.reads); !fault.ok()) {
    what_ = "RDMA: " + fault.what;
    return Code::Closed;
  }
  places_.device = end->device();
  std::unique_ptr<net::Transport> carrier;
  Status status = client_.rdma_rings().transport(std::move(end), socket, 0, /*client=*/true, &carrier);
  if (status.ok()) status = stream_->change_carrier(std::move(carrier));
  if (!status.ok()) {
    what_ = "RDMA: " + errno_name(status.detail());
    return Code::Closed;
  }
  return {};
}

// A path fails in many ways. The rings say so themselves; or the daemon's do, and all that is seen here is the end of the
// socket without an Abort; or nothing is heard any more until somebody's patience ends. Of all that a path is suspected. It is
// not where either end says that it goes, nor where what arrived was whole and wrong.
void Connection::note_rdma_end(Status why) {
  if (!std::exchange(over_rdma_, false)) return;
  const bool malformed = why == Code::Invalid || why == Code::TooLarge || why == Code::Unsupported;
  if (stopping_ || told_to_go_ || malformed) return;
  client_.rdma_choice().failed(client_.loop().now_us(), rdma_begun_us_, what_);
}

}  // namespace halfstep::peer
