// polled_nvme_queue.h — two rings to one namespace: completions of one are looked for, those of the other tell by an interrupt.
// Commands that move no bytes go through the second one. The kernel gives them to the queue of polled ones as well and then
// looks for none of them there: alone in it, a flush would end with the driver's time limit.
// Thread: one at a time.
#pragma once

#include <memory>

#include "io/nvme_queue.h"

namespace halfstep::io {

class PolledNvmeQueue final : public NvmeQueue {
 public:
  PolledNvmeQueue(std::unique_ptr<NvmeQueue> polled, std::unique_ptr<NvmeQueue> told)
      : polled_{std::move(polled)}, told_{std::move(told)} {}

  bool push(const nvme_uring_cmd& command, int32_t region, uint32_t tag) noexcept override {
    Side& side = command.data_len == 0 ? told_ : polled_;
    if (!side.queue->push(command, region, tag)) return false;
    ++side.out;
    return true;
  }
  int submit() noexcept override {
    const int error = polled_.queue->submit();
    const int other = told_.queue->submit();
    return error != 0 ? error : other;
  }
  size_t take_back(std::span<uint32_t> tags) noexcept override {
    const size_t count = polled_.take_back(tags);
    return count + told_.take_back(tags.subspan(count));
  }
  size_t reap(std::span<NvmeDone> done) noexcept override {
    const size_t count = polled_.reap(done);
    return count + told_.reap(done.subspan(count));
  }
  // Only one of them can be waited for: with commands in both this does not wait.
  int wait() noexcept override {
    if (const int error = submit(); error != 0 || (polled_.out > 0 && told_.out > 0)) return error;
    return (polled_.out > 0 ? polled_ : told_).queue->wait();
  }
  int wake_descriptor() const noexcept override { return told_.queue->wake_descriptor(); }

 private:
  struct Side {
    std::unique_ptr<NvmeQueue> queue;
    size_t out = 0;

    size_t take_back(std::span<uint32_t> tags) noexcept {
      const size_t count = queue->take_back(tags);
      out -= count;
      return count;
    }
    size_t reap(std::span<NvmeDone> done) noexcept {
      const size_t count = done.empty() ? 0 : queue->reap(done);
      out -= count;
      return count;
    }
  };
  Side polled_, told_;
};

}  // namespace halfstep::io
