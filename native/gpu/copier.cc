#include "gpu/copier.h"

#include <array>
#include <utility>

#include "base/check.h"

namespace halfstep::gpu {

Entered::Entered(Cuda& cuda, Context context) noexcept : cuda_(cuda), error_(cuda.ctx_push_current(context)) {
  if (error_ == kSuccess) relaxed_ = cuda_.thread_exchange_capture_mode(&mode_) == kSuccess;
}

Entered::~Entered() {
  if (error_ != kSuccess) return;
  if (relaxed_) (void)cuda_.thread_exchange_capture_mode(&mode_);
  Context context = nullptr;
  (void)cuda_.ctx_pop_current(&context);
}

// ---- Device --------------------------------------------------------------------------------------------------------------

Fault Device::open(Cuda& cuda, int ordinal, std::shared_ptr<Device>* out) {
  std::shared_ptr<Device> device(new Device(cuda, ordinal));
  int count = 0;
  const int counted = cuda.device_get_count(&count);
  if (counted != kSuccess) return {Code::Unsupported, device->text_of("cuDeviceGetCount", counted)};
  if (ordinal < 0 || ordinal >= count) {
    return {Code::Invalid, "device=" + std::to_string(ordinal) + ": this process sees " + std::to_string(count) +
                               " CUDA devices (CUDA_VISIBLE_DEVICES)"};
  }
  if (const int error = cuda.device_get(&device->number_, ordinal); error != kSuccess) {
    return {Code::Unsupported, device->text_of("cuDeviceGet", error)};
  }
  std::array<char, 128> name{};
  int version = 0;
  if (cuda.device_get_name(name.data(), static_cast<int>(name.size()) - 1, device->number_) != kSuccess) name = {"?"};
  if (cuda.driver_get_version(&version) != kSuccess) version = 0;
  device->name_ = "cuda:" + std::to_string(ordinal) + " (" + name.data() + ", driver " + std::to_string(version / 1000) + "." +
                  std::to_string(version % 1000 / 10) + ")";
  if (const int error = cuda.primary_ctx_retain(&device->context_, device->number_); error != kSuccess) {
    device->context_ = nullptr;
    return {Code::Unsupported, device->text_of("cuDevicePrimaryCtxRetain", error)};
  }
  *out = std::move(device);
  return {};
}

Device::~Device() {
  if (context_ != nullptr) (void)cuda_.primary_ctx_release(number_);
}

Fault Device::check(DevicePointer at) const {
  unsigned type = 0;
  int ordinal = -1;
  const Entered entered(cuda_, context_);
  if (entered.error() != kSuccess) return {Code::IoError, text_of("cuCtxPushCurrent", entered.error())};
  int error = cuda_.pointer_get_attribute(&type, kPointerMemoryType, at);
  if (error == kSuccess) error = cuda_.pointer_get_attribute(&ordinal, kPointerDeviceOrdinal, at);
  if (error != kSuccess) return {Code::Invalid, text_of("cuPointerGetAttribute", error)};
  if (type == kMemoryTypeDevice && ordinal == ordinal_) return {};
  return {Code::Invalid, "the memory is " + (type == kMemoryTypeDevice ? "of cuda:" + std::to_string(ordinal) : "of the host") +
                             ", though it was said to be of cuda:" + std::to_string(ordinal_)};
}

std::string Device::text_of(const char* function, int error) const {
  return "cuda:" + std::to_string(ordinal_) + ": " + function + ": " + cuda_.error_name(error);
}

// ---- Gate ----------------------------------------------------------------------------------------------------------------

Fault Gate::make(std::shared_ptr<Device> device, uint64_t stream, std::unique_ptr<Gate>* out) {
  Cuda& cuda = device->cuda();
  auto* const handle = reinterpret_cast<Stream>(static_cast<uintptr_t>(stream == 0 ? kStreamLegacy : stream));
  const Entered entered(cuda, device->context());
  if (entered.error() != kSuccess) return {Code::IoError, device->text_of("cuCtxPushCurrent", entered.error())};
  int capture = kCaptureNone;
  if (const int error = cuda.stream_is_capturing(handle, &capture); error != kSuccess) {
    return {Code::Invalid, "stream=" + std::to_string(stream) + ": " + device->text_of("cuStreamIsCapturing", error)};
  }
  // An event of it would draw whoever waits for it into the graph.
  if (capture != kCaptureNone) {
    return {Code::Invalid,
            "stream=" + std::to_string(stream) + ": is being captured into a graph; submit outside of the capture"};
  }
  std::unique_ptr<Gate> gate(new Gate(std::move(device)));
  const Device& of = *gate->device_;
  if (const int error = cuda.event_create(&gate->event_, kEventDisableTiming); error != kSuccess) {
    gate->event_ = nullptr;
    return {Code::NoSpace, of.text_of("cuEventCreate", error)};
  }
  if (const int error = cuda.event_record(gate->event_, handle); error != kSuccess) {
    return {Code::Invalid, "stream=" + std::to_string(stream) + ": " + of.text_of("cuEventRecord", error) +
                               "; it must be a stream of the device's primary context"};
  }
  *out = std::move(gate);
  return {};
}

Gate::~Gate() {
  if (event_ == nullptr) return;
  const Entered entered(device_->cuda(), device_->context());
  (void)device_->cuda().event_destroy(event_);
}

Gate::State Gate::state() {
  const Entered entered(device_->cuda(), device_->context());
  if (entered.error() != kSuccess) return State::Failed;
  const int error = device_->cuda().event_query(event_);
  return error == kSuccess ? State::Open : error == kNotReady ? State::Closed : State::Failed;
}

// ---- Copier --------------------------------------------------------------------------------------------------------------

Fault Copier::open(std::shared_ptr<Device> device, std::unique_ptr<Copier>* out) {
  std::unique_ptr<Copier> copier(new Copier(std::move(device)));
  const Device& of = *copier->device_;
  const Entered entered(of.cuda(), of.context());
  if (entered.error() != kSuccess) return {Code::IoError, of.text_of("cuCtxPushCurrent", entered.error())};
  if (const int error = of.cuda().stream_create(&copier->stream_, kStreamNonBlocking); error != kSuccess) {
    copier->stream_ = nullptr;
    return {Code::NoSpace, of.text_of("cuStreamCreate", error)};
  }
  const char* function = "";
  int error = kSuccess;
  copier->mover_ = Mover::open(of.cuda(), &function, &error);
  if (copier->mover_ == nullptr) copier->last_error_ = of.text_of(function, error) + "; small pieces are copied one by one";
  *out = std::move(copier);
  return {};
}

Copier::~Copier() {
  if (stream_ == nullptr) return;
  Cuda& cuda = device_->cuda();
  const Entered entered(cuda, device_->context());
  if (!jobs_.empty()) (void)cuda.stream_synchronize(stream_);
  for (const Job& job : jobs_) {
    if (job.event != nullptr) (void)cuda.event_destroy(job.event);
  }
  for (Event event : events_) (void)cuda.event_destroy(event);
  mover_ = nullptr;
  (void)cuda.stream_destroy(stream_);
}

void Copier::fail(const char* function, int error) {
  ++failures_;
  last_error_ = device_->text_of(function, error);
}

Event Copier::take_event(int* error) {
  Event event = nullptr;
  if (!events_.empty()) {
    event = events_.back();
    events_.pop_back();
  } else if (*error = device_->cuda().event_create(&event, kEventDisableTiming); *error != kSuccess) {
    fail("cuEventCreate", *error);
    return nullptr;
  }
  return event;
}

void Copier::submit(Direction direction, std::span<const Range> ranges, Done done, void* owner) {
  Job& job = jobs_.emplace_back();
  job.done = done;
  job.owner = owner;
  Cuda& cuda = device_->cuda();
  const Entered entered(cuda, device_->context());
  if (job.error = entered.error(); job.error != kSuccess) return fail("cuCtxPushCurrent", job.error);
  // First: without one it could not be told when the copies are over.
  Event event = take_event(&job.error);
  if (event == nullptr) return;
  const bool queued = queue(job, direction, ranges);
  const int recorded = queued ? cuda.event_record(event, stream_) : kSuccess;
  if (queued && recorded == kSuccess) {
    job.event = event;
    return;
  }
  events_.push_back(event);
  if (recorded == kSuccess) return;
  fail("cuEventRecord", recorded);
  if (job.error == kSuccess) job.error = recorded;
  (void)cuda.stream_synchronize(stream_);
}

// Whether anything of it may be under way. Each range is moved by itself: neighbours may be of two allocations.
bool Copier::queue(Job& job, Direction direction, std::span<const Range> ranges) {
  bool queued = false;
  const char* function = "";
  const auto done = [&](int error) {
    queued = queued || error == kSuccess;
    job.error = error;
    return error == kSuccess;
  };
  const auto all = [&] {
    for (const Range& range : ranges) {
      if (mover_ == nullptr || range.bytes > Mover::kPieceBytesMax) {
        if (!done(queue_one(direction, range, &function))) return false;
      } else {
        const auto host = reinterpret_cast<uint64_t>(range.host);
        const bool to_device = direction == Direction::ToDevice;
        mover_->add({to_device ? host : range.device, to_device ? range.device : host, range.bytes});
        if (mover_->full() && !done(launch(&function))) return false;
      }
      bytes_[static_cast<size_t>(direction)] += range.bytes;
    }
    return mover_ == nullptr || mover_->empty() || done(launch(&function));
  };
  if (!all()) {
    fail(function, job.error);
    if (mover_ != nullptr) mover_->clear();
  }
  return queued;
}

int Copier::launch(const char** function) {
  *function = "cuLaunchKernel";
  const int error = mover_->launch(stream_);
  if (error == kSuccess) ++copies_;
  return error;
}

int Copier::queue_one(Direction direction, const Range& range, const char** function) {
  Cuda& cuda = device_->cuda();
  const bool to_device = direction == Direction::ToDevice;
  *function = to_device ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync";
  const int error = to_device ? cuda.memcpy_to_device(range.device, range.host, range.bytes, stream_)
                              : cuda.memcpy_to_host(range.host, range.device, range.bytes, stream_);
  if (error == kSuccess) ++copies_;
  return error;
}

void Copier::poll() {
  while (!jobs_.empty()) {
    Job& job = jobs_.front();
    if (job.event != nullptr) {
      Cuda& cuda = device_->cuda();
      const Entered entered(cuda, device_->context());
      const int error = entered.error() != kSuccess ? entered.error() : cuda.event_query(job.event);
      if (error == kNotReady) return;
      if (error != kSuccess) {
        // It is not known what the error is of: the work before it, or the question. The stream itself knows when it rests.
        (void)cuda.stream_synchronize(stream_);
        fail("cuEventQuery", error);
        if (job.error == kSuccess) job.error = error;
      }
      events_.push_back(job.event);
    }
    const Job over = job;
    jobs_.pop_front();
    over.done(over.owner, over.error == kSuccess ? Status() : Status(Code::IoError));
  }
}

}  // namespace halfstep::gpu
