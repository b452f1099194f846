// When a shard may sleep between two turns.
#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "shard/shard_fixture.h"

namespace halfstep::shard {
namespace {

// Leaves what has finished for the next poll, so many times over, and has nothing else to tell.
class LeavingEngine final : public io::Engine {
 public:
  void submit(io::Request&) noexcept override { ADD_FAILURE() << "nobody has anything for it"; }
  void flush_submissions() noexcept override {}
  size_t poll() noexcept override {
    if (left == 0) return 0;
    if (--left == 0) polled_all.set_value();
    return 1;
  }
  void wait() noexcept override {}
  bool ready() const noexcept override { return left != 0; }
  int wake_descriptor() const noexcept override { return -1; }
  uint32_t in_flight() const noexcept override { return 0; }
  uint64_t device_bytes(uint8_t) const noexcept override { return 0; }
  io::DiscardLimits discard_limits(uint8_t) const noexcept override { return {}; }
  const io::EngineFacts& facts() const noexcept override { return facts_; }
  const io::EngineCounters& counters() const noexcept override { return counters_; }

  uint32_t left = 0;
  std::promise<void> polled_all;

 private:
  io::EngineFacts facts_;
  io::EngineCounters counters_;
};

class ShardTurnTest : public ShardFixture {
 protected:
  std::unique_ptr<io::Engine> make_engine(io::MemoryDevice&) override {
    auto engine = std::make_unique<LeavingEngine>();
    engine_ = engine.get();
    return engine;
  }

  LeavingEngine* engine_ = nullptr;
};

// Nothing wakes it for them: if it slept, each of so many would take a second, and the test's own time limit ends it.
TEST_F(ShardTurnTest, DoesNotSleepWhileItsEngineHasLeftSomething) {
  std::future<void> polled_all = engine_->polled_all.get_future();
  on_shard([this] { engine_->left = 10'000; });
  polled_all.wait();
  EXPECT_EQ(on_shard([this] { return engine_->left; }), 0U);
}

}  // namespace
}  // namespace halfstep::shard
