#include "call_loop.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <deque>

namespace halfstep::bench {
namespace {

constexpr uint64_t kForEver = UINT64_MAX;

double seconds_between(uint64_t from_ns, uint64_t until_ns) {
  return static_cast<double>(std::max(from_ns, until_ns) - from_ns) / 1e9;
}

// more: whether a place that is free at this moment makes another call, with what there was so far.
template <typename More>
LoopTime closed(Caller& caller, size_t places, uint64_t warm_up_ns, More&& more) {
  LoopTime time;
  std::vector<uint64_t> begun(places);
  uint64_t under_way = 0;
  const auto ask = [&](size_t place) {
    caller.prepare(place);
    begun[place] = caller.now_ns();
    caller.submit(place);
    ++under_way;
    ++time.ever;
  };
  const uint64_t started = caller.now_ns();
  uint64_t counted_from = started;
  uint64_t last = started;
  bool counts = warm_up_ns == 0;
  for (size_t place = 0; place < places && more(started, time); ++place) ask(place);
  while (under_way > 0) {
    for (const uint64_t place : caller.wait(kForEver)) {
      const uint64_t now = caller.now_ns();
      const bool counted = counts;
      --under_way;
      if (counted) {
        caller.ended(place, now - begun[place]);
        ++time.made;
        last = now;
      } else if (now >= started + warm_up_ns) {
        counts = true;
        counted_from = last = now;
      }
      caller.check(place, counted);
      if (more(now, time)) ask(place);
    }
  }
  time.seconds = seconds_between(counted_from, last);
  return time;
}

}  // namespace

uint64_t ns_of(double seconds) { return static_cast<uint64_t>(seconds * 1e9); }

std::vector<uint64_t> due_ns(Prng& gaps, double calls_per_s, double seconds) {
  std::vector<uint64_t> due;
  for (double at = 0;;) {
    const double uniform = static_cast<double>(gaps.next() >> 11) * 0x1.0p-53;
    at += -std::log1p(-uniform) / calls_per_s;
    if (at >= seconds) break;
    due.push_back(ns_of(at));
  }
  if (due.empty()) due.push_back(0);
  return due;
}

uint64_t Caller::now_ns() const {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<uint64_t>(now.tv_nsec);
}

LoopTime open_loop(Caller& caller, size_t places, std::vector<uint64_t> due, const Span& span) {
  LoopTime time;
  time.due = static_cast<uint64_t>(std::ranges::count_if(due, [&](uint64_t at) { return at >= span.warm_up_ns; }));
  std::vector<uint64_t> due_at(places);  // of the call that is under way there
  std::deque<size_t> ready;
  std::deque<size_t> spent;
  for (size_t place = 0; place < places; ++place) {
    caller.prepare(place);
    ready.push_back(place);
  }
  size_t next = 0;
  uint64_t under_way = 0;
  const uint64_t started = caller.now_ns();
  const uint64_t counted_from = started + span.warm_up_ns;
  const uint64_t until = counted_from + span.run_ns;
  const uint64_t give_up = until + (until - started);
  uint64_t last = counted_from;
  for (uint64_t& one : due) one += started;
  while (next < due.size() || under_way > 0) {
    uint64_t now = caller.now_ns();
    if (now >= give_up) due.resize(next);
    while (next < due.size() && !ready.empty() && due[next] <= now) {
      const size_t place = ready.front();
      ready.pop_front();
      caller.submit(place);
      const bool counts = due[next] >= counted_from;
      time.made += counts ? 1 : 0;
      time.begun += counts && now < until ? 1 : 0;
      due_at[place] = due[next++];
      ++time.ever;
      ++under_way;
      now = caller.now_ns();
    }
    std::span<const uint64_t> places_ended;
    if (!spent.empty()) {
      // With calls late already, what comes meanwhile is taken together.
      if (next == due.size() || due[next] > now) places_ended = caller.poll();
    } else if (next < due.size() && !ready.empty()) {
      if (due[next] > now + kLookNs) {
        places_ended = caller.wait(due[next] - now - kLookNs);
      } else {
        ::sched_yield();  // another client may share this core
        places_ended = caller.poll();
      }
    } else if (under_way > 0) {
      places_ended = caller.wait(kForEver);
    }
    if (!places_ended.empty()) last = caller.now_ns();
    for (const uint64_t place : places_ended) {
      --under_way;
      if (due_at[place] >= counted_from) caller.ended(place, last - due_at[place]);
      spent.push_back(place);
    }
    // One at a time: whoever is due in between does not wait for all of them.
    if (!spent.empty()) {
      const size_t place = spent.front();
      spent.pop_front();
      caller.check(place, due_at[place] >= counted_from);
      if (next < due.size()) {
        caller.prepare(place);
        ready.push_back(place);
      }
    }
  }
  for (const size_t place : spent) caller.check(place, due_at[place] >= counted_from);
  time.seconds = seconds_between(counted_from, last);
  return time;
}

LoopTime closed_loop(Caller& caller, size_t places, const Span& span) {
  const uint64_t until = caller.now_ns() + span.warm_up_ns + span.run_ns;
  return closed(caller, places, span.warm_up_ns,
                [&](uint64_t now, const LoopTime& time) { return now < until || time.made == 0; });
}

LoopTime closed_loop(Caller& caller, size_t places, uint64_t calls) {
  return closed(caller, places, 0, [&](uint64_t, const LoopTime& time) { return time.ever < calls; });
}

}  // namespace halfstep::bench
