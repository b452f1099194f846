#include "bind/shard_devices.h"

#include <nanobind/stl/string.h>

#include <memory>
#include <string>

#include "base/arena.h"
#include "bind/interpreter.h"
#include "bind/os_text.h"
#include "bind/shard_calls.h"
#include "io/backing.h"
#include "io/engine.h"
#include "shard/config.h"
#include "shard/make_store.h"

namespace halfstep::bind {
namespace {

using nb::literals::operator""_a;

void require_opened(const Fault& fault) {
  if (!fault.ok()) throw StartError(std::string(code_name(fault.status.code())), fault.what);
}

// What is read lies nowhere; an engine only wants an arena to be there.
constexpr uint64_t kProbeArenaBytes = 2 * MiB;

nb::dict look_at_backing(const OsText& path) {
  io::BackingFacts backing_facts;
  io::EngineFacts engine_facts;
  {
    const Unlocked unlocked;
    std::unique_ptr<io::Backing> backing;
    require_opened(io::Backing::open({.path = path.bytes, .read_only = true}, &backing));
    backing_facts = backing->facts();
    std::unique_ptr<Arena> arena;
    require_opened(Arena::create(kProbeArenaBytes, false, &arena));
    std::unique_ptr<io::Engine> engine;
    require_opened(io::open_engine({}, *arena, {backing.get()}, &engine));
    engine_facts = engine->facts();
  }
  nb::dict dict = backing_of(backing_facts);
  dict["engine"] = engine_facts.name;
  dict["why_fallback"] = os_text(engine_facts.why_fallback);
  dict["discard"] = engine_facts.discard;
  return dict;
}

nb::dict make_store(const shard::Config& asked, bool wipe, const nb::object& progress) {
  Progress say(progress);
  shard::Config config = asked;
  if (!progress.is_none()) {
    config.progress = [&](const char* step, uint64_t done, uint64_t total) { return say(step, done, total); };
  }
  shard::MadeStore made;
  Fault fault;
  {
    const Unlocked unlocked;
    fault = shard::make_store(config, wipe, &made);
  }
  say.raise_again();
  require_opened(fault);
  nb::dict dict = backing_of(made.backing);
  dict["segment_bytes"] = made.geometry.segment_bytes;
  dict["segments"] = made.geometry.segments;
  dict["shards"] = made.geometry.shards;
  return dict;
}

}  // namespace

nb::dict backing_of(const io::BackingFacts& facts) {
  nb::dict dict;
  dict["path"] = os_text(facts.path);
  dict["bytes"] = facts.bytes;
  dict["direct"] = facts.direct;
  dict["why_not_direct"] = os_text(facts.why_not_direct);
  dict["direct_align_bytes"] = facts.direct_align_bytes;
  dict["nocow"] = facts.nocow;
  dict["block_device"] = facts.block_device;
  dict["vhost_user"] = facts.vhost_user;
  dict["noop"] = facts.noop;
  dict["nvme_block_path"] = os_text(facts.nvme_block_path);
  dict["why_no_nvme_commands"] = os_text(facts.why_no_nvme_commands);
  dict["submission_waits_for"] = os_text(facts.submission_waits_for);
  dict["discard_granularity_bytes"] = facts.discard.granularity_bytes;
  return dict;
}

void add_devices(nb::module_& module) {
  module.def("look_at_backing", &look_at_backing, "path"_a,
             nb::sig("def look_at_backing(path: str | bytes) -> dict[str, typing.Any]"),
             "How a store at a path would be reached; opens it for reading, with a lock, and closes it. Raises StartError:\n"
             "nothing is there, somebody has it, it cannot be opened.");
  module.def("make_store", &make_store, "config"_a, nb::kw_only(), "wipe"_a = false, "progress"_a = nb::none(),
             nb::sig("def make_store(config: Config, *, wipe: bool = False, progress: object | None = None) -> "
                     "dict[str, typing.Any]"),
             "Makes a store ahead of its first daemon; wipe: in place of what is there. Raises StartError.\n\n"
             "progress(step, done, total) is called now and then; a false answer stops.");
}

}  // namespace halfstep::bind
