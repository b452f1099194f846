#include "bind/shard_sizing.h"

#include <nanobind/stl/string.h>

#include <string>

#include "bind/shard_calls.h"
#include "store/sizing.h"

namespace halfstep::bind {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

nb::dict size_store(uint64_t blocks, uint64_t block_bytes, uint32_t parts, uint32_t key_bytes, uint32_t shards,
                    uint64_t segment_bytes, uint64_t arena_bytes) {
  store::Sizing sizing;
  const Fault fault = store::size_store({blocks, block_bytes, parts, key_bytes, shards, segment_bytes, arena_bytes}, &sizing);
  if (!fault.ok()) throw StartError(std::string(code_name(fault.status.code())), fault.what);
  nb::dict out;
  out["store_bytes"] = sizing.geometry.device_bytes;
  out["segment_bytes"] = sizing.geometry.segment_bytes;
  out["segments"] = sizing.geometry.segments;
  out["block_bytes_max"] = sizing.geometry.block_bytes_max;
  out["blocks"] = sizing.blocks;
  out["blocks_per_segment"] = sizing.blocks_per_segment;
  out["extent_bytes"] = sizing.extent_bytes;
  out["index_bytes"] = sizing.index_bytes;
  out["index_bytes_default"] = sizing.index_bytes_default;
  return out;
}

}  // namespace

void add_sizing(nb::module_& module) {
  module.def("size_store", &size_store, nb::kw_only(), "blocks"_a, "block_bytes"_a, "parts"_a = 1, "key_bytes"_a = 32,
             "shards"_a = 1, "segment_bytes"_a = 0, "arena_bytes"_a = 256ULL << 20,
             nb::sig("def size_store(*, blocks: int, block_bytes: int, parts: int = 1, key_bytes: int = 32, shards: int = 1, "
                     "segment_bytes: int = 0, arena_bytes: int = 268435456) -> dict[str, int]"),
             "The smallest store that keeps so many blocks: its bytes, segments and index. Makes nothing. Raises StartError.");
}

}  // namespace halfstep::bind
