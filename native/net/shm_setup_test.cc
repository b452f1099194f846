// How two ends come to share rings, and what a client may do with what it was passed.
#include "net/shm_setup.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "base/numa.h"
#include "base/units.h"
#include "net/stream_fixture.h"
#include "wire/sample_frames.h"

namespace halfstep::net {
namespace shm_setup_test {

using wire::Opcode;

constexpr uint32_t kRing = 64 * KiB;

size_t open_descriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  size_t count = 0;
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

// While it exists, this process may have at most so many more descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(size_t more) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int lowest_free = ::dup(0);
    EXPECT_GE(lowest_free, 0);
    ::close(lowest_free);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(lowest_free) + more;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

// What a client that takes things into its own hands gets.
struct Received {
  ShmAnswer answer;
  ssize_t bytes = 0;
  std::vector<int> descriptors;
  RingMemory memory;
  ~Received() {
    for (const int descriptor : descriptors) ::close(descriptor);
  }
};

void receive_raw(int socket, Received* out) {
  iovec vector{&out->answer, sizeof(out->answer)};
  alignas(cmsghdr) std::array<char, 256> control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  out->bytes = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (out->bytes <= 0) return;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    out->descriptors.resize((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(out->descriptors.data(), CMSG_DATA(head), out->descriptors.size() * sizeof(int));
  }
}

// A server's stream on an accepted socket; the client's end is `far_`.
class ShmSetup : public StreamFixture {
 protected:
  void accept() {
    const auto pair = unix_pair();
    far_ = pair[0];
    stream_ = std::make_unique<FrameStream>(loop_, accepted_transport(pair[1], {kRing, kRing}, graveyard_), sink_);
    ASSERT_TRUE(stream_->start().ok());
  }
  void take() {
    ASSERT_TRUE(ask_for_rings(far_).ok());
    turns();
    const Fault fault = take_rings(far_, &far_rings_);
    ASSERT_TRUE(fault.ok()) << fault.what;
    far_ = -1;
  }
  // A client that asks, and does with what it gets what it likes.
  void accept_raw(Received* got) {
    accept();
    ASSERT_TRUE(ask_for_rings(far_).ok());
    turns();
    receive_raw(far_, got);
    ASSERT_EQ(got->bytes, static_cast<ssize_t>(sizeof(ShmAnswer)));
    ASSERT_EQ(got->descriptors.size(), 3U);
    ASSERT_TRUE(RingMemory::map(got->descriptors[0], got->answer, &got->memory).ok());
  }
};

TEST(RingMemory, LiesWhereItsMakerPrefersWhoeverTouchesItFirst) {
  int node = -1;
  const std::vector<numa::Node> nodes = numa::read_nodes();
  if (!numa::preferred(nullptr, &node).ok() || nodes.empty()) GTEST_SKIP() << "the calls about memory nodes are refused here";
  RingMemory made;
  RingMemory clients;
  int descriptor = -1;
  std::thread([&] {
    EXPECT_TRUE(numa::prefer_for_thread(nodes.front().number).ok());
    EXPECT_TRUE(RingMemory::create(kRing, kRing, &made, &descriptor).ok());
  }).join();
  ASSERT_TRUE(
      RingMemory::map(descriptor, {.memory_bytes = made.bytes(), .to_server_bytes = kRing, .to_client_bytes = kRing}, &clients)
          .ok());
  ::close(descriptor);
  for (RingMemory* memory : {&made, &clients}) {
    EXPECT_TRUE(numa::preferred(memory->to_client_data().data(), &node).ok());
    EXPECT_EQ(node, static_cast<int>(nodes.front().number));
  }
}

TEST_F(ShmSetup, ASocketWithoutAnAskStaysAByteStream) {
  accept();
  const Octets bytes = frame(Opcode::Match, 1, random_octets(100, 1));
  for (const std::byte& byte : bytes) {
    write_far({&byte, 1});
    turns(1);
  }
  write_far(chunk(2, random_octets(3000, 2)));
  ASSERT_TRUE(turn_until([this] { return sink_.chunks == 1; }));
  EXPECT_EQ(sink_.log, "3:1:112 32:2:16 end:2 ");
  EXPECT_FALSE(stream_->shared_memory());
  stream_->send(frame(Opcode::Final, 1, {}));
  turns();
  EXPECT_EQ(read_far(), frame(Opcode::Final, 1, {}));
}

TEST_F(ShmSetup, AfterAnAskFramesGoThroughTheRings) {
  accept();
  const ShmAsk ask;
  for (const std::byte& byte : object_bytes(ask)) {
    write_far({&byte, 1});
    turns(1);
  }
  ASSERT_TRUE(take_rings(far_, &far_rings_).ok());
  far_ = -1;
  EXPECT_TRUE(stream_->shared_memory());
  const Octets payload = random_octets(200 * KiB, 1);
  const Octets bytes = chunk(7, payload);
  for (ConstBytes rest = bytes; !rest.empty();) {
    const iovec vector{const_cast<std::byte*>(rest.data()), rest.size()};
    const ssize_t sent = far_rings_->send(&vector, 1, false);
    if (sent > 0) rest = rest.subspan(static_cast<size_t>(sent));
    turns(1);
  }
  ASSERT_TRUE(turn_until([this] { return sink_.chunks == 1; }));
  EXPECT_EQ(sink_.landed[7], payload);
  stream_->send(frame(Opcode::Final, 7, {}));
  turns();
  EXPECT_EQ(read_far(), frame(Opcode::Final, 7, {}));
}

TEST_F(ShmSetup, AnAskOfAnotherVersionIsRefusedInWords) {
  accept();
  ShmAsk ask;
  ask.version_min = ask.version_max = 2;
  write_far(object_bytes(ask));
  ASSERT_TRUE(turn_until([this] { return sink_.closed != 0; }));
  std::unique_ptr<Transport> none;
  const Fault fault = take_rings(far_, &none);
  EXPECT_EQ(fault.status.code(), Code::Unsupported);
  EXPECT_NE(fault.what.find("version 1"), std::string::npos) << fault.what;
}

TEST_F(ShmSetup, WhatDescriptorsDoNotSufficeForIsRefusedInWords) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UndefinedBehaviorSanitizer makes a pipe to look at an object, and takes it for a wrong one when it cannot";
#endif
  for (size_t more = 0;; ++more) {
    ASSERT_LT(more, 20U);
    sink_ = Recorder();
    accept();
    ASSERT_TRUE(ask_for_rings(far_).ok());
    {
      const FewDescriptors few(more);
      turns();
    }
    const Fault fault = take_rings(far_, &far_rings_);
    if (fault.ok()) break;
    EXPECT_EQ(fault.status.code(), Code::Throttled) << more;
    EXPECT_NE(fault.what.find("LimitNOFILE"), std::string::npos) << more << ": " << fault.what;
    EXPECT_EQ(sink_.closed, 1);
    EXPECT_EQ(graveyard_.refused(), more + 1);
    close_far();
  }
  EXPECT_GT(graveyard_.refused(), 3U);
  far_ = -1;
}

TEST_F(ShmSetup, MemoryOfRingsHasABoundAndEndedOnesMakeRoomForNewOnes) {
  constexpr uint64_t kBytes = ring_memory_bytes(kRing, kRing);
  RingGraveyard graveyard(loop_, 2 * kBytes + 1);
  RingMemory memory;
  int descriptor = -1;
  ASSERT_TRUE(RingMemory::create(kRing, kRing, &memory, &descriptor).ok());
  ::close(descriptor);
  ASSERT_TRUE(graveyard.take(kBytes));
  ASSERT_TRUE(graveyard.take(kBytes));
  EXPECT_FALSE(graveyard.take(kBytes));
  EXPECT_EQ(graveyard.refused(), 1U);
  graveyard.bury(std::move(memory));
  EXPECT_EQ(graveyard.bytes(), 2 * kBytes) << "its client may still read";
  EXPECT_TRUE(graveyard.take(kBytes)) << "but not when others want the room";
  graveyard.give(2 * kBytes);
  EXPECT_EQ(graveyard.bytes(), 0U);
  EXPECT_EQ(graveyard.refused(), 1U);
}

// The daemon may have accepted, said why it will not serve, and closed, before the client has asked for anything.
TEST_F(ShmSetup, WhoAsksTooLateHearsWhyItWasClosed) {
  accept();
  stream_->abort(Code::TooLarge, "connections=2 is reached");
  turns();
  EXPECT_TRUE(ask_for_rings(far_).ok());
  std::unique_ptr<Transport> none;
  const Fault fault = take_rings(far_, &none);
  EXPECT_EQ(fault.status.code(), Code::Closed);
  EXPECT_NE(fault.what.find("connections_max"), std::string::npos) << fault.what;
}

TEST_F(ShmSetup, TheMemoryIsSealedAndCannotBeTruncated) {
  Received got;
  ASSERT_NO_FATAL_FAILURE(accept_raw(&got));
  EXPECT_NE(::ftruncate(got.descriptors[0], 4096), 0);
  EXPECT_NE(::ftruncate(got.descriptors[0], 64 << 20), 0);
  EXPECT_NE(::fcntl(got.descriptors[0], F_ADD_SEALS, F_SEAL_WRITE), 0);
}

// Flags are shared by all who have a descriptor: one that blocks when the server writes to it would stop the server.
TEST_F(ShmSetup, AClientCannotMakeTheServerWait) {
  Received got;
  ASSERT_NO_FATAL_FAILURE(accept_raw(&got));
  RingMemory& memory = got.memory;
  const uint64_t most = UINT64_MAX - 1;
  for (const size_t i : {size_t{1}, size_t{2}}) {
    (void)!::write(got.descriptors[i], &most, sizeof(most));
    ASSERT_EQ(::fcntl(got.descriptors[i], F_SETFL, 0), 0);
  }
  for (int i = 0; i < 100; ++i) {
    memory.to_client().reader_waits = 1;
    stream_->send(frame(Opcode::Final, 1, {}));
    turns();
  }
  EXPECT_EQ(stream_->queued_bytes(), 0U);
}

TEST_F(ShmSetup, AClientThatScribblesIsClosedAndNothingElse) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Prng prng(seed);
    sink_ = Recorder();
    Received got;
    ASSERT_NO_FATAL_FAILURE(accept_raw(&got));
    RingMemory& memory = got.memory;
    for (int round = 0; round < 20 && sink_.closed == 0; ++round) {
      stream_->send_chunk(frame(Opcode::Chunk, 1, {}, 100), {}, nullptr, nullptr, 0);
      prng.fill(prng.chance(0.5) ? memory.to_server_data() : memory.to_client_data());
      RingControl& control = prng.chance(0.5) ? memory.to_server() : memory.to_client();
      (prng.chance(0.5) ? control.tail : control.head) = prng.chance(0.5) ? prng.below(2 * kRing) : prng.next();
      control.reader_waits = static_cast<uint32_t>(prng.next());
      control.writer_waits = static_cast<uint32_t>(prng.next());
      const uint64_t one = 1;
      (void)!::write(got.descriptors[1], &one, sizeof(one));
      turns(2);
    }
    close_far();
    ASSERT_TRUE(turn_until([this] { return sink_.closed != 0; })) << "seed " << seed;
    stream_.reset();
  }
}

TEST_F(ShmSetup, WhoDiesIsNoticedAfterItsLastBytes) {
  accept();
  take();
  write_far(frame(Opcode::Match, 1, {}));
  close_far();
  ASSERT_TRUE(turn_until([this] { return sink_.closed != 0; }));
  EXPECT_EQ(sink_.log, "3:1:0 ");
  EXPECT_EQ(sink_.why, Status(Code::Closed, 0));
}

size_t resident_bytes(int memory) {
  struct stat facts {};
  EXPECT_EQ(::fstat(memory, &facts), 0);
  return static_cast<size_t>(facts.st_blocks) * 512;
}

TEST_F(ShmSetup, PagesAreGivenBackWhenTheConnectionEndsThoughTheClientKeepsTheMemory) {
  for (const bool client_first : {true, false}) {
    sink_ = Recorder();
    Received got;
    ASSERT_NO_FATAL_FAILURE(accept_raw(&got));
    RingMemory& memory = got.memory;
    std::fill(memory.to_server_data().begin(), memory.to_server_data().end(), std::byte{1});
    std::fill(memory.to_client_data().begin(), memory.to_client_data().end(), std::byte{1});
    EXPECT_GE(resident_bytes(got.descriptors[0]), 2 * kRing);
    if (client_first) {
      close_far();
      ASSERT_TRUE(turn_until([this] { return sink_.closed != 0; }));
    }
    stream_.reset();
    if (!client_first) clock_.us += 1'000'000;
    loop_.turn(0);
    EXPECT_EQ(resident_bytes(got.descriptors[0]), 0U);
    close_far();
  }
}

TEST_F(ShmSetup, TheLastWordsToAClientCanBeReadForASecond) {
  std::vector<std::unique_ptr<Received>> clients;
  const size_t count = 70;  // more than are kept
  for (size_t i = 0; i < count; ++i) {
    sink_ = Recorder();
    clients.push_back(std::make_unique<Received>());
    ASSERT_NO_FATAL_FAILURE(accept_raw(clients.back().get()));
    stream_->abort(Code::Invalid, "last words");
    ASSERT_TRUE(turn_until([this] { return sink_.closed != 0; }));
    stream_.reset();
    close_far();
  }
  EXPECT_EQ(resident_bytes(clients.front()->descriptors[0]), 0U) << "the oldest gave way";
  Received& last = *clients.back();
  RingReader reader(last.memory.to_client(), last.memory.to_client_data(), -1);
  Octets words(1000);
  const iovec vector{words.data(), words.size()};
  const ssize_t got = reader.read(&vector, 1);
  ASSERT_GT(got, 0);
  EXPECT_EQ(abort_reason(ConstBytes(words).first(static_cast<size_t>(got))), "last words");
  clock_.us += 1'000'000;
  loop_.turn(0);
  for (const auto& client : clients) EXPECT_EQ(resident_bytes(client->descriptors[0]), 0U);
}

TEST_F(ShmSetup, AnIdleEndGivesBackTheRingThatItFills) {
  Received got;
  ASSERT_NO_FATAL_FAILURE(accept_raw(&got));
  RingMemory& memory = got.memory;
  RingReader reader(memory.to_client(), memory.to_client_data(), -1);
  const int kept = got.descriptors[0];
  const Octets payload = random_octets(32 * KiB, 1);
  const ConstBytes piece = payload;
  for (int round = 0; round < 2; ++round) {  // what comes afterwards is right all the same
    const Octets head = frame(Opcode::Chunk, 1, {}, 32 * KiB);
    stream_->send_chunk(head, {&piece, 1}, nullptr, nullptr, 0);
    turns();
    EXPECT_GE(resident_bytes(kept), payload.size());
    Octets read(head.size() + payload.size());
    for (size_t at = 0; at < read.size();) {
      const iovec vector{read.data() + at, read.size() - at};
      const ssize_t count = reader.read(&vector, 1);
      ASSERT_GT(count, 0);
      at += static_cast<size_t>(count);
    }
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), read.begin() + static_cast<ptrdiff_t>(head.size())));
    for (int i = 0; i < 4; ++i) {
      clock_.us += 200'000;
      loop_.turn(0);
    }
    EXPECT_LE(resident_bytes(kept), kRingControlBytes);
  }
}

// ---- A client takes nothing that would hurt it ---------------------------------------------------------------------------

struct Offer {
  ShmAnswer answer{.memory_bytes = kRingControlBytes + 2 * kRing, .to_server_bytes = kRing, .to_client_bytes = kRing};
  uint64_t real_bytes = kRingControlBytes + 2 * kRing;
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;  // -1: of what is no memfd
  size_t descriptors = 3;
  size_t bytes = sizeof(ShmAnswer);
  size_t descriptors_to_spare = 100;  // the client's
};

Fault offered(const Offer& offer) {
  const auto pair = unix_pair();
  const int memory = offer.seals < 0 ? ::dup(pair[1]) : ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (offer.seals >= 0) {
    EXPECT_EQ(::ftruncate(memory, static_cast<off_t>(offer.real_bytes)), 0);
    EXPECT_EQ(::fcntl(memory, F_ADD_SEALS, offer.seals), 0);
  }
  std::array<int, 5> passed{memory, pair[1], pair[1], pair[1], pair[1]};
  iovec vector{const_cast<ShmAnswer*>(&offer.answer), offer.bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(5 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (offer.descriptors != 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(offer.descriptors * sizeof(int));
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(offer.descriptors * sizeof(int));
    std::memcpy(CMSG_DATA(head), passed.data(), offer.descriptors * sizeof(int));
  }
  EXPECT_EQ(::sendmsg(pair[1], &message, 0), static_cast<ssize_t>(offer.bytes));
  std::unique_ptr<Transport> rings;
  Fault fault;
  {
    const FewDescriptors few(offer.descriptors_to_spare);
    fault = take_rings(pair[0], &rings);
  }
  if (!rings) ::close(pair[0]);
  ::close(pair[1]);
  ::close(memory);
  return fault;
}

TEST(ShmAnswer, IsTakenWhenItIsRightAndRefusedInWordsWhenItIsNot) {
  const size_t before = open_descriptors();
  EXPECT_TRUE(offered({}).ok());
  const auto refused = [](const std::string& text, const std::function<void(Offer&)>& spoil) {
    Offer offer;
    spoil(offer);
    const Fault fault = offered(offer);
    EXPECT_FALSE(fault.ok()) << text;
    EXPECT_NE(fault.what.find(text), std::string::npos) << fault.what;
  };
  refused("sealed", [](Offer& o) { o.seals = 0; });
  refused("sealed", [](Offer& o) { o.seals = F_SEAL_GROW | F_SEAL_SEAL; });
  refused("sealed", [](Offer& o) { o.seals = F_SEAL_SHRINK | F_SEAL_SEAL; });
  refused("sealed", [](Offer& o) { o.seals = F_SEAL_SHRINK | F_SEAL_GROW; });
  refused("announced as", [](Offer& o) { o.real_bytes -= 4096; });
  refused("announced as", [](Offer& o) { o.real_bytes += 4096; });
  refused("announced as", [](Offer& o) { o.answer.memory_bytes += 1; });
  refused("power of two", [](Offer& o) { o.answer.to_server_bytes = kRing + 4096; });
  refused("power of two", [](Offer& o) { o.answer.to_client_bytes = 0; });
  refused("power of two", [](Offer& o) { o.answer.to_client_bytes = 128U << 20; });
  refused("descriptors", [](Offer& o) { o.descriptors = 2; });
  refused("descriptors", [](Offer& o) { o.descriptors = 0; });
  refused("descriptors", [](Offer& o) { o.descriptors = 4; });
  refused("descriptors", [](Offer& o) { o.descriptors = 5; });
  for (const size_t more : {0U, 1U, 2U}) {
    refused("ulimit -n", [more](Offer& o) { o.descriptors_to_spare = more; });
  }
  refused("no memfd", [](Offer& o) { o.seals = -1; });
  refused("version 9", [](Offer& o) { o.answer.version = 9; });
  refused("descriptors", [](Offer& o) { o.answer.zero = 1; });
  refused("no answer", [](Offer& o) { o.answer.magic[3] = '2'; });
  refused("no answer", [](Offer& o) { o.bytes = 31; });
  refused("connections_max", [](Offer& o) { o.answer.magic = {'H', 'S', 'W', '1'}; });
  refused("LimitNOFILE", [](Offer& o) {
    o.answer.version = 0;
    o.answer.refusal = ShmRefusal::Resources;
  });
  EXPECT_EQ(open_descriptors(), before);
}

// What the published vectors say of it (tests/unit/vectors/wire.txt).
TEST(ShmVectors, AreWrittenByteForByte) {
  const std::filesystem::path root = HALFSTEP_SOURCE_DIR;
  std::ifstream file(root / "tests/unit/vectors/wire.txt");
  std::map<std::string, std::string> published;
  for (std::string line; std::getline(file, line);) {
    const size_t border = line.find(" = ");
    if (line.starts_with("shm ")) published[line.substr(0, border)] = line.substr(border + 3);
  }
  const ShmAnswer answer{.memory_bytes = 4096 + 3 * 65536, .to_server_bytes = 131072, .to_client_bytes = 65536};
  const ShmAnswer refusal{.version = 0, .refusal = ShmRefusal::Version};
  using wire::samples::hex;
  EXPECT_EQ(published["shm ask"], hex(object_bytes(ShmAsk{})));
  EXPECT_EQ(published["shm answer"], hex(object_bytes(answer)));
  EXPECT_EQ(published["shm refusal"], hex(object_bytes(refusal)));
}

}  // namespace shm_setup_test
}  // namespace halfstep::net
