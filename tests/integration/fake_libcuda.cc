// The driver's functions as libcuda.so.1 has them, over the recording table of the native tests: a "GPU" whose memory is host
// memory that add_memory() names. A test builds it and loads it first; the client then finds it by its name, as it finds the
// driver. Copies are late by default: they are carried out by a thread of their own.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "gpu/fake_cuda.h"

namespace {

halfstep::gpu::FakeCuda& cuda() {
  static auto* const table = new halfstep::gpu::FakeCuda();
  static const bool running = [] {
    table->delay(true);
    std::thread([] {
      for (;; std::this_thread::sleep_for(std::chrono::microseconds(200))) table->carry_out(2);
    }).detach();
    return true;
  }();
  (void)running;
  return *table;
}

}  // namespace

extern "C" {
// The test's.
void fake_add_memory(const void* at, size_t bytes) { cuda().add_memory(at, bytes); }
void fake_fail_next(const char* function, int error) { cuda().fail_next(function, error); }
uint64_t fake_stream(int capturing) { return cuda().stream(capturing != 0); }
void fake_release(uint64_t stream) { cuda().release(stream); }
size_t fake_count(const char* function) { return cuda().count(function); }
size_t fake_faults() { return cuda().faults().size(); }

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return cuda().driver_get_version(version); }
int cuGetErrorName(int error, const char** name) {
  *name = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_UNKNOWN";
  return 0;
}
int cuDeviceGetCount(int* count) { return cuda().device_get_count(count); }
int cuDeviceGet(int* device, int ordinal) { return cuda().device_get(device, ordinal); }
int cuDeviceGetName(char* name, int bytes, int device) { return cuda().device_get_name(name, bytes, device); }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return cuda().device_get_attribute(value, attribute, device);
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return cuda().primary_ctx_retain(context, device); }
int cuDevicePrimaryCtxRelease_v2(int device) { return cuda().primary_ctx_release(device); }
int cuCtxPushCurrent_v2(void* context) { return cuda().ctx_push_current(context); }
int cuCtxPopCurrent_v2(void** context) { return cuda().ctx_pop_current(context); }
int cuThreadExchangeStreamCaptureMode(int* mode) { return cuda().thread_exchange_capture_mode(mode); }
int cuPointerGetAttribute(void* out, int attribute, uint64_t at) { return cuda().pointer_get_attribute(out, attribute, at); }
int cuCtxSetCurrent(void* context) { return cuda().ctx_push_current(context); }
int cuCtxSynchronize() { return cuda().carry_out(), 0; }
// For programs that have their own memory of the device, as bench/gpu_copies.py. It is never freed.
int cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  void* const at = std::malloc(bytes);
  if (at == nullptr) return 2;
  cuda().add_memory(at, bytes);
  *out = reinterpret_cast<uint64_t>(at);
  return 0;
}
int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) {
  return std::memset(reinterpret_cast<void*>(at), value, bytes), 0;
}
int cuMemGetAddressRange_v2(uint64_t* base, size_t* bytes, uint64_t at) {
  return cuda().mem_get_address_range(base, bytes, at);
}
int cuMemGetHandleForAddressRange(void* handle, uint64_t at, size_t bytes, int type, unsigned long long) {
  return cuda().mem_get_handle_for_address_range(handle, at, bytes, type);
}
int cuFlushGPUDirectRDMAWrites(int target, int scope) { return cuda().flush_gpu_direct_rdma_writes(target, scope); }
int cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) { return cuda().mem_host_alloc(memory, bytes, flags); }
int cuMemFreeHost(void* memory) { return cuda().mem_free_host(memory); }
int cuStreamCreate(void** stream, unsigned flags) { return cuda().stream_create(stream, flags); }
int cuStreamDestroy_v2(void* stream) { return cuda().stream_destroy(stream); }
int cuStreamSynchronize(void* stream) { return cuda().stream_synchronize(stream); }
int cuStreamIsCapturing(void* stream, int* status) { return cuda().stream_is_capturing(stream, status); }
int cuEventCreate(void** event, unsigned flags) { return cuda().event_create(event, flags); }
int cuEventDestroy_v2(void* event) { return cuda().event_destroy(event); }
int cuEventRecord(void* event, void* stream) { return cuda().event_record(event, stream); }
int cuEventQuery(void* event) { return cuda().event_query(event); }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  return cuda().memcpy_to_device(to, from, bytes, stream);
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  return cuda().memcpy_to_host(to, from, bytes, stream);
}
int cuModuleLoadData(void** module, const void* image) { return cuda().module_load_data(module, image); }
int cuModuleUnload(void* module) { return cuda().module_unload(module); }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  return cuda().module_get_function(function, module, name);
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
                   unsigned shared_bytes, void* stream, void** arguments, void** extra) {
  if (z != 1 || threads_y != 1 || threads_z != 1 || shared_bytes != 0 || extra != nullptr) return 1;
  return cuda().launch_kernel(function, x, y, threads, stream, arguments);
}
}
