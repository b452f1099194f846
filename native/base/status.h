// status.h — what a native call answers.
// Invariants: a Status is returned, never logged and never thrown; `detail` is a negative errno or 0.
// Cold paths (open, format, start) answer a Fault, which adds the sentence an operator needs: what failed, the value, the
// bound and the remedy. Nothing on the data path builds a string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace halfstep {

enum class Code : uint8_t {
  Ok,
  NotFound,     // honest miss
  Present,      // the block is there already
  Corrupt,      // bytes from disk or peer failed their check
  Invalid,      // malformed or out of bounds: the sender's mistake
  TooLarge,     // a limit that was announced is exceeded
  Throttled,    // refused for load; retry later
  Unsupported,  // understood, not built or not allowed here
  Late,         // the deadline passed first
  Cancelled,
  Closed,  // the peer, the loop or the store is gone
  NoSpace,
  IoError,   // detail says which
  Internal,  // our own mistake
};

std::string_view code_name(Code code) noexcept;

class [[nodiscard]] Status {
 public:
  constexpr Status() noexcept = default;
  constexpr Status(Code code, int32_t detail = 0) noexcept : code_(code), detail_(detail) {}  // NOLINT: implicit on purpose

  constexpr bool ok() const noexcept { return code_ == Code::Ok; }
  constexpr Code code() const noexcept { return code_; }
  constexpr int32_t detail() const noexcept { return detail_; }
  constexpr bool operator==(const Status& other) const noexcept = default;
  constexpr bool operator==(Code code) const noexcept { return code_ == code; }

 private:
  Code code_ = Code::Ok;
  int32_t detail_ = 0;
};

// Status with the operator's sentence. Empty `what` when ok.
struct [[nodiscard]] Fault {
  Status status;
  std::string what;

  Fault() = default;
  Fault(Status s, std::string w) : status(s), what(std::move(w)) {}
  bool ok() const noexcept { return status.ok(); }
};

// "EPERM (Operation not permitted)" for a positive or negative errno.
std::string errno_name(int32_t error);

}  // namespace halfstep
