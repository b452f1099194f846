// fake_vhost_target.h — for tests: a vhost-user-blk target in this process, a thread that plays the device, honestly or not.
// It maps what it is given as another process would, so that what it writes after it was left can be looked for.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/units.h"
#include "io/vhost_wire.h"
#include "io/virtqueue.h"

namespace halfstep::io {

class FakeVhostTarget {
 public:
  // What the device is, and how it lies. Set before start(); the functions are called on its thread.
  struct Manner {
    uint64_t bytes = 8 * MiB;
    uint64_t features =
        kFeatureFlush | kFeatureIndirect | kFeatureEventIndex | kFeatureProtocol | kFeatureVersion1 | kFeatureMultiQueue;
    uint64_t protocol = 1ULL << 0 | 1ULL << 3 | 1ULL << 9;
    uint16_t queues = 4;
    uint32_t size_max = 0;
    // An answer may be changed before it is sent; false: none is sent.
    std::function<bool(VhostMessage, std::vector<std::byte>& answer)> answer;
    // A request before it is served; false: it is kept, until serve_kept().
    std::function<bool()> takes;
    // What goes into the used ring.
    std::function<void(uint32_t& head, uint32_t& length)> used;
    // After the index of the used ring was written: `ring` is that ring.
    std::function<void(std::byte* ring)> after;
    std::function<void(uint8_t& status)> status;
    // A kick's descriptor as it comes, which then is never read: the queues are looked at all the time.
    std::function<void(int kick)> deaf;
  };

  explicit FakeVhostTarget(std::string path) : path_(std::move(path)) {}
  FakeVhostTarget(const FakeVhostTarget&) = delete;
  FakeVhostTarget& operator=(const FakeVhostTarget&) = delete;
  ~FakeVhostTarget() { stop(); }

  Manner manner;

  // What is stored, as it is now.
  std::vector<std::byte> disk(uint64_t offset, uint64_t bytes) const {
    const std::lock_guard lock(disk_mutex_);
    const auto from = disk_.begin() + static_cast<ptrdiff_t>(offset);
    return {from, from + static_cast<ptrdiff_t>(bytes)};
  }
  void fill_disk(uint64_t offset, uint64_t bytes, std::byte with) {
    const std::lock_guard lock(disk_mutex_);
    std::fill_n(disk_.data() + offset, bytes, with);
  }

  void start() {
    disk_.resize(manner.bytes);
    ::unlink(path_.c_str());
    listen_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(::bind(listen_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0) << path_;
    ASSERT_EQ(::listen(listen_, 8), 0);
    bell_ = ::eventfd(0, EFD_CLOEXEC);
    stopping_ = false;
    thread_ = std::thread([this] { run(); });
  }
  // The socket ends, and nobody listens any more: what was in flight stays in flight. Its mappings stay (keep()).
  void stop() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    (void)::eventfd_write(bell_, 1);
    thread_.join();
    ::close(listen_);
    ::close(bell_);
    unmap();
  }
  // Ends the connection, as a target with a defect does, and goes on listening. Its mappings stay.
  void hang_up() {
    hang_up_ = true;
    (void)::eventfd_write(bell_, 1);
  }
  void serve_kept() {
    serve_kept_ = true;
    (void)::eventfd_write(bell_, 1);
  }
  // On the thread of a test, of a connection that was hung up: every byte that this target may still write to.
  void scribble(std::byte with) {
    const std::lock_guard lock(mutex_);
    for (const Mapped& one : old_) std::memset(one.at, std::to_integer<int>(with), one.bytes);
  }
  uint64_t kicks() const { return kicks_; }
  uint64_t connections() const { return connections_; }
  uint64_t kept() const { return kept_; }
  uint64_t old_mappings() const {
    const std::lock_guard lock(mutex_);
    return old_.size();
  }

 private:
  struct Mapped {
    std::byte* at = nullptr;
    size_t bytes = 0;
    uint64_t address = 0;
  };
  struct Ring {
    uint32_t entries = 0;
    uint64_t descriptors = 0, used = 0, available = 0;
    int kick = -1, call = -1;
    uint16_t seen = 0, done = 0;
    bool enabled = false;
    std::vector<uint16_t> kept;
  };

  std::byte* at(uint64_t address, uint64_t bytes) {
    for (const Mapped& one : mapped_) {
      if (address >= one.address && address + bytes <= one.address + one.bytes) return one.at + (address - one.address);
    }
    ADD_FAILURE() << "an address that was not shared: " << address;
    return nullptr;
  }

  void run() {
    while (!stopping_) {
      std::vector<pollfd> ready{{bell_, POLLIN, 0}, {connection_ < 0 ? listen_ : connection_, POLLIN, 0}};
      std::vector<Ring*> of;
      for (auto& [number, ring] : rings_) {
        if (ring.kick < 0 || manner.deaf) continue;
        ready.push_back({ring.kick, POLLIN, 0});
        of.push_back(&ring);
      }
      if (::poll(ready.data(), ready.size(), manner.deaf ? 1 : -1) < 0) continue;
      eventfd_t count = 0;
      if (ready[0].revents != 0) (void)::eventfd_read(bell_, &count);
      if (hang_up_.exchange(false)) {
        leave();
        continue;
      }
      if (serve_kept_.exchange(false)) {
        for (auto& [number, ring] : rings_) {
          for (const uint16_t head : std::exchange(ring.kept, {})) serve(ring, head);
        }
      }
      for (auto& [number, ring] : rings_) {
        if (manner.deaf && ring.enabled) take(ring);
      }
      for (size_t i = 0; i < of.size(); ++i) {
        if (ready[2 + i].revents == 0) continue;
        (void)::eventfd_read(of[i]->kick, &count);
        ++kicks_;
        take(*of[i]);
      }
      if (ready[1].revents == 0) continue;
      if (connection_ < 0) {
        connection_ = ::accept4(listen_, nullptr, nullptr, SOCK_CLOEXEC);
        ++connections_;
      } else if (!hear()) {
        leave();
      }
    }
    leave();
  }

  void leave() {
    if (connection_ >= 0) ::close(connection_);
    connection_ = -1;
    for (auto& [number, ring] : rings_) {
      if (ring.kick >= 0) ::close(ring.kick);
      if (ring.call >= 0) ::close(ring.call);
    }
    rings_.clear();
    const std::lock_guard lock(mutex_);
    old_.insert(old_.end(), mapped_.begin(), mapped_.end());
    mapped_.clear();
  }
  void unmap() {
    const std::lock_guard lock(mutex_);
    for (const Mapped& one : old_) ::munmap(one.at, one.bytes);
    old_.clear();
  }

  bool hear() {
    std::array<std::byte, 12> head{};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 8)> control{};
    iovec piece{head.data(), head.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(connection_, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(head.size())) return false;
    std::vector<int> descriptors;
    for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
      descriptors.resize((one->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      std::memcpy(descriptors.data(), CMSG_DATA(one), descriptors.size() * sizeof(int));
    }
    const auto what = static_cast<VhostMessage>(load_le<uint32_t>(head.data()));
    const auto flags = load_le<uint32_t>(head.data() + 4);
    std::vector<std::byte> body(load_le<uint32_t>(head.data() + 8));
    if (!body.empty() && ::recv(connection_, body.data(), body.size(), MSG_WAITALL) != static_cast<ssize_t>(body.size())) {
      return false;
    }
    std::vector<std::byte> reply;
    const bool asked = obey(what, body, descriptors, &reply);
    if (!asked && (flags & 8) == 0) return true;
    if (!asked) reply.assign(8, std::byte{0});
    if (manner.answer && !manner.answer(what, reply)) return true;
    std::vector<std::byte> out(12 + reply.size());
    store_le(out.data(), static_cast<uint32_t>(what));
    store_le(out.data() + 4, uint32_t{1 | 4});
    store_le(out.data() + 8, static_cast<uint32_t>(reply.size()));
    std::copy(reply.begin(), reply.end(), out.begin() + 12);
    return ::send(connection_, out.data(), out.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(out.size());
  }

  // True: this has an answer of its own.
  bool obey(VhostMessage what, const std::vector<std::byte>& body, const std::vector<int>& descriptors,
            std::vector<std::byte>* reply) {
    const auto number = [&](size_t offset) { return load_le<uint32_t>(body.data() + offset); };
    const auto word = [&](size_t offset) { return load_le<uint64_t>(body.data() + offset); };
    const auto say = [&](uint64_t value) {
      reply->resize(8);
      store_le(reply->data(), value);
      return true;
    };
    switch (what) {
      case VhostMessage::GetFeatures: return say(manner.features);
      case VhostMessage::GetProtocolFeatures: return say(manner.protocol);
      case VhostMessage::GetQueueCount: return say(manner.queues);
      case VhostMessage::GetConfig:
        *reply = body;
        store_le(reply->data() + 12, uint64_t{manner.bytes / 512});
        store_le(reply->data() + 20, manner.size_max);
        store_le(reply->data() + 12 + 34, manner.queues);
        return true;
      case VhostMessage::GetRingBase:
        *reply = body;
        store_le(reply->data() + 4, uint32_t{rings_[number(0)].seen});
        if (rings_[number(0)].kick >= 0) ::close(std::exchange(rings_[number(0)].kick, -1));
        rings_[number(0)].enabled = false;
        return true;
      case VhostMessage::SetMemoryTable: {
        const std::lock_guard lock(mutex_);
        old_.insert(old_.end(), mapped_.begin(), mapped_.end());
        mapped_.clear();
        for (uint32_t i = 0; i < number(0); ++i) {
          const size_t bytes = word(8 + 32 * i + 8);
          void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptors[i], 0);
          EXPECT_NE(mapped, MAP_FAILED);
          mapped_.push_back({static_cast<std::byte*>(mapped), bytes, word(8 + 32 * i)});
          ::close(descriptors[i]);
        }
        return false;
      }
      case VhostMessage::SetRingEntries: rings_[number(0)].entries = number(4); return false;
      case VhostMessage::SetRingAddresses:
        rings_[number(0)].descriptors = word(8);
        rings_[number(0)].used = word(16);
        rings_[number(0)].available = word(24);
        return false;
      case VhostMessage::SetRingKick:
        rings_[number(0)].kick = descriptors[0];
        if (manner.deaf) manner.deaf(descriptors[0]);
        return false;
      case VhostMessage::SetRingCall: rings_[number(0)].call = descriptors[0]; return false;
      case VhostMessage::SetRingEnable: rings_[number(0)].enabled = number(4) != 0; return false;
      default: return false;
    }
  }

  void take(Ring& ring) {
    std::byte* available = at(ring.available, 4 + 2 * ring.entries);
    if (available == nullptr) return;
    for (;;) {
      const uint16_t index = __atomic_load_n(reinterpret_cast<uint16_t*>(available + 2), __ATOMIC_ACQUIRE);
      if (ring.seen == index) return;
      const auto head = load_le<uint16_t>(available + 4 + 2 * (ring.seen++ % ring.entries));
      if (manner.takes && !manner.takes()) {
        ring.kept.push_back(head);
        ++kept_;
      } else {
        serve(ring, head);
      }
    }
  }

  struct Descriptor {
    uint64_t address;
    uint32_t bytes;
    uint16_t flags, next;
  };
  void serve(Ring& ring, uint16_t head) {
    std::vector<Descriptor> chain;
    const auto read = [&](uint64_t table, uint16_t index) {
      const std::byte* from = at(table + 16 * index, 16);
      Descriptor one{};
      if (from != nullptr) std::memcpy(&one, from, sizeof(one));
      return one;
    };
    uint64_t table = ring.descriptors;
    Descriptor one = read(table, head);
    if ((one.flags & 4) != 0) {
      table = one.address;
      one = read(table, 0);
    }
    chain.push_back(one);
    while ((one.flags & 1) != 0 && chain.size() < 4) chain.push_back(one = read(table, one.next));
    ASSERT_GE(chain.size(), 2U);
    const std::byte* header = at(chain.front().address, 16);
    std::byte* status = at(chain.back().address, 1);
    if (header == nullptr || status == nullptr) return;
    const auto type = load_le<uint32_t>(header);
    const uint64_t offset = load_le<uint64_t>(header + 8) * 512;
    uint8_t answer = 0;
    uint32_t written = 1;
    if (type <= 1) {
      const Descriptor& piece = chain[1];
      std::byte* memory = at(piece.address, piece.bytes);
      const std::lock_guard lock(disk_mutex_);  // tests look at it beside this thread
      if (memory == nullptr || offset + piece.bytes > disk_.size()) {
        answer = 1;
      } else if (type == 0) {
        EXPECT_NE(piece.flags & 2, 0);
        std::memcpy(memory, disk_.data() + offset, piece.bytes);
        written += piece.bytes;
      } else {
        EXPECT_EQ(piece.flags & 2, 0);
        std::memcpy(disk_.data() + offset, memory, piece.bytes);
      }
    }
    if (manner.status) manner.status(answer);
    *status = std::byte{answer};
    uint32_t id = head;
    if (manner.used) manner.used(id, written);
    std::byte* used = at(ring.used, 4 + 8 * ring.entries);
    if (used == nullptr) return;
    store_le(used + 4 + 8 * (ring.done % ring.entries), id);
    store_le(used + 4 + 8 * (ring.done % ring.entries) + 4, written);
    ++ring.done;
    __atomic_store_n(reinterpret_cast<uint16_t*>(used + 2), ring.done, __ATOMIC_RELEASE);
    if (manner.after) manner.after(used);
    (void)::eventfd_write(ring.call, 1);
  }

  const std::string path_;
  int listen_ = -1, bell_ = -1, connection_ = -1;
  std::thread thread_;
  std::atomic<bool> stopping_{false}, hang_up_{false}, serve_kept_{false};
  std::atomic<uint64_t> kicks_{0}, connections_{0}, kept_{0};
  std::map<uint32_t, Ring> rings_;
  std::vector<Mapped> mapped_;
  mutable std::mutex disk_mutex_;
  std::vector<std::byte> disk_;
  mutable std::mutex mutex_;
  std::vector<Mapped> old_;  // of connections that have ended
};

}  // namespace halfstep::io
