// early_fixture.h — reads of whole blocks that are told of part by part, each told of as a test lets its device requests go.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "store/coded_fixture.h"

namespace halfstep::store {

inline constexpr uint32_t kPieceBytes = 2 * kPartBytes;
inline constexpr uint32_t kPieces = kBlockBytes / kPieceBytes;

class EarlyBed : public CodedBed {
 protected:
  struct Told : Asked {
    EarlyBed* bed = nullptr;
    std::string name;
    std::vector<uint32_t> counts;  // of parts, as they were told
  };

  Told& ask(const std::string& name, std::vector<Read*>* window, uint32_t group = kGroupLarge) {
    Told& told = *all.emplace_back(std::make_unique<Told>());
    told.bed = this;
    told.name = name;
    told.read.key = key(name, group);
    told.read.component = wire::Component::of(group, 0, 0);
    told.read.piece_bytes = kPieceBytes;
    told.read.owner = static_cast<Asked*>(&told);
    told.read.landed = [](Read& read) {
      Told& self = static_cast<Told&>(*static_cast<Asked*>(read.owner));
      EXPECT_FALSE(self.done);
      self.counts.push_back(read.parts_landed);
      self.bed->expect_early(self);
    };
    told.read.complete = [](Read& read) { static_cast<Asked*>(read.owner)->done = true; };
    window->push_back(&told.read);
    return told;
  }
  Told& begin(const std::string& name, uint32_t group = kGroupLarge) {
    std::vector<Read*> window;
    Told& told = ask(name, &window, group);
    EXPECT_EQ(store->begin_reads(window), Code::Ok);
    return told;
  }
  virtual void expect_early(const Told& told) {
    ASSERT_NE(told.read.early, nullptr);
    expect_right(*told.read.early, told.name, {0, told.read.parts_landed}, shape_of_group(kGroupLarge), kBlockBytes);
  }
  virtual void expect_whole(Told& told) {
    finish(told);
    expect_right(told, told.name, {0, kParts}, shape_of_group(kGroupLarge), kBlockBytes);
  }
  void give_back(Told& told) {
    if (told.read.early != nullptr) store->unpin(told.read.early);
    if (told.read.resident != nullptr) store->unpin(told.read.resident);
    told.read.early = told.read.resident = nullptr;
  }
  // From now on reads wait for let_go().
  void hold_reads() {
    tap->tap = [](io::Request& request) { return request.op == io::Op::Read ? TapEngine::Fate::Hold : TapEngine::Fate::Pass; };
  }
  void let_go(size_t at) {
    tap->let_go(at);
    for (int turns = 0; turns < 50; ++turns) pump();
  }
  // In the order of their submission: the header, then the pieces.
  void let_all_go() {
    tap->tap = nullptr;
    tap->let_all_go();
  }
  uint64_t early_reads() const { return store->counters().early_reads; }
  uint64_t failed() const { return store->counters().early_reads_failed; }

  std::vector<std::unique_ptr<Told>> all;
};

}  // namespace halfstep::store
