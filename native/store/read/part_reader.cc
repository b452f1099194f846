#include "store/read/part_reader.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/crc.h"
#include "store/read/part_sums.h"
#include "store/read/reader.h"

namespace halfstep::store {
namespace {

// Half of the block's pages at the most: what is read whole can be kept for others.
constexpr uint32_t kShareOfBlock = 2;

bool pays(uint64_t pages, const Block& block) noexcept { return pages * kShareOfBlock <= block.pages; }

// Those of the parts that a block of so many bytes has.
PartSpan parts_there(const wire::GroupShape& group, uint64_t block_bytes, PartSpan parts) noexcept {
  const uint32_t there = group.parts_of(block_bytes);
  if (parts.first >= there) return {};
  return {parts.first, std::min(parts.count, there - parts.first)};
}

uint64_t end_of(const wire::GroupShape& group, uint64_t block_bytes, PartSpan parts) noexcept {
  const uint32_t last = parts.first + parts.count - 1;
  return group.offset_of(last) + group.bytes_of(last, block_bytes);
}

// Of an extent, those that its bytes from `begin` to `end` lie in.
struct PageRun {
  uint32_t first = 0;
  uint32_t count = 0;
};
PageRun pages_between(uint64_t begin, uint64_t end) noexcept {
  const auto first = static_cast<uint32_t>(begin / kPageBytes);
  return {first, static_cast<uint32_t>(div_up(end, kPageBytes)) - first};
}
PageRun pages_of(std::span<const PartInfo> table, PartSpan parts) noexcept {
  const PartInfo& last = table[parts.first + parts.count - 1];
  return pages_between(table[parts.first].offset, uint64_t{last.offset} + last.stored_bytes);
}

}  // namespace

PartReader::Plan PartReader::plan(const Block& block, const wire::GroupShape* group, PartSpan parts) noexcept {
  if (parts.count == 0 || group == nullptr || !PartSums::may_be_known(block)) return {};
  const uint64_t block_bytes = block.extent_bytes();
  parts = parts_there(*group, block_bytes, parts);
  if (parts.count == 0) return {};
  const PageRun run = pages_between(group->offset_of(parts.first), end_of(*group, block_bytes, parts));
  Plan plan;
  plan.header_pages = PartSums::pages_of(block);
  plan.first_page = run.first;
  plan.pages = run.count;
  plan.parts = parts;
  plan.block_bytes = static_cast<uint32_t>(block_bytes);
  return pays(uint64_t{plan.header_pages} + plan.pages, block) ? plan : Plan();
}

PartReader::Plan PartReader::plan(const IndexKey& key, const Block& block, wire::Component component,
                                  PartSpan parts) const noexcept {
  const wire::GroupShape* const group = names_.group(block.scope, component);
  if (!block.trailer) return plan(block, group, parts);
  if (parts.count == 0 || group == nullptr) return {};
  Plan plan;
  plan.block_bytes = catalog_.block_bytes(block, component);
  const uint32_t there = group->parts_of(plan.block_bytes);
  plan.parts = parts_there(*group, plan.block_bytes, parts);
  if (plan.parts.count == 0) return {};
  const uint64_t raw_bytes = end_of(*group, plan.block_bytes, plan.parts) - group->offset_of(plan.parts.first);
  // Whether they are read alone does not depend on what is known: as if all parts had become smaller alike.
  const uint64_t share_pages = div_up(raw_bytes * block.pages, plan.block_bytes) + 1;
  plan.header_pages = trailer_pages(there);
  if (!pays(plan.header_pages + share_pages, block)) return {};
  plan.known = trailers_.find(key, block);
  if (plan.known.size() != there) {
    plan.known = {};
    plan.pages = static_cast<uint32_t>(std::min<uint64_t>(div_up(raw_bytes, kPageBytes) + 1, block.pages));
    return plan;
  }
  const PageRun run = pages_of(plan.known, plan.parts);
  plan.header_pages = 0;
  plan.first_page = run.first;
  plan.pages = run.count;
  return plan;
}

Extent* PartReader::make(const IndexKey& key, const Block& block, const wire::GroupShape& group, const Plan& plan) {
  Extent* const extent = memory_.make(key, plan.bytes(), ExtentState::Reading);
  if (extent == nullptr) return nullptr;
  extent->set_block_bytes(plan.block_bytes);
  extent->as_parts = {.reads = true,
                      .awaits_trailer = block.trailer && plan.known.empty(),
                      .first_part = plan.parts.first,
                      .part_count = plan.parts.count,
                      .header_pages = plan.header_pages,
                      .first_page = plan.first_page,
                      .pages = plan.pages};
  extent->part_table().reset(group.parts_of(plan.block_bytes));
  if (!block.trailer) {
    cut(*extent, group, plan);
  } else if (!plan.known.empty()) {
    std::copy(plan.known.begin(), plan.known.end(), extent->part_table().begin());
    place(*extent);
  }
  return extent;
}

// Parts that nobody asked for have no bytes, so that nobody can send them.
void PartReader::cut(Extent& extent, const wire::GroupShape& group, const Plan& plan) {
  const uint64_t before = uint64_t{plan.first_page} * kPageBytes;
  for (uint32_t p = plan.parts.first; p < plan.parts.first + plan.parts.count; ++p) {
    const uint32_t bytes = group.bytes_of(p, plan.block_bytes);
    const uint64_t at = plan.header_bytes() + group.offset_of(p) - before;
    extent.part_table()[p] = {static_cast<uint32_t>(at), bytes, bytes, 0, 0, 0};
  }
}

// From where they are in the extent of the block to where they are in memory. The others are known, for who has to say how the
// block is coded, and no bytes of theirs are there.
void PartReader::place(Extent& extent) noexcept {
  const PartsLife& life = extent.as_parts;
  const int64_t moves = (int64_t{life.header_pages} - int64_t{life.first_page}) * kPageBytes;
  PartTable& table = extent.part_table();
  for (uint32_t p = 0; p < table.size(); ++p) {
    const bool wanted = p >= life.first_part && p - life.first_part < life.part_count;
    table[p].offset = wanted ? static_cast<uint32_t>(table[p].offset + moves) : PartInfo::kElsewhere;
  }
}

void PartReader::forget(Extent& extent) noexcept { extent.as_parts.reads = false; }

void PartReader::begin(Extent& extent) {
  const Block& block = extent.block;
  const PartsLife& life = extent.as_parts;
  ++catalog_.segment(block.location.segment).reads_in_flight;
  ++in_flight_;
  extent.error = 0;
  if (life.awaits_trailer) {
    read(extent, uint64_t{block.location.page} + block.pages - life.header_pages, 0, life.header_pages);
    return submit();
  }
  if (!block.trailer) read(extent, PartSums::first_page_of(block), 0, life.header_pages);
  read(extent, uint64_t{block.location.page} + life.first_page, life.header_pages, life.pages);
  submit();
}

// `page` of the segment; `at`: the page of the slot that it goes to.
void PartReader::read(Extent& extent, uint64_t page, uint64_t at, uint64_t pages) {
  const io::Request like{.op = io::Op::Read, .io_class = io::IoClass::Demand, .complete = on_transfer, .owner = &extent};
  const uint64_t device_offset = media_.places.segment(extent.block.location.segment) + page * kPageBytes;
  TransferCutter cutter(pool_.arena(), device_offset, [&](uint64_t offset, Bytes piece) {
    transfers_.push_back(&pool_.take(like, offset, piece));
    ++extent.outstanding;
  });
  extent.slot().for_range(at * kPageBytes, pages * kPageBytes, [&](Bytes piece) { cutter.add(piece); });
  cutter.finish();
}

void PartReader::submit() {
  for (Transfer* transfer : transfers_) media_.engine.submit(transfer->request);
  transfers_.clear();
}

void PartReader::on_transfer(io::Request& request) {
  auto& extent = *static_cast<Extent*>(request.owner);
  PartReader& self = extent.reader->part_reader();
  if (request.error != 0) extent.error = request.error;
  self.pool_.give(Transfer::of(request));
  if (--extent.outstanding > 0) return;
  const bool trailer = std::exchange(extent.as_parts.awaits_trailer, false);
  if (trailer && extent.error == 0 && self.take_trailer(extent)) {
    const PartsLife& life = extent.as_parts;
    self.read(extent, uint64_t{extent.block.location.page} + life.first_page, life.header_pages, life.pages);
    return self.submit();
  }
  const bool sound = !trailer && extent.error == 0 && self.sound(extent);
  --self.catalog_.segment(extent.block.location.segment).reads_in_flight;
  --self.in_flight_;
  extent.as_parts.reads = false;
  self.reader_.landed_in_parts(extent, sound);
}

// What it says, once it is believed. False: it is not, or the parts take more memory than there is.
bool PartReader::take_trailer(Extent& extent) {
  const Block& block = extent.block;
  PartsLife& life = extent.as_parts;
  ConstBytes pages;
  extent.slot().for_range(0, uint64_t{life.header_pages} * kPageBytes, [&](Bytes piece) { pages = piece; });
  HALFSTEP_CHECK(pages.size() == size_t{life.header_pages} * kPageBytes, pages.size(), life.header_pages);
  const size_t parts = extent.parts().size();
  const ConstBytes tail = pages.last(format::trailer_bytes(static_cast<uint32_t>(parts)));
  const Status status = open_trailer(tail, block.extent_bytes(), extent.block_bytes(), block.checksum(extent.key),
                                     &extent.shape, &extent.part_table());
  if (!status.ok() || extent.parts().size() != parts) return false;
  const PageRun run = pages_of(extent.parts(), {life.first_part, life.part_count});
  HALFSTEP_DCHECK(uint64_t{run.first} + run.count <= block.pages, run.first, run.count, block.pages);
  if (run.count == 0 || run.count > life.pages) return false;
  trailers_.keep(extent.key, block, extent.parts());
  life.first_page = run.first;
  life.pages = run.count;
  place(extent);
  return true;
}

bool PartReader::sound(Extent& extent) const {
  if (!extent.block.trailer) return fits_frame(extent);
  const PartsLife& life = extent.as_parts;
  for (const PartInfo& part : extent.parts().subspan(life.first_part, life.part_count)) {
    uint32_t crc = 0;
    extent.slot().for_range(part.offset, part.stored_bytes, [&](Bytes piece) { crc = crc32c(piece, crc); });
    if (crc != part.stored_crc && !HALFSTEP_MUTANT(PartsUnverified)) return false;
  }
  return true;
}

// Whether the sums of the parts are those that the frame's header names.
bool PartReader::fits_frame(Extent& extent) const {
  const PartsLife& life = extent.as_parts;
  ConstBytes pages;
  extent.slot().for_range(0, uint64_t{life.header_pages} * kPageBytes, [&](Bytes piece) { pages = piece; });
  HALFSTEP_CHECK(pages.size() == size_t{life.header_pages} * kPageBytes, pages.size(), life.header_pages);
  PartSums sums(media_.places, media_.page_secret, catalog_.segment(extent.block.location.segment), extent, pages);
  if (!sums.known()) return false;
  for (uint32_t p = life.first_part; p < life.first_part + life.part_count; ++p) {
    PartInfo& part = extent.part_table()[p];
    uint32_t crc = 0;
    extent.slot().for_range(part.offset, part.stored_bytes, [&](Bytes piece) { crc = crc32c(piece, crc); });
    if (!sums.fits(p, crc)) return false;
    part.stored_crc = part.raw_crc = crc;
  }
  return true;
}

}  // namespace halfstep::store
