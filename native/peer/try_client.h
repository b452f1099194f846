// try_client.h — for tests: the C interface with the tedium taken out. One client, one queue, layouts, batches as functions.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "peer/halfstep.h"
#include "wire/layout.h"
#include "wire/records.h"

namespace halfstep::peer {

using Octets = std::vector<std::byte>;

inline Octets random_octets(size_t count, uint64_t seed) {
  Octets out(count);
  Prng(seed).fill(out);
  return out;
}

inline wire::Layout make_layout(const std::vector<wire::GroupShape>& groups, const std::string& model = "tiny") {
  wire::Layout layout;
  EXPECT_TRUE(wire::Layout::make({{"model", model}}, groups, &layout).ok());
  return layout;
}
inline constexpr wire::GroupShape kOpaque{.part_count = 0, .size_count = 1, .part_bytes = {wire::kOpaquePartBytes}};

inline std::string text_of(hs_answer answer) {
  return std::string(hs_answer_name(answer.answer)) + "(" + hs_reason_name(answer.reason) + ")";
}

inline std::vector<std::string> names(size_t count, const std::string& prefix = "key-") {
  std::vector<std::string> out;
  for (size_t i = 0; i < count; ++i) out.push_back(prefix + std::to_string(i));
  return out;
}

inline std::vector<uint8_t> pack(const std::vector<std::string>& keys) {
  std::vector<uint8_t> out;
  for (const std::string& key : keys) {
    out.push_back(static_cast<uint8_t>(key.size()));
    out.insert(out.end(), key.begin(), key.end());
  }
  return out;
}

// Waits until `holds` does; false after 30 s.
template <typename Condition>
bool comes_true(const Condition& holds) {
  for (int ms = 0; !holds() && ms < 30'000; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return holds();
}

// A section that owns what it points to. Blocks, one for each item, are iovec targets unless rows are set by the test.
struct TrySection {
  explicit TrySection(int layout, std::vector<std::string> names, uint32_t components = 1) : keys(std::move(names)) {
    packed = pack(keys);
    section.layout = layout;
    section.component_count = components;
    section.key_count = static_cast<uint32_t>(keys.size());
    section.keys_bytes = static_cast<uint32_t>(packed.size());
    section.keys = packed.data();
    const size_t items = keys.size() * components;
    answers.resize(items);
    lengths.resize(items);
    section.answers = answers.data();
    section.lengths = lengths.data();
  }
  TrySection(const TrySection&) = delete;
  TrySection& operator=(const TrySection&) = delete;

  TrySection& into(std::vector<Octets>& blocks) {
    for (Octets& block : blocks) {
      iovecs.push_back({block.data(), block.size()});
      block_bytes.push_back(static_cast<uint32_t>(block.size()));
    }
    return by_iovecs();
  }
  // iovecs and, of a put, block_bytes are the test's; of blocks in several pieces `counts`, too.
  TrySection& by_iovecs(const uint32_t* counts = nullptr) {
    section.target_kind = HS_TARGET_IOVEC;
    section.iovecs = iovecs.data();
    section.iovec_counts = counts;
    section.block_bytes = block_bytes.empty() ? nullptr : block_bytes.data();
    return *this;
  }
  TrySection& select(std::vector<hs_range> parts) {
    ranges = std::move(parts);
    section.ranges = ranges.data();
    section.range_count = static_cast<uint32_t>(ranges.size());
    uint32_t selected = 0;
    for (const hs_range& range : ranges) selected += range.count;
    answers.resize(lengths.size() * selected);
    section.answers = answers.data();
    return *this;
  }
  bool all(const std::string& what) const {
    for (const hs_answer& answer : answers) {
      if (text_of(answer) != what) return false;
    }
    return true;
  }

  std::vector<std::string> keys;
  std::vector<uint8_t> packed;
  std::vector<hs_answer> answers;
  std::vector<uint32_t> lengths;
  std::vector<hs_iovec> iovecs;
  std::vector<uint32_t> block_bytes;
  std::vector<hs_range> ranges;
  hs_section section{};
};

class TryClient {
 public:
  explicit TryClient(const std::string& address, uint32_t connections = 1, uint32_t tickets_max = 0,
                     uint32_t connect_timeout_ms = 0, uint32_t backoff_ms = 5, uint64_t codecs = 0,
                     const char* transport = nullptr) {
    hs_options options{};
    options.struct_bytes = sizeof(options);
    options.address = address.c_str();
    options.name_space = "default";
    options.connections = connections;
    options.tickets_max = tickets_max;
    options.codecs = codecs;
    options.coding = "always";  // what was measured on a busy machine changes no test
    options.connect_timeout_ms = connect_timeout_ms;
    options.backoff_ms_min = backoff_ms;
    options.backoff_ms_max = 10 * backoff_ms;
    options.transport = transport;
    char text[256] = "";
    EXPECT_EQ(hs_client_open(&options, &client, text, sizeof(text)), 0) << text;
    EXPECT_EQ(hs_queue_open(client, &queue), 0);
  }
  ~TryClient() {
    if (client != nullptr) hs_client_close(client);
    if (queue != nullptr) hs_queue_close(queue);
  }
  TryClient(const TryClient&) = delete;
  TryClient& operator=(const TryClient&) = delete;

  int layout(const wire::Layout& of) const { return hs_layout_register(client, of.canonical().data(), of.canonical().size()); }
  bool ready(uint32_t timeout_ms = 5000) const {
    char text[256] = "";
    return hs_client_wait_ready(client, timeout_ms, text, sizeof(text)) == 1;
  }

  static hs_batch batch(uint32_t operation, uint32_t deadline_us = 10'000'000) {
    hs_batch out{};
    out.struct_bytes = sizeof(out);
    out.operation = operation;
    out.deadline_us = deadline_us;
    return out;
  }
  hs_ticket submit(hs_batch& batch) {
    char text[256] = "";
    const hs_ticket ticket = hs_submit(queue, &batch, text, sizeof(text));
    why = text;
    return ticket;
  }
  hs_ticket submit(hs_batch& batch, const TrySection& section) {
    batch.sections = &section.section;
    batch.section_count = 1;
    return submit(batch);
  }
  hs_event wait() const {
    hs_event event{};
    EXPECT_EQ(hs_queue_wait(queue, &event, 1, 30'000'000), 1U) << "no event within 30 s";
    return event;
  }
  // Submits and waits for the terminal event.
  hs_event call(hs_batch& batch) {
    const hs_ticket ticket = submit(batch);
    EXPECT_NE(ticket, 0U) << why;
    hs_event event{};
    if (ticket == 0) return event;
    do {
      event = wait();
    } while (event.kind != HS_EVENT_DONE && event.ticket != 0);
    EXPECT_EQ(event.ticket, ticket);
    return event;
  }
  hs_event call(hs_batch& batch, const TrySection& section) {
    batch.sections = &section.section;
    batch.section_count = 1;
    return call(batch);
  }
  hs_event put(const TrySection& section) {
    hs_batch of = batch(HS_OP_PUT);
    return call(of, section);
  }
  hs_event get(const TrySection& section, uint8_t order = HS_KEY_MAJOR) {
    hs_batch of = batch(HS_OP_GET);
    of.order = order;
    return call(of, section);
  }
  hs_event match(const TrySection& section) {
    hs_batch of = batch(HS_OP_MATCH);
    of.wants_lengths = 1;
    return call(of, section);
  }
  hs_client_facts facts() const {
    hs_client_facts out;
    hs_client_get_facts(client, &out);
    return out;
  }

  hs_client* client = nullptr;
  hs_queue* queue = nullptr;
  std::string why;
};

}  // namespace halfstep::peer
