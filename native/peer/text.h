// text.h — sentences, with a peer's text in them, as Python, a log and a shell will take them: UTF-8, in the room there is.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "wire/utf8.h"

namespace halfstep::peer {

// As much of it as `bytes_max` holds, without a part of a letter. What is no UTF-8 is not repeated.
inline std::string_view readable(std::string_view text, size_t bytes_max) noexcept {
  if (!wire::valid_utf8(as_bytes(text))) text = "(no UTF-8)";
  if (text.size() <= bytes_max) return text;
  const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U; };
  while (bytes_max > 0 && continues(bytes_max)) --bytes_max;
  return text.substr(0, bytes_max);
}

// Into `room` bytes, 1 or more; those behind the text are 0.
inline void copy_text(char* to, size_t room, std::string_view text) noexcept {
  const std::string_view fits = readable(text, room - 1);
  std::memcpy(to, fits.data(), fits.size());
  std::memset(to + fits.size(), 0, room - fits.size());
}

inline std::string code_text(Status status) {
  if (status == Code::Closed && status.detail() != 0) return errno_name(status.detail());
  std::string text(code_name(status.code()));
  if (status.detail() != 0) text += ": " + errno_name(status.detail());
  return text;
}

}  // namespace halfstep::peer
