#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "base/symbols.h"
#include "gpu/cuda.h"

namespace halfstep::gpu {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// The names are those that cuda.h maps to: a bare one that has a _v2 is the interface of CUDA 3, with 32-bit pointers.
class Library final : public Cuda {
 public:
  explicit Library(Symbols& symbols) {
    symbols.take(&init_, "cuInit");
    symbols.take(&driver_get_version_, "cuDriverGetVersion");
    symbols.take(&get_error_name_, "cuGetErrorName");
    symbols.take(&device_get_count_, "cuDeviceGetCount");
    symbols.take(&device_get_, "cuDeviceGet");
    symbols.take(&device_get_name_, "cuDeviceGetName");
    symbols.take(&device_get_attribute_, "cuDeviceGetAttribute");
    symbols.take(&primary_ctx_retain_, "cuDevicePrimaryCtxRetain");
    symbols.take(&primary_ctx_release_, "cuDevicePrimaryCtxRelease_v2");
    symbols.take(&ctx_push_current_, "cuCtxPushCurrent_v2");
    symbols.take(&ctx_pop_current_, "cuCtxPopCurrent_v2");
    symbols.take(&thread_exchange_capture_mode_, "cuThreadExchangeStreamCaptureMode");
    symbols.take(&pointer_get_attribute_, "cuPointerGetAttribute");
    symbols.take(&mem_get_address_range_, "cuMemGetAddressRange_v2");
    symbols.take_if_there(&mem_get_handle_for_address_range_, "cuMemGetHandleForAddressRange");
    symbols.take_if_there(&flush_gpu_direct_rdma_writes_, "cuFlushGPUDirectRDMAWrites");
    symbols.take(&mem_host_alloc_, "cuMemHostAlloc");
    symbols.take(&mem_free_host_, "cuMemFreeHost");
    symbols.take(&stream_create_, "cuStreamCreate");
    symbols.take(&stream_destroy_, "cuStreamDestroy_v2");
    symbols.take(&stream_synchronize_, "cuStreamSynchronize");
    symbols.take(&stream_is_capturing_, "cuStreamIsCapturing");
    symbols.take(&event_create_, "cuEventCreate");
    symbols.take(&event_destroy_, "cuEventDestroy_v2");
    symbols.take(&event_record_, "cuEventRecord");
    symbols.take(&event_query_, "cuEventQuery");
    symbols.take(&memcpy_to_device_, "cuMemcpyHtoDAsync_v2");
    symbols.take(&memcpy_to_host_, "cuMemcpyDtoHAsync_v2");
    symbols.take(&module_load_data_, "cuModuleLoadData");
    symbols.take(&module_unload_, "cuModuleUnload");
    symbols.take(&module_get_function_, "cuModuleGetFunction");
    symbols.take(&launch_kernel_, "cuLaunchKernel");
  }

  int init() { return init_(0); }

  int driver_get_version(int* version) override { return driver_get_version_(version); }
  int device_get_count(int* count) override { return device_get_count_(count); }
  int device_get(int* device, int ordinal) override { return device_get_(device, ordinal); }
  int device_get_name(char* name, int bytes, int device) override { return device_get_name_(name, bytes, device); }
  int device_get_attribute(int* value, int attribute, int device) override {
    return device_get_attribute_(value, attribute, device);
  }
  int primary_ctx_retain(Context* context, int device) override { return primary_ctx_retain_(context, device); }
  int primary_ctx_release(int device) override { return primary_ctx_release_(device); }
  int ctx_push_current(Context context) override { return ctx_push_current_(context); }
  int ctx_pop_current(Context* context) override { return ctx_pop_current_(context); }
  int thread_exchange_capture_mode(int* mode) override { return thread_exchange_capture_mode_(mode); }
  int pointer_get_attribute(void* out, int attribute, DevicePointer at) override {
    return pointer_get_attribute_(out, attribute, at);
  }
  int mem_get_address_range(DevicePointer* base, size_t* bytes, DevicePointer at) override {
    return mem_get_address_range_(base, bytes, at);
  }
  int mem_get_handle_for_address_range(void* handle, DevicePointer at, size_t bytes, int type) override {
    if (mem_get_handle_for_address_range_ == nullptr) return kNotSupported;
    return mem_get_handle_for_address_range_(handle, at, bytes, type, 0);
  }
  int flush_gpu_direct_rdma_writes(int target, int scope) override {
    return flush_gpu_direct_rdma_writes_ != nullptr ? flush_gpu_direct_rdma_writes_(target, scope) : kNotSupported;
  }
  int mem_host_alloc(void** memory, size_t bytes, unsigned flags) override { return mem_host_alloc_(memory, bytes, flags); }
  int mem_free_host(void* memory) override { return mem_free_host_(memory); }
  int stream_create(Stream* stream, unsigned flags) override { return stream_create_(stream, flags); }
  int stream_destroy(Stream stream) override { return stream_destroy_(stream); }
  int stream_synchronize(Stream stream) override { return stream_synchronize_(stream); }
  int stream_is_capturing(Stream stream, int* status) override { return stream_is_capturing_(stream, status); }
  int event_create(Event* event, unsigned flags) override { return event_create_(event, flags); }
  int event_destroy(Event event) override { return event_destroy_(event); }
  int event_record(Event event, Stream stream) override { return event_record_(event, stream); }
  int event_query(Event event) override { return event_query_(event); }
  int memcpy_to_device(DevicePointer to, const void* from, size_t bytes, Stream stream) override {
    return memcpy_to_device_(to, from, bytes, stream);
  }
  int memcpy_to_host(void* to, DevicePointer from, size_t bytes, Stream stream) override {
    return memcpy_to_host_(to, from, bytes, stream);
  }
  int module_load_data(Module* module, const void* image) override { return module_load_data_(module, image); }
  int module_unload(Module module) override { return module_unload_(module); }
  int module_get_function(Function* function, Module module, const char* name) override {
    return module_get_function_(function, module, name);
  }
  int launch_kernel(Function function, unsigned x, unsigned y, unsigned threads, Stream stream, void** arguments) override {
    return launch_kernel_(function, x, y, 1, threads, 1, 1, 0, stream, arguments, nullptr);
  }
  std::string error_name(int error) override {
    const char* name = nullptr;
    if (get_error_name_(error, &name) == kSuccess && name != nullptr) return name;
    return "CUDA error " + std::to_string(error);
  }

 private:
  int (*init_)(unsigned) = nullptr;
  int (*driver_get_version_)(int*) = nullptr;
  int (*get_error_name_)(int, const char**) = nullptr;
  int (*device_get_count_)(int*) = nullptr;
  int (*device_get_)(int*, int) = nullptr;
  int (*device_get_name_)(char*, int, int) = nullptr;
  int (*device_get_attribute_)(int*, int, int) = nullptr;
  int (*primary_ctx_retain_)(Context*, int) = nullptr;
  int (*primary_ctx_release_)(int) = nullptr;
  int (*ctx_push_current_)(Context) = nullptr;
  int (*ctx_pop_current_)(Context*) = nullptr;
  int (*thread_exchange_capture_mode_)(int*) = nullptr;
  int (*pointer_get_attribute_)(void*, int, DevicePointer) = nullptr;
  int (*mem_get_address_range_)(DevicePointer*, size_t*, DevicePointer) = nullptr;
  int (*mem_get_handle_for_address_range_)(void*, DevicePointer, size_t, int, unsigned long long) = nullptr;
  int (*flush_gpu_direct_rdma_writes_)(int, int) = nullptr;
  int (*mem_host_alloc_)(void**, size_t, unsigned) = nullptr;
  int (*mem_free_host_)(void*) = nullptr;
  int (*stream_create_)(Stream*, unsigned) = nullptr;
  int (*stream_destroy_)(Stream) = nullptr;
  int (*stream_synchronize_)(Stream) = nullptr;
  int (*stream_is_capturing_)(Stream, int*) = nullptr;
  int (*event_create_)(Event*, unsigned) = nullptr;
  int (*event_destroy_)(Event) = nullptr;
  int (*event_record_)(Event, Stream) = nullptr;
  int (*event_query_)(Event) = nullptr;
  int (*memcpy_to_device_)(DevicePointer, const void*, size_t, Stream) = nullptr;
  int (*memcpy_to_host_)(void*, DevicePointer, size_t, Stream) = nullptr;
  int (*module_load_data_)(Module*, const void*) = nullptr;
  int (*module_unload_)(Module) = nullptr;
  int (*module_get_function_)(Function*, Module, const char*) = nullptr;
  int (*launch_kernel_)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**,
                        void**) = nullptr;
};

std::atomic<Cuda*> replacement{nullptr};

}  // namespace

void replace_system_cuda(Cuda* table) noexcept { replacement = table; }

Fault load_cuda(const char* library, Cuda** out) {
  *out = nullptr;
  void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return {Code::Unsupported, std::string(why != nullptr ? why : library) + "; the NVIDIA driver has it"};
  }
  Symbols symbols(handle);
  auto loaded = std::make_unique<Library>(symbols);
  if (!symbols.missing().empty()) {
    ::dlclose(handle);
    return {Code::Unsupported,
            std::string(library) + " has no " + symbols.missing() + "; a driver for CUDA 11 or newer has it"};
  }
  // Never unloaded from here on: the driver has threads.
  if (const int error = loaded->init(); error != kSuccess) {
    return {Code::Unsupported, std::string(library) + ": cuInit: " + loaded->error_name(error)};
  }
  *out = loaded.release();
  return {};
}

Cuda* system_cuda(std::string* why_not) {
  if (Cuda* table = replacement; table != nullptr) return table;
  static std::once_flag once;
  static Cuda* cuda = nullptr;
  static std::string reason;
  std::call_once(once, [] { reason = load_cuda(kLibrary, &cuda).what; });
  if (why_not != nullptr) *why_not = reason;
  return cuda;
}

}  // namespace halfstep::gpu
