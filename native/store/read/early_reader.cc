#include "store/read/early_reader.h"

#include <utility>

#include "base/check.h"

namespace halfstep::store {

void EarlyReader::open(Extent& extent, uint32_t piece_bytes) {
  const Block& block = extent.block;
  if (piece_bytes == 0 || block.extent_bytes() < uint64_t{kPiecesMin} * piece_bytes || !PartSums::may_be_known(block)) return;
  Slot header = core_.memory.take(uint64_t{PartSums::pages_of(block)} * kPageBytes);
  if (header.empty()) return;
  if (free_.empty()) free_.push_back(&all_.emplace_back());
  EarlyRead& early = *free_.back();
  free_.pop_back();
  early.header = std::move(header);
  early.parts = 0;
  early.ended = false;
  extent.early = &early;
}

void EarlyReader::begin(Extent& extent) {
  Bytes pages;
  extent.early->header.for_range(0, extent.early->header.bytes(), [&](Bytes piece) { pages = piece; });
  HALFSTEP_CHECK(pages.size() == extent.early->header.bytes(), pages.size(), extent.early->header.bytes());
  const io::Request like{.op = io::Op::Read, .io_class = extent.io_class, .complete = on_header_, .owner = &extent};
  Transfer& transfer = core_.transfers.take(like, PartSums::place_of(core_, extent.block), pages);
  ++extent.outstanding;
  core_.engine.submit(transfer.request);
  next_.push_back(extent.pieces);
}

// The first pieces of all go before the second ones of any.
void EarlyReader::submit() {
  while (!next_.empty()) {
    for (Transfer*& piece : next_) core_.engine.submit(std::exchange(piece, piece->next)->request);
    std::erase(next_, nullptr);
  }
}

void EarlyReader::header_landed(Extent& extent, int32_t error) {
  EarlyRead& early = *extent.early;
  if (error != 0) {
    early.ended = true;
    return;
  }
  early.header.for_range(0, early.header.bytes(), [&](Bytes piece) { early.sums.emplace(core_, extent, piece); });
  early.ended = !early.sums->known();
  look(extent);
}

void EarlyReader::look(Extent& extent) {
  EarlyRead& early = *extent.early;
  const uint32_t there = extent.verifier.parts_done();
  // Whoever waits for all of it is about to hear that.
  if (!early.sums || early.ended || there == extent.parts().size()) return;
  const uint32_t before = early.parts;
  while (early.parts < there && early.sums->fits(early.parts, extent.parts()[early.parts].stored_crc)) ++early.parts;
  early.ended = early.parts < there;
  if (early.parts == before) return;
  for (Read* read = extent.waiters; read != nullptr; read = read->store_next) {
    if (read->landed == nullptr) continue;
    if (read->early == nullptr) core_.memory.pin(extent);
    read->early = &extent;
    read->parts_landed = early.parts;
    read->landed(*read);
  }
}

bool EarlyReader::close(Extent& extent) {
  if (extent.early == nullptr) return false;
  EarlyRead& early = *std::exchange(extent.early, nullptr);
  early.sums.reset();
  early.header = {};
  free_.push_back(&early);
  return early.parts != 0;
}

}  // namespace halfstep::store
