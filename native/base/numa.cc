#include "base/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace halfstep::numa {
namespace {

// linux/mempolicy.h, part of the kernel's interface; its header is not everywhere.
constexpr int kModePreferred = 1;
constexpr unsigned long kFlagAddress = 1UL << 1;
constexpr uint32_t kWordBits = 8 * sizeof(unsigned long);

using NodeMask = std::array<unsigned long, kNodesMax / kWordBits>;
// The kernel reads one bit less than it is told.
constexpr unsigned long kMaskBits = kNodesMax + 1;

NodeMask mask_of(uint32_t node) noexcept {
  NodeMask mask{};
  mask[node / kWordBits] = 1UL << (node % kWordBits);
  return mask;
}

Status status_of(long result) noexcept { return result == 0 ? Status() : Status(Code::IoError, -errno); }

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Of "node12"; false for other names.
bool node_number(std::string_view name, uint32_t* out) {
  constexpr std::string_view kPrefix = "node";
  if (!name.starts_with(kPrefix)) return false;
  const std::string_view digits = name.substr(kPrefix.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *out);
  return error == std::errc() && end == digits.data() + digits.size() && *out < kNodesMax;
}

}  // namespace

bool parse_list(std::string_view text, uint32_t below, std::vector<uint32_t>* out) {
  out->clear();
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::vector<uint32_t> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](uint32_t* value) {
    const auto [next, error] = std::from_chars(at, end, *value);
    if (error != std::errc() || *value >= below) return false;
    at = next;
    return true;
  };
  while (at != end) {
    if (!numbers.empty() && *at++ != ',') return false;
    uint32_t first = 0;
    if (!number(&first)) return false;
    uint32_t last = first;
    if (at != end && *at == '-') {
      ++at;
      if (!number(&last) || last < first) return false;
    }
    if (numbers.size() + (last - first) >= below) return false;
    for (uint32_t one = first; one <= last; ++one) numbers.push_back(one);
  }
  *out = std::move(numbers);
  return true;
}

std::vector<Node> read_nodes(const std::string& directory) {
  std::vector<Node> nodes;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    Node node;
    if (!node_number(entry->path().filename().string(), &node.number)) continue;
    (void)parse_list(first_line(entry->path() / "cpulist"), kCoresMax, &node.cores);
    nodes.push_back(std::move(node));
  }
  std::ranges::sort(nodes, {}, &Node::number);
  for (const char* name : {"has_memory", "has_normal_memory"}) {
    std::vector<uint32_t> with_memory;
    const std::string line = first_line(std::filesystem::path(directory) / name);
    if (line.empty() || !parse_list(line, kNodesMax, &with_memory)) continue;
    for (Node& node : nodes) node.has_memory = std::ranges::find(with_memory, node.number) != with_memory.end();
    break;
  }
  return nodes;
}

Status prefer(Bytes memory, uint32_t node) noexcept {
  if (node >= kNodesMax) return {Code::Invalid, -EINVAL};
  const NodeMask mask = mask_of(node);
  return status_of(::syscall(SYS_mbind, memory.data(), memory.size(), kModePreferred, mask.data(), kMaskBits, 0U));
}

Status prefer_for_thread(uint32_t node) noexcept {
  if (node >= kNodesMax) return {Code::Invalid, -EINVAL};
  const NodeMask mask = mask_of(node);
  return status_of(::syscall(SYS_set_mempolicy, kModePreferred, mask.data(), kMaskBits));
}

Status prefer_as_thread(Bytes memory) noexcept {
  int node = -1;
  if (Status status = preferred(nullptr, &node); !status.ok() || node < 0) return status;
  return prefer(memory, static_cast<uint32_t>(node));
}

Status preferred(const void* address, int* node) noexcept {
  *node = -1;
  int mode = 0;
  NodeMask mask{};
  const unsigned long flags = address == nullptr ? 0 : kFlagAddress;
  if (::syscall(SYS_get_mempolicy, &mode, mask.data(), kMaskBits, address, flags) != 0) return {Code::IoError, -errno};
  if (mode != kModePreferred) return {};
  for (uint32_t i = 0; i < kNodesMax && *node < 0; ++i) {
    if ((mask[i / kWordBits] >> (i % kWordBits) & 1UL) != 0) *node = static_cast<int>(i);
  }
  return {};
}

Status sample_pages(ConstBytes memory, uint32_t samples, Pages* out) {
  *out = {};
  const auto page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t pages = memory.size() / page_bytes;
  const size_t count = std::min<size_t>(samples, pages);
  if (count == 0) return {};
  std::vector<const void*> addresses(count);
  std::vector<int> nodes(count, -ENOENT);
  for (size_t i = 0; i < count; ++i) addresses[i] = memory.data() + i * (pages / count) * page_bytes;
  if (::syscall(SYS_move_pages, 0, count, addresses.data(), nullptr, nodes.data(), 0) != 0) return {Code::IoError, -errno};
  for (const int node : nodes) {
    if (node < 0) {
      ++out->absent;
    } else {
      ++out->by_node[static_cast<uint32_t>(node)];
    }
  }
  return {};
}

}  // namespace halfstep::numa
