// asks_first.h — a store whose blocks are elsewhere, so that it has to ask before it can say what is there. A request about
// keys of such a store waits for the answer (request_asked.h), and is served afterwards as any other: find() and begin_reads()
// know by then. Invariants: `done` comes once for each question that ask() took, unless it is forgotten first; never from
// inside ask(). Thread: the shard's.
#pragma once

#include <cstdint>
#include <span>

#include "store/format/block.h"

namespace halfstep::shard {

// The detail of Code::IoError where no device failed: whoever would know gave no answer. No errno: those are negative.
inline constexpr int32_t kNoAnswer = 1;

// What a request will look for. Belongs to the store from ask() until `done` or forget().
struct Question {
  std::span<const store::BlockName> names;  // these, and their engine keys, stay as they are meanwhile
  std::span<const store::IndexKey> keys;    // of them, in the same order
  uint64_t until_us = 0;                    // on the store's clock: what is not known by then counts as not there
  void (*done)(Question& question) = nullptr;
  void* owner = nullptr;

  // The store's own: what it knows the question by, and the answers that are awaited.
  uint64_t store_number = 0;
  uint32_t store_open = 0;
};

class AsksFirst {
 public:
  // False: all of it is known already, and `done` will not come.
  virtual bool ask(Question& question) = 0;
  virtual void forget(Question& question) noexcept = 0;
  // Of a block that find() does not find: it was asked about in vain, so that nobody knows.
  virtual bool unanswered(const store::IndexKey& key) const noexcept = 0;
  // The codecs that clients may send parts in: a bit for each, as in HelloServer.
  virtual uint64_t codecs() const noexcept = 0;

 protected:
  ~AsksFirst() = default;
};

}  // namespace halfstep::shard
