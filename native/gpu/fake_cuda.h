// fake_cuda.h — for tests: a table of CUDA functions whose devices are host memory, which writes down every call, carries
// copies out when it is told to or by itself, and fails when it is told to.
// Device memory is what add_memory() names. Pinned memory is laid side by side; a copy across two allocations is refused, as
// the driver refuses it. A stream of a test's own (stream()) holds back what is recorded on it until release(). What the driver
// checks is checked: contexts, capture, whose memory a copy touches, what is destroyed in use, what is still there at the end
// (faults(), live()).
// Thread: any.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/cuda.h"

namespace halfstep::gpu {

class FakeCuda final : public Cuda {
 public:
  static constexpr int kInvalidValue = 1;
  static constexpr int kInvalidImage = 200;
  static constexpr int kInvalidContext = 201;
  static constexpr int kInvalidHandle = 400;
  static constexpr int kNotFound = 500;
  static constexpr int kIllegalAddress = 700;
  static constexpr size_t kHostBytes = size_t{1} << 30;  // pinned at once

  explicit FakeCuda(int devices = 1)
      : devices_(devices),
        host_(static_cast<std::byte*>(
            ::mmap(nullptr, kHostBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (host_ == MAP_FAILED) std::abort();
  }
  ~FakeCuda() override { ::munmap(host_, kHostBytes); }

  // ---- The test's
  void add_memory(const void* at, size_t bytes, int ordinal = 0) {
    const std::lock_guard lock(mutex_);
    memory_[reinterpret_cast<DevicePointer>(at)] = {bytes, ordinal};
  }
  // Of every device: without this it has none of them.
  void set_attribute(int attribute, int value) {
    const std::lock_guard lock(mutex_);
    attributes_[attribute] = value;
  }
  // The next call of this function fails, or that after `after` more; for ever where `times` is not 1.
  void fail_next(const std::string& function, int error, int after = 0, int times = 1) {
    const std::lock_guard lock(mutex_);
    failures_[function] = {error, after, times};
  }
  // Nothing is carried out before carry_out().
  void delay(bool on) {
    const std::lock_guard lock(mutex_);
    delayed_ = on;
    if (!on) run(SIZE_MAX);
  }
  // Up to so many of what waits, oldest first. Says how many were.
  size_t carry_out(size_t count = SIZE_MAX) {
    const std::lock_guard lock(mutex_);
    return run(count);
  }
  size_t waiting() const {
    const std::lock_guard lock(mutex_);
    size_t count = 0;
    for (const auto& [handle, stream] : streams_) count += stream.work.size();
    return count;
  }
  // A stream of the caller's, with work under way until release(). Capturing: into a graph.
  uint64_t stream(bool capturing = false) {
    const std::lock_guard lock(mutex_);
    const uint64_t handle = next_++;
    streams_[handle].held = true;
    streams_[handle].capturing = capturing;
    streams_[handle].users = true;
    return handle;
  }
  void release(uint64_t stream) {
    const std::lock_guard lock(mutex_);
    streams_[stream].held = false;
    run(SIZE_MAX);
  }
  std::vector<std::string> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  size_t count(const std::string& function) const {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::count_if(calls_.begin(), calls_.end(), [&](const std::string& call) {
      return call == function || call.starts_with(function + " ");
    }));
  }
  std::vector<std::string> faults() const {
    const std::lock_guard lock(mutex_);
    return faults_;
  }
  // Contexts, streams, events, modules and pinned memory that are still there.
  size_t live() const {
    const std::lock_guard lock(mutex_);
    size_t streams = 0;
    for (const auto& [handle, stream] : streams_) streams += stream.users ? 0 : 1;
    size_t contexts = 0;
    for (const auto& [device, users] : contexts_) contexts += users > 0 ? 1 : 0;
    return streams + events_.size() + pinned_.size() + modules_.size() + contexts;
  }

  // ---- The table
  int driver_get_version(int* version) override {
    *version = 12040;
    return call("cuDriverGetVersion");
  }
  int device_get_count(int* count) override {
    *count = devices_;
    return call("cuDeviceGetCount");
  }
  int device_get(int* device, int ordinal) override {
    *device = ordinal + 100;  // a handle is no ordinal
    return call("cuDeviceGet");
  }
  int device_get_name(char* name, int bytes, int /*device*/) override {
    std::strncpy(name, "Fake", static_cast<size_t>(bytes));
    return call("cuDeviceGetName");
  }
  int device_get_attribute(int* value, int attribute, int device) override {
    if (const int error = call("cuDeviceGetAttribute"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    if (device < 100) fault("an attribute of a device that is an ordinal");
    const auto known = attributes_.find(attribute);
    *value = known != attributes_.end() ? known->second : 0;
    return kSuccess;
  }
  int mem_get_address_range(DevicePointer* base, size_t* bytes, DevicePointer at) override {
    if (const int error = in_context("cuMemGetAddressRange"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    auto next = memory_.upper_bound(at);
    if (next == memory_.begin() || !find(at, 1)) return kInvalidValue;
    --next;
    *base = next->first;
    *bytes = next->second.bytes;
    return kSuccess;
  }
  // A descriptor that is good for nothing but to be known again.
  int mem_get_handle_for_address_range(void* handle, DevicePointer at, size_t bytes, int type) override {
    if (const int error = in_context("cuMemGetHandleForAddressRange " + std::to_string(bytes)); error != kSuccess) return error;
    if (type != kHandleDmaBuf || at % 4096 != 0 || bytes % 4096 != 0 || bytes == 0) return kInvalidValue;
    const int descriptor = ::memfd_create("fake dma-buf", MFD_CLOEXEC);
    std::memcpy(handle, &descriptor, sizeof(descriptor));
    return descriptor >= 0 ? kSuccess : kOutOfMemory;
  }
  int flush_gpu_direct_rdma_writes(int target, int scope) override {
    const std::string what = std::to_string(target) + " " + std::to_string(scope);
    return in_context("cuFlushGPUDirectRDMAWrites " + what);
  }
  int primary_ctx_retain(Context* context, int device) override {
    if (const int error = call("cuDevicePrimaryCtxRetain"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    ++contexts_[device];
    *context = reinterpret_cast<Context>(static_cast<uintptr_t>(device));
    return kSuccess;
  }
  int primary_ctx_release(int device) override {
    if (const int error = call("cuDevicePrimaryCtxRelease"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    if (--contexts_[device] > 0) return kSuccess;
    if (!pinned_.empty()) fault("a context is released before its pinned memory");
    if (!modules_.empty()) fault("a context is released before its modules");
    return kSuccess;
  }
  int ctx_push_current(Context context) override {
    if (const int error = call("cuCtxPushCurrent"); error != kSuccess) return error;
    current().push_back(context);
    return kSuccess;
  }
  int ctx_pop_current(Context* context) override {
    if (const int error = call("cuCtxPopCurrent"); error != kSuccess) return error;
    if (current().empty()) return fault("pop without a push"), kInvalidContext;
    *context = current().back();
    current().pop_back();
    return kSuccess;
  }
  int thread_exchange_capture_mode(int* mode) override {
    if (const int error = call("cuThreadExchangeStreamCaptureMode"); error != kSuccess) return error;
    std::swap(*mode, capture_mode());
    return kSuccess;
  }
  int pointer_get_attribute(void* out, int attribute, DevicePointer at) override {
    if (const int error = in_context("cuPointerGetAttribute"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    const Memory* memory = find(at, 1);
    if (memory == nullptr) return kInvalidValue;
    if (attribute == kPointerMemoryType) {
      const unsigned type = kMemoryTypeDevice;
      std::memcpy(out, &type, sizeof(type));
    } else if (attribute == kPointerDeviceOrdinal) {
      std::memcpy(out, &memory->ordinal, sizeof(int));
    } else {
      return kInvalidValue;
    }
    return kSuccess;
  }
  int mem_host_alloc(void** memory, size_t bytes, unsigned flags) override {
    if (const int error = in_context("cuMemHostAlloc"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    if (flags != kHostAllocPortable) fault("pinned memory that is not portable");
    if (pinned_.empty()) pinned_bytes_ = 0;
    if (bytes > kHostBytes - pinned_bytes_) return kOutOfMemory;
    std::byte* const at = host_ + pinned_bytes_;
    pinned_bytes_ += bytes;
    *memory = at;
    pinned_[at] = bytes;
    return kSuccess;
  }
  int mem_free_host(void* memory) override {
    if (const int error = in_context("cuMemFreeHost"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, stream] : streams_) {
      for (const Work& work : stream.work) {
        if (work.kind == Work::Kind::Copy) fault("pinned memory is freed while copies are under way");
      }
    }
    if (pinned_.erase(static_cast<std::byte*>(memory)) == 0) fault("pinned memory that is not there is freed");
    return kSuccess;
  }
  int stream_create(Stream* stream, unsigned flags) override {
    if (const int error = in_context("cuStreamCreate"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    if (flags != kStreamNonBlocking) fault("a stream that waits for the legacy one");
    const uint64_t handle = next_++;
    streams_[handle] = {};
    *stream = pointer(handle);
    return kSuccess;
  }
  int stream_destroy(Stream stream) override {
    if (const int error = in_context("cuStreamDestroy"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    const auto at = streams_.find(number(stream));
    if (at == streams_.end() || at->second.users) return fault("a stream that is not there is destroyed"), kInvalidHandle;
    if (!at->second.work.empty()) fault("a stream is destroyed with work under way");
    streams_.erase(at);
    return kSuccess;
  }
  int stream_synchronize(Stream stream) override {
    if (const int error = in_context("cuStreamSynchronize"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    const auto at = streams_.find(number(stream));
    if (at == streams_.end()) return kInvalidHandle;
    while (step(at->second)) continue;
    return kSuccess;
  }
  int stream_is_capturing(Stream stream, int* status) override {
    if (const int error = in_context("cuStreamIsCapturing"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    const auto at = streams_.find(number(stream));
    if (at == streams_.end() && number(stream) > kStreamPerThread) return kInvalidHandle;
    *status = at != streams_.end() && at->second.capturing ? 1 : 0;
    return kSuccess;
  }
  int event_create(Event* event, unsigned flags) override {
    if (const int error = in_context("cuEventCreate"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    if (flags != kEventDisableTiming) fault("an event that takes the time");
    const uint64_t handle = next_++;
    events_[handle] = true;
    *event = pointer(handle);
    return kSuccess;
  }
  int event_destroy(Event event) override {
    if (const int error = in_context("cuEventDestroy"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    if (events_.erase(number(event)) == 0) fault("an event that is not there is destroyed");
    return kSuccess;
  }
  int event_record(Event event, Stream stream) override {
    if (const int error = in_context("cuEventRecord " + std::to_string(number(stream))); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    if (!events_.contains(number(event))) return kInvalidHandle;
    if (!streams_.contains(number(stream)) && number(stream) > kStreamPerThread) return kInvalidHandle;
    events_[number(event)] = false;
    streams_[number(stream)].work.push_back({.kind = Work::Kind::Mark, .event = number(event)});
    if (number(stream) <= kStreamPerThread) streams_[number(stream)].users = true;
    if (!delayed_ || streams_[number(stream)].users) run(SIZE_MAX);
    return kSuccess;
  }
  int event_query(Event event) override {
    if (const int error = in_context("cuEventQuery"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    if (capture_mode() != kCaptureRelaxed) fault("an event is asked for in a mode that breaks a capture");
    const auto at = events_.find(number(event));
    if (at == events_.end()) return fault("an event that is not there is asked for"), kInvalidHandle;
    return at->second ? kSuccess : kNotReady;
  }
  int memcpy_to_device(DevicePointer to, const void* from, size_t bytes, Stream stream) override {
    if (const int error = in_context("cuMemcpyHtoDAsync " + std::to_string(bytes)); error != kSuccess) return error;
    return add(stream, {.kind = Work::Kind::Copy,
                        .to = reinterpret_cast<std::byte*>(to),
                        .from = static_cast<const std::byte*>(from),
                        .bytes = bytes,
                        .to_device = true});
  }
  int memcpy_to_host(void* to, DevicePointer from, size_t bytes, Stream stream) override {
    if (const int error = in_context("cuMemcpyDtoHAsync " + std::to_string(bytes)); error != kSuccess) return error;
    return add(stream, {.kind = Work::Kind::Copy,
                        .to = static_cast<std::byte*>(to),
                        .from = reinterpret_cast<const std::byte*>(from),
                        .bytes = bytes,
                        .to_device = false});
  }
  int module_load_data(Module* module, const void* image) override {
    if (const int error = in_context("cuModuleLoadData"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    if (std::string_view(static_cast<const char*>(image)).find(".visible .entry halfstep_move(") == std::string_view::npos) {
      return kInvalidImage;
    }
    const uint64_t handle = next_++;
    modules_[handle] = next_++;
    *module = pointer(handle);
    return kSuccess;
  }
  int module_unload(Module module) override {
    if (const int error = in_context("cuModuleUnload"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, stream] : streams_) {
      for (const Work& work : stream.work) {
        if (work.launched) fault("a module is unloaded while launches of it are under way");
      }
    }
    if (modules_.erase(number(module)) == 0) fault("a module that is not there is unloaded");
    return kSuccess;
  }
  int module_get_function(Function* function, Module module, const char* name) override {
    if (const int error = in_context("cuModuleGetFunction"); error != kSuccess) return error;
    const std::lock_guard lock(mutex_);
    const auto at = modules_.find(number(module));
    if (at == modules_.end()) return kInvalidHandle;
    if (std::string_view(name) != "halfstep_move") return kNotFound;
    *function = pointer(at->second);
    return kSuccess;
  }
  // Carried out piece by piece, as of a device that is late.
  int launch_kernel(Function function, unsigned x, unsigned y, unsigned threads, Stream stream, void** arguments) override {
    const std::string what = std::to_string(x) + " x " + std::to_string(y) + " x " + std::to_string(threads);
    if (const int error = in_context("cuLaunchKernel " + what); error != kSuccess) return error;
    const auto is_function = [&](const auto& module) { return module.second == number(function); };
    {
      const std::lock_guard lock(mutex_);
      if (std::none_of(modules_.begin(), modules_.end(), is_function)) return kInvalidHandle;
    }
    if (x == 0 || x > 128 || y == 0 || y > 65535 || threads == 0 || threads > 1024) return kInvalidValue;
    std::array<uint64_t[3], 128> pieces;
    std::memcpy(&pieces, arguments[0], sizeof(pieces));
    for (unsigned i = 0; i < x; ++i) {
      const auto& [from, to, bytes] = pieces[i];
      bool to_device = false;
      {
        const std::lock_guard lock(mutex_);
        to_device = find(to, bytes) != nullptr;
      }
      if (const int error = add(stream, {.kind = Work::Kind::Copy,
                                         .to = reinterpret_cast<std::byte*>(to),
                                         .from = reinterpret_cast<const std::byte*>(from),
                                         .bytes = bytes,
                                         .to_device = to_device,
                                         .launched = true});
          error != kSuccess) {
        return error;
      }
    }
    return kSuccess;
  }
  std::string error_name(int error) override { return "FAKE_ERROR_" + std::to_string(error); }

 private:
  struct Failure {
    int error;
    int after;
    int times;
  };
  struct Memory {
    size_t bytes;
    int ordinal;
  };
  struct Work {
    enum class Kind { Mark, Copy } kind = Kind::Copy;
    uint64_t event = 0;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t bytes = 0;
    bool to_device = false;
    bool launched = false;  // by a kernel
  };
  struct StreamState {
    std::deque<Work> work;
    bool held = false;
    bool capturing = false;
    bool users = false;  // the test's own, or one of those that are always there
  };

  static void* pointer(uint64_t handle) { return reinterpret_cast<void*>(static_cast<uintptr_t>(handle)); }
  static uint64_t number(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }
  static std::vector<Context>& current() {
    thread_local std::vector<Context> contexts;
    return contexts;
  }
  static int& capture_mode() {
    thread_local int mode = 0;
    return mode;
  }

  int call(const std::string& what) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(what);
    const auto at = failures_.find(what.substr(0, what.find(' ')));
    if (at == failures_.end()) return kSuccess;
    Failure& failure = at->second;
    if (failure.after > 0) {
      --failure.after;
      return kSuccess;
    }
    const int error = failure.error;
    if (failure.times == 1) {
      failures_.erase(at);
    } else if (failure.times > 1) {
      --failure.times;
    }
    return error;
  }
  int in_context(const std::string& what) {
    if (current().empty()) {
      const std::lock_guard lock(mutex_);
      fault(what + " without a context");
      return kInvalidContext;
    }
    return call(what);
  }
  void fault(const std::string& what) { faults_.push_back(what); }

  const Memory* find(DevicePointer at, size_t bytes) const {
    auto next = memory_.upper_bound(at);
    if (next == memory_.begin()) return nullptr;
    --next;
    return at + bytes <= next->first + next->second.bytes ? &next->second : nullptr;
  }
  bool is_pinned(const std::byte* at, size_t bytes) const {
    auto next = pinned_.upper_bound(const_cast<std::byte*>(at));
    if (next == pinned_.begin()) return false;
    --next;
    return at < next->first + next->second && at + bytes <= next->first + next->second;
  }
  int add(Stream stream, Work work) {
    const std::lock_guard lock(mutex_);
    const auto at = streams_.find(number(stream));
    if (at == streams_.end()) return kInvalidHandle;
    const std::byte* device = work.to_device ? work.to : work.from;
    const std::byte* host = work.to_device ? work.from : work.to;
    if (find(reinterpret_cast<DevicePointer>(device), work.bytes) == nullptr) {
      return fault("a copy outside of device memory"), kInvalidValue;
    }
    // As the driver: it looks up one allocation, that of the first byte.
    if (is_pinned(host, 1) && !is_pinned(host, work.bytes)) return kInvalidValue;
    if (!is_pinned(host, work.bytes)) fault("a copy from or to memory that is not pinned");
    at->second.work.push_back(work);
    if (!delayed_) run(SIZE_MAX);
    return kSuccess;
  }
  bool step(StreamState& stream) {
    if (stream.held || stream.work.empty()) return false;
    const Work work = stream.work.front();
    stream.work.pop_front();
    if (work.kind == Work::Kind::Copy) {
      std::memcpy(work.to, work.from, work.bytes);
    } else if (const auto at = events_.find(work.event); at != events_.end()) {
      at->second = true;
    }
    return true;
  }
  // Streams of the test's own run whenever they are not held.
  size_t run(size_t count) {
    size_t done = 0;
    for (auto& [handle, stream] : streams_) {
      while ((stream.users || done < count) && step(stream)) done += stream.users ? 0 : 1;
    }
    return done;
  }

  const int devices_;
  mutable std::mutex mutex_;
  std::map<DevicePointer, Memory> memory_;
  std::map<std::string, Failure> failures_;
  std::map<int, int> attributes_;
  std::map<uint64_t, StreamState> streams_;
  std::map<uint64_t, bool> events_;  // whether what was recorded is over
  std::byte* const host_;            // pinned memory comes from here, without gaps
  size_t pinned_bytes_ = 0;
  std::map<std::byte*, size_t> pinned_;
  std::map<int, int> contexts_;
  std::map<uint64_t, uint64_t> modules_;  // with its function
  std::vector<std::string> calls_;
  std::vector<std::string> faults_;
  uint64_t next_ = 0x1000;
  bool delayed_ = false;
};

}  // namespace halfstep::gpu
