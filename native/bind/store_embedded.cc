#include "bind/store_embedded.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/crc.h"
#include "base/prng.h"
#include "store/memory/own_memory.h"

namespace halfstep::bind {
namespace {

// No turn of the store needs more than this many others before it that moved no bytes.
constexpr uint32_t kQuietTurns = 3;
// A store that is not at rest after so many turns never will be.
constexpr uint32_t kTurnsMax = 1'000'000;
// Room that is not made by then is not going to be, as long as the time is the same.
constexpr uint32_t kWriteTriesMax = 3;

ConstBytes key_at(ConstBytes keys, size_t index) noexcept { return keys.subspan(index * kEmbeddedKeyBytes, kEmbeddedKeyBytes); }

// The same 8 bytes of it that the wire protocol takes for a parent.
uint64_t parent_of(ConstBytes key) noexcept { return load_le<uint64_t>(key.data() + kEmbeddedKeyBytes - sizeof(uint64_t)); }

}  // namespace

Fault EmbeddedStore::open(const Config& config, std::unique_ptr<EmbeddedStore>* out) {
  std::unique_ptr<EmbeddedStore> embedded(new EmbeddedStore(config));
  if (Fault fault = embedded->start(); !fault.ok()) return fault;
  *out = std::move(embedded);
  return {};
}

EmbeddedStore::~EmbeddedStore() {
  // The file goes with its descriptor, so nothing has to be sealed; but nothing may be in flight when its memory goes.
  store_.reset();
  engine_.reset();
}

Fault EmbeddedStore::start() {
  Prng(config_.seed).fill(Bytes(reinterpret_cast<std::byte*>(pattern_.data()), sizeof(pattern_)));
  if (Fault fault = open_arena(); !fault.ok()) return fault;
  if (Fault fault = open_engine(); !fault.ok()) return fault;
  if (Fault fault = store::Store::format(*engine_, *arena_, clock(), config_.sizing.geometry); !fault.ok()) return fault;
  slots_ = std::make_unique<SlotPool>(*arena_);
  if (const uint64_t dram_bytes = config_.sizing.dram_bytes; dram_bytes != 0) {
    const uint64_t own_bytes = store::own_memory_bytes(config_.sizing.geometry.segments, slots_->capacity_bytes());
    spare_ = slots_->take(slots_->free_bytes() - own_bytes - dram_bytes);
  }
  if (Fault fault = store::Store::open(*engine_, *slots_, clock(), config_.options, &store_); !fault.ok()) return fault;
  if (const Status status = register_layout(); !status.ok()) {
    return {status, "registering the layout of the blocks: " + std::string(code_name(status.code()))};
  }
  return {};
}

// Nobody asked how much memory: enough for all that is under way at once.
Fault EmbeddedStore::open_arena() {
  constexpr uint64_t kArenaBytes = 64 * MiB;
  const uint64_t dram_bytes = config_.sizing.dram_bytes;
  return Arena::create(dram_bytes == 0 ? kArenaBytes : dram_bytes + store::kOwnMemoryBytesMax + kPieceBytesMax, false, &arena_);
}

Fault EmbeddedStore::open_engine() {
  const uint64_t device_bytes = config_.sizing.geometry.device_bytes;
  if (config_.path.empty()) {
    device_ = std::make_unique<io::MemoryDevice>(device_bytes, false);
    io::MemoryConfig memory;
    memory.seed = config_.seed;
    memory.faults.shuffle = false;
    engine_ = std::make_unique<io::MemoryEngine>(memory, std::vector<io::MemoryDevice*>{device_.get()});
    return {};
  }
  const io::Backing::Options options{.path = config_.path, .bytes = device_bytes, .allow_buffered = true};
  if (Fault fault = io::Backing::create(options, nullptr, nullptr); !fault.ok()) return fault;
  Fault fault = io::Backing::open(options, &backing_);
  ::unlink(config_.path.c_str());  // whatever ends this process, nothing is left behind
  if (!fault.ok()) return fault;
  return io::open_engine({}, *arena_, {backing_.get()}, &engine_);
}

Status EmbeddedStore::register_layout() {
  wire::GroupShape whole;
  whole.part_bytes[0] = wire::kOpaquePartBytes;
  wire::Layout layout;
  if (const Status status = wire::Layout::make({{"purpose", "replay"}}, {whole}, &layout); !status.ok()) return status;
  Status answer;
  bool answered = false;
  store_->register_layout("default", layout, [&](Status status, uint32_t scope) {
    answer = status;
    scope_ = scope;
    answered = true;
  });
  for (uint32_t turns = 0; !answered; ++turns) {
    if (turns > kTurnsMax) return Code::Internal;
    turn();
  }
  return answer;
}

// ---- Driving ---------------------------------------------------------------------------------------------------------------

void EmbeddedStore::turn() {
  for (engine_->flush_submissions(); engine_->in_flight() > 0; engine_->flush_submissions()) {
    engine_->wait();
    engine_->poll();
  }
  store_->turn();
}

Status EmbeddedStore::settle() {
  gathered_ = 0;
  uint32_t quiet = 0;
  for (uint32_t turns = 0; quiet < kQuietTurns; ++turns) {
    if (turns > kTurnsMax) return Code::Internal;
    turn();
    quiet = engine_->in_flight() == 0 && store_->next_turn_us() > clock().now_us() ? quiet + 1 : 0;
  }
  return {};
}

// ---- Blocks ----------------------------------------------------------------------------------------------------------------

uint32_t EmbeddedStore::match(ConstBytes keys, std::span<uint8_t> present) noexcept {
  HALFSTEP_CHECK(keys.size() == present.size() * kEmbeddedKeyBytes, keys.size(), present.size() * kEmbeddedKeyBytes);
  for (size_t i = 0; i < present.size(); ++i) {
    present[i] = store_->find(store_->key_of(name_of(key_at(keys, i)))).present ? 1 : 0;
  }
  return static_cast<uint32_t>(std::find(present.begin(), present.end(), 0) - present.begin());
}

Status EmbeddedStore::access(ConstBytes keys, std::span<const uint8_t> hints, bool tell_parents, uint32_t ttl_s, Access* out) {
  *out = {};
  touch(keys);
  for (size_t i = keys.size() / kEmbeddedKeyBytes; i-- > 0;) {
    if (const Status status = write(keys, i, hints.empty() ? 0 : hints[i], tell_parents, ttl_s, out); !status.ok())
      return status;
  }
  return gathered_ >= config_.gather_blocks ? settle() : Status();
}

void EmbeddedStore::touch(ConstBytes keys) {
  touched_.clear();
  for (size_t i = keys.size() / kEmbeddedKeyBytes; i-- > 0;) touched_.push_back(store_->key_of(name_of(key_at(keys, i))));
  store_->touch(touched_);
}

Status EmbeddedStore::write(ConstBytes keys, size_t index, uint8_t hint, bool tell_parents, uint32_t ttl_s, Access* out) {
  const ConstBytes key = key_at(keys, index);
  store::Write& write = take_write();
  write.name = name_of(key);
  write.key = store_->key_of(write.name);
  write.block_bytes = config_.sizing.block_bytes;
  write.ttl_s = ttl_s;
  write.hint = hint;
  if (tell_parents) {
    write.parent_kind = index == 0 ? store::Parent::Root : store::Parent::Known;
    write.parent = index == 0 ? 0 : parent_of(key_at(keys, index - 1));
    write.depth = static_cast<uint16_t>(std::min<size_t>(index, UINT16_MAX));
  }
  write.owner = this;
  write.done = [](store::Write& done) { static_cast<EmbeddedStore*>(done.owner)->free_writes_.push_back(&done); };
  Status status = store_->begin_write(write);
  for (uint32_t tries = 1; status == Code::Throttled && tries < kWriteTriesMax; ++tries) {
    if (const Status rested = settle(); !rested.ok()) return rested;
    status = store_->begin_write(write);
  }
  if (!status.ok()) {
    free_writes_.push_back(&write);
    out->present += status == Code::Present ? 1 : 0;
    out->refused += status == Code::Throttled ? 1 : 0;
    return status == Code::Present || status == Code::Throttled ? Status() : status;
  }
  fill(write, block_seed(key));
  store_->commit_write(write);
  ++out->written;
  ++gathered_;
  return {};
}

store::Write& EmbeddedStore::take_write() {
  if (free_writes_.empty()) return writes_.emplace_back();
  store::Write& write = *free_writes_.back();
  free_writes_.pop_back();
  write = {};
  return write;
}

Status EmbeddedStore::read(ConstBytes keys, Reads* out) {
  *out = {};
  bool leading = true;
  size_t window = kEmbeddedReadsMax;
  for (size_t left = keys.size() / kEmbeddedKeyBytes; left > 0;) {
    const size_t count = std::min(window, left);
    const Status status = read_window(keys.first(count * kEmbeddedKeyBytes));
    if (status == Code::TooLarge && count > 1) {
      window = count / 2;
      continue;
    }
    if (!status.ok()) return status;
    for (size_t i = 0; i < count; ++i) {
      const store::Read& read = reads_[i];
      const bool wrong = read.status == Code::Internal;
      leading = leading && read.status.ok();
      out->leading += leading ? 1 : 0;
      out->wrong += wrong ? 1 : 0;
      out->missed += !wrong && !read.status.ok() ? 1 : 0;
    }
    keys = keys.subspan(count * kEmbeddedKeyBytes);
    left -= count;
  }
  return {};
}

Status EmbeddedStore::read_window(ConstBytes keys) {
  std::array<store::Read*, kEmbeddedReadsMax> window;
  const size_t count = keys.size() / kEmbeddedKeyBytes;
  for (size_t i = 0; i < count; ++i) {
    const ConstBytes key = key_at(keys, i);
    store::Read& read = reads_[i];
    read = {};
    read.key = store_->key_of(name_of(key));
    read.component = name_of(key).component;
    read.tag = block_seed(key);
    read.owner = this;
    read.complete = [](store::Read& done) { static_cast<EmbeddedStore*>(done.owner)->read_done(done); };
    window[i] = &read;
  }
  reads_open_ = static_cast<uint32_t>(count);
  Status status = store_->begin_reads(std::span(window).first(count));
  for (uint32_t tries = 1; status == Code::Throttled && tries < kWriteTriesMax; ++tries) {
    if (const Status rested = settle(); !rested.ok()) return rested;
    status = store_->begin_reads(std::span(window).first(count));
  }
  for (uint32_t turns = 0; status.ok() && reads_open_ > 0; ++turns) {
    if (turns > kTurnsMax) return Code::Internal;
    turn();
  }
  return status;
}

Status EmbeddedStore::stage(ConstBytes keys, uint64_t keep_us, std::span<uint8_t> out) {
  HALFSTEP_CHECK(keys.size() == out.size() * kEmbeddedKeyBytes, keys.size(), out.size() * kEmbeddedKeyBytes);
  struct One final : store::Stage {
    bool open = true;
  };
  std::vector<One> stages(out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    One& one = stages[i];
    const store::BlockName name = name_of(key_at(keys, i));
    one.key = store_->key_of(name);
    one.component = name.component;
    one.keep_us = keep_us;
    one.done = [](store::Stage& done) { static_cast<One&>(done).open = false; };
    store_->stage(one);
  }
  const auto open = [&] { return std::any_of(stages.begin(), stages.end(), [](const One& one) { return one.open; }); };
  uint32_t turns = 0;
  for (; open() && turns < kTurnsMax; ++turns) turn();
  for (One& one : stages) {
    if (one.open) HALFSTEP_CHECK(store_->withdraw(one), turns);  // it is this call's, and goes with it
  }
  if (turns == kTurnsMax) return Code::Internal;
  for (size_t i = 0; i < out.size(); ++i) {
    const store::Stage& stage = stages[i];
    const Staged room = stage.status == Code::Throttled ? Staged::NoRoom : Staged::Absent;
    out[i] = static_cast<uint8_t>(!stage.status.ok() ? room : stage.was_there ? Staged::WasThere : Staged::There);
  }
  return {};
}

// Internal stands for bytes that are not the block's: the store said that they are.
void EmbeddedStore::read_done(store::Read& read) noexcept {
  --reads_open_;
  if (!read.status.ok()) return;
  if (!right(*read.resident, read.tag)) read.status = Code::Internal;
  store_->unpin(read.resident);
}

// ---- Content ---------------------------------------------------------------------------------------------------------------

uint64_t EmbeddedStore::page_word(uint64_t block_seed, uint64_t page) noexcept {
  uint64_t word = (block_seed + page) * 0x9E3779B97F4A7C15U;
  word = (word ^ (word >> 29)) * 0xBF58476D1CE4E5B9U;
  return word ^ (word >> 32);
}

void EmbeddedStore::fill(store::Write& write, uint64_t seed) noexcept {
  uint64_t page = 0;
  size_t part = 0;
  // Parts are as long as the pieces of a slot.
  static_assert(wire::kOpaquePartBytes == kPieceBytesMax);
  write.slot->for_range(0, config_.sizing.block_bytes, [&](Bytes piece) {
    for (size_t at = 0; at < piece.size(); at += kPageBytes, ++page) {
      const uint64_t word = page_word(seed, page);
      auto* to = reinterpret_cast<uint64_t*>(piece.data() + at);
      for (size_t i = 0; i < pattern_.size(); ++i) to[i] = pattern_[i] ^ word;
    }
    write.parts[part++].stored_crc = crc32c(piece);
  });
  HALFSTEP_DCHECK(part == write.parts.size(), part, write.parts.size());
}

bool EmbeddedStore::right(const store::Resident& resident, uint64_t seed) const noexcept {
  if (resident.block_bytes() != config_.sizing.block_bytes) return false;
  uint64_t page = 0;
  uint64_t difference = 0;
  resident.slot().for_range(0, config_.sizing.block_bytes, [&](Bytes piece) {
    for (size_t at = 0; at < piece.size(); at += kPageBytes, ++page) {
      const uint64_t word = page_word(seed, page);
      const auto* from = reinterpret_cast<const uint64_t*>(piece.data() + at);
      for (size_t i = 0; i < pattern_.size(); ++i) difference |= from[i] ^ pattern_[i] ^ word;
    }
  });
  return difference == 0;
}

}  // namespace halfstep::bind
