// get_parts_fixture.h — the parts of a get alone: a request taken apart, a store in RAM, and no connection.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "base/slots.h"
#include "shard/client.h"
#include "shard/fake_store.h"
#include "shard/get_item.h"
#include "shard/get_outcomes.h"
#include "shard/raw_client.h"

namespace halfstep::shard {

class GetPartsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Arena::create(32 * MiB, false, &arena_).ok());
    slots_ = std::make_unique<SlotPool>(*arena_);
    store_ = std::make_unique<FakeStore>(*slots_);
  }

  // Blocks of `parts` parts of `bytes` bytes.
  void register_layout(uint16_t parts, uint32_t bytes) {
    wire::Layout layout;
    ASSERT_TRUE(
        wire::Layout::make({{"model", "parts"}}, {{.part_count = parts, .size_count = 1, .part_bytes = {bytes}}}, &layout)
            .ok());
    block_bytes_ = parts * bytes;
    store_->register_layout("default", layout, [&](Status, uint32_t scope) { handles_.push_back({scope, layout.id()}); });
  }
  void put(const std::string& key) {
    store::Write write;
    write.name = {handles_[0].scope, {}, as_bytes(key)};
    write.key = store_->key_of(write.name);
    write.block_bytes = block_bytes_;
    write.done = [](store::Write&) {};
    ASSERT_TRUE(store_->begin_write(write).ok());
    store_->commit_write(write);
  }
  static SectionSpec section(std::vector<std::string> keys, uint16_t flags = 0) {
    SectionSpec out;
    out.flags = flags;
    out.keys = std::move(keys);
    return out;
  }
  // The request that outcomes_ and view_ are of.
  void ask(const wire::Batch& batch, const std::vector<SectionSpec>& sections) {
    frame_ = request_frame(Opcode::Get, 1, batch, sections);
    const ConstBytes body = ConstBytes(frame_).subspan(wire::kHeaderBytes);
    ASSERT_TRUE(wire::parse_request(Opcode::Get, body, &view_).ok());
    ASSERT_TRUE(outcomes_.begin(view_).ok());
  }

  std::unique_ptr<Arena> arena_;
  std::unique_ptr<SlotPool> slots_;
  std::unique_ptr<FakeStore> store_;
  std::vector<Client::Handle> handles_;
  uint32_t block_bytes_ = 0;
  std::vector<std::byte> frame_;
  wire::RequestView view_;
  GetOutcomes outcomes_;
};

}  // namespace halfstep::shard
