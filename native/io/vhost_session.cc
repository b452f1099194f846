#include "io/vhost_session.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace halfstep::io {
namespace {

// What is used of a device, where it is offered.
constexpr uint64_t kFeaturesUsed =
    kFeatureSizeMax | kFeatureFlush | kFeatureMultiQueue | kFeatureIndirect | kFeatureProtocol | kFeatureVersion1;
constexpr uint64_t kFeaturesNeeded = kFeatureProtocol | kFeatureVersion1;
constexpr uint64_t kProtocolMultiQueue = 1ULL << 0;
constexpr uint64_t kProtocolAcknowledge = 1ULL << 3;
constexpr uint64_t kProtocolConfig = 1ULL << 9;

constexpr auto kTryAgainAfter = std::chrono::milliseconds(50);
constexpr uint32_t kDoublingsMax = 5;  // 1.6 s

constexpr int kQueueLookMs = 2;  // at a queue whose call is not heard here

uint64_t number_of(const std::byte* at) noexcept { return reinterpret_cast<uintptr_t>(at); }

struct RingState {
  uint32_t ring;
  uint32_t value;
};

struct RingAddresses {
  uint32_t ring;
  uint32_t flags;
  uint64_t descriptors;
  uint64_t used;
  uint64_t available;
  uint64_t log;
};
static_assert(sizeof(RingAddresses) == 40);

struct MemoryRegion {
  uint64_t device_address;
  uint64_t bytes;
  uint64_t own_address;
  uint64_t file_offset;
};

struct MemoryTable {
  uint32_t count;
  uint32_t padding;
  std::array<MemoryRegion, kVhostRegionsMax> regions;
  ConstBytes bytes() const noexcept { return object_bytes(*this).first(8 + count * sizeof(MemoryRegion)); }
};
static_assert(sizeof(MemoryTable) == 8 + kVhostRegionsMax * 32);

}  // namespace

// ---- What is there ---------------------------------------------------------------------------------------------------------

Fault VhostSession::failed(const char* what, int error) const {
  const std::string where = "vhost-user target " + path_ + ": ";
  const Status status(Code::IoError, error);
  switch (-error) {
    case ENOENT:
    case ECONNREFUSED:
      return {status, where + what + ": " + errno_name(error) + "; start the target, or name the socket that it listens on"};
    case EACCES:
    case EPERM: return {status, where + what + ": " + errno_name(error) + "; let this user write to the socket"};
    case ENAMETOOLONG: return {status, where + "the path of a socket has 1 to 107 bytes; name a shorter one"};
    case ETIMEDOUT:
      return {status, where + what + ": no answer in " + std::to_string(kVhostPatience.count()) +
                          " s; it hangs, or serves another front end: one target serves one daemon"};
    case EPROTO:
      return {status, where + what + ": what it answers is no vhost-user; name the socket of a vhost-user-blk target"};
    case EREMOTEIO: return {status, where + what + ": the target refuses it; look at its messages"};
    default: return {status, where + what + ": " + errno_name(error)};
  }
}

Fault VhostSession::look(uint64_t* features, BlockDeviceConfig* device) {
  if (const int error = wire_.connect(path_, give_up_); error != 0) return failed("connect", error);
  const auto refused = [this](const std::string& what) {
    return Fault{{Code::Unsupported, -EPROTO}, "vhost-user target " + path_ + ": " + what};
  };
  uint64_t offered = 0;
  if (const int error = wire_.ask(VhostMessage::GetFeatures, &offered); error != 0) return failed("GET_FEATURES", error);
  if ((offered & kFeaturesNeeded) != kFeaturesNeeded) {
    return refused(
        "its features lack VIRTIO_F_VERSION_1 or VHOST_USER_F_PROTOCOL_FEATURES; use a target of virtio 1.0 or newer");
  }
  uint64_t protocol = 0;
  if (const int error = wire_.ask(VhostMessage::GetProtocolFeatures, &protocol); error != 0) {
    return failed("GET_PROTOCOL_FEATURES", error);
  }
  if ((protocol & kProtocolConfig) == 0) return refused("it has no configuration space (CONFIG); name a vhost-user-blk target");
  const uint64_t taken = protocol & (kProtocolMultiQueue | kProtocolAcknowledge | kProtocolConfig);
  if (const int error = wire_.tell(VhostMessage::SetProtocolFeatures, object_bytes(taken)); error != 0) {
    return failed("SET_PROTOCOL_FEATURES", error);
  }
  if ((protocol & kProtocolAcknowledge) != 0) wire_.acknowledge_all();
  if (const int error = wire_.tell(VhostMessage::SetOwner, {}); error != 0) return failed("SET_OWNER", error);
  // Offset, size and flags, then as much room as the answer fills.
  constexpr size_t kHead = 12;
  std::array<std::byte, kHead + kBlockConfigBytes> config{};
  store_le(config.data() + 4, static_cast<uint32_t>(kBlockConfigBytes));
  if (const int error = wire_.ask(VhostMessage::GetConfig, config, config); error != 0) return failed("GET_CONFIG", error);
  const std::string wrong = parse_block_config(ConstBytes(config).subspan(kHead), offered, device);
  if (!wrong.empty()) return refused(wrong);
  uint64_t queues = 1;
  if ((protocol & kProtocolMultiQueue) != 0) {
    if (const int error = wire_.ask(VhostMessage::GetQueueCount, &queues); error != 0) return failed("GET_QUEUE_NUM", error);
  }
  device->queues = static_cast<uint16_t>(std::min<uint64_t>(device->queues, queues));
  if (device->queues == 0) return refused("it has no queue");
  *features = offered;
  return {};
}

Fault VhostSession::open(const std::string& socket, bool read_only, std::unique_ptr<VhostSession>* out) {
  std::unique_ptr<VhostSession> session(new VhostSession(socket));
  uint64_t offered = 0;
  if (Fault fault = session->look(&offered, &session->device_); !fault.ok()) return fault;
  session->wire_.close();
  if ((offered & kFeatureReadOnly) != 0 && !read_only) {
    return {{Code::IoError, -EROFS},
            "vhost-user target " + socket + ": its device is read-only; export it writable, or use another target"};
  }
  session->features_ = offered & kFeaturesUsed;
  session->event_index_ = (offered & kFeatureEventIndex) != 0;
  session->bell_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (session->bell_ < 0) return {{Code::IoError, -errno}, "eventfd for " + socket + ": " + errno_name(errno)};
  *out = std::move(session);
  return {};
}

VhostSession::~VhostSession() {
  {
    const std::lock_guard lock(mutex_);
    HALFSTEP_CHECK(joined_ == 0, joined_);
    stop_ = true;
    give_up_ = true;
  }
  ring_bell();
  if (thread_.joinable()) thread_.join();
  if (bell_ >= 0) ::close(bell_);
}

void VhostSession::ring_bell() noexcept {
  if (bell_ >= 0) (void)::eventfd_write(bell_, 1);
}

// ---- Members ---------------------------------------------------------------------------------------------------------------

Fault VhostSession::join(VhostMember& member, uint32_t of, size_t regions) {
  if (of > device_.queues) {
    return {Code::Invalid, "shards=" + std::to_string(of) + ": vhost-user target " + path_ + " has " +
                               std::to_string(device_.queues) +
                               " queue(s), and each shard takes one; give the target more "
                               "(num-queues=)"};
  }
  if (of * regions > kVhostRegionsMax) {
    return {Code::Invalid, "shards=" + std::to_string(of) + ": a vhost-user target takes " + std::to_string(kVhostRegionsMax) +
                               " regions of memory, " + std::to_string(regions) + " of each shard; use at most " +
                               std::to_string(kVhostRegionsMax / regions) + " shards"};
  }
  const std::lock_guard lock(mutex_);
  if (joined_ == 0) {
    members_.assign(of, nullptr);
    failures_ = 0;
    try_at_ = {};
  }
  const auto free = std::find(members_.begin(), members_.end(), nullptr);
  HALFSTEP_CHECK(members_.size() == of && free != members_.end(), members_.size(), of);
  *free = &member;
  ++joined_;
  if (thread_.joinable()) return {};
  // Signals stay with the threads that handle them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  (void)pthread_setname_np(thread_.native_handle(), "halfstep-vhost");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return {};
}

void VhostSession::offer(VhostMember& member) {
  const std::lock_guard lock(mutex_);
  member.link = VhostMember::Link::Offered;
  ring_bell();
}

void VhostSession::broken(VhostMember&) {
  const std::lock_guard lock(mutex_);
  broken_ = true;
  ring_bell();
}

void VhostSession::leave(VhostMember& member) {
  std::unique_lock lock(mutex_);
  left_.wait(lock, [this] { return leaving_ == nullptr; });
  leaving_ = &member;
  // One that connects gives up: those who stay connect again.
  if (member.link != VhostMember::Link::Live) give_up_ = true;
  ring_bell();
  left_.wait(lock, [&] { return std::find(members_.begin(), members_.end(), &member) == members_.end(); });
}

void VhostSession::judge_by(Judge judge) {
  const std::lock_guard lock(mutex_);
  judge_ = std::move(judge);
}

std::string VhostSession::why_refused() const {
  const std::lock_guard lock(mutex_);
  return why_refused_;
}

// ---- The thread ------------------------------------------------------------------------------------------------------------

void VhostSession::tell_members(VhostMember::Link from, VhostMember::Link to) noexcept {
  for (VhostMember* member : members_) {
    if (member == nullptr) continue;
    if (member->link == from) member->link = to;
    (void)::eventfd_write(member->wake, 1);
  }
}

bool VhostSession::all_offered() const noexcept {
  const auto offered = [](const VhostMember* member) {
    return member != nullptr && member->link == VhostMember::Link::Offered;
  };
  return !members_.empty() && std::all_of(members_.begin(), members_.end(), offered);
}

void VhostSession::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (leaving_ != nullptr) {
      see_off(lock);
    } else if (broken_) {
      drop();
    } else if (!wire_.open() && all_offered() && Clock::now() >= try_at_) {
      connect(lock);
    } else {
      watch(lock);
    }
  }
  wire_.close();
}

// The socket ends, and with it every queue.
void VhostSession::drop() noexcept {
  broken_ = false;
  if (!wire_.open()) return;
  wire_.close();
  failures_ = 0;
  try_at_ = Clock::now() + kTryAgainAfter;
  for (VhostMember* member : members_) {
    if (member != nullptr) member->unreachable = true;
  }
  tell_members(VhostMember::Link::Live, VhostMember::Link::Lost);
}

void VhostSession::see_off(std::unique_lock<std::mutex>& lock) {
  VhostMember& member = *leaving_;
  const auto at = std::find(members_.begin(), members_.end(), &member);
  HALFSTEP_CHECK(at != members_.end());
  if (wire_.open() && member.link == VhostMember::Link::Live) {
    // The target looks into this queue no more, which another one's target goes on to need.
    const RingState ring{static_cast<uint32_t>(at - members_.begin()), 0};
    std::array<std::byte, sizeof(RingState)> answer{};
    lock.unlock();
    const int error = wire_.ask(VhostMessage::GetRingBase, object_bytes(ring), answer);
    lock.lock();
    if (error != 0) drop();
  }
  member.link = VhostMember::Link::Away;
  *at = nullptr;
  give_up_ = stop_;
  if (--joined_ == 0) {
    wire_.close();
    members_.clear();
  }
  leaving_ = nullptr;
  left_.notify_all();
}

void VhostSession::watch(std::unique_lock<std::mutex>& lock) {
  pollfd ready[2] = {{bell_, POLLIN, 0}, {wire_.descriptor(), POLLIN | POLLRDHUP, 0}};
  int timeout_ms = -1;
  if (!wire_.open() && all_offered()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(try_at_ - Clock::now());
    timeout_ms = static_cast<int>(std::max<int64_t>(left.count() + 1, 0));
  }
  lock.unlock();
  const int count = ::poll(ready, 2, timeout_ms);
  lock.lock();
  if (count <= 0) return;
  eventfd_t ignored = 0;
  if (ready[0].revents != 0) (void)::eventfd_read(bell_, &ignored);
  // Nothing was asked: whatever comes, the end included, is the end.
  if (wire_.open() && ready[1].revents != 0) drop();
}

void VhostSession::connect(std::unique_lock<std::mutex>& lock) {
  const std::vector<VhostMember*> members = members_;
  const Judge judge = judge_;
  lock.unlock();
  Fault fault = set_up(members, judge);
  lock.lock();
  if (!fault.ok()) {
    wire_.close();
    try_at_ = Clock::now() + kTryAgainAfter * (1U << std::min(failures_, kDoublingsMax));
    ++failures_;
  }
  why_refused_ = fault.status == Code::Unsupported ? fault.what : std::string();
  for (VhostMember* member : members_) {
    member->unreachable = !fault.ok();
    // What a target has had it may go on writing to.
    if (!fault.ok() && member->shared > 0) member->link = VhostMember::Link::Lost;
  }
  tell_members(VhostMember::Link::Offered, fault.ok() ? VhostMember::Link::Live : VhostMember::Link::Offered);
}

Fault VhostSession::set_up(const std::vector<VhostMember*>& members, const Judge& judge) {
  uint64_t offered = 0;
  BlockDeviceConfig found;
  if (Fault fault = look(&offered, &found); !fault.ok()) return fault;
  const bool other_kind = event_index_ && (offered & kFeatureEventIndex) == 0;
  if (other_kind || (offered & features_) != features_ || found.bytes < device_.bytes || found.queues < members.size() ||
      found.piece_bytes_max < device_.piece_bytes_max) {
    return {Code::Unsupported, "vhost-user target " + path_ + ": has less than when the store was opened (then " +
                                   std::to_string(device_.bytes) + " bytes, now " + std::to_string(found.bytes) +
                                   "); start it as it was, with the store's image"};
  }
  if (const int error = wire_.tell(VhostMessage::SetFeatures, object_bytes(features_)); error != 0) {
    return failed("SET_FEATURES", error);
  }
  uint32_t rings = 0;
  if (judge) {
    members[0]->shared = 1;
    if (Fault fault = give_memory(members); !fault.ok()) return fault;
    if (Fault fault = set_ring(rings++, *members[0]); !fault.ok()) return fault;
    const auto through = [&](uint64_t offset, Bytes into) { return read(*members[0], offset, into); };
    if (Fault fault = judge(through); !fault.ok()) {
      return {fault.status, "vhost-user target " + path_ + ": " + fault.what};
    }
  }
  for (VhostMember* member : members) member->shared = member->regions.size();
  if (Fault fault = give_memory(members); !fault.ok()) return fault;
  for (; rings < members.size(); ++rings) {
    if (Fault fault = set_ring(rings, *members[rings]); !fault.ok()) return fault;
  }
  // Where nothing is acknowledged, this answer says that all of it has been read.
  if (const int error = wire_.ask(VhostMessage::GetFeatures, &offered); error != 0) return failed("GET_FEATURES", error);
  return {};
}

Fault VhostSession::give_memory(const std::vector<VhostMember*>& members) {
  MemoryTable table{};
  std::vector<int> descriptors;
  for (const VhostMember* member : members) {
    for (size_t i = 0; i < member->shared; ++i) {
      const VhostMember::Region& region = member->regions[i];
      HALFSTEP_CHECK(table.count < kVhostRegionsMax, table.count);
      const uint64_t address = number_of(region.memory.data());
      table.regions[table.count++] = {address, region.memory.size(), address, 0};
      descriptors.push_back(region.descriptor);
    }
  }
  const int error = wire_.tell(VhostMessage::SetMemoryTable, table.bytes(), descriptors);
  return error == 0 ? Fault() : failed("SET_MEM_TABLE", error);
}

Fault VhostSession::set_ring(uint32_t number, const VhostMember& member) {
  const Virtqueue& queue = *member.queue;
  const RingState entries{number, queue.entries()};
  const RingState base{number, 0};
  const RingState enable{number, 1};
  const RingAddresses addresses{
      number, 0, number_of(queue.descriptors()), number_of(queue.used()), number_of(queue.available()), 0};
  const uint64_t of_ring = number;
  const std::pair<VhostMessage, ConstBytes> steps[] = {
      {VhostMessage::SetRingEntries, object_bytes(entries)},     {VhostMessage::SetRingBase, object_bytes(base)},
      {VhostMessage::SetRingAddresses, object_bytes(addresses)}, {VhostMessage::SetRingCall, object_bytes(of_ring)},
      {VhostMessage::SetRingKick, object_bytes(of_ring)},        {VhostMessage::SetRingEnable, object_bytes(enable)}};
  for (const auto& [message, payload] : steps) {
    std::vector<int> own;
    if (message == VhostMessage::SetRingCall) own.push_back(member.call);
    if (message == VhostMessage::SetRingKick) own.push_back(member.kick.far_end());
    if (const int error = wire_.tell(message, payload, own); error != 0) return failed(name_of(message), error);
  }
  return {};
}

Status VhostSession::read(VhostMember& member, uint64_t offset, Bytes into) {
  while (!into.empty()) {
    const size_t piece = std::min({into.size(), member.scratch.size(), size_t{device_.piece_bytes_max}});
    if (const Status status = read_piece(member, offset, static_cast<uint32_t>(piece)); !status.ok()) return status;
    std::memcpy(into.data(), member.scratch.data(), piece);
    into = into.subspan(piece);
    offset += piece;
  }
  return {};
}

Status VhostSession::read_piece(VhostMember& member, uint64_t offset, uint32_t bytes) {
  Virtqueue& queue = *member.queue;
  queue.push(0, BlockRequest::Read, offset / kSectorBytes, number_of(member.scratch.data()), bytes);
  if (queue.publish()) member.kick.kick();
  const auto until = Clock::now() + kVhostPatience;
  for (;;) {
    Virtqueue::Done done;
    const Virtqueue::Reaped reaped = queue.reap(&done);
    if (reaped == Virtqueue::Reaped::Broken) return {Code::IoError, -EPROTO};
    if (reaped == Virtqueue::Reaped::One) {
      const bool good = done.status == Virtqueue::kStatusOk && done.written_bytes == bytes;
      return good ? Status() : Status(Code::IoError, -EIO);
    }
    if (give_up_.load(std::memory_order_relaxed)) return {Code::IoError, -ECANCELED};
    if (Clock::now() >= until) return {Code::IoError, -ETIMEDOUT};
    pollfd socket{wire_.descriptor(), POLLIN | POLLRDHUP, 0};
    if (::poll(&socket, 1, kQueueLookMs) > 0) return {Code::IoError, -ECONNRESET};
  }
}

}  // namespace halfstep::io
