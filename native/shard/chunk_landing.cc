#include "shard/chunk_landing.h"

#include <algorithm>

#include "base/check.h"
#include "base/crc.h"
#include "shard/request_host.h"
#include "shard/request_put.h"

namespace halfstep::shard {

Status ChunkLanding::begin(RequestHost& host, PutRequest& put, const wire::RunsView& runs, net::Landing* landing, bool pulled) {
  HALFSTEP_DCHECK(runs_.empty());
  host_ = &host;
  put_ = &put;
  at_ = 0;
  pulled_ = pulled;
  checks_.resize(runs.check_count);
  for (uint32_t i = 0; i < runs.check_count; ++i) checks_[i] = runs.check(i);
  uint32_t check_at = 0;
  runs_.reserve(runs.run_count);
  for (uint32_t i = 0; i < runs.run_count; ++i) {
    const wire::Run from = runs.run(i);
    Run run{.part = from.part, .bytes_left = from.bytes};
    if (const Status status = put.claim(from, pulled, &run.item); !status.ok()) {
      if (pulled_) release();
      forget();
      return status;
    }
    begin_run(run, from, check_at, landing);
    check_at += from.check_count;
    if (from.bytes != 0) runs_.push_back(run);
  }
  return {};
}

void ChunkLanding::begin_run(Run& run, const wire::Run& from, uint32_t check_at, net::Landing* landing) {
  if (run.item == nullptr) {
    landing->to_scratch(from.bytes);
    return;
  }
  PutItem& item = *run.item;
  ++item.landing_runs;
  if (pulled_) ++item.pulled_runs;
  const store::PartInfo& first = item.write.parts[from.part];
  run.check_at = check_at;
  run.whole = from.check_count != 0;
  run.part_left = std::min(from.bytes, first.stored_bytes - from.offset);
  // Parts lie back to back in the slot.
  item.write.slot->for_range(uint64_t{first.offset} + from.offset, from.bytes, [&](Bytes piece) { landing->to(piece); });
}

void ChunkLanding::landed(ConstBytes piece, size_t skipped) {
  const bool kept = !piece.empty();
  if (put_ == nullptr) {
    host_->counts().put_scratch_bytes += skipped;
    return;
  }
  for (size_t left = kept ? piece.size() : skipped; left != 0;) {
    HALFSTEP_CHECK(at_ < runs_.size(), at_, runs_.size());
    Run& run = runs_[at_];
    const auto step = static_cast<uint32_t>(std::min<size_t>(left, run.bytes_left));
    if (kept && run.item != nullptr) {
      absorb(run, piece.first(step));
    } else {
      host_->counts().put_scratch_bytes += step;
    }
    if (kept) piece = piece.subspan(step);
    left -= step;
    run.bytes_left -= step;
    if (run.bytes_left == 0) {
      ++at_;
      leave(run);
    }
  }
}

void ChunkLanding::absorb(Run& run, ConstBytes piece) {
  PutItem& item = *run.item;
  host_->counts().put_payload_bytes += piece.size();
  host_->moved(piece.size());
  put_->note_landed(item, static_cast<uint32_t>(piece.size()));
  while (!piece.empty()) {
    const size_t step = std::min<size_t>(piece.size(), run.part_left);
    store::PartInfo& part = item.write.parts[run.part];
    part.stored_crc = crc32c(piece.first(step), part.stored_crc);
    piece = piece.subspan(step);
    run.part_left -= static_cast<uint32_t>(step);
    if (run.part_left != 0) return;
    if (run.whole) put_->part_landed(item, run.part, checks_[run.check_at++]);
    if (++run.part < item.write.parts.size()) run.part_left = item.write.parts[run.part].stored_bytes;
  }
}

// The run is over: its item may now be complete, or be given up.
void ChunkLanding::leave(Run& run) {
  PutItem* item = run.item;
  if (item == nullptr) return;
  run.item = nullptr;
  HALFSTEP_CHECK(item->landing_runs > 0, item->landing_runs);
  --item->landing_runs;
  if (pulled_) --item->pulled_runs;
  put_->run_landed(*item);
}

void ChunkLanding::release() {
  for (; at_ < runs_.size(); ++at_) leave(runs_[at_]);
}

bool ChunkLanding::divert(const PutRequest& put) noexcept {
  if (put_ != &put) return false;
  for (size_t i = at_; i < runs_.size(); ++i) {
    if (runs_[i].item != nullptr) --runs_[i].item->landing_runs;
    runs_[i].item = nullptr;
  }
  forget();
  return true;
}

void ChunkLanding::forget() noexcept {
  put_ = nullptr;
  runs_.clear();
  checks_.clear();
  if (runs_.capacity() > kRunsKept) std::vector<Run>().swap(runs_);
  if (checks_.capacity() > kChecksKept) std::vector<uint32_t>().swap(checks_);
}

}  // namespace halfstep::shard
