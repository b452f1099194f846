// device_work.h — what a client has under way with GPUs: copies of gets out of staging, bytes of puts into it, and tickets that
// wait for their caller's streams.
//
//   get:  gate ─▶ asked for ─▶ a part lands in a slot, is verified ─▶ copy ─▶ its answer
//   put:  gate ─▶ slots for the whole batch ─▶ copies ─▶ goes on as a put of host memory
//
// No deadlock, however many queues and connections: a ticket takes slots only when its gates are open, so nothing that holds a
// slot waits for a stream of a caller's. A slot of a get waits for our copies alone, which depend on nothing but the device. A
// put takes all of its slots at once, in the order of submission, and has them until it ends, at its deadline at the latest.
// Invariants: Ticket::copies counts what is under way for a ticket, and it is not over before that is 0 (the fence); what was
// not submitted yet is dropped by forget(). Thread: open(), check() and facts() any; the rest the client's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "gpu/copier.h"
#include "gpu/staging.h"
#include "net/loop.h"
#include "peer/halfstep.h"
#include "peer/ticket.h"

namespace halfstep::peer {

class DeviceHost {
 public:
  // Its gates are open, or one has failed.
  virtual void on_gates(Ticket& ticket, bool open) = 0;
  // The bytes of a put are in staging, and its targets are there; or they could not be had.
  virtual void on_staged(Ticket& ticket, bool ok) = 0;
  // One copy less is under way for it, and what it brought is told to the ticket.
  virtual void on_copied(Ticket& ticket) = 0;

 protected:
  ~DeviceHost() = default;
};

// Has bytes for which there was no slot.
class SlotWaiter {
 public:
  virtual void on_slot() = 0;

 protected:
  ~SlotWaiter() = default;
};

// Bytes of parts in one slot, on their way to a device.
struct DeviceCopy {
  struct Entry {
    Section* section;
    uint32_t item;
    uint32_t part;
    bool ends;  // the part's last bytes
  };
  Ticket* ticket = nullptr;
  std::byte* slot = nullptr;
  std::vector<Entry> entries;
  std::vector<gpu::Range> ranges;
};

class DeviceWork {
 public:
  using Find = std::function<gpu::Cuda*(std::string*)>;

  DeviceWork(net::Loop& loop, DeviceHost& host, Find find, gpu::StagingLimits limits);
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  // ---- Any thread
  // The device is there, and slots for gets of it, or for so many bytes of a put.
  Fault open(int ordinal, uint64_t put_bytes, std::shared_ptr<gpu::Device>* out);
  uint64_t put_bytes_max() const noexcept { return uint64_t{staging_.limit(gpu::Use::Put)} * gpu::Staging::kSlotBytes; }
  void get_facts(hs_client_facts* out);

  // ---- The client's thread
  void wait_for_gates(Ticket& ticket);
  void stage(Ticket& ticket);
  // Nothing more is begun for it.
  void forget(Ticket& ticket);
  // It is over.
  void take_back(Ticket& ticket);
  // A failure that is none of a copy.
  void tell(const std::string& error);

  std::byte* take_slot() { return staging_.take(gpu::Use::Get); }
  void give_back_slot(std::byte* slot);
  void wait_for_slot(SlotWaiter& waiter);
  void forget(SlotWaiter& waiter);
  // Its slot comes back when it is over.
  void copy(std::unique_ptr<DeviceCopy> what);
  std::unique_ptr<DeviceCopy> make_copy();

 private:
  struct OpenDevice {
    std::shared_ptr<gpu::Device> device;
    std::unique_ptr<gpu::Copier> copier;
    uint64_t failures = 0;  // of it, that were counted, and the newest error
    std::string told;
  };
  // Of a put's bytes.
  struct StagedCopy {
    DeviceWork* self;
    Ticket* ticket;
  };
  struct Landing {
    DeviceWork* self;
    std::unique_ptr<DeviceCopy> what;
  };

  gpu::Copier& copier_of(int ordinal);
  void poll();
  void poll_gates();
  void count_copies();
  void begin_staging();
  bool stage_more(Ticket& ticket);
  void arm();
  void tell_slots();
  static void on_timer(void* self);
  static void on_landed(void* landing, Status status);
  static void on_staged_copy(void* staged, Status status);

  net::Loop& loop_;
  DeviceHost& host_;
  const Find find_;
  net::Timer timer_;

  std::mutex mutex_;  // devices, and the numbers that others ask for
  std::map<int, OpenDevice> devices_;
  std::string error_;
  uint64_t waits_ = 0;
  uint64_t copies_ = 0, bytes_to_device_ = 0, bytes_to_host_ = 0, failures_ = 0;

  gpu::Staging staging_;
  std::vector<Ticket*> gated_;
  std::deque<Ticket*> wanting_;  // puts for which there are no slots
  std::vector<Ticket*> staging_now_;
  std::vector<SlotWaiter*> waiters_;
  std::vector<std::unique_ptr<DeviceCopy>> idle_;
};

}  // namespace halfstep::peer
