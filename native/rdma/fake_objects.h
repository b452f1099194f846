// fake_objects.h — what FakeVerbs makes and writes down: calls, regions, windows, completion queues and queue pairs, each
// behind the structure of the library that a caller knows.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rdma/abi.h"

namespace halfstep::rdma {

// Every call by its words, and those that are to fail or to take long.
struct FakeCalls {
  static constexpr size_t kMadeMax = 1000;
  std::vector<std::string> made;
  std::map<std::string, uint64_t> counts;               // by function, the first word
  std::map<std::string, std::pair<int, int>> failures;  // errno, and after how many more calls
  std::map<std::string, uint64_t> slow_us;

  // False: it fails, by errno.
  bool may(const std::string& call) {
    if (made.size() < kMadeMax) made.push_back(call);
    const std::string function = call.substr(0, call.find(' '));
    ++counts[function];
    if (const auto slow = slow_us.extract(function)) ::usleep(static_cast<useconds_t>(slow.mapped()));
    const auto failure = failures.find(function);
    if (failure == failures.end()) return true;
    if (failure->second.second-- > 0) return true;
    errno = failure->second.first;
    failures.erase(failure);
    return false;
  }
};

// What was made and not destroyed, by its kind, and what was done in a wrong order.
struct FakeThings {
  std::map<void*, std::string> live;
  std::vector<std::string> faults;

  void made(void* thing, const std::string& kind) { live.insert({thing, kind}); }
  void gone(void* thing, const std::string& kind) {
    const auto found = live.find(thing);
    if (found == live.end() || found->second != kind) {
      faults.push_back("a " + kind + " is destroyed that is not there");
      return;
    }
    live.erase(found);
  }
  // It is destroyed, and none of the others may use it.
  template <typename Uses>
  void needed(const std::string& by, Uses&& uses) {
    if (std::any_of(live.begin(), live.end(), uses)) faults.push_back("destroyed before the " + by + " that needs it");
  }
};

struct FakeRegion {
  abi::MemoryRegion mr{};
  int access = 0;
};

inline bool covers(const FakeRegion* region, uint64_t address, uint64_t bytes) {
  if (region == nullptr) return false;
  const auto from = reinterpret_cast<uint64_t>(region->mr.addr);
  return address >= from && bytes <= region->mr.length && address - from <= region->mr.length - bytes;
}

// By both of their keys.
class FakeRegions {
 public:
  FakeRegion* add(abi::Pd* pd, void* at, size_t bytes, int access, uint32_t key) {
    auto* region = new FakeRegion{};
    region->mr = {.context = pd->context, .pd = pd, .addr = at, .length = bytes, .handle = 0, .lkey = key, .rkey = key + 3};
    region->access = access;
    by_key_[region->mr.lkey] = by_key_[region->mr.rkey] = region;
    return region;
  }
  void forget(const FakeRegion& region) {
    by_key_.erase(region.mr.lkey);
    by_key_.erase(region.mr.rkey);
  }
  FakeRegion* find(uint32_t key, bool remote) const {
    const auto found = by_key_.find(key);
    if (found != by_key_.end() && (remote ? found->second->mr.rkey : found->second->mr.lkey) == key) return found->second;
    return nullptr;
  }

 private:
  std::map<uint32_t, FakeRegion*> by_key_;
};

struct FakeWindow {
  abi::MemoryWindow mw{};
  uint32_t number = 0;  // of every key the part that is the device's; that in `mw` is its owner's to write
  uint32_t key = 0;
  FakeRegion* region = nullptr;  // null: free
  uint64_t address = 0;
  uint64_t bytes = 0;
  int access = 0;
  uint32_t bound_by = 0;  // number of the queue pair

  bool reaches(uint32_t queue_pair, uint64_t from, uint64_t count, int by) const {
    return (access & by) != 0 && bound_by == queue_pair && from >= address && count <= bytes && from - address <= bytes - count;
  }
};

// Those that are bound, by key.
class FakeWindows {
 public:
  FakeWindow* find(uint32_t key) const {
    const auto found = bound_.find(key);
    return found != bound_.end() ? found->second : nullptr;
  }
  // False: a device would not.
  bool bind(const abi::SendRequest::Bind& by, const abi::Qp& qp) {
    auto* window = reinterpret_cast<FakeWindow*>(by.window);
    auto* region = reinterpret_cast<FakeRegion*>(by.region);
    constexpr uint32_t kOwnBits = 0xFF;
    const bool allowed = window->region == nullptr && region->mr.pd == window->mw.pd && qp.pd == region->mr.pd &&
                         (region->access & abi::kAccessWindowBind) != 0 && covers(region, by.address, by.bytes) &&
                         (by.key & ~kOwnBits) == window->number && by.key != window->key;
    if (!allowed) return false;
    window->key = by.key;
    window->region = region;
    window->address = by.address;
    window->bytes = by.bytes;
    window->access = static_cast<int>(by.access);
    window->bound_by = qp.qp_num;
    bound_[by.key] = window;
    return true;
  }
  bool invalidate(uint32_t key, const abi::Qp& qp) {
    FakeWindow* window = find(key);
    if (window == nullptr || window->bound_by != qp.qp_num) return false;
    forget(*window);
    window->region = nullptr;
    window->bound_by = 0;
    return true;
  }
  void forget(const FakeWindow& window) { bound_.erase(window.key); }
  size_t size() const { return bound_.size(); }

 private:
  std::map<uint32_t, FakeWindow*> bound_;
};

struct FakeCompletionQueue {
  abi::Cq cq{};
  size_t entries = 0;
  std::deque<abi::Completion> done;
  bool armed = false;
  unsigned unacknowledged = 0;
};

struct FakeSend {
  abi::SendRequest request;
  std::vector<abi::Piece> pieces;
};

struct FakeQueuePair {
  abi::Qp qp{};
  abi::QpCapacity cap{};
  abi::QpState state = abi::QpState::Reset;
  unsigned access = 0;
  uint32_t destination = 0;
  uint32_t receive_psn = 0;
  uint32_t send_psn = 0;
  int mtu = 0;
  int reads_in = 0;
  int reads_out = 0;
  abi::AddressVector route{};
  bool delayed = false;
  std::deque<FakeSend> sends;
  std::deque<uint64_t> receives;
  // Carried out, and not yet known to the poster by a later completion.
  size_t unreaped = 0;
};

}  // namespace halfstep::rdma
