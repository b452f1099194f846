// options.h — what a client is told: one frozen struct, checked by hs_client_open().
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gpu/cuda.h"
#include "gpu/staging.h"
#include "net/socket.h"
#include "peer/coding_choice.h"
#include "rdma/verbs.h"

namespace halfstep::peer {

// How bytes travel over a TCP address. (Over a unix socket it is shared memory, always.)
enum class Carrier : uint8_t {
  Auto,  // through rings over RDMA where both ends have a device on the route, else by the socket
  Tcp,
  Rdma,  // or not at all
};

struct Options {
  net::Address address;
  std::string name_space;
  uint32_t connections = 1;
  uint64_t connect_timeout_us = 1'000'000;
  uint64_t backoff_us_min = 50'000;
  uint64_t backoff_us_max = 2'000'000;
  uint32_t tickets_max = 4096;
  uint64_t codecs = 1;  // bit c: codec c is spoken; blocks of layouts that name another one are raw
  CodingMode coding = CodingMode::Auto;
  Carrier carrier = Carrier::Auto;
  uint64_t region_bytes_max = 64ULL << 30;                           // pinned for daemons to write into
  std::function<gpu::Cuda*(std::string*)> cuda = &gpu::system_cuda;  // likewise
  gpu::StagingLimits staging;
  std::function<rdma::Verbs*(std::string*)> verbs = &rdma::system_verbs;  // for tests: another table
};

}  // namespace halfstep::peer
