// connection_connect.cc — how a connection is made, and made again: its address, the socket or shared memory, the greeting.
//
//   wait ─▶ resolve ─▶ connect ─▶ share memory ─▶ greet ─▶ (connection.cc: the daemon's Hello)
//    ▲                    └─ in vain ─▶ the next address of a list, at once
//    └────── in vain, or lost
//
// Of a name that has several addresses each try takes the next one. Of a list, which names the network cards of one daemon,
// a connection has one of its own: that is tried first, and once more if it refused while another one answers, because then the
// daemon may just have begun to listen. Invariants: one socket at a time; the timer bounds each attempt, and then the wait.
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "net/shm_setup.h"
#include "peer/connection.h"
#include "peer/connection_host.h"
#include "peer/text.h"

namespace halfstep::peer {
namespace {

constexpr uint64_t kResolvePollUs = 2'000;

}  // namespace

void Connection::connect() {
  what_.clear();
  protocol_error_ = false;
  if (!Resolution::needed(address_)) return connect_to_one_of(listed_hosts(address_), lane_);
  state_ = State::Resolving;
  resolution_ = Resolution::start(address_);
  resolving_until_us_ = client_.loop().now_us() + client_.options().connect_timeout_us;
  resolve();
}

// Looks now and then whether the answer is there.
void Connection::resolve() {
  const uint64_t now = client_.loop().now_us();
  if (!resolution_->done()) {
    if (now < resolving_until_us_) return client_.loop().arm(timer_, now + kResolvePollUs);
    resolution_ = nullptr;
    return attempt_failed(address_.text() + ": its name did not resolve within connect_timeout_ms");
  }
  const std::shared_ptr<Resolution> answer = std::exchange(resolution_, nullptr);
  if (answer->hosts().empty()) return attempt_failed(answer->error());
  hosts_ = static_cast<uint32_t>(answer->hosts().size());
  connect_to_one_of(answer->hosts(), 0);
}

// Of those that a name stands for all connections try the first one first; cards that are listed are used at once.
void Connection::connect_to_one_of(const std::vector<std::string>& hosts, uint32_t first) {
  net::Address address = address_;
  address.host = hosts[(first + turn_) % hosts.size()];
  connect_to(address);
}

void Connection::connect_to(const net::Address& address) {
  state_ = State::Connecting;
  host_ = address.host;
  const Fault fault = net::start_connect(address, &connecting_);
  if (!fault.ok()) {
    connecting_ = -1;
    return attempt_failed(fault.what);
  }
  client_.loop().arm(timer_, client_.loop().now_us() + client_.options().connect_timeout_us);
  if (const Status s = client_.loop().add(connecting_, EPOLLOUT, this); !s.ok()) {
    ::close(std::exchange(connecting_, -1));
    attempt_failed(called() + ": epoll: " + code_text(s));
  }
}

void Connection::on_ready(uint32_t /*epoll_events*/) {
  if (state_ == State::Sharing) return share();
  const bool as_stream = std::exchange(as_stream_, false) || !address_.is_unix;
  if (const Status s = net::connect_result(connecting_); !s.ok()) {
    refused_ = refused_ || (turn_ == 0 && s.detail() == -ECONNREFUSED);
    return drop_socket(code_text(s));
  }
  // Over another card than its own, which is alive: that one may have refused because the daemon was about to listen.
  const bool other = turn_ != 0 && listed_hosts(address_).size() > 1;
  if (other && refused_ && !std::exchange(own_again_, true)) {
    client_.loop().remove(connecting_, this);
    ::close(std::exchange(connecting_, -1));
    turn_ = 0;
    return connect();
  }
  if (!as_stream) return ask_to_share();
  client_.loop().remove(connecting_, this);
  greet(net::socket_transport(std::exchange(connecting_, -1)));
}

// Of several cards the one that is called: it is that whose cable has to be looked at.
std::string Connection::called() const {
  net::Address address = address_;
  if (listed_hosts(address_).size() > 1 && !host_.empty()) address.host = host_;
  return address.text();
}

void Connection::drop_socket(const std::string& what) {
  client_.loop().remove(connecting_, this);
  ::close(std::exchange(connecting_, -1));
  attempt_failed(called() + ": " + what);
}

// The timer that bounds the attempt goes on.
void Connection::ask_to_share() {
  state_ = State::Sharing;
  Status status = net::ask_for_rings(connecting_);
  if (status.ok()) status = client_.loop().change(connecting_, EPOLLIN, this);
  if (!status.ok()) drop_socket("asking for shared memory: " + code_text(status));
}

void Connection::share() {
  std::unique_ptr<net::Transport> transport;
  const Fault fault = net::take_rings(connecting_, &transport);
  if (fault.status == Status(Code::Closed, -EAGAIN)) return;
  if (fault.status == Code::Throttled) {  // bytes go through the socket then; the next connection asks again
    client_.loop().remove(connecting_, this);
    ::close(std::exchange(connecting_, -1));
    as_stream_ = true;
    client_.on_rings_refused(*this, fault.what);
    return connect_to(address_);
  }
  if (!fault.ok()) return drop_socket(fault.what);
  client_.loop().remove(std::exchange(connecting_, -1), this);
  greet(std::move(transport));
}

void Connection::greet(std::unique_ptr<net::Transport> transport) {
  state_ = State::Greeting;
  counted_received_ = counted_sent_ = 0;
  silence_.overdue = 0;
  stream_ = std::make_unique<net::FrameStream>(client_.loop(), std::move(transport), *this);
  if (const Status s = stream_->start(); !s.ok()) {
    stream_.reset();
    return attempt_failed(called() + ": epoll: " + code_text(s));
  }
  frame_.clear();
  wire::FrameWriter frame(frame_);
  frame.begin(Opcode::Hello, kHello);
  frame.tlv(wire::Tlv::HelloClient, wire::HelloClient{.codecs = client_.options().codecs, .client_id = client_.id()});
  frame.tlv_bytes(wire::Tlv::NamespaceName, as_bytes(client_.options().name_space));
  if (!offer_rdma(stream_->descriptor(), frame)) {
    what_ = "transport=rdma: " + client_.rdma_choice().why_not();
    return stream_->close(Code::Closed);
  }
  frame.finish();
  stream_->send(frame_);
}

void Connection::attempt_failed(const std::string& what) {
  silence_.broken = false;  // refused, or not to be reached: that is another reason
  client_.on_attempt_failed(*this, what);
  // Of cards that are listed all are tried at once, its own first: it stays where it comes up.
  const size_t cards = listed_hosts(address_).size();
  if (++turn_ < cards && !stopping_) return connect();
  if (cards > 1) turn_ = 0;
  wait_and_retry();
}

void Connection::wait_and_retry() {
  if (stopping_) {
    state_ = State::Stopped;
    client_.loop().disarm(timer_);
    return;
  }
  state_ = State::Waiting;
  refused_ = own_again_ = false;
  const Options& options = client_.options();
  ++attempts_;
  const uint32_t doublings = std::min(pauses_++, 20U);
  const uint64_t longest = std::min(options.backoff_us_min << doublings, options.backoff_us_max);
  // Half of it is random, so that many clients of a daemon that restarts do not come at once.
  const uint64_t delay = longest / 2 + client_.prng().below(longest / 2 + 1);
  client_.loop().arm(timer_, client_.loop().now_us() + delay);
  client_.on_attempt_over(*this);
}

void Connection::on_timer(void* self) {
  auto& of = *static_cast<Connection*>(self);
  if (of.state_ == State::Waiting) return of.connect();
  if (of.state_ == State::Resolving) return of.resolve();
  if (of.state_ == State::Up) return of.on_still_silent();
  const std::string what = of.timed_out();
  const bool accepted = of.state_ != State::Connecting;
  if (of.stream_) {
    of.abort(Code::Late, what);
  } else {
    of.drop_socket(what);
  }
  of.silence_.broken = accepted && of.client_.met();
}

std::string Connection::timed_out() const {
  const std::string within =
      " within " + std::to_string(client_.options().connect_timeout_us / 1000) + " ms (connect_timeout_ms)";
  switch (state_) {
    case State::Connecting:
      return "no connection" + within + "; the host is down, or a firewall drops what is sent to the port";
    case State::Registering: return "layouts not registered" + within + "; its device may be slow";
    default:
      return "no handshake" + within +
             (client_.met() ? "; the daemon hangs, or is stopped" : "; is it halfstepd that listens there?");
  }
}

}  // namespace halfstep::peer
