// log_age.h — whether both copies of a record log are older than the frames: a start and fsck ask the same question.
// A generation is on media before the first frame of it. So a frame of one that the logs do not know was written after the last
// page of both that is left, and what was deleted since then is not known.
// Looked at are the segments that such frames can be in: of those that the log has never used the first ones, and those that
// have no footer of the generation that it knows. Thread: the shard's, or fsck's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "store/durable/record_log.h"
#include "store/format/geometry.h"

namespace halfstep::store {

struct LogAge {
  bool older = false;
  uint32_t segment = 0;  // the first that says so, and its generation
  uint64_t generation = 0;
  uint64_t sequence_max = 0;  // of all that was looked at

  // "both copies end at …": what is wrong, without what follows from it.
  std::string sentence(const LogContents& log) const;
};

// `walked`: segments that the log names and that have no footer. device_bytes: how far the backing reaches, 0: as far as it
// should. `read` fills a page from an offset of the device; false: it cannot be read.
LogAge age_of_log(const Places& places, const HashKey& secret, const LogContents& log, std::span<const uint32_t> walked,
                  uint64_t device_bytes, const std::function<bool(uint64_t offset, Bytes page)>& read);

}  // namespace halfstep::store
