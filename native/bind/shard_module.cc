// shard_module.cc — halfstep._shard: a daemon's core for Python. halfstep.daemon is the face for people.
// The interpreter's lock is not held while a store is opened, while a shard is asked or while it stops; the shards' threads
// never take it. `progress` is called on the thread that constructs the Server.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/build_info.h"
#include "bind/errors.h"
#include "bind/shard_calls.h"
#include "bind/shard_fsck.h"
#include "shard/server.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

using halfstep::Code;
using halfstep::Fault;
using halfstep::bind::Progress;
using halfstep::bind::StartError;
using halfstep::shard::Config;
using halfstep::shard::Facts;
using halfstep::shard::Metrics;
using halfstep::shard::Sample;
using halfstep::shard::Server;

halfstep::io::EngineChoice engine_named(const std::string& name) {
  if (name == "auto") return halfstep::io::EngineChoice::Auto;
  if (name == "uring") return halfstep::io::EngineChoice::Uring;
  if (name == "pread") return halfstep::io::EngineChoice::Pread;
  throw StartError("invalid", "engine=" + name + ": must be auto, uring or pread");
}

template <size_t N>
nb::bytes bytes_of(const std::array<std::byte, N>& field) {
  return nb::bytes(reinterpret_cast<const char*>(field.data()), N);
}

nb::dict backing_of(const halfstep::io::BackingFacts& facts) {
  nb::dict dict;
  dict["path"] = facts.path;
  dict["bytes"] = facts.bytes;
  dict["direct"] = facts.direct;
  dict["why_not_direct"] = facts.why_not_direct;
  dict["direct_align_bytes"] = facts.direct_align_bytes;
  dict["nocow"] = facts.nocow;
  return dict;
}

nb::dict engine_of(const halfstep::io::EngineFacts& facts) {
  nb::dict dict;
  dict["name"] = facts.name;
  dict["why_fallback"] = facts.why_fallback;
  dict["registered_buffers"] = facts.registered_buffers;
  dict["registered_files"] = facts.registered_files;
  dict["why_unregistered"] = facts.why_unregistered;
  dict["ring_features"] = facts.ring_features;
  dict["queue_depth"] = facts.queue_depth;
  return dict;
}

nb::dict arena_of(const halfstep::Arena::Facts& facts) {
  nb::dict dict;
  dict["bytes"] = facts.bytes;
  dict["page_bytes"] = facts.page_bytes;
  dict["regions"] = facts.regions;
  return dict;
}

nb::dict geometry_of(const halfstep::store::Geometry& geometry) {
  nb::dict dict;
  dict["device_bytes"] = geometry.device_bytes;
  dict["segment_bytes"] = geometry.segment_bytes;
  dict["segments"] = geometry.segments;
  dict["shards"] = geometry.shards;
  dict["block_bytes_max"] = geometry.block_bytes_max;
  return dict;
}

nb::dict recovery_of(const halfstep::store::RecoveryReport& report) {
  nb::dict dict;
  dict["blocks"] = report.blocks;
  dict["bytes"] = report.bytes;
  dict["micros"] = report.micros;
  dict["segments_by_footer"] = report.segments_by_footer;
  dict["segments_by_frames"] = report.segments_by_frames;
  dict["segments_empty"] = report.segments_empty;
  dict["segments_bad"] = report.segments_bad;
  dict["blocks_dropped_deleted"] = report.blocks_dropped_deleted;
  dict["blocks_dropped_expired"] = report.blocks_dropped_expired;
  dict["blocks_dropped_corrupt"] = report.blocks_dropped_corrupt;
  dict["blocks_dropped_dead_scope"] = report.blocks_dropped_dead_scope;
  dict["pages_bad"] = report.pages_bad;
  dict["tombstones"] = report.tombstones;
  dict["notes"] = report.notes;
  return dict;
}

nb::dict facts_of(const Facts& facts) {
  nb::dict dict;
  dict["listening"] = facts.listening;
  dict["backing"] = backing_of(facts.backing);
  dict["engine"] = engine_of(facts.engine);
  dict["arena"] = arena_of(facts.arena);
  dict["geometry"] = geometry_of(facts.geometry);
  dict["recovery"] = recovery_of(facts.recovery);
  dict["congestion_control"] = facts.congestion_control;
  dict["index_bytes"] = facts.index_bytes;
  dict["store_uuid"] = bytes_of(facts.store_uuid);
  dict["boot_id"] = bytes_of(facts.boot_id);
  dict["created"] = facts.created;
  return dict;
}

nb::list samples_of(const std::vector<Sample>& samples) {
  nb::list out;
  for (const Sample& sample : samples) {
    nb::dict labels;
    for (const auto& [label, value] : sample.labels) labels[label] = value;
    out.append(nb::make_tuple(sample.name, labels, sample.value));
  }
  return out;
}

nb::dict metrics_of(const Metrics& metrics) {
  nb::list latencies;
  for (const halfstep::shard::Histogram& histogram : metrics.latencies) {
    nb::dict entry;
    entry["command"] = histogram.command;
    entry["counts"] = histogram.counts;
    entry["sum_us"] = histogram.sum_us;
    latencies.append(entry);
  }
  nb::dict dict;
  dict["counters"] = samples_of(metrics.counters);
  dict["gauges"] = samples_of(metrics.gauges);
  dict["latency_bounds_us"] = metrics.latency_bounds_us;
  dict["latencies"] = latencies;
  return dict;
}

nb::dict build_info() {
  nb::dict dict;
  dict["version"] = std::string(halfstep::kVersion);
  dict["build"] = std::string(halfstep::kBuildType);
  dict["commit"] = std::string(halfstep::kCommit);
  return dict;
}

class Core {
 public:
  Core(const std::string& store_path, uint64_t store_bytes, uint64_t segment_bytes, uint64_t arena_bytes, bool huge_pages,
       bool allow_buffered, const std::string& engine, uint32_t queue_depth, uint32_t pread_threads,
       const std::vector<std::string>& listen, bool insecure_listen, uint32_t connections_max, uint64_t connection_credit_bytes,
       uint64_t lease_ms_max, const nb::object& progress) {
    Config config;
    config.store_path = store_path;
    config.store_bytes = store_bytes;
    config.segment_bytes = segment_bytes;
    config.arena_bytes = arena_bytes;
    config.huge_pages = huge_pages;
    config.allow_buffered = allow_buffered;
    config.engine.choice = engine_named(engine);
    config.engine.queue_depth = queue_depth;
    config.engine.pread_threads = pread_threads;
    config.listen = listen;
    config.insecure_listen = insecure_listen;
    config.connections_max = connections_max;
    config.connection_credit_bytes = connection_credit_bytes;
    config.store.lease_ms_max = lease_ms_max;
    Progress reports(progress);
    if (!progress.is_none()) {
      config.progress = [&reports](const char* step, uint64_t done, uint64_t total) { return reports(step, done, total); };
    }
    Fault fault;
    {
      const nb::gil_scoped_release unlocked;
      fault = Server::start(config, &server_);
    }
    reports.raise_again();
    if (!fault.ok()) throw StartError(std::string(halfstep::code_name(fault.status.code())), fault.what);
  }
  ~Core() {
    const nb::gil_scoped_release unlocked;
    server_.reset();
  }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  nb::dict facts() const { return facts_of(server_->facts()); }
  nb::dict metrics() const {
    Metrics metrics;
    {
      const nb::gil_scoped_release unlocked;
      metrics = server_->metrics();
    }
    return metrics_of(metrics);
  }
  bool stop(uint32_t grace_ms) {
    const nb::gil_scoped_release unlocked;
    return server_->stop(grace_ms).ok();
  }
  bool running() const { return server_->running(nullptr); }
  std::string why_stopped() const {
    std::string why;
    return server_->running(&why) ? std::string() : why;
  }

 private:
  std::unique_ptr<Server> server_;
};

}  // namespace

NB_MODULE(_shard, m) {
  m.doc() = "The core of halfstepd. Use halfstep.daemon.";

  // A process that ends without stop() has not leaked anything that its end does not release.
  nb::set_leak_warnings(false);

  halfstep::bind::add_error<StartError>(m, "StartError", "halfstep._shard.StartError",
                                        "A server that could not start: (name of the code, sentence).");

  nb::class_<Core>(m, "Server", "A running server: one store, its shards' threads, their listeners.")
      .def(nb::init<const std::string&, uint64_t, uint64_t, uint64_t, bool, bool, const std::string&, uint32_t, uint32_t,
                    const std::vector<std::string>&, bool, uint32_t, uint64_t, uint64_t, const nb::object&>(),
           nb::kw_only(), "store_path"_a, "store_bytes"_a = 0, "segment_bytes"_a = 0, "arena_bytes"_a = Config().arena_bytes,
           "huge_pages"_a = true, "allow_buffered"_a = true, "engine"_a = "auto", "queue_depth"_a = Config().engine.queue_depth,
           "pread_threads"_a = Config().engine.pread_threads, "listen"_a, "insecure_listen"_a = false,
           "connections_max"_a = Config().connections_max, "connection_credit_bytes"_a = Config().connection_credit_bytes,
           "lease_ms_max"_a = Config().store.lease_ms_max, "progress"_a = nb::none(),
           "Open the store, or make it when it is missing and store_bytes is not 0, recover, listen. Raises StartError.\n\n"
           "progress(step, done, total) is called now and then; a false answer stops and leaves nothing behind.")
      .def("facts", &Core::facts, nb::sig("def facts(self) -> dict[str, typing.Any]"),
           "What is really in force, as it was found at the start.")
      .def("metrics", &Core::metrics, nb::sig("def metrics(self) -> dict[str, typing.Any]"),
           "counters and gauges as (name, labels, value); latency_bounds_us; latencies as command, counts, sum_us.")
      .def("stop", &Core::stop, "grace_ms"_a,
           "End: what runs gets so long, then everything is sealed and flushed. False if the last flush failed. Idempotent.")
      .def("running", &Core::running)
      .def("why_stopped", &Core::why_stopped, "Empty while it runs.");
  halfstep::bind::add_fsck(m);
  m.def("build_info", &build_info, nb::sig("def build_info() -> dict[str, str]"),
        "Version, kind of build and commit of the native half.");
}
