// shm_setup.h — how the two ends of a unix socket come to share rings: one message each way, before the first frame.
//
//   client -> server   ShmAsk, 16 bytes                                          "give me rings"
//   server -> client   ShmAnswer, 32 bytes, with three descriptors (SCM_RIGHTS)
//                        a memfd: control page, ring to the server, ring to the client
//                        the server's bell: an eventfd; the client writes to it
//                        the client's bell: an epoll descriptor, readable when the server rang; the client watches it by edge
//
// A socket on which something else comes first stays what it is: a byte stream.
// Invariants: the memory is sealed against shrinking and growing before anybody maps it, so that no access to it can fault; the
// server never writes to, reads from or takes over a descriptor that the client has or made. (Both ends of a passed descriptor
// share its flags: a client that makes an eventfd blocking and fills its counter would stop a server that writes to it. So the
// server keeps the eventfd that it writes to, and passes an epoll descriptor that watches it; of the other it only polls.)
// Must never: block, or trust a length.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>

#include "base/bytes.h"
#include "base/status.h"
#include "net/shm_ring.h"
#include "net/transport.h"

namespace halfstep::net {

inline constexpr std::array<char, 4> kShmMagic = {'H', 'S', 'M', '1'};
inline constexpr uint16_t kShmVersion = 1;
inline constexpr uint32_t kRingBytesMin = 4096;
inline constexpr uint32_t kRingBytesMax = 64U << 20;
inline constexpr uint32_t kRingBytesDefault = 1U << 20;
inline constexpr size_t kRingControlBytes = 4096;  // both rings' control, before their data

// Both rings' and their control's, of one connection.
constexpr uint64_t ring_memory_bytes(uint32_t to_server_bytes, uint32_t to_client_bytes) noexcept {
  return kRingControlBytes + uint64_t{to_server_bytes} + to_client_bytes;
}

struct ShmAsk {
  std::array<char, 4> magic = kShmMagic;
  uint16_t version_min = kShmVersion;
  uint16_t version_max = kShmVersion;
  uint64_t zero = 0;
};
static_assert(sizeof(ShmAsk) == 16);

enum class ShmRefusal : uint16_t { None = 0, Version = 1, Resources = 2 };

struct ShmAnswer {
  std::array<char, 4> magic = kShmMagic;
  uint16_t version = kShmVersion;  // 0: refused, and no descriptors
  ShmRefusal refusal = ShmRefusal::None;
  uint64_t memory_bytes = 0;     // kRingControlBytes + both rings
  uint32_t to_server_bytes = 0;  // a power of two
  uint32_t to_client_bytes = 0;
  uint64_t zero = 0;
};
static_assert(sizeof(ShmAnswer) == 32);

// The mapping, and who owns what in it.
class RingMemory {
 public:
  RingMemory() = default;
  ~RingMemory();
  RingMemory(RingMemory&& other) noexcept;
  RingMemory& operator=(RingMemory&& other) noexcept;

  // A new, sealed memory; `descriptor` is the caller's to close.
  static Status create(uint32_t to_server_bytes, uint32_t to_client_bytes, RingMemory* out, int* descriptor);
  // Another's: refused unless it is sealed and exactly as long as `answer` says.
  static Fault map(int descriptor, const ShmAnswer& answer, RingMemory* out);

  RingControl& to_server() noexcept { return *at<RingControl>(0); }
  RingControl& to_client() noexcept { return *at<RingControl>(sizeof(RingControl)); }
  Bytes to_server_data() noexcept { return {base_ + kRingControlBytes, to_server_bytes_}; }
  Bytes to_client_data() noexcept { return {base_ + kRingControlBytes + to_server_bytes_, to_client_bytes_}; }
  // Gives pages back to the system: they read as zeros from here on, for whoever else has the memory, too.
  static void drop_pages(Bytes data) noexcept;
  void drop_all_pages() noexcept { drop_pages({base_, bytes()}); }
  uint64_t bytes() const noexcept { return ring_memory_bytes(to_server_bytes_, to_client_bytes_); }

 private:
  template <typename T>
  T* at(size_t offset) noexcept {
    return reinterpret_cast<T*>(base_ + offset);
  }
  Status map_bytes(int descriptor, uint32_t to_server_bytes, uint32_t to_client_bytes) noexcept;

  std::byte* base_ = nullptr;
  uint32_t to_server_bytes_ = 0;
  uint32_t to_client_bytes_ = 0;
};

// The memory of rings that a server has made, which has a bound. That of connections that it ended stays for a second, or less
// when many come: their clients may read what it said last, an Abort perhaps. A client that kept the memory would otherwise
// keep our pages. Invariant: what was taken is given back once, by give() or by bury().
class RingGraveyard {
 public:
  explicit RingGraveyard(Loop& loop, uint64_t bytes_max = UINT64_MAX) noexcept
      : loop_(loop), bytes_max_(bytes_max), timer_(&RingGraveyard::on_timer, this) {}
  // For rings that are about to be made. False: all would have more than bytes_max, and that is counted.
  bool take(uint64_t bytes) noexcept;
  // What was taken could not be made: there were no descriptors for it, or no memory.
  void note_refused() noexcept { ++refused_; }
  void give(uint64_t bytes) noexcept;
  void bury(RingMemory memory);
  uint64_t bytes() const noexcept { return bytes_; }
  uint64_t refused() const noexcept { return refused_; }

 private:
  struct Grave {
    uint64_t due_us;
    RingMemory memory;
  };
  static void on_timer(void* self);
  void open_first() noexcept;

  Loop& loop_;
  const uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  uint64_t refused_ = 0;
  Timer timer_;
  std::deque<Grave> graves_;
};

struct RingSizes {
  uint32_t to_server_bytes = kRingBytesDefault;
  uint32_t to_client_bytes = kRingBytesDefault;
};

// ---- The client's side: ask_for_rings() as soon as the socket is connected, take_rings() when it is readable.
Status ask_for_rings(int socket) noexcept;
// Takes the socket when it succeeds. Throttled: the server has no memory or descriptors for rings; a socket on which nobody
// asks for them may still be served.
Fault take_rings(int socket, std::unique_ptr<Transport>* out);

// ---- The server's side: of an accepted unix socket, whose first bytes say what it will be. Takes the descriptor.
// `graveyard` outlives the transport.
std::unique_ptr<Transport> accepted_transport(int socket, const RingSizes& sizes, RingGraveyard& graveyard);

}  // namespace halfstep::net
