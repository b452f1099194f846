// get_item.h — one block of a get, and the Chunks that refer to its bytes.
// Invariant: an item is used again when the store reads it no more, no queued Chunk refers to it, and it has left its request's
// window. Thread: the shard's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shard/decoder.h"
#include "store/store.h"

namespace halfstep::shard {

class GetRequest;

// One block between the plan to read it and the moment when nothing refers to it any more. Pooled.
struct GetItem {
  enum class State : uint8_t { Reading, Ready, Dead };  // Ready: some of its parts are there

  store::Read read;
  GetRequest* request = nullptr;
  uint64_t credit_bytes = 0;
  uint32_t section = 0;
  uint32_t index = 0;   // within the section
  uint32_t number = 0;  // over all sections
  uint32_t name_number = 0;
  uint32_t selected = 0;  // parts to send
  uint32_t end = 0;       // of them, those before it in its round
  uint32_t ordinal = 0;   // of them, how many are queued
  uint32_t part_offset = 0;
  bool part_in_chunks = false;  // what went of it so far
  uint64_t place_at = 0;        // raw bytes of the parts before it that were asked for
  uint32_t references = 0;      // queued Chunks
  State state = State::Reading;
  bool reading = true;  // the read is the store's
  bool left_window = false;
  bool coded = false;       // known, as `selected` is, once it is ready
  bool table_sent = false;  // of a coded one
  bool in_chunk = false;    // of the Chunk being built
  // Read, and to be decoded here, for its client cannot: not ready before that.
  bool undecoded = false;
  bool decoding = false;  // a worker has it
  std::unique_ptr<DecodedBlock> decoded;

  // Nobody reads into it or decodes it, and no Chunk has its bytes.
  bool unused() const noexcept { return !reading && !decoding && references == 0 && !in_chunk; }
  // What there is to send from, once it is ready.
  store::Resident& resident() const noexcept {
    if (decoded != nullptr && !undecoded) return *decoded;
    return read.resident != nullptr ? *read.resident : *read.early;
  }
};

// What a queued Chunk refers to, until its last byte has left and nobody reads it any more: its connection may be gone by then.
// Pooled.
struct SentChunk {
  std::vector<GetItem*> items;
};

}  // namespace halfstep::shard
