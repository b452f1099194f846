#include "net/socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

namespace halfstep::net {
namespace {

Address address(const std::string& text) {
  Address out;
  const Fault bad = Address::parse(text, &out);
  EXPECT_TRUE(bad.ok()) << bad.what;
  return out;
}

// Listens, connects and accepts; the answer is the accepted side.
struct Connection {
  explicit Connection(const std::string& where) {
    fault = listen_on(address(where), &listener, &bound);
    if (!fault.ok()) return;
    fault = start_connect(bound, &client);
    if (!fault.ok()) return;
    pollfd waiting{.fd = listener, .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&waiting, 1, 10'000), 1);
    EXPECT_TRUE(accept_on(listener, &accepted).ok());
    pollfd connecting{.fd = client, .events = POLLOUT, .revents = 0};
    EXPECT_EQ(::poll(&connecting, 1, 10'000), 1);
    EXPECT_TRUE(connect_result(client).ok());
  }
  ~Connection() {
    for (const int descriptor : {listener, client, accepted.descriptor}) {
      if (descriptor >= 0) ::close(descriptor);
    }
  }
  Fault fault;
  Address bound;
  Accepted accepted;
  int listener = -1;
  int client = -1;
};

class SocketTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/halfstep-net-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    ::unlink(path().c_str());
    ::rmdir(folder_.c_str());
  }
  std::string path() const { return folder_ + "/socket"; }
  std::string unix_address() const { return "unix:" + path(); }
  std::string folder_;
};

TEST(AddressTest, ReadsAndWritesItsForms) {
  struct Case {
    const char* text;
    const char* host;
    uint16_t port;
    bool is_unix;
    bool loopback;
  };
  for (const Case& want :
       {Case{"127.0.0.1:7350", "127.0.0.1", 7350, false, true}, Case{"127.9.9.9:1", "127.9.9.9", 1, false, true},
        Case{"0.0.0.0:0", "0.0.0.0", 0, false, false}, Case{"[::1]:65535", "::1", 65535, false, true},
        Case{"[::ffff:127.0.0.1]:5", "::ffff:127.0.0.1", 5, false, true},
        Case{"[2001:db8::1]:80", "2001:db8::1", 80, false, false}, Case{"localhost:7350", "localhost", 7350, false, true},
        Case{"flash-7.example:7350", "flash-7.example", 7350, false, false},
        Case{"unix:/run/halfstep.sock", "/run/halfstep.sock", 0, true, true}}) {
    const Address got = address(want.text);
    EXPECT_EQ(got.host, want.host);
    EXPECT_EQ(got.port, want.port);
    EXPECT_EQ(got.is_unix, want.is_unix);
    EXPECT_EQ(got.loopback(), want.loopback) << want.text;
    EXPECT_EQ(got.text(), want.text);
  }
}

TEST(AddressTest, SaysWhatIsWrongWithTheOthers) {
  for (const char* text : {"", "127.0.0.1", ":7350", "host:", "host:x", "host:65536", "host:-1", "host:7350x", "::1:7350",
                           "[::1:7350", "[::1]7350", "[host]:7350", "unix:"}) {
    Address out;
    const Fault bad = Address::parse(text, &out);
    EXPECT_EQ(bad.status.code(), Code::Invalid) << text;
    EXPECT_FALSE(bad.what.empty()) << text;
  }
  Address out;
  const Fault bad = Address::parse("unix:/" + std::string(200, 'x'), &out);
  EXPECT_NE(bad.what.find("107"), std::string::npos) << bad.what;
}

TEST_F(SocketTest, ConnectsOverTcpWithTheOptionsOfLoopback) {
  const Connection connection("127.0.0.1:0");
  ASSERT_TRUE(connection.fault.ok()) << connection.fault.what;
  EXPECT_NE(connection.bound.port, 0);
  EXPECT_TRUE(connection.accepted.peer_loopback);
  EXPECT_EQ(connection.accepted.peer_uid, -1);
  EXPECT_EQ(connection.accepted.peer.substr(0, 10), "127.0.0.1:");
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  const std::string available((std::istreambuf_iterator<char>(file)), {});
  for (const int descriptor : {connection.client, connection.accepted.descriptor}) {
    if (available.find("cubic") != std::string::npos && ::geteuid() == 0) {
      EXPECT_EQ(congestion_control(descriptor), "cubic");
    } else {
      EXPECT_FALSE(congestion_control(descriptor).empty());
    }
  }
}

int option(int descriptor, int level, int name) {
  int value = -1;
  socklen_t bytes = sizeof(value);
  EXPECT_EQ(::getsockopt(descriptor, level, name, &value, &bytes), 0);
  return value;
}

TEST_F(SocketTest, BothEndsGiveUpAPeerThatIsGoneWithinAMinuteWithAndWithoutTraffic) {
  const Connection connection("127.0.0.1:0");
  ASSERT_TRUE(connection.fault.ok()) << connection.fault.what;
  for (const int descriptor : {connection.client, connection.accepted.descriptor}) {
    const int unacknowledged_ms = option(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT);
    EXPECT_GT(unacknowledged_ms, 0) << "retransmissions go on for a quarter of an hour";
    EXPECT_LE(unacknowledged_ms, 60'000);
    EXPECT_EQ(option(descriptor, SOL_SOCKET, SO_KEEPALIVE), 1);
    const int idle_s = option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE);
    const int probes_s = option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL) * option(descriptor, IPPROTO_TCP, TCP_KEEPCNT);
    EXPECT_LE(idle_s + probes_s, 60);
  }
}

TEST_F(SocketTest, ConnectsOverIpv6) {
  const Connection connection("[::1]:0");
  if (!connection.fault.ok()) GTEST_SKIP() << connection.fault.what;
  EXPECT_EQ(connection.bound.host, "::1");
  EXPECT_TRUE(connection.accepted.peer_loopback);
}

TEST_F(SocketTest, ConnectsOverAUnixSocketThatOthersMayNotOpen) {
  const Connection connection(unix_address());
  ASSERT_TRUE(connection.fault.ok()) << connection.fault.what;
  EXPECT_EQ(connection.accepted.peer_uid, static_cast<int64_t>(::geteuid()));
  EXPECT_TRUE(connection.accepted.peer_loopback);
  EXPECT_EQ(congestion_control(connection.client), "none");
  struct stat facts {};
  ASSERT_EQ(::stat(path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0660U);
}

TEST_F(SocketTest, NamesWhoHoldsABusyPort) {
  int first = -1;
  Address bound;
  ASSERT_TRUE(listen_on(address("127.0.0.1:0"), &first, &bound).ok());
  int second = -1;
  Address unused;
  const Fault busy = listen_on(bound, &second, &unused);
  EXPECT_EQ(busy.status, Status(Code::Invalid, -EADDRINUSE));
  EXPECT_NE(busy.what.find("pid " + std::to_string(::getpid())), std::string::npos) << busy.what;
  EXPECT_NE(busy.what.find("which is this process: it was given twice"), std::string::npos) << busy.what;
  EXPECT_NE(busy.what.find("choose another port"), std::string::npos) << busy.what;
  EXPECT_EQ(second, -1);
  ::close(first);
  EXPECT_TRUE(listen_on(bound, &second, &unused).ok()) << "free again at once";
  ::close(second);
}

TEST_F(SocketTest, RefusesAUnixSocketThatSomebodyServes) {
  int first = -1;
  int second = -1;
  Address bound;
  ASSERT_TRUE(listen_on(address(unix_address()), &first, &bound).ok());
  const Fault busy = listen_on(address(unix_address()), &second, &bound);
  EXPECT_EQ(busy.status, Status(Code::Invalid, -EADDRINUSE));
  EXPECT_NE(busy.what.find("pid " + std::to_string(::getpid())), std::string::npos) << busy.what;
  ::close(first);
}

TEST_F(SocketTest, ReplacesAStaleUnixSocket) {
  int listener = -1;
  Address bound;
  ASSERT_TRUE(listen_on(address(unix_address()), &listener, &bound).ok());
  ::close(listener);  // the path stays, as after kill -9
  const Connection connection(unix_address());
  EXPECT_TRUE(connection.fault.ok()) << connection.fault.what;
}

TEST_F(SocketTest, LeavesAFileAlone) {
  std::ofstream(path()) << "precious";
  int listener = -1;
  Address bound;
  const Fault bad = listen_on(address(unix_address()), &listener, &bound);
  EXPECT_EQ(bad.status, Status(Code::Invalid, -EEXIST));
  std::string content;
  std::ifstream(path()) >> content;
  EXPECT_EQ(content, "precious");
}

TEST_F(SocketTest, NamesTheDirectoryThatIsMissing) {
  int listener = -1;
  Address bound;
  const Fault bad = listen_on(address("unix:" + folder_ + "/none/socket"), &listener, &bound);
  EXPECT_NE(bad.what.find("create the directory " + folder_ + "/none"), std::string::npos) << bad.what;
}

TEST_F(SocketTest, SaysThatAPathIsNoSocket) {
  std::ofstream(path()) << "precious";
  for (const std::string& wrong : {unix_address(), unix_address() + "/below"}) {
    int descriptor = -1;
    const Fault bad = start_connect(address(wrong), &descriptor);
    EXPECT_EQ(bad.status.code(), Code::Closed);
    EXPECT_NE(bad.what.find("no socket at that path: correct the address"), std::string::npos) << bad.what;
  }
}

TEST_F(SocketTest, SaysThatNobodyListens) {
  int descriptor = -1;
  const Fault gone = start_connect(address(unix_address()), &descriptor);
  EXPECT_EQ(gone.status.code(), Code::Closed);
  EXPECT_NE(gone.what.find("nobody listens"), std::string::npos) << gone.what;

  int listener = -1;
  Address bound;
  ASSERT_TRUE(listen_on(address("127.0.0.1:0"), &listener, &bound).ok());
  ::close(listener);
  const Fault started = start_connect(bound, &descriptor);
  if (started.ok()) {
    pollfd connecting{.fd = descriptor, .events = POLLOUT, .revents = 0};
    ASSERT_EQ(::poll(&connecting, 1, 10'000), 1);
    EXPECT_EQ(connect_result(descriptor), Status(Code::Closed, -ECONNREFUSED));
    ::close(descriptor);
  } else {
    EXPECT_EQ(started.status.code(), Code::Closed);
  }
}

TEST_F(SocketTest, AcceptTellsNothingWaitingFromNoDescriptorsLeft) {
  int listener = -1;
  Address bound;
  ASSERT_TRUE(listen_on(address("127.0.0.1:0"), &listener, &bound).ok());
  Accepted accepted;
  EXPECT_EQ(accept_on(listener, &accepted).code(), Code::Throttled);
  int client = -1;
  ASSERT_TRUE(start_connect(bound, &client).ok());
  pollfd waiting{.fd = listener, .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&waiting, 1, 10'000), 1);

  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(client) + 1, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status full = accept_on(listener, &accepted);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(full, Status(Code::NoSpace, -EMFILE));
  EXPECT_TRUE(accept_on(listener, &accepted).ok()) << "the caller still waits";
  ::close(accepted.descriptor);
  ::close(client);
  ::close(listener);
}

}  // namespace
}  // namespace halfstep::net
