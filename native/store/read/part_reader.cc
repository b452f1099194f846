#include "store/read/part_reader.h"

#include <algorithm>

#include "base/check.h"
#include "base/crc.h"
#include "store/read/part_sums.h"
#include "store/read/reader.h"

namespace halfstep::store {
namespace {

// Half of the block's pages at the most: what is read whole can be kept for others.
constexpr uint32_t kShareOfBlock = 2;

}  // namespace

PartReader::Plan PartReader::plan(const Block& block, const wire::GroupShape* group, PartSpan parts) noexcept {
  if (parts.count == 0 || group == nullptr || !PartSums::may_be_known(block)) return {};
  const uint64_t block_bytes = block.extent_bytes();
  const uint32_t there = group->parts_of(block_bytes);
  if (parts.first >= there) return {};
  parts.count = std::min(parts.count, there - parts.first);
  const uint32_t last = parts.first + parts.count - 1;
  const uint64_t end = group->offset_of(last) + group->bytes_of(last, block_bytes);
  Plan plan;
  plan.header_pages = PartSums::pages_of(block);
  plan.first_page = static_cast<uint32_t>(group->offset_of(parts.first) / kPageBytes);
  plan.pages = static_cast<uint32_t>(div_up(end, kPageBytes)) - plan.first_page;
  plan.parts = parts;
  const bool pays = (uint64_t{plan.header_pages} + plan.pages) * kShareOfBlock <= block.pages;
  return pays ? plan : Plan();
}

Extent* PartReader::make(const IndexKey& key, const Block& block, const wire::GroupShape& group, const Plan& plan) {
  Extent* const extent = core_.memory.make(key, plan.bytes(), ExtentState::Reading);
  if (extent == nullptr) return nullptr;
  const uint64_t block_bytes = block.extent_bytes();
  extent->in_parts = true;
  extent->set_block_bytes(static_cast<uint32_t>(block_bytes));
  // Parts that nobody asked for have no bytes, so that nobody can send them.
  extent->part_table().reset(group.parts_of(block_bytes));
  const uint64_t before = uint64_t{plan.first_page} * kPageBytes;
  for (uint32_t p = plan.parts.first; p < plan.parts.first + plan.parts.count; ++p) {
    const uint32_t bytes = group.bytes_of(p, block_bytes);
    const uint64_t at = plan.header_bytes() + group.offset_of(p) - before;
    extent->part_table()[p] = {static_cast<uint32_t>(at), bytes, bytes, 0, 0, 0};
  }
  extent->first_part = plan.parts.first;
  extent->header_pages = plan.header_pages;
  extent->first_page = plan.first_page;
  return extent;
}

void PartReader::forget(Extent& extent) noexcept { extent.in_parts = false; }

void PartReader::begin(Extent& extent) {
  const Block& block = extent.block;
  Segment& segment = core_.catalog.segment(block.location.segment);
  ++segment.reads_in_flight;
  ++in_flight_;
  extent.error = 0;
  const uint64_t place = core_.places.segment(segment.number);
  const uint64_t header_bytes = uint64_t{extent.header_pages} * kPageBytes;
  read(extent, PartSums::place_of(core_, block), 0, header_bytes);
  const uint64_t parts = place + (uint64_t{block.location.page} + extent.first_page) * kPageBytes;
  read(extent, parts, header_bytes, extent.slot().bytes() - header_bytes);
  for (Transfer* transfer : transfers_) core_.engine.submit(transfer->request);
  transfers_.clear();
}

void PartReader::read(Extent& extent, uint64_t device_offset, uint64_t at, uint64_t bytes) {
  const io::Request like{.op = io::Op::Read, .io_class = io::IoClass::Demand, .complete = on_transfer, .owner = &extent};
  TransferCutter cutter(core_.slots.arena(), device_offset, [&](uint64_t offset, Bytes piece) {
    transfers_.push_back(&core_.transfers.take(like, offset, piece));
    ++extent.outstanding;
  });
  extent.slot().for_range(at, bytes, [&](Bytes piece) { cutter.add(piece); });
  cutter.finish();
}

void PartReader::on_transfer(io::Request& request) {
  auto& extent = *static_cast<Extent*>(request.owner);
  PartReader& self = extent.reader->part_reader();
  if (request.error != 0) extent.error = request.error;
  self.core_.transfers.give(Transfer::of(request));
  if (--extent.outstanding > 0) return;
  const bool sound = extent.error == 0 && self.sound(extent);
  --self.core_.catalog.segment(extent.block.location.segment).reads_in_flight;
  --self.in_flight_;
  extent.in_parts = false;
  self.reader_.landed_in_parts(extent, sound);
}

bool PartReader::sound(Extent& extent) const {
  ConstBytes pages;
  extent.slot().for_range(0, uint64_t{extent.header_pages} * kPageBytes, [&](Bytes piece) { pages = piece; });
  HALFSTEP_CHECK(pages.size() == size_t{extent.header_pages} * kPageBytes, pages.size(),
                 size_t{extent.header_pages} * kPageBytes);
  PartSums sums(core_, extent, pages);
  if (!sums.known()) return false;
  for (uint32_t p = extent.first_part; p < extent.parts().size() && extent.parts()[p].stored_bytes > 0; ++p) {
    PartInfo& part = extent.part_table()[p];
    uint32_t crc = 0;
    extent.slot().for_range(part.offset, part.stored_bytes, [&](Bytes piece) { crc = crc32c(piece, crc); });
    if (!sums.fits(p, crc)) return false;
    part.stored_crc = part.raw_crc = crc;
  }
  return true;
}

}  // namespace halfstep::store
