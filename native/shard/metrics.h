// metrics.h — what one shard counts, and how its numbers are told to the outside.
// Invariants: counters only grow while the shard lives; nothing here builds a string before collect().
// Thread: the shard's; what collect() made belongs to whoever asked.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "base/numa.h"
#include "io/drive_watch.h"
#include "io/engine.h"
#include "net/rdma_pipe.h"
#include "net/zero_copy.h"
#include "shard/decoder.h"
#include "shard/histogram.h"
#include "shard/key_waiters.h"
#include "shard/samples.h"
#include "store/store.h"
#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::shard {

// Why a connection was ended by us.
enum class ProtocolError : uint8_t {
  Frame,      // magic, checksum, length or flags of a frame
  NoHello,    // something else came first, or nothing in time
  Hello,      // a Hello that does not parse, or a second one
  RequestId,  // zero, or in flight already
  Opcode,     // one that only a server sends
  Chunk,      // runs that do not parse, or for a request that takes none
  Credit,     // more put bytes than were granted
};
inline constexpr size_t kProtocolErrors = 7;

class Counts {
 public:
  // Requests in the order of their opcodes; the first place is of those that nobody knows.
  static constexpr size_t kOldCommands = static_cast<size_t>(wire::Opcode::Namespace) + 1;
  static constexpr size_t kNewCommands = static_cast<size_t>(wire::Opcode::RegisterTemplate) - wire::kRequestOpcodes + 1;
  static constexpr size_t kCommands = kOldCommands + kNewCommands;

  void request(wire::Opcode opcode) noexcept { ++requests_[command(opcode)]; }
  void answer(wire::Opcode opcode, wire::AnswerReason status, uint64_t count = 1) noexcept {
    answers_[command(opcode)][outcome(status)] += count;
  }
  void latency(wire::Opcode opcode, uint64_t us) noexcept { latencies_[command(opcode)].add(us); }
  void protocol_error(ProtocolError kind) noexcept { ++protocol_errors_[static_cast<size_t>(kind)]; }

  uint64_t connections_accepted = 0;
  uint64_t connections_refused = 0;
  uint64_t connections_gave_way = 0;   // ended while idle, for a newcomer
  uint64_t connections_relieved = 0;   // ended because the memory of requests was exceeded
  uint64_t rings_refused = 0;          // to connections that asked for shared memory, for want of it
  uint64_t request_bytes = 0;          // gauge: of that memory
  uint64_t connections_unread = 0;     // times that reading paused because a client did not read
  uint64_t connections_stalled = 0;    // ended because a client took next to nothing of what was queued for it
  uint64_t grants_taken_back = 0;      // times that a connection lost what it was granted and did not fill
  uint64_t connections_open = 0;       // gauge
  uint64_t connections_shm = 0;        // gauge: of the open ones, those over shared memory
  uint64_t connections_rdma = 0;       // gauge: of the open ones, those over rings that RDMA fills
  uint64_t rdma_refused = 0;           // offers of such rings
  uint64_t rdma_pinned_bytes = 0;      // gauge: for rings, of the process
  net::RdmaCounts rdma;                // collect() is told it
  uint64_t connections_zero_copy = 0;  // gauge: of the open ones, those that send without a copy as things are
  uint64_t zero_copy_held_bytes = 0;   // gauge: sent so, and not yet given back by the kernel; of ended connections, too
  bool zero_copy_on = false;           // gauge: it is asked for, and the kernel has it
  net::ZeroCopyCounts zero_copy;       // collect() is told it
  uint64_t requests_open = 0;          // gauge
  uint64_t requests_waiting = 0;       // gauge: of them, those that have waited for blocks that others store
  KeyWaiters::Counts waits;            // collect() is told it
  Decoder::Counts decodes;             // collect() is told it
  uint64_t bytes_received = 0;         // of connections that have ended; collect() is told those of live ones
  uint64_t bytes_sent = 0;
  uint64_t get_payload_bytes = 0;
  uint64_t put_payload_bytes = 0;
  uint64_t put_scratch_bytes = 0;  // received and dropped
  uint64_t put_checks_failed = 0;  // parts whose bytes did not match their check
  uint64_t credit_held_bytes = 0;  // gauge: slots that await parts, blocks pinned for sending
  uint64_t stages_open = 0;        // gauge: blocks that prefetches ask for and that have not come yet

  void collect(const store::Counters& store, const store::Gauges& gauges, const store::RecoveryReport& recovery,
               const io::Engine& engine, Metrics* out) const;

 private:
  // Every reason belongs to one answer; an answer without a reason gets a place behind them.
  static constexpr size_t kReasons = 96;
  static constexpr size_t kOutcomes = kReasons + static_cast<size_t>(wire::Answer::Unavailable) + 1;
  static_assert(static_cast<size_t>(wire::Reason::Copy) < kReasons);

  static size_t command(wire::Opcode opcode) noexcept {
    const auto at = static_cast<size_t>(opcode);
    if (at >= wire::kRequestOpcodes)
      return at < wire::kRequestOpcodes + kNewCommands ? kOldCommands + at - wire::kRequestOpcodes : 0;
    return at < kOldCommands ? at : 0;
  }
  static wire::Opcode opcode_at(size_t command) noexcept {
    return static_cast<wire::Opcode>(command < kOldCommands ? command : wire::kRequestOpcodes + command - kOldCommands);
  }
  static size_t outcome(wire::AnswerReason status) noexcept {
    const auto reason = static_cast<size_t>(status.reason);
    return status.reason != wire::Reason::None && reason < kReasons ? reason : kReasons + static_cast<size_t>(status.answer);
  }
  void collect_requests(Metrics* out) const;

  std::array<uint64_t, kCommands> requests_{};
  std::array<std::array<uint64_t, kOutcomes>, kCommands> answers_{};
  std::array<LatencyHistogram, kCommands> latencies_{};
  std::array<uint64_t, kProtocolErrors> protocol_errors_{};
};

void collect_events(const store::Events& events, Metrics* out);
// What every namespace may have and has; their first label is its name.
void collect_namespaces(const std::vector<store::NamespaceInfo>& namespaces, Metrics* out);
// What each has, by group and codecs: the first kKindsShown of a namespace, and the rest of them together.
inline constexpr size_t kKindsShown = 16;
void collect_stocks(std::span<const store::NamespaceStock> stocks, Metrics* out);
// "raw", "bfx", "bfx+ubq"; a number where this build has no name.
std::string codecs_name(uint64_t codecs);

// What the drive counts as written, as long as it is known.
void collect_drive(const io::DriveWatch& drive, Metrics* out);

// On which memory nodes the pages lie that were looked at. of: what they are of.
void collect_pages(const char* of, const numa::Pages& pages, Metrics* out);

// Adds one shard's numbers to those of the others: sums, but for the few that say how long or how old something is.
void add_shard(const Metrics& shard, Metrics* total);

// As Prometheus writes it: name{label="value",…}.
std::string sample_name(const Sample& sample);

// Names as they stand in metrics and in docs/wire-protocol.md; "" for a number that has none.
const char* command_name(wire::Opcode opcode) noexcept;
const char* protocol_error_name(ProtocolError kind) noexcept;

}  // namespace halfstep::shard
