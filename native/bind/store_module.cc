// store_module.cc — halfstep._store: the real store, embedded, for tools. halfstep.tools.replay is the face for people.
// Keys are C-contiguous (n, 16) arrays of uint8, one crossing of the border for all of a request. The interpreter's lock is not
// held while the store works.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bind/errors.h"
#include "bind/interpreter.h"
#include "bind/os_text.h"
#include "bind/store_embedded.h"
#include "bind/store_hot.h"
#include "store/reclaim/policy_adapt.h"
#include "store/reclaim/policy_fifo.h"
#include "store/reclaim/policy_low.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

using halfstep::ConstBytes;
using halfstep::Fault;
using halfstep::Status;
using halfstep::bind::EmbeddedStore;
using halfstep::bind::HotBlocks;
using halfstep::bind::OsText;
using halfstep::bind::Sizing;
using halfstep::bind::Unlocked;

using Keys = nb::ndarray<const uint8_t, nb::shape<-1, halfstep::bind::kEmbeddedKeyBytes>, nb::c_contig, nb::device::cpu>;

using Hints = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

ConstBytes bytes_of(const Keys& keys) {
  return {reinterpret_cast<const std::byte*>(keys.data()), keys.shape(0) * halfstep::bind::kEmbeddedKeyBytes};
}

// Args: the code's name, the sentence. Raised as halfstep._store.StoreError.
struct StoreError : std::exception {
  explicit StoreError(const Fault& fault) : code(halfstep::code_name(fault.status.code())), sentence(fault.what) {}
  StoreError(Status status, const std::string& what) : code(halfstep::code_name(status.code())), sentence(what + ": " + code) {
    if (status.detail() < 0) sentence += ", " + halfstep::errno_name(status.detail());
  }
  const char* what() const noexcept override { return sentence.c_str(); }
  std::string code;
  std::string sentence;
};

void check(Status status, const char* what) {
  if (!status.ok()) throw StoreError(status, what);
}

nb::dict sizing_of(const Sizing& sizing) {
  nb::dict dict;
  dict["capacity_blocks"] = sizing.capacity_blocks();
  dict["segments"] = sizing.geometry.segments;
  dict["blocks_per_segment"] = sizing.blocks_per_segment;
  dict["segment_bytes"] = sizing.geometry.segment_bytes;
  dict["block_bytes"] = sizing.block_bytes;
  dict["device_bytes"] = sizing.geometry.device_bytes;
  dict["dram_blocks"] = sizing.dram_blocks();
  return dict;
}

nb::dict counters_of(const halfstep::store::Counters& counters) {
  nb::dict dict;
  dict["hits_memory"] = counters.hits_memory;
  dict["hits_flash"] = counters.hits_flash;
  dict["misses_corrupt"] = counters.misses_corrupt;
  dict["misses_expired"] = counters.misses_expired;
  dict["misses_io"] = counters.misses_io;
  dict["writes_committed"] = counters.writes_committed;
  dict["writes_throttled"] = counters.writes_throttled;
  dict["writes_failed"] = counters.writes_failed;
  dict["bytes_user"] = counters.bytes_user;
  dict["bytes_rewritten"] = counters.bytes_rewritten;
  dict["bytes_metadata"] = counters.bytes_metadata;
  dict["bytes_padding"] = counters.bytes_padding;
  dict["blocks_rewritten"] = counters.blocks_rewritten;
  dict["blocks_evicted_age"] = counters.blocks_evicted_age;
  dict["blocks_evicted_expired"] = counters.blocks_evicted_expired;
  dict["blocks_evicted_unreadable"] = counters.blocks_evicted_unreadable;
  dict["staged"] = counters.staged;
  dict["staged_used"] = counters.staged_used;
  dict["staged_late"] = counters.staged_late;
  dict["staged_unused"] = counters.staged_unused;
  dict["segments_reclaimed"] = counters.segments_reclaimed;
  dict["segments_sealed"] = counters.segments_sealed;
  dict["record_pages"] = counters.record_pages;
  dict["touch_pages"] = counters.touch_pages;
  return dict;
}

Sizing size(uint64_t capacity_blocks, uint32_t segments, uint64_t device_bytes, uint64_t dram_blocks) {
  Sizing sizing;
  Fault fault = halfstep::bind::size_store(capacity_blocks, segments, device_bytes, &sizing);
  if (fault.ok() && dram_blocks != 0) fault = halfstep::bind::size_dram(dram_blocks, &sizing);
  if (!fault.ok()) throw StoreError(fault);
  return sizing;
}

class Store {
 public:
  Store(uint64_t capacity_blocks, uint32_t segments, uint64_t device_bytes, const OsText& path, bool manual_clock,
        uint64_t seed, const std::string& policy, double rewrite_share, uint64_t dram_blocks) {
    EmbeddedStore::Config config;
    sizing_ = config.sizing = size(capacity_blocks, segments, device_bytes, dram_blocks);
    config.path = path.bytes;
    config.manual_clock = manual_clock;
    config.seed = seed;
    config.options.policy = policy;
    config.options.rewrite_share = rewrite_share;
    config.options.events_max = 0;  // nobody follows
    config.gather_blocks = config.sizing.gather_blocks();
    Fault fault;
    {
      const Unlocked unlocked;
      fault = EmbeddedStore::open(config, &store_);
    }
    if (!fault.ok()) throw StoreError(fault);
  }

  nb::dict sizing() const { return sizing_of(sizing_); }

  nb::tuple match(const Keys& keys) {
    std::vector<uint8_t> present(keys.shape(0));
    uint32_t leading = 0;
    {
      const Unlocked unlocked;
      leading = open().match(bytes_of(keys), present);
    }
    return nb::make_tuple(leading, nb::bytes(present.data(), present.size()));
  }
  nb::tuple read(const Keys& keys) {
    EmbeddedStore::Reads reads;
    {
      const Unlocked unlocked;
      check(open().read(bytes_of(keys), &reads), "read");
    }
    return nb::make_tuple(reads.leading, reads.missed, reads.wrong);
  }
  nb::tuple access(const Keys& keys, bool tell_parents, uint32_t ttl_s, const std::optional<Hints>& hints) {
    if (hints && hints->shape(0) != keys.shape(0)) throw nb::value_error("hints: must be as many as keys");
    const std::span<const uint8_t> each = hints ? std::span(hints->data(), hints->shape(0)) : std::span<const uint8_t>();
    EmbeddedStore::Access access;
    {
      const Unlocked unlocked;
      check(open().access(bytes_of(keys), each, tell_parents, ttl_s, &access), "access");
    }
    return nb::make_tuple(access.present, access.written, access.refused);
  }
  nb::bytes stage(const Keys& keys, uint64_t keep_us) {
    std::vector<uint8_t> out(keys.shape(0));
    {
      const Unlocked unlocked;
      check(open().stage(bytes_of(keys), keep_us, out), "stage");
    }
    return nb::bytes(out.data(), out.size());
  }
  void advance_to(uint64_t us) { open().advance_to(us); }
  void settle() {
    const Unlocked unlocked;
    check(open().settle(), "settle");
  }
  nb::dict counters() { return counters_of(open().counters()); }
  uint64_t blocks() { return open().blocks(); }
  std::string engine() { return open().engine_facts().name; }
  uint64_t device_write_bytes() { return open().engine_counters().write_bytes; }
  void close() {
    const Unlocked unlocked;
    store_.reset();
  }

 private:
  EmbeddedStore& open() {
    if (store_ == nullptr) throw StoreError(Status(halfstep::Code::Closed), "the store");
    return *store_;
  }

  Sizing sizing_;
  std::unique_ptr<EmbeddedStore> store_;
};

}  // namespace

NB_MODULE(_store, m) {
  m.doc() = "The real store, embedded, for tools. Use halfstep.tools.replay.";

  halfstep::bind::add_error<StoreError>(m, "StoreError", "halfstep._store.StoreError",
                                        "What an embedded store cannot do: (name of the code, sentence).");

  m.def(
      "policies",
      [] {
        return nb::make_tuple(std::string(halfstep::store::SegAdapt::kName), std::string(halfstep::store::SegLow::kName),
                              std::string(halfstep::store::SegFifo::kName));
      },
      nb::sig("def policies() -> tuple[str, ...]"), "Those of the store, its default first.");
  m.attr("CAPACITY_BLOCKS_MIN") = halfstep::bind::kSizingCapacityBlocksMin;
  m.def(
      "size",
      [](uint64_t capacity_blocks, uint32_t segments, uint64_t device_bytes, uint64_t dram_blocks) {
        return sizing_of(size(capacity_blocks, segments, device_bytes, dram_blocks));
      },
      nb::kw_only(), "capacity_blocks"_a, "segments"_a, "device_bytes"_a, "dram_blocks"_a = 0,
      nb::sig("def size(*, capacity_blocks: int, segments: int, device_bytes: int, dram_blocks: int = 0) -> dict[str, int]"),
      "What a Store would be sized to, without making it. Raises StoreError.");
  nb::class_<Store>(m, "Store", "A new store over memory, or over a file that is gone when it is closed. One thread at a time.")
      .def(nb::init<uint64_t, uint32_t, uint64_t, const OsText&, bool, uint64_t, const std::string&, double, uint64_t>(),
           nb::kw_only(), "capacity_blocks"_a, "segments"_a, "device_bytes"_a, "path"_a = "", "manual_clock"_a = true,
           "seed"_a = 1, "policy"_a = halfstep::store::Options().policy,
           "rewrite_share"_a = halfstep::store::Options().rewrite_share, "dram_blocks"_a = 0,
           "Room for at most so many blocks in at least so many segments, on about so many bytes: blocks are as small as that "
           "needs. Memory for at most dram_blocks of them; 0: for what is under way. Raises StoreError.")
      .def("sizing", &Store::sizing, nb::sig("def sizing(self) -> dict[str, int]"),
           "capacity_blocks, segments, blocks_per_segment, dram_blocks, and the bytes of a segment, of a block and of the "
           "device.")
      .def("match", &Store::match, "keys"_a,
           nb::sig("def match(self, keys: numpy.typing.NDArray[numpy.uint8]) -> tuple[int, bytes]"),
           "How many of the first ones are there, and a byte for each: 1 if it is.")
      .def("read", &Store::read, "keys"_a,
           nb::sig("def read(self, keys: numpy.typing.NDArray[numpy.uint8]) -> tuple[int, int, int]"),
           "How many of the first ones came, whole and right; how many were missed; how many were not what was written.")
      .def(
          "access", &Store::access, "keys"_a, nb::kw_only(), "tell_parents"_a, "ttl_s"_a = 0, "hints"_a = nb::none(),
          nb::sig("def access(self, keys: numpy.typing.NDArray[numpy.uint8], *, tell_parents: bool, ttl_s: int = 0, "
                  "hints: numpy.typing.NDArray[numpy.uint8] | None = None) -> tuple[int, int, int]"),
          "Touch what is there and write what is not, from the leaf, which is the last, to the root: how many were there, were "
          "written, found no room. hints: of each key what is known of its future, by the numbers of the wire protocol.")
      .def("stage", &Store::stage, "keys"_a, "keep_us"_a,
           nb::sig("def stage(self, keys: numpy.typing.NDArray[numpy.uint8], keep_us: int) -> bytes"),
           "Bring blocks into memory ahead of their read, kept for so long: of each 0 if it is absent, 1 if it was read from "
           "flash, 2 if it was in memory, 3 if there is no room for it.")
      .def("advance_to", &Store::advance_to, "us"_a, "Set the clock on; it never goes back.")
      .def("settle", &Store::settle, "Write what was gathered and do what is due.")
      .def("counters", &Store::counters, nb::sig("def counters(self) -> dict[str, int]"), "Since it was opened.")
      .def("blocks", &Store::blocks, "Blocks that are there now, on flash or gathered for it.")
      .def("engine", &Store::engine, "memory, uring or pread.")
      .def("device_write_bytes", &Store::device_write_bytes, "By the engine's count.")
      .def("close", &Store::close, "Idempotent.");

  nb::class_<HotBlocks>(m, "HotBlocks", "The policy of the store's memory alone, over blocks of one size: numbers from 0 on.")
      .def(nb::init<uint64_t, uint32_t>(), nb::kw_only(), "capacity_blocks"_a, "unique_blocks"_a)
      .def(
          "request",
          [](HotBlocks& hot, const Numbers& blocks) {
            return hot.request({blocks.data(), blocks.shape(0)});
          },
          "blocks"_a, nb::sig("def request(self, blocks: numpy.typing.NDArray[numpy.int32]) -> int"),
          "Use or take in all of a request's blocks, from the leaf, which is the last, to the root: how many of the first ones "
          "had been there.")
      .def(
          "present",
          [](const HotBlocks& hot) {
            const std::vector<uint8_t> present = hot.present();
            return nb::bytes(present.data(), present.size());
          },
          "A byte for each block: 1 if it is there.")
      .def_prop_ro("inserted", &HotBlocks::inserted, "How often a block came in.")
      .def_prop_ro("evicted", &HotBlocks::evicted, "How often one gave way.");
}
