// fake_device.h — what the devices of FakeVerbs are like.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rdma/device.h"

namespace halfstep::rdma {

inline Gid ipv4_gid(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  Gid gid{};
  gid[10] = gid[11] = std::byte{0xFF};
  gid[12] = std::byte{a};
  gid[13] = std::byte{b};
  gid[14] = std::byte{c};
  gid[15] = std::byte{d};
  return gid;
}

struct FakePort {
  int state = abi::kPortActive;
  int mtu = 3;                                 // 1024
  std::vector<std::pair<Gid, uint32_t>> gids;  // and types
};
struct FakeDevice {
  std::string name = "fake0";
  std::vector<FakePort> ports{{.gids = {{ipv4_gid(127, 0, 0, 1), 1}, {ipv4_gid(127, 0, 0, 1), abi::kGidRoceV2}}}};
  int max_qp_wr = 1024;
  int max_sge = 16;
  int max_reads = 16;
  bool windows = false;  // of memory
};

}  // namespace halfstep::rdma
