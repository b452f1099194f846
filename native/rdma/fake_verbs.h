// fake_verbs.h — for tests: a table of verbs whose queue pairs move bytes within one process, write down every call and fail
// when they are told to. What a device checks is checked: keys, ranges, access, states, numbers of queue pairs, room in queues.
// A write is carried out when it is posted. One with an immediate waits for a receive of the other end, as a device does that
// asks again; those behind it wait for it. delay(): nothing is carried out before carry_out().
// Invariants: what is destroyed before what was made of it, and what is still there at the end, is a fault of the test's
// subject (faults(), live()). Thread: any; whoever sees a completion sees the bytes that came before it.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rdma/device.h"
#include "rdma/fake_device.h"
#include "rdma/fake_objects.h"
#include "rdma/verbs.h"

namespace halfstep::rdma {

class FakeVerbs final : public Verbs {
 public:
  explicit FakeVerbs(std::vector<FakeDevice> devices = {FakeDevice{}}) : specs_(std::move(devices)) {
    for (size_t i = 0; i < specs_.size(); ++i) handles_.push_back(std::make_unique<size_t>(i));
  }

  // ---- The test's
  // The next call of this function fails, or that after `after` more.
  void fail_next(const std::string& function, int error, int after = 0) {
    const std::lock_guard lock(mutex_);
    calls_.failures[function] = {error, after};
  }
  // The next call of this function takes so long.
  void slow_next(const std::string& function, uint64_t us) {
    const std::lock_guard lock(mutex_);
    calls_.slow_us[function] = us;
  }
  void delay(bool on) {
    const std::lock_guard lock(mutex_);
    delayed_ = on;
  }
  // The same of the queue pair that was made last: the server's, of a connection's two.
  void delay_newest(bool on) {
    const std::lock_guard lock(mutex_);
    if (!pairs_.empty()) pairs_.rbegin()->second->delayed = on;
  }
  // Windows that are bound.
  size_t bound() {
    const std::lock_guard lock(mutex_);
    return windows_.size();
  }
  // Up to `count` of what waits in each queue pair.
  void carry_out(size_t count = SIZE_MAX) {
    const std::lock_guard lock(mutex_);
    for (QueuePair* qp : pairs()) {
      for (size_t i = 0; i < count && step(*qp); ++i) {
      }
    }
  }
  // Every queue pair goes into error, as when a cable is pulled: with this status first.
  void break_all(int status) {
    const std::lock_guard lock(mutex_);
    for (QueuePair* qp : pairs()) to_error(*qp, status);
  }
  // The same of that which was made last.
  void break_newest(int status) {
    const std::lock_guard lock(mutex_);
    if (!pairs_.empty()) to_error(*pairs_.rbegin()->second, status);
  }
  std::vector<std::string> take_calls() {
    const std::lock_guard lock(mutex_);
    return std::exchange(calls_.made, {});
  }
  uint64_t count(const std::string& function) {
    const std::lock_guard lock(mutex_);
    return calls_.counts[function];
  }
  // Writes that were posted, and completions that came, of both kinds.
  uint64_t sends_posted() { return count("send"); }
  uint64_t signals_asked() { return count("signal"); }
  std::vector<std::string> faults() {
    const std::lock_guard lock(mutex_);
    return things_.faults;
  }
  // Queue pairs of this device that are there.
  size_t queue_pairs_of(const std::string& device) {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::count_if(pairs_.begin(), pairs_.end(), [&](const auto& pair) {
      return spec_of(pair.second->qp.context->device).name == device;
    }));
  }
  // Things that were made and not destroyed.
  size_t live() {
    const std::lock_guard lock(mutex_);
    return things_.live.size();
  }

  // The next completion channel can be watched by nobody.
  void unwatchable_next() {
    const std::lock_guard lock(mutex_);
    unwatchable_ = true;
  }
  // As when a device is being taken away, which waits for those that have it open.
  void unlist(bool on) {
    const std::lock_guard lock(mutex_);
    unlisted_ = on;
  }
  // As when drivers are unloaded and loaded again: what is open answers nothing any more.
  void reload() {
    const std::lock_guard lock(mutex_);
    for (const auto& [thing, kind] : things_.live) {
      if (kind == "context") stale_.insert(thing);
    }
  }
  // Of the next write without an immediate a byte arrives as another.
  void spoil_next_placed() {
    const std::lock_guard lock(mutex_);
    spoil_ = true;
  }
  // The same of the next read.
  void spoil_next_read() {
    const std::lock_guard lock(mutex_);
    spoil_read_ = true;
  }
  void keep_off_loopback() { on_loopback_ = false; }

  // ---- Verbs
  bool on_loopback() const noexcept override { return on_loopback_; }
  abi::Device** get_device_list(int* count) override {
    const std::lock_guard lock(mutex_);
    *count = 0;
    if (!may("get_device_list")) return nullptr;
    auto** list = new abi::Device*[specs_.size() + 1]();
    const size_t listed = unlisted_ ? 0 : specs_.size();
    for (size_t i = 0; i < listed; ++i) list[i] = reinterpret_cast<abi::Device*>(handles_[i].get());
    *count = static_cast<int>(listed);
    things_.made(list, "list");
    return list;
  }
  void free_device_list(abi::Device** list) override {
    const std::lock_guard lock(mutex_);
    things_.gone(list, "list");
    delete[] list;
  }
  const char* get_device_name(abi::Device* device) override { return spec_of(device).name.c_str(); }
  abi::Context* open_device(abi::Device* device) override {
    const std::lock_guard lock(mutex_);
    if (!may("open_device " + spec_of(device).name)) return nullptr;
    auto* context = new abi::Context{};
    context->device = device;
    things_.made(context, "context");
    return context;
  }
  int close_device(abi::Context* context) override {
    const std::lock_guard lock(mutex_);
    may("close_device");
    things_.gone(context, "context");
    stale_.erase(context);
    delete context;
    return 0;
  }
  int query_device(abi::Context* context, abi::DeviceAttributes* out) override {
    const std::lock_guard lock(mutex_);
    if (!may("query_device")) return errno;
    *out = {};
    const FakeDevice& spec = spec_of(context->device);
    out->max_qp_wr = spec.max_qp_wr;
    out->max_sge = spec.max_sge;
    out->max_qp_rd_atom = out->max_qp_init_rd_atom = spec.max_reads;
    if (spec.windows) out->device_cap_flags = abi::kDeviceWindows2B;
    out->phys_port_cnt = static_cast<uint8_t>(spec.ports.size());
    return 0;
  }
  int query_port(abi::Context* context, uint8_t port, abi::PortAttributes* out) override {
    const std::lock_guard lock(mutex_);
    const FakePort& spec = spec_of(context->device).ports.at(port - 1);
    *out = {};
    out->state = spec.state;
    out->active_mtu = spec.mtu;
    out->gid_tbl_len = static_cast<int>(spec.gids.size()) + 1;  // the last one is empty
    out->max_msg_sz = 1U << 30;
    if (stale_.contains(context)) return EIO;
    return may("query_port") ? 0 : errno;
  }
  int query_gid(abi::Context* context, uint32_t port, uint32_t index, abi::GidEntry* out) override {
    const std::lock_guard lock(mutex_);
    const FakePort& spec = spec_of(context->device).ports.at(port - 1);
    if (index >= spec.gids.size()) return ENODATA;
    *out = {.gid = spec.gids[index].first,
            .gid_index = index,
            .port_num = port,
            .gid_type = spec.gids[index].second,
            .ndev_ifindex = 1};
    return 0;
  }
  abi::Pd* alloc_pd(abi::Context* context) override {
    const std::lock_guard lock(mutex_);
    if (!may("alloc_pd")) return nullptr;
    auto* pd = new abi::Pd{.context = context, .handle = 0};
    things_.made(pd, "pd");
    return pd;
  }
  int dealloc_pd(abi::Pd* pd) override {
    const std::lock_guard lock(mutex_);
    may("dealloc_pd");
    things_.needed("region or queue pair", [&](const auto& thing) {
      return (thing.second == "region" && static_cast<const Region*>(thing.first)->mr.pd == pd) ||
             (thing.second == "qp" && static_cast<const QueuePair*>(thing.first)->qp.pd == pd);
    });
    things_.gone(pd, "pd");
    delete pd;
    return 0;
  }
  abi::MemoryRegion* reg_mr(abi::Pd* pd, void* at, size_t bytes, int access) override {
    const std::lock_guard lock(mutex_);
    return may("reg_mr " + std::to_string(bytes) + " " + std::to_string(access)) ? add_region(pd, at, bytes, access) : nullptr;
  }
  // A device's memory is the host's here.
  abi::MemoryRegion* reg_dmabuf_mr(abi::Pd* pd, uint64_t offset, size_t bytes, uint64_t address, int descriptor,
                                   int access) override {
    const std::lock_guard lock(mutex_);
    const std::string what = std::to_string(bytes) + " at " + std::to_string(offset) + " " + std::to_string(access);
    if (!may("reg_dmabuf_mr " + what)) return nullptr;
    // As the kernel: both lie alike in their pages, and no window can be bound to it.
    const bool allowed =
        ::fcntl(descriptor, F_GETFD) >= 0 && offset % 4096 == address % 4096 && (access & abi::kAccessWindowBind) == 0;
    if (allowed) return add_region(pd, reinterpret_cast<void*>(static_cast<uintptr_t>(address)), bytes, access);
    errno = EINVAL;
    return nullptr;
  }
  int dereg_mr(abi::MemoryRegion* mr) override {
    const std::lock_guard lock(mutex_);
    may("dereg_mr");
    auto* region = reinterpret_cast<Region*>(mr);
    things_.needed("window", [&](const auto& thing) {
      return thing.second == "window" && static_cast<const Window*>(thing.first)->region == region;
    });
    regions_.forget(*region);
    things_.gone(region, "region");
    delete region;
    return 0;
  }
  abi::MemoryWindow* alloc_mw(abi::Pd* pd) override {
    const std::lock_guard lock(mutex_);
    if (!may("alloc_mw")) return nullptr;
    auto* window = new Window{};
    window->number = next_key_ << 8;
    window->mw = {.context = pd->context, .pd = pd, .rkey = window->number, .handle = 0, .type = abi::kWindowType2};
    next_key_ += 7;
    things_.made(window, "window");
    return &window->mw;
  }
  int dealloc_mw(abi::MemoryWindow* mw) override {
    const std::lock_guard lock(mutex_);
    may("dealloc_mw");
    auto* window = reinterpret_cast<Window*>(mw);
    windows_.forget(*window);
    things_.gone(window, "window");
    delete window;
    return 0;
  }
  abi::CompletionChannel* create_comp_channel(abi::Context* context) override {
    const std::lock_guard lock(mutex_);
    if (!may("create_comp_channel")) return nullptr;
    const bool watchable = !std::exchange(unwatchable_, false);
    const int descriptor = watchable ? ::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE) : ::memfd_create("channel", MFD_CLOEXEC);
    auto* channel = new abi::CompletionChannel{.context = context, .fd = descriptor, .refcnt = 0};
    things_.made(channel, "channel");
    return channel;
  }
  int destroy_comp_channel(abi::CompletionChannel* channel) override {
    const std::lock_guard lock(mutex_);
    may("destroy_comp_channel");
    things_.needed("completion queue", [&](const auto& thing) {
      return thing.second == "cq" && static_cast<const CompletionQueue*>(thing.first)->cq.channel == channel;
    });
    things_.gone(channel, "channel");
    ::close(channel->fd);
    delete channel;
    return 0;
  }
  abi::Cq* create_cq(abi::Context* context, int entries, void* owner, abi::CompletionChannel* channel) override {
    const std::lock_guard lock(mutex_);
    if (!may("create_cq " + std::to_string(entries))) return nullptr;
    auto* queue = new CompletionQueue{};
    queue->cq = {.context = context, .channel = channel, .cq_context = owner};
    queue->entries = static_cast<size_t>(entries);
    queues_[channel] = &queue->cq;
    things_.made(queue, "cq");
    return &queue->cq;
  }
  int destroy_cq(abi::Cq* cq) override {
    const std::lock_guard lock(mutex_);
    may("destroy_cq");
    auto* queue = reinterpret_cast<CompletionQueue*>(cq);
    things_.needed("queue pair", [&](const auto& thing) {
      return thing.second == "qp" && static_cast<const QueuePair*>(thing.first)->qp.send_cq == cq;
    });
    if (queue->unacknowledged != 0)
      things_.faults.push_back("a completion queue with events that nobody acknowledged is destroyed");
    things_.gone(queue, "cq");
    delete queue;
    return 0;
  }
  int get_cq_event(abi::CompletionChannel* channel, abi::Cq** cq, void** owner) override {
    const std::lock_guard lock(mutex_);
    uint64_t one = 0;
    if (::read(channel->fd, &one, sizeof(one)) != sizeof(one)) return -1;
    auto* queue = reinterpret_cast<CompletionQueue*>(queues_.at(channel));
    ++queue->unacknowledged;
    *cq = &queue->cq;
    *owner = queue->cq.cq_context;
    return 0;
  }
  void ack_cq_events(abi::Cq* cq, unsigned count) override {
    const std::lock_guard lock(mutex_);
    reinterpret_cast<CompletionQueue*>(cq)->unacknowledged -= count;
  }
  int req_notify_cq(abi::Cq* cq) override {
    const std::lock_guard lock(mutex_);
    if (!may("req_notify_cq")) return errno;
    reinterpret_cast<CompletionQueue*>(cq)->armed = true;
    return 0;
  }
  int poll_cq(abi::Cq* cq, int count, abi::Completion* out) override {
    const std::lock_guard lock(mutex_);
    auto& done = reinterpret_cast<CompletionQueue*>(cq)->done;
    int taken = 0;
    for (; taken < count && !done.empty(); ++taken) {
      out[taken] = done.front();
      done.pop_front();
    }
    return taken;
  }
  abi::Qp* create_qp(abi::Pd* pd, abi::QpInit* init) override {
    const std::lock_guard lock(mutex_);
    if (!may("create_qp " + std::to_string(init->cap.max_send_wr) + " " + std::to_string(init->cap.max_recv_wr)))
      return nullptr;
    auto* made = new QueuePair{};
    made->qp.context = pd->context;
    made->qp.pd = pd;
    made->qp.send_cq = init->send_cq;
    made->qp.recv_cq = init->recv_cq;
    made->qp.qp_num = next_number_++;
    made->cap = init->cap;
    pairs_[made->qp.qp_num] = made;
    things_.made(made, "qp");
    return &made->qp;
  }
  int modify_qp(abi::Qp* handle, abi::QpAttributes* attributes, int mask) override {
    const std::lock_guard lock(mutex_);
    auto& qp = *reinterpret_cast<QueuePair*>(handle);
    if (!may("modify_qp " + std::to_string(static_cast<int>(attributes->qp_state)) + " " + std::to_string(mask))) return errno;
    qp.state = attributes->qp_state;
    if (qp.state == abi::QpState::Init) qp.access = attributes->qp_access_flags;
    if (qp.state == abi::QpState::ReadyToReceive) {
      qp.destination = attributes->dest_qp_num;
      qp.receive_psn = attributes->rq_psn;
      qp.mtu = attributes->path_mtu;
      qp.route = attributes->ah_attr;
      qp.reads_in = attributes->max_dest_rd_atomic;
      if ((mask & abi::kQpAccessFlags) != 0) qp.access = attributes->qp_access_flags;
    }
    if (qp.state == abi::QpState::ReadyToSend) {
      qp.send_psn = attributes->sq_psn;
      qp.reads_out = attributes->max_rd_atomic;
    }
    if (qp.state == abi::QpState::Error) to_error(qp, abi::kStatusFlushed);
    return 0;
  }
  int destroy_qp(abi::Qp* handle) override {
    const std::lock_guard lock(mutex_);
    may("destroy_qp");
    auto* qp = reinterpret_cast<QueuePair*>(handle);
    things_.needed("window", [&](const auto& thing) {
      return thing.second == "window" && static_cast<const Window*>(thing.first)->bound_by == qp->qp.qp_num;
    });
    pairs_.erase(handle->qp_num);
    things_.gone(qp, "qp");
    delete qp;
    return 0;
  }
  int post_send(abi::Qp* handle, abi::SendRequest* chain) override {
    const std::lock_guard lock(mutex_);
    auto& qp = *reinterpret_cast<QueuePair*>(handle);
    if (!may("post_send")) return errno;
    if (qp.state != abi::QpState::ReadyToSend && qp.state != abi::QpState::Error) return EINVAL;
    for (; chain != nullptr; chain = chain->next) {
      if (qp.sends.size() + qp.unreaped >= qp.cap.max_send_wr) {
        things_.faults.push_back("more writes are posted than the queue pair has room for");
        return ENOMEM;
      }
      if (chain->num_sge > static_cast<int>(qp.cap.max_send_sge)) return EINVAL;
      ++calls_.counts["send"];
      if (chain->opcode == abi::kWrite) ++calls_.counts["placed"];
      if (chain->opcode == abi::kRead) ++calls_.counts["read"];
      if ((chain->send_flags & abi::kSignaled) != 0) ++calls_.counts["signal"];
      Send send{.request = *chain, .pieces = {}};
      send.pieces.assign(chain->sg_list, chain->sg_list + chain->num_sge);
      qp.sends.push_back(std::move(send));
    }
    if (qp.state == abi::QpState::Error) {
      to_error(qp, abi::kStatusFlushed);
    } else if (!delayed_) {
      while (step(qp)) {
      }
    }
    return 0;
  }
  int post_recv(abi::Qp* handle, abi::ReceiveRequest* chain) override {
    const std::lock_guard lock(mutex_);
    auto& qp = *reinterpret_cast<QueuePair*>(handle);
    if (!may("post_recv")) return errno;
    for (; chain != nullptr; chain = chain->next) {
      if (qp.receives.size() >= qp.cap.max_recv_wr) {
        things_.faults.push_back("more receives are posted than the queue pair has room for");
        return ENOMEM;
      }
      qp.receives.push_back(chain->wr_id);
    }
    if (qp.state == abi::QpState::Error) to_error(qp, abi::kStatusFlushed);
    if (delayed_) return 0;
    const auto waits = pairs_.find(qp.destination);  // for one
    while (waits != pairs_.end() && waits->second->destination == qp.qp.qp_num && step(*waits->second)) {
    }
    return 0;
  }

 private:
  using Region = FakeRegion;
  using Window = FakeWindow;
  using CompletionQueue = FakeCompletionQueue;
  using Send = FakeSend;
  using QueuePair = FakeQueuePair;

  const FakeDevice& spec_of(abi::Device* device) const { return specs_[*reinterpret_cast<const size_t*>(device)]; }

  bool may(const std::string& call) { return calls_.may(call); }
  abi::MemoryRegion* add_region(abi::Pd* pd, void* at, size_t bytes, int access) {
    Region* const region = regions_.add(pd, at, bytes, access, next_key_ += 7);
    things_.made(region, "region");
    return &region->mr;
  }
  std::vector<QueuePair*> pairs() {
    std::vector<QueuePair*> out;
    for (const auto& [number, pair] : pairs_) out.push_back(pair);
    return out;
  }
  // Whether who is connected to `qp` may do that by this key.
  bool reaches(const QueuePair& qp, uint32_t key, uint64_t address, uint64_t bytes, int access) {
    if (const Window* window = windows_.find(key)) return window->reaches(qp.qp.qp_num, address, bytes, access);
    const Region* region = regions_.find(key, true);
    return region != nullptr && (region->access & access) != 0 && region->mr.pd == qp.qp.pd && covers(region, address, bytes);
  }

  void complete(abi::Cq* cq, const abi::Completion& completion) {
    auto& queue = *reinterpret_cast<CompletionQueue*>(cq);
    if (queue.done.size() >= queue.entries) things_.faults.push_back("a completion queue overflows");
    queue.done.push_back(completion);
    if (!std::exchange(queue.armed, false)) return;
    const uint64_t one = 1;
    (void)!::write(queue.cq.channel->fd, &one, sizeof(one));
  }
  void to_error(QueuePair& qp, int status) {
    qp.state = abi::QpState::Error;
    for (; !qp.sends.empty(); qp.sends.pop_front()) {
      complete(qp.qp.send_cq, {.wr_id = qp.sends.front().request.wr_id, .status = std::exchange(status, abi::kStatusFlushed)});
    }
    for (; !qp.receives.empty(); qp.receives.pop_front()) {
      complete(qp.qp.recv_cq, {.wr_id = qp.receives.front(), .status = abi::kStatusFlushed});
    }
  }

  // The same of one that binds or invalidates a window.
  bool step_window(QueuePair& qp) {
    const abi::SendRequest request = qp.sends.front().request;
    const bool binds = request.opcode == abi::kBindWindow;
    const bool allowed = binds ? windows_.bind(request.bind, qp.qp) : windows_.invalidate(request.imm_data, qp.qp);
    ++calls_.counts[binds ? "bind" : "invalidate"];
    if (!allowed) {
      to_error(qp, abi::kStatusProtectionError);
      return false;
    }
    ++qp.unreaped;
    if ((request.send_flags & abi::kSignaled) != 0) {
      qp.unreaped = 0;
      complete(qp.qp.send_cq, {.wr_id = request.wr_id,
                               .status = abi::kStatusSuccess,
                               .opcode = binds ? abi::kCompletedBind : abi::kCompletedInvalidate,
                               .qp_num = qp.qp.qp_num});
    }
    qp.sends.pop_front();
    return true;
  }

  // Carries out the first write of a queue pair. False: there is none, or it has to wait.
  bool step(QueuePair& qp) {
    if (qp.sends.empty() || qp.delayed || qp.state != abi::QpState::ReadyToSend) return false;
    const Send& send = qp.sends.front();
    const auto found = pairs_.find(qp.destination);
    QueuePair* peer = found != pairs_.end() ? found->second : nullptr;
    // One that is gone, or connected to another, is silence, of which a device tires.
    if (peer == nullptr || peer->destination != qp.qp.qp_num || peer->receive_psn != qp.send_psn ||
        (peer->state != abi::QpState::ReadyToReceive && peer->state != abi::QpState::ReadyToSend)) {
      to_error(qp, abi::kStatusRetryExceeded);
      return false;
    }
    if (send.request.opcode == abi::kBindWindow || send.request.opcode == abi::kInvalidate) return step_window(qp);
    uint64_t bytes = 0;
    const bool reads = send.request.opcode == abi::kRead;
    for (const abi::Piece& piece : send.pieces) {
      const Region* own = regions_.find(piece.lkey, false);
      const bool writable = own != nullptr && (own->access & abi::kAccessLocalWrite) != 0;
      if (!covers(own, piece.addr, piece.length) || (reads && !writable)) {
        to_error(qp, abi::kStatusProtectionError);
        return false;
      }
      bytes += piece.length;
    }
    const int access = reads ? abi::kAccessRemoteRead : abi::kAccessRemoteWrite;
    const bool allowed = (peer->access & static_cast<unsigned>(access)) != 0 &&
                         (!reads || (qp.reads_out > 0 && peer->reads_in >= qp.reads_out)) &&
                         reaches(*peer, send.request.rkey, send.request.remote_addr, bytes, access);
    if (bytes != 0 && !allowed) {
      to_error(qp, abi::kStatusRemoteAccess);
      to_error(*peer, abi::kStatusFlushed);
      return false;
    }
    const bool immediate = send.request.opcode == abi::kWriteImmediate;
    if (immediate && peer->receives.empty()) return false;
    auto* to = reinterpret_cast<std::byte*>(send.request.remote_addr);
    for (const abi::Piece& piece : send.pieces) {
      auto* own = reinterpret_cast<std::byte*>(piece.addr);
      std::memcpy(reads ? own : to, reads ? to : own, piece.length);
      to += piece.length;
      if (reads && std::exchange(spoil_read_, false)) own[piece.length - 1] ^= std::byte{1};
    }
    if (!immediate && !reads && std::exchange(spoil_, false)) to[-1] ^= std::byte{1};
    if (immediate) {
      complete(peer->qp.recv_cq, {.wr_id = peer->receives.front(),
                                  .status = abi::kStatusSuccess,
                                  .opcode = abi::kReceivedWithImmediate,
                                  .byte_len = static_cast<uint32_t>(bytes),
                                  .imm_data = send.request.imm_data,
                                  .qp_num = peer->qp.qp_num});
      peer->receives.pop_front();
    }
    ++qp.unreaped;
    if ((send.request.send_flags & abi::kSignaled) != 0) {
      qp.unreaped = 0;
      complete(qp.qp.send_cq, {.wr_id = send.request.wr_id,
                               .status = abi::kStatusSuccess,
                               .opcode = reads ? abi::kCompletedRead : abi::kCompletedWrite,
                               .byte_len = static_cast<uint32_t>(bytes),
                               .qp_num = qp.qp.qp_num});
    }
    qp.sends.pop_front();
    return true;
  }

  const std::vector<FakeDevice> specs_;
  std::vector<std::unique_ptr<size_t>> handles_;
  std::mutex mutex_;
  bool delayed_ = false;
  bool on_loopback_ = true;
  bool unwatchable_ = false;
  bool unlisted_ = false;
  bool spoil_ = false;
  bool spoil_read_ = false;
  uint32_t next_key_ = 0x100;
  uint32_t next_number_ = 17;
  FakeThings things_;
  std::set<void*> stale_;  // contexts
  std::map<uint32_t, QueuePair*> pairs_;
  FakeRegions regions_;
  FakeWindows windows_;
  std::map<abi::CompletionChannel*, abi::Cq*> queues_;
  FakeCalls calls_;
};

}  // namespace halfstep::rdma
