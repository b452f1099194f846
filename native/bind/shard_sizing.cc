#include "bind/shard_sizing.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "bind/shard_calls.h"
#include "store/sizing.h"

namespace halfstep::bind {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

nb::dict size_store(const std::vector<std::tuple<uint64_t, uint64_t, uint32_t>>& blocks, uint64_t keys, uint32_t key_bytes,
                    uint32_t shards, uint64_t segment_bytes, uint64_t arena_bytes) {
  store::SizingQuestion question{.of = {},
                                 .keys = keys,
                                 .key_bytes = key_bytes,
                                 .shards = shards,
                                 .segment_bytes = segment_bytes,
                                 .arena_bytes = arena_bytes};
  for (const auto& [count, block_bytes, parts] : blocks) question.of.push_back({count, block_bytes, parts});
  store::Sizing sizing;
  const Fault fault = store::size_store(question, &sizing);
  if (!fault.ok()) throw StartError(std::string(code_name(fault.status.code())), fault.what);
  nb::dict out;
  out["store_bytes"] = sizing.geometry.device_bytes;
  out["segment_bytes"] = sizing.geometry.segment_bytes;
  out["segments"] = sizing.geometry.segments;
  out["block_bytes_max"] = sizing.geometry.block_bytes_max;
  out["index_bytes"] = sizing.index_bytes;
  out["index_bytes_default"] = sizing.index_bytes_default;
  return out;
}

}  // namespace

void add_sizing(nb::module_& module) {
  module.def("size_store", &size_store, nb::kw_only(), "blocks"_a, "keys"_a = 0, "key_bytes"_a = 32, "shards"_a = 1,
             "segment_bytes"_a = 0, "arena_bytes"_a = 256ULL << 20,
             nb::sig("def size_store(*, blocks: Sequence[tuple[int, int, int]], keys: int = 0, key_bytes: int = 32, "
                     "shards: int = 1, segment_bytes: int = 0, arena_bytes: int = 268435456) -> dict[str, int]"),
             "The smallest store that keeps all these blocks (how many, bytes of each, parts of each): its bytes, segments\n"
             "and index. keys: all blocks of a key are in one shard; 0: as many as blocks. Makes nothing. Raises StartError.");
}

}  // namespace halfstep::bind
