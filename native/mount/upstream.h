// upstream.h — the daemon behind a mount: a client of it for each namespace, requests with keys, and their ends.
// State of a request: built (its owner's) -> submitted (the client core's: nobody touches it, nor the memory that it names) ->
// ended, by the core's terminal event, which is its fence -> done() from turn().
// Invariants: every submitted request has its done() exactly once, from turn() or end(), also one that the core refuses; memory
// that it names is free for others from done() on and no sooner.
// Thread: the shard's. The client cores have threads of their own, and tell of an end by `descriptor()`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "mount/options.h"
#include "peer/halfstep.h"
#include "store/format/block.h"

namespace halfstep::mount {

// Blocks of one component, one layout and one life. Item i of each list is one block.
struct UpstreamSection {
  int layout = 0;
  uint32_t component = 0;
  uint32_t ttl_s = 0;
  uint8_t hint = 0;
  uint32_t count = 0;
  std::vector<uint8_t> keys;  // packed
  std::vector<store::IndexKey> index_keys;
  std::vector<void*> owners;
  std::vector<hs_iovec> pieces;
  std::vector<uint32_t> piece_counts;
  std::vector<uint32_t> block_bytes;
  std::vector<uint64_t> parents;
  std::vector<uint16_t> depths;
  std::vector<hs_answer> answers;  // these two when it has ended
  std::vector<uint32_t> lengths;

  void add_key(ConstBytes key);
};

struct UpstreamRequest {
  uint32_t operation = 0;
  uint32_t space = 0;
  uint32_t deadline_us = 0;
  bool persist = false;        // a put, or a hold that survives restarts
  uint64_t hold_owner = 0;     // hold, renew, release
  uint64_t value = 0;          // hold, renew: milliseconds; expire: seconds; 0 = without end
  uint64_t started_us = 0;     // its owner's to set
  uint64_t question = 0;       // the same
  uint64_t bytes = 0;          // of its blocks
  wire::LayoutId layout_id{};  // clear
  hs_answer outcome{};         // clear, when it has ended
  std::vector<UpstreamSection> sections;
  std::function<void(UpstreamRequest&)> done;

  static constexpr size_t kSectionsMax = 16;
  static constexpr uint32_t kItemsMax = 4096;
  // The section for such a block; null: this request takes no more.
  UpstreamSection* section_for(int layout, uint32_t component, uint32_t ttl_s = 0, uint8_t hint = 0);
  uint32_t items = 0;
};

class Upstream {
 public:
  Upstream() = default;
  Upstream(const Upstream&) = delete;
  Upstream& operator=(const Upstream&) = delete;
  ~Upstream();

  // Does not wait for the daemon.
  Fault open(const Options& options);
  // Readable when a request has ended.
  int descriptor() const noexcept { return epoll_; }
  // Waits so long for all namespaces; the reason where the daemon refuses one for good.
  Fault wait_ready(uint32_t timeout_ms);
  // The largest block that it takes; 0: it has not been reached.
  uint32_t block_bytes_max() const;
  // UINT32_MAX: not among the options.
  uint32_t space_of(std::string_view name) const noexcept;
  size_t spaces() const noexcept { return spaces_.size(); }
  // A handle, or -1.
  int register_layout(uint32_t space, ConstBytes canonical);

  void submit(std::unique_ptr<UpstreamRequest> request);
  // done() of all that has ended.
  void turn();
  size_t in_flight() const noexcept { return requests_.size(); }
  // Waits for an end, at most so long.
  void wait(uint32_t timeout_ms) const;
  // Cancels what is in flight, and done() of it; nothing is submitted afterwards.
  void end();
  void facts(uint32_t space, hs_client_facts* out) const;

 private:
  struct Space {
    std::string name;
    hs_client* client = nullptr;
    hs_queue* queue = nullptr;
  };
  void finish(uint64_t number);

  int epoll_ = -1;
  std::vector<Space> spaces_;
  uint64_t next_number_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<UpstreamRequest>> requests_;
  std::vector<uint64_t> refused_;  // by the core itself: done at the next turn
  int wake_ = -1;                  // an eventfd for those
  bool ended_ = false;
};

// What an answer means to whoever asked the mount. Ok; NotFound: the daemon has it not; Throttled; IoError(kNoAnswer): nobody
// knows.
Status status_of(const hs_answer& answer) noexcept;

}  // namespace halfstep::mount
