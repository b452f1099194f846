#include "bind/shard_fsck.h"

#include <nanobind/stl/string.h>

#include <memory>
#include <string>

#include "base/arena.h"
#include "bind/interpreter.h"
#include "bind/os_text.h"
#include "bind/shard_calls.h"
#include "io/backing.h"
#include "store/recover/fsck.h"

namespace halfstep::bind {
namespace {

using nb::literals::operator""_a;

// What is read lies in memory of the checker's own; the engine only wants an arena to be there.
constexpr uint64_t kArenaBytes = 2 * MiB;

void require_ok(const Fault& fault) {
  if (!fault.ok()) throw StartError(std::string(code_name(fault.status.code())), fault.what);
}

nb::dict header_of(const store::FsckReport& report) {
  nb::dict dict;
  dict["uuid"] = nb::bytes(reinterpret_cast<const char*>(report.header.store_uuid.data()), report.header.store_uuid.size());
  dict["version"] = report.header.version;
  dict["start_number"] = report.header.start_number;
  dict["clean_stop"] = report.clean_stop;
  dict["owner"] = os_text(store::owner_text(report.header));
  dict["device_bytes"] = report.header.device_bytes;
  dict["segment_bytes"] = report.header.segment_bytes;
  dict["shards"] = report.header.shards;
  dict["layouts"] = report.layouts;
  dict["scopes"] = report.scopes;
  nb::list namespaces;
  for (const store::NamespaceInfo& info : report.namespaces) namespaces.append(info.name);
  dict["namespaces"] = namespaces;
  return dict;
}

nb::dict blocks_of(const store::FsckReport& report) {
  nb::dict dict;
  dict["live"] = report.blocks_live;
  dict["bytes_live"] = report.bytes_live;
  dict["superseded"] = report.superseded;
  dict["deleted"] = report.deleted + report.gone;
  dict["expired"] = report.expired;
  dict["dead_scope"] = report.dead_scope;
  dict["unreadable"] = report.unreadable_entries;
  dict["payloads_checked"] = report.payloads_checked;
  dict["payload_bytes"] = report.payload_bytes;
  dict["payloads_bad"] = report.payloads_bad;
  return dict;
}

nb::dict segment_of(const store::FsckSegment& segment) {
  nb::dict dict;
  dict["shard"] = segment.shard;
  dict["number"] = segment.number;
  dict["state"] = store::fsck_state_name(segment.state);
  dict["generation"] = segment.generation;
  dict["frames"] = segment.frames;
  dict["bytes_used"] = uint64_t{segment.pages_used} * kPageBytes;
  dict["entries"] = segment.entries;
  dict["blocks_live"] = segment.blocks_live;
  dict["bytes_live"] = segment.bytes_live;
  dict["pages_bad"] = segment.pages_bad;
  dict["blocks_bad"] = segment.blocks_bad;
  return dict;
}

nb::dict fsck(const OsText& store, bool payloads, const nb::object& progress) {
  const std::string& path = store.bytes;
  Progress say(progress);
  store::FsckOptions options;
  options.payloads = payloads;
  if (!progress.is_none()) options.progress = [&](uint64_t done, uint64_t total) { return say("checking", done, total); };
  store::FsckReport report;
  io::BackingFacts backing_facts;
  {
    const Unlocked unlocked;
    std::unique_ptr<io::Backing> backing;
    require_ok(io::Backing::open_patiently({.path = path, .read_only = true}, &backing));
    backing_facts = backing->facts();
    std::unique_ptr<Arena> arena;
    require_ok(Arena::create(kArenaBytes, false, &arena));
    std::unique_ptr<io::Engine> engine;
    require_ok(io::open_engine({}, *arena, {backing.get()}, &engine));
    const SystemClock clock;
    require_ok(store::fsck(*engine, clock, options, &report));
  }
  say.raise_again();

  nb::dict dict;
  dict["path"] = os_text(path);
  dict["bytes"] = backing_facts.bytes;
  dict["direct"] = backing_facts.direct;
  dict["complete"] = report.complete;
  dict["header"] = header_of(report);
  dict["log_pages_bad"] = report.log_pages_bad;
  dict["tombstones"] = report.tombstones;
  dict["blocks"] = blocks_of(report);
  nb::list segments;
  for (const store::FsckSegment& segment : report.segments) segments.append(segment_of(segment));
  dict["segments"] = segments;
  nb::list findings;
  for (const store::FsckFinding& finding : report.findings) {
    nb::dict one;
    one["kind"] = store::fsck_kind_name(finding.kind);
    one["where"] = os_text(finding.where);
    one["what"] = os_text(finding.what);
    findings.append(one);
  }
  dict["findings"] = findings;
  return dict;
}

}  // namespace

void add_fsck(nb::module_& module) {
  module.def(
      "fsck", &fsck, "path"_a, nb::kw_only(), "payloads"_a = true, "progress"_a = nb::none(),
      nb::sig("def fsck(path: str | bytes, *, payloads: bool = True, progress: object | None = None) -> dict[str, typing.Any]"),
      "Look over a store that no daemon serves, writing nothing. Raises StartError: locked, not a store, a newer format.\n\n"
      "progress(step, done, total) is called now and then; a false answer stops: complete is False then.");
}

}  // namespace halfstep::bind
