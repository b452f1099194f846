#include "wire/rdma.h"

#include <bit>

namespace halfstep::wire {
namespace {

constexpr uint32_t kBits24 = (1U << 24) - 1;

bool path_allowed(const RdmaPath& path) noexcept {
  if (path.queue_pair > kBits24 || path.psn > kBits24 || path.zero != 0) return false;
  if (!std::has_single_bit(path.mtu_bytes) || path.mtu_bytes < 256 || path.mtu_bytes > 4096) return false;
  if (!std::has_single_bit(path.ring_bytes)) return false;
  if (path.ring_bytes < kRdmaRingBytesMin || path.ring_bytes > kRdmaRingBytesMax) return false;
  return path.ring_address <= UINT64_MAX - path.ring_bytes;
}

}  // namespace

Status parse_rdma_offer(ConstBytes value, RdmaOfferView* out) noexcept {
  *out = {};
  Reader reader(value);
  out->head = reader.take<RdmaOfferHead>();
  if (reader.failed() || out->head.version_min > out->head.version_max) return Code::Invalid;
  if (out->head.version_min > kRdmaVersion || out->head.version_max < kRdmaVersion) return {};
  if (out->head.zero != 0 || out->head.path_count == 0 || out->head.path_count > kRdmaPathsMax) return Code::Invalid;
  if (reader.rest().size() != size_t{out->head.path_count} * sizeof(RdmaPath)) return Code::Invalid;
  out->paths = PackedArray<RdmaPath>(reader.rest());
  for (uint32_t i = 0; i < out->paths.size(); ++i) {
    if (!path_allowed(out->paths[i])) return Code::Invalid;
  }
  return {};
}

Status parse_rdma_answer(ConstBytes value, RdmaAnswerView* out) noexcept {
  *out = {};
  Reader reader(value);
  out->head = reader.take<RdmaAnswerHead>();
  if (reader.failed() || out->head.zero != 0) return Code::Invalid;
  const bool refused = out->head.refusal != RdmaRefusal::None;
  if (refused != (out->head.version == 0) || out->head.version > kRdmaVersion) return Code::Invalid;
  if (refused) return reader.rest().empty() && out->head.path == 0 ? Status() : Status(Code::Invalid);
  if (out->head.path >= kRdmaPathsMax) return Code::Invalid;
  if (reader.rest().size() != sizeof(RdmaPath)) return Code::Invalid;
  out->path = reader.take<RdmaPath>();
  return path_allowed(out->path) ? Status() : Status(Code::Invalid);
}

Status parse_rdma_reads(ConstBytes value, RdmaReadsRecord* out) noexcept {
  Reader reader(value);
  *out = reader.take<RdmaReadsRecord>();
  if (!reader.finished() || out->zero != 0) return Code::Invalid;
  return out->reads >= 1 && out->reads <= kRdmaReadsMax ? Status() : Status(Code::Invalid);
}

const char* rdma_refusal_text(RdmaRefusal refusal) noexcept {
  switch (refusal) {
    case RdmaRefusal::None: return "not refused";
    case RdmaRefusal::Version: return "the daemon speaks another version of it; use a client and a daemon of one release";
    case RdmaRefusal::NotHere: return "the daemon has no RDMA device at the address that this connection leads to";
    case RdmaRefusal::Path: return "the daemon has no path to the device of this client";
    case RdmaRefusal::Memory: return "the daemon pins no more memory for rings; raise its --rdma-memory or its locked memory";
    case RdmaRefusal::Device: return "the daemon's device has no more queue pairs, or fails";
    case RdmaRefusal::Forbidden: return "the daemon gives it to no client that it does not let in by name or machine";
    case RdmaRefusal::Off: return "the daemon has it switched off (--rdma off)";
  }
  return "the daemon refuses it for a reason that this client does not know";
}

}  // namespace halfstep::wire
