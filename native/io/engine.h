// engine.h — how bytes move between an arena and a device. Where they live is the Backing's affair (backing.h).
// One interface, several engines: `uring` (io_uring, the default), `pread` (a small thread pool, where io_uring is refused),
// `memory` (RAM with a fault model: simulator and software-cost benchmarks), `vhost_user` (another process that has the drive),
// `uring_cmd` (NVMe commands past the block layer).
// Invariants: a Request belongs to the engine from submit() to its complete(), which comes exactly once, from poll(), on the
// shard's thread, never from inside submit(); its memory must stay until then. Short transfers are carried on by the engine:
// a completed request moved all of its bytes or failed. An address outside the device, or off the page, comes back as
// -EINVAL; a transfer that cannot go on (a file that was cut) as -EIO.
// Discard tells a block device that a range holds nothing any more. From submit() on, also when it fails, and for as long as
// nobody writes there, a read of the range gives anything: what was there, zeroes, something else at every read, an error. A
// write of the range that is submitted after its completion is safe from it; one before is not. It flushes nothing and is no
// part of a flush. Devices that take none (all files; discard_limits()) answer -EOPNOTSUPP.
// Thread: one, not always the one that called open_engine(): the first that submits and flushes; a ring belongs to it.
// It destroys the engine too, or has ended before. Destruction waits for what the kernel has in hand and then drops every
// request, completed or not, without calling complete(): the kernel touches no memory of theirs any more.
// Must never: block in submit() or flush_submissions(), print, or reorder a Flush before writes completed earlier. A Flush says
// nothing of a write whose complete() had not come when it was submitted, whichever of the two comes first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/status.h"
#include "io/discard.h"

namespace halfstep::io {

class Backing;

enum class Op : uint8_t { Read, Write, Flush, Discard };

// Whom a request is for, most urgent first: a scheduler (scheduler.h) goes by it, engines do not.
// Demand: reads of gets, and the small writes that somebody waits for; Prefetch: reads ahead of their get, and of what is being
// recovered; Write: new blocks, and the footers that the next ones wait for; Reclaim: copies, and all that keeps the store in
// order; Scrub: looks for what nobody has asked for.
enum class IoClass : uint8_t { Demand, Prefetch, Write, Reclaim, Scrub };
inline constexpr size_t kIoClasses = 5;

// Intrusive: lives in its owner's pooled object, so that nothing is allocated per request.
struct Request {
  Op op = Op::Read;
  uint8_t device = 0;     // index of the backing given to the engine
  uint8_t placement = 0;  // stream of the data; engines that can use it do (FDP), others ignore it
  IoClass io_class = IoClass::Demand;
  bool alone = false;         // never in one request with a neighbour's: it was read before, and wrongly
  bool whole = false;         // a piece of what its owner, who is not null, has use for only when all of it has landed
  uint32_t bytes = 0;         // a multiple of the page; 0 for Flush
  uint64_t offset = 0;        // page-aligned
  std::byte* data = nullptr;  // Read and Write: page-aligned, in the arena or in memory that outlives the request

  int32_t error = 0;                             // after completion: 0 or negative errno
  void (*complete)(Request& request) = nullptr;  // may submit further requests
  void* owner = nullptr;

  // The engine's own.
  uint32_t engine_done_bytes = 0;
  uint8_t engine_retries = 0;
  uint16_t engine_pieces = 0;  // at the device, where a request is more than one
  Request* engine_next = nullptr;
  // A scheduler's.
  bool engine_gathered = false;  // it goes with the one before, and takes no place of its own
  bool engine_apart = false;     // others of its whole go by themselves, so that gets come in between
  void* engine_scheduler = nullptr;
  void (*engine_complete)(Request& request) = nullptr;
  uint64_t engine_queued_us = 0;
  uint64_t engine_started_us = 0;
};

// What is really in force, for the first lines of `serve` and for `stat`.
struct EngineFacts {
  std::string name;          // "uring", "pread", "memory", "vhost_user", "uring_cmd"
  std::string why_fallback;  // not empty when this engine stands in for another: cause and remedy
  bool registered_buffers = false;
  bool registered_files = false;
  std::string why_unregistered;  // not empty when a ring had to go on without one of the two: cause and remedy
  std::string why_async;         // not empty where requests go through threads of the kernel's: whose submission would wait
  std::string ring_features;     // "single_issuer defer_taskrun ..." or empty
  uint32_t queue_depth = 0;
  std::string discard;         // how ranges are discarded: "ring command", "ioctl", "deallocate command", or "none"
  std::string why_no_discard;  // not empty when a device would take discards and gets none: cause and remedy
  // Of NVMe commands.
  uint32_t command_bytes_max = 0;  // a request of more is several; 0: no such limit is known
  uint32_t placements = 0;         // streams that the drive keeps apart; 0: none
  std::string why_no_placements;   // not empty where the drive has such and gives none
  bool polled = false;             // completions are looked for, without interrupts
};

struct EngineCounters {
  uint64_t reads = 0, read_bytes = 0, writes = 0, write_bytes = 0, flushes = 0, errors = 0;
  uint64_t discards = 0, discard_bytes = 0;
  uint64_t reads_gathered = 0, writes_gathered = 0;  // of them: went to the kernel together with a neighbour's
  uint64_t gathers_refused = 0;                      // by the device or its file system; gathering is tried again later
  uint64_t submissions = 0;  // calls of an io_uring engine by which the kernel took requests, but for those that also waited
  // Of a vhost_user engine: how often it told the target of requests; and its target went, and what was in flight failed.
  uint64_t kicks = 0, losses = 0;
};

struct SchedulerCounters;

class Engine {
 public:
  virtual ~Engine() = default;

  virtual void submit(Request& request) noexcept = 0;
  // A get waits for this request, which was submitted for somebody less urgent and has not completed.
  virtual void hurry(Request&) noexcept {}
  // Hands what submit() collected, and what waited for room in the queue, to the kernel: call once per turn of the loop,
  // after poll() and whether or not anything was submitted in this turn.
  virtual void flush_submissions() noexcept = 0;
  // Runs complete() of what has finished, or of some of it (ready()); returns how many. Never waits.
  virtual size_t poll() noexcept = 0;
  // Blocks until at least one request in flight has finished (or none is in flight), for start-up and shutdown alone.
  virtual void wait() noexcept = 0;
  // An eventfd that is written to when poll() has work that it has not seen (ready()): to be watched by edge, for io_uring's is
  // never read, which would be a system call of every turn. -1 for an engine that is only polled (memory).
  virtual int wake_descriptor() const noexcept = 0;
  virtual uint32_t in_flight() const noexcept = 0;
  // Whether neighbours go to the kernel as one request (gather_run.h), and so take one place.
  virtual bool gathers() const noexcept { return false; }
  // Whether poll() left some that have finished for the next one, of which no descriptor tells.
  virtual bool ready() const noexcept { return false; }
  // What the backing has; 0 for a device that there is not.
  virtual uint64_t device_bytes(uint8_t device) const noexcept = 0;
  // What may be asked of this device by Op::Discard; taken() is false where nothing may.
  virtual DiscardLimits discard_limits(uint8_t device) const noexcept = 0;
  virtual const EngineFacts& facts() const noexcept = 0;
  virtual const EngineCounters& counters() const noexcept = 0;
  // Of a scheduler; null for all others.
  virtual const SchedulerCounters* scheduler_counters() const noexcept { return nullptr; }
};

enum class EngineChoice : uint8_t { Auto, Uring, UringCmd, Pread };

struct EngineConfig {
  // Auto: uring_cmd on an NVMe namespace, else uring, else pread, each with the reason why not the one before in facts().
  EngineChoice choice = EngineChoice::Auto;
  bool polled = false;  // completions of uring_cmd; refused where the drive has none
  uint32_t queue_depth = 128;
  uint32_t pread_threads = 4;
  uint32_t engines = 1;  // that share the backings: a vhost-user target has a queue for each, and serves when all are there
};

// `backings` outlive the engine; the arena does too.
Fault open_engine(const EngineConfig& config, Arena& arena, const std::vector<Backing*>& backings,
                  std::unique_ptr<Engine>* out);
// For a look at a store: the reads and writes of one thread.
Fault open_plain_engine(Arena& arena, Backing& backing, std::unique_ptr<Engine>* out);

}  // namespace halfstep::io
