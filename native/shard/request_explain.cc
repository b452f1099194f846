#include "shard/request_explain.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <vector>

#include "shard/client.h"
#include "shard/reply.h"
#include "shard/request_host.h"
#include "shard/request_names.h"

namespace halfstep::shard {
namespace {

using wire::Answer;
using wire::Opcode;
using wire::Reason;

// Of one question: blocks that are waited for, requests told of each, and requests counted of each.
constexpr size_t kAwaitedMax = 256;
constexpr uint32_t kWaitersTold = 8;
constexpr uint32_t kWaitersCounted = 1'000;

static_assert(wire::kQuestionComponentsMax <= store::KeyQuestion::kLookupsMax);

// Objects and arrays of names and numbers of our own: there is no text in them that would have to be escaped.
class JsonWriter {
 public:
  void open(char bracket) {
    value({&bracket, 1});
    first_ = true;
  }
  void close(char bracket) {
    out_ += bracket;
    first_ = false;
  }
  void name(const char* name) {
    comma();
    out_ += '"';
    out_ += name;
    out_ += "\":";
    first_ = true;
  }
  void value(std::string_view plain) {
    comma();
    out_ += plain;
  }
  void number(const char* of, uint64_t value_of) {
    name(of);
    value(std::to_string(value_of));
  }
  void truth(const char* of, bool value_of) {
    name(of);
    value(value_of ? "true" : "false");
  }
  void word(const char* of, std::string_view value_of) {
    name(of);
    value("\"");
    out_ += value_of;
    out_ += '"';
  }
  std::string take() { return std::move(out_); }

 private:
  void comma() {
    if (!first_) out_ += ',';
    first_ = false;
  }
  std::string out_;
  bool first_ = true;
};

std::string hex(const wire::LayoutId& id) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const std::byte b : id) {
    out += kDigits[std::to_integer<unsigned>(b) >> 4];
    out += kDigits[std::to_integer<unsigned>(b) & 15U];
  }
  return out;
}

void put_place(JsonWriter& json, const store::ExplainedBlock& block) {
  json.name("where");
  json.open('{');
  json.truth("memory", block.in_memory);
  json.truth("flash", block.on_flash);
  json.truth("on_media", block.on_media);
  if (block.on_flash) {
    json.number("segment", block.segment);
    json.number("page", block.page);
    json.truth("sealed", block.sealed);
    json.number("stream", block.stream);
  }
  json.close('}');
}

void put_life(JsonWriter& json, const store::ExplainedBlock& block) {
  constexpr std::array kTouches = {"none", "once", "more", "more"};
  constexpr std::array kHints = {"none", "final_turn", "thinking", "tool_pause", "system_prompt"};
  json.number("block_bytes", block.block_bytes);
  json.number("extent_bytes", block.extent_bytes);
  json.word("codec", block.codecs_known ? codecs_name(block.codecs) : std::string("other"));
  json.name("created_s");
  json.value(block.created_s == 0 ? "null" : std::to_string(block.created_s));
  json.number("expiry_s", block.expiry_s);
  json.word("touched", kTouches[block.touch_class & 3U]);
  json.word("hint", kHints[block.hint < kHints.size() ? block.hint : 0]);
  std::array<char, 32> age;
  std::snprintf(age.data(), age.size(), "%.4f", block.touch_age_capacities);
  json.name("touch_age_capacities");
  json.value(age.data());
  json.name("holds");
  json.open('[');
  for (const auto& hold : block.holds) {
    json.open('{');
    json.truth("persistent", hold.persistent);
    json.name("ends_in_ms");
    json.value(hold.endless ? "null" : std::to_string(hold.ends_in_ms));
    json.close('}');
  }
  json.close(']');
}

void put_block(JsonWriter& json, const store::ExplainedBlock& block) {
  json.open('{');
  json.word("layout", hex(block.layout));
  json.number("component", block.component.value);
  json.truth("there", block.there);
  json.truth("layout_cleared", block.scope_retired);
  if (block.in_memory || block.on_flash) {
    put_place(json, block);
    put_life(json, block);
  }
  json.name("events");
  json.open('[');
  for (const store::Event& event : block.events) {
    json.open('{');
    json.number("number", event.number);
    json.number("time_s", event.time_s);
    json.word("kind", store::event_kind_name(event.kind()));
    json.word("reason", store::event_reason_name(event.reason));
    json.number("block_bytes", event.block_bytes);
    json.close('}');
  }
  json.close(']');
  json.close('}');
}

void put_awaited(JsonWriter& json, const Awaited& block, uint64_t now_us) {
  json.open('{');
  json.word("layout", hex(block.layout));
  json.number("component", block.component.value);
  json.number("waiting", block.waiting);
  json.name("waiters");
  json.open('[');
  for (const KeyWaiters::Waiter& waiter : block.waiters) {
    json.open('{');
    json.word("command", waiter.command);
    json.number("waited_ms", (now_us - std::min(now_us, waiter.since_us)) / 1000);
    json.number("ends_in_ms", (waiter.until_us - std::min(now_us, waiter.until_us)) / 1000);
    json.close('}');
  }
  json.close(']');
  json.close('}');
}

void put_memory(JsonWriter& json, const store::Explanation& e) {
  json.name("memory");
  json.open('{');
  json.number("oldest_event", e.oldest_event);
  json.number("oldest_event_s", e.oldest_event_s);
  json.number("newest_event", e.newest_event);
  json.name("forgotten");
  json.open('{');
  for (size_t reason = 0; reason < store::kEventReasons; ++reason) {
    json.number(store::event_reason_name(static_cast<store::EventReason>(reason)), e.forgotten[reason]);
  }
  json.close('}');
  json.name("unnamed");
  json.open('{');
  json.number("blocks", e.unnamed);
  json.number("newest_event", e.unnamed_event);
  json.number("newest_s", e.unnamed_s);
  json.close('}');
  json.close('}');
}

}  // namespace

std::string json_of(const store::Explanation& e, std::span<const Awaited> awaited, uint64_t now_us) {
  JsonWriter json;
  json.open('{');
  json.number("now_s", e.now_s);
  json.number("lookups", e.lookups);
  json.truth("whole", e.whole);
  put_memory(json, e);
  json.name("cleared");
  json.open('[');
  for (const store::RetiredScope& scope : e.cleared) {
    json.open('{');
    json.number("number", scope.number);
    json.number("time_s", scope.time_s);
    json.word("layout", hex(scope.name.layout));
    json.word("reason", store::event_reason_name(scope.reason));
    json.close('}');
  }
  json.close(']');
  json.name("blocks");
  json.open('[');
  for (const store::ExplainedBlock& block : e.blocks) put_block(json, block);
  json.close(']');
  json.name("awaited");
  json.open('[');
  for (const Awaited& block : awaited) put_awaited(json, block, now_us);
  json.close(']');
  json.close('}');
  return json.take();
}

void answer_explain(Client& client, uint64_t id, ConstBytes question) {
  wire::KeyQuestionView asked;
  if (const Status parsed = wire::parse_key_question(question, &asked); !parsed.ok()) {
    const bool large = parsed == Code::TooLarge;
    return answer_whole(client, Opcode::Stat, id, {Answer::Rejected, large ? Reason::Limit : Reason::Malformed},
                        large ? "stat: KeyQuestion has over 8 ranges or 4,096 components" : "stat: KeyQuestion is malformed");
  }
  RequestHost& host = client.host();
  if (wire::route(asked.engine_key, host.hello().shards) != host.hello().shard) {
    return answer_wrong_shard(client, Opcode::Stat, id);
  }
  std::vector<store::ComponentRange> components;
  for (uint32_t r = 0; r < asked.ranges.size(); ++r) components.push_back({{asked.ranges[r].first}, asked.ranges[r].count});
  store::KeyQuestion about;
  about.name_space = client.name_space();
  about.engine_key = asked.engine_key;
  about.components = components;
  about.every_group = (asked.head.flags & wire::kQuestionEveryGroup) != 0;
  std::vector<Awaited> awaited;
  const KeyWaiters& waiters = host.key_waiters();
  about.looked_up = [&](const store::IndexKey& key, const wire::LayoutId& layout, wire::Component component) {
    const uint32_t waiting = waiters.waiting_for(key, kWaitersCounted);
    if (waiting == 0 || awaited.size() == kAwaitedMax) return;
    Awaited& block = awaited.emplace_back();
    block.layout = layout;
    block.component = component;
    block.waiting = waiting;
    waiters.for_each_of(key, kWaitersTold, [&](const KeyWaiters::Owner& owner) { block.waiters.push_back(owner.waiter()); });
  };
  const store::Explanation explanation = host.store().explain(about);
  const std::string text = json_of(explanation, awaited, host.loop().now_us());
  host.counts().answer(Opcode::Stat, {Answer::Ok, Reason::None});
  Reply reply(client, id);
  reply.whole({Answer::Ok, Reason::None});
  reply.frame().tlv_bytes(wire::Tlv::Explanation, as_bytes(text));
  reply.send();
}

}  // namespace halfstep::shard
