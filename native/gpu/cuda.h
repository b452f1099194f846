// cuda.h — the one table of functions through which everything reaches a GPU: the CUDA driver, libcuda.so.1, loaded when it is
// first asked for (library.cc), or one of a test's own (fake_cuda.h). Nothing is linked and no header of CUDA's is needed: a
// machine without the driver runs the same program, and says why it has no GPU. What stands here of the driver's interface are
// its numbers and the shape of its calls; the version of each function is fixed where it is loaded.
// Invariants: as the driver's functions do, all answer kSuccess or an error of theirs, which may be that of earlier work. A
// stream, an event or a call that needs one is used with its context pushed on the thread.
// Thread: any, as the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace halfstep::gpu {

// CUresult
inline constexpr int kSuccess = 0;
inline constexpr int kOutOfMemory = 2;
inline constexpr int kDeinitialized = 4;
inline constexpr int kNoDevice = 100;
inline constexpr int kNotReady = 600;
inline constexpr int kNotSupported = 801;

using DevicePointer = uint64_t;  // CUdeviceptr
using Context = void*;
using Stream = void*;
using Event = void*;
using Module = void*;
using Function = void*;

// CUstream values that are no stream of somebody's own.
inline constexpr uint64_t kStreamLegacy = 1;
inline constexpr uint64_t kStreamPerThread = 2;

inline constexpr unsigned kStreamNonBlocking = 1;   // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kEventDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned kHostAllocPortable = 1;   // CU_MEMHOSTALLOC_PORTABLE: pinned for every context
inline constexpr int kCaptureNone = 0;              // CU_STREAM_CAPTURE_STATUS_NONE
inline constexpr int kCaptureRelaxed = 2;           // CU_STREAM_CAPTURE_MODE_RELAXED
inline constexpr int kPointerMemoryType = 2;        // CU_POINTER_ATTRIBUTE_MEMORY_TYPE: unsigned
inline constexpr int kPointerDeviceOrdinal = 9;     // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: int
inline constexpr unsigned kMemoryTypeDevice = 2;    // CU_MEMORYTYPE_DEVICE
// What a card writes into a device's memory (peer_writes.h)
inline constexpr int kAttributeFlushOptions = 117;    // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS
inline constexpr int kAttributeWritesOrdering = 118;  // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING
inline constexpr int kAttributeDmaBuf = 124;          // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
inline constexpr int kFlushByHost = 1;                // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST
inline constexpr int kFlushCurrentContext = 0;        // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
inline constexpr int kWritesOrderedForOwner = 100;    // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, and a flush _TO_OWNER
inline constexpr int kHandleDmaBuf = 1;               // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

class Cuda {
 public:
  virtual ~Cuda() = default;
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  virtual int driver_get_version(int* version) = 0;
  virtual int device_get_count(int* count) = 0;
  virtual int device_get(int* device, int ordinal) = 0;
  virtual int device_get_name(char* name, int bytes, int device) = 0;
  virtual int device_get_attribute(int* value, int attribute, int device) = 0;
  virtual int primary_ctx_retain(Context* context, int device) = 0;
  virtual int primary_ctx_release(int device) = 0;
  virtual int ctx_push_current(Context context) = 0;
  virtual int ctx_pop_current(Context* context) = 0;
  virtual int thread_exchange_capture_mode(int* mode) = 0;
  virtual int pointer_get_attribute(void* out, int attribute, DevicePointer at) = 0;
  virtual int mem_get_address_range(DevicePointer* base, size_t* bytes, DevicePointer at) = 0;
  // kNotSupported, of this and the next: the driver is older than CUDA 11.7 and 11.3.
  virtual int mem_get_handle_for_address_range(void* handle, DevicePointer at, size_t bytes, int type) = 0;
  virtual int flush_gpu_direct_rdma_writes(int target, int scope) = 0;
  virtual int mem_host_alloc(void** memory, size_t bytes, unsigned flags) = 0;
  virtual int mem_free_host(void* memory) = 0;
  virtual int stream_create(Stream* stream, unsigned flags) = 0;
  virtual int stream_destroy(Stream stream) = 0;
  virtual int stream_synchronize(Stream stream) = 0;
  virtual int stream_is_capturing(Stream stream, int* status) = 0;
  virtual int event_create(Event* event, unsigned flags) = 0;
  virtual int event_destroy(Event event) = 0;
  virtual int event_record(Event event, Stream stream) = 0;
  virtual int event_query(Event event) = 0;
  virtual int memcpy_to_device(DevicePointer to, const void* from, size_t bytes, Stream stream) = 0;
  virtual int memcpy_to_host(void* to, DevicePointer from, size_t bytes, Stream stream) = 0;
  virtual int module_load_data(Module* module, const void* image) = 0;
  virtual int module_unload(Module module) = 0;
  virtual int module_get_function(Function* function, Module module, const char* name) = 0;
  // A grid of x times y blocks of `threads` threads each. The arguments are read before it returns.
  virtual int launch_kernel(Function function, unsigned x, unsigned y, unsigned threads, Stream stream, void** arguments) = 0;
  // "CUDA_ERROR_ILLEGAL_ADDRESS", or the number of one that has no name.
  virtual std::string error_name(int error) = 0;

 protected:
  Cuda() = default;
};

// This machine's, loaded and initialised once, and kept: null with the reason where there is none, or no device.
Cuda* system_cuda(std::string* why_not);
// For tests: system_cuda() gives this table from here on, or the machine's own again (null). Nobody may be using another.
void replace_system_cuda(Cuda* table) noexcept;
// The same from a library of this name, for tests.
Fault load_cuda(const char* library, Cuda** out);

}  // namespace halfstep::gpu
