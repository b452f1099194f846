#include "io/place.h"

#include <mntent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <vector>

namespace halfstep::io {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kLinksMax = 40;  // as the kernel follows

bool is_link(const fs::path& path) noexcept {
  struct stat about {};
  return ::lstat(path.c_str(), &about) == 0 && S_ISLNK(about.st_mode);
}

// What a chain of links comes to in the end; it need not be there. Empty: a circle.
fs::path end_of_links(fs::path at) {
  for (uint32_t hops = 0; hops <= kLinksMax; ++hops) {
    if (!is_link(at)) return at;
    std::error_code unreadable;
    const fs::path target = fs::read_symlink(at, unreadable);
    if (unreadable) return at;
    at = target.is_absolute() ? target : at.parent_path() / target;
  }
  return {};
}

Fault broken_link(const fs::path& link) {
  const fs::path end = end_of_links(link);
  if (end.empty()) {
    return {{Code::NotFound, -ELOOP},
            link.string() + ": its links lead in a circle (ELOOP); remove the link, or name the store itself"};
  }
  return {
      {Code::NotFound, -ENOENT},
      link.string() + " links to " + end.lexically_normal().string() + ", which is not there: mount it, or remove the link"};
}

std::string octal_unescaped(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const std::string_view digits = text.substr(at + 1, 3);
    const bool escape = text[at] == '\\' && digits.size() == 3 &&
                        std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '7'; });
    if (!escape) {
      out += text[at];
      continue;
    }
    out += static_cast<char>((digits[0] - '0') * 64 + (digits[1] - '0') * 8 + (digits[2] - '0'));
    at += 3;
  }
  return out;
}

struct FileClose {
  void operator()(FILE* file) const noexcept { ::endmntent(file); }
};
using File = std::unique_ptr<FILE, FileClose>;

// mountinfo: "36 35 98:0 /mnt1 /mnt/point rw,noatime …", the fifth is where.
std::set<std::string> mounted_places(const std::string& table) {
  std::set<std::string> out;
  const File file(::setmntent(table.c_str(), "re"));
  if (file == nullptr) return out;
  char* line = nullptr;
  size_t room = 0;
  while (::getline(&line, &room, file.get()) > 0) {
    std::string_view rest(line);
    for (int skipped = 0; skipped < 4 && !rest.empty(); ++skipped) {
      rest.remove_prefix(std::min(rest.find(' '), rest.size() - 1) + 1);
    }
    out.insert(octal_unescaped(rest.substr(0, rest.find(' '))));
  }
  ::free(line);
  return out;
}

// The directory at or above `place` that ought to be a mount and is none.
Fault unmounted_above(const fs::path& place, const MountTables& tables) {
  const File file(::setmntent(tables.wanted.c_str(), "re"));
  if (file == nullptr) return {};
  const std::set<std::string> present = mounted_places(tables.present);
  if (present.empty()) return {};  // nobody says what is mounted
  mntent entry{};
  char strings[4096];
  while (::getmntent_r(file.get(), &entry, strings, sizeof(strings)) != nullptr) {
    const fs::path point = fs::path(entry.mnt_dir).lexically_normal();
    if (!point.is_absolute() || point == "/" || present.contains(point.string())) continue;
    const auto [ended, at] = std::mismatch(point.begin(), point.end(), place.begin(), place.end());
    if (ended != point.end()) continue;
    return {{Code::NotFound, -ENOENT},
            point.string() + ": " + tables.wanted + " mounts " + entry.mnt_fsname + " there, and nothing is mounted: " +
                "mount it (`mount " + point.string() + "`), or name another path; nothing is made on the disk below it"};
  }
  return {};
}

// Below /dev all is memory, and what is missing there is a device. /dev/shm is a place for files.
Fault below_dev(const fs::path& place, const std::string& path) {
  const std::string text = place.string();
  if (text != "/dev" && !text.starts_with("/dev/")) return {};
  if (text.starts_with("/dev/shm/")) return {};
  return {{Code::NotFound, -ENODEV},
          path +
              ": there is no such device, and nothing is made below /dev: look at its name (`lsblk`), or whether it has "
              "appeared yet"};
}

Fault nothing_there(const fs::path& path, const MountTables& tables) {
  std::error_code unseen;
  fs::path absolute = fs::absolute(path, unseen);
  if (unseen) absolute = path;
  // Each directory on the way: the first one that is missing is a broken link, or nothing at all.
  fs::path at;
  fs::path last_there = "/";
  for (const fs::path& part : absolute) {
    at /= part;
    struct stat about {};
    if (::stat(at.c_str(), &about) == 0) {
      last_there = at;
      continue;
    }
    const int error = errno;
    if (is_link(at)) return broken_link(at);
    if (error == ENOENT) break;
    if (error == ENOTDIR) {
      return {{Code::Invalid, -error},
              "store=" + path.string() + ": " + last_there.string() + " is no directory; choose another path"};
    }
    return {{Code::IoError, -error}, path.string() + ": " + at.string() + ": " + errno_name(error) + "; choose another path"};
  }
  fs::path real = fs::canonical(last_there, unseen);
  if (unseen) real = last_there;
  const fs::path place = (real / absolute.lexically_relative(last_there)).lexically_normal();
  if (Fault fault = below_dev(place, path.string()); !fault.ok()) return fault;
  return unmounted_above(place, tables);
}

}  // namespace

Fault look_at_place(const std::string& path, bool* there, const MountTables& tables) {
  struct stat about {};
  *there = ::stat(path.c_str(), &about) == 0;
  if (*there) return {};
  const int error = errno;
  switch (error) {
    case ENOENT:
    case ELOOP:
    case ENOTDIR: return nothing_there(path, tables);
    case EACCES:
      return {{Code::IoError, -error},
              path + ": " + errno_name(error) + "; run as the user that made it, or let this user into its directory"};
    default: return {{Code::IoError, -error}, path + ": " + errno_name(error) + "; choose another path"};
  }
}

}  // namespace halfstep::io
