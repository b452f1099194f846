// Arbitrary bytes into a stream, through a real socket pair and in fragments that the input chooses: no crash, no byte outside
// the landing, exactly one on_closed(), and no memory by the sender's number (libFuzzer's malloc limit stands guard).
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "net/stream.h"

namespace {

using namespace halfstep;

void require(bool fact) {
  if (!fact) std::abort();
}

constexpr size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xA5};

// Lands what fits a small arena and sends the rest to scratch; answers some frames; diverts, pauses and aborts at times.
class Arena final : public net::FrameSink {
 public:
  Arena() {
    std::fill(memory_.begin(), memory_.end(), std::byte{0});
    std::fill(memory_.end() - kGuardBytes, memory_.end(), kGuard);
  }
  Status on_frame(const wire::Header& header, ConstBytes body, net::Landing* landing) override {
    require(closed_ == 0 && left_ == 0 && body.size() == header.body_bytes);
    act(header.request_id);
    if (header.opcode == static_cast<uint8_t>(wire::Opcode::Chunk)) {
      left_ = header.payload_bytes;
      const size_t first = std::min<size_t>(left_ / 3, memory_.size() - kGuardBytes);
      const size_t second = std::min<size_t>(left_ - first, memory_.size() - kGuardBytes - first);
      landing->to(Bytes(memory_).subspan(0, first));
      landing->to(Bytes(memory_).subspan(first, second));
      landing->to_scratch(left_ - first - second);
    } else {
      stream->send(body);
    }
    return header.request_id % 64 == 63 ? Status(Code::Invalid) : Status();
  }
  void on_landed(ConstBytes piece, size_t skipped) override {
    require(closed_ == 0 && piece.size() + skipped != 0 && piece.size() + skipped <= left_);
    left_ -= piece.size() + skipped;
    if (!piece.empty()) act(std::to_integer<uint64_t>(piece.back()));
  }
  Status on_chunk_end() override {
    require(left_ == 0 && closed_ == 0);
    return {};
  }
  void on_sendable() override { require(closed_ == 0); }
  void on_closed(Status) override {
    require(++closed_ == 1);
    for (const std::byte& byte : Bytes(memory_).last(kGuardBytes)) require(byte == kGuard);
  }
  bool closed() const { return closed_ != 0; }

  net::FrameStream* stream = nullptr;

 private:
  void act(uint64_t number) {
    switch (number % 32) {
      case 1: stream->divert_landing(); break;
      case 2: stream->ask_for_more(); break;
      case 3: stream->abort(Code::Cancelled, "fuzz"); break;
      case 4: stream->pause_reading(); break;
      default: break;
    }
  }

  std::array<std::byte, 4096 + kGuardBytes> memory_;
  size_t left_ = 0;
  int closed_ = 0;
};

// Random bytes do not guess checksums: what looks like a frame is sealed here, where the input asks for it.
std::vector<std::byte> sealed(ConstBytes input) {
  std::vector<std::byte> out(input.begin(), input.end());
  size_t at = 0;
  while (out.size() - at >= wire::kHeaderBytes) {
    wire::Header header;
    std::memcpy(&header, out.data() + at, sizeof(header));
    const size_t rest = out.size() - at - wire::kHeaderBytes;
    header.magic = wire::kMagic;
    header.flags = 0;
    header.reserved = 0;
    const size_t body = std::min<size_t>(header.body_bytes % 512, rest);
    const bool is_chunk = header.opcode == static_cast<uint8_t>(wire::Opcode::Chunk);
    header.payload_bytes = is_chunk ? header.payload_bytes % 8192 : 0;
    wire::seal_header(header, ConstBytes(out).subspan(at + wire::kHeaderBytes, body));
    std::memcpy(out.data() + at, &header, sizeof(header));
    at += wire::kHeaderBytes + body + std::min<size_t>(header.payload_bytes, rest - body);
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 64 * KiB) return 0;
  const size_t step = 1 + size_t{data[0]} * 16;
  const ConstBytes input = {reinterpret_cast<const std::byte*>(data) + 2, size - 2};
  std::vector<std::byte> bytes(input.begin(), input.end());
  if (data[1] % 4 != 0) bytes = sealed(input);

  static SystemClock clock;
  static net::Loop loop(clock);
  static const bool opened = loop.open().ok();
  require(opened);
  int pair[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
  Arena arena;
  net::FrameStream stream(loop, pair[1], arena);
  arena.stream = &stream;
  require(stream.start().ok());
  for (ConstBytes rest = bytes; !rest.empty() && !arena.closed();) {
    const ssize_t sent = ::send(pair[0], rest.data(), std::min(rest.size(), step), MSG_NOSIGNAL);
    if (sent > 0) rest = rest.subspan(static_cast<size_t>(sent));
    loop.turn(0);
    stream.resume_reading();
  }
  ::close(pair[0]);
  for (int turns = 0; !arena.closed(); ++turns) {
    require(turns < 1000);
    loop.turn(0);
    stream.resume_reading();
  }
  return 0;
}
