#include "shard/memory_place.h"

#include <algorithm>
#include <cerrno>

namespace halfstep::shard {
namespace {

std::string list_of(const std::vector<numa::Node>& nodes) {
  std::string list;
  for (const numa::Node& node : nodes) {
    if (node.has_memory) list.append(list.empty() ? "" : ", ").append(std::to_string(node.number));
  }
  return list;
}

std::string refused(const char* call, int node, Status status) {
  const char* const remedy = status.detail() == -EINVAL
                                 ? "the process may not use its memory (cpuset.mems); name another node, or --numa off"
                                 : "allow the calls about memory nodes (seccomp profile, CAP_SYS_NICE), or --numa off";
  return "node " + std::to_string(node) + ": " + call + ": " + errno_name(status.detail()) + "; " + remedy;
}

}  // namespace

Fault MemoryPlaces::make(const MemoryConfig& config, MemoryPlaces* out) {
  out->config_ = config;
  out->nodes_ = numa::read_nodes(config.node_directory);
  if (config.automatic) return {};
  for (const uint32_t wanted : config.nodes) {
    const auto node = std::ranges::find(out->nodes_, wanted, &numa::Node::number);
    if (node != out->nodes_.end() && node->has_memory) continue;
    const std::string value = "numa=" + std::to_string(wanted) + ": ";
    if (out->nodes_.empty()) {
      return {Code::Invalid, value + config.node_directory + " tells of no memory nodes; leave --numa at auto"};
    }
    return {Code::Invalid, value + (node == out->nodes_.end() ? "there is no such node; nodes" : "has no memory; nodes") +
                               " with memory are " + list_of(out->nodes_) + "; name some of these, or auto or off"};
  }
  return {};
}

MemoryPlace MemoryPlaces::of(uint32_t shard, int core) const {
  if (!config_.automatic) {
    if (config_.nodes.empty()) return {-1, "off"};
    return {static_cast<int>(config_.nodes[shard % config_.nodes.size()]), ""};
  }
  if (nodes_.empty()) return {-1, "the kernel tells of no memory nodes"};
  const auto with_memory = std::ranges::count_if(nodes_, &numa::Node::has_memory);
  if (with_memory <= 1) return {-1, "this machine has one memory node"};
  if (core < 0) return {-1, "shards are not bound to cores; bind them with --cores, or name nodes with --numa"};
  const auto of_core = [core](const numa::Node& node) {
    return std::ranges::find(node.cores, static_cast<uint32_t>(core)) != node.cores.end();
  };
  const auto node = std::ranges::find_if(nodes_, of_core);
  if (node == nodes_.end()) return {-1, "core " + std::to_string(core) + " belongs to no memory node"};
  if (!node->has_memory) {
    return {-1, "node " + std::to_string(node->number) + " of core " + std::to_string(core) +
                    " has no memory; name one with --numa: " + list_of(nodes_)};
  }
  return {static_cast<int>(node->number), ""};
}

MemoryFacts look_at_memory(const MemoryPlace& place, Status asked_arena, Status asked_thread, ConstBytes arena,
                           ConstBytes index) {
  MemoryFacts facts;
  int of_thread = -1;
  Status told = numa::preferred(arena.data(), &facts.node);
  if (told.ok()) told = numa::preferred(nullptr, &of_thread);
  if (facts.node != of_thread) facts.node = -1;
  if (place.node < 0) {
    facts.why_no_node = place.why;
  } else if (!asked_arena.ok()) {
    facts.why_no_node = refused("mbind", place.node, asked_arena);
  } else if (!asked_thread.ok()) {
    facts.why_no_node = refused("set_mempolicy", place.node, asked_thread);
  } else if (!told.ok()) {
    facts.why_no_node = "node " + std::to_string(place.node) + " was asked for; get_mempolicy: " + errno_name(told.detail());
  }
  Status pages = numa::sample_pages(arena, kPagesSampled, &facts.arena);
  if (pages.ok()) pages = numa::sample_pages(index, kPagesSampled, &facts.index);
  if (!pages.ok()) facts.why_no_pages = "move_pages: " + errno_name(pages.detail());
  return facts;
}

}  // namespace halfstep::shard
