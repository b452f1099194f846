// transport.h — how the bytes of one connection travel: a socket, rings in shared memory (shm_transport.h), or rings that RDMA
// fills (rdma_transport.h). FrameStream asks for a batch of bytes at a time and knows nothing else of it.
// Invariants: nothing blocks; after stop() nothing is called back; whoever drops a transport closes what it held. Payload that
// was given to send_held() stays as it is until the transport says so (hold(), take_free()), or whoever it left it to.
// Thread: the loop's.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "base/status.h"
#include "net/loop.h"
#include "net/send_queue.h"

namespace halfstep::rdma {
class MemoryRegion;
}

namespace halfstep::net {

// Memory of the other end's that it lets a device of ours write into.
struct RemoteRun {
  uint64_t address = 0;
  uint32_t key = 0;
  uint32_t bytes = 0;
};

// A part of our memory that the other end may reach by a key of its own.
struct RemoteWindow {
  uint32_t number = 0;  // the transport's
  uint32_t key = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // From here on `watch` hears when there is something to receive, or room to send.
  virtual Status start(Loop& loop, Watch* watch) = 0;
  virtual void stop() noexcept = 0;
  // What the stream waits for; false for both still tells of the other end's death.
  virtual Status want(bool to_receive, bool to_send) = 0;
  // What `watch` was called with, before anything else is asked: gives what of it is the stream's affair.
  virtual uint32_t heard(uint32_t epoll_events) noexcept = 0;

  // As readv() and sendmsg() without waiting: bytes moved, 0 at the end of what the peer sent, or a negative errno.
  // more: further bytes follow at once, so that none need travel by themselves.
  virtual ssize_t receive(const iovec* vectors, size_t count) noexcept = 0;
  // What one receive() brings at the most: memory for more need not be found.
  virtual size_t receive_bytes_max() const noexcept { return SIZE_MAX; }
  virtual ssize_t send(const iovec* vectors, size_t count, bool more) noexcept = 0;

  // Sending without a copy. The least run of payload that send_held() is for; SIZE_MAX: none, now.
  virtual size_t held_run_bytes_min() noexcept { return SIZE_MAX; }
  // As send(), of payload alone, which may be read after this call, until hold() and take_free() give it back.
  virtual ssize_t send_held(const iovec* vectors, size_t count, bool more) noexcept { return send(vectors, count, more); }
  // All of a payload was taken by send() or send_held(), or what was not will never be sent. False: nobody reads it any more,
  // it may be released. True: it comes back by take_free(). Calls nothing back.
  virtual bool hold(const Release&) { return false; }
  // The next payload that nobody reads any more; false: none. To be asked after heard().
  virtual bool take_free(Release*) noexcept { return false; }
  // Of what was sent and has not been given back.
  virtual uint64_t held_bytes() const noexcept { return 0; }
  // Whether it sends without copies as things are.
  virtual bool zero_copy() const noexcept { return false; }

  // Writing into the other end's memory, RDMA alone. Whether a place() of at most kPlaceWritesMax writes is taken now; if not,
  // `watch` hears when it may be.
  virtual bool place_room() noexcept { return false; }
  // Lays `payload`, back to back, over `runs`: all of it arrives before whatever is sent from here on. It is read after this
  // call, until it is given back as that of send_held() is. False: nothing was written, since it would take too many writes, or
  // it lies in memory that no device reads, or there is no room.
  virtual bool place(std::span<const ConstBytes> /*payload*/, std::span<const RemoteRun> /*runs*/) noexcept { return false; }
  // Reading out of the other end's memory, likewise. Lays `runs`, back to back, over `into`, some time after this call: those
  // of several calls one after the other. The memory stays until take_pulled() has told of it, or the transport is dropped.
  // False: nothing will be read, since it is no memory that a device writes, or there is none.
  virtual bool pull(std::span<const Bytes> /*into*/, std::span<const RemoteRun> /*runs*/) { return false; }
  // Once for each pull() whose bytes are there, in order. To be asked after heard().
  virtual bool take_pulled() noexcept { return false; }
  // Letting the other end's device read or write (rdma::abi::kAccessRemote…) `bytes` of a region of ours, by a key that is good
  // from what is sent next on and until the window is closed, which take_closed() tells of, or the transport is dropped:
  // what the other end begins after that is refused. What it had begun may still be under way on some devices: whoever has not
  // heard that it is done drops the transport. Not ok: there is none.
  virtual Fault open_window(const rdma::MemoryRegion& /*region*/, Bytes /*bytes*/, int /*access*/, RemoteWindow* /*out*/) {
    return {Code::Unsupported, "this connection has no memory windows"};
  }
  virtual void close_window(uint32_t /*number*/) noexcept {}
  virtual bool take_closed(uint32_t* /*number*/) { return false; }
  // From here on the other end may read and write memory that this transport does not know: when it is dropped that ends
  // with it, at the price of what was sent last.
  virtual void accept_places() noexcept {}

  // Why nothing moves any more, a negative errno, or 0: what receive() and send() say, for whoever asks neither now.
  virtual int broken() const noexcept { return 0; }

  // The end of a turn: what send() was told that more follows need not wait for it any longer.
  virtual void push() noexcept {}

  // Nothing more will be sent, and the transport is dropped next: what was sent must reach a peer that still reads.
  virtual void finish_sending() noexcept = 0;
  // The stream is idle: gives back what memory can be had at little cost, if there is any.
  virtual void trim() noexcept {}
  virtual bool trimmable() const noexcept { return false; }

  // Whether `watch` is called again and again as long as there is something to receive. Else it is called only after receive()
  // has said -EAGAIN, and send() likewise; and asking costs no system call.
  virtual bool told_by_level() const noexcept = 0;
  // Of the socket: a sign of life and a name for the connection.
  virtual int descriptor() const noexcept = 0;
  // Whether bytes travel through shared memory.
  virtual bool rings() const noexcept { return false; }
  // So many bytes that are queued first still leave by the socket beneath. For rings that come into use behind a Final.
  virtual void leave_by_socket(uint64_t) noexcept {}
  // Whether an RDMA device moves them.
  virtual bool rdma() const noexcept { return false; }

 protected:
  Transport() = default;
};

// Takes the (connected) descriptor.
std::unique_ptr<Transport> socket_transport(int descriptor);

}  // namespace halfstep::net
