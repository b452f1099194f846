// device_lander.h — brings the bytes of a Chunk that lie in staging, and verified there, into the memory of a GPU.
// A Chunk's plain parts land in one slot of pinned memory, from which they are copied. Where no slot is free they land in
// ordinary memory, a Chunk of it, as coded parts always do; finish() then moves them, or decodes them, into slots as these come
// free. Until it has, the connection is shown nothing more: that is the back-pressure, and the bound of the memory.
// A part longer than a Chunk is copied piece by piece; its answer waits for the check of the whole.
// Invariants: what is submitted lies in a slot of its own until its copy is over; after drop() nothing more is submitted.
// Thread: the client's. One for each connection.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "peer/device_work.h"
#include "peer/part_decoder.h"
#include "peer/ticket.h"

namespace halfstep::peer {

class DeviceLander {
 public:
  struct Piece {
    Section* section;
    uint32_t item;
    uint32_t part;
    uint32_t offset;  // in the part
    uint32_t bytes;
    bool ends;                                // the part
    const std::byte* at;                      // where they lie
    const wire::PartRecord* coded = nullptr;  // stored bytes of a whole part
  };

  void open(DeviceWork* work) noexcept { work_ = work; }
  // A slot's memory for bytes of the Chunk that begins, or null.
  std::byte* room(Ticket& ticket, uint32_t bytes);
  // They have landed, and are right as far as that can be known.
  void add(const Piece& piece);
  // Of the Chunk that is over: false while there is no slot for some of it.
  bool finish(Ticket& ticket);
  bool unfinished() const noexcept { return next_ < waiting_.size(); }
  void drop() noexcept;
  uint64_t decode_failures() const noexcept { return decode_failures_; }

 private:
  bool begin_slot(Ticket& ticket);
  void submit();
  void append(const Piece& piece, const std::byte* at, uint32_t offset, uint32_t bytes, bool ends);
  bool move(Ticket& ticket, const Piece& piece, ConstBytes from);
  bool decode(Ticket& ticket, const Piece& piece);

  DeviceWork* work_ = nullptr;
  std::unique_ptr<DeviceCopy> filling_;  // with a slot
  size_t used_ = 0;                      // of it
  bool refused_ = false;                 // there was none for this Chunk
  std::vector<Piece> waiting_;
  size_t next_ = 0;
  uint32_t moved_ = 0;    // bytes of waiting_[next_] that are in slots
  bool decoded_ = false;  // its bytes are in raw_
  std::vector<std::byte> raw_;
  PartDecoder decoder_;
  uint64_t decode_failures_ = 0;
};

}  // namespace halfstep::peer
