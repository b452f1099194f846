// coded_block.h — a block as it travels coded: what each part is, and where its stored bytes lie in the client's own memory.
// Invariants: `parts` is empty for a plain block. Of a put the stored bytes lie back to back in `staged`; of a get only a part
// that comes in pieces is there, until its last one.
// Thread: of a put an encoder's until it is done, then the client's; of a get the client's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "wire/coding_choices.h"
#include "wire/records.h"

namespace halfstep::peer {

// Memory for stored bytes, taken from a Staging and given back to it.
struct StagedBytes {
  std::unique_ptr<std::byte[]> memory;
  size_t bytes = 0;
};

struct CodedBlock {
  std::vector<wire::PartRecord> parts;
  std::vector<uint32_t> part_at;  // put: in `staged`
  uint32_t stored_bytes = 0;
  StagedBytes staged;
  wire::CodingReason reason = wire::CodingReason::NoMemory;  // put: why it is coded, or plain
  bool undecodable = false;                                  // get: it is not worth a byte of the target

  bool plain() const noexcept { return parts.empty(); }
  ConstBytes part(uint32_t number) const noexcept {
    return {staged.memory.get() + part_at[number], parts[number].stored_bytes};
  }
};

}  // namespace halfstep::peer
