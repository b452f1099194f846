#include "workload.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/units.h"
#include "program.h"

namespace halfstep::bench {
namespace {

// Below it hardly anything would be got before it is reclaimed.
constexpr double kReadShareMin = 0.05;
// In memories of the daemon, which knows of five.
constexpr uint64_t kReach = 6;
constexpr uint64_t kColdMemories = 12;
constexpr uint64_t kPageBytes = 4 * KiB;
// Numbers of blocks that are put far from each other, and from those of a set.
constexpr uint64_t kFirstPut = uint64_t{1} << 42;
constexpr uint64_t kFirstFill = uint64_t{1} << 43;
// When reclaim has found its balance, and after how many times round the store it is waited for no longer.
constexpr double kSettledCopiesMax = 0.2;
constexpr double kSettledHitsMax = 0.002;
constexpr uint64_t kFillingsMin = 2;
constexpr uint64_t kFillingsMax = 4;
constexpr uint64_t kStepsAFilling = 16;
constexpr uint64_t kStepsGot = 5;
constexpr double kTouchesAPutMax = 20.0;
// Of the seed, so that no two series that are drawn are the same.
constexpr uint64_t kChoices = 0x9E3779B97F4A7C15U, kGaps = 0xC2B2AE3D27D4EB4FU, kOrder = 0x165667B19E3779F9U;

std::string object_of(const Side& side) {
  return "{\"calls\": " + std::to_string(side.latencies_us.size()) + ", \"blocks\": " + std::to_string(side.outcome.blocks) +
         ", \"ok\": " + std::to_string(side.outcome.ok) + ", \"wrong\": " + std::to_string(side.outcome.wrong) +
         ", \"present\": " + std::to_string(side.outcome.present) + ", \"answers_not_ok\": " + side.outcome.reasons_object() +
         ", \"latency_us\": " + latency_object(side.latencies_us) + "}";
}

}  // namespace

Workload::Workload(CoreClient& client, const Load& load)
    : client_(client), load_(load), choices_(load.seed ^ kChoices), gaps_(load.seed ^ kGaps) {
  for (uint64_t i = 0; i < load_.iodepth; ++i) calls_.push_back(client_.make_call(load_.batch, i));
  numbers_.resize(load_.batch);
  next_put_ = kFirstPut + load_.first;
}

void Workload::begin(double seconds_max) {
  if (load_.scenario == Scenario::Put) return;
  if (load_.scenario == Scenario::ColdMixed) {
    fill();
    timed([&] { return closed_loop(*this, calls_.size(), {.run_ns = ns_of(seconds_max)}); });
    return;
  }
  uint64_t batches = std::max<uint64_t>(load_.size / (load_.bs * load_.batch), 1);
  if (load_.scenario == Scenario::Cold) {
    const auto memory = static_cast<uint64_t>(client_.stat()["halfstep_memory_bytes{of=\"capacity\"}"]);
    const uint64_t bytes = load_.cold_bytes == 0 ? kColdMemories * memory : load_.cold_bytes;
    // A small block takes a page at least in the daemon's memory.
    batches = std::max<uint64_t>(bytes / (std::max(load_.bs, kPageBytes) * load_.batch), 2);
  }
  Bulk(client_).put(load_.first, batches * load_.batch);
  order_ = std::make_unique<Walk>(batches, load_.batch, load_.seed ^ kOrder);
  // A hot set is then in memory, and of a cold one only its end is.
  timed([&] { return closed_loop(*this, calls_.size(), batches); });
  if (load_.scenario == Scenario::Anywhere) order_ = std::make_unique<Anywhere>(batches, load_.batch, load_.seed ^ kOrder);
}

Timing Workload::run(double seconds, double warm_up_s) {
  const Span span{.warm_up_ns = ns_of(warm_up_s), .run_ns = ns_of(seconds)};
  return timed([&] {
    if (load_.rate == 0) return closed_loop(*this, calls_.size(), span);
    return open_loop(*this, calls_.size(), due_ns(gaps_, load_.rate, warm_up_s + seconds), span);
  });
}

template <typename Loop>
Timing Workload::timed(Loop&& loop) {
  timing_ = {};
  static_cast<LoopTime&>(timing_) = loop();
  return std::move(timing_);
}

// Until reclaim copies about what it may, as when the store has served for long. One that was just filled copies all that was
// got, and learns with each segment that this is more than its share of the writes. So what will be got is touched, as often as
// it will be got; and got towards the end: while blocks are only put, memory knows longer what it had, and keeps what it
// recognizes.
void Workload::fill() {
  const auto memory = static_cast<uint64_t>(client_.stat()["halfstep_memory_bytes{of=\"capacity\"}"]);
  const uint64_t batch_bytes = load_.batch * std::max(load_.bs, kPageBytes);
  const double share = std::max(static_cast<double>(load_.read_percent) / 100, kReadShareMin);
  const auto reach = static_cast<double>(kReach * memory);
  const uint64_t nearest = std::max(memory, static_cast<uint64_t>(reach * (1 - share)));
  const uint64_t width = load_.cold_bytes == 0 ? static_cast<uint64_t>(reach * share) : load_.cold_bytes;
  const uint64_t farthest = nearest + static_cast<uint64_t>(static_cast<double>(width) / share);
  auto trail = std::make_unique<Trail>(Trail::Reach{.nearest = div_up(nearest, batch_bytes),
                                                    .width = div_up(width, batch_bytes),
                                                    .farthest = div_up(farthest, batch_bytes)},
                                       load_.seed ^ kOrder);
  trail_ = trail.get();
  order_ = std::move(trail);

  const double asked = static_cast<double>(load_.read_percent) / 100;
  const double touches = asked < 1 ? std::min(asked / (1 - asked), kTouchesAPutMax) : kTouchesAPutMax;
  const uint64_t step = std::max<uint64_t>(div_up(load_.fill, load_.bs * load_.batch * kStepsAFilling), 1);
  uint64_t first = kFirstFill + load_.first;
  Bulk bulk(client_);
  for (uint64_t number = 0; number < kStepsAFilling * kFillingsMax; ++number) {
    std::map<std::string, double> before = client_.stat();
    bulk.put(first, step * load_.batch);
    for (uint64_t i = 0; i < step; ++i, first += load_.batch) trail_->add(first, true);
    std::vector<uint64_t> wanted;
    while (wanted.size() < static_cast<size_t>(touches * static_cast<double>(step))) {
      const auto one = trail_->next();
      if (!one.has_value()) break;
      wanted.push_back(*one);
    }
    if (number < kStepsAFilling * kFillingsMin - kStepsGot) {
      bulk.touch(numbers_of(wanted));
    } else {
      bulk.get(numbers_of(wanted));
    }
    std::map<std::string, double> after = client_.stat();
    const auto grown = [&](const char* name) { return after[name] - before[name]; };
    const double user = grown("halfstep_store_bytes_written_total{of=\"user\"}");
    const double copied = grown("halfstep_store_bytes_written_total{of=\"rewritten\"}");
    const double from_memory = grown("halfstep_store_hits_total{from=\"memory\"}");
    const double hits = from_memory + grown("halfstep_store_hits_total{from=\"flash\"}");
    settled_ = copied <= kSettledCopiesMax * user && from_memory <= kSettledHitsMax * hits;
    if (number >= kStepsAFilling * kFillingsMin && settled_) return;
  }
}

std::vector<uint64_t> Workload::numbers_of(std::span<const uint64_t> firsts) const {
  std::vector<uint64_t> numbers;
  for (const uint64_t first : firsts) {
    for (uint64_t i = 0; i < load_.batch; ++i) numbers.push_back(first + i);
  }
  return numbers;
}

void Workload::prepare(size_t place) {
  const bool gets =
      load_.scenario != Scenario::Put && (trail_ == nullptr || choices_.chance(static_cast<double>(load_.read_percent) / 100));
  uint64_t first = next_put_;
  if (gets) {
    const auto chosen = order_->next();
    if (!chosen.has_value()) {
      fail("of what was put nothing is both out of memory and whole: the daemon throttled it; lower --iodepth or --rate");
    }
    first = trail_ == nullptr ? *chosen + load_.first : *chosen;
  } else {
    next_put_ += load_.batch;
  }
  std::iota(numbers_.begin(), numbers_.end(), first);
  client_.prepare(calls_[place], gets ? HS_OP_GET : HS_OP_PUT, numbers_);
}

void Workload::submit(size_t place) { client_.submit(calls_[place]); }

std::span<const uint64_t> Workload::poll() { return client_.poll(); }

std::span<const uint64_t> Workload::wait(uint64_t timeout_ns) {
  return client_.wait(timeout_ns == UINT64_MAX ? UINT64_MAX : timeout_ns / 1000);
}

void Workload::ended(size_t place, uint64_t latency_ns) {
  Side& side = calls_[place].operation == HS_OP_GET ? timing_.gets : timing_.puts;
  side.latencies_us.push_back(static_cast<double>(latency_ns) / 1e3);
}

void Workload::check(size_t place, bool counts) {
  const Call& call = calls_[place];
  const Outcome outcome = client_.check(call);
  const bool shed = call.operation == HS_OP_PUT && outcome.throttled_alone();
  if (load_.required && !shed) CoreClient::require(outcome);
  timing_.ok_ever += outcome.ok;
  if (counts) (call.operation == HS_OP_GET ? timing_.gets : timing_.puts).outcome.add(outcome);
  if (trail_ != nullptr && call.operation == HS_OP_PUT) trail_->add(call.numbers.front(), outcome.ok == load_.batch);
}

bool verified(const Timing& timing) {
  const uint64_t ok = timing.gets.outcome.blocks > 0 ? timing.gets.outcome.ok : timing.puts.outcome.ok;
  return ok > 0 && timing.gets.outcome.wrong == 0 && timing.puts.outcome.wrong == 0 && timing.puts.outcome.present == 0;
}

std::string document_of(const Load& load, const Timing& timing, const std::string& more) {
  const uint64_t ok = timing.gets.outcome.ok + timing.puts.outcome.ok;
  const double per_s = timing.seconds > 0 ? static_cast<double>(ok) / timing.seconds : 0;
  char head[512];
  std::snprintf(head, sizeof head,
                "{\"build\": \"%s\", \"bs\": %llu, \"batch\": %llu, \"iodepth\": %llu, \"seed\": %llu, \"verified\": %s, "
                "\"seconds\": %.6f, \"bytes_per_s\": %.0f, \"blocks_per_s\": %.1f, \"calls\": %llu, ",
                std::string(kBuildType).c_str(), static_cast<unsigned long long>(load.bs),
                static_cast<unsigned long long>(load.batch), static_cast<unsigned long long>(load.iodepth),
                static_cast<unsigned long long>(load.seed), verified(timing) ? "true" : "false", timing.seconds,
                per_s * static_cast<double>(load.bs), per_s, static_cast<unsigned long long>(timing.made));
  std::string rate = "null";
  if (load.rate > 0) {
    rate = "{\"calls_per_s\": " + std::to_string(load.rate) + ", \"calls_due\": " + std::to_string(timing.due) +
           ", \"calls_begun_in_time\": " + std::to_string(timing.begun) + ", \"calls_made\": " + std::to_string(timing.made) +
           "}";
  }
  std::vector<double> all = timing.gets.latencies_us;
  all.insert(all.end(), timing.puts.latencies_us.begin(), timing.puts.latencies_us.end());
  return head + ("\"rate\": " + rate) + ", \"latency_us\": " + latency_object(std::move(all)) +
         ", \"gets\": " + object_of(timing.gets) + ", \"puts\": " + object_of(timing.puts) + more + "}";
}

}  // namespace halfstep::bench
