#include "store/durable/header_load.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "store/format/mutant.h"

namespace halfstep::store {
namespace {

// A path that fails over or a controller that resets is back within about two seconds.
constexpr uint32_t kPausesMs[] = {20, 100, 500, 1000};

// Looked through page by page behind which a header may lie: always so much of the end, and all where other pages of a store
// are at the start.
constexpr uint64_t kSearchBytes = 1 * GiB;
constexpr uint32_t kSearchPages = 256;  // of one read
// Of a window that does not read, each page by itself; of so many windows, or a device that is gone keeps a start for hours.
constexpr uint32_t kBadWindowsMax = 16;
// Of each half of a record log: what a log has written begins with one of its first two pages.
constexpr uint32_t kLogPagesSeen = 16;

void sleep_for(uint32_t millis) { std::this_thread::sleep_for(std::chrono::milliseconds(millis)); }

class HeaderLoader {
 public:
  HeaderLoader(io::Engine& engine, const HeaderPatience& patience)
      : io_(engine),
        patience_(patience),
        device_bytes_(round_down(engine.device_bytes(0), kPageBytes)),
        buffer_(kHeaderReservePages) {}

  Fault load(LoadedHeader* out);

 private:
  static constexpr uint64_t kNowhere = UINT64_MAX;

  void read(uint32_t copy, uint64_t offset);
  void read_again();
  void look_where_it_should_be();
  bool look_for_it();
  bool look_through(uint64_t begin, uint32_t pages);
  bool take(uint64_t offset);
  bool fits_logs(const HeaderState& candidate);
  bool seen_at_start();
  Fault refuse() const;
  std::string told(uint32_t copy) const;

  BlockingIo io_;
  const HeaderPatience& patience_;
  const uint64_t device_bytes_;
  PageBuffer buffer_;
  HeaderState copies_[2];
  Status status_[2] = {Code::NotFound, Code::NotFound};
  uint64_t place_[2] = {0, kNowhere};
  uint64_t claimed_bytes_ = 0;  // by a copy A whose checksum does not fit
  uint32_t bad_windows_ = 0;
};

void HeaderLoader::read(uint32_t copy, uint64_t offset) {
  place_[copy] = offset;
  status_[copy] = Code::NotFound;
  if (offset + format::kHeaderReserveBytes > device_bytes_) return;  // cut off
  status_[copy] = read_header_copy(io_, offset, buffer_, &copies_[copy]);
  if (copy == 0 && (status_[0] == Code::Corrupt || status_[0] == Code::IoError)) {
    // Of the first page, which may be whole where the next one is not.
    const auto claim = load_le<format::StoreHeader>(buffer_.page(0).data());
    if (claim.magic == format::kHeaderMagic) claimed_bytes_ = claim.device_bytes;
  }
}

void HeaderLoader::read_again() {
  for (const uint32_t millis : kPausesMs) {
    if (!(status_[0] == Code::IoError) && !(status_[1] == Code::IoError)) return;
    patience_.pause ? patience_.pause(millis) : sleep_for(millis);
    const bool had_start = status_[0].ok();
    for (const uint32_t copy : {0U, 1U}) {
      if (status_[copy] == Code::IoError) read(copy, place_[copy]);
    }
    if (!had_start && status_[0].ok()) look_where_it_should_be();
  }
}

// Copy B, by what is known of the store's end.
void HeaderLoader::look_where_it_should_be() {
  const bool told = status_[0].ok() || status_[0] == Code::Unsupported;
  uint64_t bytes = told ? copies_[0].fixed.device_bytes : device_bytes_;
  if (bytes % kPageBytes != 0 || bytes < 2 * format::kHeaderReserveBytes) return;
  if (place_[1] == bytes - format::kHeaderReserveBytes && status_[1].ok()) return;
  read(1, bytes - format::kHeaderReserveBytes);
  if (told || !(status_[1] == Code::NotFound)) return;
  // The backing is longer than the store, or the page is not a header any more: the damaged copy A says which end it means.
  bytes = claimed_bytes_;
  if (bytes % kPageBytes == 0 && bytes >= 2 * format::kHeaderReserveBytes && bytes <= device_bytes_) {
    (void)take(bytes - format::kHeaderReserveBytes);
  }
}

// A copy B at a place that nothing vouches for.
bool HeaderLoader::take(uint64_t offset) {
  HeaderState candidate;
  const Status status = read_header_copy(io_, offset, buffer_, &candidate);
  if (!status.ok() && !(status == Code::Unsupported)) return false;
  if (candidate.fixed.device_bytes != offset + format::kHeaderReserveBytes) return false;
  if (status.ok() && !fits_logs(candidate)) return false;
  place_[1] = offset;
  status_[1] = status;
  copies_[1] = std::move(candidate);
  return true;
}

// The record logs of copy A are no tenant's: do they open with this header's secret, or say nothing at all?
bool HeaderLoader::fits_logs(const HeaderState& candidate) {
  const Places places = candidate.places();
  if (!places.valid()) return false;
  const HashKey secret = candidate.page_secret();
  PageBuffer pages(std::min(kLogPagesSeen, places.log_half_pages));
  bool foreign = false;
  for (uint32_t shard = 0; shard < places.geometry.shards; ++shard) {
    for (const uint32_t half : {0U, 1U}) {
      if (!io_.read(places.log(0, shard, half), pages.bytes()).ok()) continue;
      for (uint32_t place = 0; place < pages.pages(); ++place) {
        format::PageHeader header;
        const PageAddress address{0, shard, half, place, 0};
        const Status opened =
            open_page_of_any_generation(secret, pages.page(place), format::PageKind::RecordLog, address, &header);
        if (opened.ok()) return true;
        foreign = foreign || opened == Code::Corrupt;
      }
    }
  }
  return !foreign;
}

// Whether anything of a store is at the start of the device.
bool HeaderLoader::seen_at_start() {
  if (!(status_[0] == Code::NotFound)) return true;
  PageBuffer pages(kSearchPages);
  for (const uint64_t at : {uint64_t{0}, format::kHeaderReserveBytes}) {
    if (at + pages.bytes().size() > device_bytes_ || !io_.read(at, pages.bytes()).ok()) continue;
    for (uint32_t page = 0; page < pages.pages(); ++page) {
      if (load_le<format::PageHeader>(pages.page(page).data()).magic == format::kPageMagic) return true;
    }
  }
  return false;
}

// Backwards from the end. False: it was stopped.
bool HeaderLoader::look_for_it() {
  const uint64_t first = format::kHeaderReserveBytes;
  if (device_bytes_ < 2 * format::kHeaderReserveBytes) return true;
  const uint64_t last = device_bytes_ - format::kHeaderReserveBytes;
  const uint64_t total = seen_at_start() ? last - first : std::min(last - first, kSearchBytes);
  for (uint64_t done = 0; done < total;) {
    const uint64_t bytes = std::min<uint64_t>(total - done, kSearchPages * kPageBytes);
    done += bytes;
    if (look_through(last - done, static_cast<uint32_t>(bytes / kPageBytes))) return true;
    if (patience_.go_on && !patience_.go_on(done, total)) return false;
  }
  return true;
}

// True: it was among these pages.
bool HeaderLoader::look_through(uint64_t begin, uint32_t pages) {
  PageBuffer window(pages);
  const bool whole = io_.read(begin, window.bytes()).ok();
  if (!whole && ++bad_windows_ > kBadWindowsMax) return false;
  for (uint32_t page = pages; page-- > 0;) {
    const uint64_t at = begin + uint64_t{page} * kPageBytes;
    if (!whole && !io_.read(at, window.page(page)).ok()) continue;
    if (load_le<format::StoreHeader>(window.page(page).data()).magic == format::kHeaderMagic && take(at)) return true;
  }
  return false;
}

std::string HeaderLoader::told(uint32_t copy) const {
  std::string what = copy == 0 ? "copy at the start " : "copy at the end ";
  switch (status_[copy].code()) {
    case Code::IoError: return what + "cannot be read (" + errno_name(status_[copy].detail()) + ")";
    case Code::Corrupt: return what + "damaged";
    default: return what + "not there";
  }
}

Fault HeaderLoader::refuse() const {
  for (uint32_t copy = 0; copy < 2; ++copy) {
    if (!(status_[copy] == Code::Unsupported)) continue;
    return {Code::Unsupported, "store header: format version " + std::to_string(copies_[copy].fixed.version) +
                                   ", incompatible features " + std::to_string(copies_[copy].fixed.incompatible) +
                                   "; this build knows version 1 without any: start the version that wrote it"};
  }
  const std::string both = "store header: " + told(0) + ", " + told(1);
  for (uint32_t copy = 0; copy < 2; ++copy) {
    if (!(status_[copy] == Code::IoError)) continue;
    return {status_[copy], both + "; it may be whole: look at the device (dmesg, smartctl) and start again"};
  }
  if (status_[0] == Code::NotFound && status_[1] == Code::NotFound) {
    return {Code::NotFound,
            "no store header at either end: this is not a store, or it was cut; create one, or name the right file"};
  }
  return {Code::Corrupt, both + "; with both damaged the store's secret is gone and nothing can be read: create it anew"};
}

Fault HeaderLoader::load(LoadedHeader* out) {
  read(0, 0);
  look_where_it_should_be();
  read_again();
  const auto known = [&](uint32_t copy) { return status_[copy].ok() || status_[copy] == Code::Unsupported; };
  if (!known(0) && !known(1) && !look_for_it()) return {Code::Cancelled, "the search for the store header was stopped"};
  if (status_[0] == Code::Unsupported || status_[1] == Code::Unsupported) return refuse();
  const bool ok[2] = {status_[0].ok(), status_[1].ok()};
  if (!ok[0] && !ok[1]) return refuse();
  uint32_t best = !ok[0] || (ok[1] && copies_[1].fixed.sequence > copies_[0].fixed.sequence) ? 1 : 0;
  if (HALFSTEP_MUTANT(OlderHeaderTaken) && ok[1 - best]) best = 1 - best;
  out->copy_bad[best] = false;
  out->copy_bad[1 - best] = !ok[1 - best] || copies_[0].fixed.checksum != copies_[1].fixed.checksum;
  out->state = std::move(copies_[best]);
  return {};
}

}  // namespace

Status read_header_copy(BlockingIo& io, uint64_t offset, PageBuffer& buffer, HeaderState* out) {
  buffer.clear();
  if (const Status status = io.read(offset, buffer.page(0)); !status.ok()) return status;
  const auto prefix = load_le<format::StoreHeader>(buffer.page(0).data());
  if (prefix.magic != format::kHeaderMagic) return Code::NotFound;
  if (prefix.header_bytes > format::kHeaderReserveBytes) return Code::Corrupt;
  const uint64_t bytes = round_up(std::max<uint64_t>(prefix.header_bytes, kPageBytes), kPageBytes);
  if (bytes > kPageBytes) {
    const Bytes rest = buffer.bytes().subspan(kPageBytes, static_cast<size_t>(bytes - kPageBytes));
    if (const Status status = io.read(offset + kPageBytes, rest); !status.ok()) return status;
  }
  return decode_header(buffer.bytes().first(static_cast<size_t>(bytes)), out);
}

Fault load_header(io::Engine& engine, LoadedHeader* out, const HeaderPatience& patience) {
  return HeaderLoader(engine, patience).load(out);
}

}  // namespace halfstep::store
