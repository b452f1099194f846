// twin_fixture.h — for the tests of this folder: a store whose machine died when reclaim had copied some blocks and before
// their old segment had a new generation. They are on flash twice, with one birth each: in a segment that has a footer, and in
// a newer one that was open and has none.
#pragma once

#include <algorithm>
#include <set>

#include "store/account/explain.h"
#include "store/store_fixture.h"

namespace halfstep::store {

class TwinBed : public StoreBed {
 public:
  static constexpr uint32_t kTwins = 12;

  static constexpr uint32_t kBefore = 135;
  explicit TwinBed(uint64_t seed) : StoreBed(seed, 8) {
    options.policy = "seg-fifo";
    options.lease_ms_max = 1'000'000'000;
  }
  static std::string twin(uint32_t number) { return "twin " + std::to_string(number); }

  void make_twins() {
    open();
    // More than the segment of copies takes that there is from the start: the twins come into one of a new generation.
    for (uint32_t i = 0; i < kBefore; ++i) put_held("before " + std::to_string(i));
    for (uint32_t i = 0; i < kTwins; ++i) put_held(twin(i));
    for (uint32_t i = 0; i < kTwins; ++i) originals_.insert(segment_of(twin(i)));
    std::vector<std::unique_ptr<Put>> others;
    bool begun = false;
    while (store->counters().blocks_rewritten < kBefore + kTwins || !all_moved()) {
      ASSERT_LT(others.size(), 5000U) << "reclaim never came to the twins";
      if (others.empty() || others.back()->done) others.push_back(std::make_unique<Put>());
      if (!begun) begun = begin_put(*others.back(), "other " + std::to_string(others.size()), kGroupPlain, 16384, true).ok();
      pump();
      begun = begun && !others.back()->done;
    }
    crash(io::MemoryEngine::Crash::PowerCut);
    for (uint32_t i = 0; i < kTwins; ++i) {
      const std::vector<uint64_t> offsets = offsets_of(twin(i));
      ASSERT_EQ(offsets.size(), 2U) << twin(i);
      for (const uint64_t at : offsets) {
        if (originals_.count(segment_at(at)) == 0) newer_.insert(segment_at(at));
      }
    }
    ASSERT_EQ(originals_.size(), 1U);
    ASSERT_EQ(newer_.size(), 1U);
    ASSERT_GT(generation_of(newer()), generation_of(original()));
  }

  // Where this block's bytes are on flash.
  std::vector<uint64_t> offsets_of(const std::string& name) const {
    const std::vector<std::byte> content = bytes_of_key(name, kPageBytes);
    const Places places = places_of(geometry);
    std::vector<std::byte> page(kPageBytes);
    std::vector<uint64_t> found;
    for (uint64_t at = places.segment(0); at < places.segments_end(); at += kPageBytes) {
      device->read(at, page);
      if (page == content) found.push_back(at);
    }
    return found;
  }
  uint32_t segment_at(uint64_t offset) const {
    return static_cast<uint32_t>((offset - places_of(geometry).segment(0)) / kSegmentBytes);
  }
  // Where the open store reads this block from.
  uint32_t segment_of(std::string_view name) const {
    const ComponentRange range{wire::Component::of(kGroupPlain, 0, 0), 1};
    KeyQuestion question;
    question.name_space = "default";
    question.engine_key = as_bytes(name);
    question.components = {&range, 1};
    const Explanation said = store->explain(question);
    return said.blocks.size() == 1 && said.blocks[0].there ? said.blocks[0].segment : UINT32_MAX;
  }

  // The segments that they are in.
  uint32_t original() const { return *originals_.begin(); }
  uint32_t newer() const { return *newer_.begin(); }

 private:
  void put_held(const std::string& name) {
    ASSERT_EQ(put(name, kGroupPlain, 16384, true), Code::Ok);
    ASSERT_TRUE(store->hold(key(name), 7, UINT64_MAX).ok());
  }
  uint64_t generation_of(uint32_t segment) const {
    std::vector<std::byte> page(kPageBytes);
    device->read(places_of(geometry).segment(segment), page);
    return load_le<format::PageHeader>(page.data()).generation;
  }
  bool all_moved() const {
    for (uint32_t i = 0; i < kTwins; ++i) {
      if (originals_.count(segment_of(twin(i))) != 0) return false;
    }
    return true;
  }

  std::set<uint32_t> originals_, newer_;
};

}  // namespace halfstep::store
