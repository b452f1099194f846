#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>

namespace halfstep {
namespace {

TEST(Status, IsOkUntilToldOtherwiseAndCarriesItsErrno) {
  EXPECT_TRUE(Status().ok());
  const Status failed(Code::IoError, -EIO);
  EXPECT_FALSE(failed.ok());
  EXPECT_TRUE(failed == Code::IoError);
  EXPECT_EQ(failed.detail(), -EIO);
  EXPECT_FALSE(failed == Status(Code::IoError, -ENOSPC));
}

TEST(Status, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  const auto count = static_cast<uint8_t>(Code::Internal) + 1;
  for (int code = 0; code < count; ++code) names.insert(code_name(static_cast<Code>(code)));
  EXPECT_EQ(names.size(), static_cast<size_t>(count));
  EXPECT_EQ(names.count("unknown"), 0U);
  EXPECT_EQ(code_name(static_cast<Code>(count)), "unknown");
}

TEST(ErrnoName, NamesBothSignsAndNumbersThatNobodyKnows) {
  EXPECT_EQ(errno_name(EPERM), "EPERM (Operation not permitted)");
  EXPECT_EQ(errno_name(-EPERM), errno_name(EPERM));
  EXPECT_EQ(errno_name(-99999), "99999");
}

}  // namespace
}  // namespace halfstep
