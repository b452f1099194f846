// Where a store may be made: nowhere that something else is meant.
#include "io/place.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "io/backing.h"
#include "io/test_fixtures.h"

namespace halfstep::io {
namespace place_test {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class PlaceTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(directory_.path().empty());
    at_ = fs::canonical(directory_.path()).string();
    tables_ = {at_ + "/fstab", at_ + "/mountinfo"};
  }
  std::string in(const std::string& name) const { return at_ + "/" + name; }
  // Refused, with this in the sentence; and nothing was made.
  void expect_refused(const std::string& path, const std::string& part) {
    SCOPED_TRACE(path);
    const auto before = names();
    bool there = true;
    const Fault fault = look_at_place(path, &there, tables_);
    EXPECT_FALSE(fault.ok());
    EXPECT_FALSE(there);
    EXPECT_TRUE(contains(fault.what, part)) << fault.what;
    EXPECT_EQ(names(), before);
  }
  void expect_free(const std::string& path) {
    SCOPED_TRACE(path);
    bool there = true;
    const Fault fault = look_at_place(path, &there, tables_);
    EXPECT_TRUE(fault.ok()) << fault.what;
    EXPECT_FALSE(there);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(at_)) out.push_back(entry.path().string());
    std::sort(out.begin(), out.end());
    return out;
  }

  TemporaryDirectory directory_;
  std::string at_;
  MountTables tables_;
};

TEST_F(PlaceTest, WhereNothingIsAStoreMayBeMade) {
  expect_free(in("store.hs"));
  expect_free(in("a/b/store.hs"));
  fs::create_directory(in("real"));
  fs::create_symlink(in("real"), in("link"));
  expect_free(in("link/store.hs"));
  expect_free("/dev/shm/halfstep-no-such-store");
  bool there = false;
  EXPECT_TRUE(look_at_place(in("real"), &there, tables_).ok());
  EXPECT_TRUE(there);
}

TEST_F(PlaceTest, ALinkToWhatIsAwayIsNamedWithItsEnd) {
  fs::create_symlink(in("nvme/store.hs"), in("store.hs"));
  expect_refused(in("store.hs"), in("store.hs") + " links to " + in("nvme/store.hs") + ", which is not there: mount it, or");
  fs::create_symlink("store.hs", in("second"));  // relative, and to a link
  expect_refused(in("second"), in("second") + " links to " + in("nvme/store.hs"));
  fs::create_symlink(in("nvme"), in("state"));
  expect_refused(in("state/halfstep/store.hs"), in("state") + " links to " + in("nvme"));
  std::unique_ptr<Backing> backing;
  const Fault fault = Backing::open({.path = in("store.hs"), .read_only = true}, &backing);
  EXPECT_TRUE(contains(fault.what, "links to " + in("nvme/store.hs"))) << "fsck says the same: " << fault.what;
  EXPECT_FALSE(Backing::create({in("store.hs"), 4096, true}, nullptr, nullptr).ok());
}

TEST_F(PlaceTest, ACircleOfLinksIsNamed) {
  fs::create_symlink(in("b"), in("a"));
  fs::create_symlink(in("a"), in("b"));
  fs::create_symlink("self", in("self"));
  for (const char* name : {"a", "self", "a/store.hs", "self/x/store.hs"}) expect_refused(in(name), "lead in a circle");
}

TEST_F(PlaceTest, NothingIsMadeBelowDev) {
  fs::create_symlink("/dev", in("devices"));
  for (const std::string& path : {std::string("/dev/no-such-drive"), std::string("/dev/no-such-directory/drive"),
                                  std::string("/dev/../dev/no-such-drive"), std::string("//dev//no-such-drive"),
                                  std::string("/dev/shm/../no-such-drive"), in("devices/no-such-drive")}) {
    expect_refused(path, "nothing is made below /dev");
    const Fault fault = Backing::create({path, 4096, true}, nullptr, nullptr);
    EXPECT_FALSE(fault.ok());
    EXPECT_FALSE(fs::exists(path));
    fs::remove(path);  // where it was made all the same
  }
  fs::create_symlink("/dev/disk/by-id/no-such-drive", in("drive"));
  expect_refused(in("drive"), "links to /dev/disk/by-id/no-such-drive");
}

TEST_F(PlaceTest, AMountPointWithoutItsMountIsNamed) {
  std::ofstream(tables_.wanted) << "# a comment\n"
                                << "UUID=1 / ext4 defaults 0 1\n"
                                << "UUID=2 none swap sw 0 0\n"
                                << "UUID=3 " << in("nvme") << " xfs noatime 0 0\n"
                                << "UUID=4 " << at_ << "/with\\040space xfs noatime 0 0\n"
                                << "UUID=5 " << in("there") << " xfs noatime 0 0\n";
  std::ofstream(tables_.present) << "22 1 252:0 / / rw - ext4 /dev/vda rw\n"
                                 << "23 22 252:1 / " << in("there") << " rw - xfs /dev/vdb rw\n";
  fs::create_directories(in("nvme/halfstep"));
  expect_refused(in("nvme/store.hs"), in("nvme") + ": " + tables_.wanted + " mounts UUID=3 there");
  expect_refused(in("nvme/halfstep/store.hs"), "mount " + in("nvme"));
  expect_refused(in("with space/store.hs"), "UUID=4");  // its directory is missing, too
  fs::create_symlink(in("nvme"), in("link"));
  expect_refused(in("link/store.hs"), "UUID=3");
  expect_free(in("nvme2/store.hs"));
  expect_free(in("there/store.hs"));
  expect_free(in("store.hs"));
  // A store that is there is served, wherever it is.
  std::ofstream(in("nvme/store.hs")) << "x";
  bool there = false;
  EXPECT_TRUE(look_at_place(in("nvme/store.hs"), &there, tables_).ok());
  EXPECT_TRUE(there);
}

TEST_F(PlaceTest, AFileAmongTheDirectoriesIsNamed) {
  std::ofstream(in("file")) << "x";
  expect_refused(in("file/store.hs"), "no directory");
}

}  // namespace place_test
}  // namespace halfstep::io
