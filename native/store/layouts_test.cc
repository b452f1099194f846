// Layouts take places in the store header: those without blocks give theirs up, and no namespace takes them all.
#include <gtest/gtest.h>

#include "store/format/header.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

// A layout whose canonical form has about so many bytes.
wire::Layout layout_of_bytes(const std::string& model, size_t bytes) {
  wire::GroupShape opaque;
  opaque.size_count = 1;
  opaque.part_bytes[0] = wire::kOpaquePartBytes;
  wire::Layout layout;
  EXPECT_TRUE(wire::Layout::make({{"model", model}, {"note", std::string(bytes, 'n')}}, {opaque}, &layout).ok());
  return layout;
}

struct Registered {
  Status status;
  uint32_t scope = 0;
};
Registered register_in(StoreBed& bed, const std::string& name, const wire::Layout& layout) {
  Registered out;
  bool done = false;
  bed.store->register_layout(name, layout, [&](Status status, uint32_t scope) {
    out = {status, scope};
    done = true;
  });
  while (!done) bed.pump();
  return out;
}
Registered register_in(StoreBed& bed, const std::string& name, uint64_t number, size_t bytes = 10) {
  return register_in(bed, name, layout_of_bytes(std::to_string(number), bytes));
}

TEST(Layouts, WithoutBlocksGiveTheirPlacesUpTheOldestFirst) {
  StoreBed bed(1, 16);
  bed.open();  // one layout, which gets a block
  ASSERT_EQ(bed.put("kept"), Code::Ok);
  const uint32_t kept = bed.scope;
  const Registered first = register_in(bed, "default", 0);
  for (uint64_t i = 1; i < 300; ++i) ASSERT_TRUE(register_in(bed, "default", i).status.ok()) << i;
  EXPECT_EQ(bed.store->layout_of(first.scope), nullptr) << "it gave its place up";
  EXPECT_NE(bed.store->layout_of(kept), nullptr);
  EXPECT_EQ(bed.get("kept"), Code::Ok);
  const Registered again = register_in(bed, "default", 0);
  ASSERT_TRUE(again.status.ok());
  EXPECT_NE(again.scope, first.scope) << "a scope is never used again";
}

TEST(Layouts, WithBlocksKeepTheirPlacesAndAClearedOneGivesItsUp) {
  StoreBed bed(2, 16);
  bed.open();
  const uint32_t own = bed.scope;
  for (uint64_t i = 0; i < format::kNamespaceLayoutsMax - 1; ++i) {
    const Registered registered = register_in(bed, "default", i);
    ASSERT_TRUE(registered.status.ok()) << i;
    bed.scope = registered.scope;
    ASSERT_EQ(bed.put("block", kGroupOpaque, 4096), Code::Ok);
  }
  bed.scope = own;
  ASSERT_EQ(bed.put("block"), Code::Ok);
  EXPECT_EQ(register_in(bed, "default", 1000).status, Code::NoSpace);
  const wire::Layout cleared = layout_of_bytes("7", 10);
  ASSERT_EQ(bed.change_names([&](auto done) { bed.store->clear("default", cleared.id(), done); }), Code::Ok);
  EXPECT_NE(bed.store->find_scope("default", cleared.id()), 0U) << "empty, until its place is wanted";
  ASSERT_TRUE(register_in(bed, "default", 1000).status.ok());
  EXPECT_EQ(bed.store->find_scope("default", cleared.id()), 0U);
  EXPECT_EQ(bed.get("block"), Code::Ok);
}

TEST(Layouts, ThatGiveTheirPlacesUpTakeNoPutUntilItIsDone) {
  StoreBed bed(7, 16);
  bed.open();
  const uint32_t oldest = bed.scope;
  for (uint64_t i = 0; i < format::kNamespaceLayoutsMax - 1; ++i) {
    ASSERT_TRUE(register_in(bed, "default", i).status.ok()) << i;
  }
  bool written = false;  // the header, so that it is known which layout goes
  bed.tap->tap = [&](io::Request& request) {
    written = written || (request.op == io::Op::Write && request.offset < format::kHeaderReserveBytes);
    return TapEngine::Fate::Pass;
  };
  bool done = false;
  bed.store->register_layout("default", layout_of_bytes("one more", 10), [&](Status status, uint32_t) {
    EXPECT_TRUE(status.ok());
    done = true;
  });
  // Either the layout goes and has taken nothing, or it has a block and stays.
  int refused = 0;
  int taken = 0;
  for (int i = 0; !done && i < 10'000; ++i) {
    bed.pump();
    if (done || !written || bed.store->layout_of(oldest) == nullptr) continue;
    StoreBed::Put put;
    const Status status = bed.begin_put(put, "k", kGroupPlain, 16384, false);
    EXPECT_EQ(status, Status(Code::Throttled, kThrottledPending));
    (status.ok() ? taken : refused) += 1;
    if (status.ok()) break;
  }
  while (!done) bed.pump();
  EXPECT_GT(refused, 0);
  EXPECT_EQ(taken, 0);
  EXPECT_EQ(bed.store->layout_of(oldest), nullptr);
}

TEST(Layouts, AreNotTakenForEmptyBeforeAllThatIsOnFlashIsKnown) {
  StoreBed bed(3, 16);
  bed.open();
  const wire::Layout layout = layout_of_bytes("used", 10);
  const uint32_t own = bed.scope;
  bed.scope = register_in(bed, "default", layout).scope;
  ASSERT_EQ(bed.put("block", kGroupOpaque, 4096, true), Code::Ok);
  for (uint64_t i = 0; i < 400; ++i) {  // more than a segment, so that one has to be read after the start
    ASSERT_EQ(bed.put("more " + std::to_string(i), kGroupOpaque, 16384), Code::Ok);
  }
  bed.scope = own;
  bed.close();
  bed.restart_engine();
  bed.options.recover_before_us = 0;
  bed.open();
  for (uint64_t i = 0; i < 300; ++i) (void)register_in(bed, "default", i).status.ok();
  bed.settle();
  ASSERT_FALSE(bed.store->recovering());
  bed.scope = bed.store->find_scope("default", layout.id());
  ASSERT_NE(bed.scope, 0U);
  EXPECT_EQ(bed.get("block", kGroupOpaque), Code::Ok);
}

TEST(Layouts, OfSomeNamespacesNeverFillTheHeaderForTheNext) {
  StoreBed bed(4, 16);
  bed.open();
  uint64_t number = 0;
  for (int tenant = 0; tenant < 8; ++tenant) {
    const std::string name = "tenant " + std::to_string(tenant);
    ASSERT_EQ(bed.change_names([&](auto done) { bed.store->create_namespace({name}, done); }), Code::Ok) << name;
    uint64_t taken = 0;
    for (;; ++taken) {
      const Registered registered = register_in(bed, name, number++, 4000);
      if (!registered.status.ok()) {
        EXPECT_EQ(registered.status, Code::NoSpace);
        break;
      }
      bed.scope = registered.scope;
      const Status put = bed.put("block", kGroupOpaque, 4096);
      ASSERT_EQ(put, Code::Ok) << name << ' ' << taken;
    }
    EXPECT_GT(taken, 0U) << name << " finds some";
  }
}

// The steps of a change of a full header are small ones: each turn hashes a little, however large the header is.
TEST(Layouts, AFullHeaderIsWrittenOverManyTurns) {
  StoreBed bed(5, 16);
  bed.open();
  const auto turns_of = [&](const std::string& name, uint64_t number) {
    uint64_t turns = 0;
    bool done = false;
    bed.store->register_layout(name, layout_of_bytes(std::to_string(number), 4000), [&](Status status, uint32_t) {
      EXPECT_TRUE(status.ok());
      done = true;
    });
    for (; !done; ++turns) bed.pump();
    return turns;
  };
  const uint64_t small = turns_of("default", 0);
  for (uint64_t i = 1; i < 60; ++i) ASSERT_TRUE(register_in(bed, "default", i, 4000).status.ok()) << i;
  EXPECT_GE(turns_of("default", 60), small + 60 * 4000 / (32 * KiB) - 1);
}

TEST(Layouts, ManyAtOnceAreAllAnswered) {
  StoreBed bed(6, 16);
  bed.open();
  uint64_t answered = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    bed.store->register_layout("default", layout_of_bytes(std::to_string(i), 10), [&](Status status, uint32_t scope) {
      EXPECT_TRUE(status.ok());
      EXPECT_NE(scope, 0U);
      ++answered;
    });
  }
  for (int turns = 0; answered < 100 && turns < 10'000; ++turns) bed.pump();
  EXPECT_EQ(answered, 100U);
}

}  // namespace
}  // namespace halfstep::store
