#include "store/recover/fsck.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "store/catalog/names.h"
#include "store/durable/blocking_io.h"
#include "store/durable/header_load.h"
#include "store/durable/record_log.h"
#include "store/format/extent_layout.h"
#include "store/format/store_time.h"
#include "store/recover/log_age.h"
#include "store/segment/payload_check.h"
#include "store/segment/segment_scan.h"

namespace halfstep::store {
namespace {

std::string plural(uint64_t count, const char* what) { return std::to_string(count) + " " + what + (count == 1 ? "" : "s"); }

class Fsck {
 public:
  Fsck(io::Engine& engine, const Clock& clock, const FsckOptions& options, FsckReport& report)
      : engine_(engine), clock_(clock), options_(options), report_(report) {}

  Fault run();

 private:
  // A readable copy of a key's block; live is the one that a start would take.
  struct Copy {
    CopyRank rank;
    uint32_t segment = 0;
    uint32_t page = 0;
    uint64_t bytes = 0;
    uint32_t checksum = 0;
    bool durable = false;  // below its segment's watermark
    bool live = false;
  };

  // False: it was stopped.
  bool look_at_shard(uint32_t shard);
  void look_at_header(const LoadedHeader& loaded);
  void look_at_log();
  void look_at_age_of_log();
  bool has_footer(uint32_t number);
  void forget_log();
  void look_at_segment(FsckSegment& segment);
  void look_at_frames(FsckSegment& segment, const ScannedSegment& by_footer);
  void take(const FsckSegment& segment, const ScannedSegment& scanned, const FoundEntry& found);
  void look_at_payloads();
  void count();
  bool go_on(uint64_t done) { return report_.complete = !options_.progress || options_.progress(done, steps_); }
  void find(FsckKind kind, std::string where, std::string what) {
    report_.findings.push_back({kind, std::move(where), std::move(what)});
  }
  std::string of_shard() const {
    return places_.geometry.shards == 1 ? std::string() : "shard " + std::to_string(places_.shard) + ", ";
  }
  std::string place_of(const FsckSegment& segment) const { return of_shard() + "segment " + std::to_string(segment.number); }
  // Of the shard that is being looked at.
  FsckSegment& segment_of(uint32_t number) { return report_.segments[places_.shard * places_.segments() + number]; }

  io::Engine& engine_;
  const Clock& clock_;
  const FsckOptions& options_;
  FsckReport& report_;
  Places places_;
  HashKey secret_;
  Names names_;
  LogContents log_;
  std::optional<SegmentScanner> scanner_;
  index::Table taken_;  // key -> place in copies_
  std::vector<Copy> copies_;
  uint64_t store_time_s_ = 0;
  // Of each shard segments to read, then megabytes of payload.
  uint64_t done_ = 0;
  uint64_t steps_ = 0;
};

Fault Fsck::run() {
  LoadedHeader loaded;
  if (Fault fault = load_header(engine_, &loaded, {options_.progress, options_.pause}); !fault.ok()) return fault;
  places_ = loaded.state.places();
  if (!places_.valid()) return {Code::Corrupt, "store header: its numbers do not fit together; create the store anew"};
  secret_ = loaded.state.page_secret();
  names_.refresh(loaded.state);
  look_at_header(loaded);
  store_time_s_ = std::max(believable_s(clock_.wall_s()), believable_s(loaded.state.fixed.store_time_s));
  report_.segments.resize(places_.geometry.segments);
  for (uint32_t shard = 0; shard < places_.geometry.shards; ++shard) {
    if (!look_at_shard(shard)) break;
  }
  return {};
}

bool Fsck::look_at_shard(uint32_t shard) {
  places_ = places_.of_shard(shard);
  log_ = LogContents();
  taken_ = index::Table();
  copies_.clear();
  look_at_log();
  look_at_age_of_log();
  store_time_s_ = std::max(store_time_s_, believable_s(log_.created_max_s));

  scanner_.emplace(engine_, places_, secret_);
  std::vector<FsckSegment*> newest_first;
  for (uint32_t number = 0; number < places_.segments(); ++number) {
    FsckSegment& segment = segment_of(number);
    segment.shard = shard;
    segment.number = number;
    if (number >= log_.segments.size()) continue;
    segment.generation = log_.segments[number].generation;
    if (log_.segments[number].bad) {
      segment.state = FsckSegmentState::Bad;
      find(FsckKind::Damage, place_of(segment), "was given up after write errors and is not used");
    } else if (segment.generation != 0) {
      newest_first.push_back(&segment);
    }
  }
  std::sort(newest_first.begin(), newest_first.end(),
            [](const FsckSegment* a, const FsckSegment* b) { return a->generation > b->generation; });
  steps_ += newest_first.size();
  for (FsckSegment* segment : newest_first) {
    look_at_segment(*segment);
    if (!go_on(++done_)) return false;
  }
  count();
  if (options_.payloads) look_at_payloads();
  return report_.complete;
}

void Fsck::look_at_header(const LoadedHeader& loaded) {
  const HeaderState& state = loaded.state;
  report_.header = state.fixed;
  report_.clean_stop = state.fixed.clean_stop != 0;
  for (const StoredNamespace& n : state.namespaces) {
    report_.namespaces.push_back({n.name, n.record.quota_bytes, n.record.default_ttl_s});
  }
  report_.layouts = static_cast<uint32_t>(state.layouts.size());
  report_.scopes = static_cast<uint32_t>(state.scopes.size());
  for (const uint32_t copy : {0U, 1U}) {
    if (!loaded.copy_bad[copy]) continue;
    find(FsckKind::Damage, "store header",
         std::string("the copy at the ") + (copy == 0 ? "start" : "end") +
             " is damaged or older than the other one; the next start writes it anew");
  }
  if (!report_.clean_stop)
    find(FsckKind::Crash, "store header", "the last daemon did not stop cleanly: " + owner_text(state.fixed));
}

void Fsck::look_at_log() {
  uint64_t flushes = 0;
  Flusher flusher(engine_, flushes);
  RecordLog log({&engine_, &flusher, places_, secret_});
  (void)log.load(&log_);
  report_.log_pages_bad += log_.pages_bad;
  report_.tombstones += log_.tombstone_list.size();
  if (log_.pages_bad > 0) {
    find(FsckKind::Damage, of_shard() + "record log",
         plural(log_.pages_bad, "page") + " bad in one copy, whole in the other; the next start writes the log anew");
  }
  if (!log_.damaged && !log_.newer_records) return;
  find(FsckKind::Loss, of_shard() + "record log",
       log_.damaged ? "damaged in both copies: what was deleted is not known any more, so the next start begins empty"
                    : "has records of a newer version that may not be skipped: this version begins empty, that one would not");
  forget_log();
}

// As a start does that begins empty; what is bad stays so.
void Fsck::forget_log() {
  log_.tombstones.clear();
  log_.life = LifeRecords();
  for (SegmentRecord& record : log_.segments) record = {.bad = record.bad && !log_.damaged && !log_.newer_records};
}

bool Fsck::has_footer(uint32_t number) {
  const uint32_t place = places_.segment_pages() - 1;
  PageBuffer page(1);
  format::PageHeader tail;
  BlockingIo io(engine_);
  if (!io.read(places_.segment(number) + uint64_t{place} * kPageBytes, page.bytes()).ok()) return false;
  const PageAddress address{0, places_.shard, number, place, log_.segments[number].generation};
  return open_page(secret_, page.bytes(), format::PageKind::FooterTail, address, &tail).ok() &&
         SegmentScan::tail_fits(tail, places_.segment_pages());
}

void Fsck::look_at_age_of_log() {
  std::vector<uint32_t> walked;
  for (uint32_t number = 0; number < log_.segments.size(); ++number) {
    const SegmentRecord& record = log_.segments[number];
    if (record.generation != 0 && !record.bad && !has_footer(number)) walked.push_back(number);
  }
  BlockingIo io(engine_);
  const LogAge age = age_of_log(places_, secret_, log_, walked, engine_.device_bytes(0),
                                [&io](uint64_t offset, Bytes page) { return io.read(offset, page).ok(); });
  if (!age.older) return;
  find(FsckKind::Loss, of_shard() + "record log", age.sentence(log_) + ", so the next start begins empty");
  forget_log();
}

void Fsck::look_at_segment(FsckSegment& segment) {
  ScannedSegment scanned;
  scanner_->scan(segment.number, segment.generation, &scanned);
  store_time_s_ = std::max(store_time_s_, believable_s(scanned.created_max_s));
  if (!scanned.anything) {
    segment.state = scanned.read_errors > 0 ? FsckSegmentState::Unreadable : FsckSegmentState::Empty;
    if (scanned.read_errors > 0) {
      find(FsckKind::Loss, place_of(segment), "no page of it can be read; the next start stops using it");
    }
    return;
  }
  segment.state = scanned.by_footer ? FsckSegmentState::Sealed : FsckSegmentState::Walked;
  segment.frames = scanned.frames;
  segment.pages_used = scanned.next_page;
  segment.entries = static_cast<uint32_t>(scanned.entries.size());
  segment.pages_bad = scanned.pages_bad;
  if (scanned.pages_bad > 0) {
    const auto missing = static_cast<uint64_t>(std::count_if(scanned.entries.begin(), scanned.entries.end(),
                                                             [](const FoundEntry& e) { return !e.present && !e.gone; }));
    report_.unreadable_entries += missing;
    if (scanned.by_footer || missing == 0) {
      find(missing == 0 ? FsckKind::Damage : FsckKind::Loss, place_of(segment),
           plural(scanned.pages_bad, "metadata page") + " bad; " +
               (missing == 0 ? std::string("others say the same") : plural(missing, "entry") + " unreadable"));
    } else {
      // Without a footer nobody can say whether the bad pages were ever acknowledged.
      find(FsckKind::Loss, place_of(segment),
           plural(scanned.pages_bad, "frame header page") + " bad; the blocks they describe are gone");
    }
  }
  if (!scanned.by_footer && scanned.pages_bad == 0 && report_.clean_stop) {
    find(FsckKind::Damage, place_of(segment), "has no footer though the last daemon stopped cleanly; its frames say all");
  }
  for (const FoundEntry& found : scanned.entries) take(segment, scanned, found);
  if (scanned.by_footer && options_.payloads) look_at_frames(segment, scanned);
}

// A start trusts a good footer; ranges and the next footer's loss need the frames, too.
void Fsck::look_at_frames(FsckSegment& segment, const ScannedSegment& by_footer) {
  ScannedSegment walked;
  scanner_->scan_frames(segment.number, segment.generation, &walked);
  if (walked.pages_bad == 0 && walked.frames == by_footer.frames) return;
  segment.pages_bad += std::max(walked.pages_bad, 1U);
  find(FsckKind::Damage, place_of(segment),
       plural(std::max(walked.pages_bad, 1U), "frame header page") + " bad; the footer says the same");
}

void Fsck::take(const FsckSegment& segment, const ScannedSegment& scanned, const FoundEntry& found) {
  if (found.gone) ++report_.gone;
  if (!found.present || found.gone) return;
  const format::Entry& entry = found.entry;
  const Hash128 key{entry.key_low, entry.key_high};
  if (!names_.alive(entry.scope)) {
    ++report_.dead_scope;
    return;
  }
  if (const uint64_t buried = log_.tombstones.find(key); buried != index::Table::kNone && entry.birth < buried) {
    ++report_.deleted;
    return;
  }
  if (const uint32_t expiry_s = log_.life.expiry_s(entry); expiry_s != 0 && expiry_s <= store_time_s_) {
    ++report_.expired;
    return;
  }
  const uint64_t known = taken_.find(key);
  const CopyRank rank{entry.birth, scanned.by_footer, segment.generation};
  if (known != index::Table::kNone) {
    ++report_.superseded;
    if (copies_[known].rank >= rank) return;
    copies_[known].live = false;
  }
  taken_.put(key, copies_.size());
  copies_.push_back({rank, segment.number, entry.page, shape_of(entry).extent_bytes(), entry.checksum,
                     entry.page < std::min(scanned.watermark, scanned.next_page), true});
}

void Fsck::count() {
  for (const Copy& copy : copies_) {
    if (!copy.live) continue;
    FsckSegment& segment = segment_of(copy.segment);
    ++segment.blocks_live;
    segment.bytes_live += copy.bytes;
    ++report_.blocks_live;
    report_.bytes_live += copy.bytes;
  }
}

void Fsck::look_at_payloads() {
  const uint64_t before = done_;
  uint64_t bytes_live = 0;
  for (const Copy& copy : copies_) bytes_live += copy.live ? copy.bytes : 0;
  steps_ += div_up(bytes_live, MiB);
  std::vector<uint32_t> lost(places_.segments());  // below the watermark
  PayloadChecker checker(engine_, [&](uint64_t tag, PayloadVerdict verdict) {
    const Copy& copy = copies_[tag];
    ++report_.payloads_checked;
    report_.payload_bytes += copy.bytes;
    if (verdict == PayloadVerdict::Good) return;
    ++report_.payloads_bad;
    ++segment_of(copy.segment).blocks_bad;
    if (copy.durable) ++lost[copy.segment];
  });
  // In the order of the media.
  std::vector<uint64_t> order;
  order.reserve(copies_.size());
  for (uint64_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i].live) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) {
    return std::pair(copies_[a].segment, copies_[a].page) < std::pair(copies_[b].segment, copies_[b].page);
  });
  uint64_t added = 0;
  for (const uint64_t i : order) {
    const Copy& copy = copies_[i];
    checker.add(i, places_.segment(copy.segment) + uint64_t{copy.page} * kPageBytes, copy.bytes, copy.checksum);
    added += copy.bytes;
    if (before + added / MiB == done_) continue;
    done_ = before + added / MiB;
    if (!go_on(done_)) return;
  }
  checker.finish();
  for (uint32_t number = 0; number < places_.segments(); ++number) {
    const FsckSegment& segment = segment_of(number);
    const uint32_t below = lost[number];
    if (below > 0) {
      find(FsckKind::Loss, place_of(segment),
           plural(below, "block") + " whose bytes do not fit their checksum; each is one miss and is dropped when it is read");
    }
    if (segment.blocks_bad > below) {
      find(FsckKind::Crash, place_of(segment),
           plural(segment.blocks_bad - below, "block") +
               " past the watermark did not arrive whole; the next start leaves them out");
    }
  }
  (void)go_on(done_ = steps_);
}

}  // namespace

const char* fsck_kind_name(FsckKind kind) noexcept {
  switch (kind) {
    case FsckKind::Crash: return "crash";
    case FsckKind::Damage: return "damage";
    case FsckKind::Loss: return "loss";
  }
  return "unknown";
}

const char* fsck_state_name(FsckSegmentState state) noexcept {
  switch (state) {
    case FsckSegmentState::Unused: return "unused";
    case FsckSegmentState::Sealed: return "sealed";
    case FsckSegmentState::Walked: return "walked";
    case FsckSegmentState::Empty: return "empty";
    case FsckSegmentState::Unreadable: return "unreadable";
    case FsckSegmentState::Bad: return "bad";
  }
  return "unknown";
}

bool FsckReport::has(FsckKind kind) const noexcept {
  return std::any_of(findings.begin(), findings.end(), [&](const FsckFinding& f) { return f.kind == kind; });
}

Fault fsck(io::Engine& engine, const Clock& clock, const FsckOptions& options, FsckReport* report) {
  *report = {};
  return Fsck(engine, clock, options, *report).run();
}

}  // namespace halfstep::store
