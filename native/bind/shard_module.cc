// shard_module.cc — halfstep._shard: a daemon's core for Python. halfstep.daemon is the face for people.
// The interpreter's lock is not held while a store is opened, while a shard is asked or while it stops; the shards' threads
// never take it. `progress` is called on the thread that constructs the Server.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <bit>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/build_info.h"
#include "bind/errors.h"
#include "bind/interpreter.h"
#include "bind/os_text.h"
#include "bind/shard_calls.h"
#include "bind/shard_devices.h"
#include "bind/shard_fsck.h"
#include "bind/shard_sizing.h"
#include "io/place.h"
#include "mount/mount_server.h"
#include "shard/server.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

using halfstep::Code;
using halfstep::Fault;
using halfstep::bind::backing_of;
using halfstep::bind::os_text;
using halfstep::bind::os_texts;
using halfstep::bind::OsText;
using halfstep::bind::Progress;
using halfstep::bind::StartError;
using halfstep::bind::Unlocked;
using halfstep::shard::Config;
using halfstep::shard::Facts;
using halfstep::shard::Metrics;
using halfstep::shard::Sample;
using halfstep::shard::Server;

constexpr std::pair<const char*, halfstep::io::EngineChoice> kEngines[] = {
    {"auto", halfstep::io::EngineChoice::Auto},
    {"uring", halfstep::io::EngineChoice::Uring},
    {"uring_cmd", halfstep::io::EngineChoice::UringCmd},
    {"pread", halfstep::io::EngineChoice::Pread},
};

constexpr std::pair<const char*, halfstep::shard::ZeroCopy> kZeroCopies[] = {
    {"off", halfstep::shard::ZeroCopy::Off},
    {"auto", halfstep::shard::ZeroCopy::Auto},
    {"always", halfstep::shard::ZeroCopy::Always},
};

const char* zero_copy_of(const Config& config) {
  for (const auto& [name, choice] : kZeroCopies) {
    if (choice == config.zero_copy) return name;
  }
  return "";
}

void set_rdma(Config& config, const std::string& wanted) {
  if (wanted != "auto" && wanted != "off") throw StartError("invalid", "rdma=" + wanted + ": must be auto or off");
  config.rdma.on = wanted == "auto";
}

void set_zero_copy(Config& config, const std::string& wanted) {
  for (const auto& [name, choice] : kZeroCopies) {
    if (name == wanted) {
      config.zero_copy = choice;
      return;
    }
  }
  throw StartError("invalid", "zero_copy=" + wanted + ": must be auto or off, or always, which is for tests");
}

const char* engine_of(const Config& config) {
  for (const auto& [name, choice] : kEngines) {
    if (choice == config.engine.choice) return name;
  }
  return "";
}

void set_engine(Config& config, const std::string& wanted) {
  for (const auto& [name, choice] : kEngines) {
    if (name == wanted) {
      config.engine.choice = choice;
      return;
    }
  }
  throw StartError("invalid", "engine=" + wanted + ": must be auto, uring, uring_cmd or pread");
}

std::vector<OsText> listen_of(const Config& config) {
  std::vector<OsText> addresses;
  for (const std::string& address : config.listen) addresses.push_back({address});
  return addresses;
}

void set_listen(Config& config, const std::vector<OsText>& addresses) {
  config.listen.clear();
  for (const OsText& address : addresses) config.listen.push_back(address.bytes);
}

// A field of a part of the configuration, as an attribute of the whole.
template <auto kPart, auto kField>
void add_field(nb::class_<Config>& type, const char* name) {
  using Value = std::remove_cvref_t<decltype(std::declval<Config&>().*kPart.*kField)>;
  type.def_prop_rw(
      name, [](const Config& config) { return config.*kPart.*kField; },
      [](Config& config, const Value& value) { config.*kPart.*kField = value; });
}

// Of the daemon behind a mount.
void add_mount_options(nb::module_& m) {
  using Mount = halfstep::mount::Options;
  nb::class_<Mount>(m, "MountOptions", "The daemon behind a mount, and how what it has is served. Server checks it.")
      .def(nb::init<>())
      .def_prop_rw(
          "upstream", [](const Mount& mount) { return OsText{mount.upstream}; },
          [](Mount& mount, const OsText& address) { mount.upstream = address.bytes; }, "host:port, or unix:/path.")
      .def_rw("namespaces", &Mount::namespaces, "For whose clients it speaks.")
      .def_rw("max_age_us", &Mount::max_age_us, "How long a block is served without asking the upstream again.")
      .def_rw("connections", &Mount::connections, "To each shard of the upstream, for each namespace.")
      .def_rw("upstream_deadline_us", &Mount::upstream_deadline_us, "Of a fetch, a put and a delete.");
}

void add_config(nb::module_& m) {
  nb::class_<Config> type(m, "Config", "What a server is told. What is not set keeps its default; Server checks it.");
  type.def(nb::init<>())
      .def_prop_rw(
          "store_path", [](const Config& config) { return OsText{config.store_path}; },
          [](Config& config, const OsText& path) { config.store_path = path.bytes; })
      .def_rw("store_bytes", &Config::store_bytes, "Of a store that has to be made; 0: it must be there.")
      .def_rw("segment_bytes", &Config::segment_bytes, "0: chosen by size.")
      .def_rw("shards", &Config::shards, "Of a store that has to be made; 0: as many as it has, 1 for a new one.")
      .def_rw("cores", &Config::cores,
              "Shard n runs on core n of the list, which is gone round; empty: where the kernel likes.")
      .def_rw("arena_bytes", &Config::arena_bytes, "Of all shards together.")
      .def_rw("huge_pages", &Config::huge_pages)
      .def_rw("allow_buffered", &Config::allow_buffered)
      .def_prop_rw("engine", &engine_of, &set_engine, "auto, uring, uring_cmd or pread.")
      .def_prop_rw("listen", &listen_of, &set_listen)
      .def_rw("insecure_listen", &Config::insecure_listen)
      .def_rw("shm_ring_bytes", &Config::shm_ring_bytes, "Each way, of a client over shared memory.")
      .def_rw("shm_memory_bytes", &Config::shm_memory_bytes, "Of all clients over shared memory; beyond it one gets a stream.")
      .def_rw("decode_bytes", &Config::decode_bytes, "For blocks decoded for clients without their codec; 0: none are.")
      .def_rw("latency_goal_us", &Config::latency_goal_us, "Of a get's read from the device; 0: nothing gives way to them.")
      .def_prop_rw("zero_copy", &zero_copy_of, &set_zero_copy, "Sending without a copy: auto, off, or always, for tests.")
      .def_prop_rw(
          "rdma", [](const Config& config) { return std::string(config.rdma.on ? "auto" : "off"); }, &set_rdma,
          "Rings over RDMA, for clients that offer them: auto or off.")
      .def_prop_rw(
          "rdma_memory_bytes", [](const Config& config) { return config.rdma.pinned_bytes_max; },
          [](Config& config, uint64_t bytes) { config.rdma.pinned_bytes_max = bytes; }, "For those rings, of all connections.")
      .def_rw("connections_max", &Config::connections_max)
      .def_rw("connection_credit_bytes", &Config::connection_credit_bytes)
      .def_rw("get_credit_bytes_max", &Config::get_credit_bytes_max);
  // The node of a shard's core, or shard n's is node n of the list, which is gone round; neither: none is preferred.
  add_field<&Config::memory, &halfstep::shard::MemoryConfig::automatic>(type, "numa_auto");
  add_field<&Config::memory, &halfstep::shard::MemoryConfig::nodes>(type, "numa_nodes");
  add_field<&Config::engine, &halfstep::io::EngineConfig::queue_depth>(type, "queue_depth");
  add_field<&Config::engine, &halfstep::io::EngineConfig::pread_threads>(type, "pread_threads");
  add_field<&Config::engine, &halfstep::io::EngineConfig::polled>(type, "polled");
  add_field<&Config::store, &halfstep::store::Options::lease_ms_max>(type, "lease_ms_max");
  add_field<&Config::store, &halfstep::store::Options::index_bytes>(type, "index_bytes");
  add_field<&Config::store, &halfstep::store::Options::policy>(type, "policy");
  add_field<&Config::store, &halfstep::store::Options::rewrite_share>(type, "rewrite_share");
  add_field<&Config::store, &halfstep::store::Options::rewrite_bytes_per_day>(type, "rewrite_bytes_per_day");
  add_field<&Config::store, &halfstep::store::Options::discard_bytes_per_s>(type, "discard_bytes_per_s");
  add_field<&Config::store, &halfstep::store::Options::scrub_bytes_per_s>(type, "scrub_bytes_per_s");
}

template <size_t N>
nb::bytes bytes_of(const std::array<std::byte, N>& field) {
  return nb::bytes(reinterpret_cast<const char*>(field.data()), N);
}

nb::dict engine_of(const halfstep::io::EngineFacts& facts) {
  nb::dict dict;
  dict["name"] = facts.name;
  dict["why_fallback"] = os_text(facts.why_fallback);
  dict["registered_buffers"] = facts.registered_buffers;
  dict["registered_files"] = facts.registered_files;
  dict["why_unregistered"] = os_text(facts.why_unregistered);
  dict["ring_features"] = facts.ring_features;
  dict["queue_depth"] = facts.queue_depth;
  dict["discard"] = facts.discard;
  dict["why_no_discard"] = os_text(facts.why_no_discard);
  dict["command_bytes_max"] = facts.command_bytes_max;
  dict["placements"] = facts.placements;
  dict["why_no_placements"] = os_text(facts.why_no_placements);
  dict["polled"] = facts.polled;
  return dict;
}

nb::dict arena_of(const halfstep::Arena::Facts& facts) {
  nb::dict dict;
  dict["bytes"] = facts.bytes;
  dict["large_bytes"] = facts.large_bytes;
  dict["reserved"] = facts.reserved;
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
  dict["first_answer_micros"] = report.first_answer_micros;
  dict["segments_left"] = report.segments_left;
  dict["segments_by_footer"] = report.segments_by_footer;
  dict["segments_by_frames"] = report.segments_by_frames;
  dict["segments_empty"] = report.segments_empty;
  dict["segments_bad"] = report.segments_bad;
  dict["segments_read_again"] = report.segments_read_again;
  dict["segments_unread"] = report.segments_unread;
  dict["blocks_unread"] = report.blocks_unread;
  dict["blocks_dropped_deleted"] = report.blocks_dropped_deleted;
  dict["blocks_dropped_expired"] = report.blocks_dropped_expired;
  dict["blocks_dropped_corrupt"] = report.blocks_dropped_corrupt;
  dict["blocks_dropped_dead_scope"] = report.blocks_dropped_dead_scope;
  dict["blocks_dropped_index_full"] = report.blocks_dropped_index_full;
  dict["pages_bad"] = report.pages_bad;
  dict["tombstones"] = report.tombstones;
  dict["notes"] = os_texts(report.notes);
  return dict;
}

nb::dict eviction_of(const halfstep::store::Options& options) {
  nb::dict dict;
  dict["policy"] = options.policy;
  dict["rewrite_share"] = options.rewrite_share;
  dict["rewrite_bytes_per_day"] = options.rewrite_bytes_per_day;
  dict["discard_bytes_per_s"] = options.discard_bytes_per_s;
  return dict;
}

nb::dict pages_of(const halfstep::numa::Pages& pages) {
  nb::dict by_node;
  for (const auto& [node, count] : pages.by_node) by_node[nb::int_(node)] = count;
  nb::dict dict;
  dict["by_node"] = by_node;
  dict["absent"] = pages.absent;
  return dict;
}

nb::dict memory_of(const halfstep::shard::MemoryFacts& facts) {
  nb::dict dict;
  dict["node"] = facts.node < 0 ? nb::object(nb::none()) : nb::object(nb::int_(facts.node));
  dict["why_no_node"] = facts.why_no_node;
  dict["arena"] = pages_of(facts.arena);
  dict["index"] = pages_of(facts.index);
  dict["why_no_pages"] = facts.why_no_pages;
  return dict;
}

nb::dict facts_of(const Facts& facts) {
  nb::dict dict;
  nb::list shards;
  for (const halfstep::shard::ShardFacts& shard : facts.shards) {
    nb::dict one;
    one["listening"] = os_texts(shard.listening);
    one["engine"] = engine_of(shard.engine);
    one["recovery"] = recovery_of(shard.recovery);
    one["core"] = shard.core < 0 ? nb::object(nb::none()) : nb::object(nb::int_(shard.core));
    one["memory"] = memory_of(shard.memory);
    shards.append(one);
  }
  dict["shards"] = shards;
  dict["listening"] = os_texts(facts.listening);
  dict["backing"] = backing_of(facts.backing);
  dict["engine"] = engine_of(facts.engine);
  dict["arena"] = arena_of(facts.arena);
  dict["geometry"] = geometry_of(facts.geometry);
  dict["recovery"] = recovery_of(facts.recovery);
  dict["eviction"] = eviction_of(facts.store);
  dict["congestion_control"] = facts.congestion_control;
  dict["zero_copy"] = facts.zero_copy;
  dict["zero_copy_possible"] = facts.zero_copy_possible;
  dict["index_bytes"] = facts.index_bytes;
  dict["scrub_bytes_per_s"] = facts.scrub_bytes_per_s;
  dict["latency_goal_us"] = facts.latency_goal_us;
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

// The border is crossed once for a page of events.
nb::dict events_of(const halfstep::shard::PolledEvents& polled) {
  nb::list events;
  for (const auto& [event, engine_key, scope] : polled.events) {
    nb::dict one;
    one["number"] = event.number;
    one["time_s"] = event.time_s;
    one["kind"] = halfstep::store::event_kind_name(event.kind());
    one["reason"] = halfstep::store::event_reason_name(event.reason);
    one["namespace"] = scope.name_space;
    one["layout_id"] = bytes_of(scope.layout);
    if (event.kind() == halfstep::store::EventKind::Unnamed) {
      one["blocks"] = event.blocks();
    } else if (event.kind() != halfstep::store::EventKind::Cleared) {
      one["component"] = event.component;
      one["block_bytes"] = event.block_bytes;
      one["key"] = engine_key.empty() ? nb::object(nb::none()) : nb::bytes(engine_key.data(), engine_key.size());
      one["index_key"] = bytes_of(std::bit_cast<std::array<std::byte, 16>>(event.key));
    }
    if (event.kind() == halfstep::store::EventKind::Stored) {
      const bool known = event.parent_kind == halfstep::store::Parent::Known;
      one["parent"] = known ? nb::object(bytes_of(std::bit_cast<std::array<std::byte, 8>>(event.parent))) : nb::none();
      one["root"] = event.parent_kind == halfstep::store::Parent::Root;
    }
    events.append(one);
  }
  nb::dict dict;
  dict["events"] = events;
  dict["last"] = polled.polled.last;
  dict["lost"] = polled.polled.lost;
  dict["foreign"] = polled.polled.foreign;
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
  Core(Config config, const nb::object& progress, const halfstep::mount::Options* mount) {
    Progress reports(progress);
    if (!progress.is_none()) {
      config.progress = [&reports](const char* step, uint64_t done, uint64_t total) { return reports(step, done, total); };
    }
    Fault fault;
    {
      const Unlocked unlocked;
      fault = mount != nullptr ? halfstep::mount::start(config, *mount, &server_) : Server::start(config, &server_);
    }
    reports.raise_again();
    if (!fault.ok()) throw StartError(std::string(halfstep::code_name(fault.status.code())), fault.what);
  }
  ~Core() {
    const Unlocked unlocked;
    server_.reset();
  }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  nb::dict facts() const { return facts_of(server_->facts()); }
  nb::dict metrics() const {
    Metrics metrics;
    {
      const Unlocked unlocked;
      metrics = server_->metrics();
    }
    return metrics_of(metrics);
  }
  nb::dict poll_events(uint64_t after, uint32_t limit, uint32_t shard) const {
    halfstep::shard::PolledEvents polled;
    {
      const Unlocked unlocked;
      polled = server_->poll_events(after, limit, shard);
    }
    return events_of(polled);
  }
  bool stop(uint32_t grace_ms) {
    const Unlocked unlocked;
    return server_->stop(grace_ms).ok();
  }
  bool running() const { return server_->running(nullptr); }
  OsText why_stopped() const {
    std::string why;
    return {server_->running(&why) ? std::string() : why};
  }
  OsText why_device_refused() const { return {server_->why_device_refused()}; }

 private:
  std::unique_ptr<Server> server_;
};

void look_at_place(const nb::bytes& path) {
  bool there = false;
  const Fault fault = halfstep::io::look_at_place({path.c_str(), path.size()}, &there);
  if (!fault.ok()) throw StartError(std::string(halfstep::code_name(fault.status.code())), fault.what);
}

}  // namespace

NB_MODULE(_shard, m) {
  m.doc() = "The core of halfstepd. Use halfstep.daemon.";

  // A process that ends without stop() has not leaked anything that its end does not release.
  nb::set_leak_warnings(false);

  halfstep::bind::add_error<StartError>(m, "StartError", "halfstep._shard.StartError",
                                        "A server that could not start: (name of the code, sentence).");

  m.def("look_at_place", &look_at_place, "path"_a,
        "Whether a store is at this path, as bytes, or may be made there. Raises StartError: a broken link, a mount that is\n"
        "missing, a device that is not there. Makes nothing.");
  add_config(m);
  halfstep::bind::add_devices(m);
  add_mount_options(m);
  m.attr("SCRUB_AUTO") = halfstep::store::kScrubAuto;
  nb::class_<Core>(m, "Server", "A running server: one store, its shards' threads, their listeners.")
      .def(nb::init<Config, const nb::object&, const halfstep::mount::Options*>(), "config"_a, "progress"_a = nb::none(),
           "mount"_a.none() = nb::none(),
           "Open the store, or make it when it is missing and store_bytes is not 0, recover, listen. Raises StartError.\n\n"
           "progress(step, done, total) is called now and then; a false answer stops and leaves nothing behind.\n"
           "mount: serve what this daemon has, with the arena as memory for it, instead of a store.")
      .def("facts", &Core::facts, nb::sig("def facts(self) -> dict[str, typing.Any]"),
           "What is really in force, as it was found at the start.")
      .def("metrics", &Core::metrics, nb::sig("def metrics(self) -> dict[str, typing.Any]"),
           "Of all shards together: counters and gauges as (name, labels, value); latency_bounds_us; latencies as command, "
           "counts, sum_us.")
      .def("poll_events", &Core::poll_events, "after"_a, "limit"_a = 1000, "shard"_a = 0,
           nb::sig("def poll_events(self, after: int, limit: int = 1000, shard: int = 0) -> dict[str, typing.Any]"),
           "What came and went in one shard after its event number `after` (0: from the oldest remembered on), at most\n"
           "`limit` events.\n\n"
           "last: what to pass next time. lost: events in between that nobody can tell of any more. foreign: `after` is of\n"
           "another start. events: number, time_s, kind, reason, namespace, layout_id; component, block_bytes, key (None:\n"
           "forgotten), index_key; of stored ones parent (the last 8 bytes of its key, or None) and root; of unnamed ones "
           "blocks.")
      .def("stop", &Core::stop, "grace_ms"_a,
           "End: what runs gets so long, then everything is sealed and flushed. False if some of it\n"
           "could not be written; why_stopped() says what. Idempotent.")
      .def("running", &Core::running)
      .def("why_stopped", &Core::why_stopped, "Empty while it runs.")
      .def("why_device_refused", &Core::why_device_refused,
           "Of a device that went and is back: why it is not used, and the remedy. Empty: it is, or is away.");
  halfstep::bind::add_fsck(m);
  halfstep::bind::add_sizing(m);
  m.def("build_info", &build_info, nb::sig("def build_info() -> dict[str, str]"),
        "Version, kind of build and commit of the native half.");
}
