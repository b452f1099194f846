#include "core_client.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/prng.h"
#include "base/units.h"
#include "program.h"

namespace halfstep::bench {
namespace {

constexpr uint32_t kNameBytes = 16;
constexpr uint32_t kReadyMs = 5000;
constexpr uint64_t kBulkBytes = 16 * MiB;
constexpr uint64_t kBulkBlocksMax = 1024;
constexpr uint64_t kRetryUs = 10'000;

struct Counters {
  std::map<std::string, double> by_name;
};

void take_counter(void* context, const void* record, size_t record_bytes, const void* name, size_t name_bytes) {
  if (record_bytes < sizeof(uint64_t)) return;
  const auto value = load_le<uint64_t>(static_cast<const std::byte*>(record));
  static_cast<Counters*>(context)->by_name[{static_cast<const char*>(name), name_bytes}] += static_cast<double>(value);
}

}  // namespace

void Outcome::add(const Outcome& other) {
  blocks += other.blocks;
  ok += other.ok;
  present += other.present;
  wrong += other.wrong;
  for (const auto& [reason, count] : other.reasons) reasons[reason] += count;
}

bool Outcome::throttled_alone() const {
  return wrong == 0 && std::ranges::all_of(reasons, [](const auto& one) { return one.first.starts_with("throttled"); });
}

std::string Outcome::reasons_object() const {
  std::string text = "{";
  for (const auto& [reason, count] : reasons) {
    text += (text.size() > 1 ? ", \"" : "\"") + reason + "\": " + std::to_string(count);
  }
  return text + "}";
}

CoreClient::CoreClient(const Options& options) : options_(options) {
  hs_options open{};
  open.struct_bytes = sizeof open;
  open.address = options_.address.c_str();
  open.name_space = options_.name_space.c_str();
  open.connections = static_cast<uint32_t>(options_.connections);
  char why[256] = "";
  if (hs_client_open(&open, &client_, why, sizeof why) != 0) fail(why);
  if (hs_queue_open(client_, &queue_) != 0) fail("no queue: out of descriptors");
  const wire::Layout of_blocks = layout();
  layout_ = hs_layout_register(client_, of_blocks.canonical().data(), of_blocks.canonical().size());
  if (hs_client_wait_ready(client_, kReadyMs, why, sizeof why) != 1) {
    if (why[0] == '\0') {
      hs_client_facts facts{};
      hs_client_get_facts(client_, &facts);
      std::memcpy(why, facts.last_error, sizeof why);
    }
    fail(options_.address + ": not ready: " + why);
  }
}

CoreClient::~CoreClient() {
  hs_client_close(client_);
  hs_queue_close(queue_);
}

wire::Layout CoreClient::layout() {
  wire::Layout layout;
  const wire::GroupShape opaque{.part_count = 0, .size_count = 1, .part_bytes = {wire::kOpaquePartBytes}};
  if (!wire::Layout::make({{"model", "client_bench"}}, {opaque}, &layout).ok()) fail("the layout is not one");
  return layout;
}

Call CoreClient::make_call(uint64_t blocks, uint64_t name) const {
  const uint64_t bytes = options_.bs * blocks;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) fail_errno("memory");
  Call call;
  call.name = name;
  for (uint64_t i = 0; i < blocks; ++i) {
    auto* const block = static_cast<std::byte*>(memory) + i * options_.bs;
    Prng(options_.seed).fill({block, options_.bs});
    call.pieces.push_back({block, options_.bs});
    call.lengths.push_back(static_cast<uint32_t>(options_.bs));
  }
  call.answers.resize(blocks);
  call.numbers.reserve(blocks);
  call.keys.resize(blocks * (1 + kNameBytes));
  return call;
}

uint64_t* CoreClient::ends_of(const Call& call, size_t block, bool last) const {
  auto* const start = static_cast<std::byte*>(call.pieces[block].base);
  return reinterpret_cast<uint64_t*>(last ? start + (options_.bs - 8) / 8 * 8 : start);
}

void CoreClient::prepare(Call& call, uint32_t operation, std::span<const uint64_t> numbers) const {
  if (numbers.size() > call.pieces.size()) fail("more blocks than the call has memory for");
  call.operation = operation;
  call.numbers.assign(numbers.begin(), numbers.end());
  for (size_t i = 0; i < numbers.size(); ++i) {
    uint8_t* key = call.keys.data() + i * (1 + kNameBytes);
    key[0] = kNameBytes;
    store_le(reinterpret_cast<std::byte*>(key + 1), options_.seed);
    store_le(reinterpret_cast<std::byte*>(key + 9), numbers[i]);
    // Of a get, too: what comes has to write them again.
    *ends_of(call, i, true) = *ends_of(call, i, false) = operation == HS_OP_PUT ? numbers[i] : UINT64_MAX;
  }
}

void CoreClient::submit(Call& call, hs_durability durability) {
  const auto count = static_cast<uint32_t>(call.numbers.size());
  const bool moves = call.operation == HS_OP_GET || call.operation == HS_OP_PUT;
  hs_section section{};
  section.layout = layout_;
  section.key_count = count;
  section.keys = call.keys.data();
  section.keys_bytes = count * (1 + kNameBytes);
  section.target_kind = moves ? HS_TARGET_IOVEC : HS_TARGET_NONE;
  section.iovecs = moves ? call.pieces.data() : nullptr;
  section.block_bytes = call.operation == HS_OP_PUT ? call.lengths.data() : nullptr;
  section.answers = call.answers.data();
  hs_batch batch{};
  batch.struct_bytes = sizeof batch;
  batch.operation = call.operation;
  batch.deadline_us = kCallDeadlineUs;
  batch.durability = static_cast<uint8_t>(durability);
  batch.section_count = 1;
  batch.sections = &section;
  batch.user_data = call.name;
  char why[256] = "";
  if (hs_submit(queue_, &batch, why, sizeof why) == 0) fail(why);
}

std::span<const uint64_t> CoreClient::take(size_t count) {
  for (size_t i = 0; i < count; ++i) ended_[i] = events_[i].user_data;
  return {ended_, count};
}
std::span<const uint64_t> CoreClient::poll() { return take(hs_queue_poll(queue_, events_, kCallsMax)); }
std::span<const uint64_t> CoreClient::wait(uint64_t timeout_us) {
  return take(hs_queue_wait(queue_, events_, kCallsMax, timeout_us));
}

Outcome CoreClient::check(const Call& call) const {
  Outcome outcome;
  outcome.blocks = call.numbers.size();
  for (size_t i = 0; i < call.numbers.size(); ++i) {
    const hs_answer answer = call.answers[i];
    const char* const reason = hs_reason_name(answer.reason);
    const std::string_view name = hs_answer_name(answer.answer);
    const uint64_t number = call.numbers[i];
    if (answer.answer != HS_OK) {
      ++outcome.reasons[answer.reason == 0 ? std::string(name) : std::string(name) + " (" + reason + ")"];
    } else if (call.operation == HS_OP_GET && (*ends_of(call, i, false) != number || *ends_of(call, i, true) != number)) {
      ++outcome.wrong;
    } else {
      ++outcome.ok;
      outcome.present += call.operation == HS_OP_PUT && std::string_view(reason) == "present" ? 1 : 0;
    }
  }
  return outcome;
}

void CoreClient::require(const Outcome& outcome) {
  if (outcome.wrong > 0) fail(std::to_string(outcome.wrong) + " blocks of a batch are wrong");
  if (!outcome.reasons.empty()) fail("a block was answered " + outcome.reasons.begin()->first);
}

Outcome CoreClient::done(Call& call, hs_durability durability) {
  submit(call, durability);
  if (const auto ended = wait(UINT64_MAX); ended.size() != 1 || ended[0] != call.name) fail("an event of another call");
  return check(call);
}

std::map<std::string, double> CoreClient::stat() {
  Counters counters;
  hs_answer outcome{};
  hs_batch batch{};
  batch.struct_bytes = sizeof batch;
  batch.operation = HS_OP_STAT;
  batch.deadline_us = kCallDeadlineUs;
  batch.sink = take_counter;
  batch.sink_context = &counters;
  batch.outcome = &outcome;
  char why[256] = "";
  if (hs_submit(queue_, &batch, why, sizeof why) == 0) fail(why);
  if (wait(UINT64_MAX).size() != 1) fail("stat: an event of another call");
  if (outcome.answer != HS_OK) fail(std::string("stat: ") + hs_answer_name(outcome.answer));
  return std::move(counters.by_name);
}

Bulk::Bulk(CoreClient& client)
    : client_(client),
      call_(client.make_call(std::clamp<uint64_t>(kBulkBytes / client.block_bytes(), 1, kBulkBlocksMax), UINT64_MAX)) {}

void Bulk::put(uint64_t first, uint64_t count) {
  const SystemClock clock;
  std::vector<uint64_t> numbers;
  for (uint64_t at = 0; at < count; at += numbers.size()) {
    numbers.resize(std::min<uint64_t>(call_.pieces.size(), count - at));
    std::iota(numbers.begin(), numbers.end(), first + at);
    const uint64_t until_us = clock.now_us() + kCallDeadlineUs;
    while (true) {
      client_.prepare(call_, HS_OP_PUT, numbers);
      const Outcome outcome = client_.done(call_, HS_PERSIST);
      if (outcome.ok == outcome.blocks) break;
      if (!outcome.throttled_alone() || clock.now_us() > until_us) {
        fail("the daemon took " + std::to_string(outcome.ok) + " of " + std::to_string(outcome.blocks) +
             " blocks: " + outcome.reasons_object());
      }
      // Full for the moment: what it took meanwhile is answered as present.
      clock.pause_us(kRetryUs);
    }
  }
}

void Bulk::touch(std::span<const uint64_t> numbers) {
  in_calls(HS_OP_TOUCH, numbers, [](const Outcome&) {});
}

void Bulk::get(std::span<const uint64_t> numbers) {
  in_calls(HS_OP_GET, numbers, [](const Outcome& outcome) {
    if (outcome.wrong > 0) fail(std::to_string(outcome.wrong) + " blocks came with other bytes than they were put with");
  });
}

template <typename Took>
void Bulk::in_calls(uint32_t operation, std::span<const uint64_t> numbers, Took&& took) {
  while (!numbers.empty()) {
    const size_t count = std::min(numbers.size(), call_.pieces.size());
    client_.prepare(call_, operation, numbers.first(count));
    took(client_.done(call_));
    numbers = numbers.subspan(count);
  }
}

}  // namespace halfstep::bench
