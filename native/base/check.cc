#include "base/check.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/build_info.h"

namespace halfstep {
namespace {

// Allocates nothing: the heap may be what is broken.
class Line {
 public:
  void text(const char* text, size_t bytes) noexcept {
    const size_t room = sizeof(bytes_) - used_;
    const size_t taken = bytes < room ? bytes : room;
    std::memcpy(bytes_ + used_, text, taken);
    used_ += taken;
  }
  void text(const char* words) noexcept { text(words, std::strlen(words)); }
  void value(const CheckValue& value) noexcept {
    char digits[32];
    const int bytes = value.negative()
                          ? std::snprintf(digits, sizeof(digits), "%lld", static_cast<long long>(value.bits()))
                          : std::snprintf(digits, sizeof(digits), "%llu", static_cast<unsigned long long>(value.bits()));
    text(digits, static_cast<size_t>(bytes));
  }
  void write() noexcept {
    if (used_ == sizeof(bytes_)) --used_;
    bytes_[used_++] = '\n';
    for (size_t at = 0; at < used_;) {
      const ssize_t wrote = ::write(STDERR_FILENO, bytes_ + at, used_ - at);
      if (wrote <= 0) return;
      at += static_cast<size_t>(wrote);
    }
  }

 private:
  char bytes_[1024];
  size_t used_ = 0;
};

// The end of the name at `names`: a comma inside brackets belongs to it.
const char* name_end(const char* names) noexcept {
  int depth = 0;
  for (; *names != '\0'; ++names) {
    if (*names == '(' || *names == '[' || *names == '{') ++depth;
    if (*names == ')' || *names == ']' || *names == '}') --depth;
    if (*names == ',' && depth == 0) break;
  }
  return names;
}

}  // namespace

void check_failed(const CheckPlace& place, const CheckValue* values, size_t count) noexcept {
  Line line;
  line.text("halfstep: check failed: ");
  line.text(place.file);
  line.text(":");
  line.value(CheckValue(place.line));
  line.text(": ");
  line.text(place.condition);
  const char* name = place.names;
  for (size_t i = 0; i < count; ++i) {
    line.text(i == 0 ? "; " : ", ");
    const char* end = name_end(name);
    line.text(name, static_cast<size_t>(end - name));
    line.text("=");
    line.value(values[i]);
    name = *end == ',' ? end + 1 : end;
    while (*name == ' ') ++name;
  }
  line.text("; build ");
  line.text(kVersion.data(), kVersion.size());
  line.text(" (");
  line.text(kCommit.data(), kCommit.size());
  line.text(", ");
  line.text(kBuildType.data(), kBuildType.size());
  line.text(")");
  line.text("; a defect of Halfstep: report this line, and the log before it");
  line.write();
  std::abort();
}

}  // namespace halfstep
