#include "shard/decoder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace halfstep::shard {

Status Decoder::begin(const store::Resident& from, std::span<const uint32_t> parts, void (*done)(void* owner), void* owner,
                      std::unique_ptr<DecodedBlock>* out) {
  uint64_t bytes = 0;
  for (const uint32_t p : parts) bytes += from.parts()[p].raw_bytes;
  if (bytes == 0 || SlotPool::held_bytes(bytes) > slots_.capacity_bytes()) return Code::TooLarge;
  if (!waiting_.empty() && !resuming_) return Code::Throttled;
  Slot slot = slots_.take(bytes);
  if (slot.empty()) return Code::Throttled;

  auto block = std::make_unique<DecodedBlock>();
  block->done_ = done;
  block->owner_ = owner;
  block->block_bytes_ = from.block_bytes();
  block->checksum_ = from.checksum();
  block->slot_ = std::move(slot);
  block->parts_.reset(from.parts().size());
  for (store::PartInfo& part : block->parts_) part.offset = store::PartInfo::kElsewhere;
  DecodePool::Job& job = block->job_;
  job.owner = this;
  block->job_.block = block.get();
  uint32_t at = 0;
  for (const uint32_t p : parts) {
    const store::PartInfo& part = from.parts()[p];
    HALFSTEP_CHECK(part.is_there(), p, part.stored_bytes, part.offset);
    // A raw part of a coded block may have no checksum but that of what is stored.
    const uint32_t crc = part.codec == compress::kRaw ? part.stored_crc : part.raw_crc;
    block->parts_[p] = {at, part.raw_bytes, part.raw_bytes, crc, crc, compress::kRaw};
    job.parts.push_back({.codec = part.codec,
                         .stored_bytes = part.stored_bytes,
                         .raw_bytes = part.raw_bytes,
                         .raw_crc = crc,
                         .in = static_cast<uint32_t>(job.in.size()),
                         .out = static_cast<uint32_t>(job.out.size())});
    from.slot().for_range(part.offset, part.stored_bytes, [&](Bytes piece) { job.in.emplace_back(piece); });
    block->slot_.for_range(at, part.raw_bytes, [&](Bytes piece) { job.out.push_back(piece); });
    at += part.raw_bytes;
  }
  {
    const std::lock_guard lock(mutex_);
    ++running_;
    done_.reserve(running_ + done_.size());
  }
  pool_.submit(job);
  *out = std::move(block);
  return {};
}

void Decoder::decoded(DecodePool::Job& job) noexcept {
  const std::lock_guard lock(mutex_);
  HALFSTEP_CHECK(running_ > 0 && done_.size() < done_.capacity(), running_, done_.size());
  --running_;
  done_.push_back(&job);
  // Under the lock: once it is given back the shard may end, and its loop with it.
  wake_();
  changed_.notify_all();
}

void Decoder::turn() {
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(done_);
    done_.reserve(running_);
  }
  for (DecodePool::Job* job : taken_) {
    DecodedBlock* block = static_cast<DecodedBlock::Job*>(job)->block;
    switch (job->status.code()) {
      case Code::Ok:
        ++counts_.blocks;
        for (const DecodePool::Part& part : job->parts) {
          counts_.stored_bytes += part.stored_bytes;
          counts_.raw_bytes += part.raw_bytes;
        }
        break;
      case Code::Corrupt: ++counts_.corrupt; break;
      case Code::Cancelled: break;
      default: ++counts_.failed; break;
    }
    block->done_(block->owner_);  // may destroy it
  }
  taken_.clear();
}

void Decoder::wait(Waiter& waiter) {
  if (std::exchange(waiter.waits_, true)) return;
  ++counts_.waits;
  waiting_.push_back(&waiter);
}

void Decoder::leave(Waiter& waiter) noexcept {
  if (!std::exchange(waiter.waits_, false)) return;
  std::erase(waiting_, &waiter);
  freed_ = true;  // it may have stood before others, who want less
}

// Who still has too little joins again, in its old place; nobody who comes later passes it.
void Decoder::resume() {
  if (!std::exchange(freed_, false)) return;
  while (!waiting_.empty()) {
    Waiter& first = *waiting_.front();
    waiting_.erase(waiting_.begin());
    first.waits_ = false;
    resuming_ = true;
    first.go_on_decoding();
    resuming_ = false;
    if (!first.waits_) continue;
    std::rotate(waiting_.begin(), waiting_.end() - 1, waiting_.end());
    return;
  }
}

void Decoder::wait_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return running_ == 0; });
}

Decoder::Counts Decoder::counts_now() const noexcept {
  Counts now = counts_;
  now.capacity_bytes = slots_.capacity_bytes();
  now.memory_bytes = slots_.capacity_bytes() - slots_.free_bytes();
  return now;
}

}  // namespace halfstep::shard
