#include "peer/answers.h"

#include "peer/text.h"

namespace halfstep::peer {
namespace {

using wire::Answer;
using wire::AnswerReason;
using wire::Reason;
using wire::Tlv;

// Which pass over a body takes a TLV: lengths are written together with the last status of an item, so they come first.
bool is(const wire::TlvView& tlv, Tlv kind) noexcept { return tlv.kind == static_cast<uint16_t>(kind); }

template <typename Visit>
Status for_tlvs(ConstBytes body, Visit&& visit) {
  wire::TlvReader reader(body);
  wire::TlvView tlv;
  while (reader.next(&tlv)) {
    if ((tlv.kind & wire::kMustUnderstandTlv) != 0) return Code::Unsupported;
    if (Status s = visit(tlv); !s.ok()) return s;
  }
  return reader.status();
}

Status take_lengths(Request& request, ConstBytes value) {
  wire::LengthsView lengths;
  if (Status s = wire::parse_lengths(value, &lengths); !s.ok()) return s;
  if (request.opcode != wire::Opcode::Match || lengths.section >= request.slices.size()) return Code::Invalid;
  if (uint64_t{lengths.first} + lengths.block_bytes.size() > request.items_of(lengths.section)) return Code::Invalid;
  Section& section = request.section(lengths.section);
  for (uint32_t i = 0; i < lengths.block_bytes.size(); ++i) {
    const uint32_t number = request.item_of(lengths.section, lengths.first + i);
    request.ticket->item(section, number).block_bytes = lengths.block_bytes[i];
  }
  return {};
}

Status take_status_run(Request& request, uint16_t slice, bool per_part, const wire::StatusRun& run) {
  if (slice >= request.slices.size()) return Code::Invalid;
  Section& section = request.section(slice);
  if (per_part && section.selection.all()) return Code::Invalid;
  const uint64_t per_item = per_part ? section.units_per_item : 1;
  if (uint64_t{run.first} + run.count > request.items_of(slice) * per_item) return Code::Invalid;
  const AnswerReason answer{run.answer, run.reason};
  for (uint64_t n = run.first; n < uint64_t{run.first} + run.count; ++n) {
    const uint32_t number = request.item_of(slice, static_cast<uint32_t>(n / per_item));
    const Status said = per_part ? request.ticket->say_unit(section, number, static_cast<uint32_t>(n % per_item), answer)
                                 : request.ticket->say(section, number, answer);
    if (!said.ok()) return said;
  }
  return {};
}

Status take_statuses(Request& request, ConstBytes value) {
  Status status;
  const Status walked = wire::for_status_runs(value, [&](uint16_t slice, uint16_t flags, const wire::StatusRun& run) {
    if (slice == wire::kWholeRequest || !status.ok()) return;
    status = take_status_run(request, slice, (flags & wire::kStatusPerPart) != 0, run);
  });
  return walked.ok() ? status : walked;
}

// A bit a key says that all components asked for are there; a length of an item that this one is.
Status take_match_bits(Request& request, ConstBytes value) {
  wire::MatchBitsView match;
  if (Status s = wire::parse_match_bits(value, &match); !s.ok()) return s;
  if (request.opcode != wire::Opcode::Match || match.section >= request.slices.size()) return Code::Invalid;
  if (match.key_count != request.slices[match.section].count) return Code::Invalid;
  Section& section = request.section(match.section);
  for (uint32_t i = 0; i < request.items_of(match.section); ++i) {
    const uint32_t number = request.item_of(match.section, i);
    if (!request.ticket->item_open(section, number)) continue;  // a status said more
    const bool there = match[i / section.component_count] || request.ticket->item(section, number).block_bytes != 0;
    const AnswerReason answer = there ? AnswerReason{Answer::Ok, Reason::Present} : AnswerReason{Answer::Miss, Reason::Absent};
    if (Status s = request.ticket->say(section, number, answer); !s.ok()) return s;
  }
  return {};
}

void tell_sink(const Ticket& ticket, const void* record, size_t record_bytes, ConstBytes name) {
  if (ticket.sink != nullptr) ticket.sink(ticket.sink_context, record, record_bytes, name.data(), name.size());
}

Status take_text(Request& request, const wire::TlvView& tlv) {
  const Ticket& ticket = *request.ticket;
  if (is(tlv, Tlv::Entries) && request.opcode == wire::Opcode::List) {
    return wire::for_entries(
        tlv.value, [&](const wire::EntryRecord& entry, ConstBytes key) { tell_sink(ticket, &entry, sizeof(entry), key); });
  }
  if (is(tlv, Tlv::Counters) && request.opcode == wire::Opcode::Stat) {
    return wire::for_counters(
        tlv.value, [&](std::string_view name, uint64_t value) { tell_sink(ticket, &value, sizeof(value), as_bytes(name)); });
  }
  if (is(tlv, Tlv::Explanation) && request.opcode == wire::Opcode::Stat) tell_sink(ticket, "", 0, tlv.value);
  if (is(tlv, Tlv::Cursor) && request.opcode == wire::Opcode::Stat) {
    wire::CursorRecord cursor;
    if (Status s = wire::parse_cursor(tlv.value, &cursor); !s.ok()) return s;
    // Pages that come back would never end.
    if (cursor.position != 0 && cursor.position <= request.position) return Code::Invalid;
    request.position = cursor.position;
  }
  if (is(tlv, Tlv::Cursor) && request.opcode == wire::Opcode::List) {
    wire::CursorRecord cursor;
    if (Status s = wire::parse_cursor(tlv.value, &cursor); !s.ok()) return s;
    uint64_t next = cursor.position;
    if (request.shards > 1) {
      if (list_position(next, request.shards) != next) return Code::Invalid;
      const uint64_t shard = next == 0 ? request.shard + 1 : request.shard;
      next = shard < request.shards ? shard << kCursorShardShift | next : 0;
    }
    if (ticket.cursor_out != nullptr) *ticket.cursor_out = next;
  }
  return {};
}

}  // namespace

Status take_notes(ConstBytes body, FinalNotes* out) {
  *out = {};
  return for_tlvs(body, [out](const wire::TlvView& tlv) -> Status {
    switch (static_cast<Tlv>(tlv.kind)) {
      case Tlv::Statuses:
        return wire::for_status_runs(tlv.value, [out](uint16_t section, uint16_t, const wire::StatusRun& run) {
          if (section == wire::kWholeRequest) out->whole = {run.answer, run.reason};
        });
      case Tlv::Load: out->has_load = true; return wire::parse_load(tlv.value, &out->load);
      case Tlv::Reason: {
        constexpr size_t kReasonBytesMax = 240;
        out->reason = readable(as_text(tlv.value), kReasonBytesMax);
        return {};
      }
      case Tlv::LayoutHandle: out->has_layout = true; return wire::parse_layout_handle(tlv.value, &out->layout);
      case Tlv::HelloServer: out->hello = tlv.value; return {};
      case Tlv::ShardMap: out->shard_map = tlv.value; return {};
      case Tlv::ShardHosts: out->shard_hosts = tlv.value; return {};
      case Tlv::NamespaceCoding: return wire::parse_coding(tlv.value, &out->coding);
      case Tlv::RdmaAnswer: out->rdma = tlv.value; return {};
      case Tlv::RdmaReads: {
        wire::RdmaReadsRecord reads;
        const Status status = wire::parse_rdma_reads(tlv.value, &reads);
        out->rdma_reads = reads.reads;
        return status;
      }
      default: return {};
    }
  });
}

Status take_answers(Request& request, ConstBytes body) {
  Status status = for_tlvs(
      body, [&](const wire::TlvView& tlv) { return is(tlv, Tlv::Lengths) ? take_lengths(request, tlv.value) : Status(); });
  if (!status.ok()) return status;
  status = for_tlvs(body, [&](const wire::TlvView& tlv) {
    return is(tlv, Tlv::Statuses) ? take_statuses(request, tlv.value) : take_text(request, tlv);
  });
  if (!status.ok()) return status;
  return for_tlvs(
      body, [&](const wire::TlvView& tlv) { return is(tlv, Tlv::MatchBits) ? take_match_bits(request, tlv.value) : Status(); });
}

Status take_final(Request& request, ConstBytes body, const FinalNotes& notes) {
  if (Status s = take_answers(request, body); !s.ok()) return s;
  const bool has_whole = notes.whole.answer != Answer::Pending;
  if (request.slices.empty()) {
    if (!has_whole) return Code::Invalid;
    request.ticket->say_whole(notes.whole);
    return {};
  }
  if (has_whole) {
    request.for_items([&](Section& section, uint32_t item) {
      for (uint32_t o = 0; o < section.units_per_item; ++o) request.ticket->say_if_silent(section, item, o, notes.whole);
    });
  }
  // Whatever is open now was never answered, or was called ok though bytes of it are missing.
  return request.open() ? Status(Code::Invalid) : Status();
}

}  // namespace halfstep::peer
