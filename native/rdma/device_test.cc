#include "rdma/device.h"

#include <gtest/gtest.h>

#include "rdma/fake_verbs.h"

namespace halfstep::rdma {
namespace {

const Gid kHere = ipv4_gid(10, 9, 0, 1);
const Gid kThere = ipv4_gid(10, 9, 1, 1);

FakeDevice device(const std::string& name, const Gid& gid) {
  return {.name = name, .ports = {{.gids = {{gid, 0}, {gid, 1}, {gid, abi::kGidRoceV2}}}}};
}

TEST(Devices, TakesTheOneThatHasTheAddressOfTheRoute) {
  FakeVerbs verbs({device("a", kThere), device("b", kHere)});
  {
    Devices devices(verbs);
    Path path;
    ASSERT_TRUE(devices.find(kHere, &path).ok());
    EXPECT_EQ(path.device->name(), "b");
    EXPECT_EQ(path.port, 1);
    EXPECT_EQ(path.gid_index, 2) << "the RoCE v2 one";
    EXPECT_EQ(path.mtu_bytes, 1024U);
    EXPECT_EQ(path.gid, kHere);
  }
  EXPECT_EQ(verbs.live(), 0U);
  EXPECT_TRUE(verbs.faults().empty());
}

TEST(Devices, OpensADeviceOnceAndClosesItWithItsLastUser) {
  FakeVerbs verbs({device("a", kHere)});
  Devices devices(verbs);
  Path first;
  Path second;
  ASSERT_TRUE(devices.find(kHere, &first).ok());
  ASSERT_TRUE(devices.find(kHere, &second).ok());
  EXPECT_EQ(first.device, second.device);
  EXPECT_EQ(verbs.count("open_device"), 1U);
  first = {};
  EXPECT_EQ(verbs.count("close_device"), 0U);
  (void)verbs.take_calls();
  second = {};
  EXPECT_EQ(verbs.take_calls(), (std::vector<std::string>{"dealloc_pd", "close_device"}));
  ASSERT_TRUE(devices.find(kHere, &first).ok()) << "and opens it again";
  EXPECT_EQ(verbs.count("open_device"), 2U);
}

TEST(Devices, OpensADeviceAfreshThatAnswersNoMore) {
  FakeVerbs verbs({device("a", kHere)});
  {
    Devices devices(verbs);
    Path before;
    ASSERT_TRUE(devices.find(kHere, &before).ok());
    verbs.reload();
    Path after;
    ASSERT_TRUE(devices.find(kHere, &after).ok());
    EXPECT_NE(before.device, after.device);
    EXPECT_EQ(after.device->name(), "a");
    Path again;
    ASSERT_TRUE(devices.find(kHere, &again).ok());
    EXPECT_EQ(again.device, after.device);
    EXPECT_EQ(verbs.count("open_device"), 2U);
  }
  EXPECT_EQ(verbs.live(), 0U);
  EXPECT_TRUE(verbs.faults().empty());
}

TEST(Devices, OneWhosePortsTellNothingIsNamed) {
  FakeVerbs verbs({device("a", kHere)});
  verbs.fail_next("query_port", EIO);
  Devices devices(verbs);
  Path path;
  const Fault fault = devices.find(kHere, &path);
  EXPECT_EQ(fault.status.code(), Code::Unsupported);
  EXPECT_NE(fault.what.find("a (a: ports: EIO"), std::string::npos) << fault.what;
  EXPECT_EQ(verbs.live(), 0U);
}

TEST(Devices, SaysWhatItLookedAt) {
  FakeVerbs verbs({device("a", kThere), device("b", kThere)});
  verbs.fail_next("open_device", EACCES);
  Devices devices(verbs);
  Path path;
  const Fault fault = devices.find(kHere, &path);
  EXPECT_EQ(fault.status, Code::Unsupported);
  EXPECT_NE(fault.what.find("::ffff:10.9.0.1"), std::string::npos) << fault.what;
  EXPECT_NE(fault.what.find("a (a: open: EACCES"), std::string::npos) << fault.what;
  EXPECT_NE(fault.what.find(", b"), std::string::npos) << fault.what;
  EXPECT_EQ(verbs.live(), 0U);
}

TEST(Devices, ATableWithoutADeviceIsNoFault) {
  FakeVerbs verbs(std::vector<FakeDevice>{});
  Devices devices(verbs);
  Path path;
  EXPECT_EQ(devices.find(kHere, &path).what, "this machine has no RDMA device");
}

TEST(Devices, SkipsPortsThatAreDownAndAddressesOfAnotherType) {
  FakeDevice down = device("down", kHere);
  down.ports[0].state = 1;
  FakeDevice first_version = {.name = "v1", .ports = {{.gids = {{kHere, 1}}}}};
  FakeDevice second_port = {.name = "two", .ports = {{.gids = {}}, {.mtu = 5, .gids = {{kHere, abi::kGidRoceV2}}}}};
  FakeVerbs verbs({down, first_version, second_port});
  Devices devices(verbs);
  Path path;
  ASSERT_TRUE(devices.find(kHere, &path).ok());
  EXPECT_EQ(path.device->name(), "two");
  EXPECT_EQ(path.port, 2);
  EXPECT_EQ(path.mtu_bytes, 4096U);
}

TEST(Devices, EachFailureIsNamedAndLeavesNothingOpen) {
  const std::pair<const char*, const char*> failures[] = {
      {"get_device_list", "list of RDMA devices: ENOSYS"},
      {"query_device", "query: ENOSYS"},
      {"alloc_pd", "protection domain: ENOSYS"},
  };
  for (const auto& [function, said] : failures) {
    FakeVerbs verbs({device("a", kHere)});
    verbs.fail_next(function, ENOSYS);
    Devices devices(verbs);
    Path path;
    const Fault fault = devices.find(kHere, &path);
    EXPECT_EQ(fault.status.code(), Code::Unsupported) << function;
    EXPECT_NE(fault.what.find(said), std::string::npos) << fault.what;
    EXPECT_EQ(verbs.live(), 0U) << function;
    EXPECT_TRUE(verbs.faults().empty()) << function;
  }
}

TEST(Library, OneThatIsNotThereIsNamed) {
  Verbs* verbs = nullptr;
  const Fault fault = load_verbs("libhalfstep-has-no-such.so.9", &verbs);
  EXPECT_EQ(fault.status, Code::Unsupported);
  EXPECT_EQ(verbs, nullptr);
  EXPECT_NE(fault.what.find("libhalfstep-has-no-such.so.9"), std::string::npos) << fault.what;
}

TEST(Library, AnotherOneLacksItsSymbols) {
  Verbs* verbs = nullptr;
  const Fault fault = load_verbs("libc.so.6", &verbs);
  EXPECT_EQ(fault.status, Code::Unsupported);
  EXPECT_NE(fault.what.find("ibv_get_device_list@IBVERBS_1.1"), std::string::npos) << fault.what;
}

TEST(Library, ThisMachinesAnswersForItsDevices) {
  std::string why_not;
  Verbs* verbs = system_verbs(&why_not);
  if (verbs == nullptr) GTEST_SKIP() << why_not;
  Devices devices(*verbs);
  Path path;
  const Fault fault = devices.find(ipv4_gid(192, 0, 2, 1), &path);  // an address of documentation
  EXPECT_EQ(fault.status.code(), Code::Unsupported);
  EXPECT_FALSE(fault.what.empty());
}

}  // namespace
}  // namespace halfstep::rdma
