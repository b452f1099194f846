// memory_engine.h — a device in RAM that fails on purpose: for the simulator, for tests, and for measuring what the software
// alone costs. Where the bytes live (MemoryDevice) and how they move (MemoryEngine) are two objects, so that a device is
// carried into a new engine after a crash, or copied to be crashed again.
//
// The fault model. All of it is driven by one seed: the same seed, requests and turns give the same bytes, errors and order.
//
// - Reordering (shuffle): requests in the queue take effect and complete in any order; each takes effect at one moment, between
//   submission and completion.
// - Delay (delay_polls_max): a request stays in the queue for up to so many polls.
// - Stall (stall_chance): a request stays for kStallPolls more, while all others pass it.
// - Late telling (completion_polls_max): a request is carried out, and that is told up to so many polls later.
// - Lost completion (lost_completion_chance): a request is carried out, and answered -ETIMEDOUT after kLostPolls, as a driver
//   does that resets. It keeps its place in the queue until then; what it did stays done, over a crash as well.
// - Write-back cache: a write that was carried out is seen by every later read, but is on media only after a flush that was
//   handed over after that. A flush covers no more.
// - Power cut: what is only in the cache is lost; each write survives with cut_survival_chance all the same, older ones no
//   sooner than newer ones. Writes in the queue count as cached or as never arrived, by coin, unless they were carried out.
// - Torn write (torn_writes): a write that survives a power cut, or that was in the queue at a crash, does so page by page,
//   each by its own coin. A page (4 KiB) is never torn in itself.
// - Killed process: the cache stays; of the writes in the queue each is done or not, by coin (page by page if torn_writes).
// - Errors, by chance or by a rule for an operation and a range (inject). Of a read: EIO; the memory then holds noise. Of a
//   write: EIO; any part of its pages may have been written. Of a flush: EIO; every cached page is by coin on media or lost,
//   and no later flush tells (as Linux does).
// - Bit flip (bit_flip_chance): a read returns one wrong bit; media are right, reading again helps.
// - Bit rot (rot): one bit of media is wrong from now on.
// - Misdirected read (misdirected_read_chance): a read returns another place's bytes.
// - Misdirected write (misdirected_write_chance): a write says that it was done, and lies at another place of the device.
// - No space (no_space_chance): ENOSPC of the host; nothing of the write is done.
// - Discard (of a device that takes_discards()): each page keeps what it has, is zeroes or is noise, by coin, in the cache and
//   on media at once. With an error (discard_error_chance) some pages have been discarded all the same. At a crash those in
//   the queue are done in any part.
//
// Not modelled: writes acknowledged and never done, tears inside a page, time. Every fault that fires is counted; a test that
// asks for one must see its counter. on_fault() also says where those of reads, writes and flushes did.
//
// Thread: the shard's. There is no wake descriptor: it is polled.
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/prng.h"
#include "base/units.h"
#include "io/engine.h"
#include "io/request.h"

namespace halfstep::io {

inline constexpr uint32_t kStallPolls = 60;
inline constexpr uint32_t kLostPolls = 300;  // until a request whose completion was lost is given up

struct MemoryFaults {
  bool shuffle = true;
  uint32_t delay_polls_max = 0;
  uint32_t completion_polls_max = 0;  // of a request that has been carried out, until that is told
  double stall_chance = 0;
  double read_error_chance = 0;
  double write_error_chance = 0;
  double flush_error_chance = 0;
  double bit_flip_chance = 0;
  double misdirected_read_chance = 0;
  double misdirected_write_chance = 0;
  double no_space_chance = 0;
  double discard_error_chance = 0;
  double lost_completion_chance = 0;  // done, and nobody is told: answered -ETIMEDOUT late, as a driver does that resets
  double cut_survival_chance = 0;
  bool torn_writes = false;
};

struct MemoryFaultCounters {
  uint64_t reordered = 0;  // requests completed before one that was handed over earlier, in the same poll
  uint64_t delayed = 0;
  uint64_t told_late = 0;
  uint64_t stalled = 0;
  uint64_t read_errors = 0;
  uint64_t write_errors = 0;
  uint64_t flush_errors = 0;
  uint64_t bit_flips = 0;
  uint64_t misdirected_reads = 0;
  uint64_t misdirected_writes = 0;
  uint64_t no_space_errors = 0;
  uint64_t discarded_pages = 0;  // that lost what they had
  uint64_t discard_errors = 0;
  uint64_t lost_completions = 0;  // each of them is an error of its kind, too
  uint64_t rotted_bits = 0;
  uint64_t lost_writes = 0;       // by crashes: nothing of it is left
  uint64_t torn_writes = 0;       // by crashes: some of its pages are left
  uint64_t surviving_writes = 0;  // by crashes: cached or in the queue, and whole afterwards
};

// One fault that fired, as on_fault() tells it. With an error the request said so; without, nobody knows but us. A misdirected
// write is told twice: where it should lie, and where it lies.
struct MemoryFault {
  Op op = Op::Read;
  uint8_t device = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  int32_t error = 0;
};

// Pages by number. Empty stretches cost neither memory nor time: a store of a terabyte is mostly that.
class SparsePages {
 public:
  using Page = std::array<std::byte, kPageBytes>;
  static constexpr uint64_t kStretch = 256;  // pages

  explicit SparsePages(uint64_t pages) : stretches_(div_up(pages, kStretch)) {}
  SparsePages(const SparsePages& other);
  SparsePages& operator=(const SparsePages&) = delete;

  // Null when there is none.
  const Page* find(uint64_t page) const noexcept {
    const auto& stretch = stretches_[page / kStretch];
    return stretch == nullptr ? nullptr : (*stretch)[page % kStretch].get();
  }
  bool empty_stretch(uint64_t page) const noexcept { return stretches_[page / kStretch] == nullptr; }
  // Made of zeros when there is none.
  Page& at(uint64_t page);
  void drop(uint64_t page) noexcept;
  uint64_t size() const noexcept { return size_; }

 private:
  using Stretch = std::array<std::unique_ptr<Page>, kStretch>;
  std::vector<std::unique_ptr<Stretch>> stretches_;
  uint64_t size_ = 0;
};

// Sparse: pages never written read as zeros and take no memory. Copying it copies media and cache.
class MemoryDevice {
 public:
  // `bytes` is a multiple of the page. Without a volatile cache a completed write is on media.
  explicit MemoryDevice(uint64_t bytes, bool volatile_cache = true);

  uint64_t bytes() const noexcept { return bytes_; }
  bool volatile_cache() const noexcept { return volatile_cache_; }
  uint64_t media_pages() const noexcept { return media_.size(); }
  uint64_t cached_pages() const noexcept;

  // Page-aligned, inside the device. What a reader of the device sees: the cache over media.
  void read(uint64_t offset, Bytes out) const;
  // One write; `keep(page)` says whether each of its pages arrives. Returns how many did.
  template <typename Keep>
  uint64_t write(uint64_t offset, ConstBytes from, Keep&& keep);
  bool takes_discards() const noexcept { return takes_discards_; }
  void take_discards() noexcept { takes_discards_ = true; }
  // Page-aligned. `keep` says of each page whether it stays as it is. Returns how many did not.
  template <typename Keep>
  uint64_t discard(uint64_t offset, uint64_t bytes, Prng& prng, Keep&& keep);
  // Everything up to write `through` goes to media.
  void flush(uint64_t through);
  uint64_t last_write() const noexcept { return last_write_; }

  void flip_bit(uint64_t offset, uint32_t bit);
  // A failed flush: each cached page goes to media or is lost.
  void lose_cached_pages(Prng& prng);
  void cut_power(Prng& prng, const MemoryFaults& faults, MemoryFaultCounters& counters);

 private:
  using Page = SparsePages::Page;
  struct Version {
    uint64_t write = 0;
    Page bytes;
  };
  void put_page(uint64_t page, const std::byte* from);

  uint64_t bytes_;
  bool volatile_cache_;
  bool takes_discards_ = false;
  uint64_t last_write_ = 0;
  SparsePages media_;
  std::map<uint64_t, std::vector<Version>> cache_;  // by page number, oldest version first
};

struct MemoryConfig {
  uint64_t seed = 0;
  uint32_t queue_depth = 64;
  MemoryFaults faults;
};

class MemoryEngine final : public Engine {
 public:
  // Requests of `op` that touch [offset, offset + bytes) of a device fail with `error`, so many
  // times.
  struct Rule {
    Op op = Op::Read;
    uint8_t device = 0;
    uint64_t offset = 0;
    uint64_t bytes = UINT64_MAX;
    int32_t error = -EIO;
    uint32_t times = UINT32_MAX;
  };
  enum class Crash : uint8_t { Killed, PowerCut };

  // `devices` outlive the engine.
  MemoryEngine(const MemoryConfig& config, std::vector<MemoryDevice*> devices);

  void submit(Request& request) noexcept override;
  void flush_submissions() noexcept override;
  size_t poll() noexcept override;
  void wait() noexcept override;
  int wake_descriptor() const noexcept override { return -1; }
  uint32_t in_flight() const noexcept override { return in_flight_; }
  uint64_t device_bytes(uint8_t device) const noexcept override {
    return device < devices_.size() ? devices_[device]->bytes() : 0;
  }
  DiscardLimits discard_limits(uint8_t device) const noexcept override {
    return device < devices_.size() && devices_[device]->takes_discards() ? DiscardLimits{kPageBytes, GiB} : DiscardLimits();
  }
  bool gathers() const noexcept override { return true; }  // it moves them one by one, and has room for all
  const EngineFacts& facts() const noexcept override { return facts_; }
  const EngineCounters& counters() const noexcept override { return counters_; }

  void inject(const Rule& rule) { rules_.push_back(rule); }
  void set_faults(const MemoryFaults& faults) noexcept { faults_ = faults; }
  // Asked of each request as it is carried out: 0, or the error that it fails with. An outage of a device.
  void set_outage(std::function<int32_t(const Request&)> error_of) { outage_ = std::move(error_of); }
  void on_fault(std::function<void(const MemoryFault&)> told) { on_fault_ = std::move(told); }
  // Flips one bit of [offset, offset + bytes) for good, and says which: offset * 8 + bit.
  uint64_t rot(uint8_t device, uint64_t offset, uint64_t bytes);
  // The process or the machine is gone: what was in flight never completes, the engine answers
  // -ENODEV from here on, and the devices are as a restart finds them.
  void crash(Crash how);
  const MemoryFaultCounters& fault_counters() const noexcept { return fault_counters_; }

 private:
  struct Active {
    Request* request = nullptr;
    uint32_t polls_left = 0;
    bool executed = false;  // it is only to be told of
    uint64_t flush_through = 0;
    uint64_t number = 0;  // order of handing over
  };

  void turn();
  void execute(const Active& active);
  bool told_late(Active& active);
  void lose_completion(Active& active);
  void read(Request& request, MemoryDevice& device);
  void write(Request& request, MemoryDevice& device);
  void flush(Request& request, MemoryDevice& device, uint64_t through);
  void discard(Request& request, MemoryDevice& device);
  int32_t ruled_error(const Request& request) noexcept;
  // Another place of the device for so many bytes; counted when it differs from `offset`.
  uint64_t elsewhere(uint64_t offset, uint64_t bytes, const MemoryDevice& device, uint64_t& counter);
  void tell(const Request& request, uint64_t offset, uint64_t bytes);

  std::vector<MemoryDevice*> devices_;
  MemoryFaults faults_;
  Prng prng_;
  std::vector<Rule> rules_;
  std::vector<Active> active_;
  std::vector<Active> due_;
  uint64_t handed_over_ = 0;
  uint32_t in_flight_ = 0;
  bool crashed_ = false;
  RequestQueue waiting_;
  RequestQueue done_;
  EngineFacts facts_;
  EngineCounters counters_;
  MemoryFaultCounters fault_counters_;
  std::function<void(const MemoryFault&)> on_fault_;
  std::function<int32_t(const Request&)> outage_;
};

}  // namespace halfstep::io
