// copier.h — copies between pinned host memory and the memory of one GPU, on a stream of its own: small pieces many at once by
// a kernel (mover.h), where the device takes it, larger ones each by a copy engine.
//
//   open() ─▶ submit(copies, done) … ─▶ poll() calls done(status) of each, in the order of submission ─▶ ~Copier() waits
//
// What the caller's own streams have under way is waited for before anything is submitted, never behind it: a Gate holds an
// event of such a stream, and reached() asks for it. So a copy that was submitted depends on nothing but the device: it ends
// whatever the caller does, and what has not been submitted can be dropped at a deadline at once.
// Invariants: done is called once for each submission, and not before nothing of it reads or writes any more: where the device
// cannot say that by an event, the whole stream is waited for. The driver's errors are those of whoever used the context before
// as well; a submission that has met one is not ok. Calls that a thread's capture of a graph would forbid are made in the
// relaxed mode, so that a capture elsewhere in the process stays whole.
// Thread: any for open(), check() and Gates; the rest by one at a time (the client's).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "gpu/cuda.h"
#include "gpu/mover.h"

namespace halfstep::gpu {

enum class Direction : uint8_t { ToDevice, ToHost };

// In one allocation of each memory: a copy across two, be they neighbours, is refused by the driver.
struct Range {
  std::byte* host = nullptr;  // pinned
  DevicePointer device = 0;
  size_t bytes = 0;
};

// A device's context on this thread, while it lives.
class Entered {
 public:
  Entered(Cuda& cuda, Context context) noexcept;
  ~Entered();
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  int error() const noexcept { return error_; }

 private:
  Cuda& cuda_;
  int error_;
  bool relaxed_ = false;
  int mode_ = kCaptureRelaxed;
};

// A device that is in use: its primary context, which the runtime of CUDA, and so torch and cupy, use as well.
class Device {
 public:
  static Fault open(Cuda& cuda, int ordinal, std::shared_ptr<Device>* out);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Cuda& cuda() const noexcept { return cuda_; }
  Context context() const noexcept { return context_; }
  int ordinal() const noexcept { return ordinal_; }
  // The driver's handle of it.
  int number() const noexcept { return number_; }
  // "cuda:0 (NVIDIA H100 80GB HBM3, driver 12.4)"
  const std::string& name() const noexcept { return name_; }
  // Whether memory at this address is this device's.
  Fault check(DevicePointer at) const;
  std::string text_of(const char* function, int error) const;

 private:
  Device(Cuda& cuda, int ordinal) : cuda_(cuda), ordinal_(ordinal) {}
  Cuda& cuda_;
  const int ordinal_;
  int number_ = 0;
  Context context_ = nullptr;
  std::string name_;
};

// What a stream of the caller's had under way when the gate was made.
class Gate {
 public:
  enum class State : uint8_t { Closed, Open, Failed };
  // On the thread whose stream it is, which matters for kStreamPerThread.
  static Fault make(std::shared_ptr<Device> device, uint64_t stream, std::unique_ptr<Gate>* out);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  // Failed: the device could not say it, or what went before has failed.
  State state();

 private:
  explicit Gate(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  std::shared_ptr<Device> device_;
  Event event_ = nullptr;
};

class Copier {
 public:
  using Done = void (*)(void* owner, Status status);

  static Fault open(std::shared_ptr<Device> device, std::unique_ptr<Copier>* out);
  // Waits for what is under way, and calls nobody.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  const Device& device() const noexcept { return *device_; }
  void submit(Direction direction, std::span<const Range> ranges, Done done, void* owner);
  // What is over is said. `done` may submit.
  void poll();
  bool busy() const noexcept { return !jobs_.empty(); }

  // Of all submissions: calls of the driver, of which a launch of the mover is one.
  uint64_t copies() const noexcept { return copies_; }
  uint64_t bytes(Direction direction) const noexcept { return bytes_[static_cast<size_t>(direction)]; }
  uint64_t failures() const noexcept { return failures_; }
  // The newest failure in words, or why small pieces are copied one by one; "" while there was none.
  const std::string& last_error() const noexcept { return last_error_; }

 private:
  struct Job {
    Event event = nullptr;  // null: nothing of it is under way
    int error = kSuccess;
    Done done = nullptr;
    void* owner = nullptr;
  };

  explicit Copier(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  bool queue(Job& job, Direction direction, std::span<const Range> ranges);
  int queue_one(Direction direction, const Range& range, const char** function);
  int launch(const char** function);
  Event take_event(int* error);
  void fail(const char* function, int error);

  std::shared_ptr<Device> device_;
  Stream stream_ = nullptr;
  std::unique_ptr<Mover> mover_;  // null: small pieces are copies like all others
  std::deque<Job> jobs_;
  std::vector<Event> events_;  // idle
  uint64_t copies_ = 0;
  uint64_t bytes_[2] = {};
  uint64_t failures_ = 0;
  std::string last_error_;
};

}  // namespace halfstep::gpu
