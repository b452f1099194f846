// message.h — the frames of the wire protocol, version 1: headers and opcodes. docs/wire-protocol.md draws them.
//
//   frame   = header (32 B), body (body_bytes of TLVs), payload (payload_bytes; only Chunk has any)
//   TLV     = u16 kind, u16 zero, u32 bytes, value, zero padding to 8
// A connection starts with Hello from the client and its Final from the server. Afterwards any number of requests is in
// flight, told apart by request_id; each ends in exactly one Final. Chunks of different requests interleave.
// Opcodes 1-31 and from kRequestOpcodes on are requests, known or not: each is answered. 32-127 travel within a request; those
// that are not known are skipped. So are TLV kinds, unless their top bit (kMustUnderstandTlv) is set.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"

namespace halfstep::wire {

inline constexpr uint32_t kMagic = 0x31575348;  // "HSW1"
inline constexpr uint16_t kVersion = 1;
inline constexpr uint32_t kHeaderBytes = 32;
inline constexpr uint32_t kChunkBytesMax = 256 * KiB;  // payload of one Chunk
inline constexpr uint32_t kChunkBodyBytesMax = 64 * KiB;
inline constexpr uint32_t kBodyBytesMax = 2 * MiB;        // of a request or an answer
inline constexpr uint32_t kHelloBodyBytesMax = 16 * KiB;  // of Hello, and of whatever comes before it is answered
inline constexpr uint32_t kEarlyCreditBytes = 64 * KiB;   // put bytes a connection may send before a grant
inline constexpr uint32_t kSectionsMax = 16;
inline constexpr uint32_t kRangesMax = 8;
inline constexpr uint32_t kKeysMax = 4096;    // of one request, all sections together
inline constexpr uint32_t kItemsMax = 16384;  // keys x components of one request
inline constexpr uint32_t kRunsPerChunkMax = 512;
inline constexpr uint32_t kRequestsInFlightMax = 256;  // of one connection
inline constexpr uint32_t kEngineKeyBytesMax = 255;
inline constexpr uint32_t kNamespaceBytesMax = 255;

enum class Opcode : uint8_t {
  // requests; new ones take numbers from 128 on
  Hello = 1,
  RegisterLayout = 2,
  Match = 3,
  Get = 4,
  Put = 5,
  Release = 6,
  Delete = 7,
  Cancel = 8,
  List = 9,
  Stat = 10,
  Prefetch = 11,
  Touch = 12,
  Hold = 13,
  Renew = 14,
  Expire = 15,
  Clear = 16,
  Namespace = 17,
  // what flows within a request
  Chunk = 32,    // payload, either way
  Want = 33,     // server -> client, put: grants credit, names the items it wants
  Answers = 34,  // server -> client: some statuses ahead of Final
  Final = 35,    // server -> client: the rest of the statuses; the request is over
  Abort = 36,    // server -> client, request_id 0: the connection is about to be closed, and why (Reason)
  Placed = 37,  // a Chunk whose payload lies in the client's memory: a get's has been written there, a put's is read from there
  // requests again
  LayoutOf = 128,
  RegisterRegion = 129,
  RegisterTemplate = 130,
};
inline constexpr uint8_t kRequestOpcodes = 0x80;
// Known or not: it has a request_id of its own and ends in a Final.
constexpr bool is_request(uint8_t opcode) noexcept {
  return (opcode != 0 && opcode < static_cast<uint8_t>(Opcode::Chunk)) || opcode >= kRequestOpcodes;
}
// Belongs to no request that its receiver knows of, and nobody waits for an answer.
constexpr bool is_skipped(uint8_t opcode) noexcept {
  return !is_request(opcode) && (opcode < static_cast<uint8_t>(Opcode::Chunk) || opcode > static_cast<uint8_t>(Opcode::Placed));
}

struct Header {
  uint32_t magic = kMagic;
  uint8_t opcode = 0;
  uint8_t flags = 0;      // none defined; unknown ones are refused
  uint16_t reserved = 0;  // zero, checked
  uint64_t request_id = 0;
  uint32_t body_bytes = 0;
  uint32_t payload_bytes = 0;
  uint32_t body_crc = 0;    // CRC32C of the body
  uint32_t header_crc = 0;  // CRC32C of the 28 bytes before
};
static_assert(sizeof(Header) == kHeaderBytes);

// Fills in the CRCs. `body` is what follows the header.
void seal_header(Header& header, ConstBytes body) noexcept;
// Invalid: magic, reserved, flags, CRC; TooLarge: a length over what its opcode allows. Any opcode is let through. `from` has
// kHeaderBytes.
Status parse_header(ConstBytes from, Header* out) noexcept;
Status check_body(const Header& header, ConstBytes body) noexcept;

enum class Tlv : uint16_t {
  HelloClient = 1,
  NamespaceName = 2,
  Authentication = 3,
  HelloServer = 4,
  ShardMap = 5,
  LayoutCanonical = 6,
  LayoutHandle = 7,
  Batch = 8,
  Section = 9,
  Offers = 10,
  PartTable = 11,
  Statuses = 12,
  Lengths = 13,
  MatchBits = 14,
  Runs = 15,
  Grant = 16,
  Load = 17,
  Reason = 18,
  Owner = 19,
  Cursor = 20,
  Entries = 21,
  Counters = 22,
  CancelTarget = 23,
  NamespaceAction = 24,
  Until = 25,
  Expiry = 26,
  NamedLayout = 27,
  PinBudget = 28,
  Explanation = 30,
  ShardHosts = 31,
  NamespaceCoding = 32,
  CodingChoices = 34,
  RdmaOffer = 64,  // to 79: memory over RDMA
  RdmaAnswer = 65,
  RdmaRegion = 66,
  PlaceTemplate = 67,
  Places = 68,
  PlaceRows = 69,
  RdmaReads = 70,
  PlaceKeys = 71,
  KeyQuestion = 32797,  // 29 and kMustUnderstandTlv: a server that cannot answer it says so
  SetCoding = 32801,    // 33, likewise: a server that cannot keep it says so
};
inline constexpr uint16_t kMustUnderstandTlv = 0x8000;
constexpr bool is_known(uint16_t kind) noexcept {
  return (kind >= static_cast<uint16_t>(Tlv::HelloClient) && kind <= static_cast<uint16_t>(Tlv::PinBudget)) ||
         kind == static_cast<uint16_t>(Tlv::Explanation) || kind == static_cast<uint16_t>(Tlv::ShardHosts) ||
         kind == static_cast<uint16_t>(Tlv::NamespaceCoding) || kind == static_cast<uint16_t>(Tlv::CodingChoices) ||
         (kind >= static_cast<uint16_t>(Tlv::RdmaOffer) && kind <= static_cast<uint16_t>(Tlv::PlaceKeys)) ||
         kind == static_cast<uint16_t>(Tlv::KeyQuestion) || kind == static_cast<uint16_t>(Tlv::SetCoding);
}

struct TlvView {
  uint16_t kind = 0;
  ConstBytes value;
};

// Walks a body. next() is false at the end or at a malformed TLV; status() tells which.
class TlvReader {
 public:
  explicit TlvReader(ConstBytes body) noexcept : reader_(body) {}
  bool next(TlvView* out) noexcept;
  Status status() const noexcept { return status_; }

 private:
  Reader reader_;
  Status status_;
};

// Writes one frame into a reused vector: begin, TLVs, finish. The payload, if any, is sent after it by the caller.
class FrameWriter {
 public:
  // Appends to `out`; several frames may stand one after the other.
  explicit FrameWriter(std::vector<std::byte>& out) noexcept : out_(out), writer_(out) {}
  void begin(Opcode opcode, uint64_t request_id);
  void open_tlv(Tlv kind);
  Writer& value() noexcept { return writer_; }
  void close_tlv();
  template <Plain T>
  void tlv(Tlv kind, const T& value) {
    open_tlv(kind);
    writer_.put(value);
    close_tlv();
  }
  void tlv_bytes(Tlv kind, ConstBytes value) {
    open_tlv(kind);
    writer_.put_bytes(value);
    close_tlv();
  }
  void finish(uint32_t payload_bytes = 0);

 private:
  std::vector<std::byte>& out_;
  Writer writer_;
  size_t frame_at_ = 0;
  size_t tlv_at_ = 0;
};

}  // namespace halfstep::wire
