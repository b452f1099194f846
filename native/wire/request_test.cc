// Tests of parse_request (records.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "wire/coding_choices.h"
#include "wire/records.h"
#include "wire/sample_frames.h"

namespace halfstep::wire {
namespace request_test {

using Write = std::function<void(FrameWriter&)>;

std::vector<std::byte> body(const Write& write) {
  std::vector<std::byte> out;
  FrameWriter frame(out);
  frame.begin(Opcode::Get, 1);
  write(frame);
  frame.finish();
  const ConstBytes all = samples::body_of(out);
  return {all.begin(), all.end()};
}

Status status(Opcode opcode, const Write& write) {
  RequestView view;
  return parse_request(opcode, body(write), &view);
}

void batch(FrameWriter& frame) { frame.tlv(Tlv::Batch, Batch{}); }
void owner(FrameWriter& frame) { frame.tlv(Tlv::Owner, OwnerRecord{.owner = 7}); }
void section(FrameWriter& frame, SectionHead head = {}) { samples::put_section(frame, head, {}, {"k"}); }
std::vector<std::string> keys(size_t count) { return std::vector<std::string>(count, "k"); }

constexpr Opcode kWithSections[] = {Opcode::Match, Opcode::Get, Opcode::Delete};
const Offer kPlain{.block_bytes = 8, .stored_bytes = 8};
const Offer kCoded{.block_bytes = 8, .stored_bytes = 6, .flags = kOfferCoded};
const PartRecord kPart{.codec = 1, .stored_bytes = 6, .raw_bytes = 8};

TEST(Request, GetComesBackWithAllItSays) {
  const std::vector<std::byte> frame = samples::get();
  RequestView view;
  ASSERT_TRUE(parse_request(Opcode::Get, samples::body_of(frame), &view).ok());
  EXPECT_EQ(view.batch.deadline_us, 2'000'000U);
  EXPECT_EQ(view.batch.order, Order::LayerMajor);
  ASSERT_EQ(view.section_count, 1U);
  const SectionView& section = view.sections[0];
  EXPECT_EQ(section.head.flags, kSectionStopAtMiss);
  EXPECT_EQ(section.item_count(), 4U);
  EXPECT_EQ(section.range(0).stride, 2U);
  KeyCursor cursor(section.keys);
  ConstBytes key;
  for (const std::string& expected : samples::kKeys) {
    ASSERT_TRUE(cursor.next(&key));
    EXPECT_EQ(as_text(key), expected);
  }
  EXPECT_FALSE(cursor.next(&key));
}

TEST(Request, PutComesBackWithOffersAndPartTables) {
  RequestView view;
  const std::vector<std::byte> plain = samples::put();
  ASSERT_TRUE(parse_request(Opcode::Put, samples::body_of(plain), &view).ok());
  EXPECT_EQ(view.sections[0].offer(1).ttl_s, 3600U);
  EXPECT_EQ(view.sections[0].offer(1).parent_kind, kParentInBatch);
  EXPECT_TRUE(view.part_tables.empty());

  const std::vector<std::byte> coded = samples::put_coded();
  ASSERT_TRUE(parse_request(Opcode::Put, samples::body_of(coded), &view).ok());
  ASSERT_EQ(view.part_tables.size(), 1U);
  EXPECT_EQ(view.part_tables[0].records.size(), 4U);
  EXPECT_EQ(view.part_tables[0].records[2].raw_crc, 3U);
}

TEST(Request, AReusedViewKeepsNothingOfTheOneBefore) {
  RequestView view;
  ASSERT_TRUE(parse_request(Opcode::Put, samples::body_of(samples::put_coded()), &view).ok());
  ASSERT_TRUE(parse_request(Opcode::Release, body([](FrameWriter& f) { batch(f), owner(f); }), &view).ok());
  EXPECT_EQ(view.section_count, 0U);
  EXPECT_TRUE(view.part_tables.empty());
  EXPECT_EQ(view.owner.owner, 7U);
  ASSERT_TRUE(parse_request(Opcode::Get, samples::body_of(samples::get()), &view).ok());
  EXPECT_FALSE(view.has_owner);
  EXPECT_TRUE(view.sections[0].offers.empty());
}

TEST(Request, IsRefusedWhenTruncatedAtAnyByte) {
  for (const auto& [opcode, frame] :
       {std::pair{Opcode::Get, samples::get()}, {Opcode::Put, samples::put()}, {Opcode::Put, samples::put_coded()}}) {
    const ConstBytes whole = samples::body_of(frame);
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
      RequestView view;
      EXPECT_EQ(parse_request(opcode, whole.first(bytes), &view), Code::Invalid) << bytes;
    }
  }
}

TEST(Request, AnyFlippedByteIsTakenOrRefusedButNeverOverread) {
  for (const auto& [opcode, frame] :
       {std::pair{Opcode::Get, samples::get()}, {Opcode::Put, samples::put_coded()}, {Opcode::Put, samples::put_choices()}}) {
    const ConstBytes whole = samples::body_of(frame);
    std::vector<std::byte> flipped(whole.begin(), whole.end());  // exact size, so that ASan sees a byte too far
    for (size_t bit = 0; bit < flipped.size() * 8; ++bit) {
      flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      RequestView view;
      if (parse_request(opcode, flipped, &view).ok()) {
        for (uint32_t s = 0; s < view.section_count; ++s) {
          EXPECT_LE(view.sections[s].item_count(), kItemsMax);
          EXPECT_EQ(for_selected_parts(view.sections[s], kPartsMax, [](uint32_t) {}), Code::Ok);
        }
      }
      flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    }
  }
}

TEST(Request, OtherOpcodesAreUnsupported) {
  const Write good = [](FrameWriter& f) { batch(f), section(f); };
  for (uint32_t opcode = 0; opcode < 256; ++opcode) {
    const auto code = static_cast<Opcode>(opcode);
    const bool parsed = code == Opcode::Match || code == Opcode::Get || code == Opcode::Put || code == Opcode::Delete ||
                        code == Opcode::Release || code == Opcode::Prefetch ||
                        (code >= Opcode::Touch && code <= Opcode::Expire);
    EXPECT_EQ(status(code, good) == Code::Unsupported, !parsed) << opcode;
  }
}

TEST(Request, NeedsExactlyOneBatchAndAtLeastOneSection) {
  for (const Opcode opcode : kWithSections) {
    EXPECT_TRUE(status(opcode, [](FrameWriter& f) { batch(f), section(f); }).ok());
    EXPECT_TRUE(status(opcode, [](FrameWriter& f) { section(f), batch(f); }).ok());
    EXPECT_EQ(status(opcode, [](FrameWriter& f) { section(f); }), Code::Invalid);
    EXPECT_EQ(status(opcode, [](FrameWriter& f) { batch(f); }), Code::Invalid);
    EXPECT_EQ(status(opcode, [](FrameWriter& f) { batch(f), batch(f), section(f); }), Code::Invalid);
  }
}

TEST(Request, ReleaseNeedsAnOwnerAndNobodyElseHasOne) {
  EXPECT_TRUE(status(Opcode::Release, [](FrameWriter& f) { batch(f), owner(f); }).ok());
  EXPECT_TRUE(status(Opcode::Release, [](FrameWriter& f) { batch(f), owner(f), section(f); }).ok());
  EXPECT_EQ(status(Opcode::Release, [](FrameWriter& f) { batch(f), section(f); }), Code::Invalid);
  EXPECT_EQ(status(Opcode::Release, [](FrameWriter& f) { batch(f), owner(f), owner(f); }), Code::Invalid);
  for (const Opcode opcode : kWithSections) {
    EXPECT_EQ(status(opcode, [](FrameWriter& f) { batch(f), owner(f), section(f); }), Code::Invalid);
  }
}

TEST(Request, HoldAndRenewNeedAnOwnerAndATime) {
  const auto until = [](FrameWriter& f, const UntilRecord& record) { f.tlv(Tlv::Until, record); };
  const auto hold = [&](const UntilRecord& record) {
    return status(Opcode::Hold, [&](FrameWriter& f) { batch(f), owner(f), until(f, record), section(f); });
  };
  EXPECT_TRUE(hold({.hold_ms = 1}).ok());
  EXPECT_TRUE(hold({.hold_ms = 0, .flags = kHoldPersistent}).ok());
  EXPECT_TRUE(hold({.hold_ms = UINT64_MAX, .flags = kHoldPersistent}).ok());
  EXPECT_EQ(hold({}), Code::Invalid) << "a lease has an end";
  EXPECT_EQ(hold({.hold_ms = 1, .flags = 2}), Code::Invalid);
  EXPECT_EQ(hold({.hold_ms = 1, .reserved = 1}), Code::Invalid);
  const UntilRecord with_kind{.hold_ms = 1, .flags = kUntilKindMask};
  EXPECT_EQ(hold(with_kind), Code::Invalid) << "a kind is a prefetch's";
  EXPECT_TRUE(status(Opcode::Prefetch, [&](FrameWriter& f) { batch(f), until(f, with_kind), section(f); }).ok());
  const UntilRecord second{.hold_ms = 1000};
  EXPECT_EQ(status(Opcode::Hold, [&](FrameWriter& f) { batch(f), owner(f), section(f); }), Code::Invalid);
  EXPECT_EQ(status(Opcode::Hold, [&](FrameWriter& f) { batch(f), until(f, second), section(f); }), Code::Invalid);
  EXPECT_EQ(status(Opcode::Hold, [&](FrameWriter& f) { batch(f), owner(f), until(f, second); }), Code::Invalid);
  const Write twice = [&](FrameWriter& f) { batch(f), owner(f), until(f, second), until(f, second), section(f); };
  EXPECT_EQ(status(Opcode::Hold, twice), Code::Invalid);
  EXPECT_TRUE(status(Opcode::Renew, [&](FrameWriter& f) { batch(f), owner(f), until(f, second); }).ok());
  const Write with_keys = [&](FrameWriter& f) { batch(f), owner(f), until(f, second), section(f); };
  EXPECT_EQ(status(Opcode::Renew, with_keys), Code::Invalid) << "it is about all that an owner has";
  const UntilRecord pin{.hold_ms = 1, .flags = kHoldPersistent};
  EXPECT_EQ(status(Opcode::Renew, [&](FrameWriter& f) { batch(f), owner(f), until(f, pin); }), Code::Invalid);
  for (const Opcode opcode : kWithSections) {
    EXPECT_EQ(status(opcode, [&](FrameWriter& f) { batch(f), until(f, second), section(f); }), Code::Invalid);
  }
}

TEST(Request, ExpireNeedsAnExpiryAndNobodyElseHasOne) {
  const Write write = [](FrameWriter& f) { batch(f), f.tlv(Tlv::Expiry, ExpiryRecord{.ttl_s = 5}), section(f); };
  RequestView view;
  ASSERT_TRUE(parse_request(Opcode::Expire, body(write), &view).ok());
  EXPECT_EQ(view.expiry.ttl_s, 5U);
  EXPECT_EQ(status(Opcode::Expire, [](FrameWriter& f) { batch(f), section(f); }), Code::Invalid);
  EXPECT_EQ(status(Opcode::Touch, write), Code::Invalid);
  for (const Opcode opcode : kWithSections) EXPECT_EQ(status(opcode, write), Code::Invalid);
  ASSERT_TRUE(parse_request(Opcode::Touch, body([](FrameWriter& f) { batch(f), section(f); }), &view).ok());
  EXPECT_FALSE(view.has_expiry) << "a reused view";
}

TEST(Request, HoldsAndLengthsBelongToMatch) {
  for (const Batch& asks : {Batch{.flags = kBatchLengths}, Batch{.hold_owner = 1, .hold_ms = 1}}) {
    const Write write = [&](FrameWriter& f) { f.tlv(Tlv::Batch, asks), section(f); };
    EXPECT_TRUE(status(Opcode::Match, write).ok());
    EXPECT_EQ(status(Opcode::Get, write), Code::Invalid);
    EXPECT_EQ(status(Opcode::Delete, write), Code::Invalid);
  }
}

TEST(Request, StopAtMissBelongsToMatchAndGet) {
  const Write write = [](FrameWriter& f) { batch(f), section(f, {.flags = kSectionStopAtMiss}); };
  EXPECT_TRUE(status(Opcode::Match, write).ok());
  EXPECT_TRUE(status(Opcode::Get, write).ok());
  EXPECT_EQ(status(Opcode::Delete, write), Code::Invalid);
  EXPECT_EQ(status(Opcode::Get, [](FrameWriter& f) { batch(f), section(f, {.flags = 2}); }), Code::Invalid);
}

TEST(Request, SkipsUnknownTlvsUnlessTheyMustBeUnderstood) {
  const auto with = [](uint16_t kind) {
    return status(Opcode::Get,
                  [kind](FrameWriter& f) { batch(f), f.tlv_bytes(static_cast<Tlv>(kind), as_bytes("?")), section(f); });
  };
  EXPECT_TRUE(with(0).ok());
  EXPECT_TRUE(with(static_cast<uint16_t>(Tlv::PinBudget) + 1).ok());
  EXPECT_TRUE(with(0x7FFF).ok());
  EXPECT_EQ(with(0x8000), Code::Unsupported);
  EXPECT_EQ(with(0x8009), Code::Unsupported);
  EXPECT_EQ(with(static_cast<uint16_t>(Tlv::Statuses)), Code::Invalid);
  EXPECT_EQ(with(static_cast<uint16_t>(Tlv::HelloClient)), Code::Invalid);
}

// ---- sections ----

TEST(Section, RefusesLengthsThatLie) {
  const std::pair<const char*, std::function<void(SectionHead&)>> kLies[] = {
      {"no components", [](SectionHead& h) { h.component_count = 0; }},
      {"cells into the next variant", [](SectionHead& h) { h.first_component = 0xFFFFF, h.component_count = 2; }},
      {"cells past the last", [](SectionHead& h) { h.first_component = UINT32_MAX, h.component_count = 2; }},
      {"no keys", [](SectionHead& h) { h.key_count = 0; }},
      {"a key too many", [](SectionHead& h) { h.key_count = 3; }},
      {"a key too few", [](SectionHead& h) { h.key_count = 1; }},
      {"short keys", [](SectionHead& h) { h.keys_bytes -= 1; }},
      {"long keys", [](SectionHead& h) { h.keys_bytes += 1; }},
      {"huge keys", [](SectionHead& h) { h.keys_bytes = UINT32_MAX; }},
      {"a range that is not there", [](SectionHead& h) { h.range_count = 1; }},
      {"reserved", [](SectionHead& h) { h.reserved = 1; }},
  };
  const auto parse = [](const SectionHead& head) {
    return status(Opcode::Get, [&](FrameWriter& f) {
      batch(f);
      f.open_tlv(Tlv::Section);
      f.value().put(head);
      f.value().put_bytes(
          as_bytes("\x01"
                   "a"
                   "\x02"
                   "bc"));
      f.close_tlv();
    });
  };
  const SectionHead good{.key_count = 2, .keys_bytes = 5};
  ASSERT_TRUE(parse(good).ok());
  for (const auto& [name, lie] : kLies) {
    SectionHead bad = good;
    lie(bad);
    EXPECT_EQ(parse(bad), Code::Invalid) << name;
  }
  SectionHead many = good;
  for (const uint32_t count : {kKeysMax + 1, 0x80000001U, UINT32_MAX}) {
    many.key_count = count;
    EXPECT_EQ(parse(many), Code::TooLarge) << count;
  }
}

TEST(Section, TakesKeysOfOneTo255Bytes) {
  for (const size_t bytes : {1, 36, 255}) {
    const Write write = [&](FrameWriter& f) { batch(f), samples::put_section(f, {}, {}, {std::string(bytes, '\xFF')}); };
    EXPECT_TRUE(status(Opcode::Get, write).ok()) << bytes;
  }
  EXPECT_EQ(status(Opcode::Get, [](FrameWriter& f) { batch(f), samples::put_section(f, {}, {}, {""}); }), Code::Invalid);
}

TEST(Section, BoundsSectionsKeysAndItemsOverTheWholeRequest) {
  const auto many = [](size_t sections, size_t key_count, uint16_t components) {
    return status(Opcode::Get, [=](FrameWriter& f) {
      batch(f);
      for (size_t i = 0; i < sections; ++i) samples::put_section(f, {.component_count = components}, {}, keys(key_count));
    });
  };
  EXPECT_TRUE(many(kSectionsMax, 1, 1).ok());
  EXPECT_EQ(many(kSectionsMax + 1, 1, 1), Code::TooLarge);
  EXPECT_TRUE(many(1, kKeysMax, 4).ok());
  EXPECT_EQ(many(1, kKeysMax + 1, 1), Code::TooLarge);
  EXPECT_TRUE(many(2, kKeysMax / 2, 4).ok());
  EXPECT_EQ(many(2, kKeysMax / 2 + 1, 1), Code::TooLarge);
  EXPECT_EQ(many(1, kKeysMax, 5), Code::TooLarge);
  EXPECT_EQ(many(1, kKeysMax, UINT16_MAX), Code::TooLarge);
  EXPECT_TRUE(many(1, 1, kItemsMax).ok());
  EXPECT_EQ(many(1, 1, kItemsMax + 1), Code::TooLarge);
  EXPECT_EQ(many(2, 1, kItemsMax / 2 + 1), Code::TooLarge);
}

TEST(Section, BoundsRanges) {
  const auto with = [](Opcode opcode, const std::vector<PartRange>& ranges) {
    return status(opcode, [&](FrameWriter& f) { batch(f), samples::put_section(f, {}, ranges, {"k"}); });
  };
  EXPECT_TRUE(with(Opcode::Get, {{.start = kPartsMax - 1, .count = 1, .stride = UINT32_MAX}}).ok());
  EXPECT_TRUE(with(Opcode::Get, {{.start = 0, .count = kPartsMax, .stride = 1}}).ok());
  EXPECT_TRUE(with(Opcode::Get, std::vector<PartRange>(kRangesMax, {.start = 0, .count = 1, .stride = 1})).ok());
  for (const PartRange& bad :
       {PartRange{.start = 0, .count = 0, .stride = 1}, PartRange{.start = 0, .count = 1, .stride = 0},
        PartRange{.start = kPartsMax, .count = 1, .stride = 1}, PartRange{.start = UINT32_MAX, .count = 2, .stride = 1},
        PartRange{.start = 1, .count = kPartsMax, .stride = 1}, PartRange{.start = 0, .count = 2, .stride = UINT32_MAX},
        PartRange{.start = 0, .count = 0x80000001U, .stride = 2},
        PartRange{.start = 1, .count = UINT32_MAX, .stride = UINT32_MAX}}) {
    EXPECT_EQ(with(Opcode::Get, {bad}), Code::Invalid) << bad.start << " " << bad.count << " " << bad.stride;
  }
  // Asking for the same parts again and again would multiply the answer.
  const PartRange all{.start = 0, .count = kPartsMax, .stride = 1};
  EXPECT_EQ(with(Opcode::Get, {all, {.start = 0, .count = 1, .stride = 1}}), Code::Invalid);
  EXPECT_EQ(with(Opcode::Get, std::vector<PartRange>(kRangesMax + 1, {.start = 0, .count = 1, .stride = 1})), Code::TooLarge);
  for (const Opcode opcode : {Opcode::Match, Opcode::Delete}) EXPECT_EQ(with(opcode, {all}), Code::Invalid);
}

// ---- offers ----

TEST(Offers, StandForEveryItemOfAPutAndNowhereElse) {
  const auto offers = [](uint16_t number, size_t count) {
    return [=](FrameWriter& f) { samples::put_offers(f, number, std::vector<Offer>(count, kPlain)); };
  };
  EXPECT_TRUE(status(Opcode::Put, [&](FrameWriter& f) { batch(f), section(f), offers(0, 1)(f); }).ok());
  EXPECT_TRUE(
      status(Opcode::Put, [&](FrameWriter& f) { batch(f), section(f), section(f), offers(1, 1)(f), offers(0, 1)(f); }).ok());
  EXPECT_EQ(status(Opcode::Put, [&](FrameWriter& f) { batch(f), section(f); }), Code::Invalid);
  EXPECT_EQ(status(Opcode::Put, [&](FrameWriter& f) { batch(f), section(f), section(f), offers(0, 1)(f); }), Code::Invalid);
  EXPECT_EQ(status(Opcode::Put, [&](FrameWriter& f) { batch(f), offers(0, 1)(f), section(f); }), Code::Invalid);
  EXPECT_EQ(status(Opcode::Put, [&](FrameWriter& f) { batch(f), section(f), offers(0, 1)(f), offers(0, 1)(f); }),
            Code::Invalid);
  EXPECT_EQ(status(Opcode::Put, [&](FrameWriter& f) { batch(f), section(f), offers(0, 0)(f); }), Code::Invalid);
  EXPECT_EQ(status(Opcode::Put, [&](FrameWriter& f) { batch(f), section(f), offers(0, 2)(f); }), Code::Invalid);
  EXPECT_TRUE(status(Opcode::Put, [&](FrameWriter& f) { batch(f), section(f, {.component_count = 2}), offers(0, 2)(f); }).ok());
  for (const Opcode opcode : kWithSections) {
    EXPECT_EQ(status(opcode, [&](FrameWriter& f) { batch(f), section(f), offers(0, 1)(f); }), Code::Invalid);
  }
}

TEST(Offers, RefuseWhatNoBlockIs) {
  const auto parse = [](const Offer& offer) {
    return status(Opcode::Put, [&](FrameWriter& f) { batch(f), section(f), samples::put_offers(f, 0, {offer}); });
  };
  const std::pair<const char*, std::function<void(Offer&)>> kLies[] = {
      {"no bytes", [](Offer& o) { o.block_bytes = o.stored_bytes = 0; }},
      {"nothing stored", [](Offer& o) { o.stored_bytes = 0; }},
      {"plain, yet another length", [](Offer& o) { o.stored_bytes = 7; }},
      {"flags", [](Offer& o) { o.flags = 2; }},
      {"reserved", [](Offer& o) { o.reserved = 1; }},
      {"parent kind", [](Offer& o) { o.parent_kind = 4; }},
      {"parent past the batch", [](Offer& o) { o.parent_kind = kParentInBatch, o.parent = 1; }},
      {"parent far past the batch", [](Offer& o) { o.parent_kind = kParentInBatch, o.parent = UINT64_MAX; }},
      {"coded without a table", [](Offer& o) { o.flags = kOfferCoded; }},
  };
  ASSERT_TRUE(parse(kPlain).ok());
  for (const auto& [name, lie] : kLies) {
    Offer bad = kPlain;
    lie(bad);
    EXPECT_EQ(parse(bad), Code::Invalid) << name;
  }
  Offer known = kPlain;
  known.parent_kind = kParentKnown;
  known.parent = UINT64_MAX;
  EXPECT_TRUE(parse(known).ok());
}

TEST(CodingChoices, ComeBackOfEachItem) {
  RequestView view;
  const std::vector<std::byte> frame = samples::put_choices();
  ASSERT_TRUE(parse_request(Opcode::Put, samples::body_of(frame), &view).ok());
  CodingChoicesView choices;
  ASSERT_TRUE(parse_coding_choices(view.sections[0].choices, &choices).ok());
  EXPECT_EQ(choices.known.link_bytes_per_s, 200'000'000U);
  EXPECT_EQ(choices.known.ratio_milli, 1480U);
  ASSERT_EQ(choices.reasons.size(), 2U);
  EXPECT_EQ(coding_reason_name(static_cast<CodingReason>(choices.reasons[1])), "slow_decode");
  ASSERT_TRUE(parse_request(Opcode::Put, samples::body_of(samples::put()), &view).ok());
  EXPECT_TRUE(view.sections[0].choices.empty()) << "nothing is kept of the one before";
}

TEST(CodingChoices, StandOnceBehindTheOffersOfTheirSectionAndAreOfItsItems) {
  const auto choices = [](FrameWriter& frame, uint16_t of, uint32_t count, size_t reasons, uint32_t zero = 0) {
    frame.open_tlv(Tlv::CodingChoices);
    frame.value().put(of);
    frame.value().put(uint16_t{0});
    frame.value().put(count);
    frame.value().put(CodingKnown{.reserved = zero});
    for (size_t i = 0; i < reasons; ++i) frame.value().put(uint8_t{255});
    frame.close_tlv();
  };
  const auto put = [&](const std::function<void(FrameWriter&)>& more) {
    return status(Opcode::Put, [&](FrameWriter& f) { batch(f), section(f), samples::put_offers(f, 0, {kPlain}), more(f); });
  };
  EXPECT_TRUE(put([&](FrameWriter& f) { choices(f, 0, 1, 1); }).ok()) << "a reason that nobody knows is only counted";
  EXPECT_EQ(put([&](FrameWriter& f) { choices(f, 0, 1, 1), choices(f, 0, 1, 1); }), Code::Invalid) << "twice";
  EXPECT_EQ(put([&](FrameWriter& f) { choices(f, 1, 1, 1); }), Code::Invalid) << "another section";
  EXPECT_EQ(put([&](FrameWriter& f) { choices(f, 0, 2, 2); }), Code::Invalid) << "of more items";
  EXPECT_EQ(put([&](FrameWriter& f) { choices(f, 0, 1, 2); }), Code::Invalid) << "longer than it says";
  EXPECT_EQ(put([&](FrameWriter& f) { choices(f, 0, 0, 0); }), Code::Invalid) << "of nothing";
  EXPECT_EQ(put([&](FrameWriter& f) { choices(f, 0, 1, 1, 1); }), Code::Invalid) << "reserved";
  EXPECT_EQ(status(Opcode::Put, [&](FrameWriter& f) { batch(f), section(f), choices(f, 0, 1, 1); }), Code::Invalid)
      << "before the offers";
  EXPECT_EQ(status(Opcode::Get, [&](FrameWriter& f) { batch(f), section(f), choices(f, 0, 1, 1); }), Code::Invalid);
}

TEST(Offers, AParentInTheBatchMayStandInALaterSection) {
  Offer offer = kPlain;
  offer.parent_kind = kParentInBatch;
  offer.parent = 1;
  EXPECT_TRUE(status(Opcode::Put, [&](FrameWriter& f) {
                batch(f), section(f), samples::put_offers(f, 0, {offer}), section(f), samples::put_offers(f, 1, {kPlain});
              }).ok());
}

TEST(Offers, EachCodedOneHasItsTableInOrder) {
  const auto parse = [](const std::vector<Offer>& offers, const std::vector<std::pair<uint32_t, PartRecord>>& tables) {
    return status(Opcode::Put, [&](FrameWriter& f) {
      batch(f);
      samples::put_section(f, {}, {}, keys(offers.size()));
      samples::put_offers(f, 0, offers);
      for (const auto& [item, part] : tables) samples::put_part_table(f, 0, item, {part});
    });
  };
  EXPECT_TRUE(parse({kCoded, kPlain, kCoded}, {{0, kPart}, {2, kPart}}).ok());
  EXPECT_EQ(parse({kCoded, kPlain, kCoded}, {{0, kPart}}), Code::Invalid);
  EXPECT_EQ(parse({kCoded, kPlain, kCoded}, {{2, kPart}, {0, kPart}}), Code::Invalid);
  EXPECT_EQ(parse({kCoded, kCoded}, {{0, kPart}, {0, kPart}}), Code::Invalid);
  EXPECT_EQ(parse({kPlain}, {{0, kPart}}), Code::Invalid);
  EXPECT_EQ(parse({kCoded}, {{1, kPart}}), Code::Invalid);
  PartRecord other = kPart;
  other.stored_bytes += 1;
  EXPECT_EQ(parse({kCoded}, {{0, other}}), Code::Invalid);
  other = kPart;
  other.raw_bytes += 1;
  EXPECT_EQ(parse({kCoded}, {{0, other}}), Code::Invalid);
}

TEST(Offers, ATableNeedsItsOffersBeforeIt) {
  EXPECT_EQ(status(Opcode::Put,
                   [](FrameWriter& f) {
                     batch(f), section(f), samples::put_part_table(f, 0, 0, {kPart}), samples::put_offers(f, 0, {kCoded});
                   }),
            Code::Invalid);
  EXPECT_EQ(status(Opcode::Get, [](FrameWriter& f) { batch(f), section(f), samples::put_part_table(f, 0, 0, {kPart}); }),
            Code::Invalid);
}

}  // namespace request_test
}  // namespace halfstep::wire
