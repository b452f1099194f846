#include "mount/upstream.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "compress/unit.h"
#include "shard/asks_first.h"

namespace halfstep::mount {
namespace {

constexpr size_t kWhyBytes = 512;

Status watch(int epoll, int descriptor) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0 ? Status() : Status(Code::IoError, -errno);
}

hs_section section_of(UpstreamSection& from, uint32_t operation) {
  from.answers.assign(from.count, hs_answer{});
  from.lengths.assign(from.count, 0);
  hs_section out{};
  out.layout = from.layout;
  out.first_component = from.component;
  out.component_count = 1;
  out.key_count = from.count;
  out.keys = from.keys.data();
  out.keys_bytes = static_cast<uint32_t>(from.keys.size());
  out.ttl_s = from.ttl_s;
  out.hint = from.hint;
  if (operation == HS_OP_GET || operation == HS_OP_PUT) {
    out.target_kind = HS_TARGET_IOVEC;
    out.iovecs = from.pieces.data();
    out.iovec_counts = from.piece_counts.data();
  }
  if (operation == HS_OP_PUT) {
    out.block_bytes = from.block_bytes.data();
    out.parents = from.parents.data();
    out.depths = from.depths.data();
  }
  out.answers = from.answers.data();
  if (operation == HS_OP_MATCH || operation == HS_OP_GET) out.lengths = from.lengths.data();
  return out;
}

}  // namespace

void UpstreamSection::add_key(ConstBytes key) {
  keys.push_back(static_cast<uint8_t>(key.size()));
  const auto* bytes = reinterpret_cast<const uint8_t*>(key.data());
  keys.insert(keys.end(), bytes, bytes + key.size());
  ++count;
}

UpstreamSection* UpstreamRequest::section_for(int layout, uint32_t component, uint32_t ttl_s, uint8_t hint) {
  if (items == kItemsMax) return nullptr;
  const auto same = std::find_if(sections.begin(), sections.end(), [&](const UpstreamSection& s) {
    return s.layout == layout && s.component == component && s.ttl_s == ttl_s && s.hint == hint;
  });
  if (same == sections.end() && sections.size() == kSectionsMax) return nullptr;
  ++items;
  if (same != sections.end()) return &*same;
  UpstreamSection& section = sections.emplace_back();
  section.layout = layout;
  section.component = component;
  section.ttl_s = ttl_s;
  section.hint = hint;
  return &section;
}

Upstream::~Upstream() {
  end();
  for (const Space& space : spaces_) {
    if (space.queue != nullptr) hs_queue_close(space.queue);
    if (space.client != nullptr) hs_client_close(space.client);
  }
  if (wake_ >= 0) ::close(wake_);
  if (epoll_ >= 0) ::close(epoll_);
}

Fault Upstream::open(const Options& options) {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || wake_ < 0) return {{Code::IoError, -errno}, "epoll or eventfd: " + errno_name(errno)};
  if (const Status status = watch(epoll_, wake_); !status.ok()) return {status, "epoll: " + errno_name(status.detail())};
  for (const std::string& name : options.namespaces) {
    Space& space = spaces_.emplace_back();
    space.name = name;
    hs_options wanted{};
    wanted.struct_bytes = sizeof(wanted);
    wanted.address = options.upstream.c_str();
    wanted.name_space = name.c_str();
    wanted.connections = options.connections;
    // Coded and decoded here: between the mount and its clients, and in its memory, a block is as its engine made it.
    wanted.codecs = compress::kCodecs;
    std::array<char, kWhyBytes> why{};
    if (const int opened = hs_client_open(&wanted, &space.client, why.data(), why.size()); opened != 0) {
      return {opened == -1 ? Code::Invalid : Code::IoError, "upstream " + options.upstream + ": " + why.data()};
    }
    const int made = hs_queue_open(space.client, &space.queue);
    const int descriptor = made == 0 ? hs_queue_descriptor(space.queue) : -1;
    if (descriptor < 0) return {Code::IoError, "upstream: no descriptor for a queue; raise ulimit -n"};
    if (const Status status = watch(epoll_, descriptor); !status.ok()) return {status, "epoll: " + errno_name(status.detail())};
  }
  return {};
}

Fault Upstream::wait_ready(uint32_t timeout_ms) {
  for (const Space& space : spaces_) {
    std::array<char, kWhyBytes> why{};
    if (hs_client_wait_ready(space.client, timeout_ms, why.data(), why.size()) == -1) {
      return {Code::Invalid, "namespace=" + space.name + ": the upstream refuses it: " + why.data()};
    }
  }
  return {};
}

uint32_t Upstream::block_bytes_max() const {
  uint32_t least = 0;
  for (uint32_t space = 0; space < spaces_.size(); ++space) {
    hs_client_facts known{};
    facts(space, &known);
    if (known.block_bytes_max != 0) least = least == 0 ? known.block_bytes_max : std::min(least, known.block_bytes_max);
  }
  return least;
}

void Upstream::facts(uint32_t space, hs_client_facts* out) const { hs_client_get_facts(spaces_[space].client, out); }

uint32_t Upstream::space_of(std::string_view name) const noexcept {
  for (uint32_t space = 0; space < spaces_.size(); ++space) {
    if (spaces_[space].name == name) return space;
  }
  return UINT32_MAX;
}

int Upstream::register_layout(uint32_t space, ConstBytes canonical) {
  return hs_layout_register(spaces_[space].client, canonical.data(), canonical.size());
}

void Upstream::submit(std::unique_ptr<UpstreamRequest> request) {
  const uint64_t number = ++next_number_;
  UpstreamRequest& of = *request;
  requests_.emplace(number, std::move(request));
  std::array<hs_section, UpstreamRequest::kSectionsMax> sections{};
  for (size_t s = 0; s < of.sections.size(); ++s) sections[s] = section_of(of.sections[s], of.operation);
  hs_batch batch{};
  batch.struct_bytes = sizeof(batch);
  batch.operation = of.operation;
  batch.deadline_us = of.deadline_us;
  batch.durability = of.persist && of.operation == HS_OP_PUT ? HS_PERSIST : HS_CACHE;
  batch.persistent = of.persist && of.operation == HS_OP_HOLD ? 1 : 0;
  batch.hold_owner = of.hold_owner;
  batch.value = of.value;
  batch.wants_lengths = of.operation == HS_OP_MATCH ? 1 : 0;
  batch.section_count = static_cast<uint32_t>(of.sections.size());
  batch.sections = of.sections.empty() ? nullptr : sections.data();
  batch.user_data = number;
  if (of.operation == HS_OP_CLEAR) batch.layout_id = reinterpret_cast<const uint8_t*>(of.layout_id.data());
  if (of.sections.empty()) batch.outcome = &of.outcome;
  std::array<char, kWhyBytes> why{};
  if (!ended_ && hs_submit(spaces_[of.space].queue, &batch, why.data(), why.size()) != 0) return;
  // No batch of ours breaks a rule: there was no memory for it. Its answers stay pending, which status_of() takes for unknown.
  refused_.push_back(number);
  constexpr uint64_t kOne = 1;
  (void)!::write(wake_, &kOne, sizeof(kOne));
}

void Upstream::finish(uint64_t number) {
  const auto at = requests_.find(number);
  HALFSTEP_CHECK(at != requests_.end(), number);
  const std::unique_ptr<UpstreamRequest> request = std::move(at->second);
  requests_.erase(at);
  request->done(*request);
}

void Upstream::turn() {
  if (!refused_.empty()) {
    uint64_t rung = 0;
    (void)!::read(wake_, &rung, sizeof(rung));
    for (const uint64_t number : std::exchange(refused_, {})) finish(number);
  }
  std::array<hs_event, 64> events;
  for (const Space& space : spaces_) {
    if (space.queue == nullptr) continue;
    while (const size_t count = hs_queue_poll(space.queue, events.data(), events.size())) {
      for (size_t e = 0; e < count; ++e) {
        if (events[e].kind == HS_EVENT_DONE) finish(events[e].user_data);
      }
    }
  }
}

void Upstream::wait(uint32_t timeout_ms) const {
  pollfd watched{epoll_, POLLIN, 0};
  (void)::poll(&watched, 1, static_cast<int>(timeout_ms));
}

void Upstream::end() {
  ended_ = true;
  for (const Space& space : spaces_) {
    if (space.queue != nullptr) hs_queue_end(space.queue);
  }
  // done() may submit, which is refused from here on.
  while (!requests_.empty()) turn();
}

Status status_of(const hs_answer& answer) noexcept {
  switch (answer.answer) {
    case HS_OK: return {};
    case HS_MISS: return Code::NotFound;
    case HS_THROTTLED: return Code::Throttled;
    default: return {Code::IoError, shard::kNoAnswer};
  }
}

}  // namespace halfstep::mount
