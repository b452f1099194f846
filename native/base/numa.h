// numa.h — memory nodes: which there are, where memory is to come from, and where it really lies.
// System calls alone (mbind, set_mempolicy, get_mempolicy, move_pages); a container's seccomp profile may refuse any of them,
// and then the Status says so. A node is preferred, never required: one that is full refuses nothing, its neighbours help out.
// Source: mbind(2), set_mempolicy(2), move_pages(2); /sys/devices/system/node, Documentation/ABI/stable/sysfs-devices-node.
// Thread: any; the thread's own policy is of who calls.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace halfstep::numa {

inline constexpr uint32_t kNodesMax = 1024;  // what a kernel can be built for
inline constexpr uint32_t kCoresMax = 8192;
inline constexpr const char* kNodeDirectory = "/sys/devices/system/node";

struct Node {
  uint32_t number = 0;
  bool has_memory = true;
  std::vector<uint32_t> cores;
};

// Numbers below `below` of "0-3,8", as the kernel writes them. False, and nothing in `out`, for anything else.
bool parse_list(std::string_view text, uint32_t below, std::vector<uint32_t>* out);
// By number. Empty where the kernel tells of none; what it says and cannot be is left out.
std::vector<Node> read_nodes(const std::string& directory = kNodeDirectory);

// Pages of this mapping that are not there yet come from `node`, whoever touches them first; of a shared mapping, those of the
// object. `memory` begins at a page.
Status prefer(Bytes memory, uint32_t node) noexcept;
// What this thread touches or has the kernel allocate from now on, where a mapping does not say otherwise.
Status prefer_for_thread(uint32_t node) noexcept;
// `memory` as this thread prefers it; nothing where it prefers none.
Status prefer_as_thread(Bytes memory) noexcept;

// What the kernel says: the node preferred for this address (null: for this thread), -1 for none.
Status preferred(const void* address, int* node) noexcept;

// Of up to `samples` pages, evenly spread over `memory`.
struct Pages {
  std::map<uint32_t, uint32_t> by_node;
  uint32_t absent = 0;  // never touched, or swapped out
};
Status sample_pages(ConstBytes memory, uint32_t samples, Pages* out);

}  // namespace halfstep::numa
