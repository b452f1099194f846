// backing_session.cc — backings that are no plain descriptor: a vhost-user target has a session, an NVMe namespace commands, a
// no-op device memory.
#include <unistd.h>

#include <string>
#include <utility>

#include "base/units.h"
#include "io/backing.h"
#include "io/noop_engine.h"
#include "io/nvme_namespace.h"
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

// Through its block device, and with its own name.
Fault Backing::open_namespace(const Options& options, std::unique_ptr<Backing>* out) {
  std::string why;
  Options block = options;
  block.path = NvmeNamespace::block_device_of(options.path, &why);
  if (block.path.empty()) {
    return {Code::Unsupported, why + "; give the path of a store: a file, a block device, or an NVMe namespace /dev/ngXnY"};
  }
  if (Fault fault = open(block, out); !fault.ok()) return fault;
  Backing& backing = **out;
  backing.facts_.path = options.path;
  backing.open_nvme(block.path, options.read_only);
  return {};
}

// It is claimed already. What refuses commands still has a block device.
void Backing::open_nvme(const std::string& block_path, bool read_only) {
  facts_.nvme_block_path = block_path;
  if (!facts_.direct) {
    facts_.why_no_nvme_commands = block_path + " takes no direct requests, and those by commands would pass its cache by";
    return;
  }
  Fault fault = NvmeNamespace::open(facts_.path, block_path, facts_.bytes, read_only, &nvme_);
  facts_.why_no_nvme_commands = std::move(fault.what);
}

Fault Backing::open_noop(const Options& options, std::unique_ptr<Backing>* out) {
  std::unique_ptr<Backing> backing(new Backing);
  if (Fault fault = NoopDevice::create(options.bytes, &backing->noop_); !fault.ok()) return fault;
  BackingFacts& facts = backing->facts_;
  facts.path = options.path;
  facts.bytes = options.bytes;
  facts.direct = true;
  facts.direct_align_bytes = kPageBytes;
  facts.noop = true;
  *out = std::move(backing);
  return {};
}

Backing::~Backing() {
  // Closing the last descriptor of the open file description gives the lock back.
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace halfstep::io
