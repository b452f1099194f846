// get.h — brings the payload of a get into the caller's memory and checks it while it is hot.
// Every run of a Chunk is checked against what was asked before a byte of it is received: the item, the parts, that each comes
// once, that lengths agree with the group's shape and with what was said of the block before. What breaks a rule ends the
// connection (Invalid). What merely has no place, or no chance to become ok, goes to scratch.
// Invariants: no memory outside a target that fits is ever named to the stream; after drop() none at all. Memory that a Chunk's
// landing names lives until that Chunk is dropped: that of a part that ends in its midst is set aside until then.
// Thread: the client's. One for each connection: a connection receives one Chunk at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "net/stream.h"
#include "peer/coded_block.h"
#include "peer/device_lander.h"
#include "peer/part_decoder.h"
#include "peer/request.h"
#include "wire/records.h"

namespace halfstep::peer {

class Lander {
 public:
  // A connection that is up: bit c of `codecs` is set where codec c was offered to the daemon.
  void open(uint64_t codecs, DeviceWork* devices = nullptr) noexcept {
    codecs_ = codecs;
    device_.open(devices);
  }
  // The Chunk that begins to arrive. `block_bytes_max` is what the daemon announced.
  Status begin(Request& request, ConstBytes body, uint32_t payload_bytes, uint32_t block_bytes_max, net::Landing* landing);
  void landed(ConstBytes piece, size_t skipped);
  // A Placed: its payload is in the target already, and is verified there. In a GPU's memory it is not: it counts as what the
  // daemon says that it is, if the GPU sees it by now (`settled`).
  Status take_placed(Request& request, ConstBytes body, uint32_t block_bytes_max, bool settled);
  uint64_t placed_bytes() const noexcept { return placed_bytes_; }
  uint64_t gpu_placed_bytes() const noexcept { return gpu_placed_bytes_; }
  // All of it has landed. False: it goes on, by another finish(), when there is staging memory for what goes to a device.
  bool finish() { return request_ == nullptr || device_.finish(*request_->ticket); }
  bool unfinished() const noexcept { return device_.unfinished(); }
  // The chunk is over.
  void drop() noexcept;
  // Whose payload lands now.
  Request* request() const noexcept { return request_; }
  uint64_t checksum_failures() const noexcept { return checksum_failures_; }
  uint64_t decode_failures() const noexcept { return decode_failures_ + device_.decode_failures(); }

 private:
  enum class End : uint8_t { Piece, Part, Aborted };
  // Bytes of one part that lie one after the other in the payload, and what their end is.
  struct Step {
    Section* section;
    uint32_t item;
    uint32_t part;
    uint32_t left;
    uint32_t check;
    End end;
    bool lands;                   // in the target or staged, and is summed; else in scratch
    std::byte* staged = nullptr;  // a coded part's stored bytes, from its first one on
    uint32_t offset = 0;          // to a device: of these bytes in the part, how many, and where they land
    uint32_t bytes = 0;
    std::byte* landed = nullptr;
    bool placed = false;     // they lie on a device already
    bool unchecked = false;  // their part is not summed: some of it was placed there
  };
  // Between Chunks at most this is kept for the next part that comes in pieces.
  static constexpr size_t kSpareBytesMax = size_t{4} << 20;

  Status take_part_tables(ConstBytes body);
  Status take_part_table(const wire::PartTableView& table);
  // Of a coded item whose length is known now: its table fits it.
  static bool table_fits(const Section& section, uint32_t item, uint32_t block_bytes);
  Status plan_run(const wire::Run& run, uint32_t* next_check);
  Status plan_parts(Section& section, uint32_t item, const wire::Run& run, uint32_t* next_check);
  Status plan_piece(Section& section, uint32_t item, const wire::Run& run, uint32_t* next_check);
  // Of the step just made: names where its bytes go, if they are wanted.
  void place(uint32_t offset);
  // False: there is no memory for it.
  bool stage_for_device(Step& step, uint32_t offset);
  std::byte* staging(uint32_t bytes);
  bool stage(Step& step, CodedBlock& block, uint32_t offset);
  // A part that comes in pieces is over, or is wanted no more.
  void set_aside(Section& section, uint32_t item);
  void name(Bytes memory);
  void skip(uint32_t bytes);
  void name_pending();
  void end_steps();
  void end_part(const Step& step, uint32_t crc);

  Request* request_ = nullptr;
  wire::RunsView runs_;
  uint32_t block_bytes_max_ = 0;
  net::Landing* landing_ = nullptr;
  Bytes pending_;  // memory not named yet: what follows may continue it
  std::vector<Step> steps_;
  size_t step_ = 0;
  uint64_t codecs_ = 1;
  PartDecoder decoder_;
  DeviceLander device_;
  std::vector<std::byte> staged_;  // coded parts that come whole in this Chunk
  uint32_t staged_used_ = 0;
  std::vector<StagedBytes> ended_;  // of parts in pieces that this Chunk ends
  StagedBytes spare_;               // of one that an earlier Chunk ended
  net::Landing placed_;
  bool placing_ = false;  // a Placed is looked at, no Chunk
  bool settled_ = true;
  uint64_t placed_bytes_ = 0;
  uint64_t gpu_placed_bytes_ = 0;
  uint64_t checksum_failures_ = 0;
  uint64_t decode_failures_ = 0;
};

}  // namespace halfstep::peer
