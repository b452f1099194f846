// peer_section.h — one section of a batch: keys of one layout and group, which parts of their blocks, and where those go to or
// come from; with it registered memory, and the templates that say how blocks lie there.
// Invariants: setters only before the batch is submitted; from prepared() to release() nothing of it is released or moved,
// whatever Python drops. Thread: with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bind/peer_memory.h"
#include "peer/halfstep.h"

namespace halfstep::bind {

// Memory that an owner keeps for many batches, and how many of them use it now.
struct Region {
  Region(nb::handle object, bool writable, bool direct)
      : memory(Memory::of_any(object, writable, "region")), is_writable(writable), is_direct(direct) {}
  std::optional<Memory> memory;  // none once closed
  bool is_writable = false;
  bool is_direct = false;  // daemons may write into it
  bool refuses = false;    // it is to be closed: no batch begins to use it any more
  uint32_t uses = 0;

  bool usable() const noexcept { return memory && !refuses; }
  uint64_t address() const noexcept { return memory ? reinterpret_cast<uint64_t>(memory->data()) : 0; }
  uint64_t bytes() const noexcept { return memory ? memory->bytes() : 0; }
  int device() const noexcept { return memory ? memory->device() : -1; }
  // From here on that client's daemons write into it, where it is direct and the host's.
  void register_with(const std::shared_ptr<hs_client>& client);
  void close();

 private:
  struct End {
    void operator()(hs_region* region) const noexcept;
  };
  struct Registration {
    std::weak_ptr<hs_client> client;
    std::unique_ptr<hs_region, End> region;
  };
  std::vector<Registration> registrations_;  // dies before the memory
};

// One descriptor per part of a block; built once, used by any number of batches.
struct Template {
  // Refused once a batch has it: the core reads it without the interpreter's lock.
  void add(nb::object region, uint64_t offset, int64_t row_stride, uint32_t inner_count, uint32_t inner_bytes,
           int64_t inner_stride);
  // What a row holds.
  uint64_t block_bytes() const noexcept;

  std::vector<nb::object> regions;  // one per part
  bool given = false;
  std::vector<hs_part_descriptor> parts;
};

// Empty, and without the room that they had: `= {}` keeps a vector's.
template <typename... Memories>
void drop(Memories&... memories) {
  (Memories().swap(memories), ...);
}

class Section {
 public:
  // What it held until its end. Dropping it may run Python code.
  struct Kept {
    std::vector<Memory> memories;
    nb::object rows_template;
    std::vector<nb::object> regions;  // of addresses
  };

  Section() { header_.component_count = 1; }

  // A list or tuple of bytes-likes of 1-255 bytes, or an array of bytes [count, key_bytes]. Returns the count.
  uint32_t set_keys(int layout, nb::handle keys, uint32_t first_component, uint32_t component_count, bool stop_at_miss);
  void set_ranges(const std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>& ranges);
  // One buffer, split evenly over the items; or a list with one entry per item, each a buffer or a list of buffers.
  void set_target(nb::handle target);
  // As set_target, but read. `block_bytes`: array of uint32 per item, or None where the pieces say it.
  void set_source(nb::handle source, nb::handle block_bytes);
  // `rows`: int64 array, one per item. For a put, as a source.
  void set_rows(nb::object rows_template, nb::handle rows, bool is_source, nb::handle block_bytes);
  // Arrays of uint64 addresses and uint32 lengths, equally many an item, each within one of `regions`. For a put, as a source.
  void set_addresses(nb::handle regions, nb::handle addresses, nb::handle lengths, bool is_source);
  void set_offer(nb::handle parents, nb::handle depths, uint32_t ttl_s, uint8_t hint);

  bool on_device() const noexcept { return header_.cuda_device != 0; }
  uint32_t items() const noexcept { return header_.key_count * header_.component_count; }
  // One an item, or one a part that the ranges select of each.
  size_t answer_count() const noexcept;
  // The keys as the core gets them.
  nb::bytes packed_keys() const { return nb::bytes(packed_keys_.data(), packed_keys_.size()); }

  // Where its answers and lengths begin among those of the batch. Set by that.
  struct Outputs {
    size_t answers_at = 0, lengths_at = 0;
    bool answers = false, lengths = false;
  } outputs;

  // As the core wants it, which then writes to `answers` and the others (null: not wanted).
  const hs_section& prepared(hs_answer* answers, uint32_t* lengths, float* error_bounds, uint32_t* unchecked);
  void register_regions(const std::shared_ptr<hs_client>& client) const;
  // The regions that it names are in use from here to release().
  void started();
  [[nodiscard]] Kept release();
  // A result may keep the batch, for its answers alone.
  void forget();

 private:
  void add_pieces(nb::handle item, bool writable, const char* role);
  void split(nb::handle buffer, bool writable, const char* role);
  void place(nb::handle target, bool writable, const char* role);
  void set_block_bytes(nb::handle block_bytes);
  // Of memory that it lies in: all is of one device, or the host's. `first`: it is the first that is told.
  void set_device(int device, bool first, const char* role);
  void trim_pieces();
  void sum_pieces();
  // Each region that its memory is in, once a part or a region.
  template <typename Do>
  void each_region(Do&& act) const;

  hs_section header_{};
  std::string packed_keys_;
  std::vector<hs_range> ranges_;
  std::vector<hs_iovec> iovecs_;
  std::vector<uint32_t> iovec_counts_;
  std::vector<int64_t> rows_;
  std::vector<uint32_t> block_bytes_;
  std::vector<uint64_t> parents_;
  std::vector<uint16_t> depths_;
  Kept kept_;
  bool uses_regions_ = false;
};

}  // namespace halfstep::bind
