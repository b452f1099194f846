#include "bind/peer_core.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "bind/interpreter.h"
#include "bind/peer_memory.h"

namespace halfstep::bind {
namespace {

// How long a signal may go unheard. The core's wait ends at once on an event; this is only for the handler's sake.
constexpr uint64_t kSliceUs = 50'000;

uint64_t as_us(double seconds) {
  if (seconds < 0) return kNever;
  return static_cast<uint64_t>(std::min(seconds * 1e6, 9e18));
}

}  // namespace

uint64_t time_of(nb::handle until) { return until.is_none() ? kNever : as_us(std::max(nb::cast<double>(until), 0.0)); }

// The clock of time.monotonic() in CPython.
uint64_t now_us() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(since).count());
}

uint64_t slice_us() {
  // A child's main thread is the one that forked. To ask for the process each time would be a system call in every get.
  static bool known = false;
  static unsigned long main_thread = 0;
  static const bool forgets = ::pthread_atfork(nullptr, nullptr, [] { known = false; }) == 0;
  if (!known) {
    main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
    known = forgets;
  }
  return PyThread_get_thread_ident() == main_thread ? kSliceUs : kNever;
}

Core::Core(const Options& options) {
  const hs_options given{.struct_bytes = sizeof(hs_options),
                         .address = options.address.c_str(),
                         .name_space = options.name_space.c_str(),
                         .connections = options.connections,
                         .connect_timeout_ms = 0,
                         .backoff_ms_min = 0,
                         .backoff_ms_max = 0,
                         .tickets_max = options.tickets_max,
                         .codecs = options.codecs,
                         .transport = options.transport.c_str(),
                         .coding = options.coding.c_str()};
  std::array<char, kWhyBytes> why{};
  hs_client* client = nullptr;
  int opened = 0;
  {
    const Unlocked unlocked;
    opened = hs_client_open(&given, &client, why.data(), why.size());
  }
  if (opened == -2) throw Lacking(why.data());
  if (opened != 0) throw Refused(why.data());
  client_ = std::shared_ptr<hs_client>(client, End());
}

Core::~Core() { close(); }

hs_client* Core::handle() const {
  if (client_ == nullptr) throw Refused("client is closed");
  return client_.get();
}

void Core::close() noexcept {
  const std::shared_ptr<hs_client> client = std::exchange(client_, nullptr);
  if (client == nullptr || hs_client_forked(client.get()) != 0) return;
  const Unlocked unlocked;
  hs_client_end(client.get());
}

void Core::End::operator()(hs_client* client) const noexcept {
  if (hs_client_forked(client) != 0) return;  // the parent's
  const Unlocked unlocked;
  hs_client_close(client);
}

int Core::register_layout(nb::bytes canonical) {
  const int handle_number = hs_layout_register(handle(), canonical.c_str(), canonical.size());
  if (handle_number < 0) throw Refused("layout: the core refuses its canonical form");
  return handle_number;
}

std::pair<int, std::string> Core::wait_ready(double timeout_s) {
  handle();
  const std::shared_ptr<hs_client> client = client_;
  std::array<char, kWhyBytes> why{};
  for (uint64_t left_us = as_us(timeout_s);;) {
    const uint64_t part_us = std::min(left_us, kSliceUs);
    int ready = 0;
    {
      const Unlocked unlocked;
      ready = hs_client_wait_ready(client.get(), static_cast<uint32_t>((part_us + 999) / 1000), why.data(), why.size());
    }
    handle();  // closed meanwhile?
    if (left_us != kNever) left_us -= part_us;
    if (ready != 0 || left_us == 0) return {ready, why.data()};
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

std::vector<hs_shard_load> Core::loads() const {
  std::vector<hs_shard_load> loads(hs_client_get_loads(handle(), nullptr, 0));
  // There may be other shards by now.
  loads.resize(std::min(loads.size(), hs_client_get_loads(handle(), loads.data(), loads.size())));
  return loads;
}

hs_client_facts Core::facts() const {
  hs_client_facts facts{};
  hs_client_get_facts(handle(), &facts);
  return facts;
}

}  // namespace halfstep::bind
