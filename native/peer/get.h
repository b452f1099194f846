// get.h — brings the payload of a get into the caller's memory and checks it while it is hot.
// Every run of a Chunk is checked against what was asked before a byte of it is received: the item, the parts, that each comes
// once, that lengths agree with the group's shape and with what was said of the block before. What breaks a rule ends the
// connection (Invalid). What merely has no place, or no chance to become ok, goes to scratch.
// Invariants: no memory outside a target that fits is ever named to the stream; after drop() none at all.
// Thread: the client's. One for each connection: a connection receives one Chunk at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "net/stream.h"
#include "peer/request.h"
#include "wire/records.h"

namespace halfstep::peer {

class Lander {
 public:
  // The Chunk that begins to arrive. `block_bytes_max` is what the daemon announced.
  Status begin(Request& request, ConstBytes body, uint32_t payload_bytes, uint32_t block_bytes_max, net::Landing* landing);
  void landed(ConstBytes piece, size_t skipped);
  // The chunk is over.
  void drop() noexcept {
    request_ = nullptr;
    steps_.clear();
  }
  // Whose payload lands now.
  Request* request() const noexcept { return request_; }
  uint64_t checksum_failures() const noexcept { return checksum_failures_; }

 private:
  enum class End : uint8_t { Piece, Part, Aborted };
  // Bytes of one part that lie one after the other in the payload, and what their end is.
  struct Step {
    Section* section;
    uint32_t item;
    uint32_t part;
    uint32_t left;
    uint32_t check;
    End end;
    bool lands;  // in the target, and is summed; else in scratch
  };

  Status plan_run(const wire::Run& run, uint32_t* next_check);
  Status plan_parts(Section& section, uint32_t item, const wire::Run& run, uint32_t* next_check);
  Status plan_piece(Section& section, uint32_t item, const wire::Run& run, uint32_t* next_check);
  void place(const Section& section, uint32_t item, uint32_t part, uint32_t offset, uint32_t bytes);
  void skip(uint32_t bytes);
  void name_pending();
  void end_steps();

  Request* request_ = nullptr;
  wire::RunsView runs_;
  uint32_t block_bytes_max_ = 0;
  net::Landing* landing_ = nullptr;
  Bytes pending_;  // memory not named yet: what follows may continue it
  std::vector<Step> steps_;
  size_t step_ = 0;
  uint64_t checksum_failures_ = 0;
};

}  // namespace halfstep::peer
