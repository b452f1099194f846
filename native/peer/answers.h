// answers.h — what the daemon says about a request: the bodies of Answers and Final.
// Invariants: a unit is answered once; after take_final() every item of the request is settled, or the body is Invalid.
// Thread: the client's.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "peer/request.h"
#include "wire/records.h"

namespace halfstep::peer {

// What a Final says beside statuses of items.
struct FinalNotes {
  wire::AnswerReason whole;  // Pending: nothing about the request as a whole
  bool has_load = false;
  wire::LoadRecord load;
  std::string reason;
  bool has_layout = false;
  wire::LayoutHandleRecord layout;
  ConstBytes hello;  // HelloServer, ShardMap and ShardHosts, not parsed
  ConstBytes shard_map;
  ConstBytes shard_hosts;
  wire::CodingRecord coding;  // NamespaceCoding; zeros where there is none
  ConstBytes rdma;            // RdmaAnswer, not parsed
  uint32_t rdma_reads = 0;    // RdmaReads
};

// Of any Final. Views point into `body`.
Status take_notes(ConstBytes body, FinalNotes* out);

Status take_answers(Request& request, ConstBytes body);
Status take_final(Request& request, ConstBytes body, const FinalNotes& notes);

}  // namespace halfstep::peer
