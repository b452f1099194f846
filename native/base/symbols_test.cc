#include "base/symbols.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace halfstep {
namespace {

TEST(Symbols, TheFirstThatIsNotThereIsNamed) {
  void* const libc = ::dlopen("libc.so.6", RTLD_NOW);
  ASSERT_NE(libc, nullptr) << ::dlerror();
  Symbols symbols(libc);
  int (*there)() = nullptr;
  int (*other)() = nullptr;
  symbols.take(&there, "getpid");
  ASSERT_NE(there, nullptr);
  EXPECT_EQ(there(), ::getpid());
  symbols.take_if_there(&other, "no_such_function");
  EXPECT_EQ(other, nullptr);
  EXPECT_EQ(symbols.missing(), "") << "it may be missing";
  symbols.take(&other, "getpid", "GLIBC_999");
  EXPECT_EQ(other, nullptr) << "it is there, in another version";
  symbols.take(&other, "no_such_function");
  EXPECT_EQ(symbols.missing(), "getpid@GLIBC_999");
  ::dlclose(libc);
}

}  // namespace
}  // namespace halfstep
