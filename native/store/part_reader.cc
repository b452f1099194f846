#include "store/part_reader.h"

#include <algorithm>
#include <cassert>

#include "base/crc.h"
#include "store/reader.h"

namespace halfstep::store {
namespace {

// A frame of blocks that are large enough has its entries and the sums of 7,000 parts in these. Where it takes more, what is
// needed may lie beyond: then the block is read whole.
constexpr uint32_t kHeaderPagesRead = 8;
// Half of the block's pages at the most: what is read whole can be kept for others.
constexpr uint32_t kShareOfBlock = 2;

// The pages of a frame's header that were read. Each is opened once, and has to be of the same frame as the first.
class FrameHeader {
 public:
  FrameHeader(const Core& core, const Segment& segment, uint32_t first_page, ConstBytes pages)
      : core_(core), segment_(segment), first_page_(first_page), pages_(pages) {
    sound_ = open(0, format::PageKind::FrameEntries);
    sequence_ = page_.sequence;
    entry_pages_ = static_cast<uint32_t>(div_up(page_.total_entries, format::kEntriesPerPage));
  }

  // False: it is not among the pages that were read, or one of them is not what it should be.
  bool find(uint32_t extent_page, format::Entry* out) {
    for (uint32_t p = 0; p < entry_pages_ && sees(p, format::PageKind::FrameEntries); ++p) {
      for (uint32_t i = 0; i < page_.entries; ++i) {
        *out = entry_at(page(p), i);
        if (out->page == extent_page) return true;
      }
    }
    return false;
  }
  // Four bytes of the tables.
  bool read_sum(uint64_t at, uint32_t* out) {
    const uint64_t p = entry_pages_ + at / format::kPageBodyBytes;
    const uint64_t within = at % format::kPageBodyBytes;
    if (p > UINT32_MAX || !sees(static_cast<uint32_t>(p), format::PageKind::FrameTable)) return false;
    if (within + sizeof *out > page_.entries) return false;
    *out = load_le<uint32_t>(page_body(page(static_cast<uint32_t>(p))).data() + within);
    return true;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  ConstBytes page(uint32_t number) const noexcept { return pages_.subspan(size_t{number} * kPageBytes, kPageBytes); }
  bool open(uint32_t number, format::PageKind kind) {
    const PageAddress address{0, core_.places.shard, segment_.number, first_page_ + number, segment_.generation};
    opened_ = open_page(core_.page_secret, page(number), kind, address, &page_).ok() && page_.page == number ? number : kNone;
    return opened_ == number;
  }
  bool sees(uint32_t number, format::PageKind kind) {
    if (!sound_ || number >= pages_.size() / kPageBytes) return false;
    if (opened_ != number && !open(number, kind)) return false;
    return page_.sequence == sequence_;
  }

  const Core& core_;
  const Segment& segment_;
  const uint32_t first_page_;
  const ConstBytes pages_;
  format::PageHeader page_;  // of the page that was opened last
  uint32_t opened_ = kNone;
  uint64_t sequence_ = 0;
  uint32_t entry_pages_ = 0;
  bool sound_ = false;
};

}  // namespace

PartReader::Plan PartReader::plan(const Block& block, const wire::GroupShape* group, PartSpan parts) noexcept {
  if (parts.count == 0 || group == nullptr || block.trailer) return {};
  if (block.pages_back == 0 || block.pages_back > block.location.page) return {};
  const uint64_t block_bytes = block.extent_bytes();
  const uint32_t there = group->parts_of(block_bytes);
  if (parts.first >= there) return {};
  parts.count = std::min(parts.count, there - parts.first);
  const uint32_t last = parts.first + parts.count - 1;
  const uint64_t end = group->offset_of(last) + group->bytes_of(last, block_bytes);
  Plan plan;
  plan.header_pages = std::min(block.pages_back, kHeaderPagesRead);
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
  extent->part_table().assign(group.parts_of(block_bytes), {});
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
  const uint64_t frame = place + uint64_t{block.location.page - block.pages_back} * kPageBytes;
  read(extent, frame, 0, header_bytes);
  const uint64_t parts = place + (uint64_t{block.location.page} + extent.first_page) * kPageBytes;
  read(extent, parts, header_bytes, extent.slot().bytes() - header_bytes);
  for (Transfer* transfer : transfers_) core_.engine.submit(transfer->request);
  transfers_.clear();
}

void PartReader::read(Extent& extent, uint64_t device_offset, uint64_t at, uint64_t bytes) {
  TransferCutter cutter(core_.slots.arena(), device_offset, [&](uint64_t offset, Bytes piece) {
    Transfer& transfer = core_.transfers.take();
    transfer.request.op = io::Op::Read;
    transfer.request.io_class = io::IoClass::Demand;
    transfer.request.offset = offset;
    transfer.request.data = piece.data();
    transfer.request.bytes = static_cast<uint32_t>(piece.size());
    transfer.request.owner = &extent;
    transfer.request.complete = on_transfer;
    transfers_.push_back(&transfer);
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
  const Block& block = extent.block;
  ConstBytes pages;
  extent.slot().for_range(0, uint64_t{extent.header_pages} * kPageBytes, [&](Bytes piece) { pages = piece; });
  assert(pages.size() == size_t{extent.header_pages} * kPageBytes);
  FrameHeader header(core_, core_.catalog.segment(block.location.segment), block.location.page - block.pages_back, pages);
  format::Entry entry;
  if (!header.find(block.location.page, &entry)) return false;
  const bool mine = IndexKey{entry.key_low, entry.key_high} == extent.key && entry.checksum == block.checksum(extent.key) &&
                    shape_of(entry).extent_bytes() == block.extent_bytes() && !shape_of(entry).trailer &&
                    entry.parts == extent.parts().size();
  if (!mine) return false;
  const bool apart = entry.engine_key_bytes > format::kEngineKeyInline;
  uint64_t at = uint64_t{entry.table_offset} * format::kTableUnit +
                (apart ? round_up(uint64_t{entry.engine_key_bytes}, format::kTableUnit) : 0) +
                uint64_t{extent.first_part} * sizeof(uint32_t);
  for (uint32_t p = extent.first_part; p < extent.parts().size() && extent.parts()[p].stored_bytes > 0; ++p) {
    PartInfo& part = extent.part_table()[p];
    uint32_t crc = 0;
    extent.slot().for_range(part.offset, part.stored_bytes, [&](Bytes piece) { crc = crc32c(piece, crc); });
    uint32_t wanted = 0;
    if (!header.read_sum(at, &wanted) || (crc != wanted && !HALFSTEP_MUTANT(PartsUnverified))) return false;
    part.stored_crc = part.raw_crc = crc;
    at += sizeof(uint32_t);
  }
  return true;
}

}  // namespace halfstep::store
