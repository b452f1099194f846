#include "peer/encoder.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/crc.h"
#include "peer/signals.h"

namespace halfstep::peer {
namespace {

// The bytes of a part, where they lie or gathered.
ConstBytes part_bytes(const Section& section, uint32_t number, uint32_t part, uint32_t bytes,
                      std::vector<std::byte>* gathered) {
  ConstBytes whole;
  size_t at = 0;
  section.target.for_range(number, part, section.shape.offset_of(part), 0, bytes, [&](Bytes piece) {
    if (piece.size() == bytes) {
      whole = piece;
      return;
    }
    gathered->resize(std::max<size_t>(gathered->size(), bytes));
    std::memcpy(gathered->data() + at, piece.data(), piece.size());
    at += piece.size();
  });
  return whole.empty() ? ConstBytes(*gathered).first(bytes) : whole;
}

}  // namespace

void Encoder::encode(Ticket& ticket) {
  const auto items = static_cast<uint32_t>(ticket.items.size());
  ticket.encoding.next = 0;
  if (!ticket.encoding.pieces) ticket.encoding.whole.left.store(items, std::memory_order_relaxed);
  ticket.encoding.abandoned.store(false, std::memory_order_relaxed);
  try {
    for (uint32_t s = 0; s < ticket.section_count; ++s) {
      Section& section = ticket.sections[s];
      section.blocks.clear();
      if (section.coding != nullptr) section.blocks.resize(section.item_count);
    }
    if (queue(ticket)) return;
  } catch (const std::bad_alloc&) {
    for (uint32_t s = 0; s < ticket.section_count; ++s) ticket.sections[s].blocks.clear();
  }
  count_done(ticket, 0, items);
}

bool Encoder::queue(Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  if (stopping_ || !start()) return false;
  const uint8_t priority = ticket.batch.priority;
  try {
    queue_[priority].push_back(&ticket);
  } catch (const std::bad_alloc&) {
    if (const auto at = queue_.find(priority); at != queue_.end() && at->second.empty()) queue_.erase(at);
    throw;
  }
  changed_.notify_all();
  return true;
}

// Under the lock. Where no thread is to be had, blocks are plain.
bool Encoder::start() {
  if (!threads_.empty()) return true;
  const uint32_t spare = std::clamp(std::thread::hardware_concurrency() / 2, 1U, kThreadsMax);
  const uint32_t wanted = threads_wanted_ > 0 ? threads_wanted_ : spare;
  try {
    threads_.reserve(wanted);
    const SignalsBlocked blocked;
    while (threads_.size() < wanted) {
      threads_.emplace_back([this] { run(); });
      pthread_setname_np(threads_.back().native_handle(), "halfstep-enc");
    }
  } catch (const std::system_error&) {  // as many as there are
  } catch (const std::bad_alloc&) {
  }
  thread_count_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  return !threads_.empty();
}

void Encoder::abandon(Ticket& ticket) {
  ticket.encoding.abandoned.store(true, std::memory_order_relaxed);
  uint32_t items = 0;
  {
    const std::lock_guard lock(mutex_);
    items = withdraw(ticket);
    const auto at = items > 0 ? queue_.find(ticket.batch.priority) : queue_.end();
    if (at != queue_.end()) {
      at->second.remove(&ticket);
      if (at->second.empty()) queue_.erase(at);
    }
  }
  if (items > 0) count_done(ticket, static_cast<uint32_t>(ticket.items.size()) - items, items);
}

uint32_t Encoder::withdraw(Ticket& ticket) noexcept {
  const auto items = static_cast<uint32_t>(ticket.items.size());
  return items - std::exchange(ticket.encoding.next, items);
}

void Encoder::stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  while (true) {
    Ticket* ticket = nullptr;
    uint32_t items = 0;
    {
      const std::lock_guard lock(mutex_);
      if (queue_.empty()) return;
      std::list<Ticket*>& tickets = queue_.begin()->second;
      ticket = tickets.front();
      tickets.pop_front();
      if (tickets.empty()) queue_.erase(queue_.begin());
      items = withdraw(*ticket);
    }
    count_done(*ticket, static_cast<uint32_t>(ticket->items.size()) - items, items);
  }
}

void Encoder::run() {
  Bench bench;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    uint32_t item = 0;
    Ticket& ticket = next(&item);
    lock.unlock();
    encode_item(ticket, item, bench);
    count_done(ticket, item, 1);
    lock.lock();
  }
}

Ticket& Encoder::next(uint32_t* item) {
  std::list<Ticket*>& tickets = queue_.begin()->second;
  Ticket& ticket = *tickets.front();
  *item = ticket.encoding.next++;
  if (ticket.encoding.next < ticket.items.size()) {
    tickets.splice(tickets.end(), tickets, tickets.begin());
  } else {
    tickets.pop_front();
    if (tickets.empty()) queue_.erase(queue_.begin());
  }
  return ticket;
}

void Encoder::count_done(Ticket& ticket, uint32_t first, uint32_t count) {
  Ticket::Encoding& encoding = ticket.encoding;
  const uint32_t end = first + count;
  while (first < end) {
    const uint32_t piece = encoding.piece_with(first);
    uint32_t items = 1;
    while (first + items < end && encoding.piece_with(first + items) == piece) ++items;
    first += items;
    // With the last item of its last piece a ticket is another thread's, and may be recycled.
    if (encoding.piece(piece).left.fetch_sub(items, std::memory_order_acq_rel) == items) done_(ticket, piece);
  }
}

void Encoder::encode_item(Ticket& ticket, uint32_t item, Bench& bench) {
  uint32_t s = 0;
  while (item >= ticket.sections[s].first_item + ticket.sections[s].item_count) ++s;
  Section& section = ticket.sections[s];
  if (section.coding == nullptr) return;
  const uint32_t number = item - section.first_item;
  CodedBlock& block = section.blocks[number];
  CodingReason reason = choose(section, number);
  if (codes(reason)) {
    try {
      reason = encode_block(ticket, section, number, reason, block, bench);
    } catch (const std::bad_alloc&) {
      block.parts.clear();
      reason = CodingReason::NoMemory;
    }
  }
  speeds_.count(reason);
  block.reason = reason;
  if (!block.plain()) {
    section.offers[number].stored_bytes = block.stored_bytes;
    section.offers[number].flags = wire::kOfferCoded;
  } else if (block.staged.bytes > 0) {
    give_back(std::exchange(block.staged, {}));
  }
}

// The unit of a part to the front of `out`, and what the part table says of it.
void Encoder::encode_part(const PartCoding& coding, const compress::Codec* exact, ConstBytes raw, Bytes out, Bench& bench,
                          wire::PartRecord* record) {
  const auto raw_bytes = static_cast<uint32_t>(raw.size());
  // First: bytes that change while they are coded are found when they are decoded.
  record->raw_crc = crc32c(raw);
  const compress::Codec* codec = coding.codec;
  size_t bytes = codec != nullptr ? codec->encode(raw, coding.shape, bench.scratch, out) : 0;
  const bool lossy = codec != nullptr && codec->lossy;
  if (bytes > 0 && lossy) {
    // The checksum is of what decoding gives, which is not what was given here.
    bench.decoded.resize(std::max<size_t>(bench.decoded.size(), raw_bytes));
    const Bytes decoded = Bytes(bench.decoded).first(raw_bytes);
    if (codec->decode(out.first(bytes), bench.scratch, decoded).ok()) {
      record->raw_crc = crc32c(decoded);
    } else {
      bytes = 0;
    }
  }
  if (bytes == 0 && lossy && exact != nullptr) {
    codec = exact;
    bytes = codec->encode(raw, coding.shape, bench.scratch, out);
  }
  record->codec = bytes > 0 ? codec->number : compress::kRaw;
  if (bytes == 0) {
    bytes = raw_bytes;
    std::memcpy(out.data(), raw.data(), raw_bytes);
  }
  record->stored_bytes = static_cast<uint32_t>(bytes);
  record->raw_bytes = raw_bytes;
}

CodingReason Encoder::choose(const Section& section, uint32_t number) {
  CodingInputs inputs = path_ ? path_() : CodingInputs{};
  inputs.block_bytes = section.offers[number].block_bytes;
  inputs.parts = section.shape.parts_of(inputs.block_bytes);
  return speeds_.choose(inputs, thread_count_.load(std::memory_order_relaxed));
}

// Leaves `block` plain where that is better.
CodingReason Encoder::encode_block(Ticket& ticket, Section& section, uint32_t number, CodingReason chosen, CodedBlock& block,
                                   Bench& bench) {
  const uint64_t begun_us = clock_.now_us();
  const uint32_t block_bytes = section.offers[number].block_bytes;
  const uint32_t parts = section.shape.parts_of(block_bytes);
  const wire::Component component{section.first_component + number % section.component_count};
  block.staged = take(block_bytes);
  if (block.staged.bytes == 0) return CodingReason::NoMemory;
  std::vector<wire::PartRecord> records(parts);
  block.part_at.resize(parts);
  uint32_t at = 0;
  for (uint32_t p = 0; p < parts; ++p) {
    if (ticket.encoding.abandoned.load(std::memory_order_relaxed)) return CodingReason::NoMemory;
    const uint32_t raw_bytes = section.shape.bytes_of(p, block_bytes);
    const ConstBytes raw = part_bytes(section, number, p, raw_bytes, &bench.gathered);
    const Bytes out(block.staged.memory.get() + at, block.staged.bytes - at);
    wire::PartRecord& record = records[p];
    const PartCoding coding = section.coding->part(component, p, section.offers[number].depth);
    encode_part(coding, section.coding->exact(), raw, out, bench, &record);
    block.part_at[p] = at;
    at += record.stored_bytes;
  }
  speeds_.add_encoded(block_bytes, at, clock_.now_us() - begun_us);
  if (!saves_pages(block_bytes, at, parts)) return CodingReason::NoGain;
  block.stored_bytes = at;
  block.parts = std::move(records);
  if (speeds_.wants_decode()) time_decoding(block, bench);
  return chosen;
}

// As a reader of the block does it.
void Encoder::time_decoding(const CodedBlock& block, Bench& bench) {
  uint64_t bytes = 0;
  const uint64_t begun_us = clock_.now_us();
  for (uint32_t p = 0; p < block.parts.size(); ++p) {
    const wire::PartRecord& record = block.parts[p];
    const compress::Codec* codec = compress::find_codec(uint32_t{record.codec});
    bench.decoded.resize(std::max<size_t>(bench.decoded.size(), record.raw_bytes));
    if (codec->decode(block.part(p), bench.scratch, Bytes(bench.decoded).first(record.raw_bytes)).ok())
      bytes += record.raw_bytes;
  }
  speeds_.add_decoded(bytes, clock_.now_us() - begun_us);
}

StagedBytes Encoder::take(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (staged_bytes_ + bytes > kStagedBytesMax) return {};
    staged_bytes_ += bytes;
    const auto found =
        std::find_if(spare_.begin(), spare_.end(), [bytes](const StagedBytes& spare) { return spare.bytes == bytes; });
    if (found != spare_.end()) {
      StagedBytes staged = std::move(*found);
      spare_.erase(found);
      spare_bytes_ -= bytes;
      return staged;
    }
  }
  try {
    return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  } catch (...) {
    const std::lock_guard lock(mutex_);
    staged_bytes_ -= bytes;
    throw;
  }
}

void Encoder::give_back(StagedBytes staged) noexcept {
  const std::lock_guard lock(mutex_);
  HALFSTEP_CHECK(staged.bytes <= staged_bytes_, staged.bytes, staged_bytes_);
  staged_bytes_ -= staged.bytes;
  // The oldest goes: a size that is used now is asked for again.
  while (!spare_.empty() && spare_bytes_ + staged.bytes > kSpareBytesMax) {
    spare_bytes_ -= spare_.front().bytes;
    spare_.erase(spare_.begin());
  }
  if (spare_bytes_ + staged.bytes > kSpareBytesMax) return;
  const size_t bytes = staged.bytes;
  try {
    spare_.push_back(std::move(staged));
    spare_bytes_ += bytes;
  } catch (const std::bad_alloc&) {  // then it is not kept
  }
}

void Encoder::take_back(Ticket& ticket) {
  for (uint32_t s = 0; s < ticket.section_count; ++s) {
    for (CodedBlock& block : ticket.sections[s].blocks) {
      if (ticket.is_put() && block.staged.bytes > 0) give_back(std::exchange(block.staged, {}));
    }
    ticket.sections[s].blocks.clear();
  }
}

}  // namespace halfstep::peer
