// peer_core.h — a client core, as a Python object holds it.
// Invariants: in a forked child nothing of a core is touched: it is leaked (docs/client-contract.md, *Fork and exit*).
// Thread: with the GIL held, which is released wherever the core may wait.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peer/halfstep.h"

namespace halfstep::bind {

namespace nb = nanobind;

struct Options {
  std::string address;
  std::string name_space;
  uint32_t connections = 1;
  uint32_t tickets_max = 0;
  uint64_t codecs = 0;
  std::string transport = "auto";
  std::string coding = "auto";
};

// Room for the core's text of why a call failed.
inline constexpr size_t kWhyBytes = 512;
inline constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

// A time of Python's time.monotonic(); None = kNever. Microseconds.
uint64_t time_of(nb::handle until);
uint64_t now_us();
// How long a thread that has signals to hear may wait in the core. kNever for one that has none to hear.
uint64_t slice_us();

class Core {
 public:
  // Lacking: out of descriptors or threads.
  explicit Core(const Options& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  hs_client* handle() const;
  const std::shared_ptr<hs_client>& shared() const noexcept { return client_; }
  bool forked() const noexcept { return client_ != nullptr && hs_client_forked(client_.get()) != 0; }
  bool closed() const noexcept { return client_ == nullptr; }
  // Fences what is in flight. Whoever waits for it hears so; the last one of them to leave frees it.
  void close() noexcept;
  // In a child: forgets the core without touching it.
  void abandon() noexcept { client_.reset(); }
  int register_layout(nb::bytes canonical);
  // 1 ready, 0 not within the time, -1 refused for good, and why. Signals are heard while it waits.
  std::pair<int, std::string> wait_ready(double timeout_s);
  hs_client_facts facts() const;
  std::vector<hs_shard_load> loads() const;

 private:
  struct End {
    void operator()(hs_client* client) const noexcept;
  };

  // Shared with the threads that wait without the GIL.
  std::shared_ptr<hs_client> client_;
};

}  // namespace halfstep::bind
