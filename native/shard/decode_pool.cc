#include "shard/decode_pool.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <system_error>

#include "base/check.h"
#include "base/crc.h"
#include "compress/codec.h"

namespace halfstep::shard {
namespace {

// The pieces of a part in one, where they lie or gathered.
template <typename Byte>
std::span<Byte> whole_of(std::span<const std::span<Byte>> pieces, size_t bytes, std::vector<std::byte>* memory) {
  if (pieces.size() == 1) return pieces.front();
  memory->resize(std::max(memory->size(), bytes));
  return std::span<Byte>(*memory).first(bytes);
}

template <typename Piece>
std::span<const Piece> pieces_of(const std::vector<Piece>& all, size_t first, size_t end) {
  return std::span(all).subspan(first, end - first);
}

}  // namespace

DecodePool::~DecodePool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    HALFSTEP_CHECK(queue_.empty(), queue_.size());
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status DecodePool::start() {
  const uint32_t wanted = std::clamp(std::thread::hardware_concurrency() / 4, 1U, kThreadsMax);
  try {
    while (threads_.size() < wanted) {
      threads_.emplace_back([this] { run(); });
      pthread_setname_np(threads_.back().native_handle(), "halfstep-dec");
    }
  } catch (const std::system_error& error) {
    if (threads_.empty()) return {Code::IoError, -error.code().value()};
  }
  return {};
}

void DecodePool::submit(Job& job) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(&job);
  }
  changed_.notify_one();
}

void DecodePool::run() {
  Bench bench;
  for (;;) {
    Job* job = nullptr;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = queue_.front();
      queue_.pop_front();
    }
    try {
      job->status = decode(*job, bench);
    } catch (const std::bad_alloc&) {
      job->status = Code::NoSpace;
    }
    job->owner->decoded(*job);
  }
}

Status DecodePool::decode(Job& job, Bench& bench) {
  for (size_t number = 0; number < job.parts.size(); ++number) {
    if (job.abandoned.load(std::memory_order_relaxed)) return Code::Cancelled;
    if (Status s = decode_part(job, number, bench); !s.ok()) return s;
  }
  return {};
}

Status DecodePool::decode_part(const Job& job, size_t number, Bench& bench) {
  const Part& part = job.parts[number];
  const bool last = number + 1 == job.parts.size();
  const auto in = pieces_of(job.in, part.in, last ? job.in.size() : job.parts[number + 1].in);
  const auto out = pieces_of(job.out, part.out, last ? job.out.size() : job.parts[number + 1].out);
  const compress::Codec* codec = compress::find_codec(uint32_t{part.codec});
  if (codec == nullptr) return Code::Corrupt;
  const ConstBytes stored = whole_of(in, part.stored_bytes, &bench.stored);
  if (in.size() != 1) {
    std::byte* to = bench.stored.data();
    for (const ConstBytes piece : in) to = std::copy(piece.begin(), piece.end(), to);
  }
  const Bytes raw = whole_of(out, part.raw_bytes, &bench.raw);
  if (Status s = codec->decode(stored, bench.scratch, raw); !s.ok()) return s;
  if (crc32c(raw) != part.raw_crc) return Code::Corrupt;
  if (out.size() != 1) {
    const std::byte* from = raw.data();
    for (const Bytes piece : out) {
      std::copy(from, from + piece.size(), piece.begin());
      from += piece.size();
    }
  }
  return {};
}

}  // namespace halfstep::shard
