// options.h — what a mount is told beside what every daemon is (shard/config.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace halfstep::mount {

struct Options {
  std::string upstream;                            // "host:port" or "unix:/path" of the daemon behind it
  std::vector<std::string> namespaces{"default"};  // for whose clients it speaks; each has a connection of its own
  uint64_t max_age_us = 60'000'000;                // how long a block is served without asking the upstream again
  uint32_t connections = 1;                        // to each shard of the upstream, for each namespace
  uint32_t upstream_deadline_us = 2'000'000;       // of a fetch, a put and a delete
};

}  // namespace halfstep::mount
