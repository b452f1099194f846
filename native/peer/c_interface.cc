// c_interface.cc — the C interface over the client core: checks handles, guards against forks, turns faults into sentences.
// A handle carries the process generation it was made in. In a forked child every call answers without touching what is
// behind the handle: its locks may be held for ever, its descriptors are the parent's.
#include "peer/halfstep.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "base/build_info.h"
#include "compress/codec.h"
#include "peer/client.h"
#include "peer/submission.h"
#include "peer/text.h"
#include "wire/names.h"

using halfstep::Fault;
using halfstep::peer::Client;
using halfstep::peer::Options;
using halfstep::peer::Queue;
using halfstep::peer::Ticket;

struct hs_client {
  std::shared_ptr<Client> core;
  uint64_t generation;
};

struct hs_region {
  std::shared_ptr<Client> core;
  uint64_t generation;
  std::shared_ptr<halfstep::peer::DirectRegion> region;
};

struct hs_queue {
  std::shared_ptr<Client> core;
  uint64_t generation;
  Queue queue;
};

namespace {

constexpr const char* kForked = "forked: this client belongs to the parent process; open a new one";

template <typename Handle>
bool forked(const Handle* handle) noexcept {
  return handle->generation != halfstep::peer::process_generation();
}

void tell(char* why, size_t why_bytes, const std::string& text) noexcept {
  if (why != nullptr && why_bytes != 0) halfstep::peer::copy_text(why, why_bytes, text);
}

Fault read_options(const hs_options& from, Options* out) {
  using halfstep::Code;
  if (from.struct_bytes != sizeof(hs_options)) {
    return {Code::Invalid, "struct_bytes=" + std::to_string(from.struct_bytes) + ": this library's hs_options has " +
                               std::to_string(sizeof(hs_options))};
  }
  if (from.address == nullptr) return {Code::Invalid, "address: null; give host:port or unix:/path"};
  if (Fault fault = halfstep::net::Address::parse(from.address, &out->address); !fault.ok()) return fault;
  if (Fault fault = halfstep::peer::check_hosts(out->address); !fault.ok()) return fault;
  out->name_space = from.name_space != nullptr && *from.name_space != 0 ? from.name_space : "default";
  if (out->name_space.size() > halfstep::wire::kNamespaceBytesMax) {
    return {Code::TooLarge, "name_space: " + std::to_string(out->name_space.size()) + " bytes; at most " +
                                std::to_string(halfstep::wire::kNamespaceBytesMax)};
  }
  constexpr uint32_t kConnectionsMax = 16;
  if (from.connections > kConnectionsMax) {
    return {Code::TooLarge, "connections=" + std::to_string(from.connections) + ": at most 16 for each shard"};
  }
  const std::string_view transport = from.transport != nullptr ? from.transport : "auto";
  if (transport != "auto" && transport != "tcp" && transport != "rdma") {
    return {Code::Invalid, "transport=" + std::string(transport) + ": must be auto, tcp or rdma"};
  }
  if (transport == "rdma" && out->address.is_unix) {
    return {Code::Invalid, "transport=rdma: a unix socket has shared memory; give the daemon's address and port"};
  }
  using halfstep::peer::Carrier;
  out->carrier = transport == "tcp" ? Carrier::Tcp : transport == "rdma" ? Carrier::Rdma : Carrier::Auto;
  const auto or_default = [](uint64_t value, uint64_t otherwise) { return value != 0 ? value : otherwise; };
  out->connections = static_cast<uint32_t>(or_default(from.connections, 1));
  out->connect_timeout_us = or_default(uint64_t{from.connect_timeout_ms} * 1000, out->connect_timeout_us);
  out->backoff_us_min = or_default(uint64_t{from.backoff_ms_min} * 1000, out->backoff_us_min);
  out->backoff_us_max = std::max(or_default(uint64_t{from.backoff_ms_max} * 1000, out->backoff_us_max), out->backoff_us_min);
  if ((from.codecs & ~halfstep::compress::kCodecs) != 0) {
    return {Code::Unsupported, "codecs=" + std::to_string(from.codecs) + ": this library's are bits " +
                                   std::to_string(halfstep::compress::kCodecs)};
  }
  out->codecs = from.codecs | 1;
  using halfstep::peer::CodingMode;
  const std::string_view coding = from.coding != nullptr ? from.coding : "auto";
  if (coding != "always" && coding != "auto" && coding != "never") {
    return {Code::Invalid, "coding=" + std::string(coding) + ": must be auto, always or never"};
  }
  out->coding = coding == "always" ? CodingMode::Always : coding == "never" ? CodingMode::Never : CodingMode::Auto;
  out->tickets_max = static_cast<uint32_t>(or_default(from.tickets_max, out->tickets_max));
  return {};
}

Fault take_batch(hs_queue& queue, const hs_batch& batch, Ticket** out) {
  using halfstep::Code;
  try {
    *out = queue.core->acquire(queue.queue);
    if (*out == nullptr) return {Code::Closed, "closed: this queue or its client was closed"};
    return fill_ticket(*queue.core, batch, **out);
  } catch (const std::bad_alloc&) {
    if (*out != nullptr) (*out)->shed();
    return {Code::NoSpace, "out of memory for the batch; split it"};
  }
}

}  // namespace

extern "C" {

int hs_client_open(const hs_options* options, hs_client** out, char* why, size_t why_bytes) {
  Options read;
  std::shared_ptr<Client> core;
  Fault fault = read_options(*options, &read);
  if (fault.ok()) fault = Client::open(std::move(read), &core);
  if (!fault.ok()) {
    tell(why, why_bytes, fault.what);
    return fault.status.code() == halfstep::Code::IoError ? -2 : -1;
  }
  *out = new hs_client{std::move(core), halfstep::peer::process_generation()};
  return 0;
}

void hs_client_end(hs_client* client) {
  if (!forked(client)) client->core->close();
}

void hs_client_close(hs_client* client) {
  if (client == nullptr || forked(client)) return;  // the parent's: leaked on purpose
  client->core->close();
  delete client;
}

int hs_client_wait_ready(hs_client* client, uint32_t timeout_ms, char* why, size_t why_bytes) {
  if (forked(client)) {
    tell(why, why_bytes, kForked);
    return 0;
  }
  std::string text;
  const int ready = client->core->wait_ready(timeout_ms, &text);
  tell(why, why_bytes, text);
  return ready;
}

int hs_client_forked(const hs_client* client) { return forked(client) ? 1 : 0; }

const char* hs_coding_reason_name(uint32_t reason) {
  // Literals, so they end with a zero.
  return halfstep::wire::coding_reason_name(static_cast<halfstep::wire::CodingReason>(std::min(reason, 255U))).data();
}

void hs_client_get_facts(hs_client* client, hs_client_facts* out) {
  *out = {};
  if (!forked(client)) return client->core->get_facts(out);
  std::strncpy(out->last_error, kForked, sizeof(out->last_error) - 1);
}

size_t hs_client_get_loads(hs_client* client, hs_shard_load* out, size_t max) {
  return forked(client) ? 0 : client->core->get_loads(out, max);
}

int hs_layout_register(hs_client* client, const void* canonical, size_t bytes) {
  if (forked(client) || canonical == nullptr) return -1;
  auto layout = std::make_shared<halfstep::wire::Layout>();
  const halfstep::ConstBytes text(static_cast<const std::byte*>(canonical), bytes);
  if (!halfstep::wire::Layout::parse(text, layout.get()).ok()) return -1;
  return client->core->register_layout(std::move(layout));
}

int hs_region_open(hs_client* client, void* base, size_t bytes, uint32_t cuda_device, hs_region** out, char* why,
                   size_t why_bytes) {
  if (forked(client)) {
    tell(why, why_bytes, kForked);
    return -1;
  }
  std::shared_ptr<halfstep::peer::DirectRegion> region;
  const Fault fault =
      client->core->open_region({static_cast<std::byte*>(base), bytes}, static_cast<int>(cuda_device - 1), &region);
  if (!fault.ok()) {
    tell(why, why_bytes, fault.what);
    return -1;
  }
  *out = new hs_region{client->core, client->generation, std::move(region)};
  return 0;
}

void hs_region_close(hs_region* region) {
  if (region == nullptr || forked(region)) return;
  region->core->close_region(*region->region);
  delete region;
}

int hs_queue_open(hs_client* client, hs_queue** out) {
  if (client == nullptr) {
    *out = new hs_queue{nullptr, halfstep::peer::process_generation(), {}};
    return 0;
  }
  if (forked(client)) return -1;
  *out = new hs_queue{client->core, client->generation, {}};
  client->core->remember_queue((*out)->queue);
  return 0;
}

void hs_queue_end(hs_queue* queue) {
  if (forked(queue)) return;
  if (queue->core != nullptr) return queue->core->end_queue(queue->queue);
  queue->queue.begin_end();
}

int hs_queue_ended(const hs_queue* queue) { return forked(queue) || queue->queue.ending() ? 1 : 0; }

void hs_queue_close(hs_queue* queue) {
  if (queue == nullptr || forked(queue)) return;
  hs_queue_end(queue);
  if (queue->core != nullptr) queue->core->forget_queue(queue->queue);
  queue->queue.drop_events();
  delete queue;
}

int hs_queue_descriptor(hs_queue* queue) {
  if (forked(queue)) return -1;
  return queue->core == nullptr ? queue->queue.descriptor() : queue->core->watch(queue->queue);
}

void hs_queue_keep(hs_queue* queue, int kept) {
  if (!forked(queue)) queue->queue.keep(kept != 0);
}

size_t hs_queue_poll(hs_queue* queue, hs_event* events, size_t max) {
  return forked(queue) || queue->core == nullptr ? 0 : queue->core->poll(queue->queue, events, max);
}

size_t hs_queue_wait(hs_queue* queue, hs_event* events, size_t max, uint64_t timeout_us) {
  return hs_queue_wait_unless(queue, events, max, timeout_us, hs_queue_nudges(queue));
}

uint64_t hs_queue_nudges(const hs_queue* queue) { return queue->queue.nudges(); }

size_t hs_queue_wait_unless(hs_queue* queue, hs_event* events, size_t max, uint64_t timeout_us, uint64_t nudges) {
  if (forked(queue)) return 0;
  if (queue->core == nullptr) return queue->queue.sleep(events, max, timeout_us, nudges);
  return queue->core->wait(queue->queue, events, max, timeout_us, nudges);
}

void hs_queue_nudge(hs_queue* queue) {
  if (forked(queue)) return;
  if (queue->core == nullptr) return queue->queue.nudge();
  queue->core->nudge(queue->queue);
}

hs_ticket hs_submit(hs_queue* queue, const hs_batch* batch, char* why, size_t why_bytes) {
  if (forked(queue)) {
    tell(why, why_bytes, kForked);
    return 0;
  }
  if (queue->core == nullptr) {
    tell(why, why_bytes, "no client: this queue was opened without one");
    return 0;
  }
  Ticket* ticket = nullptr;
  if (const Fault fault = take_batch(*queue, *batch, &ticket); !fault.ok()) {
    // One that is neither submitted nor withdrawn would keep its queue open for ever.
    if (ticket != nullptr) queue->core->withdraw(*ticket);
    tell(why, why_bytes, fault.what);
    return 0;
  }
  const hs_ticket id = ticket->id;  // the ticket may be over before submit() returns
  queue->core->submit(*ticket);
  return id;
}

void hs_cancel(hs_queue* queue, hs_ticket ticket) {
  if (!forked(queue) && queue->core != nullptr) queue->core->cancel(ticket);
}

uint32_t hs_component(uint32_t group, uint32_t variant, uint32_t cell) {
  return halfstep::wire::Component::of(group, variant, cell).value;
}

const char* hs_answer_name(uint8_t answer) { return halfstep::wire::answer_name(static_cast<halfstep::wire::Answer>(answer)); }

const char* hs_reason_name(uint16_t reason) { return halfstep::wire::reason_name(static_cast<halfstep::wire::Reason>(reason)); }

int hs_gpu_reachable(char* why, size_t why_bytes) {
  std::string text;
  const bool there = halfstep::gpu::system_cuda(&text) != nullptr;
  tell(why, why_bytes, text);
  return there ? 1 : 0;
}

const char* hs_version(void) {
  // Never destroyed: it may be asked for while the process exits.
  static const std::string* const text = new std::string(
      halfstep::kBuildType == "release" ? std::string(halfstep::kVersion)
                                        : std::string(halfstep::kVersion) + " (" + std::string(halfstep::kBuildType) + ")");
  return text->c_str();
}

}  // extern "C"
