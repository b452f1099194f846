#include "base/memory_limit.h"

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string_view>

namespace halfstep {
namespace {

namespace fs = std::filesystem;

// Version 1 writes "no limit" as the largest number of whole pages.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

// nullopt: no such file, or "max".
std::optional<uint64_t> number_in(const fs::path& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  if (!(in >> value) || value >= kNoLimit) return std::nullopt;
  return value;
}

// Lines of "name bytes".
uint64_t sum_of(const fs::path& path, std::initializer_list<std::string_view> names) {
  std::ifstream in(path);
  uint64_t sum = 0;
  std::string name;
  for (uint64_t value = 0; in >> name >> value;) {
    for (const std::string_view wanted : names) {
      if (name == wanted) sum += value;
    }
  }
  return sum;
}

void look_at(const fs::path& group, bool unified, std::optional<MemoryLimit>* tightest) {
  const fs::path file = group / (unified ? "memory.max" : "memory.limit_in_bytes");
  const std::optional<uint64_t> bytes = number_in(file);
  if (!bytes) return;
  const fs::path stat = group / "memory.stat";
  const uint64_t used = unified ? sum_of(stat, {"anon", "shmem"}) : sum_of(stat, {"total_rss", "total_shmem"});
  MemoryLimit found{file.string(), *bytes, used};
  if (!*tightest || found.left_bytes() < (*tightest)->left_bytes()) *tightest = std::move(found);
}

// The group and all above it, the root of the mount last: a container may see its own group there alone.
void look_above(const fs::path& mount, const std::string& group, bool unified, std::optional<MemoryLimit>* tightest) {
  fs::path rest = fs::path(group).relative_path();
  while (!rest.empty() && rest != "..") {
    look_at(mount / rest, unified, tightest);
    rest = rest.parent_path();
  }
  look_at(mount, unified, tightest);
}

}  // namespace

std::optional<MemoryLimit> memory_limit(const ControlGroupFiles& files) {
  std::optional<MemoryLimit> tightest;
  const fs::path mounted = files.mounted;
  std::ifstream in(files.of_process);
  // "4:memory:/a/b" of version 1, "0::/a/b" of version 2.
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string group = line.substr(second + 1);
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) {
      for (const fs::path& mount : {mounted, mounted / "unified"}) look_above(mount, group, true, &tightest);
      continue;
    }
    std::istringstream names(controllers);
    for (std::string name; std::getline(names, name, ',');) {
      if (name == "memory") look_above(mounted / "memory", group, false, &tightest);
    }
  }
  return tightest;
}

}  // namespace halfstep
