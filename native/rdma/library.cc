#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <mutex>
#include <system_error>

#include "base/symbols.h"
#include "rdma/verbs.h"

namespace halfstep::rdma {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";
constexpr const char* kDevicesFolder = "/sys/class/infiniband";

class Library final : public Verbs {
 public:
  explicit Library(Symbols& symbols) {
    constexpr const char* k10 = "IBVERBS_1.0";
    constexpr const char* k11 = "IBVERBS_1.1";
    symbols.take(&get_device_list_, "ibv_get_device_list", k11);
    symbols.take(&free_device_list_, "ibv_free_device_list", k11);
    symbols.take(&get_device_name_, "ibv_get_device_name", k11);
    symbols.take(&open_device_, "ibv_open_device", k11);
    symbols.take(&close_device_, "ibv_close_device", k11);
    symbols.take(&query_device_, "ibv_query_device", k11);
    symbols.take(&query_port_, "ibv_query_port", k11);
    symbols.take(&query_gid_, "_ibv_query_gid_ex", "IBVERBS_1.11");
    symbols.take(&alloc_pd_, "ibv_alloc_pd", k11);
    symbols.take(&dealloc_pd_, "ibv_dealloc_pd", k11);
    symbols.take(&reg_mr_, "ibv_reg_mr", k11);
    symbols.take_if_there(&reg_dmabuf_mr_, "ibv_reg_dmabuf_mr", "IBVERBS_1.12");
    symbols.take(&dereg_mr_, "ibv_dereg_mr", k11);
    symbols.take(&create_comp_channel_, "ibv_create_comp_channel", k10);
    symbols.take(&destroy_comp_channel_, "ibv_destroy_comp_channel", k10);
    symbols.take(&create_cq_, "ibv_create_cq", k11);
    symbols.take(&destroy_cq_, "ibv_destroy_cq", k11);
    symbols.take(&get_cq_event_, "ibv_get_cq_event", k11);
    symbols.take(&ack_cq_events_, "ibv_ack_cq_events", k11);
    symbols.take(&create_qp_, "ibv_create_qp", k11);
    symbols.take(&modify_qp_, "ibv_modify_qp", k11);
    symbols.take(&destroy_qp_, "ibv_destroy_qp", k11);
    symbols.take(&fork_init_, "ibv_fork_init", k11);
  }

  // Before any memory is registered: queues that a provider allocates are then kept from children, as our memory is.
  int keep_from_children() { return fork_init_(); }

  abi::Device** get_device_list(int* count) override { return get_device_list_(count); }
  void free_device_list(abi::Device** list) override { free_device_list_(list); }
  const char* get_device_name(abi::Device* device) override { return get_device_name_(device); }
  abi::Context* open_device(abi::Device* device) override { return open_device_(device); }
  int close_device(abi::Context* context) override { return close_device_(context); }
  int query_device(abi::Context* context, abi::DeviceAttributes* out) override { return query_device_(context, out); }
  int query_port(abi::Context* context, uint8_t port, abi::PortAttributes* out) override {
    *out = {};
    return query_port_(context, port, out);
  }
  int query_gid(abi::Context* context, uint32_t port, uint32_t index, abi::GidEntry* out) override {
    return query_gid_(context, port, index, out, 0, sizeof(*out));
  }
  abi::Pd* alloc_pd(abi::Context* context) override { return alloc_pd_(context); }
  int dealloc_pd(abi::Pd* pd) override { return dealloc_pd_(pd); }
  abi::MemoryRegion* reg_mr(abi::Pd* pd, void* at, size_t bytes, int access) override { return reg_mr_(pd, at, bytes, access); }
  abi::MemoryRegion* reg_dmabuf_mr(abi::Pd* pd, uint64_t offset, size_t bytes, uint64_t address, int descriptor,
                                   int access) override {
    if (reg_dmabuf_mr_ != nullptr) return reg_dmabuf_mr_(pd, offset, bytes, address, descriptor, access);
    errno = EOPNOTSUPP;
    return nullptr;
  }
  int dereg_mr(abi::MemoryRegion* region) override { return dereg_mr_(region); }
  abi::MemoryWindow* alloc_mw(abi::Pd* pd) override {
    if (pd->context->ops.alloc_mw != nullptr) return pd->context->ops.alloc_mw(pd, abi::kWindowType2);
    errno = EOPNOTSUPP;
    return nullptr;
  }
  int dealloc_mw(abi::MemoryWindow* window) override { return window->context->ops.dealloc_mw(window); }
  abi::CompletionChannel* create_comp_channel(abi::Context* context) override { return create_comp_channel_(context); }
  int destroy_comp_channel(abi::CompletionChannel* channel) override { return destroy_comp_channel_(channel); }
  abi::Cq* create_cq(abi::Context* context, int entries, void* owner, abi::CompletionChannel* channel) override {
    return create_cq_(context, entries, owner, channel, 0);
  }
  int destroy_cq(abi::Cq* cq) override { return destroy_cq_(cq); }
  int get_cq_event(abi::CompletionChannel* channel, abi::Cq** cq, void** owner) override {
    return get_cq_event_(channel, cq, owner);
  }
  void ack_cq_events(abi::Cq* cq, unsigned count) override { ack_cq_events_(cq, count); }
  int req_notify_cq(abi::Cq* cq) override { return cq->context->ops.req_notify_cq(cq, 0); }
  int poll_cq(abi::Cq* cq, int count, abi::Completion* out) override { return cq->context->ops.poll_cq(cq, count, out); }
  abi::Qp* create_qp(abi::Pd* pd, abi::QpInit* init) override { return create_qp_(pd, init); }
  int modify_qp(abi::Qp* qp, abi::QpAttributes* attributes, int mask) override { return modify_qp_(qp, attributes, mask); }
  int destroy_qp(abi::Qp* qp) override { return destroy_qp_(qp); }
  int post_send(abi::Qp* qp, abi::SendRequest* requests) override {
    abi::SendRequest* bad = nullptr;
    return qp->context->ops.post_send(qp, requests, &bad);
  }
  int post_recv(abi::Qp* qp, abi::ReceiveRequest* requests) override {
    abi::ReceiveRequest* bad = nullptr;
    return qp->context->ops.post_recv(qp, requests, &bad);
  }

 private:
  abi::Device** (*get_device_list_)(int*) = nullptr;
  void (*free_device_list_)(abi::Device**) = nullptr;
  const char* (*get_device_name_)(abi::Device*) = nullptr;
  abi::Context* (*open_device_)(abi::Device*) = nullptr;
  int (*close_device_)(abi::Context*) = nullptr;
  int (*query_device_)(abi::Context*, abi::DeviceAttributes*) = nullptr;
  int (*query_port_)(abi::Context*, uint8_t, abi::PortAttributes*) = nullptr;
  int (*query_gid_)(abi::Context*, uint32_t, uint32_t, abi::GidEntry*, uint32_t, size_t) = nullptr;
  abi::Pd* (*alloc_pd_)(abi::Context*) = nullptr;
  int (*dealloc_pd_)(abi::Pd*) = nullptr;
  abi::MemoryRegion* (*reg_mr_)(abi::Pd*, void*, size_t, int) = nullptr;
  abi::MemoryRegion* (*reg_dmabuf_mr_)(abi::Pd*, uint64_t, size_t, uint64_t, int, int) = nullptr;
  int (*dereg_mr_)(abi::MemoryRegion*) = nullptr;
  abi::CompletionChannel* (*create_comp_channel_)(abi::Context*) = nullptr;
  int (*destroy_comp_channel_)(abi::CompletionChannel*) = nullptr;
  abi::Cq* (*create_cq_)(abi::Context*, int, void*, abi::CompletionChannel*, int) = nullptr;
  int (*destroy_cq_)(abi::Cq*) = nullptr;
  int (*get_cq_event_)(abi::CompletionChannel*, abi::Cq**, void**) = nullptr;
  void (*ack_cq_events_)(abi::Cq*, unsigned) = nullptr;
  abi::Qp* (*create_qp_)(abi::Pd*, abi::QpInit*) = nullptr;
  int (*modify_qp_)(abi::Qp*, abi::QpAttributes*, int) = nullptr;
  int (*destroy_qp_)(abi::Qp*) = nullptr;
  int (*fork_init_)() = nullptr;
};

std::atomic<Verbs*> replacement{nullptr};

}  // namespace

Fault load_verbs(const char* library, Verbs** out) {
  *out = nullptr;
  void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return {Code::Unsupported,
            std::string(why != nullptr ? why : library) + "; the packages libibverbs1 and ibverbs-providers have it"};
  }
  Symbols symbols(handle);
  auto loaded = std::make_unique<Library>(symbols);
  if (!symbols.missing().empty()) {
    ::dlclose(handle);
    return {Code::Unsupported, std::string(library) + " has no " + symbols.missing() + "; rdma-core 32 or newer has it"};
  }
  if (const int error = loaded->keep_from_children(); error != 0) {
    // Never unloaded: providers register handlers that cannot be taken back.
    return {{Code::Unsupported, -error},
            std::string(library) + ": ibv_fork_init: " + errno_name(error) +
                "; it has to come before memory is registered by others in this process"};
  }
  *out = loaded.release();
  return {};
}

void replace_system_verbs(Verbs* table) noexcept { replacement = table; }

Verbs* system_verbs(std::string* why_not) {
  if (Verbs* table = replacement; table != nullptr) return table;
  // Where the kernel knows no device the library is not even loaded: it would read files and print what drivers it misses.
  std::error_code error;
  if (std::filesystem::directory_iterator(kDevicesFolder, error) == std::filesystem::directory_iterator()) {
    if (why_not != nullptr) *why_not = "this machine has no RDMA device";
    return nullptr;
  }
  static std::once_flag once;
  static Verbs* verbs = nullptr;
  static std::string reason;
  std::call_once(once, [] { reason = load_verbs(kLibrary, &verbs).what; });
  if (why_not != nullptr) *why_not = reason;
  return verbs;
}

}  // namespace halfstep::rdma
