#include "shard/pulls.h"

#include <utility>

#include "base/check.h"
#include "shard/request_put.h"

namespace halfstep::shard {

std::unique_ptr<Pulls::Pull> Pulls::take_idle() {
  if (idle_.empty()) return std::make_unique<Pull>();
  std::unique_ptr<Pull> pull = std::move(idle_.back());
  idle_.pop_back();
  return pull;
}

Status Pulls::begin(RequestHost& host, PutRequest& put, const wire::RunsView& runs, net::FrameStream& stream) {
  std::unique_ptr<Pull> pull = take_idle();
  landing_.clear();
  from_.clear();
  into_.clear();
  if (const Status status = pull->landing.begin(host, put, runs, &landing_, /*pulled=*/true); !status.ok()) return status;
  pull->pieces.assign(landing_.pieces().begin(), landing_.pieces().end());
  Status status;
  size_t with_bytes = 0;
  for (uint32_t i = 0; i < runs.run_count && status.ok(); ++i) {
    const wire::Run run = runs.run(i);
    if (run.bytes == 0 || !pull->landing.wants(with_bytes++)) continue;
    if (!put.find_places(run, kRunsMax, from_)) status = Code::NotFound;
    if (from_.size() > kRunsMax) status = Code::TooLarge;
  }
  for (const iovec& piece : pull->pieces) {
    if (piece.iov_base != nullptr) into_.emplace_back(static_cast<std::byte*>(piece.iov_base), piece.iov_len);
  }
  if (status.ok() && !into_.empty() && !stream.pull(into_, from_)) status = Code::IoError;
  if (!status.ok()) {
    pull->landing.release();
    return status;
  }
  put.pull_begun();
  pull->put = &put;
  pull->diverted = false;
  if (into_.empty()) {
    end(std::move(pull));
  } else {
    pulls_.push_back(std::move(pull));
  }
  return {};
}

std::unique_ptr<Pulls::Pull> Pulls::take_first() {
  HALFSTEP_CHECK(first_ < pulls_.size(), first_, pulls_.size());
  std::unique_ptr<Pull> pull = std::move(pulls_[first_++]);
  if (first_ == pulls_.size() || first_ >= kPullsMax) {
    pulls_.erase(pulls_.begin(), pulls_.begin() + static_cast<ptrdiff_t>(first_));
    first_ = 0;
  }
  return pull;
}

void Pulls::landed() { end(take_first()); }

void Pulls::end(std::unique_ptr<Pull> pull) {
  for (const iovec& piece : pull->pieces) {
    if (pull->diverted) break;
    if (piece.iov_base == nullptr) {
      pull->landing.landed({}, piece.iov_len);
    } else {
      pull->landing.landed({static_cast<const std::byte*>(piece.iov_base), piece.iov_len}, 0);
    }
  }
  pull->landing.release();
  pull->landing.forget();
  PutRequest& put = *std::exchange(pull->put, nullptr);
  if (idle_.size() < kIdleMax) idle_.push_back(std::move(pull));
  put.pull_ended();
}

void Pulls::divert(const PutRequest& put) noexcept {
  for (size_t i = first_; i < pulls_.size(); ++i) pulls_[i]->diverted = pulls_[i]->diverted || pulls_[i]->put == &put;
}

void Pulls::drop() {
  while (first_ < pulls_.size()) {
    std::unique_ptr<Pull> pull = take_first();
    pull->diverted = true;
    end(std::move(pull));
  }
}

}  // namespace halfstep::shard
