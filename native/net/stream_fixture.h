// stream_fixture.h — for tests: connected descriptors, a sink that writes down what it is told, and frames to tell it.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "net/loop.h"
#include "net/rdma_fixture.h"
#include "net/shm_fixture.h"
#include "net/socket.h"
#include "net/stream.h"
#include "wire/message.h"

namespace halfstep::net {

using Octets = std::vector<std::byte>;

class ManualClock final : public Clock {
 public:
  uint64_t now_us() const noexcept override { return us; }
  uint64_t wall_s() const noexcept override { return us / 1'000'000; }
  uint64_t us = 1'000'000;
};

inline std::array<int, 2> unix_pair() {
  std::array<int, 2> pair{-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()), 0);
  return pair;
}

inline Octets random_octets(size_t count, uint64_t seed) {
  Octets out(count);
  Prng(seed).fill(out);
  return out;
}

// A frame with one TLV of `value`; for a Chunk, its head alone.
inline Octets frame(wire::Opcode opcode, uint64_t request_id, ConstBytes value, uint32_t payload_bytes = 0) {
  Octets out;
  wire::FrameWriter writer(out);
  writer.begin(opcode, request_id);
  if (!value.empty()) writer.tlv_bytes(wire::Tlv::Runs, value);
  writer.finish(payload_bytes);
  return out;
}

inline void append(Octets& to, ConstBytes more) { to.insert(to.end(), more.begin(), more.end()); }

inline Octets chunk(uint64_t request_id, ConstBytes payload) {
  Octets out = frame(wire::Opcode::Chunk, request_id, object_bytes(request_id), static_cast<uint32_t>(payload.size()));
  append(out, payload);
  return out;
}

// Lands every Chunk in memory of its own, in the pieces that `cut` says (negative: scratch), and keeps it by request.
class Recorder : public FrameSink {
 public:
  Status on_frame(const wire::Header& header, ConstBytes body, Landing* to) override {
    log += std::to_string(header.opcode) + ":" + std::to_string(header.request_id) + ":" + std::to_string(body.size()) + " ";
    last_body.assign(body.begin(), body.end());
    if (header.opcode == static_cast<uint8_t>(wire::Opcode::Chunk)) {
      request_id = header.request_id;
      memory.assign(header.payload_bytes, std::byte{0xEE});
      shown = 0;
      skipped = 0;
      size_t at = 0;
      for (const int64_t piece : cut) {
        const auto bytes = static_cast<size_t>(piece < 0 ? -piece : piece);
        const size_t count = std::min(bytes, memory.size() - at);
        if (piece < 0) {
          to->to_scratch(count);
        } else {
          to->to(Bytes(memory).subspan(at, count));
        }
        at += count;
      }
      to->to(Bytes(memory).subspan(at));
    }
    return at_frame ? at_frame() : Status();
  }
  void on_landed(ConstBytes piece, size_t skipped_bytes) override {
    EXPECT_LE(piece.size(), wire::kChunkBytesMax);
    if (!piece.empty()) {
      EXPECT_EQ(piece.data(), memory.data() + shown + skipped) << "pieces come in order";
      EXPECT_EQ(skipped_bytes, 0U);
    }
    shown += piece.size();
    skipped += skipped_bytes;
    if (at_landed) at_landed();
  }
  Status on_chunk_end() override {
    EXPECT_EQ(shown + skipped, memory.size());
    append(landed[request_id], memory);
    log += "end:" + std::to_string(request_id) + " ";
    ++chunks;
    return at_chunk_end ? at_chunk_end() : Status();
  }
  bool go_on() override { return at_work(); }
  void on_sendable() override {
    ++asked;
    if (at_sendable) at_sendable();
  }
  void on_closed(Status status) override {
    ++closed;
    why = status;
    if (at_closed) at_closed();
  }

  std::function<Status()> at_frame;
  std::function<bool()> at_work;
  std::function<void()> at_landed;
  std::function<Status()> at_chunk_end;
  std::function<void()> at_sendable;
  std::function<void()> at_closed;

  std::vector<int64_t> cut;
  std::string log;
  Octets last_body;
  Octets memory;
  uint64_t request_id = 0;
  size_t shown = 0;
  size_t skipped = 0;
  std::map<uint64_t, Octets> landed;
  int chunks = 0;
  int asked = 0;
  int closed = 0;
  Status why;
};

enum class Carrier { Socket, Rings, Rdma };
inline const auto kCarriers = testing::Values(Carrier::Socket, Carrier::Rings, Carrier::Rdma);
inline std::string carrier_name(const testing::TestParamInfo<Carrier>& info) {
  return std::array{"Socket", "Rings", "Rdma"}[static_cast<size_t>(info.param)];
}

// One stream on a loop; the test holds the other end of the connection, as a plain descriptor or by hand.
class StreamFixture : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(loop_.open().ok()); }
  void TearDown() override {
    stream_.reset();
    if (far_ >= 0) ::close(far_);
  }

  void connect(std::array<int, 2> pair = unix_pair()) {
    far_ = pair[0];
    stream_ = std::make_unique<FrameStream>(loop_, pair[1], sink_);
    ASSERT_TRUE(stream_->start().ok());
  }
  void connect(Carrier carrier) {
    if (carrier == Carrier::Socket) return connect(unix_pair());
    RingPair pair = pair_of(carrier);
    far_rings_ = std::move(pair.client);
    stream_ = std::make_unique<FrameStream>(loop_, std::move(pair.server), sink_);
    ASSERT_TRUE(stream_->start().ok());
  }
  RingPair pair_of(Carrier carrier) { return carrier == Carrier::Rdma ? rdma_pair(rdma_.rings) : ring_pair(graveyard_); }
  void close_far() {
    far_rings_ = nullptr;
    if (far_ >= 0) ::close(far_);
    far_ = -1;
  }
  void write_far(ConstBytes bytes) {
    if (far_rings_) {
      const iovec all{const_cast<std::byte*>(bytes.data()), bytes.size()};
      ASSERT_EQ(far_rings_->send(&all, 1, false), static_cast<ssize_t>(bytes.size()));
      return;
    }
    ASSERT_EQ(::send(far_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  // What is there now.
  Octets read_far() {
    Octets all;
    std::array<std::byte, 65536> some;
    const iovec vector{some.data(), some.size()};
    for (;;) {
      const ssize_t got = far_rings_ ? far_rings_->receive(&vector, 1) : ::recv(far_, some.data(), some.size(), MSG_DONTWAIT);
      if (got <= 0) return all;
      append(all, ConstBytes(some).first(static_cast<size_t>(got)));
    }
  }
  void turns(int count = 3) {
    for (int i = 0; i < count; ++i) loop_.turn(0);
  }
  bool turn_until(const std::function<bool()>& done) {
    for (int i = 0; i < 20'000; ++i) {
      if (done()) return true;
      loop_.turn(1000);
    }
    return false;
  }

  ManualClock clock_;
  Loop loop_{clock_};
  RingGraveyard graveyard_{loop_};
  FakeRdma rdma_{loop_};
  Recorder sink_;
  std::unique_ptr<FrameStream> stream_;
  std::unique_ptr<Transport> far_rings_;
  int far_ = -1;
};

// The text of the Abort frame that `bytes` end with; empty if they do not.
inline std::string abort_reason(ConstBytes bytes) {
  wire::Header header;
  while (bytes.size() >= wire::kHeaderBytes) {
    if (!wire::parse_header(bytes.first(wire::kHeaderBytes), &header).ok()) return {};
    const ConstBytes body = bytes.subspan(wire::kHeaderBytes, header.body_bytes);
    bytes = bytes.subspan(wire::kHeaderBytes + header.body_bytes + header.payload_bytes);
    if (!bytes.empty()) continue;
    wire::TlvReader reader(body);
    wire::TlvView tlv;
    if (header.opcode != static_cast<uint8_t>(wire::Opcode::Abort) || header.request_id != 0) return {};
    if (!reader.next(&tlv) || tlv.kind != static_cast<uint16_t>(wire::Tlv::Reason)) return {};
    return std::string(as_text(tlv.value));
  }
  return {};
}

}  // namespace halfstep::net
