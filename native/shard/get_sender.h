// get_sender.h — which bytes of a get leave next: blocks stand in windows, in the order of the request, from their read until
// their last part is queued.
// Key-major: an item is sent when those before it are. Layer-major: part p of all of a window goes before part p + 1; a second
// window is read while the first is sent.
// Invariants: parts of a block are queued in order, from its first of this window on; a block that is not there yet holds up
// those behind it; of a block that is dead nothing is begun, but a part that was begun is sent whole; nothing of an item is
// queued after it has left its window. Thread: the shard's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "shard/chunk_builder.h"
#include "shard/get_item.h"
#include "shard/get_outcomes.h"
#include "wire/records.h"

namespace halfstep::shard {

class GetSender {
 public:
  // Whose items they are.
  class Owner {
   public:
    // Nothing more of it will be sent, and it is unused(). Of one that is not yet, whoever used it last says so.
    virtual void release(GetItem& item) = 0;
    // The client lacks a codec of this item: whether it is decoded here.
    virtual bool decodes(const GetItem& item) const = 0;
    // Begins to decode these parts of it, in ascending order. Throttled: there is no memory now; anything else that is not ok:
    // never.
    virtual Status decode(GetItem& item, std::span<const uint32_t> parts) = 0;

   protected:
    ~Owner() = default;
  };

  GetSender(Owner& owner, GetOutcomes& outcomes) noexcept : owner_(owner), outcomes_(outcomes) {}
  // `view` and what it refers to stay until the last call. codecs: those that the client can decode.
  void begin(const wire::RequestView& view, uint64_t codecs) noexcept;

  // Items whose reads begin; behind those that are there, or as the window after the one that is being sent.
  void add(std::span<GetItem* const> items);
  // The last so many of them: their reads did not begin.
  void take_back(size_t count) noexcept;
  // Whether more may be added, with two windows or one.
  bool takes_more(bool two_windows) const noexcept {
    return !layer_major_ || window_.empty() || (two_windows && ahead_.empty());
  }
  // The first of an item's parts are there, or all of them: whether it can be sent, and how much of it.
  void accept(GetItem& item);
  // Begins to decode what is to be decoded, in the order of sending: so of the memory for it the first has some before those
  // behind it. True: memory is short, and some of it will come back without this request's being sent first, or while it is.
  // Layer by layer all of a window are sent together, and accept() begins each.
  bool begin_decodes();
  // It was decoded, or will never be.
  void accept_decoded(GetItem& item, Status status);
  // It was read once more, as `resident`. False: it was written anew meanwhile.
  bool accept_again(const GetItem& item, const store::Resident& resident) noexcept {
    return outcomes_.is_same_version(item.number, resident);
  }

  // Fills the Chunk. True: it is full, and more may be ready.
  bool fill(ChunkBuilder& chunk);
  // After fill(): whether the window that is being sent has gone, and whether another is being read.
  bool window_is_over() const noexcept { return window_.empty(); }
  bool has_next_window() const noexcept { return !ahead_.empty(); }
  void begin_next_window();
  // All of them leave.
  void drop();

  bool layer_major() const noexcept { return layer_major_; }

 private:
  bool fill_key_major(ChunkBuilder& chunk);
  bool fill_layer_major(ChunkBuilder& chunk);
  bool add_part(GetItem& item, ChunkBuilder& chunk);
  uint32_t part_of(const GetItem& item) const noexcept;
  Status begin_decode(GetItem& item);
  void refuse_codec(GetItem& item);
  void look_over(GetItem& item);
  void end_pass();
  void cut_window();
  void leave(GetItem& item);
  Status count_parts(GetItem& item) const noexcept;

  Owner& owner_;
  GetOutcomes& outcomes_;
  const wire::RequestView* view_ = nullptr;
  uint64_t codecs_ = 0;
  bool layer_major_ = false;

  std::vector<GetItem*> window_;  // being read or sent, in order; from window_at_ on
  size_t window_at_ = 0;
  // Layer-major: the ordinal that is being sent, the one that its window began with, and what is read after that window.
  uint32_t pass_ = 0;
  uint32_t window_first_ = 0;
  std::vector<GetItem*> ahead_;
  std::vector<uint32_t> parts_;  // used within begin_decode()
  uint32_t undecoded_ = 0;       // items that wait for the memory to be decoded in, or for those before them
};

}  // namespace halfstep::shard
