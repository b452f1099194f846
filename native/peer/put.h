// put.h — sends the payload of a put out of the caller's memory, or of the staged bytes of a coded block, as the daemon grants
// it. Credit: a put that fits what is left of the connection's early credit goes at once; of any other the items that Wants
// have named are sent, whole. A part is summed right before it is queued, in pieces of a Chunk at most, and the sum travels in
// the Chunk's head. Where the daemon reads the caller's memory itself, a Placed says the same of bytes that stay there.
// Invariants: memory is referenced by the socket's queue only between send_chunk() and its release, and the ticket counts how
// often; parts of an item go in order; a Chunk holds bytes of one request.
// Thread: the client's. One for each connection.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "net/stream.h"
#include "peer/request.h"
#include "wire/records.h"

namespace halfstep::peer {

class Sender {
 public:
  void open(uint32_t early_bytes, uint32_t chunk_bytes_max) noexcept;

  // A put that was sent: its bytes may follow.
  void add(Request& request);
  // A Want. Invalid: it names what was not offered.
  Status grant(Request& request, ConstBytes body);
  // Over or abandoned: no further Chunk of it is queued.
  void remove(Request& request) noexcept;
  // Its first Want or its Final came, abandoned or not: what it took of the early credit is free again.
  void return_early(Request& request) noexcept;

  // Queues Chunks, one request's after the other's, while little waits and something may go.
  // `released` gets the ticket when the socket has let go of a Chunk.
  void send(net::FrameStream& stream, net::Released released);

 private:
  bool send_chunk(net::FrameStream& stream, Request& request, net::Released released);
  // Adds runs of one item until the chunk is full or `left` is used up; false when nothing more fits.
  bool take_runs(Request& request, uint16_t slice, uint32_t wire_item, uint64_t* left);
  static size_t places_of(const Section& section, uint32_t number, uint32_t part, uint32_t offset, uint32_t bytes);
  void add_payload(ConstBytes memory, uint32_t* crc);

  std::deque<Request*> turns_;
  uint64_t early_left_ = 0;
  uint32_t chunk_bytes_max_ = wire::kChunkBytesMax;
  // The chunk under construction.
  std::vector<wire::Run> runs_;
  std::vector<uint32_t> checks_;
  std::vector<ConstBytes> payload_;
  uint32_t payload_bytes_ = 0;
  bool placed_ = false;  // it will be a Placed: the daemon reads the payload from where it lies
  std::vector<std::byte> head_;
};

}  // namespace halfstep::peer
