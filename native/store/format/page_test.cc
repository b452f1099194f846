#include "store/format/page.h"

#include <gtest/gtest.h>

namespace halfstep::store {
namespace {

constexpr HashKey kSecret{11, 22};
constexpr PageAddress kAddress{0, 0, 5, 17, 1234};

PageBuffer sealed_page() {
  PageBuffer buffer(1);
  format::PageHeader header;
  header.kind = static_cast<uint8_t>(format::PageKind::FrameEntries);
  header.segment = kAddress.segment;
  header.place = kAddress.place;
  header.generation = kAddress.generation;
  header.page_count = 1;
  header.entries = 31;
  seal_page(kSecret, header, buffer.page(0));
  return buffer;
}

Status open(const PageBuffer& buffer, const HashKey& secret = kSecret, const PageAddress& address = kAddress,
            format::PageKind kind = format::PageKind::FrameEntries) {
  format::PageHeader header;
  return open_page(secret, buffer.page(0), kind, address, &header);
}

TEST(Page, OpensOnlyWithItsSecretKindPlaceAndGeneration) {
  const PageBuffer page = sealed_page();
  EXPECT_TRUE(open(page).ok());
  EXPECT_EQ(open(page, {11, 23}), Code::Corrupt);
  EXPECT_EQ(open(page, kSecret, kAddress, format::PageKind::FooterEntries), Code::Invalid);
  EXPECT_EQ(open(page, kSecret, {0, 0, 5, 18, 1234}), Code::Invalid);
  EXPECT_EQ(open(page, kSecret, {0, 0, 6, 17, 1234}), Code::Invalid);
  EXPECT_EQ(open(page, kSecret, {1, 0, 5, 17, 1234}), Code::Invalid);
  EXPECT_EQ(open(page, kSecret, {0, 0, 5, 17, 1235}), Code::NotFound);
}

TEST(Page, NoFlippedBitGoesUnnoticed) {
  const PageBuffer page = sealed_page();
  for (uint32_t at = 0; at < kPageBytes; ++at) {
    page.page(0)[at] ^= std::byte{1} << (at % 8);
    EXPECT_FALSE(open(page).ok()) << "byte " << at;
    page.page(0)[at] ^= std::byte{1} << (at % 8);
  }
  EXPECT_TRUE(open(page).ok());
}

}  // namespace
}  // namespace halfstep::store
