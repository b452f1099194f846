// bytes.h — reading and writing little-endian structures in memory that we do not trust.
// Invariants: a Reader never reads past its span; once it has failed it stays failed and yields zeros, so that a parser can
// read a whole record and test once. A Writer over a fixed span behaves the same.
// Everything on the wire and on flash is little-endian; so is every machine we build for (asserted below).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace halfstep {

static_assert(std::endian::native == std::endian::little, "formats are little-endian and copied as they lie");

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

inline ConstBytes as_bytes(std::string_view text) noexcept {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text(ConstBytes bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename T>
concept Plain = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>;

template <Plain T>
ConstBytes object_bytes(const T& value) noexcept {
  return {reinterpret_cast<const std::byte*>(&value), sizeof(T)};
}

template <Plain T>
T load_le(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <Plain T>
void store_le(std::byte* to, const T& value) noexcept {
  std::memcpy(to, &value, sizeof(T));
}

class Reader {
 public:
  explicit Reader(ConstBytes bytes) noexcept : rest_(bytes) {}

  template <Plain T>
  T take() noexcept {
    T value{};
    const ConstBytes from = take_bytes(sizeof(T));
    if (from.size() == sizeof(T)) std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }

  // Empty, and the reader failed, when fewer are left.
  ConstBytes take_bytes(size_t count) noexcept {
    if (count > rest_.size()) {
      failed_ = true;
      rest_ = {};
      return {};
    }
    const ConstBytes out = rest_.first(count);
    rest_ = rest_.subspan(count);
    return out;
  }

  size_t left() const noexcept { return rest_.size(); }
  ConstBytes rest() const noexcept { return rest_; }
  bool failed() const noexcept { return failed_; }
  // All bytes were taken and none was missing.
  bool finished() const noexcept { return !failed_ && rest_.empty(); }

 private:
  ConstBytes rest_;
  bool failed_ = false;
};

// Appends to a vector that its owner reuses, so that the steady state does not allocate.
class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) noexcept : out_(out) {}

  template <Plain T>
  void put(const T& value) {
    put_bytes(object_bytes(value));
  }
  // One after the other.
  template <Plain T>
  void put_all(std::span<const T> values) {
    put_bytes(std::as_bytes(values));
  }
  void put_bytes(ConstBytes bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  void pad_to(size_t unit) { out_.resize((out_.size() + unit - 1) / unit * unit); }

  // Overwrites what was put at `offset` before.
  template <Plain T>
  void patch(size_t offset, const T& value) noexcept {
    std::memcpy(out_.data() + offset, &value, sizeof(T));
  }
  size_t size() const noexcept { return out_.size(); }

 private:
  std::vector<std::byte>& out_;
};

}  // namespace halfstep
