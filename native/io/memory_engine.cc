#include "io/memory_engine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "io/finished.h"

namespace halfstep::io {
namespace {

constexpr double kNoiseShare = 0.25;  // of the pages that are discarded; the others are zeroes

struct Fate {
  uint64_t pages = 0;
  uint64_t kept = 0;
};

void tally(const Fate& fate, MemoryFaultCounters& counters) noexcept {
  if (fate.kept == fate.pages) {
    ++counters.surviving_writes;
  } else if (fate.kept == 0) {
    ++counters.lost_writes;
  } else {
    ++counters.torn_writes;
  }
}

bool touches(const MemoryEngine::Rule& rule, const Request& request) noexcept {
  if (rule.times == 0 || rule.op != request.op || rule.device != request.device) return false;
  if (request.op == Op::Flush) return true;
  const bool before_its_end = rule.bytes > UINT64_MAX - rule.offset || request.offset < rule.offset + rule.bytes;
  return before_its_end && rule.offset < request.offset + request.bytes;
}

}  // namespace

SparsePages::SparsePages(const SparsePages& other) : stretches_(other.stretches_.size()) {
  for (uint64_t page = 0; page < stretches_.size() * kStretch; page += other.empty_stretch(page) ? kStretch : 1) {
    if (const Page* from = other.find(page); from != nullptr) at(page) = *from;
  }
}

SparsePages::Page& SparsePages::at(uint64_t page) {
  std::unique_ptr<Stretch>& stretch = stretches_[page / kStretch];
  if (stretch == nullptr) stretch = std::make_unique<Stretch>();
  std::unique_ptr<Page>& there = (*stretch)[page % kStretch];
  if (there == nullptr) {
    there = std::make_unique<Page>();
    ++size_;
  }
  return *there;
}

void SparsePages::drop(uint64_t page) noexcept {
  Stretch* stretch = stretches_[page / kStretch].get();
  if (stretch == nullptr || (*stretch)[page % kStretch] == nullptr) return;
  (*stretch)[page % kStretch] = nullptr;
  --size_;
}

MemoryDevice::MemoryDevice(uint64_t bytes, bool volatile_cache)
    : bytes_(bytes), volatile_cache_(volatile_cache), media_(bytes / kPageBytes) {
  HALFSTEP_CHECK(bytes > 0 && bytes % kPageBytes == 0, bytes);
}

uint64_t MemoryDevice::cached_pages() const noexcept {
  uint64_t pages = 0;
  for (const auto& [page, versions] : cache_) pages += versions.size();
  return pages;
}

void MemoryDevice::read(uint64_t offset, Bytes out) const {
  HALFSTEP_CHECK(offset % kPageBytes == 0 && out.size() % kPageBytes == 0 && offset + out.size() <= bytes_, offset + out.size(),
                 bytes_);
  auto cached = cache_.lower_bound(offset / kPageBytes);
  for (size_t done = 0; done < out.size(); done += kPageBytes) {
    const uint64_t page = (offset + done) / kPageBytes;
    std::byte* to = out.data() + done;
    if (cached != cache_.end() && cached->first == page) {
      std::memcpy(to, cached->second.back().bytes.data(), kPageBytes);
      ++cached;
    } else if (const Page* stored = media_.find(page); stored != nullptr) {
      std::memcpy(to, stored->data(), kPageBytes);
    } else {
      std::memset(to, 0, kPageBytes);
    }
  }
}

void MemoryDevice::put_page(uint64_t page, const std::byte* from) { std::memcpy(media_.at(page).data(), from, kPageBytes); }

template <typename Keep>
uint64_t MemoryDevice::write(uint64_t offset, ConstBytes from, Keep&& keep) {
  HALFSTEP_CHECK(offset % kPageBytes == 0 && from.size() % kPageBytes == 0 && offset + from.size() <= bytes_,
                 offset + from.size(), bytes_);
  const uint64_t write = ++last_write_;
  uint64_t kept = 0;
  for (size_t done = 0; done < from.size(); done += kPageBytes) {
    const uint64_t page = (offset + done) / kPageBytes;
    if (!keep(page)) continue;
    ++kept;
    if (!volatile_cache_) {
      put_page(page, from.data() + done);
      continue;
    }
    Version& version = cache_[page].emplace_back();
    version.write = write;
    std::memcpy(version.bytes.data(), from.data() + done, kPageBytes);
  }
  return kept;
}

template <typename Keep>
uint64_t MemoryDevice::discard(uint64_t offset, uint64_t bytes, Prng& prng, Keep&& keep) {
  HALFSTEP_CHECK(offset % kPageBytes == 0 && bytes % kPageBytes == 0 && offset + bytes <= bytes_, offset + bytes, bytes_);
  uint64_t gone = 0;
  for (uint64_t page = offset / kPageBytes; page < (offset + bytes) / kPageBytes; ++page) {
    if (keep(page)) continue;
    ++gone;
    cache_.erase(page);
    media_.drop(page);
    // Noise costs more to make than zeroes, and shows no more than they do where there is much of it.
    if (prng.chance(kNoiseShare)) prng.fill(media_.at(page));
  }
  return gone;
}

void MemoryDevice::flush(uint64_t through) {
  for (auto it = cache_.begin(); it != cache_.end();) {
    std::vector<Version>& versions = it->second;
    const auto later =
        std::find_if(versions.begin(), versions.end(), [through](const Version& v) { return v.write > through; });
    if (later != versions.begin()) put_page(it->first, std::prev(later)->bytes.data());
    versions.erase(versions.begin(), later);
    it = versions.empty() ? cache_.erase(it) : std::next(it);
  }
}

void MemoryDevice::flip_bit(uint64_t offset, uint32_t bit) {
  HALFSTEP_CHECK(offset < bytes_ && bit < 8, offset, bytes_, bit);
  const uint64_t page = offset / kPageBytes;
  const std::byte mask{static_cast<unsigned char>(1U << bit)};
  media_.at(page)[offset % kPageBytes] ^= mask;
  if (const auto cached = cache_.find(page); cached != cache_.end()) {
    for (Version& version : cached->second) version.bytes[offset % kPageBytes] ^= mask;
  }
}

void MemoryDevice::lose_cached_pages(Prng& prng) {
  for (const auto& [page, versions] : cache_) {
    if (prng.chance(0.5)) put_page(page, versions.back().bytes.data());
  }
  cache_.clear();
}

void MemoryDevice::cut_power(Prng& prng, const MemoryFaults& faults, MemoryFaultCounters& counters) {
  std::map<uint64_t, std::pair<bool, Fate>> writes;
  for (const auto& [page, versions] : cache_) {
    const Version* newest_kept = nullptr;
    for (const Version& version : versions) {
      const auto [entry, is_new] = writes.try_emplace(version.write);
      auto& [whole_write_survives, fate] = entry->second;
      if (is_new) whole_write_survives = prng.chance(faults.cut_survival_chance);
      const bool survives = faults.torn_writes ? prng.chance(faults.cut_survival_chance) : whole_write_survives;
      ++fate.pages;
      if (!survives) continue;
      ++fate.kept;
      newest_kept = &version;
    }
    if (newest_kept != nullptr) put_page(page, newest_kept->bytes.data());
  }
  for (const auto& [write, verdict] : writes) tally(verdict.second, counters);
  cache_.clear();
}

MemoryEngine::MemoryEngine(const MemoryConfig& config, std::vector<MemoryDevice*> devices)
    : devices_(std::move(devices)), faults_(config.faults), prng_(config.seed) {
  HALFSTEP_DCHECK(config.queue_depth > 0 && config.queue_depth <= kQueueDepthMax, config.queue_depth);
  facts_.name = "memory";
  facts_.discard = name_of(DiscardMethod::None);
  for (const MemoryDevice* device : devices_) {
    if (device->takes_discards()) facts_.discard = "memory";
  }
  facts_.queue_depth = config.queue_depth;
  active_.reserve(config.queue_depth);
  due_.reserve(config.queue_depth);
}

void MemoryEngine::submit(Request& request) noexcept {
  request.engine_done_bytes = 0;
  request.engine_retries = 0;
  ++in_flight_;
  request.error = -EINVAL;
  if (request.device < devices_.size()) {
    const MemoryDevice& device = *devices_[request.device];
    request.error = refusal(request, device.bytes(), device.takes_discards());
  }
  if (crashed_) request.error = -ENODEV;
  (request.error == 0 ? waiting_ : done_).push_back(request);
}

void MemoryEngine::flush_submissions() noexcept {
  while (active_.size() < facts_.queue_depth && !waiting_.empty()) {
    Active active;
    active.request = waiting_.pop_front();
    active.number = handed_over_++;
    active.flush_through = devices_[active.request->device]->last_write();
    if (faults_.delay_polls_max > 0) {
      active.polls_left = static_cast<uint32_t>(prng_.below(uint64_t{faults_.delay_polls_max} + 1));
      if (active.polls_left > 0) ++fault_counters_.delayed;
    }
    if (faults_.stall_chance > 0 && prng_.chance(faults_.stall_chance)) {
      active.polls_left += kStallPolls;
      ++fault_counters_.stalled;
    }
    active_.push_back(active);
  }
}

// One poll's worth of the device's time.
void MemoryEngine::turn() {
  due_.clear();
  std::erase_if(active_, [this](Active& active) {
    if (active.polls_left > 0) {
      --active.polls_left;
      return false;
    }
    if (!active.executed && told_late(active)) return false;
    due_.push_back(active);
    return true;
  });
  if (faults_.shuffle) {
    for (size_t i = due_.size(); i > 1; --i) std::swap(due_[i - 1], due_[prng_.below(i)]);
    uint64_t least = UINT64_MAX;
    for (size_t i = due_.size(); i-- > 0;) {
      if (due_[i].number > least) ++fault_counters_.reordered;
      least = std::min(least, due_[i].number);
    }
  }
  for (const Active& active : due_) {
    if (!active.executed) execute(active);
    done_.push_back(*active.request);
  }
}

bool MemoryEngine::told_late(Active& active) {
  if (prng_.chance(faults_.lost_completion_chance)) {
    lose_completion(active);
    return true;
  }
  if (faults_.completion_polls_max > 0)
    active.polls_left = static_cast<uint32_t>(prng_.below(uint64_t{faults_.completion_polls_max} + 1));
  if (active.polls_left == 0) return false;
  execute(active);
  active.executed = true;
  --active.polls_left;
  ++fault_counters_.told_late;
  return true;
}

// It keeps its place in the queue until it is given up. What it did stays done: that of a write may be on media.
void MemoryEngine::lose_completion(Active& active) {
  execute(active);
  Request& request = *active.request;
  active.executed = true;
  active.polls_left = kLostPolls;
  if (request.error != 0) return;
  ++fault_counters_.lost_completions;
  switch (request.op) {
    case Op::Read: ++fault_counters_.read_errors; break;
    case Op::Write: ++fault_counters_.write_errors; break;
    case Op::Flush: ++fault_counters_.flush_errors; break;
    case Op::Discard: ++fault_counters_.discard_errors; break;
  }
  request.error = -ETIMEDOUT;
  request.engine_done_bytes = 0;
  const bool everything = request.op == Op::Flush;
  tell(request, everything ? 0 : request.offset, everything ? devices_[request.device]->bytes() : request.bytes);
}

int32_t MemoryEngine::ruled_error(const Request& request) noexcept {
  if (const int32_t error = outage_ ? outage_(request) : 0; error != 0) return error;
  for (Rule& rule : rules_) {
    if (!touches(rule, request)) continue;
    if (rule.times != UINT32_MAX) --rule.times;
    return rule.error;
  }
  return 0;
}

void MemoryEngine::execute(const Active& active) {
  Request& request = *active.request;
  MemoryDevice& device = *devices_[request.device];
  request.error = ruled_error(request);
  switch (request.op) {
    case Op::Read: return read(request, device);
    case Op::Write: return write(request, device);
    case Op::Flush: return flush(request, device, active.flush_through);
    case Op::Discard: return discard(request, device);
  }
}

uint64_t MemoryEngine::elsewhere(uint64_t offset, uint64_t bytes, const MemoryDevice& device, uint64_t& counter) {
  const uint64_t other = prng_.below((device.bytes() - bytes) / kPageBytes + 1) * kPageBytes;
  if (other != offset) ++counter;
  return other;
}

void MemoryEngine::tell(const Request& request, uint64_t offset, uint64_t bytes) {
  if (on_fault_) on_fault_({request.op, request.device, offset, bytes, request.error});
}

void MemoryEngine::read(Request& request, MemoryDevice& device) {
  const Bytes out(request.data, request.bytes);
  if (request.error == 0 && prng_.chance(faults_.read_error_chance)) request.error = -EIO;
  if (request.error != 0) {
    ++fault_counters_.read_errors;
    prng_.fill(out);
    return tell(request, request.offset, request.bytes);
  }
  uint64_t offset = request.offset;
  if (prng_.chance(faults_.misdirected_read_chance)) {
    offset = elsewhere(offset, request.bytes, device, fault_counters_.misdirected_reads);
    if (offset != request.offset) tell(request, request.offset, request.bytes);
  }
  device.read(offset, out);
  if (prng_.chance(faults_.bit_flip_chance)) {
    ++fault_counters_.bit_flips;
    const uint64_t at = prng_.below(out.size());
    tell(request, offset + at, 1);
    out[at] ^= std::byte{static_cast<unsigned char>(1U << prng_.below(8))};
  }
  request.engine_done_bytes = request.bytes;
}

void MemoryEngine::write(Request& request, MemoryDevice& device) {
  const ConstBytes from(request.data, request.bytes);
  if (request.error == 0 && prng_.chance(faults_.no_space_chance)) request.error = -ENOSPC;
  if (request.error == -ENOSPC) {
    ++fault_counters_.no_space_errors;
    return tell(request, request.offset, request.bytes);
  }
  if (request.error == 0 && prng_.chance(faults_.write_error_chance)) request.error = -EIO;
  if (request.error != 0) {
    ++fault_counters_.write_errors;
    tell(request, request.offset, request.bytes);
    device.write(request.offset, from, [this](uint64_t) { return prng_.chance(0.5); });
    return;
  }
  uint64_t offset = request.offset;
  if (prng_.chance(faults_.misdirected_write_chance)) {
    offset = elsewhere(offset, request.bytes, device, fault_counters_.misdirected_writes);
    if (offset != request.offset) {
      tell(request, request.offset, request.bytes);
      tell(request, offset, request.bytes);
    }
  }
  device.write(offset, from, [](uint64_t) { return true; });
  request.engine_done_bytes = request.bytes;
}

void MemoryEngine::flush(Request& request, MemoryDevice& device, uint64_t through) {
  if (request.error == 0 && prng_.chance(faults_.flush_error_chance)) request.error = -EIO;
  if (request.error != 0) {
    ++fault_counters_.flush_errors;
    tell(request, 0, device.bytes());
    device.lose_cached_pages(prng_);
    return;
  }
  device.flush(through);
}

void MemoryEngine::discard(Request& request, MemoryDevice& device) {
  if (request.error == 0 && prng_.chance(faults_.discard_error_chance)) request.error = -EIO;
  if (request.error != 0) ++fault_counters_.discard_errors;
  fault_counters_.discarded_pages +=
      device.discard(request.offset, request.bytes, prng_, [this](uint64_t) { return prng_.chance(0.5); });
}

size_t MemoryEngine::poll() noexcept {
  turn();
  return complete_all(done_, in_flight_, counters_);
}

void MemoryEngine::wait() noexcept {
  flush_submissions();
  while (done_.empty() && in_flight_ > 0) {
    turn();
    flush_submissions();
  }
}

uint64_t MemoryEngine::rot(uint8_t device, uint64_t offset, uint64_t bytes) {
  const uint64_t at = offset + prng_.below(bytes);
  const auto bit = static_cast<uint32_t>(prng_.below(8));
  devices_[device]->flip_bit(at, bit);
  ++fault_counters_.rotted_bits;
  return at * 8 + bit;
}

void MemoryEngine::crash(Crash how) {
  HALFSTEP_DCHECK(!crashed_);
  for (const Active& active : active_) {
    const Request& request = *active.request;
    MemoryDevice& device = *devices_[request.device];
    if (request.op == Op::Discard) {
      fault_counters_.discarded_pages +=
          device.discard(request.offset, request.bytes, prng_, [this](uint64_t) { return prng_.chance(0.5); });
    }
    if (request.op != Op::Write || active.executed) continue;
    // At a power cut of a device with a cache, it is the cache that tears: cut_power() goes on from
    // here.
    const bool settled = how == Crash::Killed || !device.volatile_cache();
    const bool arrives = prng_.chance(0.5);
    Fate fate;
    fate.pages = request.bytes / kPageBytes;
    fate.kept = device.write(request.offset, {request.data, request.bytes},
                             [&](uint64_t) { return settled && faults_.torn_writes ? prng_.chance(0.5) : arrives; });
    if (settled || fate.kept == 0) tally(fate, fault_counters_);
  }
  if (how == Crash::PowerCut) {
    for (MemoryDevice* device : devices_) device->cut_power(prng_, faults_, fault_counters_);
  }
  active_.clear();
  waiting_ = {};
  done_ = {};
  in_flight_ = 0;
  crashed_ = true;
}

}  // namespace halfstep::io
