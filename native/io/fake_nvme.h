// fake_nvme.h — an NVMe drive for tests: commands as nvme_command.h builds them, carried out on memory, with a status for what
// the drive refuses. It takes each command apart by the specification's offsets, and so does not share the builder's code.
// Completions come newest first, some at a time. Thread: one at a time.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "io/nvme_command.h"
#include "io/nvme_queue.h"
#include "io/uring_cmd_engine.h"

namespace halfstep::io {

struct FakeNvmeDrive {
  explicit FakeNvmeDrive(uint64_t size) : bytes(size) {}

  std::vector<std::byte> bytes;
  uint32_t lba_shift = 12;
  uint64_t transfer_bytes_max = 64 * KiB;
  uint64_t scattered_bytes_max = 32 * KiB;
  bool volatile_cache = true;
  std::vector<uint16_t> placements;
  uint64_t discard_granularity_bytes = 0;
  // What a command is answered instead of being carried out: 0, to carry it out, or as the kernel answers. Null: nothing.
  std::function<int32_t(const nvme_uring_cmd& command)> refuse;
  std::function<int()> refuse_submit;  // what submit() answers: 0, or a negative errno
  bool takes_registered = true;        // as kernels from 6.1 on
  bool polled = false;                 // tells nobody of completions
  bool holding = false;                // completes nothing meanwhile

  std::vector<nvme_uring_cmd> commands;  // that were carried out or refused, in order
  std::vector<int32_t> regions;          // of each
  uint64_t deallocated_bytes = 0;
  uint32_t at_once_max = 0;

  NvmeFacts facts() const {
    NvmeFacts out;
    out.target = {.id = 1, .lba_shift = lba_shift};
    out.format = {.bytes = bytes.size(), .lba_bytes = 1U << lba_shift, .endurance_group = 1};
    out.controller.volatile_cache = volatile_cache;
    out.controller.deallocates = true;
    out.transfer_bytes_max = transfer_bytes_max;
    out.scattered_bytes_max = scattered_bytes_max;
    out.placements = placements;
    return out;
  }
};

class FakeNvmeQueue final : public NvmeQueue {
 public:
  FakeNvmeQueue(FakeNvmeDrive& drive, uint32_t entries)
      : drive_(drive), entries_(entries), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~FakeNvmeQueue() override { ::close(event_); }
  FakeNvmeQueue(const FakeNvmeQueue&) = delete;
  FakeNvmeQueue& operator=(const FakeNvmeQueue&) = delete;

  bool push(const nvme_uring_cmd& command, int32_t region, uint32_t tag) noexcept override {
    if (pushed_.size() + done_.size() == entries_) return false;
    pushed_.push_back({command, region, tag});
    return true;
  }
  int submit() noexcept override {
    if (pushed_.empty()) return 0;
    if (drive_.refuse_submit) {
      if (const int error = drive_.refuse_submit(); error != 0) return error;
    }
    for (const Pushed& one : pushed_) done_.push_back({one.tag, carry_out(one)});
    pushed_.clear();
    drive_.at_once_max = std::max(drive_.at_once_max, static_cast<uint32_t>(done_.size()));
    if (!drive_.polled && !drive_.holding) (void)::eventfd_write(event_, 1);
    return 0;
  }
  size_t take_back(std::span<uint32_t> tags) noexcept override {
    size_t count = 0;
    for (const Pushed& one : pushed_) tags[count++] = one.tag;
    pushed_.clear();
    return count;
  }
  size_t reap(std::span<NvmeDone> done) noexcept override {
    size_t count = 0;
    if (drive_.holding) return 0;
    while (count < std::min<size_t>(done.size(), 3) && !done_.empty()) {
      done[count++] = done_.back();
      done_.pop_back();
    }
    if (!done_.empty() && !drive_.polled) (void)::eventfd_write(event_, 1);
    return count;
  }
  int wait() noexcept override { return submit(); }
  int wake_descriptor() const noexcept override { return event_; }

 private:
  struct Pushed {
    nvme_uring_cmd command;
    int32_t region;
    uint32_t tag;
  };

  int32_t carry_out(const Pushed& pushed) {
    const nvme_uring_cmd& command = pushed.command;
    drive_.commands.push_back(command);
    drive_.regions.push_back(pushed.region);
    if (pushed.region != kUnregistered && !drive_.takes_registered) return -EINVAL;
    if (drive_.refuse) {
      if (const int32_t answer = drive_.refuse(command); answer != 0) return answer;
    }
    if (command.nsid != 1) return 0x400B;
    switch (command.opcode) {
      case 0x00: return 0;
      case 0x01:
      case 0x02: return move(command);
      case 0x09: return deallocate(command);
      default: return 0x4001;
    }
  }

  int32_t move(const nvme_uring_cmd& command) {
    const uint64_t first = command.cdw10 | uint64_t{command.cdw11} << 32;
    const uint64_t blocks = (command.cdw12 & 0xFFFF) + 1;
    const uint64_t all = drive_.bytes.size() >> drive_.lba_shift;
    if (first >= all || blocks > all - first) return 0x4080;
    if (blocks << drive_.lba_shift != command.data_len || command.data_len > drive_.transfer_bytes_max) return 0x4002;
    if ((command.cdw12 >> 20 & 0xF) == 2) {
      const auto id = static_cast<uint16_t>(command.cdw13 >> 16);
      if (std::find(drive_.placements.begin(), drive_.placements.end(), id) == drive_.placements.end()) return 0x4002;
    }
    std::byte* there = drive_.bytes.data() + (first << drive_.lba_shift);
    auto* here = reinterpret_cast<std::byte*>(static_cast<uintptr_t>(command.addr));
    command.opcode == 0x01 ? std::memcpy(there, here, command.data_len) : std::memcpy(here, there, command.data_len);
    return 0;
  }

  int32_t deallocate(const nvme_uring_cmd& command) {
    if ((command.cdw11 & 4) == 0 || (command.cdw10 & 0xFF) != 0 || command.data_len != 16) return 0x4002;
    const auto* range = reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(command.addr));
    const uint64_t bytes = uint64_t{load_le<uint32_t>(range + 4)} << drive_.lba_shift;
    const uint64_t offset = load_le<uint64_t>(range + 8) << drive_.lba_shift;
    if (offset > drive_.bytes.size() || bytes > drive_.bytes.size() - offset) return 0x4080;
    std::fill_n(drive_.bytes.begin() + static_cast<ptrdiff_t>(offset), bytes, std::byte{0});
    drive_.deallocated_bytes += bytes;
    return 0;
  }

  FakeNvmeDrive& drive_;
  const uint32_t entries_;
  const int event_;
  std::vector<Pushed> pushed_;
  std::vector<NvmeDone> done_;
};

inline Fault open_on_fake(FakeNvmeDrive& drive, const EngineConfig& config, Arena& arena, std::unique_ptr<Engine>* out) {
  const DiscardLimits discard{drive.discard_granularity_bytes, drive.discard_granularity_bytes * 1024};
  const auto make = [&](const std::vector<Bytes>&, UringCmdEngine::Carrier* carrier) -> Fault {
    carrier->queue = std::make_unique<FakeNvmeQueue>(drive, config.queue_depth);
    return {};
  };
  return UringCmdEngine::open_on(config, arena, {drive.facts(), discard}, make, out);
}

}  // namespace halfstep::io
