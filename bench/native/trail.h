// trail.h — which batch of blocks is got next: an endless walk through a set, or through what was put a while ago.
// Batches are named by their first number. Thread: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <vector>

#include "base/prng.h"

namespace halfstep::bench {

class Order {
 public:
  virtual ~Order() = default;
  // nullopt where there is none.
  virtual std::optional<uint64_t> next() = 0;
};

// `batches` of `batch` numbers from 0 on, in one random order over and over, the first half before the second: at least half of
// the set lies between two uses of a block, its put included.
class Walk final : public Order {
 public:
  Walk(uint64_t batches, uint64_t batch, uint64_t seed) : firsts_(batches) {
    Prng prng(seed);
    for (uint64_t i = 0; i < batches; ++i) firsts_[i] = i * batch;
    const auto shuffle = [&](uint64_t from, uint64_t until) {
      for (; until - from > 1; --until) std::swap(firsts_[until - 1], firsts_[from + prng.below(until - from)]);
    };
    shuffle(0, batches / 2);
    shuffle(batches / 2, batches);
  }
  std::optional<uint64_t> next() override { return firsts_[at_++ % firsts_.size()]; }

 private:
  std::vector<uint64_t> firsts_;
  uint64_t at_ = 0;
};

// Any of them, whatever came before.
class Anywhere final : public Order {
 public:
  Anywhere(uint64_t batches, uint64_t batch, uint64_t seed) : batches_(batches), batch_(batch), prng_(seed) {}
  std::optional<uint64_t> next() override { return prng_.below(batches_) * batch_; }

 private:
  const uint64_t batches_, batch_;
  Prng prng_;
};

// What this client has put, in order. Nothing of it is held: what was put last may still be in memory, what was put long ago is
// next to be reclaimed, and what lies between the two is got (src/halfstep/tools/bench/trail.py is the same in Python).
// Invariants: no batch comes before `nearest` more were put, nor after `farthest` were; one that comes again comes about
// `width` batches later, as the order of the batches is one and the same.
class Trail final : public Order {
 public:
  // In batches.
  struct Reach {
    uint64_t nearest = 0;
    uint64_t width = 0;
    uint64_t farthest = 0;
  };
  Trail(const Reach& reach, uint64_t seed) : reach_(reach), prng_(seed) {}

  // A put has ended. whole: all of its blocks were stored; else it cannot be asked for again.
  void add(uint64_t first, bool whole) {
    if (whole) put_.push_back({.place = prng_.next(), .put = puts_, .first = first});
    if (put_.size() > reach_.nearest + reach_.width) put_.pop_front();
    ++puts_;
  }
  bool ready() const { return puts_ > reach_.nearest; }
  std::optional<uint64_t> next() override {
    for (bool again = true; again; again = take_turn()) {
      while (!turn_.empty()) {
        const Put one = turn_.back();
        turn_.pop_back();
        if (one.put + reach_.farthest >= puts_) return one.first;
      }
    }
    return std::nullopt;
  }

 private:
  struct Put {
    uint64_t place = 0;  // in the order
    uint64_t put = 0;
    uint64_t first = 0;
  };
  // False where there is nothing in reach.
  bool take_turn() {
    if (!ready()) return false;
    const uint64_t newest = puts_ - reach_.nearest;
    for (const Put& one : put_) {
      if (one.put < newest && one.put + reach_.width >= newest && one.put + reach_.farthest >= puts_) turn_.push_back(one);
    }
    std::ranges::sort(turn_, std::ranges::greater(), &Put::place);
    return !turn_.empty();
  }

  const Reach reach_;
  Prng prng_;
  std::deque<Put> put_;    // the newest last
  std::vector<Put> turn_;  // the next one last
  uint64_t puts_ = 0;
};

}  // namespace halfstep::bench
