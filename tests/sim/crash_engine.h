// crash_engine.h — the engine that a simulated store is given: a memory engine whose process or machine dies after a chosen
// number of events, wherever the store is then: in a turn, in open(), in close().
// Invariants: every request is completed exactly once, also those that the crash cut off: they and all later ones answer
// -ENODEV, so that the store comes to its end and can be thrown away. What it answers after the crash nobody ever heard.
// Thread: one.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "io/memory_engine.h"

namespace halfstep::sim {

class CrashEngine final : public io::Engine {
 public:
  using Crash = io::MemoryEngine::Crash;

  // `seen` is shown every request as it is submitted.
  CrashEngine(io::MemoryEngine& inner, std::function<void(const io::Request&)> seen) : inner_(inner), seen_(std::move(seen)) {}

  // An event is a request submitted, a poll or a wait.
  void arm(Crash how, uint64_t events_left) noexcept {
    armed_ = true;
    how_ = how;
    events_left_ = events_left;
  }
  void disarm() noexcept { armed_ = false; }
  bool dead() const noexcept { return dead_; }

  void submit(io::Request& request) noexcept override;
  void flush_submissions() noexcept override {
    if (!dead_) inner_.flush_submissions();
  }
  size_t poll() noexcept override;
  void wait() noexcept override {
    event();
    if (!dead_) inner_.wait();
  }
  int wake_descriptor() const noexcept override { return -1; }
  uint32_t in_flight() const noexcept override { return static_cast<uint32_t>(outstanding_.size()); }
  uint64_t device_bytes(uint8_t device) const noexcept override { return inner_.device_bytes(device); }
  io::DiscardLimits discard_limits(uint8_t device) const noexcept override { return inner_.discard_limits(device); }
  const io::EngineFacts& facts() const noexcept override { return inner_.facts(); }
  const io::EngineCounters& counters() const noexcept override { return inner_.counters(); }

 private:
  // Stands in for a request of the store's in the inner engine, which forgets its requests when it crashes.
  struct Proxy {
    io::Request request;
    io::Request* original = nullptr;
    CrashEngine* engine = nullptr;
    size_t place = 0;  // in outstanding_
  };
  void event() noexcept;
  void finish(Proxy& proxy, int32_t error) noexcept;

  io::MemoryEngine& inner_;
  std::function<void(const io::Request&)> seen_;
  std::deque<Proxy> proxies_;
  std::vector<Proxy*> unused_;
  std::vector<Proxy*> outstanding_;
  bool armed_ = false;
  bool dead_ = false;
  Crash how_ = Crash::Killed;
  uint64_t events_left_ = 0;
};

}  // namespace halfstep::sim
