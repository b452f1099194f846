#include "store/memory/reuse_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace halfstep::store {
namespace {

// 2^(0/3), 2^(1/3), 2^(2/3): written out, because libraries round them each in their own way.
constexpr std::array<double, ReuseModel::kBucketsPerDoubling> kThirds = {1.0, 1.2599210498948732, 1.5874010519681994};

constexpr double kPrior = 0.02;
// So much is left of old counts after each renewal: half of them after 140,000 uses.
constexpr double kFade = 0.98;

double reuse_prior(uint32_t touch_class) noexcept { return kPrior * (touch_class + 1); }

// Never below what is believed without evidence, so that no count comes to nothing however long it runs.
double faded(double count, double prior) noexcept { return prior + (count - prior) * kFade; }

double edge(uint32_t bucket) noexcept {
  return std::ldexp(kThirds[bucket % kThirds.size()], static_cast<int>(bucket / kThirds.size()));
}

}  // namespace

ReuseModel::ReuseModel() noexcept {
  for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) widths_[bucket] = edge(bucket + 1) - edge(bucket);
  for (uint32_t c = 0; c < kClasses; ++c) {
    reused_[c].fill(reuse_prior(c));
    forgotten_[c].fill(kPrior);
    learn(c);
  }
}

size_t ReuseModel::bucket_of(uint64_t age) noexcept {
  constexpr uint64_t kOpen = uint64_t{1} << (kBuckets / kBucketsPerDoubling);
  if (age >= kOpen - 1) return kBuckets - 1;
  const uint64_t counted = age + 1;
  const int doublings = static_cast<int>(std::bit_width(counted)) - 1;
  const double within = std::ldexp(static_cast<double>(counted), -doublings);  // 1 to 2
  const size_t thirds = (within >= kThirds[1] ? 1U : 0U) + (within >= kThirds[2] ? 1U : 0U);
  return static_cast<size_t>(doublings) * kBucketsPerDoubling + thirds;
}

void ReuseModel::renew() noexcept {
  for (uint32_t c = 0; c < kClasses; ++c) {
    learn(c);
    for (double& count : reused_[c]) count = faded(count, reuse_prior(c));
    for (double& count : forgotten_[c]) count = faded(count, kPrior);
  }
}

// A block that has reached a bucket may be kept to the end of any bucket from there on: the best of these is what it is worth.
void ReuseModel::learn(uint32_t touch_class) noexcept {
  const Histogram& reused = reused_[touch_class];
  const Histogram& forgotten = forgotten_[touch_class];
  // What keeping all blocks through each bucket takes: those that grew so old, times how long it is.
  Histogram held;
  double grew_so_old = 0;
  for (size_t bucket = kBuckets; bucket-- > 0;) {
    grew_so_old += reused[bucket] + forgotten[bucket];
    held[bucket] = grew_so_old * widths_[bucket];
  }
  for (size_t from = 0; from < kBuckets; ++from) {
    double reuses = 0;
    double cost = 0;
    double best = 0;
    for (size_t bucket = from; bucket < kBuckets; ++bucket) {
      reuses += reused[bucket];
      cost += held[bucket];
      best = std::max(best, reuses / cost);
    }
    worth_[touch_class][from] = best;
  }
}

}  // namespace halfstep::store
