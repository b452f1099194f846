#include "open_loop.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "arrivals.h"
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
constexpr uint64_t kBulkBytes = 16 * MiB;
constexpr uint64_t kBulkBlocksMax = 1024;
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
constexpr timespec kRetry{.tv_sec = 0, .tv_nsec = 10'000'000};
// Of the seed, so that no two series that are drawn are the same.
constexpr uint64_t kChoices = 0x9E3779B97F4A7C15U, kGaps = 0xC2B2AE3D27D4EB4FU, kOrder = 0x165667B19E3779F9U;

uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<uint64_t>(now.tv_nsec);
}

std::string text_of(const Outcome& outcome) {
  std::string text = "{";
  for (const auto& [reason, count] : outcome.reasons) {
    text += (text.size() > 1 ? ", \"" : "\"") + reason + "\": " + std::to_string(count);
  }
  return text + "}";
}

std::string object_of(const Side& side) {
  return "{\"calls\": " + std::to_string(side.latencies_us.size()) + ", \"blocks\": " + std::to_string(side.outcome.blocks) +
         ", \"ok\": " + std::to_string(side.outcome.ok) + ", \"wrong\": " + std::to_string(side.outcome.wrong) +
         ", \"present\": " + std::to_string(side.outcome.present) + ", \"answers_not_ok\": " + text_of(side.outcome) +
         ", \"latency_us\": " + latency_object(side.latencies_us) + "}";
}

}  // namespace

OpenLoop::OpenLoop(CoreClient& client, const LoopOptions& options)
    : client_(client), options_(options), choices_(options.seed ^ kChoices), gaps_(options.seed ^ kGaps) {
  for (uint64_t i = 0; i < options_.iodepth; ++i) calls_.push_back(client_.make_call(options_.batch, i));
  bulk_blocks_ = std::clamp<uint64_t>(kBulkBytes / options_.bs, 1, kBulkBlocksMax);
  numbers_.resize(options_.batch);
  bulk_ = client_.make_call(bulk_blocks_, calls_.size());
  next_put_ = kFirstPut + options_.first;
}

void OpenLoop::begin(double seconds_max) {
  if (options_.scenario == Scenario::ColdMixed) {
    fill();
    closed(seconds_max, 0);
    return;
  }
  uint64_t bytes = options_.size;
  if (options_.scenario == Scenario::Cold) {
    const auto memory = static_cast<uint64_t>(client_.stat()["halfstep_memory_bytes{of=\"capacity\"}"]);
    bytes = options_.cold_bytes == 0 ? kColdMemories * memory : options_.cold_bytes;
  }
  // A small block takes a page at least in the daemon's memory.
  const uint64_t batches = std::max<uint64_t>(bytes / (std::max(options_.bs, kPageBytes) * options_.batch), 2);
  populate(options_.first, batches * options_.batch);
  order_ = std::make_unique<Walk>(batches, options_.batch, options_.seed ^ kOrder);
  closed(0, batches);  // a hot set is then in memory, and of a cold one only its end is
}

// Until reclaim copies about what it may, as when the store has served for long. One that was just filled copies all that was
// got, and learns with each segment that this is more than its share of the writes. So what will be got is touched, as often as
// it will be got; and got towards the end: while blocks are only put, memory knows longer what it had, and keeps what it
// recognizes.
void OpenLoop::fill() {
  const auto memory = static_cast<uint64_t>(client_.stat()["halfstep_memory_bytes{of=\"capacity\"}"]);
  const uint64_t batch_bytes = options_.batch * std::max(options_.bs, kPageBytes);
  const double share = std::max(static_cast<double>(options_.read_percent) / 100, kReadShareMin);
  const auto reach = static_cast<double>(kReach * memory);
  const uint64_t nearest = std::max(memory, static_cast<uint64_t>(reach * (1 - share)));
  const uint64_t width = options_.cold_bytes == 0 ? static_cast<uint64_t>(reach * share) : options_.cold_bytes;
  const uint64_t farthest = nearest + static_cast<uint64_t>(static_cast<double>(width) / share);
  auto trail = std::make_unique<Trail>(Trail::Reach{.nearest = div_up(nearest, batch_bytes),
                                                    .width = div_up(width, batch_bytes),
                                                    .farthest = div_up(farthest, batch_bytes)},
                                       options_.seed ^ kOrder);
  trail_ = trail.get();
  order_ = std::move(trail);

  const double asked = static_cast<double>(options_.read_percent) / 100;
  const double touches = asked < 1 ? std::min(asked / (1 - asked), kTouchesAPutMax) : kTouchesAPutMax;
  const uint64_t step = std::max<uint64_t>(div_up(options_.fill, options_.bs * options_.batch * kStepsAFilling), 1);
  uint64_t first = kFirstFill + options_.first;
  for (uint64_t number = 0; number < kStepsAFilling * kFillingsMax; ++number) {
    std::map<std::string, double> before = client_.stat();
    populate(first, step * options_.batch);
    for (uint64_t i = 0; i < step; ++i, first += options_.batch) trail_->add(first, true);
    std::vector<uint64_t> wanted;
    while (wanted.size() < static_cast<size_t>(touches * static_cast<double>(step))) {
      const auto one = trail_->next();
      if (!one.has_value()) break;
      wanted.push_back(*one);
    }
    if (number < kStepsAFilling * kFillingsMin - kStepsGot) {
      touch(wanted);
    } else {
      get_whole(wanted);
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

// On media afterwards: what still has to be written stays in memory.
void OpenLoop::populate(uint64_t first, uint64_t blocks) {
  std::vector<uint64_t> numbers;
  for (uint64_t at = 0; at < blocks; at += bulk_blocks_) {
    numbers.resize(std::min(bulk_blocks_, blocks - at));
    std::iota(numbers.begin(), numbers.end(), first + at);
    const uint64_t until = now_ns() + uint64_t{kCallDeadlineUs} * 1000;
    while (true) {
      client_.prepare(bulk_, HS_OP_PUT, numbers);
      const Outcome outcome = client_.done(bulk_, HS_PERSIST);
      if (outcome.ok == outcome.blocks) break;
      const bool busy =
          std::ranges::all_of(outcome.reasons, [](const auto& one) { return one.first.starts_with("throttled"); });
      if (!busy || now_ns() > until) {
        fail("the daemon took " + std::to_string(outcome.ok) + " of " + std::to_string(outcome.blocks) +
             " blocks: " + text_of(outcome));
      }
      // Full for the moment: what it took meanwhile is answered as present.
      ::nanosleep(&kRetry, nullptr);
    }
  }
}

std::vector<uint64_t> OpenLoop::numbers_of(std::span<const uint64_t> firsts) const {
  std::vector<uint64_t> numbers;
  for (const uint64_t first : firsts) {
    for (uint64_t i = 0; i < options_.batch; ++i) numbers.push_back(first + i);
  }
  return numbers;
}

void OpenLoop::touch(std::span<const uint64_t> firsts) {
  const std::vector<uint64_t> numbers = numbers_of(firsts);
  for (std::span<const uint64_t> left = numbers; !left.empty();) {
    const size_t count = std::min<size_t>(left.size(), bulk_blocks_);
    client_.prepare(bulk_, HS_OP_TOUCH, left.first(count));
    client_.done(bulk_);
    left = left.subspan(count);
  }
}

void OpenLoop::get_whole(std::span<const uint64_t> firsts) {
  const std::vector<uint64_t> numbers = numbers_of(firsts);
  for (std::span<const uint64_t> left = numbers; !left.empty();) {
    const size_t count = std::min<size_t>(left.size(), bulk_blocks_);
    client_.prepare(bulk_, HS_OP_GET, left.first(count));
    if (const uint64_t wrong = client_.done(bulk_).wrong; wrong > 0) {
      fail(std::to_string(wrong) + " blocks came with other bytes than they were put with");
    }
    left = left.subspan(count);
  }
}

void OpenLoop::prepare(Call& call) {
  const double share = static_cast<double>(options_.read_percent) / 100;
  const bool gets = trail_ == nullptr || choices_.chance(share);
  uint64_t first = next_put_;
  if (gets) {
    const auto chosen = order_->next();
    if (!chosen.has_value()) {
      fail("of what was put nothing is both out of memory and whole: the daemon throttled it; lower --iodepth or --rate");
    }
    first = *chosen;
  } else {
    next_put_ += options_.batch;
  }
  std::iota(numbers_.begin(), numbers_.end(), trail_ == nullptr ? first + options_.first : first);
  client_.prepare(call, gets ? HS_OP_GET : HS_OP_PUT, numbers_);
}

void OpenLoop::submit(Call& call, uint64_t since_ns) {
  call.since_ns = since_ns;
  client_.submit(call);
}

void OpenLoop::ended(Call& call, uint64_t now_ns, Timing& timing) const {
  Side& side = call.operation == HS_OP_GET ? timing.gets : timing.puts;
  side.latencies_us.push_back(static_cast<double>(now_ns - call.since_ns) / 1e3);
}

void OpenLoop::checked(const Call& call, Timing& timing) {
  const Outcome outcome = client_.check(call);
  (call.operation == HS_OP_GET ? timing.gets : timing.puts).outcome.add(outcome);
  if (call.operation == HS_OP_PUT) trail_->add(call.numbers.front(), outcome.ok == options_.batch);
}

// As many calls at once as there are places, for so long, or so many of them where `calls` is not 0.
Timing OpenLoop::closed(double seconds, uint64_t calls) {
  Timing timing;
  const uint64_t started = now_ns();
  const uint64_t until = started + ns_of(seconds);
  uint64_t last = started;
  uint64_t under_way = 0;
  const auto ask = [&](Call& call) {
    prepare(call);
    submit(call, now_ns());
    ++under_way;
    ++timing.made;
  };
  const auto more = [&] { return calls == 0 ? last < until : timing.made < calls; };
  for (Call& call : calls_) {
    if (calls == 0 || timing.made < calls) ask(call);
  }
  while (under_way > 0) {
    const std::span<const uint64_t> names = client_.wait(UINT64_MAX);
    last = now_ns();
    for (const uint64_t name : names) {
      Call& call = calls_[name];
      --under_way;
      ended(call, last, timing);
      checked(call, timing);
      if (more()) ask(call);
    }
  }
  timing.seconds = static_cast<double>(last - started) / 1e9;
  return timing;
}

Timing OpenLoop::run(double seconds) { return options_.rate > 0 ? arrivals(seconds) : closed(seconds, 0); }

Timing OpenLoop::arrivals(double seconds) {
  Timing timing;
  std::vector<uint64_t> due = due_ns(gaps_, options_.rate, seconds);
  timing.due = due.size();
  std::deque<Call*> ready;
  std::deque<Call*> spent;
  for (Call& call : calls_) {
    prepare(call);
    ready.push_back(&call);
  }
  size_t next = 0;
  uint64_t under_way = 0;
  const uint64_t started = now_ns();
  const uint64_t until = started + ns_of(seconds);
  const uint64_t give_up = started + 2 * ns_of(seconds);
  uint64_t last = started;
  for (uint64_t& one : due) one += started;
  while (next < due.size() || under_way > 0) {
    uint64_t now = now_ns();
    if (now >= give_up) due.resize(next);
    while (next < due.size() && !ready.empty() && due[next] <= now) {
      submit(*ready.front(), due[next]);
      ready.pop_front();
      timing.begun += now < until ? 1 : 0;
      ++timing.made;
      ++next;
      ++under_way;
      now = now_ns();
    }
    std::span<const uint64_t> names;
    if (!spent.empty()) {
      // With calls late already, what comes meanwhile is taken together.
      if (next == due.size() || due[next] > now) names = client_.poll();
    } else if (next < due.size() && !ready.empty()) {
      if (due[next] > now + kLookNs) {
        names = client_.wait((due[next] - now - kLookNs) / 1000);
      } else {
        ::sched_yield();  // another client may share this core
        names = client_.poll();
      }
    } else if (under_way > 0) {
      names = client_.wait(UINT64_MAX);
    }
    if (!names.empty()) last = now_ns();
    for (const uint64_t name : names) {
      --under_way;
      ended(calls_[name], last, timing);
      spent.push_back(&calls_[name]);
    }
    // One at a time: whoever is due in between does not wait for all of them.
    if (!spent.empty()) {
      Call* const call = spent.front();
      spent.pop_front();
      checked(*call, timing);
      if (next < due.size()) {
        prepare(*call);
        ready.push_back(call);
      }
    }
  }
  for (const Call* const call : spent) checked(*call, timing);
  timing.seconds = static_cast<double>(last - started) / 1e9;
  return timing;
}

bool verified(const Timing& timing) {
  const uint64_t ok = timing.gets.outcome.blocks > 0 ? timing.gets.outcome.ok : timing.puts.outcome.ok;
  return ok > 0 && timing.gets.outcome.wrong == 0 && timing.puts.outcome.wrong == 0 && timing.puts.outcome.present == 0;
}

std::string document_of(const LoopOptions& options, const Timing& timing, const std::string& more) {
  const uint64_t ok = timing.gets.outcome.ok + timing.puts.outcome.ok;
  const double per_s = timing.seconds > 0 ? static_cast<double>(ok) / timing.seconds : 0;
  char head[512];
  std::snprintf(head, sizeof head,
                "{\"build\": \"%s\", \"bs\": %llu, \"batch\": %llu, \"iodepth\": %llu, \"seed\": %llu, \"verified\": %s, "
                "\"seconds\": %.6f, \"bytes_per_s\": %.0f, \"blocks_per_s\": %.1f, \"calls\": %llu, ",
                std::string(kBuildType).c_str(), static_cast<unsigned long long>(options.bs),
                static_cast<unsigned long long>(options.batch), static_cast<unsigned long long>(options.iodepth),
                static_cast<unsigned long long>(options.seed), verified(timing) ? "true" : "false", timing.seconds,
                per_s * static_cast<double>(options.bs), per_s, static_cast<unsigned long long>(timing.made));
  std::string rate = "null";
  if (options.rate > 0) {
    rate = "{\"calls_per_s\": " + std::to_string(options.rate) + ", \"calls_due\": " + std::to_string(timing.due) +
           ", \"calls_begun_in_time\": " + std::to_string(timing.begun) + ", \"calls_made\": " + std::to_string(timing.made) +
           "}";
  }
  std::vector<double> all = timing.gets.latencies_us;
  all.insert(all.end(), timing.puts.latencies_us.begin(), timing.puts.latencies_us.end());
  return head + ("\"rate\": " + rate) + ", \"latency_us\": " + latency_object(std::move(all)) +
         ", \"gets\": " + object_of(timing.gets) + ", \"puts\": " + object_of(timing.puts) + more + "}";
}

}  // namespace halfstep::bench
