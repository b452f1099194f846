// raw_client.h — a blocking client for tests that says exactly the bytes it is told to, and checks every byte it gets.
// Thread: one.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/crc.h"
#include "net/loop.h"
#include "net/rdma_rings.h"
#include "net/shm_setup.h"
#include "net/socket.h"
#include "rdma/fake_verbs.h"
#include "shard/raw_frames.h"
#include "wire/layout.h"
#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::shard {

// Whether tests talk through shared memory: ctest runs all of them a second time so.
inline bool over_rings() { return ::getenv("HALFSTEP_TEST_RINGS") != nullptr; }

// And a third time through rings that RDMA fills. HALFSTEP_TEST_RDMA is the address of a device of this machine, or "fake": a
// table of verbs that moves bytes within the process. tests/lab has the former.
struct RdmaPlace {
  std::string address;
  uint16_t port = 0;
  std::function<rdma::Verbs*(std::string*)> verbs;
};
inline const RdmaPlace* over_rdma() {
  static const auto place = []() -> std::unique_ptr<RdmaPlace> {
    const char* wanted = ::getenv("HALFSTEP_TEST_RDMA");
    if (wanted == nullptr) return nullptr;
    if (std::string_view(wanted) != "fake") return std::make_unique<RdmaPlace>(RdmaPlace{wanted, 0, &rdma::system_verbs});
    return std::make_unique<RdmaPlace>(RdmaPlace{"127.0.0.1", 0, [](std::string*) {
                                                   static rdma::FakeVerbs verbs;
                                                   return &verbs;
                                                 }});
  }();
  return place.get();
}

class RawClient final : private net::Watch {
 public:
  using PartName = std::tuple<uint16_t, uint32_t, uint32_t>;  // section, item, part

  // Connects to a unix socket; the test fails by time when nothing comes for this long.
  explicit RawClient(const std::string& path, int wait_s = 10) {
    descriptor_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    timeval wait{.tv_sec = wait_s, .tv_usec = 0};
    ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    ::setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
    connected_ = ::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    if (connected_ && over_rings()) connected_ = take_rings(wait_s);
  }
  // The same, over TCP on this machine, with so small a buffer that little arrives before it is read.
  explicit RawClient(uint16_t port, int wait_s = 10) {
    descriptor_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval wait{.tv_sec = wait_s, .tv_usec = 0};
    const int bytes = 32 * 1024;
    ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    ::setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
    ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    connected_ = ::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  // The same, with rings from Hello on.
  explicit RawClient(const RdmaPlace& place, int wait_s = 10)
      : wait_us_(static_cast<uint64_t>(wait_s) * 1'000'000),
        rdma_(std::make_unique<net::RdmaRings>(
            loop_, net::RdmaRings::Setup{.verbs = place.verbs, .budget = &rdma_budget_, .ring_bytes = 256 * KiB})) {
    net::Address address{.is_unix = false, .host = place.address, .port = place.port};
    connected_ = loop_.open().ok() && net::start_connect(address, &descriptor_).ok();
    pollfd done{.fd = descriptor_, .events = POLLOUT, .revents = 0};
    connected_ = connected_ && ::poll(&done, 1, wait_s * 1000) == 1 && net::connect_result(descriptor_).ok();
    const timeval wait{.tv_sec = wait_s, .tv_usec = 0};
    ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    ::setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
    ::fcntl(descriptor_, F_SETFL, ::fcntl(descriptor_, F_GETFL) & ~O_NONBLOCK);
  }
  ~RawClient() override { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  void close() {
    if (descriptor_ >= 0 && !rings_) ::close(descriptor_);
    rings_ = nullptr;
    if (rdma_) rdma_->drop_all();
    descriptor_ = -1;
  }
  bool connected() const { return connected_; }

  bool send(ConstBytes bytes) {
    while (!bytes.empty()) {
      const iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
      const ssize_t sent = rings_ ? waiting([&] { return rings_->send(&vector, 1, false); })
                                  : ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(sent));
    }
    return true;
  }
  // False: the connection is closed, or nothing came in time.
  bool receive(Frame* out) {
    std::byte head[wire::kHeaderBytes];
    if (!receive_exactly(head) || !wire::parse_header(head, &out->header).ok()) return false;
    out->body.resize(out->header.body_bytes);
    out->payload.resize(out->header.payload_bytes);
    return receive_exactly(out->body) && wire::check_body(out->header, out->body).ok() && receive_exactly(out->payload);
  }
  // The peer has closed and nothing is left to read.
  bool closed() {
    std::byte one;
    return receive_some({&one, 1}) == 0;
  }
  // The same after dropping what is there, without waiting.
  bool ended() {
    std::byte drop[4096];
    const iovec vector{drop, sizeof(drop)};
    if (rings_) loop_.turn(0);
    for (;;) {
      ssize_t got = rings_ ? rings_->receive(&vector, 1) : ::recv(descriptor_, drop, sizeof(drop), MSG_DONTWAIT);
      if (got < 0 && !rings_) got = -errno;
      if (got <= 0) return got != -EAGAIN;
    }
  }

  // Everything about request `id` up to its Final. Chunks are checked and kept; frames of others are kept in order.
  Said finish(uint64_t id) {
    Said said;
    Frame frame;
    while (next(id, &frame)) {
      if (frame.opcode() == Opcode::Chunk) {
        take_chunk(frame);
        continue;
      }
      take_apart(frame.body, &said);
      if (frame.opcode() == Opcode::Final) return said;
    }
    said.malformed = true;
    return said;
  }
  // The next frame of request `id`.
  bool next(uint64_t id, Frame* out) {
    for (size_t i = 0; i < kept_.size(); ++i) {
      if (kept_[i].header.request_id != id) continue;
      *out = std::move(kept_[i]);
      kept_.erase(kept_.begin() + static_cast<ptrdiff_t>(i));
      return true;
    }
    while (receive(out)) {
      order_.push_back(out->header.request_id);
      if (out->header.request_id == id) return true;
      kept_.push_back(std::move(*out));
    }
    return false;
  }

  // The next frame of request `id`, which has to be a Chunk.
  bool next_chunk(uint64_t id) {
    Frame frame;
    if (!next(id, &frame) || frame.opcode() != Opcode::Chunk) return false;
    take_chunk(frame);
    return true;
  }

  Said hello(std::string_view name = "default") {
    std::vector<std::byte> out;
    wire::FrameWriter frame(out);
    frame.begin(Opcode::Hello, 1);
    frame.tlv(Tlv::HelloClient, wire::HelloClient{.codecs = codecs, .client_id = 42});
    frame.tlv_bytes(Tlv::NamespaceName, as_bytes(name));
    std::unique_ptr<net::RdmaEnd> end;
    if (rdma_) {
      wire::RdmaPath path;
      const Fault fault = rdma_->offer(descriptor_, &end, &path);
      EXPECT_TRUE(fault.ok()) << fault.what;
      frame.open_tlv(Tlv::RdmaOffer);
      frame.value().put(wire::RdmaOfferHead{.path_count = 1});
      frame.value().put(path);
      frame.close_tlv();
      const uint32_t reads = fault.ok() ? end->queue_pair().reads_max().in : 0;
      if (answers_reads && reads != 0) frame.tlv(Tlv::RdmaReads, wire::RdmaReadsRecord{.reads = reads});
    }
    frame.finish();
    send(out);
    Said said = finish(1);
    if (rdma_ && said.whole && said.whole->answer == Answer::Ok) change_to_rdma(std::move(end), said);
    return said;
  }
  // Over RDMA, from Hello on: the device under its rings.
  const std::shared_ptr<rdma::Device>& device() const noexcept { return device_; }

  Said register_layout(const wire::Layout& layout, uint64_t id = 2) {
    std::vector<std::byte> out;
    wire::FrameWriter frame(out);
    frame.begin(Opcode::RegisterLayout, id);
    frame.tlv_bytes(Tlv::LayoutCanonical, layout.canonical());
    frame.finish();
    send(out);
    const Said said = finish(id);
    if (said.handle) {
      if (layouts_.size() <= said.handle->handle) layouts_.resize(said.handle->handle + 1);
      layouts_[said.handle->handle] = layout;
    }
    return said;
  }
  Said simple(Opcode opcode, uint64_t id, Tlv kind, ConstBytes value) {
    std::vector<std::byte> out;
    wire::FrameWriter frame(out);
    frame.begin(opcode, id);
    if (!value.empty()) frame.tlv_bytes(kind, value);
    frame.finish();
    send(out);
    return finish(id);
  }
  Said ask(Opcode opcode, uint64_t id, const wire::Batch& batch, const std::vector<SectionSpec>& sections, uint64_t owner = 0,
           const std::function<void(wire::FrameWriter&)>& more = {}) {
    remember(id, sections);
    send(request_frame(opcode, id, batch, sections, owner, more));
    return finish(id);
  }
  // So that chunks of this request can be checked.
  void remember(uint64_t id, const std::vector<SectionSpec>& sections) { asked_[id] = sections; }

  // One whole part, or parts, of an item as they should be.
  RunSpec run_of(const SectionSpec& section, uint16_t s, uint32_t item, uint32_t part, uint32_t part_count) const {
    const std::string& key = section.keys[item / section.components];
    const wire::Component component{section.first_component + item % section.components};
    const wire::Layout& layout = layouts_[section.layout];
    const wire::GroupShape& shape = layout.groups()[component.group()];
    const uint32_t block_bytes = section.offers[item].block_bytes;
    const std::vector<std::byte> block = block_bytes_of(key, component.value, block_bytes);
    const uint32_t n = wire::name_number(layout.id(), component, as_bytes(key));
    RunSpec spec;
    spec.run = {.section = s, .item = item, .part = part, .part_count = part_count, .block_bytes = block_bytes};
    for (uint32_t p = part; p < part + part_count; ++p) {
      const auto bytes = ConstBytes(block).subspan(shape.offset_of(p), shape.bytes_of(p, block_bytes));
      spec.bytes.insert(spec.bytes.end(), bytes.begin(), bytes.end());
      spec.checks.push_back(wire::wire_check(crc32c(bytes), n, p));
    }
    return spec;
  }
  // Sends all of an item, part by part, parts over a Chunk's limit in pieces.
  void send_item(uint64_t id, const SectionSpec& section, uint16_t s, uint32_t item) {
    const wire::GroupShape& shape = layouts_[section.layout].groups()[wire::Component{section.first_component}.group()];
    const uint32_t parts = shape.parts_of(section.offers[item].block_bytes);
    for (uint32_t p = 0; p < parts; ++p) {
      RunSpec whole = run_of(section, s, item, p, 1);
      for (size_t at = 0; at < whole.bytes.size(); at += wire::kChunkBytesMax) {
        const size_t step = std::min<size_t>(whole.bytes.size() - at, wire::kChunkBytesMax);
        RunSpec piece;
        piece.run = whole.run;
        piece.run.offset = static_cast<uint32_t>(at);
        piece.bytes.assign(whole.bytes.begin() + static_cast<ptrdiff_t>(at),
                           whole.bytes.begin() + static_cast<ptrdiff_t>(at + step));
        if (at + step == whole.bytes.size()) piece.checks = whole.checks;
        send(chunk_frame(id, {piece}));
      }
    }
  }
  // A put whose items are sent as they are wanted.
  Said put(uint64_t id, const std::vector<SectionSpec>& sections, wire::Batch batch = {}) {
    send(request_frame(Opcode::Put, id, batch, sections));
    Said said;
    Frame frame;
    while (next(id, &frame)) {
      Said now;
      take_apart(frame.body, &now);
      for (const wire::ItemRange& range : now.grants) {
        for (uint32_t i = 0; i < range.count; ++i) send_item(id, sections[range.section], range.section, range.first + i);
      }
      take_apart(frame.body, &said);
      if (frame.opcode() == Opcode::Final) return said;
    }
    said.malformed = true;
    return said;
  }

  uint64_t codecs = 1;
  bool answers_reads = true;  // over RDMA
  // Of the chunks taken: which parts came whole and right, in which order, and what was wrong.
  std::vector<std::pair<uint64_t, PartName>> parts_received;
  uint64_t wrong_parts = 0;
  uint64_t chunks = 0;
  std::map<PartName, std::vector<wire::PartRecord>> tables;  // by (section, item, 0)
  // Request ids of all frames, as they came.
  const std::vector<uint64_t>& order() const { return order_; }
  // Frames of other requests that came meanwhile.
  const std::vector<Frame>& kept() const { return kept_; }

  void take_chunk(const Frame& frame) {
    ++chunks;
    wire::RunsView runs;
    if (!wire::parse_chunk(frame.body, frame.header.payload_bytes, &runs).ok()) {
      ++wrong_parts;
      return;
    }
    size_t at = 0;
    uint32_t check_at = 0;
    for (uint32_t i = 0; i < runs.run_count; ++i) {
      const wire::Run run = runs.run(i);
      take_run(frame.header.request_id, run, ConstBytes(frame.payload).subspan(at, run.bytes), runs, &check_at);
      at += run.bytes;
    }
  }

 private:
  void take_run(uint64_t id, const wire::Run& run, ConstBytes bytes, const wire::RunsView& runs, uint32_t* check_at) {
    const SectionSpec& section = asked_[id].at(run.section);
    const wire::Component component{section.first_component + run.item % section.components};
    const std::string& key = section.keys.at(run.item / section.components);
    const wire::Layout& layout = layouts_[section.layout];
    const wire::GroupShape& shape = layout.groups()[component.group()];
    const uint32_t n = wire::name_number(layout.id(), component, as_bytes(key));
    const std::vector<std::byte> block = block_bytes_of(key, component.value, run.block_bytes);
    for (uint32_t p = run.part; p < run.part + run.part_count; ++p) {
      const uint64_t begin = shape.offset_of(p) + (p == run.part ? run.offset : 0);
      const uint64_t end = std::min(shape.offset_of(p) + shape.bytes_of(p, run.block_bytes), begin + bytes.size());
      const auto expected = ConstBytes(block).subspan(begin, end - begin);
      bool right = std::equal(expected.begin(), expected.end(), bytes.begin());
      bytes = bytes.subspan(expected.size());
      if (run.check_count != 0) {
        const auto part = ConstBytes(block).subspan(shape.offset_of(p), shape.bytes_of(p, run.block_bytes));
        right = right && runs.check((*check_at)++) == wire::wire_check(crc32c(part), n, p);
        parts_received.push_back({id, {run.section, run.item, p}});
      }
      wrong_parts += right ? 0 : 1;
    }
  }

  bool receive_exactly(Bytes into) {
    while (!into.empty()) {
      const ssize_t got = receive_some(into);
      if (got <= 0) return false;
      into = into.subspan(static_cast<size_t>(got));
    }
    return true;
  }
  ssize_t receive_some(Bytes into) {
    const iovec vector{into.data(), into.size()};
    if (rings_) return waiting([&] { return rings_->receive(&vector, 1); });
    return ::recv(descriptor_, into.data(), into.size(), 0);
  }

  void change_to_rdma(std::unique_ptr<net::RdmaEnd> end, const Said& said) {
    ASSERT_TRUE(end && said.rdma && said.rdma->head.version == wire::kRdmaVersion);
    device_ = end->device();
    const Fault fault = net::RdmaRings::accept(*end, descriptor_, said.rdma->path, said.rdma_reads.reads);
    ASSERT_TRUE(fault.ok()) << fault.what;
    ASSERT_TRUE(rdma_->transport(std::move(end), descriptor_, 0, /*client=*/true, &rings_).ok());
    ::close(descriptor_);
    descriptor_ = rings_->descriptor();
    ASSERT_TRUE(rings_->start(loop_, this).ok());
  }

  bool take_rings(int wait_s) {
    wait_us_ = static_cast<uint64_t>(wait_s) * 1'000'000;
    pollfd answered{.fd = descriptor_, .events = POLLIN, .revents = 0};
    return net::ask_for_rings(descriptor_).ok() && ::poll(&answered, 1, wait_s * 1000) == 1 &&
           net::take_rings(descriptor_, &rings_).ok() && loop_.open().ok() && rings_->start(loop_, this).ok();
  }
  void on_ready(uint32_t epoll_events) override { rings_->heard(epoll_events); }
  template <typename Call>
  ssize_t waiting(Call&& call) {
    for (const uint64_t until_us = loop_.now_us() + wait_us_;;) {
      const ssize_t moved = call();
      if (moved != -EAGAIN || loop_.now_us() >= until_us) return moved;
      loop_.turn(until_us - loop_.now_us());
    }
  }

  int descriptor_ = -1;
  SystemClock clock_;
  net::Loop loop_{clock_};
  uint64_t wait_us_ = 0;
  net::RdmaBudget rdma_budget_{16 * MiB};
  std::unique_ptr<net::RdmaRings> rdma_;  // null: another carrier
  std::shared_ptr<rdma::Device> device_;
  std::unique_ptr<net::Transport> rings_;  // has the descriptor
  bool connected_ = false;
  std::vector<Frame> kept_;
  std::vector<uint64_t> order_;
  std::vector<wire::Layout> layouts_;
  std::map<uint64_t, std::vector<SectionSpec>> asked_;
};

}  // namespace halfstep::shard
