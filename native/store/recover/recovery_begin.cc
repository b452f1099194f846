// What has to be known before the first answer: the logs, which segments there are, and those without a footer.
#include <algorithm>
#include <iterator>

#include "store/catalog/footer.h"
#include "store/recover/log_age.h"
#include "store/recover/recovery.h"

namespace halfstep::store {
namespace {

// A store that lost count of its sequence starts above anything that an earlier start can have drawn.
constexpr uint32_t kSequenceBitsPerStart = 40;

// Last pages of footers that are read at once.
constexpr size_t kTailsAtOnce = 64;

}  // namespace

Fault Recovery::begin() {
  began_us_ = clock_.now_us();
  load_log();
  note_pins();
  later_.resize(catalog_.segment_count());
  std::vector<uint32_t> newest_first = segments_with_frames();
  read_tails(newest_first);
  look_for_older_log(newest_first);
  // A device that answers errors costs a start, not a shard: what it did not give may be whole.
  if ((log_.damaged || log_.older_than_frames) && log_.unread > 0) {
    return {Code::IoError, "record log: " + std::to_string(log_.unread) +
                               " pages could not be read in either copy; look at the device and start again"};
  }
  if (log_.older_than_frames) newest_first.clear();
  tombstones_.begin_recovery(std::move(log_.tombstones));
  std::vector<uint32_t> walked;
  std::vector<uint32_t> sealed;
  for (const uint32_t number : newest_first) (tails_[number].page_count == 0 ? walked : sealed).push_back(number);
  for (const uint32_t number : sealed) expect_sealed(number);
  load(walked);
  while (!all_taken()) step();

  sequence_.raise_to(std::max(sequence_max_ + 1, start_number_ << kSequenceBitsPerStart));
  seal_walked(walked);
  restart_log();
  load(std::move(sealed));
  served_ = true;
  return {};
}

void Recovery::load_log() {
  (void)record_log_.load(&log_, &patience_);
  sequence_max_ = log_.sequence_max;
  store_time_.raise_to(log_.created_max_s);
  report_.pages_bad += log_.pages_bad;
  report_.tombstones = log_.tombstone_list.size();
  if (log_.pages_bad > 0) {
    note("record log: " + std::to_string(log_.pages_bad) + " pages bad in one copy, taken from the other one");
  }
  if (!log_.damaged && !log_.newer_records) return;
  // What was deleted is not known any more: nothing may come back.
  note(log_.damaged ? "record log: damaged in both copies; the shard starts empty"
                    : "record log: has records of a newer version that may not be skipped; the shard starts empty");
  forget_deletes();
  std::fill(log_.segments.begin(), log_.segments.end(), SegmentRecord{});
}

void Recovery::forget_deletes() {
  log_.tombstones.clear();
  log_.tombstone_list.clear();
  log_.life = LifeRecords();
}

// A hold counts for births below its own sequence, and of births nothing stays in memory but these.
void Recovery::note_pins() {
  for (const LifeRecords::Entry& entry : log_.life.entries()) {
    if (entry.kind == format::RecordKind::Hold) pinned_.put(hash_of(entry.key), format::kSequenceLimit);
  }
}

// Newest first.
std::vector<uint32_t> Recovery::segments_with_frames() {
  std::vector<uint32_t> numbers;
  for (uint32_t number = 0; number < log_.segments.size(); ++number) {
    const SegmentRecord& record = log_.segments[number];
    Segment& segment = catalog_.segment(number);
    segment.generation = record.generation;
    segment.retirements = record.retirements;
    if (record.bad) {
      segment.state = SegmentState::Bad;
      ++report_.segments_bad;
      ++counters_.segments_bad;
    } else if (record.generation != 0 && !lies_behind_the_end(number)) {
      numbers.push_back(number);
    }
  }
  give_up_cut_off();
  std::sort(numbers.begin(), numbers.end(),
            [&](uint32_t a, uint32_t b) { return log_.segments[a].generation > log_.segments[b].generation; });
  return numbers;
}

bool Recovery::lies_behind_the_end(uint32_t number) const noexcept {
  const uint64_t there = media_.engine.device_bytes(0);
  return there != 0 && media_.places.segment(number) >= there;
}

// Each would be chosen, logged and given up by itself, while the first puts wait. What a segment that is cut in its middle
// still has is read like any other's.
void Recovery::give_up_cut_off() {
  uint64_t given_up = 0;
  for (Segment& segment : catalog_.segments()) {
    if (!media_.places.cut_off(segment.number, media_.engine.device_bytes(0)) || segment.state == SegmentState::Bad) continue;
    ++given_up;
    if (segment.generation == 0 || lies_behind_the_end(segment.number)) segment.state = SegmentState::Bad;
  }
  if (given_up > 0) {
    note(std::to_string(given_up) + " segments lie behind the end of the backing, which was cut, and are not used");
  }
}

// Asked for again while the device does not answer. Whether it answers at all, the store's header tells.
Status Recovery::read(uint64_t offset, Bytes into) { return io_.read_patiently(offset, into, patience_); }

void Recovery::look_for_older_log(const std::vector<uint32_t>& numbers) {
  std::vector<uint32_t> walked;
  std::copy_if(numbers.begin(), numbers.end(), std::back_inserter(walked),
               [this](uint32_t number) { return tails_[number].page_count == 0; });
  const LogAge age = age_of_log(media_.places, media_.page_secret, log_, walked, media_.engine.device_bytes(0),
                                [this](uint64_t offset, Bytes page) { return read(offset, page).ok(); });
  sequence_max_ = std::max(sequence_max_, age.sequence_max);
  log_.older_than_frames = age.older;
  if (!age.older) return;
  note("record log: " + age.sentence(log_) + "; the shard starts empty");
  forget_deletes();
  for (uint32_t number = 0; number < log_.segments.size(); ++number) {
    Segment& segment = catalog_.segment(number);
    if (segment.state == SegmentState::Bad) continue;
    log_.segments[number] = SegmentRecord{};
    segment.generation = 0;
  }
}

void Recovery::read_tails(const std::vector<uint32_t>& numbers) {
  tails_.resize(catalog_.segment_count());
  walked_.resize(catalog_.segment_count());
  for (format::PageHeader& tail : tails_) tail.page_count = 0;
  const uint32_t place = media_.places.segment_pages() - 1;
  PageBuffer pages(kTailsAtOnce);
  std::vector<const io::Request*> reads;
  for (size_t first = 0; first < numbers.size(); first += kTailsAtOnce) {
    const std::span<const uint32_t> some = std::span(numbers).subspan(first, std::min(kTailsAtOnce, numbers.size() - first));
    reads.clear();
    for (uint32_t i = 0; i < some.size(); ++i) {
      reads.push_back(&io_.add_read(media_.places.segment(some[i]) + uint64_t{place} * kPageBytes, pages.page(i)));
    }
    (void)io_.run();
    std::vector<bool> unread(some.size());
    for (uint32_t i = 0; i < some.size(); ++i) unread[i] = reads[i]->error != 0;
    for (uint32_t i = 0; i < some.size(); ++i) {
      const PageAddress address{0, media_.places.shard, some[i], place, catalog_.segment(some[i]).generation};
      format::PageHeader tail;
      if (unread[i] && !read(media_.places.segment(some[i]) + uint64_t{place} * kPageBytes, pages.page(i)).ok()) continue;
      if (!open_page(media_.page_secret, pages.page(i), format::PageKind::FooterTail, address, &tail).ok()) continue;
      if (SegmentScan::tail_fits(tail, media_.places.segment_pages())) tails_[some[i]] = tail;
    }
  }
}

// What is known of a sealed segment before its entries are. As long as it has not been looked at, a delete of whatever may be
// in it needs its tombstone.
void Recovery::expect_sealed(uint32_t number) {
  const format::PageHeader& tail = tails_[number];
  Segment& segment = catalog_.segment(number);
  segment.state = SegmentState::Sealed;
  segment.newest_frame = tail.sequence;
  segment.records_missing = true;
  sequence_max_ = std::max({sequence_max_, tail.sequence, segment.generation});
  store_time_.raise_to(tail.created_s);
}

void Recovery::load(std::vector<uint32_t> numbers) {
  order_ = std::move(numbers);
  next_ = 0;
  report_.segments_left = order_.size();
  while (loaders_.size() < std::min(kLoadersMax, order_.size())) {
    loaders_.push_back(std::make_unique<SegmentLoader>(media_, catalog_));
  }
}

// A walked segment is as full as it will ever be: with a footer the next start need not walk it.
void Recovery::seal(Segment& segment) {
  // Frames first: a footer says that they are on media, so that no later start verifies them again.
  if (!flush()) return;
  segment.durable_page = segment.next_page;
  // With the sequence of its newest frame: a segment is as old as its frames, not as its footer.
  FooterBuilder builder(media_.page_secret, media_.places.shard, catalog_, segment, media_.places.segment_pages(),
                        segment.newest_frame, store_time_.now_s());
  if (builder.first_place() < segment.next_page) return;
  PageBuffer pages(builder.pages());
  const uint64_t place = media_.places.segment(segment.number) + uint64_t{builder.first_place()} * kPageBytes;
  for (uint32_t p = 0; !builder.finished(); ++p) builder.build(pages.page(p));
  counters_.bytes_metadata += pages.bytes().size();
  if (!io_.write(place, pages.bytes()).ok()) return;
  segment.state = SegmentState::Sealed;
}

void Recovery::seal_walked(const std::vector<uint32_t>& numbers) {
  for (const uint32_t number : numbers) {
    Segment& segment = catalog_.segment(number);
    if (segment.state == SegmentState::Ended && segment.frames > 0 && !segment.unread) seal(segment);
    // What is walked again at the next start may say more than it did now.
    segment.records_missing = segment.records_missing || segment.state == SegmentState::Ended;
    segment.roll.reset();
  }
  if (flush()) {
    // Whatever was read is on media now.
    for (const uint32_t number : numbers) {
      Segment& segment = catalog_.segment(number);
      segment.durable_page = segment.written_page;
    }
  } else {
    note("flush after recovery failed: segments sealed just now are walked again at the next start");
    for (const uint32_t number : numbers) catalog_.segment(number).records_missing = true;
  }
}

void Recovery::restart_log() {
  std::vector<SegmentRecord> segments = log_.segments;  // those that are bad stay so
  for (Segment& segment : catalog_.segments()) {
    // Of a segment that never had a frame nothing has to be remembered: it is as good as ever when its end is there again.
    const bool unused =
        segments[segment.number].generation == 0 && media_.places.cut_off(segment.number, media_.engine.device_bytes(0));
    if (segment.state == SegmentState::Bad && !segments[segment.number].bad && !unused) {
      segments[segment.number] = {sequence_.draw(), true};
    }
  }
  const uint64_t oldest = catalog_.oldest_generation(sequence_.last());
  std::erase_if(log_.tombstone_list, [&](const Tombstone& t) { return t.sequence < oldest; });
  if (!record_log_.restart(log_, log_.tombstone_list, std::move(segments), sequence_.draw()).ok()) {
    note("record log: could not be written; deletes and new segments fail until it can");
  }
  log_ = LogContents();
}

}  // namespace halfstep::store
