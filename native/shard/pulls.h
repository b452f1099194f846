// pulls.h — payload of puts that the server reads out of its client's memory: a Placed says which runs lie there, a device
// reads them into the slots of their items, and they are verified as a Chunk's are when they have come. Invariants: a slot that
// a device may write into goes back with the end of its pull, or of the connection, which no device outlives; a put has its
// Final when nothing is read for it any more. What a client says of its memory harms none but itself. In the steady state
// nothing is allocated. Thread: the shard's.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "net/stream.h"
#include "net/transport.h"
#include "shard/chunk_landing.h"
#include "wire/records.h"

namespace halfstep::shard {

class PutRequest;
class RequestHost;

class Pulls {
 public:
  // More at once make reading rest: a client's frames are small, and each costs memory here.
  static constexpr size_t kPullsMax = 64;
  // Of one Placed, in the client's memory.
  static constexpr size_t kRunsMax = 64;

  // Throttled: more than was granted; NotFound: some of it lies in no place that was told; TooLarge: in more than kRunsMax;
  // IoError: the device does not reach the memory of this server; Invalid: a run names no item of its request.
  Status begin(RequestHost& host, PutRequest& put, const wire::RunsView& runs, net::FrameStream& stream);
  // The oldest has come.
  void landed();
  // Nothing of this put is wanted any more: what comes is not looked at.
  void divert(const PutRequest& put) noexcept;
  // No device reads any more.
  void drop();
  bool full() const noexcept { return pulls_.size() - first_ >= kPullsMax; }

 private:
  struct Pull {
    ChunkLanding landing;
    std::vector<iovec> pieces;  // iov_base null: nothing of it is read
    PutRequest* put = nullptr;
    bool diverted = false;
  };
  // What a connection keeps of those that are over.
  static constexpr size_t kIdleMax = 4;
  std::unique_ptr<Pull> take_idle();
  std::unique_ptr<Pull> take_first();
  void end(std::unique_ptr<Pull> pull);

  std::vector<std::unique_ptr<Pull>> pulls_;  // from first_ on
  size_t first_ = 0;
  std::vector<std::unique_ptr<Pull>> idle_;
  // Of the one that begins.
  net::Landing landing_;
  std::vector<net::RemoteRun> from_;
  std::vector<Bytes> into_;
};

}  // namespace halfstep::shard
