#include "index/entry.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"
#include "index/bucket.h"
#include "index/expiry.h"

namespace halfstep::index {
namespace entry_test {

constexpr uint64_t kSeed = 20261121;

// ---- Entry -----------------------------------------------------------------------------------------------------------------

struct Field {
  const char* name;
  uint64_t min;
  uint64_t max;
  uint64_t (*get)(const Entry&);
  void (*set)(Entry&, uint64_t);
};

// The fields of entry.h, with the bounds that it says.
const std::vector<Field>& fields() {
  static const std::vector<Field> kFields = {
      {"checksum", 0, 0xFFFF'FFFF, [](const Entry& e) -> uint64_t { return e.checksum(); },
       [](Entry& e, uint64_t v) { e.set_checksum(static_cast<uint32_t>(v)); }},
      {"fingerprint", 0, 0xFF'FFFF'FFFF, [](const Entry& e) { return e.fingerprint(); },
       [](Entry& e, uint64_t v) { e.set_fingerprint(v); }},
      {"page", 0, (uint64_t{1} << 34) - 1, [](const Entry& e) { return e.location().page; },
       [](Entry& e, uint64_t v) {
         e.set_location({v, e.location().reuse});
       }},
      {"reuse", 0, 255, [](const Entry& e) -> uint64_t { return e.location().reuse; },
       [](Entry& e, uint64_t v) {
         e.set_location({e.location().page, static_cast<uint8_t>(v)});
       }},
      {"pages", 1, 65536, [](const Entry& e) -> uint64_t { return e.pages(); },
       [](Entry& e, uint64_t v) { e.set_pages(static_cast<uint32_t>(v)); }},
      {"touch stamp", 0, 65535, [](const Entry& e) -> uint64_t { return e.touch_stamp(); },
       [](Entry& e, uint64_t v) { e.set_touch(static_cast<uint16_t>(v), e.touch_class()); }},
      {"touch class", 0, 3, [](const Entry& e) -> uint64_t { return e.touch_class(); },
       [](Entry& e, uint64_t v) { e.set_touch(e.touch_stamp(), static_cast<uint8_t>(v)); }},
      {"held", 0, 1, [](const Entry& e) -> uint64_t { return e.held(); }, [](Entry& e, uint64_t v) { e.set_held(v != 0); }},
      {"hint", 0, 7, [](const Entry& e) -> uint64_t { return e.hint(); },
       [](Entry& e, uint64_t v) { e.set_hint(static_cast<uint8_t>(v)); }},
      {"scope slot", 0, 65535, [](const Entry& e) -> uint64_t { return e.scope_slot(); },
       [](Entry& e, uint64_t v) { e.set_scope_slot(static_cast<uint16_t>(v)); }},
      {"expiry", 0, 4095, [](const Entry& e) -> uint64_t { return e.expiry_code(); },
       [](Entry& e, uint64_t v) { e.set_expiry(static_cast<uint16_t>(v), e.sliding()); }},
      {"sliding", 0, 1, [](const Entry& e) -> uint64_t { return e.sliding(); },
       [](Entry& e, uint64_t v) { e.set_expiry(e.expiry_code(), v != 0); }},
      {"pages back", 0, 1023, [](const Entry& e) -> uint64_t { return e.pages_back(); },
       [](Entry& e, uint64_t v) { e.set_pages_back(static_cast<uint32_t>(v)); }},
      {"trailer", 0, 1, [](const Entry& e) -> uint64_t { return e.trailer(); },
       [](Entry& e, uint64_t v) { e.set_trailer(v != 0); }},
  };
  return kFields;
}

TEST(Entry, KeepsEveryFieldAtItsBordersAndLeavesTheOthersAlone) {
  Prng prng(kSeed);
  std::vector<Entry> grounds = {Entry(), Entry({UINT64_MAX, UINT64_MAX, UINT64_MAX})};
  for (int i = 0; i < 200; ++i) grounds.push_back(Entry({prng.next(), prng.next(), prng.next()}));
  for (const Field& field : fields()) {
    const uint64_t middle = field.min + prng.below(field.max - field.min + 1);
    for (const uint64_t value : {field.min, field.min + 1, middle, field.max - 1, field.max}) {
      for (const Entry& ground : grounds) {
        Entry entry = ground;
        field.set(entry, value);
        ASSERT_EQ(field.get(entry), value) << field.name;
        for (const Field& other : fields()) {
          if (&other != &field) {
            ASSERT_EQ(other.get(entry), other.get(ground)) << other.name << " after " << field.name;
          }
        }
      }
    }
  }
}

TEST(Entry, HasNoBitThatNoFieldNames) {
  Entry entry;
  for (const Field& field : fields()) field.set(entry, field.max);
  EXPECT_EQ(entry, Entry({UINT64_MAX, UINT64_MAX, UINT64_MAX}));
  for (const Field& field : fields()) field.set(entry, field.min);
  EXPECT_EQ(entry, Entry());
}

// ---- Expiry ----------------------------------------------------------------------------------------------------------------

TEST(Expiry, SaysExactlyWhatItsCodesSay) {
  uint64_t before = 0;
  for (uint16_t code = 1; code <= kExpiryCodeMax; ++code) {
    const uint64_t seconds = expiry_seconds(code);
    ASSERT_GT(seconds, before) << code;
    before = seconds;
    if (seconds <= UINT32_MAX) {
      ASSERT_EQ(expiry_code(static_cast<uint32_t>(seconds)), code);
    }
  }
}

void expect_rounded_down(uint32_t seconds) {
  const uint16_t code = expiry_code(seconds);
  ASSERT_NE(code, kExpiryNever);
  ASSERT_LE(expiry_seconds(code), seconds);
  ASSERT_GT(expiry_seconds(static_cast<uint16_t>(code + 1)), seconds) << "a later code would have done";
  ASSERT_LE(seconds - expiry_seconds(code), seconds / 128);
}

TEST(Expiry, RoundsDownToTheNextCodeAndLosesAtMostA128th) {
  for (uint32_t seconds = 1; seconds < 300'000; ++seconds) expect_rounded_down(seconds);
  Prng prng(kSeed);
  for (int i = 0; i < 300'000; ++i) expect_rounded_down(static_cast<uint32_t>(prng.next() >> (32 + prng.below(32))) | 1);
  expect_rounded_down(UINT32_MAX);
}

TEST(Expiry, KeepsTheOrderOfWhatItRounds) {
  Prng prng(kSeed);
  for (int i = 0; i < 300'000; ++i) {
    const auto a = static_cast<uint32_t>(prng.next() >> (32 + prng.below(32)));
    const auto b = static_cast<uint32_t>(prng.next() >> (32 + prng.below(32)));
    if (a <= b) {
      ASSERT_LE(expiry_code(a), expiry_code(b)) << a << " and " << b;
    }
  }
}

TEST(Expiry, MakesNoBlockThatIsPastItsTimeImmortal) { EXPECT_EQ(expiry_seconds(expiry_code(0)), 1U); }

// ---- Header ----------------------------------------------------------------------------------------------------------------

TEST(Header, MatchesExactlyTheSlotsWithTheTag) {
  Prng prng(kSeed);
  for (int i = 0; i < 200'000; ++i) {
    // Tags that differ in one bit, or by one, are what a careless comparison of bytes confuses.
    Header header(prng.next() & ~uint64_t{0xFF'FFFF'FFFF});
    const auto tag = static_cast<uint8_t>(prng.below(256));
    for (unsigned slot = 0; slot < kSlotsPerBucket; ++slot) {
      const uint8_t near[] = {tag, 0, static_cast<uint8_t>(tag ^ 1U << prng.below(8)), static_cast<uint8_t>(tag + 1), 0xFF};
      header = header.with(slot, near[prng.below(std::size(near))], prng.chance(0.5));
    }
    uint64_t left = header.matches(tag);
    for (unsigned slot = 0; slot < kSlotsPerBucket; ++slot) {
      if (header.tag(slot) != tag) continue;
      ASSERT_NE(left, 0U);
      ASSERT_EQ(Header::first(left), slot);
      left = Header::without_first(left);
    }
    ASSERT_EQ(left, 0U);
  }
}

TEST(Header, KeepsItsFieldsApart) {
  Prng prng(kSeed);
  for (int i = 0; i < 20'000; ++i) {
    const Header before(prng.next());
    const auto slot = static_cast<unsigned>(prng.below(kSlotsPerBucket));
    const auto tag = static_cast<uint8_t>(prng.below(256));
    const bool stray = prng.chance(0.5);
    const auto away = static_cast<unsigned>(prng.below(Header::kStraysAwayMax + 1));
    const Header after = before.with(slot, tag, stray).with_strays_away(away);
    ASSERT_EQ(after.tag(slot), tag);
    ASSERT_EQ(after.stray(slot), stray);
    ASSERT_EQ(after.strays_away(), away);
    ASSERT_EQ(after.open(), before.open());
    for (unsigned other = 0; other < kSlotsPerBucket; ++other) {
      if (other == slot) continue;
      ASSERT_EQ(after.tag(other), before.tag(other));
      ASSERT_EQ(after.stray(other), before.stray(other));
    }
    ASSERT_EQ(after.without(slot).tag(slot), 0);
    ASSERT_FALSE(after.without(slot).stray(slot));
    ASSERT_EQ(after.without(slot).strays_away(), away);
  }
}

TEST(Header, ComesBackToItsVersionAfterAllOfThemWithoutTouchingTheRest) {
  const Header start(0x0003'5A5A'5A5A'5A5A);
  Header header = start;
  for (unsigned i = 0; i < 1U << 14; ++i) {
    ASSERT_EQ(header.open(), i % 2 == 1);
    if (i > 0) {
      ASSERT_NE(header.bits(), start.bits());
    }
    header = header.advanced(1);
    ASSERT_EQ(header.bits() << 14, start.bits() << 14);
  }
  EXPECT_EQ(header.bits(), start.bits());
}

}  // namespace entry_test
}  // namespace halfstep::index
