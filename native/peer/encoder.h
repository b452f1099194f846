// encoder.h — codes the blocks of puts before they are offered: an offer says a block's stored bytes. By threads of the
// client's own, a few of them, made when the first block is to be coded.
//
//   encode(ticket) ─▶ queue ─▶ workers take its items one by one ─▶ the last one of each piece calls Done
//
// A ticket is in pieces (Ticket::Encoding), so that the first can travel while the rest is being coded.
// The most urgent tickets come first; those of one priority take turns, an item each, so that a small put does not wait for a
// large one.
// Whether a block is coded at all is chosen first (coding_choice.h).
// A part that its codec does not make smaller is raw, and one that a lossy codec refuses is coded exactly. A block that needs
// as many pages coded is plain, and so is one for which there is no memory: a put never fails because of this. Invariants:
// workers read a piece's memory only between encode() and its Done; after abandon() they begin no part of it, and Done waits
// for nothing but the parts that were begun. Done comes once for each piece, whatever happens, stop() included. Thread: any;
// mutex_ covers the queue, the places of tickets in it and the spare memory. Done is called on a worker's, or the caller's of
// encode(), abandon() or stop().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "compress/unit.h"
#include "peer/coding_choice.h"
#include "peer/coding_speeds.h"
#include "peer/ticket.h"

namespace halfstep::peer {

class Encoder {
 public:
  static constexpr uint32_t kThreadsMax = 4;
  // Of coded blocks that puts have under way, and that are kept for later ones.
  static constexpr uint64_t kStagedBytesMax = uint64_t{256} << 20;
  static constexpr uint64_t kSpareBytesMax = uint64_t{32} << 20;

  // What a block will travel by: link and service speed; 0 where that is not known. Any thread.
  using Path = std::function<CodingInputs()>;

  // threads 0: as many as the machine has to spare.
  explicit Encoder(std::function<void(Ticket&, uint32_t piece)> done, uint32_t threads = 0,
                   CodingMode mode = CodingMode::Always, Path path = {})
      : done_(std::move(done)), threads_wanted_(threads), path_(std::move(path)), speeds_(mode) {}
  ~Encoder() { stop(); }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  void encode(Ticket& ticket);
  // Nobody wants what is not done yet of a ticket, or is just about to be.
  void abandon(Ticket& ticket);
  // The staged bytes of a ticket that is over. (Those of a get are not from here.)
  void take_back(Ticket& ticket);
  CodingSpeeds::Facts facts() const noexcept { return speeds_.facts(); }
  // No thread is left; whatever waits, or comes, is plain.
  void stop();

 private:
  // What a worker keeps between items.
  struct Bench {
    compress::Scratch scratch;
    std::vector<std::byte> gathered;  // a part whose memory is in pieces
    std::vector<std::byte> decoded;   // what is left of a part by a lossy codec
  };

  bool queue(Ticket& ticket);
  bool start();
  void run();
  // Under the lock: whose turn it is, and its next item.
  Ticket& next(uint32_t* item);
  // Under the lock: the items that no worker has taken, which none takes any more.
  static uint32_t withdraw(Ticket& ticket) noexcept;
  // Items [first, first + count) are left for nobody.
  void count_done(Ticket& ticket, uint32_t first, uint32_t count);
  void encode_item(Ticket& ticket, uint32_t item, Bench& bench);
  static void encode_part(const PartCoding& coding, const compress::Codec* exact, ConstBytes raw, Bytes out, Bench& bench,
                          wire::PartRecord* record);
  CodingReason choose(const Section& section, uint32_t number);
  // Why it is coded, or not: `chosen`, unless something came in between.
  CodingReason encode_block(Ticket& ticket, Section& section, uint32_t number, CodingReason chosen, CodedBlock& block,
                            Bench& bench);
  void time_decoding(const CodedBlock& block, Bench& bench);
  StagedBytes take(size_t bytes);
  void give_back(StagedBytes staged) noexcept;

  const std::function<void(Ticket&, uint32_t)> done_;
  const uint32_t threads_wanted_;
  const Path path_;
  const SystemClock clock_;
  CodingSpeeds speeds_;
  std::atomic<uint32_t> thread_count_{1};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
  std::map<uint8_t, std::list<Ticket*>> queue_;  // by priority; no list is empty
  std::vector<StagedBytes> spare_;
  uint64_t staged_bytes_ = 0;
  uint64_t spare_bytes_ = 0;
};

}  // namespace halfstep::peer
