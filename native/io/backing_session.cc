// backing_session.cc — a backing that is a vhost-user target: its session in place of a descriptor.
#include <unistd.h>

#include <string>
#include <utility>

#include "base/units.h"
#include "io/backing.h"
#include "io/vhost_session.h"

namespace halfstep::io {

Backing::Backing() = default;

// A target has no lock: it serves one front end at a time, or the store header's start number tells.
Fault Backing::open_session(const Options& options, std::unique_ptr<Backing>* out) {
  std::unique_ptr<Backing> backing(new Backing);
  const std::string socket(vhost_socket_of(options.path));
  if (Fault fault = VhostSession::open(socket, options.read_only, &backing->session_); !fault.ok()) return fault;
  BackingFacts& facts = backing->facts_;
  facts.path = options.path;
  facts.bytes = backing->session_->device().bytes;
  facts.direct = true;
  facts.direct_align_bytes = kPageBytes;
  facts.vhost_user = true;
  *out = std::move(backing);
  return {};
}

Backing::~Backing() {
  // Closing the last descriptor of the open file description gives the lock back.
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace halfstep::io
