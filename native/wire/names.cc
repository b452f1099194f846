#include "wire/names.h"

namespace halfstep::wire {

const char* answer_name(Answer answer) noexcept {
  switch (answer) {
    case Answer::Pending: return "pending";
    case Answer::Ok: return "ok";
    case Answer::Miss: return "miss";
    case Answer::Late: return "late";
    case Answer::Cancelled: return "cancelled";
    case Answer::Throttled: return "throttled";
    case Answer::Rejected: return "rejected";
    case Answer::Unavailable: return "unavailable";
  }
  return "unknown";
}

const char* reason_name(Reason reason) noexcept {
  switch (reason) {
    case Reason::None: return "none";
    case Reason::Stored: return "stored";
    case Reason::Present: return "present";
    case Reason::Absent: return "absent";
    case Reason::Corrupt: return "corrupt";
    case Reason::Collision: return "collision";
    case Reason::Length: return "length";
    case Reason::Skipped: return "skipped";
    case Reason::Expired: return "expired";
    case Reason::Pending: return "pending";
    case Reason::Load: return "load";
    case Reason::Budget: return "budget";
    case Reason::Full: return "full";
    case Reason::Checksum: return "checksum";
    case Reason::TooLarge: return "too_large";
    case Reason::Policy: return "policy";
    case Reason::Unsupported: return "unsupported";
    case Reason::WrongShard: return "wrong_shard";
    case Reason::Malformed: return "malformed";
    case Reason::UnknownLayout: return "unknown_layout";
    case Reason::UnknownNamespace: return "unknown_namespace";
    case Reason::Version: return "version";
    case Reason::Limit: return "limit";
    case Reason::NotAuthenticated: return "not_authenticated";
    case Reason::Forbidden: return "forbidden";
    case Reason::Stopping: return "stopping";
    case Reason::Media: return "media";
    case Reason::Upstream: return "upstream";
    case Reason::NoConnection: return "no_connection";
    case Reason::OutcomeUnknown: return "outcome_unknown";
    case Reason::QueueFull: return "queue_full";
    case Reason::Forked: return "forked";
    case Reason::Closed: return "closed";
    case Reason::Deadline: return "deadline";
    case Reason::ProtocolError: return "protocol_error";
    case Reason::Unresponsive: return "unresponsive";
    case Reason::NoDescriptors: return "emfile";
    case Reason::Copy: return "copy";
  }
  return "unknown";
}

}  // namespace halfstep::wire
