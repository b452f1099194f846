#include "net/shm_setup.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/numa.h"
#include "net/shm_transport.h"

namespace halfstep::net {
namespace {

constexpr int kSealsWanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kDescriptors = 3;
// How long a client may take to read what the server said last, and how many connections' last words are kept.
constexpr uint64_t kLastWordsUs = 1'000'000;
constexpr size_t kGravesMax = 64;

Status last_error() noexcept { return {Code::IoError, -errno}; }

bool ring_size(uint32_t bytes) noexcept {
  return std::has_single_bit(bytes) && bytes >= kRingBytesMin && bytes <= kRingBytesMax;
}

int make_memfd() noexcept {
#ifdef MFD_NOEXEC_SEAL
  constexpr unsigned kNoExec = MFD_NOEXEC_SEAL;
#else
  constexpr unsigned kNoExec = 0x0008U;  // Linux 6.3
#endif
  const int made = ::memfd_create("halfstep-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExec);
  if (made >= 0 || errno != EINVAL) return made;
  return ::memfd_create("halfstep-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

// Descriptors until they are handed on.
class Descriptors {
 public:
  Descriptors() { held_.fill(-1); }
  ~Descriptors() {
    for (const int descriptor : held_) {
      if (descriptor >= 0) ::close(descriptor);
    }
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  int& operator[](size_t at) noexcept { return held_[at]; }
  int take(size_t at) noexcept { return std::exchange(held_[at], -1); }
  const int* data() const noexcept { return held_.data(); }

 private:
  std::array<int, kDescriptors> held_{};
};

// What the server has of a connection's rings, and what it passes on.
struct Made {
  RingMemory memory;
  int socket = -1;        // the connection's, once more
  int own_bell = -1;      // an eventfd that the server writes to: nobody else has it
  int client_rings = -1;  // an eventfd that the client writes to, which the server only polls
  Made() = default;
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  ~Made() {
    for (const int descriptor : {socket, own_bell, client_rings}) {
      if (descriptor >= 0) ::close(descriptor);
    }
  }
};

Status make_rings(int socket, const RingSizes& sizes, Made* made, Descriptors* passed) {
  Status status = RingMemory::create(sizes.to_server_bytes, sizes.to_client_bytes, &made->memory, &(*passed)[0]);
  if (!status.ok()) return status;
  if ((made->socket = ::fcntl(socket, F_DUPFD_CLOEXEC, 0)) < 0) return last_error();
  if ((made->client_rings = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) return last_error();
  if ((made->own_bell = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) return last_error();
  if (((*passed)[1] = ::fcntl(made->client_rings, F_DUPFD_CLOEXEC, 0)) < 0) return last_error();
  if (((*passed)[2] = ::epoll_create1(EPOLL_CLOEXEC)) < 0) return last_error();
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl((*passed)[2], EPOLL_CTL_ADD, made->own_bell, &event) != 0) return last_error();
  return {};
}

Status send_answer(int socket, const ShmAnswer& answer, const int* descriptors) noexcept {
  iovec vector{const_cast<ShmAnswer*>(&answer), sizeof(answer)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (descriptors != nullptr) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(kDescriptors * sizeof(int));
    std::memcpy(CMSG_DATA(head), descriptors, kDescriptors * sizeof(int));
  }
  // Nothing was sent on this socket before, so all of it fits.
  const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return last_error();
  return sent == static_cast<ssize_t>(sizeof(answer)) ? Status() : Status(Code::IoError, -EMSGSIZE);
}

// What came with an answer.
struct Passed {
  Descriptors held;
  size_t count = 0;
  bool truncated = false;  // there was no room for all, in this process or in the call's buffer
};

// Every descriptor that came is counted, and held or closed: also those that nobody asked for.
ssize_t receive_answer(int socket, ShmAnswer* answer, Passed* passed) noexcept {
  iovec vector{answer, sizeof(*answer)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return -errno;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t here = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
      if (passed->count < kDescriptors) {
        passed->held[passed->count] = descriptor;
      } else {
        ::close(descriptor);
      }
      ++passed->count;
    }
  }
  passed->truncated = (message.msg_flags & MSG_CTRUNC) != 0;
  return got;
}

// ---- An accepted socket --------------------------------------------------------------------------------------------------

// A socket until its first bytes are there, then what they ask for.
class AcceptedTransport final : public Transport {
 public:
  AcceptedTransport(int socket, const RingSizes& sizes, RingGraveyard& graveyard)
      : sizes_(sizes), graveyard_(graveyard), inner_(socket_transport(socket)) {}

  Status start(Loop& loop, Watch* watch) override {
    loop_ = &loop;
    watch_ = watch;
    return inner_->start(loop, watch);
  }
  void stop() noexcept override { inner_->stop(); }
  Status want(bool to_receive, bool to_send) override { return inner_->want(to_receive, to_send); }
  uint32_t heard(uint32_t epoll_events) noexcept override { return inner_->heard(epoll_events); }

  ssize_t receive(const iovec* vectors, size_t count) noexcept override {
    if (!decided_) {
      const iovec rest{first_.data() + first_bytes_, first_.size() - first_bytes_};
      const ssize_t got = inner_->receive(&rest, 1);
      if (got <= 0) return got;
      first_bytes_ += static_cast<size_t>(got);
      const size_t compared = std::min(first_bytes_, kShmMagic.size());
      decided_ = std::memcmp(first_.data(), kShmMagic.data(), compared) != 0;
      if (!decided_) {
        if (first_bytes_ < first_.size()) return -EAGAIN;
        decided_ = true;
        if (!become_rings().ok()) return -EPROTO;
      }
    }
    if (first_at_ == first_bytes_) return inner_->receive(vectors, count);
    size_t given = 0;
    for (size_t i = 0; i < count && first_at_ != first_bytes_; ++i) {
      const size_t step = std::min(vectors[i].iov_len, first_bytes_ - first_at_);
      std::memcpy(vectors[i].iov_base, first_.data() + first_at_, step);
      first_at_ += step;
      given += step;
    }
    return static_cast<ssize_t>(given);
  }

  ssize_t send(const iovec* vectors, size_t count, bool more) noexcept override { return inner_->send(vectors, count, more); }
  void finish_sending() noexcept override { inner_->finish_sending(); }
  void trim() noexcept override { inner_->trim(); }
  bool trimmable() const noexcept override { return inner_->trimmable(); }
  bool told_by_level() const noexcept override { return inner_->told_by_level(); }
  int descriptor() const noexcept override { return inner_->descriptor(); }
  bool rings() const noexcept override { return inner_->rings(); }

 private:
  Status become_rings() {
    ShmAsk ask;
    std::memcpy(&ask, first_.data(), sizeof(ask));
    first_at_ = first_bytes_;
    if (ask.zero != 0 || ask.version_min > kShmVersion || ask.version_max < kShmVersion) {
      refuse(ShmRefusal::Version);
      return {Code::Unsupported, -EPROTO};
    }
    const uint64_t bytes = ring_memory_bytes(sizes_.to_server_bytes, sizes_.to_client_bytes);
    Made made;
    Descriptors passed;
    if (!graveyard_.take(bytes)) {
      refuse(ShmRefusal::Resources);
      return {Code::Throttled, -ENOMEM};
    }
    if (Status status = make_rings(inner_->descriptor(), sizes_, &made, &passed); !status.ok()) {
      graveyard_.give(bytes);
      graveyard_.note_refused();
      refuse(ShmRefusal::Resources);
      return status;
    }
    const ShmAnswer answer{.memory_bytes = made.memory.bytes(),
                           .to_server_bytes = sizes_.to_server_bytes,
                           .to_client_bytes = sizes_.to_client_bytes};
    inner_->stop();
    inner_ = server_rings(std::move(made.memory), std::exchange(made.socket, -1), std::exchange(made.own_bell, -1),
                          std::exchange(made.client_rings, -1), graveyard_);
    if (Status status = inner_->start(*loop_, watch_); !status.ok()) return status;
    return send_answer(inner_->descriptor(), answer, passed.data());
  }
  void refuse(ShmRefusal why) noexcept { (void)send_answer(inner_->descriptor(), {.version = 0, .refusal = why}, nullptr); }

  const RingSizes sizes_;
  RingGraveyard& graveyard_;
  std::unique_ptr<Transport> inner_;
  Loop* loop_ = nullptr;
  Watch* watch_ = nullptr;
  bool decided_ = false;
  std::array<std::byte, sizeof(ShmAsk)> first_{};
  size_t first_bytes_ = 0;
  size_t first_at_ = 0;
};

}  // namespace

// ---- Memory --------------------------------------------------------------------------------------------------------------

RingMemory::~RingMemory() {
  if (base_ != nullptr) ::munmap(base_, bytes());
}

void RingMemory::drop_pages(Bytes data) noexcept { (void)::madvise(data.data(), data.size(), MADV_REMOVE); }

RingMemory::RingMemory(RingMemory&& other) noexcept { *this = std::move(other); }

RingMemory& RingMemory::operator=(RingMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(to_server_bytes_, other.to_server_bytes_);
  std::swap(to_client_bytes_, other.to_client_bytes_);
  return *this;
}

Status RingMemory::map_bytes(int descriptor, uint32_t to_server_bytes, uint32_t to_client_bytes) noexcept {
  const uint64_t bytes = ring_memory_bytes(to_server_bytes, to_client_bytes);
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) return last_error();
  // A child of this process has nothing to do with it.
  (void)::madvise(mapped, bytes, MADV_DONTFORK);
  base_ = static_cast<std::byte*>(mapped);
  to_server_bytes_ = to_server_bytes;
  to_client_bytes_ = to_client_bytes;
  return {};
}

Status RingMemory::create(uint32_t to_server_bytes, uint32_t to_client_bytes, RingMemory* out, int* descriptor) {
  if (!ring_size(to_server_bytes) || !ring_size(to_client_bytes)) return {Code::Invalid, -EINVAL};
  *descriptor = make_memfd();
  if (*descriptor < 0) return last_error();
  const uint64_t bytes = ring_memory_bytes(to_server_bytes, to_client_bytes);
  if (::ftruncate(*descriptor, static_cast<off_t>(bytes)) != 0) return last_error();
  if (::fcntl(*descriptor, F_ADD_SEALS, kSealsWanted) != 0) return last_error();
  if (Status status = out->map_bytes(*descriptor, to_server_bytes, to_client_bytes); !status.ok()) return status;
  // Else its pages would lie on the node of whoever touches them first, which may be a client. One that refuses this is as
  // good.
  (void)numa::prefer_as_thread({out->base_, out->bytes()});
  return {};
}

Fault RingMemory::map(int descriptor, const ShmAnswer& answer, RingMemory* out) {
  const auto refuse = [](const std::string& what) { return Fault(Status(Code::Invalid, -EPROTO), "shared memory: " + what); };
  if (!ring_size(answer.to_server_bytes) || !ring_size(answer.to_client_bytes)) {
    return refuse("rings of " + std::to_string(answer.to_server_bytes) + " and " + std::to_string(answer.to_client_bytes) +
                  " bytes; each must be a power of two from " + std::to_string(kRingBytesMin) + " to " +
                  std::to_string(kRingBytesMax));
  }
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (seals < 0) return refuse("what came is no memfd");
  if ((seals & kSealsWanted) != kSealsWanted) {
    return refuse("it is not sealed against shrinking, growing and other seals (seals " + std::to_string(seals) + ")");
  }
  struct stat facts {};
  const uint64_t bytes = ring_memory_bytes(answer.to_server_bytes, answer.to_client_bytes);
  if (::fstat(descriptor, &facts) != 0 || answer.memory_bytes != bytes || facts.st_size != static_cast<off_t>(bytes)) {
    return refuse(std::to_string(facts.st_size) + " bytes, announced as " + std::to_string(answer.memory_bytes) +
                  "; its rings need " + std::to_string(bytes));
  }
  if (Status status = out->map_bytes(descriptor, answer.to_server_bytes, answer.to_client_bytes); !status.ok()) {
    return {status, "shared memory: mapping " + std::to_string(bytes) + " bytes: " + errno_name(status.detail()) +
                        "; raise the limit of address space (ulimit -v) or give the daemon a smaller --shm-ring"};
  }
  return {};
}

// ---- Graveyard -----------------------------------------------------------------------------------------------------------

bool RingGraveyard::take(uint64_t bytes) noexcept {
  while (bytes_ + bytes > bytes_max_ && !graves_.empty()) open_first();
  if (bytes_ + bytes > bytes_max_) {
    ++refused_;
    return false;
  }
  bytes_ += bytes;
  return true;
}

void RingGraveyard::give(uint64_t bytes) noexcept {
  HALFSTEP_CHECK(bytes <= bytes_, bytes, bytes_);
  bytes_ -= bytes;
}

void RingGraveyard::bury(RingMemory memory) {
  graves_.push_back({loop_.now_us() + kLastWordsUs, std::move(memory)});
  if (graves_.size() > kGravesMax) open_first();
  if (!timer_.armed()) loop_.arm(timer_, graves_.front().due_us);
}

void RingGraveyard::open_first() noexcept {
  graves_.front().memory.drop_all_pages();
  give(graves_.front().memory.bytes());
  graves_.pop_front();
}

void RingGraveyard::on_timer(void* self) {
  auto* graveyard = static_cast<RingGraveyard*>(self);
  while (!graveyard->graves_.empty() && graveyard->graves_.front().due_us <= graveyard->loop_.now_us()) graveyard->open_first();
  if (!graveyard->graves_.empty()) graveyard->loop_.arm(graveyard->timer_, graveyard->graves_.front().due_us);
}

// ---- Both sides ----------------------------------------------------------------------------------------------------------

Status ask_for_rings(int socket) noexcept {
  const ShmAsk ask;
  const ssize_t sent = ::send(socket, &ask, sizeof(ask), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) return {};  // take_rings() reads what it said before it closed
  if (sent < 0) return last_error();
  return sent == static_cast<ssize_t>(sizeof(ask)) ? Status() : Status(Code::IoError, -EMSGSIZE);
}

Fault take_rings(int socket, std::unique_ptr<Transport>* out) {
  ShmAnswer answer;
  Passed passed;
  const ssize_t got = receive_answer(socket, &answer, &passed);
  if (got < 0) return {{Code::Closed, static_cast<int>(got)}, "shared memory: " + errno_name(static_cast<int>(got))};
  if (got == 0) return {Code::Closed, "shared memory: the daemon closed the connection"};
  if (got >= 4 && std::memcmp(&answer, "HSW1", 4) == 0) {  // an Abort
    return {Code::Closed,
            "shared memory: the daemon ends the connection before it begins: it is stopping or has "
            "connections_max of them"};
  }
  if (got != static_cast<ssize_t>(sizeof(answer)) || answer.magic != kShmMagic) {
    return {Code::Unsupported, "shared memory: " + std::to_string(got) +
                                   " bytes that are no answer to it; is it halfstepd, of this version? Connect by TCP instead"};
  }
  if (answer.version == 0) {
    if (answer.refusal == ShmRefusal::Resources) {
      return {
          Code::Throttled,
          "shared memory: the daemon has no descriptors or memory for more rings; raise its LimitNOFILE or --shm-memory, or "
          "lower --shm-ring"};
    }
    return {Code::Unsupported,
            "shared memory: the daemon does not speak version 1 of it; use clients and a daemon of one release"};
  }
  if (passed.truncated && passed.count < kDescriptors) {
    return {{Code::IoError, -EMFILE},
            "shared memory: this process has room for " + std::to_string(passed.count) +
                " more descriptors, of 3; raise its limit of open files (ulimit -n)"};
  }
  if (answer.version != kShmVersion || answer.refusal != ShmRefusal::None || answer.zero != 0 || passed.count != kDescriptors) {
    return {Status(Code::Invalid, -EPROTO), "shared memory: version " + std::to_string(answer.version) + " with " +
                                                std::to_string(passed.count) + " descriptors; version 1 has 3"};
  }
  RingMemory memory;
  if (Fault fault = RingMemory::map(passed.held[0], answer, &memory); !fault.ok()) return fault;
  *out = client_rings(std::move(memory), socket, passed.held.take(1), passed.held.take(2));
  return {};
}

std::unique_ptr<Transport> accepted_transport(int socket, const RingSizes& sizes, RingGraveyard& graveyard) {
  return std::make_unique<AcceptedTransport>(socket, sizes, graveyard);
}

}  // namespace halfstep::net
