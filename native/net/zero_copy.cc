#include "net/zero_copy.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/check.h"

namespace halfstep::net {
namespace {

// What is done with is cut off the front of a vector once it is this much and at least half of it.
constexpr size_t kCompact = 64;

template <typename T>
void compact(std::vector<T>& from, size_t* first) noexcept {
  if (*first == from.size()) {
    from.clear();
    *first = 0;
  } else if (*first >= kCompact && *first * 2 >= from.size()) {
    from.erase(from.begin(), from.begin() + static_cast<ptrdiff_t>(*first));
    *first = 0;
  }
}

bool is_error(const cmsghdr& head) noexcept {
  return (head.cmsg_level == SOL_IP && head.cmsg_type == IP_RECVERR) ||
         (head.cmsg_level == SOL_IPV6 && head.cmsg_type == IPV6_RECVERR);
}

}  // namespace

void ZeroCopyLedger::sent(uint32_t bytes) {
  sends_.push_back({.bytes = bytes});
  bytes_ += bytes;
}

uint64_t ZeroCopyLedger::notified(uint32_t first, uint32_t last) noexcept {
  const uint32_t at = first - static_cast<uint32_t>(done_);  // modulo 2^32, as the kernel counts
  const uint64_t count = uint64_t{last - first} + 1;
  const uint64_t known = sends_.size() - first_;
  if (at >= known || count > known - at) return 0;
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Send& send = sends_[first_ + at + i];
    if (!send.done) bytes += send.bytes;
    send.done = true;
  }
  HALFSTEP_CHECK(bytes <= bytes_, bytes, bytes_);
  bytes_ -= bytes;
  while (first_ != sends_.size() && sends_[first_].done) {
    ++first_;
    ++done_;
  }
  compact(sends_, &first_);
  return bytes;
}

bool ZeroCopyLedger::hold(const Release& release) {
  if (!under_way()) return false;
  held_.push_back({release, next()});
  return true;
}

bool ZeroCopyLedger::take_free(Release* out) noexcept {
  return first_held_ != held_.size() && held_[first_held_].after <= done_ && take_any(out);
}

bool ZeroCopyLedger::take_any(Release* out) noexcept {
  if (first_held_ == held_.size()) return false;
  *out = held_[first_held_++].release;
  compact(held_, &first_held_);
  return true;
}

Notified take_notifications(int descriptor, ZeroCopyLedger& ledger, ZeroCopyCounts& counts) noexcept {
  Notified found;
  for (;;) {
    // An address follows the error itself.
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(sock_extended_err) + sizeof(sockaddr_in6))> control;
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(descriptor, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (errno == EINTR) continue;
      return found;  // EAGAIN: that was all
    }
    for (const cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
         head = CMSG_NXTHDR(&message, const_cast<cmsghdr*>(head))) {
      if (!is_error(*head) || head->cmsg_len < CMSG_LEN(sizeof(sock_extended_err))) continue;
      sock_extended_err error{};
      std::memcpy(&error, CMSG_DATA(head), sizeof(error));
      if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY || error.ee_errno != 0) continue;
      found.any = true;
      const bool copied = (error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0;
      found.copied = found.copied || copied;
      ++(copied ? counts.copied_notifications : counts.notifications);
      (copied ? counts.copied_bytes : counts.bytes) += ledger.notified(error.ee_info, error.ee_data);
    }
  }
}

}  // namespace halfstep::net
