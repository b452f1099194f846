// check.h — checks of our own mistakes: what fails here is a defect of this program, never bytes from a disk, a peer or a user.
//
//   HALFSTEP_CHECK   in every build: a breach would write over a neighbour, free twice, or wrap a counter.
//   HALFSTEP_DCHECK  where NDEBUG is not defined (debug, sanitizers, the simulator with mutants): every other invariant.
//
// The values that decide the condition follow it: HALFSTEP_CHECK(used <= bytes, used, bytes). A check that fails writes one
// line to stderr (file, condition, values, build) and aborts the process. A daemon is started again by its supervisor and keeps
// its cache; a client's process ends before it could compute with bytes that are not its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace halfstep {

// A value that a failed check shows: an integer, an enumerator, or an address.
class CheckValue {
 public:
  template <typename T, typename = std::enable_if_t<std::is_integral_v<T> || std::is_enum_v<T>>>
  explicit CheckValue(T value) noexcept : bits_(static_cast<uint64_t>(value)) {
    if constexpr (std::is_signed_v<T>) negative_ = value < T{};
  }
  explicit CheckValue(const void* value) noexcept : bits_(reinterpret_cast<uintptr_t>(value)) {}

  uint64_t bits() const noexcept { return bits_; }
  bool negative() const noexcept { return negative_; }

 private:
  uint64_t bits_;
  bool negative_ = false;
};

struct CheckPlace {
  const char* file;
  int line;
  const char* condition;
  const char* names;  // of the values, commas between them
};

[[noreturn, gnu::cold, gnu::noinline]] void check_failed(const CheckPlace& place, const CheckValue* values,
                                                         size_t count) noexcept;

template <typename... Values>
[[noreturn, gnu::cold, gnu::noinline]] void check_failed_with(const CheckPlace& place, Values... values) noexcept {
  const CheckValue all[] = {CheckValue(0), CheckValue(values)...};  // the first: an array has one element at least
  check_failed(place, all + 1, sizeof...(values));
}

}  // namespace halfstep

#define HALFSTEP_CHECK(condition, ...)                                                                               \
  do {                                                                                                               \
    if (!(condition)) [[unlikely]] {                                                                                 \
      ::halfstep::check_failed_with(::halfstep::CheckPlace{__FILE_NAME__, __LINE__, #condition,                      \
                                                           "" __VA_OPT__(#__VA_ARGS__)} __VA_OPT__(, ) __VA_ARGS__); \
    }                                                                                                                \
  } while (false)

#ifdef NDEBUG
#define HALFSTEP_DCHECK(condition, ...) \
  do {                                  \
    if (false) (void)(condition);       \
  } while (false)
#else
#define HALFSTEP_DCHECK(condition, ...) HALFSTEP_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
