// verbs.h — the one table of functions through which everything reaches an RDMA device: libibverbs.so.1, loaded when it is
// first asked for (library.cc), or one of a test's own (fake_verbs.h). Nothing is linked: a machine without the library runs
// the same program, and says why it has no RDMA. Invariants: as the functions of libibverbs do, those that make something
// answer null and set errno, the others answer 0 or an errno, and poll_cq() a count or less than 0. What is made with a thing
// is destroyed before it. Thread: any, as libibverbs.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "rdma/abi.h"

namespace halfstep::rdma {

class Verbs {
 public:
  virtual ~Verbs() = default;
  Verbs(const Verbs&) = delete;
  Verbs& operator=(const Verbs&) = delete;

  // Whether its devices may have addresses of loopback: for tests within a machine.
  virtual bool on_loopback() const noexcept { return false; }
  virtual abi::Device** get_device_list(int* count) = 0;
  virtual void free_device_list(abi::Device** list) = 0;
  virtual const char* get_device_name(abi::Device* device) = 0;
  virtual abi::Context* open_device(abi::Device* device) = 0;
  virtual int close_device(abi::Context* context) = 0;
  virtual int query_device(abi::Context* context, abi::DeviceAttributes* out) = 0;
  virtual int query_port(abi::Context* context, uint8_t port, abi::PortAttributes* out) = 0;
  virtual int query_gid(abi::Context* context, uint32_t port, uint32_t index, abi::GidEntry* out) = 0;
  virtual abi::Pd* alloc_pd(abi::Context* context) = 0;
  virtual int dealloc_pd(abi::Pd* pd) = 0;
  virtual abi::MemoryRegion* reg_mr(abi::Pd* pd, void* at, size_t bytes, int access) = 0;
  // Memory of another device, from `offset` on in the dma-buf; `address`: by which peers name its first byte. EOPNOTSUPP: the
  // library is older than rdma-core 34.
  virtual abi::MemoryRegion* reg_dmabuf_mr(abi::Pd* pd, uint64_t offset, size_t bytes, uint64_t address, int descriptor,
                                           int access) = 0;
  virtual int dereg_mr(abi::MemoryRegion* region) = 0;
  // Of type 2, bound and invalidated by what is posted to a queue pair.
  virtual abi::MemoryWindow* alloc_mw(abi::Pd* pd) = 0;
  virtual int dealloc_mw(abi::MemoryWindow* window) = 0;
  virtual abi::CompletionChannel* create_comp_channel(abi::Context* context) = 0;
  virtual int destroy_comp_channel(abi::CompletionChannel* channel) = 0;
  virtual abi::Cq* create_cq(abi::Context* context, int entries, void* owner, abi::CompletionChannel* channel) = 0;
  virtual int destroy_cq(abi::Cq* cq) = 0;
  virtual int get_cq_event(abi::CompletionChannel* channel, abi::Cq** cq, void** owner) = 0;
  virtual void ack_cq_events(abi::Cq* cq, unsigned count) = 0;
  virtual int req_notify_cq(abi::Cq* cq) = 0;
  virtual int poll_cq(abi::Cq* cq, int count, abi::Completion* out) = 0;
  virtual abi::Qp* create_qp(abi::Pd* pd, abi::QpInit* init) = 0;
  virtual int modify_qp(abi::Qp* qp, abi::QpAttributes* attributes, int mask) = 0;
  virtual int destroy_qp(abi::Qp* qp) = 0;
  virtual int post_send(abi::Qp* qp, abi::SendRequest* requests) = 0;
  virtual int post_recv(abi::Qp* qp, abi::ReceiveRequest* requests) = 0;

 protected:
  Verbs() = default;
};

// This machine's, loaded once and kept: null with the reason where there is none, or no device.
Verbs* system_verbs(std::string* why_not);

// For tests: system_verbs() gives this table from here on, or the machine's own again (null). Nobody may be using another.
void replace_system_verbs(Verbs* table) noexcept;
// The same from a library of this name, for tests.
Fault load_verbs(const char* library, Verbs** out);

// enum ibv_mtu: 1 is 256 bytes, 5 is 4096; 0 for any other.
constexpr uint32_t mtu_bytes(int number) noexcept { return number >= 1 && number <= 5 ? 128U << number : 0; }
constexpr int mtu_number(uint32_t bytes) noexcept {
  for (int number = 1; number <= 5; ++number) {
    if (mtu_bytes(number) == bytes) return number;
  }
  return 0;
}

}  // namespace halfstep::rdma
