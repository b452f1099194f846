// diagnosis.h — why a request does not parse, in a sentence that names the field. Cold: only for requests that are refused.
#pragma once

#include <string>

#include "base/bytes.h"
#include "wire/message.h"

namespace halfstep::shard {

std::string diagnose_request(wire::Opcode command, ConstBytes body);

}  // namespace halfstep::shard
