#include "shard/metrics.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "compress/codec.h"
#include "io/scheduler.h"
#include "store/account/events.h"
#include "wire/names.h"
#include "wire/prefetch_kind.h"

namespace halfstep::shard {
namespace {

using wire::Answer;
using wire::Opcode;
using wire::Reason;

Answer answer_of(Reason reason) noexcept {
  const auto number = static_cast<uint16_t>(reason);
  if (number < static_cast<uint16_t>(Reason::Absent)) return Answer::Ok;
  if (number < static_cast<uint16_t>(Reason::Pending)) return Answer::Miss;
  if (number < static_cast<uint16_t>(Reason::Checksum)) return Answer::Throttled;
  if (number < static_cast<uint16_t>(Reason::Stopping)) return Answer::Rejected;
  return Answer::Unavailable;
}

void add(std::vector<Sample>& to, const char* name, uint64_t value) { to.push_back({name, {}, static_cast<double>(value)}); }

void add(std::vector<Sample>& to, const char* name, const char* label, const char* label_value, uint64_t value) {
  to.push_back({name, {{label, label_value}}, static_cast<double>(value)});
}

// Shards do these at the same time: the total is that of the last one. src/halfstep/client/entries.py knows them, too.
bool of_the_worst_shard(std::string_view name) noexcept {
  constexpr std::string_view kNames[] = {"halfstep_recovery_us",
                                         "halfstep_recovery_first_answer_us",
                                         "halfstep_store_scrub_age_seconds",
                                         "halfstep_store_age_limit_capacities",
                                         "halfstep_store_clock_ahead_seconds",
                                         "halfstep_store_discards_on",
                                         "halfstep_store_writes_out",
                                         "halfstep_zero_copy_on",
                                         "halfstep_coding_known",
                                         "halfstep_rdma_pinned_bytes"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

void collect_store(const store::Counters& c, const store::Gauges& g, Metrics* out) {
  auto& counters = out->counters;
  add(counters, "halfstep_store_hits_total", "from", "memory", c.hits_memory);
  add(counters, "halfstep_store_hits_total", "from", "flash", c.hits_flash);
  add(counters, "halfstep_store_part_reads_total", "outcome", "alone", c.part_reads);
  add(counters, "halfstep_store_part_reads_total", "outcome", "whole_block", c.part_reads_failed);
  add(counters, "halfstep_store_early_reads_total", "outcome", "verified", c.early_reads);
  add(counters, "halfstep_store_early_reads_total", "outcome", "read_again", c.early_reads_failed);
  add(counters, "halfstep_store_misses_total", "reason", "absent", c.misses_absent);
  add(counters, "halfstep_store_misses_total", "reason", "corrupt", c.misses_corrupt);
  add(counters, "halfstep_store_misses_total", "reason", "collision", c.misses_collision);
  add(counters, "halfstep_store_misses_total", "reason", "expired", c.misses_expired);
  add(counters, "halfstep_store_misses_total", "reason", "io", c.misses_io);
  add(counters, "halfstep_store_misses_total", "reason", "memory", c.misses_memory);
  add(counters, "halfstep_store_writes_total", "outcome", "committed", c.writes_committed);
  add(counters, "halfstep_store_writes_total", "outcome", "aborted", c.writes_aborted);
  add(counters, "halfstep_store_writes_total", "outcome", "present", c.writes_present);
  add(counters, "halfstep_store_writes_total", "outcome", "throttled", c.writes_throttled);
  add(counters, "halfstep_store_writes_total", "outcome", "failed", c.writes_failed);
  add(counters, "halfstep_store_writes_total", "outcome", "refused", c.writes_refused);
  add(counters, "halfstep_store_bytes_written_total", "of", "user", c.bytes_user);
  add(counters, "halfstep_store_bytes_written_total", "of", "padding", c.bytes_padding);
  add(counters, "halfstep_store_bytes_written_total", "of", "metadata", c.bytes_metadata);
  add(counters, "halfstep_store_bytes_written_total", "of", "rewritten", c.bytes_rewritten);
  add(counters, "halfstep_store_bytes_written_total", "of", "repeated", c.bytes_repeated);
  add(counters, "halfstep_store_frames_repeated_total", c.frames_repeated);
  add(counters, "halfstep_store_removes_total", c.removes);
  add(counters, "halfstep_store_blocks_evicted_total", "reason", "age", c.blocks_evicted_age);
  add(counters, "halfstep_store_blocks_evicted_total", "reason", "expired", c.blocks_evicted_expired);
  add(counters, "halfstep_store_blocks_evicted_total", "reason", "dead_scope", c.blocks_evicted_dead_scope);
  add(counters, "halfstep_store_blocks_evicted_total", "reason", "quota", c.blocks_evicted_quota);
  add(counters, "halfstep_store_blocks_evicted_total", "reason", "deleted", c.blocks_evicted_deleted);
  add(counters, "halfstep_store_blocks_evicted_total", "reason", "unreadable", c.blocks_evicted_unreadable);
  add(counters, "halfstep_store_blocks_rewritten_total", c.blocks_rewritten);
  add(counters, "halfstep_store_staged_blocks_total", c.staged);
  add(counters, "halfstep_store_staged_bytes_total", c.staged_bytes);
  add(counters, "halfstep_store_staged_ended_total", "as", "used", c.staged_used);
  add(counters, "halfstep_store_staged_ended_total", "as", "late", c.staged_late);
  add(counters, "halfstep_store_staged_ended_total", "as", "unused", c.staged_unused);
  for (size_t kind = 0; kind < wire::kPrefetchKinds; ++kind) {
    const store::Counters::StagedOfKind& of = c.staged_kinds[kind];
    const auto add_as = [&](const char* as, uint64_t bytes) {
      const char* name = wire::kPrefetchKindNames[kind];
      counters.push_back({"halfstep_store_prefetched_bytes_total", {{"kind", name}, {"as", as}}, static_cast<double>(bytes)});
    };
    add_as("brought", of.bytes);
    add_as("used", of.used_bytes);
    add_as("late", of.late_bytes);
    add_as("unused", of.unused_bytes);
  }
  add(counters, "halfstep_store_touches_total", c.touches);
  add(counters, "halfstep_store_touch_pages_total", c.touch_pages);
  add(counters, "halfstep_store_segments_reclaimed_total", c.segments_reclaimed);
  add(counters, "halfstep_store_segments_sealed_total", c.segments_sealed);
  add(counters, "halfstep_store_segments_bad_total", c.segments_bad);
  add(counters, "halfstep_store_segments_tried_again_total", c.segments_tried_again);
  add(counters, "halfstep_store_blocks_given_up_total", c.blocks_given_up);
  add(counters, "halfstep_store_discards_total", "outcome", "done", c.segments_discarded);
  add(counters, "halfstep_store_discards_total", "outcome", "skipped", c.discards_skipped);
  add(counters, "halfstep_store_discards_total", "outcome", "failed", c.discards_failed);
  add(counters, "halfstep_store_discarded_bytes_total", c.bytes_discarded);
  add(counters, "halfstep_store_segments_retired_total", c.segments_retired);
  add(counters, "halfstep_store_scrub_bytes_total", c.scrub_bytes);
  add(counters, "halfstep_store_scrub_blocks_total", "outcome", "good", c.scrub_blocks);
  add(counters, "halfstep_store_scrub_blocks_total", "outcome", "dropped_corrupt", c.scrub_dropped_corrupt);
  add(counters, "halfstep_store_scrub_blocks_total", "outcome", "dropped_io", c.scrub_dropped_io);
  add(counters, "halfstep_store_scrub_pages_bad_total", c.scrub_pages_bad);
  add(counters, "halfstep_store_scrub_unread_total", c.scrub_unread);
  add(counters, "halfstep_store_scrub_passes_total", c.scrub_passes);
  add(counters, "halfstep_store_flushes_total", c.flushes);
  add(counters, "halfstep_store_record_pages_total", c.record_pages);
  add(counters, "halfstep_store_index_full_total", c.index_full);
  add(counters, "halfstep_store_throttled_recovering_total", c.throttled_recovering);
  add(counters, "halfstep_store_holds_total", "outcome", "taken", c.holds_taken);
  add(counters, "halfstep_store_holds_total", "outcome", "refused", c.holds_refused);

  auto& gauges = out->gauges;
  add(gauges, "halfstep_store_blocks", g.blocks);
  add(gauges, "halfstep_store_bytes_live", g.bytes_live);
  add(gauges, "halfstep_store_segments", "state", "free", g.segments_free);
  add(gauges, "halfstep_store_segments", "state", "open", g.segments_open);
  add(gauges, "halfstep_store_segments", "state", "sealed", g.segments_sealed);
  add(gauges, "halfstep_store_segments", "state", "bad", g.segments_bad);
  add(gauges, "halfstep_store_segments_unread", g.segments_unread);
  add(gauges, "halfstep_store_writes_out", g.writes_out ? 1 : 0);
  add(gauges, "halfstep_store_holds", "kind", "lease", g.holds - g.pins);
  add(gauges, "halfstep_store_holds", "kind", "pin", g.pins);
  add(gauges, "halfstep_store_discards_on", g.discards ? 1 : 0);
  add(gauges, "halfstep_store_scrub_bytes_per_second", g.scrub_bytes_per_s);
  add(gauges, "halfstep_store_scrub_age_seconds", g.scrub_age_s);
  gauges.push_back({"halfstep_store_age_limit_capacities", {}, g.age_limit});
  gauges.push_back({"halfstep_store_clock_ahead_seconds", {}, static_cast<double>(g.clock_ahead_s)});
  add(gauges, "halfstep_memory_bytes", "of", "resident", g.memory_resident_bytes);
  add(gauges, "halfstep_memory_bytes", "of", "pinned", g.memory_pinned_bytes);
  add(gauges, "halfstep_memory_bytes", "of", "capacity", g.memory_capacity_bytes);
  add(gauges, "halfstep_memory_bytes", "of", "index", g.index_bytes);
  add(gauges, "halfstep_memory_bytes", "of", "segments", g.catalog_bytes - g.index_bytes);
}

void collect_recovery(const store::RecoveryReport& r, Metrics* out) {
  auto& gauges = out->gauges;
  add(gauges, "halfstep_recovery_blocks", r.blocks);
  add(gauges, "halfstep_recovery_bytes", r.bytes);
  add(gauges, "halfstep_recovery_us", r.micros);
  add(gauges, "halfstep_recovery_first_answer_us", r.first_answer_micros);
  add(gauges, "halfstep_recovery_segments_left", r.segments_left);
  add(gauges, "halfstep_recovery_segments", "found", "footer", r.segments_by_footer);
  add(gauges, "halfstep_recovery_segments", "found", "frames", r.segments_by_frames);
  add(gauges, "halfstep_recovery_segments", "found", "empty", r.segments_empty);
  add(gauges, "halfstep_recovery_segments", "found", "bad", r.segments_bad);
  add(gauges, "halfstep_recovery_segments", "found", "unread", r.segments_unread);
  add(gauges, "halfstep_recovery_segments_read_again", r.segments_read_again);
  add(gauges, "halfstep_recovery_blocks_unread", r.blocks_unread);
  add(gauges, "halfstep_recovery_blocks_dropped", "reason", "deleted", r.blocks_dropped_deleted);
  add(gauges, "halfstep_recovery_blocks_dropped", "reason", "expired", r.blocks_dropped_expired);
  add(gauges, "halfstep_recovery_blocks_dropped", "reason", "corrupt", r.blocks_dropped_corrupt);
  add(gauges, "halfstep_recovery_blocks_dropped", "reason", "dead_scope", r.blocks_dropped_dead_scope);
  add(gauges, "halfstep_recovery_blocks_dropped", "reason", "index_full", r.blocks_dropped_index_full);
  add(gauges, "halfstep_recovery_pages_bad", r.pages_bad);
  add(gauges, "halfstep_recovery_tombstones", r.tombstones);
  add(gauges, "halfstep_recovery_pins", r.pins);
}

void collect_engine(const io::EngineCounters& c, Metrics* out) {
  auto& counters = out->counters;
  add(counters, "halfstep_device_requests_total", "op", "read", c.reads);
  add(counters, "halfstep_device_requests_total", "op", "write", c.writes);
  add(counters, "halfstep_device_requests_total", "op", "flush", c.flushes);
  add(counters, "halfstep_device_requests_total", "op", "discard", c.discards);
  add(counters, "halfstep_device_bytes_total", "op", "read", c.read_bytes);
  add(counters, "halfstep_device_bytes_total", "op", "write", c.write_bytes);
  add(counters, "halfstep_device_bytes_total", "op", "discard", c.discard_bytes);
  add(counters, "halfstep_device_errors_total", c.errors);
  add(counters, "halfstep_device_reads_gathered_total", c.reads_gathered);
  add(counters, "halfstep_device_writes_gathered_total", c.writes_gathered);
  add(counters, "halfstep_device_gathers_refused_total", c.gathers_refused);
  add(counters, "halfstep_device_submissions_total", c.submissions);
  add(counters, "halfstep_device_kicks_total", c.kicks);
  add(counters, "halfstep_device_losses_total", c.losses);
}

constexpr std::array<const char*, io::kIoClasses> kIoClassNames = {"demand", "prefetch", "write", "reclaim", "scrub"};

void collect_scheduler(const io::SchedulerCounters& c, Metrics* out) {
  const auto seconds = [](uint64_t us) { return static_cast<double>(us) / 1e6; };
  auto& counters = out->counters;
  for (size_t at = 0; at < io::kIoClasses; ++at) {
    const io::ClassCounters& of = c.classes[at];
    const char* name = kIoClassNames[at];
    add(counters, "halfstep_device_class_requests_total", "class", name, of.requests);
    add(counters, "halfstep_device_class_bytes_total", "class", name, of.bytes);
    counters.push_back({"halfstep_device_class_queued_seconds_total", {{"class", name}}, seconds(of.queued_us)});
    counters.push_back({"halfstep_device_class_busy_seconds_total", {{"class", name}}, seconds(of.device_us)});
  }
  add(counters, "halfstep_device_gets_read_bytes_total", c.gets_bytes);
  add(counters, "halfstep_device_reads_late_total", c.reads_late);
  add(out->gauges, "halfstep_device_window_bytes", c.window_bytes);
}

}  // namespace

void Counts::collect(const store::Counters& store, const store::Gauges& gauges, const store::RecoveryReport& recovery,
                     const io::Engine& engine, Metrics* out) const {
  *out = {};
  collect_requests(out);
  auto& counters = out->counters;
  for (size_t kind = 0; kind < kProtocolErrors; ++kind) {
    add(counters, "halfstep_protocol_errors_total", "kind", protocol_error_name(static_cast<ProtocolError>(kind)),
        protocol_errors_[kind]);
  }
  add(counters, "halfstep_connections_total", "outcome", "accepted", connections_accepted);
  add(counters, "halfstep_connections_total", "outcome", "refused", connections_refused);
  add(counters, "halfstep_connections_gave_way_total", connections_gave_way);
  add(counters, "halfstep_connections_relieved_total", connections_relieved);
  add(counters, "halfstep_shm_refused_total", rings_refused);
  add(counters, "halfstep_connections_paused_total", connections_unread);
  add(counters, "halfstep_connections_stalled_total", connections_stalled);
  add(counters, "halfstep_put_grants_taken_back_total", grants_taken_back);
  add(counters, "halfstep_network_bytes_total", "direction", "received", bytes_received);
  add(counters, "halfstep_network_bytes_total", "direction", "sent", bytes_sent);
  add(counters, "halfstep_zero_copy_bytes_total", "outcome", "sent", zero_copy.bytes);
  add(counters, "halfstep_zero_copy_bytes_total", "outcome", "copied", zero_copy.copied_bytes);
  add(counters, "halfstep_zero_copy_notifications_total", "outcome", "sent", zero_copy.notifications);
  add(counters, "halfstep_zero_copy_notifications_total", "outcome", "copied", zero_copy.copied_notifications);
  add(counters, "halfstep_zero_copy_refused_total", zero_copy.refused);
  add(counters, "halfstep_zero_copy_given_up_total", zero_copy.given_up);
  add(counters, "halfstep_rdma_bytes_total", "outcome", "sent", rdma.held_bytes);
  add(counters, "halfstep_rdma_bytes_total", "outcome", "copied", rdma.copied_bytes);
  add(counters, "halfstep_rdma_placed_bytes_total", rdma.placed_bytes);
  add(counters, "halfstep_rdma_pulled_bytes_total", rdma.pulled_bytes);
  add(counters, "halfstep_rdma_writes_total", rdma.writes);
  add(counters, "halfstep_rdma_posts_total", rdma.posts);
  add(counters, "halfstep_rdma_refused_total", rdma_refused);
  add(counters, "halfstep_payload_bytes_total", "command", "get", get_payload_bytes);
  add(counters, "halfstep_payload_bytes_total", "command", "put", put_payload_bytes);
  add(counters, "halfstep_put_scratch_bytes_total", put_scratch_bytes);
  add(counters, "halfstep_put_checks_failed_total", put_checks_failed);
  add(counters, "halfstep_waits_total", "outcome", "stored", waits.stored);
  add(counters, "halfstep_waits_total", "outcome", "deleted", waits.deleted);
  add(counters, "halfstep_waits_total", "outcome", "expired", waits.expired);
  add(counters, "halfstep_waits_total", "outcome", "ended", waits.ended);
  add(counters, "halfstep_waits_total", "outcome", "throttled", waits.refused);
  add(counters, "halfstep_decodes_total", "outcome", "done", decodes.blocks);
  add(counters, "halfstep_decodes_total", "outcome", "corrupt", decodes.corrupt);
  add(counters, "halfstep_decodes_total", "outcome", "failed", decodes.failed);
  add(counters, "halfstep_decodes_total", "outcome", "throttled", decodes.throttled);
  add(counters, "halfstep_decode_waits_total", decodes.waits);
  add(counters, "halfstep_decoded_bytes_total", "of", "stored", decodes.stored_bytes);
  add(counters, "halfstep_decoded_bytes_total", "of", "raw", decodes.raw_bytes);
  add(out->gauges, "halfstep_decode_memory_bytes", "of", "used", decodes.memory_bytes);
  add(out->gauges, "halfstep_decode_memory_bytes", "of", "capacity", decodes.capacity_bytes);
  add(out->gauges, "halfstep_connections_open", connections_open);
  add(out->gauges, "halfstep_connections_shm", connections_shm);
  add(out->gauges, "halfstep_connections_rdma", connections_rdma);
  add(out->gauges, "halfstep_rdma_pinned_bytes", rdma_pinned_bytes);
  add(out->gauges, "halfstep_connections_zero_copy", connections_zero_copy);
  add(out->gauges, "halfstep_zero_copy_held_bytes", zero_copy_held_bytes);
  add(out->gauges, "halfstep_zero_copy_on", zero_copy_on ? 1 : 0);
  add(out->gauges, "halfstep_requests_open", requests_open);
  add(out->gauges, "halfstep_requests_waiting", requests_waiting);
  add(out->gauges, "halfstep_blocks_awaited", waits.waiting);
  add(out->gauges, "halfstep_credit_held_bytes", credit_held_bytes);
  add(out->gauges, "halfstep_request_memory_bytes", request_bytes);
  add(out->gauges, "halfstep_prefetch_queued_blocks", stages_open);
  collect_store(store, gauges, out);
  collect_engine(engine.counters(), out);
  if (const io::SchedulerCounters* scheduler = engine.scheduler_counters()) collect_scheduler(*scheduler, out);
  collect_recovery(recovery, out);
}

void collect_drive(const io::DriveWatch& drive, Metrics* out) {
  const auto seen = drive.seen();
  if (!seen) return;
  add(out->counters, "halfstep_drive_written_bytes_total", "by", "hosts", seen->last.host_bytes);
  if (seen->last.media_bytes != 0) {
    add(out->counters, "halfstep_drive_written_bytes_total", "by", "drive", seen->last.media_bytes);
  }
  if (const auto factor = seen->amplification()) {
    out->gauges.push_back({"halfstep_drive_write_amplification", {}, *factor});
  }
}

void collect_pages(const char* of, const numa::Pages& pages, Metrics* out) {
  for (const auto& [node, count] : pages.by_node) {
    out->gauges.push_back({"halfstep_memory_sampled_pages", {{"of", of}, {"node", std::to_string(node)}}, double(count)});
  }
}

void Counts::collect_requests(Metrics* out) const {
  out->latency_bounds_us.assign(kLatencyBoundsUs.begin(), kLatencyBoundsUs.end());
  for (size_t at = 1; at < kCommands; ++at) {
    const char* name = command_name(opcode_at(at));
    add(out->counters, "halfstep_requests_total", "command", name, requests_[at]);
    if (requests_[at] == 0) continue;
    for (size_t o = 0; o < kOutcomes; ++o) {
      if (answers_[at][o] == 0) continue;
      const bool reasoned = o < kReasons;
      const Answer answer = reasoned ? answer_of(static_cast<Reason>(o)) : static_cast<Answer>(o - kReasons);
      const char* reason = reasoned ? reason_name(static_cast<Reason>(o)) : "";
      out->counters.push_back({"halfstep_answers_total",
                               {{"command", name}, {"answer", answer_name(answer)}, {"reason", reason}},
                               static_cast<double>(answers_[at][o])});
    }
    const LatencyHistogram& latency = latencies_[at];
    out->latencies.push_back({name, {latency.counts().begin(), latency.counts().end()}, latency.sum_us()});
  }
}

void collect_events(const store::Events& events, Metrics* out) {
  for (size_t number = 0; number < store::kEventReasons; ++number) {
    const auto reason = static_cast<store::EventReason>(number);
    out->counters.push_back(
        {"halfstep_store_events_total",
         {{"kind", store::event_kind_name(store::kind_of(reason))}, {"reason", store::event_reason_name(reason)}},
         static_cast<double>(events.counted(reason))});
  }
  out->gauges.push_back({"halfstep_store_events_remembered", {}, static_cast<double>(events.newest() + 1 - events.oldest())});
}

void collect_namespaces(const std::vector<store::NamespaceInfo>& namespaces, Metrics* out) {
  for (const store::NamespaceInfo& n : namespaces) {
    const auto add_bytes = [&](const char* of, uint64_t bytes) {
      out->gauges.push_back({"halfstep_namespace_bytes", {{"namespace", n.name}, {"of", of}}, static_cast<double>(bytes)});
    };
    add_bytes("quota", n.quota_bytes);
    add_bytes("used", n.used_bytes);
    add_bytes("pin_budget", n.pin_budget_bytes);
    add_bytes("pinned", n.pinned_bytes);
    add_bytes("leased", n.leased_bytes);
    out->gauges.push_back({"halfstep_namespace_holds", {{"namespace", n.name}}, static_cast<double>(n.holds)});
    out->gauges.push_back(
        {"halfstep_namespace_default_ttl_seconds", {{"namespace", n.name}}, static_cast<double>(n.default_ttl_s)});
    out->gauges.push_back({"halfstep_namespace_ttl_slides", {{"namespace", n.name}}, n.sliding_ttl ? 1.0 : 0.0});
    const auto add_coding = [&](const char* of, uint16_t value) {
      out->gauges.push_back({"halfstep_namespace_coding", {{"namespace", n.name}, {"of", of}}, static_cast<double>(value)});
    };
    add_coding("policy", n.coding.policy);
    add_coding("step_limit", n.coding.step_limit);
  }
}

std::string codecs_name(uint64_t codecs) {
  std::string out;
  for (uint32_t number = 1; number < 64; ++number) {
    if ((codecs >> number & 1) == 0) continue;
    const compress::Codec* codec = compress::find_codec(number);
    out += out.empty() ? "" : "+";
    out += codec != nullptr ? std::string(codec->name) : std::to_string(number);
  }
  return out.empty() ? "raw" : out;
}

void collect_stocks(std::span<const store::NamespaceStock> stocks, Metrics* out) {
  const auto add_row = [out](const store::NamespaceStock& stock, bool other) {
    const std::string group = other ? "other" : std::to_string(stock.group);
    const std::string codec = other ? "other" : codecs_name(stock.codecs);
    out->gauges.push_back({"halfstep_blocks_by_codec",
                           {{"namespace", stock.name_space}, {"group", group}, {"codec", codec}},
                           static_cast<double>(stock.blocks)});
    const auto add_bytes = [&](const char* of, uint64_t bytes) {
      out->gauges.push_back({"halfstep_bytes_by_codec",
                             {{"namespace", stock.name_space}, {"group", group}, {"codec", codec}, {"of", of}},
                             static_cast<double>(bytes)});
    };
    add_bytes("logical", stock.logical_bytes);
    add_bytes("stored", stock.stored_bytes);
    add_bytes("flash", stock.flash_bytes);
  };
  for (size_t at = 0; at < stocks.size();) {
    store::NamespaceStock rest;
    const store::NamespaceStock& first = stocks[at];
    for (size_t kinds = 0; at < stocks.size() && stocks[at].number == first.number; ++at) {
      const store::NamespaceStock& stock = stocks[at];
      if (!stock.any && kinds++ < kKindsShown) {
        add_row(stock, false);
        continue;
      }
      rest.name_space = stock.name_space;
      rest.blocks += stock.blocks;
      rest.logical_bytes += stock.logical_bytes;
      rest.stored_bytes += stock.stored_bytes;
      rest.flash_bytes += stock.flash_bytes;
    }
    if (rest.blocks > 0) add_row(rest, true);
  }
}

void add_shard(const Metrics& shard, Metrics* total) {
  if (total->latency_bounds_us.empty()) {
    *total = shard;
    return;
  }
  const auto add_samples = [](const std::vector<Sample>& from, std::vector<Sample>& to) {
    std::unordered_map<std::string, size_t> places;
    for (size_t i = 0; i < to.size(); ++i) places.emplace(sample_name(to[i]), i);
    for (const Sample& sample : from) {
      const auto place = places.find(sample_name(sample));
      if (place == places.end()) {
        to.push_back(sample);
        continue;
      }
      double& value = to[place->second].value;
      value = of_the_worst_shard(sample.name) ? std::max(value, sample.value) : value + sample.value;
    }
  };
  add_samples(shard.counters, total->counters);
  add_samples(shard.gauges, total->gauges);
  for (const Histogram& histogram : shard.latencies) {
    const auto same = [&](const Histogram& h) { return h.command == histogram.command; };
    const auto known = std::find_if(total->latencies.begin(), total->latencies.end(), same);
    if (known == total->latencies.end()) {
      total->latencies.push_back(histogram);
      continue;
    }
    for (size_t i = 0; i < histogram.counts.size(); ++i) known->counts[i] += histogram.counts[i];
    known->sum_us += histogram.sum_us;
  }
}

std::string sample_name(const Sample& sample) {
  std::string out = sample.name;
  char before = '{';
  for (const auto& [label, value] : sample.labels) {
    out += before;
    out += label;
    out += "=\"";
    for (const char c : value) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    out += '"';
    before = ',';
  }
  if (!sample.labels.empty()) out += '}';
  return out;
}

const char* command_name(Opcode opcode) noexcept {
  switch (opcode) {
    case Opcode::Hello: return "hello";
    case Opcode::RegisterLayout: return "register_layout";
    case Opcode::Match: return "match";
    case Opcode::Get: return "get";
    case Opcode::Put: return "put";
    case Opcode::Release: return "release";
    case Opcode::Delete: return "delete";
    case Opcode::Cancel: return "cancel";
    case Opcode::List: return "list";
    case Opcode::Stat: return "stat";
    case Opcode::Prefetch: return "prefetch";
    case Opcode::Touch: return "touch";
    case Opcode::Hold: return "hold";
    case Opcode::Renew: return "renew";
    case Opcode::Expire: return "expire";
    case Opcode::Clear: return "clear";
    case Opcode::Namespace: return "namespace";
    case Opcode::LayoutOf: return "layout_of";
    case Opcode::RegisterRegion: return "register_region";
    case Opcode::RegisterTemplate: return "register_template";
    default: return "";
  }
}

const char* protocol_error_name(ProtocolError kind) noexcept {
  switch (kind) {
    case ProtocolError::Frame: return "frame";
    case ProtocolError::NoHello: return "no_hello";
    case ProtocolError::Hello: return "hello";
    case ProtocolError::RequestId: return "request_id";
    case ProtocolError::Opcode: return "opcode";
    case ProtocolError::Chunk: return "chunk";
    case ProtocolError::Credit: return "credit";
  }
  return "";
}

}  // namespace halfstep::shard
