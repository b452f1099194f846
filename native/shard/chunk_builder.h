// chunk_builder.h — gathers runs of one get into one Chunk, by reference to the residents that hold the bytes.
// Invariants: payload and body stay within the limits of wire/; a part is split only when it begins a Chunk and does not fit
// one; checks come from the parts' stored CRCs, so that no payload byte is read here.
// Thread: the shard's. Used by one request at a time, within one call.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "net/send_queue.h"
#include "net/transport.h"
#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::shard {

class Client;
class RequestPlaces;
struct GetItem;
struct SentChunk;

class ChunkBuilder {
 public:
  bool empty() const noexcept { return runs_.empty(); }
  uint32_t payload_bytes() const noexcept { return payload_bytes_; }
  // What is in it so far.
  std::span<const wire::Run> runs() const noexcept { return runs_; }
  // Of the request whose Chunk is built next: where its bytes are to be placed; null: nowhere.
  void place_by(const RequestPlaces* places) noexcept { places_ = places; }
  // Adds what fits of `part`, from item.part_offset on, and moves that on (to 0 when the part is complete). False: nothing
  // fits any more.
  bool add(GetItem& item, uint32_t part);
  // Queues the Chunk, or a Placed whose payload is in its place already, and is empty again. Every item in it is in `sent` and
  // has one reference more, which released(&sent, tag) gives back when its bytes have left.
  void send(Client& client, uint64_t request_id, SentChunk& sent, net::Released released, uint64_t tag);

 private:
  bool place_part(const GetItem& item, uint32_t part, uint32_t bytes);
  bool extends_last(const GetItem& item, uint32_t part) const noexcept;

  std::vector<wire::Run> runs_;
  std::vector<uint32_t> checks_;
  std::vector<ConstBytes> payload_;
  std::vector<GetItem*> items_;   // each once
  std::vector<GetItem*> tables_;  // those whose part table goes with this Chunk
  const RequestPlaces* places_ = nullptr;
  bool placed_ = false;                  // all of it, or nothing
  std::vector<net::RemoteRun> runs_to_;  // where the payload goes
  std::vector<net::RemoteRun> part_to_;  // used within add()
  uint32_t payload_bytes_ = 0;
  size_t body_bytes_ = 0;
};

}  // namespace halfstep::shard
