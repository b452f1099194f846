#include "store/read/early_reader.h"

#include <utility>

#include "base/check.h"

namespace halfstep::store {

void EarlyReader::open(Extent& extent, uint32_t piece_bytes) {
  const Block& block = extent.block;
  if (piece_bytes == 0 || block.extent_bytes() < uint64_t{kPiecesMin} * piece_bytes) return;
  if (free_.empty()) free_.push_back(&all_.emplace_back());
  EarlyRead& early = *free_.back();
  if (!(block.trailer ? open_trailer_read(extent, early) : open_header(extent, early))) return;
  free_.pop_back();
  early.parts = 0;
  early.ended = false;
  extent.early = &early;
}

bool EarlyReader::open_header(Extent& extent, EarlyRead& early) {
  if (!PartSums::may_be_known(extent.block)) return false;
  early.header = memory_.take(uint64_t{PartSums::pages_of(extent.block)} * kPageBytes);
  return !early.header.empty();
}

bool EarlyReader::open_trailer_read(Extent& extent, EarlyRead& early) {
  const Block& block = extent.block;
  const wire::Component component{extent.entry.component};
  const wire::GroupShape* const group = names_.group(block.scope, component);
  const uint32_t block_bytes = catalog_.block_bytes(block, component);
  const uint32_t parts = group != nullptr ? group->parts_of(block_bytes) : 0;
  if (parts == 0 || trailer_pages(parts) >= block.pages) return false;
  extent.set_block_bytes(block_bytes);
  extent.part_table().reset(parts);
  early.trailer_at = media_.places.segment(block.location.segment) +
                     (uint64_t{block.location.page} + block.pages - trailer_pages(parts)) * kPageBytes;
  early.trailer_requests = 0;
  early.named.clear();
  return true;
}

uint64_t EarlyReader::bytes_in_pieces(const Extent& extent) const noexcept {
  const Block& block = extent.block;
  if (!block.trailer) return block.extent_bytes();
  const uint64_t begins = media_.places.segment(block.location.segment) + uint64_t{block.location.page} * kPageBytes;
  return extent.early->trailer_at - begins;
}

void EarlyReader::begin(Extent& extent) {
  EarlyRead& early = *extent.early;
  if (extent.block.trailer) {
    Transfer* end = extent.pieces;
    while (end->request.offset < early.trailer_at) end = end->next;
    for (Transfer* of_trailer = end; of_trailer != nullptr; of_trailer = of_trailer->next) {
      ++early.trailer_requests;
      media_.engine.submit(of_trailer->request);
    }
    turns_.push_back({extent.pieces, end});
    return;
  }
  Bytes pages;
  early.header.for_range(0, early.header.bytes(), [&](Bytes piece) { pages = piece; });
  HALFSTEP_CHECK(pages.size() == early.header.bytes(), pages.size(), early.header.bytes());
  const io::Request like{.op = io::Op::Read, .io_class = extent.io_class, .complete = on_header_, .owner = &extent};
  Transfer& transfer = transfers_.take(like, PartSums::place_of(media_.places, extent.block), pages);
  ++extent.outstanding;
  media_.engine.submit(transfer.request);
  turns_.push_back({extent.pieces, nullptr});
}

// The first pieces of all go before the second ones of any.
void EarlyReader::submit() {
  while (!turns_.empty()) {
    for (Turn& turn : turns_) media_.engine.submit(std::exchange(turn.next, turn.next->next)->request);
    std::erase_if(turns_, [](const Turn& turn) { return turn.next == turn.end; });
  }
}

void EarlyReader::header_landed(Extent& extent, int32_t error) {
  EarlyRead& early = *extent.early;
  if (error != 0) {
    early.ended = true;
    return;
  }
  const Segment& segment = catalog_.segment(extent.block.location.segment);
  early.header.for_range(0, early.header.bytes(),
                         [&](Bytes piece) { early.sums.emplace(media_.places, media_.page_secret, segment, extent, piece); });
  early.ended = !early.sums->known();
  look(extent);
}

// ---- Trailers --------------------------------------------------------------------------------------------------------------

bool EarlyReader::awaits_trailer(Extent& extent, const io::Request& landed) {
  EarlyRead& early = *extent.early;
  if (!extent.block.trailer || early.trailer_requests == 0) return false;
  if (landed.offset >= early.trailer_at && --early.trailer_requests == 0) take_trailer(extent);
  return early.trailer_requests != 0;
}

void EarlyReader::take_trailer(Extent& extent) {
  EarlyRead& early = *extent.early;
  early.ended = extent.error != 0;  // its pages may not be there
  if (early.ended) return;
  const Block& block = extent.block;
  const size_t parts = extent.parts().size();
  const uint64_t bytes = format::trailer_bytes(static_cast<uint32_t>(parts));
  tail_.clear();
  extent.slot().for_range(block.extent_bytes() - bytes, bytes,
                          [&](Bytes piece) { tail_.insert(tail_.end(), piece.begin(), piece.end()); });
  const Status status = open_trailer(tail_, block.extent_bytes(), extent.block_bytes(), block.checksum(extent.key),
                                     &extent.shape, &extent.part_table());
  // Whoever judges the whole of it says what is wrong.
  early.ended = !status.ok() || extent.parts().size() != parts;
  if (early.ended) return;
  for (const PartInfo& part : extent.parts()) early.named.push_back(part.stored_crc);
  extent.verifier.begin(extent.shape, &extent.part_table());
}

bool EarlyReader::has_named_sums(const Extent& extent) noexcept {
  const std::vector<uint32_t>& named = extent.early->named;
  for (size_t p = 0; p < named.size(); ++p) {
    if (extent.parts()[p].stored_crc != named[p]) return false;
  }
  return true;
}

// ---- Parts -----------------------------------------------------------------------------------------------------------------

void EarlyReader::look(Extent& extent) {
  EarlyRead& early = *extent.early;
  const bool known = early.sums.has_value() || !early.named.empty();
  // Whoever waits for all of it is about to hear that.
  if (!known || early.ended || extent.verifier.parts_done() == extent.parts().size()) return;
  const uint32_t there = extent.verifier.parts_done();
  const uint32_t before = early.parts;
  while (early.parts < there && early.fits(early.parts, extent.parts()[early.parts].stored_crc)) ++early.parts;
  early.ended = early.parts < there;
  if (early.parts == before) return;
  for (Read* read = extent.waiters; read != nullptr; read = read->store_next) {
    if (read->landed == nullptr) continue;
    if (read->early == nullptr) memory_.pin(extent);
    read->early = &extent;
    read->parts_landed = early.parts;
    read->landed(*read);
  }
}

bool EarlyReader::close(Extent& extent) {
  if (extent.early == nullptr) return false;
  EarlyRead& early = *std::exchange(extent.early, nullptr);
  early.sums.reset();
  early.named.clear();
  early.header = {};
  free_.push_back(&early);
  return early.parts != 0;
}

}  // namespace halfstep::store
